"""Whatever way a run ends, nothing of it is left in the engine."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from docker_bench import Line, docker, inspect, ours, run, until

from redoma import AsyncExecutor, BackendError, Config, Status
from redoma.backends.base import Control
from redoma.backends.docker import Box, DockerBackend
from redoma.lib.errors import BackendUnavailable
from redoma.models import Request

_SLEEPS = "import time\nprint('here')\ntime.sleep(600)"


async def test_a_run_that_is_cancelled_leaves_nothing_whenever_that_is(backend: DockerBackend) -> None:
    await run(backend, "1")  # the engine is open
    moments = (0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
    tasks = [asyncio.create_task(run(backend, _SLEEPS)) for _ in moments]

    async def cancel(task: asyncio.Task[object], moment: float) -> None:
        await asyncio.sleep(moment)
        task.cancel()
        await asyncio.sleep(0.01)
        task.cancel()  # and once more, while it is being removed

    await asyncio.gather(*(cancel(task, moment) for task, moment in zip(tasks, moments, strict=True)))
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(one) for one in ended] == [asyncio.CancelledError] * len(moments)
    assert ours() == []


async def test_a_command_of_a_configured_container_is_removed_when_it_times_out(engine: str) -> None:
    plain = DockerBackend(Box.plain("bash:5.2-alpine"), host=engine)  # auto_remove: false
    try:
        for seconds in (1.0, 5.0, 25.0):  # more on a machine where it gets to nothing in one
            ran = await run(plain, argv=("sh", "-c", "echo partial; sleep 600"), limits={"time": seconds})
            if ran.stdout:
                break
        assert (ran.ending, ran.stdout) == (("timeout", None), "partial\n")
        task = asyncio.create_task(run(plain, argv=("sleep", "600")))
        (name,) = await until(lambda: [one for one in ours() if one not in plain.kept])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert name not in ours()
    finally:
        await plain.aclose()
    assert ours() == []


def _left() -> list[str]:
    """Of this process, all that an engine can hold."""
    return ours() + docker("volume", "ls", "-q", "--filter", f"label=redoma.pid={os.getpid()}").split()


@pytest.mark.parametrize("moment", [0.0, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("direct", [False, True])
async def test_closing_ends_what_runs_and_leaves_nothing_whenever_that_is(
    engine: str, moment: float, direct: bool, caplog: pytest.LogCaptureFixture
) -> None:
    box = Box.plain("bash:5.2-alpine") if direct else Box()
    backend = DockerBackend(box, host=engine, maximum=2, minimum=1)  # so one of these waits for a place
    request = Request(argv=("sleep", "600"), language="command") if direct else Request(code=_SLEEPS)
    tasks = [asyncio.create_task(backend.run(request, lambda *_: True)) for _ in range(3)]
    await asyncio.sleep(moment)
    await backend.aclose()
    assert _left() == []
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert {str(one) for one in ended} == {"docker is closed: its executor was. Next: make a new executor"}
    assert _left() == []
    gc.collect()
    assert caplog.messages == []  # such as "Unclosed client session"


async def test_closing_ends_what_has_begun_and_keeps_what_it_printed(config: Config, engine: str) -> None:
    backend, here = DockerBackend(host=engine), asyncio.Event()
    async with AsyncExecutor(config, backends=[backend]) as executor:
        task = asyncio.create_task(executor.run(_SLEEPS, on_output=lambda *_: here.set()))
        await asyncio.wait_for(here.wait(), 180)
    result = await task
    assert (result.status, result.stdout) == (Status.FAILED, "here\n")
    assert (result.error or "").startswith("docker is closed")
    assert _left() == []


async def test_closing_does_not_wait_for_an_image_that_is_being_fetched(engine: str) -> None:
    asked, over = asyncio.Event(), asyncio.Event()

    async def never_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await over.wait()
        writer.transport.abort()

    registry = await asyncio.start_server(never_answer, "127.0.0.1", 0)
    image = f"127.0.0.1:{registry.sockets[0].getsockname()[1]}/redoma-test:1"
    backend = DockerBackend(Box(python=image, pull=True), host=engine)
    task = asyncio.create_task(run(backend, "1"))
    try:
        await asyncio.wait_for(asked.wait(), 180)
        await asyncio.wait_for(backend.aclose(), 180)
        with pytest.raises(BackendError, match="docker is closed"):
            await task
    finally:
        over.set()
        registry.close()
        await asyncio.sleep(0.1)  # for what is still connected to be let go of


async def test_what_the_code_leaves_running_ends_with_it(backend: DockerBackend) -> None:
    ran = await run(backend, "setsid sleep 600 & (sleep 600 &); echo started", language="bash")
    assert (ran.ending, ran.stdout) == (("ok", 0), "started\n")
    assert ours() == []


def _volumes() -> set[str]:
    """All but those that a Redoma makes for itself: other tests use this engine, too."""
    made = re.compile(r"redoma-[0-9a-f]{16}\Z")
    return {name for name in docker("volume", "ls", "-q").split() if not made.match(name)}


async def test_anonymous_volumes_go_with_their_container(engine: str) -> None:
    named = f"test-volume-{os.getpid()}"  # other tests look at those that begin with `redoma-`
    docker("volume", "create", named)
    before = _volumes()
    plain = DockerBackend(Box.plain("bash:5.2-alpine", volumes=(f"{named}:/data",)), host=engine)
    try:
        assert (await run(plain, argv=("sh", "-c", "echo x > /data/x"))).ending == ("ok", 0)
    finally:
        await plain.aclose()
        left = await until(lambda: _volumes() <= before)  # those of other tests come and go
        kept = named in _volumes()
        docker("volume", "rm", named)
    assert (left, kept) == (True, True)  # also the one that somebody has named


_OTHER = """
import asyncio, sys
from redoma.backends.docker import DockerBackend
from redoma.models import Limits, Request

