"""The pipeline: the order of its stages, and what happens when one of them says no or fails."""

from __future__ import annotations

import asyncio
import json
import os
import signal
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
    BackendError,
    Config,
    Executor,
    FakeBackend,
    InvalidRequest,
    Isolation,
    Limits,
    Outcome,
    RedomaError,
    Status,
)
from redoma.audit import AuditLog
from redoma.models import Request


def records(config: Config) -> list[Any]:
    return list(AuditLog(config.audit.directory).records())


class Recorder(FakeBackend):
    """Looks, while it runs, at what is on record by then."""

    def __init__(self, config: Config) -> None:
        super().__init__(Answer(stdout="ran"), name="monty")
        self.config, self.seen = config, []  # type: ignore[var-annotated]

    async def run(self, request: Request, sink: Any) -> Outcome:
        self.seen = [record.kind for record in records(self.config)]
        return await super().run(request, sink)


async def test_intent_is_on_record_before_anything_runs_and_the_outcome_after(config: Config) -> None:
    backend = Recorder(config)
    async with AsyncExecutor(config, backends=[backend]) as executor:
        await executor.run("print(1)", reason="because", requester="ana")
    assert backend.seen == ["intent"]
    intent, outcome = records(config)
    assert (intent.kind, outcome.kind) == ("intent", "outcome")
    assert (intent.data["code"], intent.data["requester"], intent.data["reason"]) == ("print(1)", "ana", "because")
    assert len(intent.data["policy_digest"]) == 64
    assert (outcome.data["status"], outcome.data["result"]) == ("ok", "ran")
    assert intent.id == outcome.id


async def test_nothing_runs_when_the_intent_cannot_be_written(config: Config) -> None:
    config.audit.directory.parent.mkdir(parents=True)
    config.audit.directory.write_text("in the way")
    backend = FakeBackend(name="monty")
    async with AsyncExecutor(config, backends=[backend]) as executor:
        result = await executor.run("print(1)")
    assert (result.status, backend.requests) == (Status.FAILED, [])
    assert str(config.audit.directory) in (result.error or "")


async def test_a_lost_outcome_is_a_failure_that_says_it_ran(config: Config) -> None:
    class Saboteur(FakeBackend):
        async def run(self, request: Request, sink: Any) -> Outcome:
            for path in config.audit.directory.iterdir():
                path.unlink()
            config.audit.directory.rmdir()
            config.audit.directory.write_text("in the way")
            return await super().run(request, sink)

    async with AsyncExecutor(config, backends=[Saboteur(Answer(stdout="ran"), name="monty")]) as executor:
        result = await executor.run("print(1)")
    assert (result.status, result.stdout) == (Status.FAILED, "ran")
    assert "it ran and ended 'ok'" in (result.error or "")


@pytest.mark.parametrize(("code", "status"), [("rm -rf /", Status.FORBIDDEN), ("sudo ls", Status.DENIED)])
async def test_a_refusal_runs_nothing_and_is_on_record(config: Config, code: str, status: Status) -> None:
    backend = FakeBackend(name="monty")
    async with AsyncExecutor(config, backends=[backend]) as executor:
        result = await executor.run(code, "bash")
    assert (result.status, result.shell_exit, backend.requests) == (status, 126, [])
    assert result.evaluation.deciding[0].rule in (result.error or "")
    assert records(config)[1].data["status"] == status.value


async def test_policy_none_is_explicit_and_on_record(config: Config) -> None:
    async with AsyncExecutor(config, backends=[FakeBackend(name="monty")]) as executor:
        assert (await executor.run("rm -rf /", "bash", policy="none")).ok
    assert (records(config)[0].data["policy"], records(config)[0].data["decision"]) == ("none", "allow")


async def test_a_cancelled_run_is_on_record_as_killed(config: Config) -> None:
    async with AsyncExecutor(config, backends=[FakeBackend(Answer(delay=60), name="monty")]) as executor:
        task = asyncio.create_task(executor.run("x", limits={"time": 90}))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert records(config)[1].data["status"] == "killed"
    assert records(config)[1].data["error"] == "it was cancelled"


