"""What every backend must do, whichever way it does it. Each test runs on every backend that can run its program."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from leftovers import Before, children_of
from pace import SLOW
from redoma import AsyncExecutor, Backend, Config, InvalidRequest, Limits, Result, Status
from redoma.backends.docker import Box, DockerBackend
from redoma.config import AuditConfig
from redoma.models import MiB
from redoma.pipeline import cluster

from .runners import RUNNERS, Runner

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMITS = Limits(time=60 * SLOW, memory=128 * MiB, output_total=2 * MiB)


class Bench:
    """One backend behind a real executor, without policy: this suite is about running."""

    def __init__(self, runner: Runner, executor: AsyncExecutor) -> None:
        self._runner, self._executor = runner, executor
        (self.name,) = executor.backends

    async def __call__(self, program: str, **options: Any) -> Result:
        options = {"limits": LIMITS, "policy": "none", "backend": self.name, **options}
        return await self._executor.run(self._runner.programs[program], self._runner.language, **options)

    async def too_late(self, program: str, seconds: float) -> tuple[Result, float]:
        """Run what prints first and then takes too long. Returns the result and the limit: so many seconds, and more on
        a machine where it gets to nothing in that time."""
        for limit in (seconds, 5 * seconds, 25 * seconds):
            result = await self(program, limits={"time": limit})
            if result.stdout:
                break
        return result, limit


class Shared:
    """The executors of all tests here, by runner: starting a backend takes far longer than a run.

    A backend that keeps something ready for the next run has its processes below the ones in `keepers`.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._executors: dict[str, AsyncExecutor] = {}
        self._containers: dict[str, DockerBackend] = {}
        self._ray: Backend | None = None
        self.keepers: set[int] = set()

    async def executor(self, name: str, fixture: Callable[[str], Any]) -> AsyncExecutor:
        if name not in self._executors:
            runner = RUNNERS[name]
            if runner.make:
                backend = runner.make()
            elif runner.cluster:
                backend = self._cluster(fixture("ray_node"))
            else:
                backend = self._container(runner.runtime or "", lambda: fixture("engine"))
            executor = self._executors[name] = AsyncExecutor(self._config, backends=[backend])
            before = children_of(os.getpid())
            await Bench(runner, executor)("hello")
            self.keepers |= children_of(os.getpid()) - before
        return self._executors[name]

    def _cluster(self, config: Config) -> Backend:
        """One for all languages: a process has one connection to Ray."""
        if self._ray is None:
            self._ray = cluster.backend(config)
        return self._ray

    def _container(self, runtime: str, engine: Callable[[], str]) -> DockerBackend:
        if runtime not in self._containers:
            self._containers[runtime] = DockerBackend(Box(runtime=runtime), host=engine())
        return self._containers[runtime]

    async def close(self) -> None:
        for executor in self._executors.values():
            await executor.aclose()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shared]:
    before = Before()
    made = Shared(Config(audit=AuditConfig(directory=tmp_path_factory.mktemp("state") / "audit")))
    yield made
    await made.close()
    before.check()


@pytest_asyncio.fixture(loop_scope="module")
async def bench(request: pytest.FixtureRequest, shared: Shared) -> AsyncIterator[Bench]:
    """A test leaves nothing behind but what its backend keeps ready; closed, the backend leaves nothing either."""
    executor = await shared.executor(request.param, request.getfixturevalue)
    before = Before()
    yield Bench(RUNNERS[request.param], executor)
    before.check(shared.keepers)


def every_backend_with(program: str, *, but: str | tuple[str, ...] = "no such") -> pytest.MarkDecorator:
    names = [name for name, runner in RUNNERS.items() if program in runner.programs and not name.startswith(but)]
    return pytest.mark.parametrize("bench", names, indirect=True)


@every_backend_with("hello")
async def test_output_and_success_are_reported(bench: Bench) -> None:
    result = await bench("hello")
    assert (result.status, result.exit_code, result.stdout, result.stderr) == (Status.OK, 0, "hello\n", "")
    assert result.backend == bench.name
    assert result.usage.wall >= 0


