"""`redoma exec app:shell -- git status`: as a person, or a script, uses it."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

Command = Callable[..., subprocess.CompletedProcess[str]]
REDOMA = str(Path(sys.executable).with_name("redoma"))


@pytest.fixture
def config(tmp_path: Path) -> str:
    file = tmp_path / "redoma.yaml"
    file.write_text(
        "version: '1.0'\nnamespace: app\nentries:\n"
        f"  - {{name: shell, kind: exec.native, default_work_dir: {tmp_path}}}\n"
        "  - {name: cell, kind: exec.jail}\n"
        "  - {name: calc, kind: exec.monty}\n"
        "  - {name: box, kind: exec.docker, image: 'python:3.11-slim', command_whitelist: [id, ls -l]}\n"
        f"  - {{name: listed, kind: exec.native, default_work_dir: {tmp_path}, command_whitelist: [git status]}}\n"
        f"audit: {{directory: {tmp_path}/audit}}\n"
    )
    return str(file)


@pytest.mark.parametrize("entry", ["app:shell", "app:cell"])
def test_streams_stay_apart_and_the_status_is_the_programs(redoma_command: Command, config: str, entry: str) -> None:
    done = redoma_command("--config", config, "exec", entry, "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")
    killed = redoma_command("--config", config, "exec", entry, "--", "sh", "-c", "kill -9 $$")
    assert killed.returncode == 137
    late = redoma_command("--config", config, "exec", "--time", "0.3", entry, "--", "sleep", "60")
    assert late.returncode == 124


@pytest.mark.parametrize("entry", ["app:shell", "app:cell"])
def test_input_is_passed_on_as_it_comes(config: str, entry: str) -> None:
    with subprocess.Popen(
        [REDOMA, "--config", config, "exec", entry, "--", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line in (b"one\n", b"two\n"):  # each comes back before the input has ended
            process.stdin.write(line)
            process.stdin.flush()
            assert process.stdout.readline() == line
        process.stdin.close()
        assert process.stdout.read() == b""
        assert process.wait(60) == 0


@pytest.mark.parametrize(("entry", "refuses"), [("app:shell", True), ("app:cell", False)])
def test_with_stdin_all_of_the_input_is_judged_before_the_program_gets_it(
    redoma_command: Command, config: str, entry: str, refuses: bool
) -> None:
    """In a cell there is no database of anybody's; what is refused outright is refused there, too."""
    asked = ("--config", config, "exec", "--stdin", entry, "--")
    assert redoma_command(*asked, "cat", input="all of it").stdout == "all of it"
    refused = redoma_command(*asked, "sqlite3", "t.db", input=".shell chmod 777 f\n")
    assert ((refused.returncode == 126), "[database.write]" in refused.stderr) == (refuses, refuses)
    assert redoma_command(*asked, "bash", input="rm -rf /").returncode == 126
    harmless = redoma_command(*asked, "sqlite3", "t.db", input="select 1;")
    assert "approve" not in harmless.stderr  # whether there is one or not


