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

import msgspec
import pytest

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

    async def run(self, request: Request, sink: Any, control: Any = None) -> Outcome:
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
        async def run(self, request: Request, sink: Any, control: Any = None) -> Outcome:
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


def test_what_is_forbidden_is_refused_and_on_record_where_no_event_loop_runs(config: Config) -> None:
    """Also with a label, and with so much input that a run's would be recorded in a thread."""
    backend = FakeBackend(name="monty")
    executor = AsyncExecutor(config, backends=[backend])
    submission = executor.prepare_code("rm -rf /", "bash", {"stdin": b"x" * (2 << 20), "label": "nightly"})
    result = executor.refuse(submission)
    assert (result.status, backend.requests) == (Status.FORBIDDEN, [])
    assert [record.kind for record in records(config)] == ["intent", "outcome"]


async def test_policy_none_is_explicit_and_on_record(config: Config) -> None:
    async with AsyncExecutor(config, backends=[FakeBackend(name="monty")]) as executor:
        assert (await executor.run("rm -rf /", "bash", policy="none")).ok
    assert (records(config)[0].data["policy"], records(config)[0].data["decision"]) == ("none", "allow")


async def test_a_cancelled_run_is_on_record_as_killed(config: Config) -> None:
    backend = FakeBackend(Answer(delay=60), name="monty")
    async with AsyncExecutor(config, backends=[backend]) as executor:
        task = asyncio.create_task(executor.run("x", limits={"time": 60}))
        while not backend.requests and not task.done():  # noqa: ASYNC110 - a list has no event
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert records(config)[1].data["status"] == "killed"
    assert records(config)[1].data["error"] == "it was cancelled"


async def test_an_error_that_ends_a_run_is_on_record_as_failed_with_its_name_and_no_secret(config: Config) -> None:
    class Odd(FakeBackend):
        async def run(self, request: Request, sink: Any, control: Any = None) -> Outcome:
            outcome = await super().run(request, sink)
            return msgspec.structs.replace(outcome, displays=(Unreadable(),))

    class Unreadable:
        @property
        def data(self) -> Any:
            raise ArithmeticError("of hunter2x")

    async with AsyncExecutor(config, backends=[Odd(name="monty")]) as executor:
        with pytest.raises(ArithmeticError):
            await executor.run("x", secrets={"TOKEN": "hunter2x"})
    outcome = records(config)[1].data
    assert outcome["status"] == "failed"
    assert "ArithmeticError" in outcome["error"]
    assert "hunter2x" not in str(outcome)


async def test_a_backend_that_breaks_is_failed_with_what_broke(config: Config) -> None:
    class Broken(FakeBackend):
        async def run(self, request: Request, sink: Any, control: Any = None) -> Outcome:
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
    from redoma.backends.monty.backend import MontyBackend

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


async def test_a_secret_that_is_spelt_like_a_field_of_the_record_is_out_of_it_too(config: Config) -> None:
    async with AsyncExecutor(config, backends=[FakeBackend(name="monty")]) as executor:
        await executor.run("x", secrets={"TOKEN": "requester"}, requester="the requester himself")
    recorded = "".join(path.read_text() for path in config.audit.directory.glob("*.jsonl"))
    assert "the [redacted:known-secret] himself" in recorded
    assert "the requester" not in recorded


async def test_configured_limits_hold_unless_others_are_given(config: Config) -> None:

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
    future = executor.start(executor.core.run("import time\ntime.sleep(60)", backend="native", limits={"time": 60}))
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
        ("redoma.run('1', backend='monty')", "1 + 1", "python", "monty", "ok 2  None\n4\n"),
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
    mark = tmp_path / "mark"
    program = (
        "import redoma, sys\n"
        f"try: redoma.run('echo > {mark}; sleep 77', 'bash', backend='native', limits={{'time': 60}})\n"
        "except KeyboardInterrupt: print('interrupted')"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    log = Path(os.environ["HOME"])
    deadline = time.monotonic() + 60
    while not mark.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[0] == "interrupted\n"
    (file,) = log.rglob("audit-*.jsonl")
    assert json.loads(file.read_text().splitlines()[-1])["data"]["status"] == "killed"


def test_killing_redoma_kills_the_run_and_removes_its_directory(tmp_path: Path) -> None:
    mark, temporary = tmp_path / "pid", tmp_path / "tmp"
    temporary.mkdir()
    program = (
        f"import redoma; redoma.run('echo $$ > {mark}; sleep 78', 'bash', backend='native', limits={{'time': 60}})"
    )
    process = subprocess.Popen([sys.executable, "-c", program], env={**os.environ, "TMPDIR": str(temporary)})
    deadline = time.monotonic() + 60
    while not (mark.exists() and mark.read_text().strip()) and time.monotonic() < deadline:
        time.sleep(0.05)
    guest = Path("/proc", mark.read_text().strip())
    assert len(list(temporary.iterdir())) == 1
    process.kill()
    process.wait()
    deadline = time.monotonic() + 30  # the guest itself would go on for longer
    while (guest.exists() or list(temporary.iterdir())) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not guest.exists()
    assert list(temporary.iterdir()) == []