async def test_a_backend_that_breaks_is_failed_with_what_broke(config: Config) -> None:
    class Broken(FakeBackend):
        async def run(self, request: Request, sink: Any) -> Outcome:
            sink("stdout", b"partial")
            raise BackendError("the engine is on fire", why="somebody lit it", next="put it out")

    async with AsyncExecutor(config, backends=[Broken(name="monty")]) as executor:
        result = await executor.run("x")
    assert (result.status, result.shell_exit, result.stdout) == (Status.FAILED, 125, "partial")
    assert "somebody lit it" in (result.error or "")


async def test_auto_never_chooses_a_backend_without_a_boundary(config: Config) -> None:
    native = FakeBackend(name="native")
    async with AsyncExecutor(config, backends=[native]) as executor:
        result = await executor.run("echo hi", "bash")
    assert (result.status, native.requests) == (Status.FAILED, [])


async def test_auto_goes_on_to_the_next_backend_when_one_cannot_run_it(config: Config) -> None:
    from redoma.backends.monty import MontyBackend

    class Later(FakeBackend):
        """Stands where a full CPython will."""

    monty, later = MontyBackend(), Later(Answer(stdout="later"), name="docker")
    async with AsyncExecutor(config, backends=[monty]) as executor:
        alone = await executor.run("def f():\n    yield 1\nprint(list(f()))")
    assert alone.status is Status.FAILED
    assert "yield" in (alone.error or "")
    async with AsyncExecutor(config, backends=[MontyBackend(), later]) as executor:
        assert (await executor.run("def f():\n    yield 1")).stdout == "later"


async def test_a_required_layer_must_be_there(config: Config) -> None:
    strong = FakeBackend(name="monty", isolation=Isolation(layers={"network": "none"}))
    async with AsyncExecutor(config, backends=[strong]) as executor:
        assert (await executor.run("x", require=["network"])).ok
        assert (await executor.run("x", require=["network", "seccomp"])).status is Status.FAILED
    assert len(strong.requests) == 1


async def test_secrets_are_out_of_value_output_error_and_record(config: Config) -> None:
    secret = "correct-horse-battery"
    answer = Answer(stdout=secret, stderr=secret, value={"k": [secret]}, error=f"x {secret}", status=Status.ERROR)
    async with AsyncExecutor(config, backends=[FakeBackend(answer, name="monty")]) as executor:
        result = await executor.run(f"print({secret!r})", secrets={"TOKEN": secret}, env={"ALSO": secret})
    assert secret not in repr(result)
    assert sum(result.redacted.values()) == 4
    recorded = "".join(path.read_text() for path in config.audit.directory.glob("*.jsonl"))
    assert secret not in recorded
    assert '"TOKEN"' in recorded


async def test_configured_limits_hold_unless_others_are_given(config: Config) -> None:
    import msgspec

    backend = FakeBackend(name="monty")
    config = msgspec.structs.replace(config, limits=Limits(time=7, processes=3))
    async with AsyncExecutor(config, backends=[backend]) as executor:
        await executor.run("x")
        await executor.run("x", limits={"time": 9})
        await executor.run("x", limits=Limits(time=1))
    assert [(r.limits.time, r.limits.processes) for r in backend.requests] == [(7, 3), (9, 3), (1, 100)]


@pytest.mark.parametrize(
    "bad",
    [
        {"backend": "montey"},
        {"limits": {"memory": -1}},
        {"limits": {"memory": "much"}},
        {"env": {"A": 1}},
        {"files": {"a": 5}},
        {"langauge": "python"},
    ],
)
async def test_bad_input_says_what_and_what_next(config: Config, bad: dict[str, Any]) -> None:
    async with AsyncExecutor(config) as executor:
        with pytest.raises(InvalidRequest) as caught:
            await executor.run("1", **bad)
    assert caught.value.next
    assert not config.audit.directory.exists()


async def test_the_nearest_valid_name_is_offered(config: Config) -> None:
    async with AsyncExecutor(config) as executor:
        with pytest.raises(InvalidRequest, match="did you mean 'monty'"):
            await executor.run("1", backend="montey")


