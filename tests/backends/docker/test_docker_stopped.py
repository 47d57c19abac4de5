"""A run that was stopped with SIGSTOP takes notice of nothing but its end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest
from aiodocker.containers import DockerContainer
from docker_bench import EndedBefore, docker, inspect, ours, run, until

from redoma.backends.base import Control
from redoma.backends.docker import Box, DockerBackend
from redoma.backends.docker import run as runs
from redoma.backends.docker.container import Container

_BOXES = {
    "runc": Box(command="bash:5.2-alpine"),
    "runsc": Box(command="bash:5.2-alpine", runtime="runsc"),
    "direct": Box.plain("bash:5.2-alpine", network_mode="none", auto_remove=True),
}
_WAITS = ("sh", "-c", "echo here; exec sleep 600")


@pytest.fixture(params=sorted(_BOXES))
async def any_backend(request: pytest.FixtureRequest, engine: str) -> AsyncIterator[DockerBackend]:
    backend = DockerBackend(_BOXES[request.param], host=engine)
    yield backend
    await backend.aclose()
    assert ours() == []


def _stopped() -> bool:
    names = ours()
    return bool(names) and bool(inspect(*names)["State"]["Paused"])


async def _stop(control: Control, printed: Callable[[str], Any]) -> None:
    await printed("here")
    control.signal(signal.SIGSTOP)
    assert await until(_stopped)


async def test_what_is_sent_meanwhile_arrives_when_it_goes_on(any_backend: DockerBackend) -> None:
    async def stop_and_go_on(control: Control, printed: Callable[[str], Any]) -> None:
        await _stop(control, printed)
        control.signal(signal.SIGSTOP)  # which it is already
        control.signal(signal.SIGTERM)
        await asyncio.sleep(0.3)
        assert _stopped()
        control.signal(signal.SIGCONT)

    ran = await run(any_backend, argv=_WAITS, meanwhile=stop_and_go_on)
    assert ran.ending == ("killed", 143)


async def test_who_is_not_stopped_hears_that_it_is_to_go_on(any_backend: DockerBackend) -> None:
    async def go_on(control: Control, printed: Callable[[str], Any]) -> None:
        await printed("here")
        control.signal(signal.SIGCONT)

    traps = "trap 'echo heard; exit 5' CONT; echo here; while :; do sleep 0.1; done"
    ran = await run(any_backend, argv=("bash", "-c", traps), meanwhile=go_on)
    assert (ran.ending, ran.stdout) == (("error", 5), "here\nheard\n")


async def test_it_can_be_killed(any_backend: DockerBackend) -> None:
    async def stop_and_kill(control: Control, printed: Callable[[str], Any]) -> None:
        await _stop(control, printed)
        control.signal(signal.SIGKILL)

    ran = await run(any_backend, argv=_WAITS, meanwhile=stop_and_kill)
    assert ran.ending == ("killed", 137)


async def test_its_time_ends_and_its_files_come_back(any_backend: DockerBackend) -> None:
    outputs = () if any_backend.box.direct else ("part",)
    writes = ("sh", "-c", "printf 'so far' > part; echo here; exec sleep 600")
    was_stopped = asyncio.Event()

    async def stop(control: Control, printed: Callable[[str], Any]) -> None:
        await printed("here")
        control.signal(signal.SIGSTOP)
        if await until(_stopped, seconds=15):
            was_stopped.set()

    for seconds in (3.0, 15.0, 60.0):  # more on a machine where it is not even stopped in three
        was_stopped.clear()
        with suppress(EndedBefore):
            ran = await run(any_backend, argv=writes, outputs=outputs, limits={"time": seconds}, meanwhile=stop)
            if was_stopped.is_set():
                break
    assert was_stopped.is_set()
    assert ran.ending == ("timeout", None)
    assert ran.outcome.files == dict.fromkeys(outputs, b"so far")


async def test_it_is_thawed_before_it_is_removed(any_backend: DockerBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else whoever cancels it waits: an engine takes ten seconds to end a frozen gVisor."""
    asked: list[bool] = []
    stopped = asyncio.Event()

    async def freeze(container: Container, frozen: bool) -> None:
        asked.append(frozen)
        await really(container, frozen)

    async def stop(control: Control, printed: Callable[[str], Any]) -> None:
        await _stop(control, printed)
        stopped.set()

    really = Container.freeze
    monkeypatch.setattr(Container, "freeze", freeze)
    thaw = DockerContainer.unpause

    async def unpause(container: DockerContainer) -> None:
        asked.append(False)
        await thaw(container)

    monkeypatch.setattr(DockerContainer, "unpause", unpause)
    task = asyncio.create_task(run(any_backend, argv=_WAITS, meanwhile=stop))
    await stopped.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asked == [True, False]


_TELLS = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))
print("here", flush=True)
for _ in range(3):
    print(signal.sigwait(range(1, 32)).name, flush=True)
"""
_STUBS: dict[str, dict[str, Any]] = {"python": {"code": _TELLS}, "bash": {"argv": ("python3", "-c", _TELLS)}}


@pytest.mark.parametrize("stub", _STUBS)
async def test_signals_that_come_while_it_has_no_time_for_them_all_arrive(
    engine: str, stub: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine several are there when it gets to run. A shell would run the handler of one of them."""
    monkeypatch.setattr(runs, "_PASSING", 60.0)  # the engine may take long to let it go on

    async def all_at_once(control: Control, printed: Callable[[str], Any]) -> None:
        await printed("here")
        await asyncio.to_thread(docker, "pause", *ours())
        for number in (signal.SIGUSR1, signal.SIGHUP, signal.SIGUSR2):
            control.signal(number)
        await asyncio.sleep(0.3)
        await asyncio.to_thread(docker, "unpause", *ours())

    backend = DockerBackend(Box(command="python:3.11-slim"), host=engine)
    try:
        ran = await run(backend, meanwhile=all_at_once, **_STUBS[stub])
    finally:
        await backend.aclose()
    assert (ran.ending, set(ran.stdout.split())) == (("ok", 0), {"here", "SIGUSR1", "SIGHUP", "SIGUSR2"})


async def test_a_program_that_stops_itself_has_not_ended(engine: str) -> None:
    async def go_on(control: Control, printed: Callable[[str], Any]) -> None:
        await printed("here")
        control.signal(signal.SIGTSTP)
        control.signal(signal.SIGCONT)

    backend = DockerBackend(_BOXES["runc"], host=engine)
    traps = "trap 'exit 5' CONT; echo here; while :; do sleep 0.1; done"
    try:
        ran = await run(backend, argv=("bash", "-c", traps), meanwhile=go_on)
    finally:
        await backend.aclose()
    assert ran.ending == ("error", 5)