@every_backend_with("is empty")
async def test_nothing_to_do_is_done(bench: Bench) -> None:
    result = await bench("is empty")
    assert (result.status, result.exit_code, result.stdout, result.stderr) == (Status.OK, 0, "", "")


@every_backend_with("both streams")
async def test_stdout_and_stderr_are_kept_apart(bench: Bench) -> None:
    result = await bench("both streams")
    assert (result.stdout, result.stderr) == ("out\n", "err\n")


@every_backend_with("unicode")
async def test_unicode_comes_through(bench: Bench) -> None:
    assert (await bench("unicode")).stdout == "Olá, A³X! 你好 🦜\n"


@every_backend_with("no final newline")
async def test_a_missing_last_line_end_stays_missing(bench: Bench) -> None:
    assert (await bench("no final newline")).stdout == "end"


@every_backend_with("fails")
async def test_a_failure_keeps_what_was_printed_before_it(bench: Bench) -> None:
    result = await bench("fails")
    assert (result.status, result.exit_code, result.stdout) == (Status.ERROR, 1, "before\n")


@every_backend_with("exits with 7")
async def test_the_exit_code_is_the_programs_own(bench: Bench) -> None:
    result = await bench("exits with 7")
    assert (result.status, result.exit_code, result.shell_exit) == (Status.ERROR, 7, 7)


@every_backend_with("is killed")
async def test_death_by_a_signal_is_killed_and_named(bench: Bench) -> None:
    result = await bench("is killed")
    assert (result.status, result.exit_code) == (Status.KILLED, 139)
    assert "SIGSEGV" in (result.error or "")


@every_backend_with("does not parse")
async def test_code_that_does_not_parse_is_an_error_of_the_code(bench: Bench) -> None:
    result = await bench("does not parse")
    assert result.status is Status.ERROR
    assert "yntax" in result.stderr


@every_backend_with("reads input")
async def test_input_arrives(bench: Bench) -> None:
    result = await bench("reads input", stdin="first line\nsecond line\n")
    assert result.stdout == "first line|second line\n"


@every_backend_with("hello")
async def test_input_that_nobody_reads_is_no_error(bench: Bench) -> None:
    assert (await bench("hello", stdin=b"x" * 1_000_000)).status is Status.OK


@every_backend_with("reads a variable")
async def test_a_configured_variable_arrives(bench: Bench) -> None:
    assert (await bench("reads a variable", env={"GREETING": "olá"})).stdout == "olá\n"


