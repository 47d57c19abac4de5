"""What happens at the edges: odd directories, words, types, limits and moments. Each of these failed once."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import redoma
from redoma import (
    Answer,
    AsyncExecutor,
    Config,
    Executor,
    FakeBackend,
    InvalidRequest,
    Outcome,
    RedomaError,
    Refused,
    Status,
)
from redoma.audit import AuditLog
from redoma.models import Request


def records(config: Config) -> list[Any]:
    return list(AuditLog(config.audit.directory).records())


def test_a_relative_working_directory_is_the_callers(config: Config, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    os.chdir(tmp_path)
    with Executor(config) as executor:
        for given, expected in ((".", tmp_path), ("sub", tmp_path / "sub")):
            result = executor.command(["pwd"], backend="native", cwd=given, policy="none")
            assert result.stdout == f"{expected}\n"


def test_a_command_on_the_host_works_where_its_caller_is_and_code_in_a_directory_of_its_own(
    config: Config, tmp_path: Path
) -> None:
    os.chdir(tmp_path)
    with Executor(config) as executor:
        assert executor.command(["pwd"], backend="native").stdout == f"{tmp_path}\n"
        assert executor.command(["cat", "f"], backend="native", files={"f": "x"}).stdout == "x"
        assert "redoma-" in executor.run("pwd", "bash", backend="native").stdout


def test_files_and_a_working_directory_exclude_each_other(config: Config, tmp_path: Path) -> None:
    with Executor(config) as executor, pytest.raises(InvalidRequest, match="cwd and files"):
        executor.run("1", backend="native", cwd=str(tmp_path), files={"x": "y"})


@pytest.mark.parametrize(
    "script",
    [
        'echo important; rmdir "$PWD"',
        'echo important; cd ..; mv "$OLDPWD" "$OLDPWD".away; ln -s / "$OLDPWD"; rmdir "$OLDPWD".away',
        "echo important; for i in {1..40}; do mkdir -p d$i/s; touch $'\\001'$i; done",
    ],
)
def test_what_a_run_does_to_its_directory_loses_nothing(config: Config, script: str) -> None:
    with Executor(config) as executor:
        result = executor.run(script, "bash", backend="native", policy="none", env={"PATH": os.defpath})
    assert (result.status, result.stdout) == (Status.OK, "important\n")
    assert records(config)[-1].data["status"] == "ok"


async def test_a_bug_in_a_backend_is_failed_and_keeps_the_output(config: Config) -> None:
    class Buggy(FakeBackend):
        async def run(self, request: Request, sink: Any, control: Any = None) -> Outcome:
            sink("stdout", b"partial")
            raise ZeroDivisionError("oops")

    async with AsyncExecutor(config, backends=[Buggy(name="monty")]) as executor:
        result = await executor.run("x")
    assert (result.status, result.stdout) == (Status.FAILED, "partial")
    assert "oops" in (result.error or "")
    assert records(config)[-1].data["status"] == "failed"


def test_a_huge_message_is_bounded_and_on_record(config: Config) -> None:
    with Executor(config) as executor:
        result = executor.run("raise ValueError('x' * 17_000_000)")
    assert result.status is Status.ERROR
    assert len(result.error or "") < 10_000
    assert records(config)[-1].data["status"] == "error"


def test_a_message_is_as_harmless_as_output(config: Config) -> None:
    with Executor(config) as executor:
        result = executor.run(r"raise MemoryError('\x1b]0;pwned\x07 ghp_16C7e42F292c6912E7710c838347Ae178B4a')")
    assert result.status is Status.ERROR  # raised by the code: no limit was reached
    assert "\x1b" not in (result.error or "")
    assert "16C7e42F292c6912E7710c838347Ae178B4a" not in repr(result)


def test_an_escape_before_a_secret_in_a_message_does_not_show_its_rest(config: Config) -> None:
    with Executor(config) as executor:
        code = r"import os; raise ValueError('\x1b' + os.environ['S'])"
        result = executor.run(code, secrets={"S": "Tr0ub4dor-and-3"})
    assert "0ub4dor" not in repr(result)


def test_a_secret_with_a_quote_is_not_on_record(config: Config) -> None:
    secret = "pa'ss-wordX9"
    with Executor(config) as executor:
        executor.command(["echo", secret], backend="native", secrets={"S": secret})
        executor.run("1", secrets={"S": secret}, files={f"{secret}/a": "x", secret: "y"})
    recorded = "".join(path.read_text() for path in config.audit.directory.glob("*.jsonl"))
    assert "ss-wordX9" not in recorded


def test_a_secret_too_short_to_redact_is_refused(config: Config) -> None:
    with Executor(config) as executor, pytest.raises(InvalidRequest, match="too short"):
        executor.run("1", secrets={"PIN": "123"})


@pytest.mark.parametrize(
    "bad",
    [
        {"require": "network"},
        {"limits": 5},
        {"env": None},
        {"files": ["a"]},
        {"secrets": ["a"]},
        {"stdin": "\ud800\udc00\ud800"},
        {"cwd": "/tmp\0"},
        {"limits": {"time": float("nan")}},
        {"limits": {"time": float("inf")}},
    ],
)
def test_odd_types_are_invalid_requests(config: Config, bad: dict[str, Any]) -> None:
    with Executor(config) as executor, pytest.raises(InvalidRequest):
        executor.run("1", backend="native", **bad)


def test_a_command_given_as_one_text_is_refused(config: Config) -> None:
    with Executor(config) as executor, pytest.raises(InvalidRequest, match="one text"):
        executor.command("ls -l", backend="native")


def test_too_many_processes_end_the_run(config: Config) -> None:
    with Executor(config) as executor:
        result = executor.run(
            "for i in {1..40}; do sleep 90 & done; wait",
            "bash",
            backend="native",
            policy="none",
            env={"PATH": os.defpath},
            limits={"processes": 10, "time": 60},
        )
    assert result.status is Status.KILLED
    assert "10 processes" in (result.error or "")


def test_a_limit_that_a_backend_does_not_enforce_is_a_failure(config: Config) -> None:
    import msgspec

    class Lax(FakeBackend):
        def capabilities(self) -> Any:
            return msgspec.structs.replace(super().capabilities(), limits=frozenset({"time"}))

    lax = Lax(name="monty")
    with Executor(config, backends=[lax]) as executor:
        result = executor.run("1", limits={"memory": 1 << 20, "time": 5})
        assert (result.status, lax.requests) == (Status.FAILED, [])
        assert "limit on memory" in (result.error or "")
        assert "limit on time" not in (result.error or "")
        assert executor.run("1").ok  # a default is no promise: what doesn't hold is listed as missing


@pytest.mark.parametrize("limits", [{"time": 9e18}, {"open_files": 5}, {"recursion": 2**40}])
def test_extreme_limits_work(config: Config, limits: dict[str, Any]) -> None:
    with Executor(config) as executor:
        result = executor.command(["true"], backend="native", limits=limits, policy="none")
    assert result.status is Status.OK, result.error


def run_until_it_fails(executor: Executor, errors: list[BaseException]) -> None:
    try:
        while True:
            executor.run("x", limits={"time": 10})
    except BaseException as error:
        errors.append(error)


def test_closing_from_several_threads_while_runs_begin_never_hangs(config: Config) -> None:
    for _ in range(5):
        executor = Executor(config, backends=[FakeBackend(Answer(delay=5), name="monty")])
        errors: list[BaseException] = []
        threads = [threading.Thread(target=run_until_it_fails, args=(executor, errors)) for _ in range(4)]
        threads += [threading.Thread(target=executor.close) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert not any(thread.is_alive() for thread in threads)
        assert [type(error) for error in errors] == [RedomaError] * 4


async def test_cancelling_a_queued_run_does_not_wait_for_the_others(config: Config) -> None:
    from redoma.backends.monty.backend import MontyBackend

    async with AsyncExecutor(config, backends=[MontyBackend(workers=1)]) as executor:
        busy = asyncio.create_task(executor.run("while True: pass", limits={"time": 60}))
        await asyncio.sleep(0.3)
        queued = asyncio.create_task(executor.run("1"))
        await asyncio.sleep(0.1)
        for task in (queued, busy):
            start = time.monotonic()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert time.monotonic() - start < 40  # by itself the first would go on for longer


def test_words_that_are_no_utf8_arrive_as_they_are(config: Config) -> None:
    odd = os.fsdecode(b"caf\xe9")
    with Executor(config) as executor:
        result = executor.command(["printf", "%s", odd], backend="native", env={"NAME": odd}, policy="none")
        assert (result.status, result.stdout) == (Status.OK, "caf\ufffd"), result.error
        assert executor.run(f"print({odd!r})", policy="none").status in (Status.OK, Status.ERROR)
    assert AuditLog(config.audit.directory).verify().ok


async def test_rules_of_a_configured_none_hold_and_an_asked_for_none_is_none(config: Config) -> None:
    import msgspec

    from redoma.config import PolicyConfig

    rule = redoma.Rule(id="x.y", decision=redoma.Decision.FORBID, reason="r", command=("ls",), match=("ls",))
    config = msgspec.structs.replace(config, policy=PolicyConfig(pack="none", rules=(rule,)))
    async with AsyncExecutor(config, backends=[FakeBackend(name="monty")]) as executor:
        assert (await executor.command(["ls"])).status is Status.FORBIDDEN
        assert (await executor.command(["rm", "-rf", "/"])).status is Status.OK
        assert (await executor.command(["ls"], policy="none")).status is Status.OK


_STARTED_BY_NOHUP = """
import signal, sys, redoma
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1):
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print(redoma.run("grep -E '^Sig(Blk|Ign)' /proc/self/status", "bash", backend=sys.argv[1]).stdout, end="")
"""


@pytest.mark.parametrize("backend", ["native", "jail"])
def test_signals_that_our_caller_ignores_reach_a_run(backend: str) -> None:
    told = subprocess.run(
        [sys.executable, "-c", _STARTED_BY_NOHUP, backend], capture_output=True, text=True, check=True, timeout=60
    )
    assert told.stdout == "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n"


class Text(str):
    """Somebody's own, which says that it is something else."""

    __slots__ = ()

    def __str__(self) -> str:
        return "something else"