async def main():
    backend = DockerBackend(minimum=1)
    code = "import time; print('here'); time.sleep(600)"
    await backend.run(Request(code="1"), lambda *_: True)
    await backend.run(Request(code=code, limits=Limits(time=600)), lambda *_: print("here", flush=True) or True)

asyncio.run(main())
"""


@pytest.fixture
async def other(engine: str) -> AsyncIterator[subprocess.Popen[bytes]]:
    """Another Redoma, in the middle of a run and with one container waiting."""
    process = subprocess.Popen([sys.executable, "-c", _OTHER], stdout=subprocess.PIPE)  # noqa: ASYNC220
    try:
        assert process.stdout
        assert await asyncio.to_thread(process.stdout.readline) == b"here\n"
        assert len(await until(lambda: len(ours(process.pid)) == 2 and ours(process.pid))) == 2
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout
        process.stdout.close()
        sweeping = DockerBackend(host=engine)
        await run(sweeping, "1")
        await sweeping.aclose()


def _kill(pid: int) -> None:
    """Dead, but not reaped: its number is still its own, so no other test's Redoma sweeps what it has left yet."""
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


async def test_what_a_redoma_that_was_killed_has_left_is_gone_at_the_next_start(
    other: subprocess.Popen[bytes], engine: str
) -> None:
    living = DockerBackend(host=engine)
    await run(living, "1")
    await living.aclose()
    assert len(ours(other.pid)) == 2, "another Redoma's containers were touched"
    _kill(other.pid)
    assert [name for name in ours(other.pid) if inspect(name)["State"]["Running"]] != []  # it would run on
    other.wait()
    later = DockerBackend(host=engine)
    await run(later, "1")
    await later.aclose()
    # Another test's Redoma may be at it, too.
    assert await until(lambda: ours(other.pid) == [])
    assert await until(lambda: not docker("volume", "ls", "-q", "--filter", f"label=redoma.pid={other.pid}"))


async def test_an_engine_that_is_lost_is_told_and_what_it_kept_is_removed_when_it_is_back(
    engine: str, tmp_path: Path
) -> None:
    line = Line(engine, tmp_path / "line.sock")
    backend = DockerBackend(host=await line.lay())
    here = asyncio.Event()
    try:
        task = asyncio.create_task(backend.run(Request(code=_SLEEPS), lambda *_: not here.set()))  # type: ignore[func-returns-value]
        await asyncio.wait_for(here.wait(), 180)
        (name,) = ours()
        await line.cut()
        with pytest.raises(BackendError, match=f"{name} can't be removed") as told:
            await task
        assert not isinstance(told.value, BackendUnavailable), "it has run, so it must not be tried elsewhere"
        assert ours() == [name]
        await line.lay()
        assert (await run(backend, "print('again')")).stdout == "again\n"
        assert ours() == []
    finally:
        await backend.aclose()
        await line.cut()


async def test_a_container_that_somebody_else_removes_was_killed(backend: DockerBackend) -> None:
    async def remove(control: Control, printed: Callable[[str], Any]) -> None:
        await printed("here")
        (name,) = await asyncio.to_thread(ours)
        await asyncio.to_thread(docker, "rm", "--force", name)

    assert (await run(backend, _SLEEPS, meanwhile=remove)).ending == ("killed", 137)
    assert ours() == []


async def test_a_hundred_runs_eight_at_a_time_leave_nothing(engine: str) -> None:
    backend = DockerBackend(host=engine, maximum=8, minimum=2)
    try:
        every = await asyncio.gather(
            *(run(backend, f"echo {n}", language="bash", limits={"time": 600.0}) for n in range(100))
        )
    finally:
        await backend.aclose()
    assert [ran.stdout for ran in every] == [f"{n}\n" for n in range(100)]
    assert ours() == []


@pytest.mark.parametrize("runtime", [None, "runsc"])
async def test_a_signal_that_comes_too_late_is_no_failure(engine: str, runtime: str | None) -> None:
    """Its runtime finds nobody to give it to before the engine has heard of the end, and says so in its own words."""
    late = DockerBackend(Box(runtime=runtime), host=engine)

    async def end_it_behind_the_engines_back(control: Control, printed: Callable[[str], Any]) -> None:
        await printed("here")
        (name,) = ours()
        os.kill(inspect(name)["State"]["Pid"], signal.SIGKILL)
        for number in (signal.SIGTERM, signal.SIGUSR1):
            control.signal(number)

    try:
        for _ in range(3):
            ran = await run(late, _SLEEPS, meanwhile=end_it_behind_the_engines_back)
            assert ran.outcome.status.ending == "ran"
    finally:
        await late.aclose()
    assert ours() == []
