"""What happens when a part of the jail is taken away: the run it hits ends with a reason, and the next one works."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from jail_insides import (
    SLOW,
    Part,
    behind,
    children_of,
    depth_of,
    eventually,
    groups,
    interrupted,
    is_alive,
    jail,
    look,
    pool_of,
    run,
    soon,
    zygote_of,
)

from redoma import AsyncExecutor, Status
from redoma.backends.jail import JailBackend
from redoma.backends.jail.run import Run

_GENEROUS = 60.0 * SLOW  # seconds, where a quiet machine needs a few hundredths
_HERE = Path(__file__).parent


class Jail:
    def __init__(self, executor: AsyncExecutor, backend: JailBackend) -> None:
        self.executor, self.backend = executor, backend

    async def works(self) -> bool:
        result = await asyncio.wait_for(run(self.executor, "6 * 7"), 60 * SLOW)
        assert result.status is Status.OK, result.error
        return bool(result.value == 42)

    async def armed(self) -> list[int]:
        """The inits of the cells that wait."""
        assert await soon(lambda: pool_of(self.backend).counts()["armed"] >= 2)
        return [behind(cell.handle) for cell in pool_of(self.backend)._armed]


@pytest_asyncio.fixture
async def the(tmp_path: Path) -> AsyncIterator[Jail]:
    """A jail; when the test is over, nothing of it may be left."""
    before = look()
    executor, backend = jail(tmp_path)
    yield Jail(executor, backend)
    await executor.aclose()
    assert before.left_in_the_end() == {}


# --- one process killed ---


@pytest.mark.parametrize("part", ["zygote", "init", "guest"])
async def test_a_run_that_loses_a_process_ends_at_once_with_the_reason_and_the_next_works(
    the: Jail, part: Part
) -> None:
    await the.works()
    start = time.monotonic()
    result = await interrupted(the.executor, the.backend, part)
    assert time.monotonic() - start < _GENEROUS
    if part == "guest":  # of which its init can tell
        assert (result.status, result.error) == (Status.KILLED, "it was ended by SIGKILL")
    else:
        assert result.status is Status.FAILED
        assert "killed from outside" in (result.error or "")
    assert result.stdout.strip().isdigit()  # what it had printed is kept
    assert await the.works()


@pytest.mark.parametrize("part", ["zygote", "init", "guest"])
async def test_the_loss_of_a_process_that_waits_is_not_noticed_by_the_next_run(the: Jail, part: Part) -> None:
    await the.works()
    inits = await the.armed()
    victims = {
        "zygote": [zygote_of(the.backend)],
        "init": inits,
        "guest": [children_of(pid)[0] for pid in inits],
    }[part]
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    assert await soon(lambda: not any(map(is_alive, [*victims, *inits])))
    assert await the.works()


async def test_a_run_that_ends_before_its_init_hears_of_it_is_not_lost(
    the: Jail, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine so busy that we are held up between the guest's order and its own."""
    feed = Run._feed

    def held_up(self: Run, number: int, data: bytes, last: bool = False) -> None:
        if number == self._cell.control.fileno():
            time.sleep(0.7)
        feed(self, number, data, last)

    monkeypatch.setattr(Run, "_feed", held_up)
    result = await run(the.executor, "import sys; sys.exit(3)")
    assert (result.status, result.exit_code) == (Status.ERROR, 3), result.error


@pytest.mark.parametrize("delay", [0.0, 0.005, 0.02])
async def test_a_zygote_killed_while_it_makes_cells_fails_who_waits_with_a_reason(the: Jail, delay: float) -> None:
    await the.works()
    os.kill(zygote_of(the.backend), signal.SIGKILL)
    assert await soon(lambda: pool_of(the.backend).zygote_pid is None)
    running = [asyncio.create_task(run(the.executor)) for _ in range(4)]
    assert await soon(lambda: pool_of(the.backend).zygote_pid is not None)
    await asyncio.sleep(delay)
    if (pid := pool_of(the.backend).zygote_pid) is not None:
        os.kill(pid, signal.SIGKILL)
    for result in await asyncio.wait_for(asyncio.gather(*running), 60 * SLOW):
        assert result.status in (Status.OK, Status.FAILED)  # there may be some who were served before
        assert result.error or result.status is Status.OK
    await soon(lambda: pid is None or not is_alive(pid))
    assert await the.works()


@pytest.mark.parametrize("part", ["init", "guest"])
async def test_processes_killed_while_cells_are_made_fail_who_waits_with_a_reason(the: Jail, part: str) -> None:
    """A storm: whatever of this kind is below the zygote is killed as soon as it is seen."""
    await the.works()
    zygote = zygote_of(the.backend)
    outside = depth_of(zygote)

    def victims() -> list[int]:
        first = children_of(zygote)
        inits = [pid for pid in [*first, *(pid for each in first for pid in children_of(each))] if is_init(pid)]
        return inits if part == "init" else [pid for each in inits for pid in children_of(each)]

    def is_init(pid: int) -> bool:
        return depth_of(pid) == outside + 1 and not is_init_of_a_cell(pid)

    def is_init_of_a_cell(pid: int) -> bool:
        return any(pid in children_of(other) for other in children_of(zygote) if depth_of(other) > outside)

    running = [asyncio.create_task(run(the.executor)) for _ in range(6)]
    killed, start = 0, time.monotonic()
    while not all(task.done() for task in running) and time.monotonic() < start + _GENEROUS:
        for pid in victims():
            try:
                os.kill(pid, signal.SIGKILL)
                killed += 1
            except ProcessLookupError:
                continue
        await asyncio.sleep(0.001)
    assert killed
    for result in await asyncio.wait_for(asyncio.gather(*running), 60 * SLOW):
        assert result.status in (Status.OK, Status.FAILED, Status.KILLED)
        assert result.error or result.status is Status.OK
    assert time.monotonic() - start < _GENEROUS
    assert zygote_of(the.backend) == zygote
    assert await the.works()