@every_backend_with("reads all variables")
async def test_no_variable_of_the_host_arrives(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOST_SECRET", "must-not-be-seen")
    result = await bench("reads all variables")
    assert result.status is Status.OK, result.error
    assert result.stdout.strip() == "[]"


@every_backend_with("reads a file")
async def test_files_arrive_under_their_paths(bench: Bench) -> None:
    assert (await bench("reads a file", files={"data/in.txt": "content"})).stdout.strip() == "content"


@every_backend_with("lists its directory")
async def test_the_working_directory_holds_the_files_and_nothing_else(bench: Bench) -> None:
    result = await bench("lists its directory", files={"a.txt": b"", "b.txt": b""})
    assert result.stdout.strip() in ("['a.txt', 'b.txt']", "a.txt b.txt")


@every_backend_with("writes a file")
async def test_what_a_run_writes_is_gone_in_the_next(bench: Bench) -> None:
    assert (await bench("writes a file", files={"a.txt": b""})).stdout.strip() == "x"
    assert "new.txt" not in (await bench("lists its directory", files={"a.txt": b""})).stdout


@every_backend_with("many lines")
async def test_long_output_keeps_its_head_and_its_tail(bench: Bench) -> None:
    result = await bench("many lines")
    lines = result.stdout.splitlines()
    assert len(lines) <= LIMITS.output_lines + 1
    assert (lines[0], lines[-1]) == ("line 0", "line 4999")
    assert result.omitted["stdout"] > 0


@every_backend_with("floods")
async def test_a_flood_of_output_is_stopped(bench: Bench) -> None:
    result = await bench("floods")
    assert result.status is Status.OUTPUT
    assert result.stdout.startswith("xxx")
    assert result.shell_exit == 137


@every_backend_with("prints a little too much and ends")
async def test_too_much_output_is_told_even_if_it_had_ended_before_that_was_seen(bench: Bench) -> None:
    result = await bench("prints a little too much and ends", limits={"output_total": 100_000})
    assert result.status is Status.OUTPUT


@every_backend_with("sleeps after printing")
async def test_a_time_out_returns_what_was_printed(bench: Bench) -> None:
    result, seconds = await bench.too_late("sleeps after printing", 2.0 * SLOW)
    assert (result.status, result.stdout, result.shell_exit) == (Status.TIMEOUT, "partial\n", 124)
    assert f"{seconds:g} s" in (result.error or "")


@every_backend_with("loops after printing")
async def test_a_busy_loop_times_out(bench: Bench) -> None:
    result, _ = await bench.too_late("loops after printing", 1.0 * SLOW)
    assert (result.status, result.stdout) == (Status.TIMEOUT, "partial\n")


@every_backend_with("ignores signals")
async def test_ignoring_signals_does_not_help(bench: Bench) -> None:
    result, _ = await bench.too_late("ignores signals", 1.0 * SLOW)
    assert (result.status, result.stdout) == (Status.TIMEOUT, "partial\n")


@every_backend_with("takes all memory")
async def test_too_much_memory_is_called_memory(bench: Bench) -> None:
    result = await bench("takes all memory")
    assert (result.status, result.shell_exit) == (Status.MEMORY, 137)


@every_backend_with("detaches children")
async def test_children_that_detach_themselves_are_ended(bench: Bench) -> None:
    result = await bench("detaches children")  # the fixture looks for what is left
    assert (result.status, result.stdout) == (Status.OK, "started\n")


@every_backend_with("sleeps after printing")
async def test_a_cancelled_run_leaves_nothing(bench: Bench) -> None:
    task = asyncio.create_task(bench("sleeps after printing"))
    await asyncio.sleep(0.5)
    start = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - start < 40 * SLOW  # and not after the sixty seconds that it wanted to sleep


@every_backend_with("sleeps a little")
async def test_runs_go_side_by_side(bench: Bench) -> None:
    results = await asyncio.gather(*(bench("sleeps a little") for _ in range(8)))
    assert [result.stdout for result in results] == ["done\n"] * 8
    assert len({result.id for result in results}) == 8


# They are ours, and of one backend for either runtime; with Ray, most are Ray's.
@every_backend_with("hello", but=("gvisor", "ray"))
async def test_descriptors_and_threads_do_not_add_up(bench: Bench) -> None:
    async def run_all() -> tuple[int, int]:
        await bench("hello", files={"a": b""})
        await bench("fails")
        await bench("sleeps after printing", limits={"time": 0.2})
        await bench("floods")
        since, found = time.monotonic(), (0, 0)
        while time.monotonic() < since + 0.3:  # until what is kept warm for the next run is warm again
            await asyncio.sleep(0.02)
            if (now := (len(os.listdir("/proc/self/fd")), threading.active_count())) != found:
                since, found = time.monotonic(), now
        return found

    first = max([await run_all() for _ in range(2)])
    later = [await run_all() for _ in range(2)][-1]
    for _ in range(6):  # on a busy machine something may still be on its way; what adds up stays
        if later <= first:
            break
        later = await run_all()
    assert later <= first


@every_backend_with("hello")
async def test_bad_input_is_refused_before_anything_runs(bench: Bench) -> None:
    bad: list[dict[str, Any]] = [
        {"env": {"NO=T": "x"}},
        {"env": {"A": "x\0y"}},
        {"files": {"../x": b""}},
        {"files": {"/etc/x": b""}},
        {"limits": {"time": 0}},
        {"limits": {"tme": 1}},
        {"stdin": 5},
        {"unknown": 1},
    ]
    for options in bad:
        with pytest.raises(InvalidRequest):
            await bench("hello", **options)


@every_backend_with("hello")
async def test_a_layer_that_is_not_there_fails_closed(bench: Bench) -> None:
    result = await bench("hello", require=["moon-dust"])
    assert (result.status, result.stdout, result.shell_exit) == (Status.FAILED, "", 125)
    assert "moon-dust" in (result.error or "")
