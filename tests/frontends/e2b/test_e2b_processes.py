"""commands and pty."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from e2b import (
    AuthenticationException,
    CommandExitException,
    InvalidArgumentException,
    NotFoundException,
    PtySize,
    SandboxException,
    TimeoutException,
)
from e2b_code_interpreter import AsyncSandbox, Sandbox

from pace import SLOW
from serving import Serving

pytestmark = pytest.mark.usefixtures("pointed")


def eventually(what: Any) -> None:
    deadline = time.monotonic() + 30 * SLOW
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_command_has_output_and_an_exit_code(shared: Sandbox) -> None:
    heard: list[str] = []
    done = shared.commands.run("echo out; echo err >&2", on_stdout=heard.append, on_stderr=heard.append)
    assert (done.stdout, done.stderr, done.exit_code, done.error) == ("out\n", "err\n", 0, None)
    assert sorted(heard) == ["err\n", "out\n"]
    with pytest.raises(CommandExitException) as failed:
        shared.commands.run("echo out; echo err >&2; exit 7")
    assert (failed.value.exit_code, failed.value.stdout, failed.value.stderr) == (7, "out\n", "err\n")


def test_it_begins_at_home_or_where_it_is_told(shared: Sandbox) -> None:
    shared.files.make_dir("some/where")
    assert shared.commands.run("pwd; cd ~; pwd").stdout == "/home/user\n/home/user\n"
    assert shared.commands.run("pwd", cwd="/home/user/some").stdout == "/home/user/some\n"
    assert shared.commands.run("pwd", cwd="some/where").stdout == "/home/user/some/where\n"
    assert shared.commands.run("pwd", cwd="/tmp").stdout == "/tmp\n"
    with pytest.raises(InvalidArgumentException, match="does not exist"):
        shared.commands.run("pwd", cwd="/nowhere")


def test_variables_of_the_sandbox_and_of_the_command(shared: Sandbox) -> None:
    assert shared.commands.run("echo $GIVEN $MORE", envs={"MORE": "and more"}).stdout == "at start and more\n"
    assert shared.commands.run("echo $GIVEN$MORE").stdout == "at start\n"


def test_everything_runs_as_one_user(shared: Sandbox) -> None:
    assert shared.commands.run("id -u", user="user").stdout == "1000\n"
    with pytest.raises(AuthenticationException, match="no user 'root'"):
        shared.commands.run("id -u", user="root")
    with pytest.raises(AuthenticationException, match="no user 'root'"):
        shared.files.read("x", user="root")
    with pytest.raises(AuthenticationException, match="no user 'root'"):
        shared.files.list(".", user="root")


def test_all_of_a_long_output_comes_in_order(shared: Sandbox) -> None:
    done = shared.commands.run("seq 1 200000")
    assert done.stdout == "".join(f"{n}\n" for n in range(1, 200001))
    assert shared.commands.run("printf 'no newline €'").stdout == "no newline €"
    assert shared.commands.run("printf '%8191s\\xe2' | tr ' ' a").stdout == "a" * 8191 + "\ufffd"


def test_one_in_the_background_is_listed_talked_to_and_killed(sandbox: Sandbox) -> None:
    cat = sandbox.commands.run("cat", background=True, stdin=True, timeout=0)
    listed = {each.pid: each for each in sandbox.commands.list()}
    assert (listed[cat.pid].cmd, listed[cat.pid].args) == ("/bin/bash", ["-l", "-c", "cat"])
    sandbox.commands.send_stdin(cat.pid, "one\n")
    cat.send_stdin(b"two\n")
    sandbox.commands.stream_input(cat.pid, ["three\n", b"four\n"])
    cat.close_stdin()
    assert cat.wait().stdout == "one\ntwo\nthree\nfour\n"
    assert sandbox.commands.list() == []

    sleeps = sandbox.commands.run("sleep 1000", background=True, timeout=0)
    assert sandbox.commands.run(f"kill -0 {sleeps.pid} && echo there").stdout == "there\n"  # its own process id
    assert sleeps.kill() is True
    with pytest.raises(CommandExitException) as killed:
        sleeps.wait()
    assert (killed.value.exit_code, killed.value.error) == (-1, "signal: killed")
    eventually(lambda: not sandbox.commands.list())
    assert sandbox.commands.kill(sleeps.pid) is False
    with pytest.raises(NotFoundException):
        sandbox.commands.send_stdin(sleeps.pid, "x")
    with pytest.raises(NotFoundException):
        sandbox.commands.connect(sleeps.pid)


def test_input_needs_to_be_asked_for(shared: Sandbox) -> None:
    assert shared.commands.run("cat; echo end").stdout == "end\n"
    deaf = shared.commands.run("sleep 1000", background=True)
    with pytest.raises(SandboxException, match="stdin=True"):
        deaf.send_stdin("x")
    deaf.kill()


def test_one_goes_on_without_its_client_and_another_can_connect(sandbox: Sandbox) -> None:
    first = sandbox.commands.run("read line; echo got $line", background=True, stdin=True, timeout=0)
    first.disconnect()
    second = sandbox.commands.connect(first.pid)
    third = Sandbox.connect(sandbox.sandbox_id).commands.connect(first.pid)
    sandbox.commands.send_stdin(first.pid, "it\n")
    assert second.wait().stdout == "got it\n"
    assert third.wait().stdout == "got it\n"


def test_a_time_out_kills_the_command(sandbox: Sandbox) -> None:
    with pytest.raises(TimeoutException):
        sandbox.commands.run("sleep 1000", timeout=1)
    eventually(lambda: not sandbox.commands.list())
    assert sandbox.commands.run("sleep 0.1; echo end", timeout=0).stdout == "end\n"
    assert sandbox.commands.run("echo long", timeout=500).stdout == "long\n"  # nobody is asked about that


def test_commands_do_not_wait_for_code_nor_for_each_other(sandbox: Sandbox) -> None:
    done: list[str | None] = []
    code = threading.Thread(
        target=lambda: done.append(sandbox.run_code("while not __import__('os').path.exists('go'): pass\n'gone'").text)
    )
    code.start()
    waits = sandbox.commands.run("while [ ! -e go ]; do sleep 0.05; done", background=True)
    assert sandbox.commands.run("echo meanwhile").stdout == "meanwhile\n"
    sandbox.commands.run("touch go")
    waits.wait()
    code.join()
    assert done == ["gone"]


def test_policy_and_people_decide_on_commands(service: Serving, sandbox: Sandbox) -> None:
    with pytest.raises(SandboxException, match="nobody does this"):
        sandbox.commands.run("destroy-it")
    answers: list[Any] = []

    def ask() -> None:
        try:
            answers.append(sandbox.commands.run("deploy-it || echo it ran"))
        except Exception as error:
            answers.append(error)

    for decision, reason in (("approve", "fine"), ("deny", "not today")):
        thread = threading.Thread(target=ask)
        thread.start()
        found: list[Any] = []

        def is_asked(found: list[Any] = found) -> bool:
            found[:] = service.ask("GET", "/v1/approvals", key="maria").json["approvals"]
            return bool(found)

        eventually(is_asked)
        assert found[0]["requester"] == "key:agent e2b"
        path = f"/v1/approvals/{found[0]['id']}/{decision}"
        assert service.ask("POST", path, {"reason": reason}, key="maria").status == 200
        thread.join()
    assert answers[0].stdout == "it ran\n"
    assert isinstance(answers[1], SandboxException)
    assert "not today" in str(answers[1])


def test_nobody_approves_their_own_through_another_way_in(service: Serving) -> None:
    sandbox = Sandbox.create(api_key=service.key("both"))
    try:
        thread = threading.Thread(target=lambda: sandbox.run_code("deploy-it", language="bash"))
        thread.start()
        found: list[Any] = []

        def is_asked() -> bool:
            found[:] = service.ask("GET", "/v1/approvals", key="maria").json["approvals"]
            return bool(found)

        eventually(is_asked)
        path = f"/v1/approvals/{found[0]['id']}"
        assert service.ask("POST", f"{path}/approve", {"reason": "me"}, key="both").status == 403
        assert service.ask("POST", f"{path}/deny", {"reason": "no"}, key="maria").status == 200
        thread.join()
    finally:
        sandbox.kill()


def test_runs_are_on_record_under_the_name_of_the_key(service: Serving, sandbox: Sandbox) -> None:
    service.key("auditor", "audit")
    sandbox.run_code("'in the record, code'")
    sandbox.commands.run("echo in the record, command")
    runs = service.ask("GET", "/v1/audit/runs?limit=50", key="auditor").json["runs"]
    mine = [each for each in runs if each["requester"] == "key:agent e2b"]
    assert any("in the record, code" in str(each) for each in mine)
    assert any("in the record, command" in str(each) for each in mine)


def test_a_terminal(sandbox: Sandbox) -> None:
    seen: list[bytes] = []
    terminal = sandbox.pty.create(PtySize(rows=30, cols=100), envs={"PS1": "> "}, cwd="/tmp", timeout=0)
    sandbox.pty.send_stdin(terminal.pid, b"stty size; pwd; test -t 0 && echo a-terminal\n")
    sandbox.pty.resize(terminal.pid, PtySize(rows=40, cols=120))
    sandbox.pty.stream_input(terminal.pid, [b"stty size\n", "exit 5\n"])
    with pytest.raises(CommandExitException) as ended:
        terminal.wait(on_pty=seen.append)
    text = b"".join(seen).decode()
    assert ended.value.exit_code == 5
    assert "/tmp" in text
    assert "\na-terminal" in text.replace("\r", "")
    assert "40 120" in text
    other = sandbox.pty.create(PtySize(24, 80))
    assert sandbox.pty.kill(other.pid) is True
    eventually(lambda: sandbox.pty.kill(other.pid) is False)


async def test_the_same_calls_without_blocking(asandbox: AsyncSandbox) -> None:
    commands = asandbox.commands
    assert (await commands.run("echo $A", envs={"A": "1"})).stdout == "1\n"
    with pytest.raises(CommandExitException):
        await commands.run("exit 3")
    heard: list[str] = []
    cat = await commands.run("cat", background=True, stdin=True, on_stdout=heard.append)
    assert [each.pid for each in await commands.list()] == [cat.pid]
    await commands.send_stdin(cat.pid, "one\n")
    again = await commands.connect(cat.pid)
    await commands.close_stdin(cat.pid)
    assert (await cat.wait()).stdout == "one\n"
    assert heard == ["one\n"]
    assert (await again.wait()).exit_code == 0
    sleeps = await commands.run("sleep 1000", background=True)
    assert await sleeps.kill()
    with pytest.raises(CommandExitException):
        await sleeps.wait()
    with pytest.raises(TimeoutException):
        await commands.run("sleep 1000", timeout=1)
    many = await asyncio.gather(*(commands.run(f"echo {n}") for n in range(8)))
    assert [each.stdout for each in many] == [f"{n}\n" for n in range(8)]

    seen: list[bytes] = []
    terminal = await asandbox.pty.create(PtySize(rows=24, cols=80), on_data=seen.append)
    await asandbox.pty.resize(terminal.pid, PtySize(rows=25, cols=81))
    await asandbox.pty.send_stdin(terminal.pid, b"stty size\nexit\n")
    await terminal.wait()
    assert b"25 81" in b"".join(seen)