# --- the pool's own thread ---


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("problem", [ValueError("odd"), OSError("odd"), SystemExit(), MemoryError()])
async def test_a_thread_of_the_pool_that_fails_tells_who_waits_and_the_next_run_works(
    the: Jail, problem: BaseException
) -> None:
    await the.works()
    pool = pool_of(the.backend)
    as_it_was = pool._round

    def fails_once() -> None:
        pool._round = as_it_was  # type: ignore[method-assign]
        raise problem

    assert await soon(lambda: pool.counts()["armed"] == 2)
    pool._round = fails_once  # type: ignore[method-assign]
    result = await asyncio.wait_for(run(the.executor, limits={"disk": 1 << 24}), 60)  # which no armed cell is for
    assert result.status is Status.FAILED
    assert result.error
    assert await the.works()
    assert (await run(the.executor, limits={"disk": 1 << 24})).status is Status.OK


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_pool_whose_thread_has_died_is_closed_all_the_same(the: Jail) -> None:
    await the.works()
    pool = pool_of(the.backend)
    zygote = zygote_of(the.backend)

    def dies() -> None:
        raise SystemExit

    pool._round = dies  # type: ignore[method-assign]
    pool._wake()
    assert await soon(lambda: pool._thread is None)
    await the.executor.aclose()
    assert not is_alive(zygote)


# --- the parent ---

_PARENT = """
import asyncio, ctypes, json, os, sys, threading, time
sys.path.insert(0, {here!r})
from pathlib import Path
from jail_insides import below, jail, pool_of, run, zygote_of

async def main(executor, backend):
    code, limits = "import time\\ntime.sleep(600)", {{"time": 600}}
    running = [asyncio.create_task(run(executor, code, limits=limits)) for _ in range(3)]
    await asyncio.sleep(0.01)
    while pool_of(backend).counts()["running"] < 3 or pool_of(backend).counts()["armed"] < 1:
        await asyncio.sleep(0.01)
    child = 0
    if {fork!r}:
        child = os.fork() if {fork!r} == "by Python" else ctypes.CDLL(None).fork()
        if child == 0:
            time.sleep(600)
            os._exit(0)
    print(json.dumps([child, *sorted(below(os.getpid()) - {{child}})]), flush=True)
    await asyncio.gather(*running)

def first(executor, backend):
    asyncio.run(run(executor))

executor, backend = jail(Path({place!r}))
if {thread}:
    begun = threading.Thread(target=first, args=(executor, backend))
    begun.start()
    begun.join()
asyncio.run(main(executor, backend))
"""


@contextmanager
def _parent(place: Path, **which: Any) -> Iterator[tuple[subprocess.Popen[str], int, list[int]]]:
    """A process with cells that run and cells that wait; its forked child if it has one; and its other processes."""
    told = {"here": str(_HERE), "place": str(place), "fork": "", "thread": False, **which}
    with subprocess.Popen([sys.executable, "-c", _PARENT.format(**told)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child, *rest = json.loads(process.stdout.readline())
        try:
            yield process, child, rest
        finally:
            process.kill()
            if child:
                os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize(
    "which",
    [
        {},
        {"thread": True},
        {"fork": "by Python"},
        {"fork": "by C"},  # which doesn't tell Python: the child holds on to all that we have
    ],
    ids=str,
)
def test_everything_dies_with_the_parent(tmp_path: Path, which: dict[str, Any]) -> None:
    with _parent(tmp_path, **which) as (parent, child, processes):
        assert len(processes) >= 1 + 4 * 2  # the zygote; init and guest of each cell
        start = time.monotonic()
        parent.kill()
        parent.wait()
        assert eventually(lambda: not any(map(is_alive, processes)), _GENEROUS)
        print(f"gone after {time.monotonic() - start:.3f} s")
        assert not child or is_alive(child)


def test_a_parent_whose_first_user_was_a_thread_that_ended_goes_on_working(tmp_path: Path) -> None:
    """The death signal of the kernel comes with the end of a thread, not of a process."""
    with _parent(tmp_path, thread=True) as (_, _, processes):
        time.sleep(0.5)
        assert sum(map(is_alive, processes)) >= 1 + 3 * 2  # the zygote; init and guest of each that runs


async def test_control_groups_of_a_parent_that_was_killed_are_swept_by_the_next(the: Jail, tmp_path: Path) -> None:
    with _parent(tmp_path) as (parent, _, processes):
        parent.kill()
        parent.wait()
    assert await soon(lambda: not any(map(is_alive, processes)))
    # Processes that are not among these, such as the holders, may take longer to end.
    assert await soon(lambda: not any(Path(group, "cgroup.procs").read_text() for group in groups(parent.pid)))
    assert await the.works()
    assert groups(parent.pid) == set()


def test_an_interpreter_that_ends_in_the_middle_of_runs_leaves_nothing(tmp_path: Path) -> None:
    code = _PARENT.replace("await asyncio.gather(*running)", "os._exit(3)")
    told = {"here": str(_HERE), "place": str(tmp_path), "fork": "", "thread": False}
    done = subprocess.run([sys.executable, "-c", code.format(**told)], capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert eventually(lambda: not any(map(is_alive, json.loads(done.stdout)[1:])), _GENEROUS)