class Chameleon(Text):
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


class Content(bytes):
    pass


@pytest.mark.parametrize("backend", ["jail", "native", "monty"])
def test_text_of_somebodys_own_class_is_text(config: Config, backend: str) -> None:
    with Executor(config) as executor:
        assert executor.run(Text("print(6 * 7)"), backend=Text(backend), reason=Text("x")).stdout == "42\n"
        if backend != "monty":
            given: dict[str, Any] = {"env": {Text("A"): Text("b")}, "files": {Text("f"): Content(b"c")}}
            result = executor.command([Text("sh"), "-c", Text("echo $A; cat f; cat")], backend=backend, **given)
            assert result.stdout == "b\nc"
            result = executor.command(["cat"], backend=backend, stdin=Content(b"in"), outputs=(Text("x"),))
            assert result.stdout == "in"


def test_a_text_that_equals_everything_is_on_no_list(tmp_path: Path) -> None:
    file = tmp_path / "redoma.yaml"
    file.write_text("namespace: app\nentries: [{name: git, kind: exec.native, command_whitelist: [git status]}]\n")
    with Executor(redoma.config.load(file)) as executor:
        for command in (Chameleon("id"), [Chameleon("id"), Chameleon("-u")]):
            with pytest.raises(Refused, match="does not allow this command"):
                redoma.exec.get("app:git", executor).exec(command)