@pytest.mark.parametrize("given", [".shell chmod 777 f\n", ""])
def test_a_program_that_would_obey_gets_no_input_as_it_comes(redoma_command: Command, config: str, given: str) -> None:
    """Whatever there is to read, and however early: what decides is that there could be some."""
    refused = redoma_command("--config", config, "exec", "app:shell", "--", "sqlite3", "t.db", input=given)
    assert refused.returncode == 126
    assert "[shell.live-input]" in refused.stderr
    assert "--stdin" in refused.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_before_there_is_a_program_our_signals_are_for_us(tmp_path: Path, number: signal.Signals) -> None:
    """The engine takes the connection, and never answers."""
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(str(tmp_path / "engine.sock"))
        engine.listen()
        file = tmp_path / "redoma.yaml"
        file.write_text(
            "version: '1.0'\nnamespace: app\nentries:\n"
            f"  - {{name: box, kind: exec.docker, image: x, host: 'unix://{tmp_path}/engine.sock'}}\n"
            f"audit: {{directory: {tmp_path}/audit}}\n"
        )
        with subprocess.Popen(
            [REDOMA, "--config", str(file), "exec", "app:box", "--", "id"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            engine.settimeout(30)
            with engine.accept()[0] as asked:
                assert asked.recv(1)
                process.send_signal(number)
                try:
                    assert process.wait(60) == 128 + number
                finally:
                    process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("entry", ["app:shell", "app:cell"])
def test_our_signals_are_the_programs(config: str, entry: str, number: signal.Signals) -> None:
    name = number.name.removeprefix("SIG")
    script = f"trap 'echo caught {name}; exit 3' {name}; echo ready; while :; do sleep 0.02; done"
    with subprocess.Popen(
        [REDOMA, "--config", config, "exec", entry, "--", "sh", "-c", script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        assert process.stdout.read() == f"caught {name}\n".encode()
        assert process.wait(60) == 3


def test_a_program_that_does_not_mind_ends_by_our_signal(config: str) -> None:
    with subprocess.Popen(
        [REDOMA, "--config", config, "exec", "app:shell", "--", "sh", "-c", "echo up; exec sleep 60"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert b"SIGINT" in process.stderr.read()


def test_a_terminal_is_passed_on_too(config: str) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [REDOMA, "--config", config, "exec", "app:shell", "--", "sh", "-c", "read -r x; echo got $x"],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs)
    assert process.stdout is not None
    with process.stdout:
        os.write(ours, b"a line\n")
        assert process.stdout.read() == b"got a line\n"
    assert process.wait(60) == 0
    os.close(ours)


def test_the_answer_to_a_question_at_the_terminal_is_no_input_of_the_program(config: str, tmp_path: Path) -> None:
    """Both are typed at one terminal: what is typed before there is a program goes to the question, all of it."""
    with Path(config).open("a") as file:
        file.write("approval: {approver: console, timeout: 90}\n")
    state = {**os.environ, "REDOMA_STATE_DIR": str(tmp_path / "state")}
    command = [REDOMA, "--config", config, "exec", "app:shell", "--", "bash"]
    pid, terminal = pty.fork()
    if pid == 0:
        try:
            os.execve(REDOMA, command, state)  # noqa: S606 - ours
        finally:
            os._exit(1)
    shown = b""
    try:
        talk = {b"anything else is no: ": b"yes\n", b"for the record: ": b"I know it\n"}
        talk = {**talk, b"know it\r\n": b"echo $((6 * 7))\n", b"42\r\n": b"exit\n"}
        for expected, typed in talk.items():
            while expected not in shown and select.select([terminal], [], [], 60)[0]:
                shown += os.read(terminal, 65536)
            assert expected in shown, shown
            time.sleep(0.3)  # time enough for whoever else would read it
            os.write(terminal, typed)
        with suppress(OSError):  # how a terminal says that nobody is left
            while os.read(terminal, 65536):
                pass
    finally:
        os.close(terminal)  # which hangs up on whoever is left
    assert os.waitpid(pid, 0)[1] == 0


def test_what_is_refused_and_what_fails_have_their_own_status(redoma_command: Command, config: str) -> None:
    refused = redoma_command("--config", config, "exec", "app:listed", "--", "git", "status", "-s")
    assert refused.returncode == 126
    assert "app:listed does not allow this command; it allows: git status" in refused.stderr
    meddling = redoma_command("--config", config, "exec", "-e", "GIT_DIR=/x", "app:listed", "--", "git", "status")
    assert meddling.returncode == 126
    assert "caller_env" in meddling.stderr
    outside = redoma_command("--config", config, "exec", "--work-dir", "/", "app:listed", "--", "git", "status")
    assert outside.returncode == 126
    assert redoma_command("--config", config, "exec", "app:cell", "--", "rm", "-rf", "/").returncode == 126
    unknown = redoma_command("--config", config, "exec", "app:sell", "--", "ls")
    assert (unknown.returncode, "did you mean 'app:shell'?" in unknown.stderr) == (2, True)
    failed = redoma_command("--config", config, "exec", "--require", "nothing", "app:shell", "--", "ls")
    assert failed.returncode == 125
    missing = redoma_command("--config", config, "exec", "app:cell", "--", "no-such-program")
    assert (missing.returncode, "could not start no-such-program" in missing.stderr) == (127, True)


def test_options_reach_the_program(redoma_command: Command, config: str, tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    asked = ("--config", config, "exec", "--env", "A=b", "--work-dir", "below", "app:shell", "--")
    assert redoma_command(*asked, "sh", "-c", "echo $A; pwd").stdout == f"b\n{tmp_path}/below\n"
    done = redoma_command("--config", config, "exec", "--json", "app:cell", "--", "sh", "-c", "echo out; echo err >&2")
    result = json.loads(done.stdout)
    assert (result["status"], result["stdout"], result["stderr"], result["backend"]) == ("ok", "out\n", "err\n", "jail")


def test_montys_code_is_one_word(redoma_command: Command, config: str) -> None:
    assert redoma_command("--config", config, "exec", "app:calc", "--", "6 * 7").stdout == "42\n"
    assert redoma_command("--config", config, "exec", "app:calc", "--", "6", "*", "7").returncode == 2


def test_the_executors_are_listed(redoma_command: Command, config: str, tmp_path: Path) -> None:
    listed = redoma_command("--config", config, "exec", "--list").stdout
    assert [line.split(maxsplit=3) for line in listed.splitlines()] == [
        ["app:box", "exec.docker", "python:3.11-slim", "id, ls -l"],
        ["app:calc", "exec.monty", "-", "any command"],
        ["app:cell", "exec.jail", "-", "any command"],
        ["app:listed", "exec.native", str(tmp_path), "git status"],
        ["app:shell", "exec.native", str(tmp_path), "any command"],
    ]
    told = json.loads(redoma_command("--config", config, "exec", "--list", "--json").stdout)
    assert {entry["address"]: entry["kind"] for entry in told}["app:box"] == "exec.docker"
    unknown = redoma_command("exec", "app:shell", "--", "ls")
    assert (unknown.returncode, "none is configured" in unknown.stderr) == (2, True)
    assert "`entries` in redoma.yaml" in unknown.stderr
    nothing = redoma_command("exec", "--list")
    assert (nothing.returncode, nothing.stdout) == (0, "")
    assert "docs/configuration.md" in nothing.stderr


def test_killing_the_command_line_leaves_nothing(config: str, tmp_path: Path) -> None:
    with subprocess.Popen(
        [REDOMA, "--config", config, "exec", "app:shell", "--", "sh", "-c", "echo $$; exec sleep 60"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        handle = os.pidfd_open(pid)
        process.kill()
        assert select.select([handle], [], [], 60)[0], "the program outlives us"
        os.close(handle)
    deadline = time.monotonic() + 60
    while any(tmp_path.glob("redoma-*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert list(tmp_path.glob("redoma-*")) == []