def test_the_synchronous_executor_works_from_many_threads(config: Config) -> None:
    answers: list[Any] = []
    with Executor(config) as executor:
        threads = [
            threading.Thread(target=lambda n=n: answers.append(executor.run(f"{n} * {n}").value)) for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(answers) == [n * n for n in range(8)]
    assert AuditLog(config.audit.directory).verify().ok


async def test_the_synchronous_executor_works_inside_an_event_loop(config: Config) -> None:
    with Executor(config) as executor:
        assert executor.run("6 * 7").value == 42


def test_a_closed_executor_says_so(config: Config) -> None:
    executor = Executor(config)
    executor.close()
    executor.close()
    with pytest.raises(RedomaError, match="closed"):
        executor.run("1")


@pytest.mark.usefixtures("nothing_left_behind")
def test_closing_ends_what_still_runs(config: Config) -> None:
    executor = Executor(config)
    future = executor.start(executor.core.run("import time\ntime.sleep(60)", backend="native", limits={"time": 90}))
    time.sleep(0.5)
    executor.close()
    assert future.done()


FORK = """
import os, redoma
{before}
pid = os.fork()
if pid == 0:
    result = redoma.run({code!r}, {language!r}, backend={backend!r})
    print(result.status, result.value, result.stdout, result.error, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
print(redoma.run("2 + 2").value)
"""


@pytest.mark.parametrize(
    ("before", "code", "language", "backend", "expected"),
    [
        ("", "1 + 1", "python", "monty", "ok 2  None\n4\n"),
        ("redoma.run('1')", "echo hi", "bash", "native", "ok None hi\n None\n4\n"),
        ("redoma.run('1')", "1 + 1", "python", "monty", "failed None  monty can't run in this process"),
    ],
)
def test_a_forked_child_runs_or_says_why_not(
    before: str, code: str, language: str, backend: str, expected: str
) -> None:
    program = FORK.format(before=before, code=code, language=language, backend=backend)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.startswith(expected)
    assert done.stdout.endswith("4\n")
    assert "Traceback" not in done.stderr  # newer Pythons warn that forking with threads is a risk


def test_control_c_ends_the_run_before_the_program(tmp_path: Path) -> None:
    program = (
        "import redoma, sys\n"
        "try: redoma.run('sleep 77', 'bash', backend='native', limits={'time': 90})\n"
        "except KeyboardInterrupt: print('interrupted')"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    log = Path(os.environ["HOME"])
    deadline = time.monotonic() + 20
    while not list(log.rglob("audit-*.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=20)[0] == "interrupted\n"
    (file,) = log.rglob("audit-*.jsonl")
    assert json.loads(file.read_text().splitlines()[-1])["data"]["status"] == "killed"


def test_killing_redoma_kills_the_run(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    program = (
        f"import redoma; redoma.run('echo $$ > {mark}; sleep 78', 'bash', backend='native', limits={{'time': 90}})"
    )
    process = subprocess.Popen([sys.executable, "-c", program])
    deadline = time.monotonic() + 20
    while not (mark.exists() and mark.read_text().strip()) and time.monotonic() < deadline:
        time.sleep(0.05)
    guest = int(mark.read_text())
    process.kill()
    process.wait()
    while Path(f"/proc/{guest}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{guest}").exists()


# What a reviewer found; each was seen to fail first.


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
        async def run(self, request: Request, sink: Any) -> Outcome:
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
            "for i in {1..40}; do sleep 20 & done; wait",
            "bash",
            backend="native",
            policy="none",
            env={"PATH": os.defpath},
            limits={"processes": 10, "time": 15},
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
        result = executor.run("1")
    assert (result.status, lax.requests) == (Status.FAILED, [])
    assert "limit on memory" in (result.error or "")


@pytest.mark.parametrize("limits", [{"time": 9e18}, {"open_files": 5}, {"recursion": 2**40}])
def test_extreme_limits_work(config: Config, limits: dict[str, Any]) -> None:
    with Executor(config) as executor:
        result = executor.command(["true"], backend="native", limits=limits)
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
            thread.join(timeout=20)
        assert not any(thread.is_alive() for thread in threads)
        assert [type(error) for error in errors] == [RedomaError] * 4


async def test_cancelling_a_queued_run_does_not_wait_for_the_others(config: Config) -> None:
    from redoma.backends.monty import MontyBackend

    async with AsyncExecutor(config, backends=[MontyBackend(workers=1)]) as executor:
        busy = asyncio.create_task(executor.run("while True: pass", limits={"time": 20}))
        await asyncio.sleep(0.3)
        queued = asyncio.create_task(executor.run("1"))
        await asyncio.sleep(0.1)
        for task in (queued, busy):
            start = time.monotonic()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert time.monotonic() - start < 10


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