MARKED = {"python": "\ufeffprint('olá')", "bash": "\ufeffecho olá"}


@pytest.mark.parametrize("language", ["python", "bash"])
@pytest.mark.parametrize("backend", ["jail", "native"])
def test_a_byte_order_mark_is_neither_checked_nor_run(config: Config, backend: str, language: Any) -> None:
    with Executor(config) as executor:
        result = executor.run(MARKED[language], language, backend=backend)
        assert (result.status, result.stdout, result.evaluation.findings) == (Status.OK, "olá\n", ())
        assert executor.run("\ufeff" + MARKED[language], language, backend=backend).status is not Status.OK  # only one
    assert records(config)[0].data["code"] == MARKED[language].removeprefix("\ufeff")


def test_a_byte_order_mark_hides_nothing(config: Config) -> None:
    with Executor(config) as executor:
        result = executor.run("\ufeffrm -rf /", "bash", backend="native")
    assert (result.status, result.evaluation.deciding[0].rule) == (Status.FORBIDDEN, "remove.everything")


def test_a_command_that_no_system_could_run_is_not_recorded(config: Config) -> None:
    with Executor(config) as executor:
        for argv, env in ((["true", *["x" * 1_000_000] * 7], {}), (["true"], {"A": "x" * 7_000_000})):
            with pytest.raises(InvalidRequest, match="the command is too long"):
                executor.command(argv, backend="native", env=env)
    assert not config.audit.directory.exists()


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"require": ("moon",)}, "see `redoma doctor`, which lists the layers that this host has"),
        ({"cwd": "/tmp"}, 'work in a project: workspace="read-only", project="…"'),
        ({"network": ["example.org"]}, "install 'redoma[network]'"),
    ],
)
def test_the_advice_is_about_what_could_not_be_had(
    config: Config, options: dict[str, Any], advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from redoma.backends import hosts

    monkeypatch.setattr(hosts, "_NEEDED", ("h11", "a_module_that_nobody_has"))
    with Executor(config) as executor:
        result = executor.run("1", policy="none", **options)
    assert result.status is Status.FAILED
    assert advice in (result.error or "").partition("Next: ")[2]
    assert "native" not in (result.error or "")  # never: give up the isolation


@pytest.mark.parametrize("path", ["[pathlib.Path('/tmp'), *sys.path]", "[5, *sys.path]", "[]", "None"])
def test_what_is_printed_last_arrives_whatever_the_code_has_made_of_its_path(config: Config, path: str) -> None:
    code = "import sys, pathlib, colorsys\nclass Last:\n    def __del__(self): print('last', end='')\nlast = Last()"
    with Executor(config) as executor:
        result = executor.run(f"{code}\nsys.path = {path}\nprint('begun ', end='')", policy="none")
    assert (result.status, result.stdout) == (Status.OK, "begun last")
