"""The pool of armed cells: how many there are, who gets one, and who may use it."""

from __future__ import annotations

import asyncio
import gc
import json
import marshal
import math
import os
import pickle
import random
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from jail_insides import (
    SLOW,
    behind,
    children_of,
    descriptors,
    eventually,
    is_alive,
    jail,
    look,
    pool_of,
    run,
    soon,
    zygote_of,
)

from redoma import AsyncExecutor, Config, Executor, Status
from redoma.backends.jail import JailBackend
from redoma.backends.jail.cell import Cell
from redoma.config import AuditConfig
from redoma.lib.errors import BackendError
from redoma.models import Limits, Request

SLEEP = "import time; time.sleep(600)"
PATIENT = {"time": 600.0}  # so that only the test ends it
Make = Callable[..., tuple[AsyncExecutor, JailBackend]]


@pytest.fixture
def nothing_left() -> Iterator[None]:
    before = look()
    yield
    assert before.left_in_the_end() == {}


@pytest_asyncio.fixture
async def make(tmp_path: Path, nothing_left: None) -> AsyncIterator[Make]:
    """Jails of any shape; when the test is over, nothing of them may be left."""
    made: list[AsyncExecutor] = []

    def one(**options: Any) -> tuple[AsyncExecutor, JailBackend]:
        executor, backend = jail(tmp_path, **options)
        made.append(executor)
        return executor, backend

    yield one
    for executor in made:
        await executor.aclose()


async def occupied(executor: AsyncExecutor, backend: JailBackend, number: int = 1) -> list[asyncio.Task[Any]]:
    """Runs that hold on to their cells."""
    tasks = [asyncio.create_task(run(executor, SLEEP, limits=PATIENT)) for _ in range(number)]
    await asyncio.sleep(0)
    assert await soon(lambda: pool_of(backend).counts()["running"] == number)
    return tasks


def guest_of(cell: Cell) -> int:
    return children_of(behind(cell.handle))[0]


def page_faults(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])


async def end(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


# --- kinds of cells ---


async def test_a_kind_of_cell_that_is_asked_for_again_is_kept_ready(make: Make) -> None:
    executor, backend = make(minimum=1, maximum=8, idle=600)
    usual = {"armed": 1, "arming": 0, "running": 0, "waiting": 0}
    own = {"disk": "24MiB"}
    assert (await run(executor, "print(1)", limits=own)).stdout == "1\n"
    assert await soon(lambda: pool_of(backend).counts() == usual), "once is not reason enough"
    assert (await run(executor, "print(2)", limits=own)).stdout == "2\n"
    assert await soon(lambda: pool_of(backend).counts() == {**usual, "armed": 2})
    fill = "open('x', 'wb').write(bytes(40 << 20))"
    assert "No space left" in (await run(executor, fill, limits=own)).stderr, "it has the limit that it was kept for"
    assert (await run(executor, fill)).ok


async def test_a_kind_of_cell_that_nobody_asks_for_any_more_is_let_go(make: Make) -> None:
    executor, backend = make(minimum=1, maximum=8, idle=0.5)
    for _ in range(3):
        assert (await run(executor, "print(1)", limits={"disk": "24MiB"})).ok
    assert await soon(lambda: pool_of(backend).counts() == {"armed": 1, "arming": 0, "running": 0, "waiting": 0})
    assert (await run(executor, "open('x', 'wb').write(bytes(40 << 20))")).ok, (
        "the one that is left is of the usual kind"
    )


async def test_a_kind_of_cell_for_each_run_does_not_fill_the_pool(make: Make) -> None:
    executor, backend = make(minimum=1, maximum=8)
    for _ in range(2):
        for size in range(20, 27):
            assert (await run(executor, "print(1)", limits={"disk": f"{size}MiB"})).ok
    assert await soon(lambda: pool_of(backend).counts()["arming"] == 0)
    assert pool_of(backend).counts()["armed"] <= 5


# --- ahead of the first run ---


async def test_a_jail_that_was_warmed_serves_its_first_run_from_the_same_zygote(make: Make) -> None:
    executor, backend = make(minimum=0)
    backend.warm()
    assert await soon(lambda: pool_of(backend).zygote_pid is not None)
    zygote = pool_of(backend).zygote_pid
    assert await soon(lambda: pool_of(backend).counts()["armed"] == 1)  # the cell of the run that was announced
    assert (await run(executor, "print(1)")).stdout == "1\n"
    assert pool_of(backend).zygote_pid == zygote
    assert await soon(lambda: pool_of(backend).counts() == {"armed": 0, "arming": 0, "running": 0, "waiting": 0})


async def test_a_jail_that_was_warmed_and_never_used_leaves_nothing(make: Make) -> None:
    executor, backend = make()
    backend.warm()
    await executor.aclose()


async def test_what_goes_wrong_while_it_is_warmed_is_told_to_the_first_run(make: Make) -> None:
    executor, backend = make(minimum=0, preload=["there_is_no_such_module"])
    backend.warm()
    result = await run(executor, "print(1)")
    assert result.status is Status.FAILED
    assert "there_is_no_such_module" in (result.error or "")


# --- how many ---


async def test_while_runs_have_to_wait_for_cells_two_more_are_kept_ready(make: Make) -> None:
    executor, backend = make(minimum=1, maximum=8, idle=600)
    await run(executor)
    pool = pool_of(backend)
    assert await soon(lambda: pool.counts()["armed"] == 1)
    hold = await occupied(executor, backend)
    assert not pool._is_busy, "the first run of all waits in any case, and the second found a cell"
    pool._busy_until = math.inf
    await run(executor)
    assert await soon(lambda: pool.counts() == {"armed": 2 + pool._peak, "arming": 0, "running": 1, "waiting": 0})
    await end(*hold)


async def test_cells_that_runs_wait_for_are_made_without_practice(make: Make) -> None:
    executor, backend = make(minimum=1, maximum=8, idle=600)
    await run(executor)
    pool = pool_of(backend)
    assert await soon(lambda: pool.counts()["armed"] == 1)
    (first,) = pool._armed
    practised = page_faults(guest_of(first))
    pool._busy_until = math.inf
    pool._wake()
    assert await soon(lambda: pool.counts()["armed"] == 3)
    awaited = await pool.take(msgspec.structs.replace(first.spec, files=first.spec.files + 1))
    for cell in (awaited, *pool._armed):
        if cell is not first:
            assert page_faults(guest_of(cell)) < practised * 0.8
    pool.give_back(awaited)


SLOW_VALUES = {
    "sets of numbers with the same hash": "[{n * (2**61 - 1) for n in range(1, 990)} for _ in range(100)]",
    "a report of millions of lists": "import os\n"
    "open('/run/report', 'w').write('{\"value\":[' + '[],' * 2_200_000 + '[]]}')\nos._exit(0)",
    "a large dictionary of texts": "{f'key {n}': f'text {n}' for n in range(10_000)}",
}


@pytest.mark.parametrize("code", SLOW_VALUES.values(), ids=SLOW_VALUES)
async def test_a_value_that_is_slow_to_read_holds_up_no_other_run(make: Make, code: str) -> None:
    executor, _ = make(minimum=2)
    longest, done = 0.0, False

    async def tick() -> None:
        nonlocal longest
        # By the processor time of this process: on a busy machine the loop also stands still while nobody holds it up.
        before = time.process_time()
        while not done:
            await asyncio.sleep(0.01)
            longest, before = max(longest, time.process_time() - before), time.process_time()

    ticking = asyncio.create_task(tick())
    found = await executor.run(code, backend="jail", limits=Limits(time=60 * SLOW, cpu=60 * SLOW))
    done = True
    await ticking
    assert found.status is Status.OK
    assert longest < SLOW, "the event loop stood still, and with it the clock that ends other runs"


async def test_the_minimum_is_kept_armed(make: Make) -> None:
    executor, backend = make(minimum=3)
    assert (await run(executor)).status is Status.OK
    assert await soon(lambda: pool_of(backend).counts() == {"armed": 3, "arming": 0, "running": 0, "waiting": 0})


async def test_no_more_than_the_maximum_run_and_the_others_wait(make: Make) -> None:
    executor, backend = make(minimum=1, maximum=3)
    holds = await occupied(executor, backend, 3)
    tasks = [asyncio.create_task(run(executor)) for _ in range(9)]
    assert await soon(lambda: pool_of(backend).counts()["waiting"] == 9)
    assert await soon(lambda: pool_of(backend).counts() == {"armed": 0, "arming": 0, "running": 3, "waiting": 9})
    await end(*holds)
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0.002)
        counts = pool_of(backend).counts()
        assert counts["armed"] + counts["arming"] + counts["running"] <= 3
    assert [task.result().status for task in tasks] == [Status.OK] * 9


async def test_a_full_queue_is_a_clear_error(make: Make) -> None:
    executor, backend = make(maximum=1, queue=2)
    holds = await occupied(executor, backend)
    waiting = [asyncio.create_task(run(executor)) for _ in range(2)]
    await asyncio.sleep(0)
    assert await soon(lambda: pool_of(backend).counts()["waiting"] == 2)
    result = await run(executor)
    assert result.status is Status.FAILED
    assert "too many runs wait" in (result.error or "")
    assert "1 run and 2 wait" in (result.error or "")
    with pytest.raises(BackendError, match="raise `maximum` or `queue`"):
        await backend.run(Request(code="1"), lambda *_: True)
    await end(*holds)
    assert [result.status for result in await asyncio.gather(*waiting)] == [Status.OK] * 2


async def test_after_a_burst_as_many_stay_armed_and_after_a_while_only_the_minimum(make: Make) -> None:
    executor, backend = make(minimum=1, maximum=8, idle=600)
    await end(*await occupied(executor, backend, 4))
    assert await soon(lambda: pool_of(backend).counts()["armed"] >= 4)
    inits = [behind(cell.handle) for cell in list(pool_of(backend)._armed)]
    pool_of(backend)._idle = 0.5  # as if the while were over; shorter from the start, some might not even be armed
    with pool_of(backend)._lock:
        pool_of(backend)._wake()
    assert await soon(lambda: pool_of(backend).counts()["armed"] == 1)
    assert await soon(lambda: sum(map(is_alive, inits)) <= 1)
    assert (await run(executor)).status is Status.OK


async def test_an_idle_pool_uses_no_processor_time(make: Make) -> None:
    executor, backend = make()
    await run(executor)
    assert await soon(lambda: pool_of(backend).counts()["armed"] == 2)
    start = time.process_time()
    await asyncio.sleep(1)
    assert time.process_time() - start < 0.2


async def test_a_pool_that_waits_for_its_zygote_uses_no_processor_time(make: Make) -> None:
    executor, backend = make(maximum=4)
    await run(executor)
    assert await soon(lambda: pool_of(backend).counts()["armed"] == 2)
    os.kill(zygote_of(backend), signal.SIGSTOP)
    try:
        await run(executor)  # and two cells, of which one is to be replaced
        start = time.process_time()
        await asyncio.sleep(1)
        assert pool_of(backend).counts()["arming"] >= 1
        assert time.process_time() - start < 0.2
    finally:
        os.kill(zygote_of(backend), signal.SIGCONT)
    assert (await run(executor)).status is Status.OK


# --- who gets one ---


@pytest.mark.parametrize("limits", [[{}], [{}, {"disk": 1 << 24}, {"files": 99}]], ids=["alike", "of several kinds"])
async def test_those_who_wait_are_served_in_the_order_in_which_they_came(make: Make, limits: list[Any]) -> None:
    executor, backend = make(minimum=1, maximum=1)
    holds = await occupied(executor, backend)
    order: list[int] = []

    async def one(number: int) -> None:
        result = await run(executor, limits=limits[number % len(limits)])
        assert result.status is Status.OK, result.error
        order.append(number)

    tasks = []
    for number in range(9):
        tasks.append(asyncio.create_task(one(number)))
        await asyncio.sleep(0)
    await end(*holds)
    await asyncio.gather(*tasks)
    assert order == list(range(9))


async def test_whoever_finds_an_armed_cell_does_not_wait_for_one_made_to_order_for_another(make: Make) -> None:
    executor, backend = make()
    await run(executor)
    assert await soon(lambda: pool_of(backend).counts()["armed"] == 2)
    os.kill(zygote_of(backend), signal.SIGSTOP)  # nothing can be made now
    try:
        odd = asyncio.create_task(run(executor, limits={"disk": 1 << 24}))
        assert await soon(lambda: pool_of(backend).counts()["waiting"] == 1)
        assert (await asyncio.wait_for(run(executor), 60)).status is Status.OK
        assert not odd.done()
    finally:
        os.kill(zygote_of(backend), signal.SIGCONT)
    assert (await odd).status is Status.OK


async def test_cells_of_other_limits_are_made_to_order_and_leave_the_armed_ones_alone(make: Make) -> None:
    executor, backend = make(maximum=4)
    await run(executor)
    size = "import os; f = os.statvfs('/workspace'); (f.f_blocks * f.f_frsize, f.f_files - 8)"
    for disk, files in ((8 << 20, 50), (16 << 20, 100), (8 << 20, 60)):  # none twice: that would be kept ready
        result = await run(executor, size, limits={"disk": disk, "files": files})
        assert result.value == (disk, files)
    assert await soon(lambda: pool_of(backend).counts()["armed"] == 2)
    usual = pool_of(backend)._usual
    assert {cell.spec for cell in pool_of(backend)._armed} == {usual}


async def test_whoever_is_cancelled_while_waiting_loses_its_place_and_nothing_else(make: Make) -> None:
    executor, backend = make(maximum=1)
    holds = await occupied(executor, backend)
    waiting = [asyncio.create_task(run(executor, f"{number}")) for number in range(3)]
    assert await soon(lambda: pool_of(backend).counts()["waiting"] == 3)
    await end(waiting[1])
    assert waiting[1].cancelled()
    assert pool_of(backend).counts()["waiting"] == 2
    await end(*holds)
    assert [(await waiting[number]).value for number in (0, 2)] == [0, 2]
    assert pool_of(backend).counts()["running"] == 0


async def test_cancelling_at_any_moment_loses_no_cell(make: Make) -> None:
    executor, backend = make(maximum=2)
    await run(executor)
    for _ in range(60):
        tasks = [asyncio.create_task(run(executor)) for _ in range(3)]
        await asyncio.sleep(random.uniform(0, 0.03))
        await end(*tasks)
        assert pool_of(backend).counts()["running"] == 0
        assert pool_of(backend).counts()["waiting"] == 0
    assert (await run(executor)).status is Status.OK


# --- who may use it ---


async def test_several_executors_work_at_once(make: Make) -> None:
    executors = [make(maximum=3)[0] for _ in range(3)]
    results = await asyncio.gather(*(run(executor) for executor in executors for _ in range(5)))
    assert [result.value for result in results] == [2] * 15


def test_one_executor_serves_several_event_loops_one_after_the_other(tmp_path: Path, nothing_left: None) -> None:
    executor, backend = jail(tmp_path)
    zygotes = set()
    for _ in range(3):
        assert asyncio.run(run(executor)).value == 2
        zygotes.add(zygote_of(backend))
    asyncio.run(executor.aclose())
    assert len(zygotes) == 1


def test_several_event_loops_at_the_same_time_share_one_executor(tmp_path: Path, nothing_left: None) -> None:
    executor, _ = jail(tmp_path, maximum=4)

    async def some() -> list[Any]:
        return [result.value for result in await asyncio.gather(*(run(executor) for _ in range(4)))]

    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: asyncio.run(some()), range(4)))
    assert answers == [[2] * 4] * 4
    asyncio.run(executor.aclose())


def test_an_event_loop_that_is_dropped_takes_no_cell_with_it(tmp_path: Path, nothing_left: None) -> None:
    """Closed while a run goes on and another waits: neither is ever resumed."""
    executor, backend = jail(tmp_path, maximum=1)
    loop = asyncio.new_event_loop()
    tasks = [loop.create_task(run(executor, SLEEP, limits=PATIENT)) for _ in range(2)]

    def both_there() -> bool:
        counts = pool_of(backend).counts() if backend._pools else {}
        return (counts.get("running"), counts.get("waiting")) == (1, 1)

    assert loop.run_until_complete(soon(both_there))
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    with pytest.MonkeyPatch.context() as quiet:
        quiet.setattr("sys.unraisablehook", lambda *_: None)  # the loop is gone: Python says so for each of them
        del tasks, loop
        gc.collect()
    assert asyncio.run(asyncio.wait_for(run(executor), 60)).value == 2
    assert eventually(lambda: pool_of(backend).counts()["running"] == 0)
    asyncio.run(executor.aclose())


def test_threads_share_one_executor(tmp_path: Path, nothing_left: None) -> None:
    config = Config(audit=AuditConfig(directory=tmp_path / "audit"))
    with Executor(config, backends=[JailBackend(maximum=4)]) as executor:

        def some(number: int) -> list[Any]:
            return [executor.run(f"{number} + {i}", backend="jail", policy="none").value for i in range(5)]

        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(some, range(8)))
    assert answers == [[number + i for i in range(5)] for number in range(8)]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
async def test_after_a_fork_child_and_parent_both_go_on_working(make: Make) -> None:
    executor, backend = make()
    await run(executor)
    holds = await occupied(executor, backend)
    pool, running = pool_of(backend), set(pool_of(backend)._running)
    told, tell = os.pipe()
    if (pid := os.fork()) == 0:
        answer: Any = "it raised"
        try:
            asyncio.events._set_running_loop(None)  # that of the parent

            async def there() -> Any:
                value = (await asyncio.gather(*(run(executor, "'child'") for _ in range(3))))[0].value
                await executor.aclose()
                return value

            threads, kept = threading.active_count(), sorted(descriptors(os.getpid()).values())
            answer = asyncio.new_event_loop().run_until_complete(there())
            pool.give_back(next(iter(running)))  # as the garbage collector does with a run that it finds here
            answer = [answer, threading.active_count() - threads, [what for what in kept if "pidfd" in what]]
        except BaseException as error:
            answer = repr(error)
        finally:
            os.write(tell, json.dumps(answer).encode())
            os._exit(0)
    os.close(tell)
    values = [result.value for result in await asyncio.gather(*(run(executor, "'parent'") for _ in range(3)))]
    with os.fdopen(told) as pipe:
        assert json.loads(await asyncio.to_thread(pipe.read)) == ["child", 0, []]
    await asyncio.to_thread(os.waitpid, pid, 0)
    assert values == ["parent"] * 3
    assert not holds[0].done()  # the child's doings end nothing of ours
    assert (await run(executor)).value == 2
    await end(*holds)


# --- its end ---


async def test_closing_ends_what_runs_and_what_waits_with_a_reason(make: Make) -> None:
    executor, backend = make(maximum=2)
    begun: list[str] = []
    code = "print('begun', flush=True)\n" + SLEEP
    hear = {"limits": PATIENT, "on_output": lambda _, text: begun.append(text)}
    tasks = [asyncio.create_task(run(executor, code, **hear)) for _ in range(4)]
    assert await soon(lambda: "".join(begun) == "begun\n" * 2)
    assert await soon(lambda: pool_of(backend).counts()["waiting"] == 2)
    zygote, inits = zygote_of(backend), [behind(cell.handle) for cell in pool_of(backend)._running]
    start = time.monotonic()
    await executor.aclose()
    assert not any(map(is_alive, [zygote, *inits]))
    results = await asyncio.wait_for(asyncio.gather(*tasks), 60 * SLOW)
    assert time.monotonic() - start < 60 * SLOW
    assert [result.status for result in results] == [Status.FAILED] * 4
    assert all("closed" in (result.error or "") for result in results), [result.error for result in results]
    assert [result.stdout for result in results] == ["begun\n"] * 2 + [""] * 2


def test_closing_a_sync_executor_ends_what_runs_in_other_threads(tmp_path: Path, nothing_left: None) -> None:
    config = Config(audit=AuditConfig(directory=tmp_path / "audit"))
    backend = JailBackend()
    executor = Executor(config, backends=[backend])
    endings: list[Any] = []

    def one() -> None:
        try:
            endings.append(executor.run(SLEEP, backend="jail", policy="none", limits=PATIENT).status)
        except Exception as error:
            endings.append(type(error).__name__)

    threads = [threading.Thread(target=one) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert eventually(lambda: bool(backend._pools) and pool_of(backend).counts()["running"] == 3)
    executor.close()
    for thread in threads:
        thread.join(60)
    assert len(endings) == 3


async def test_a_closed_jail_can_be_closed_again_and_used_again(make: Make) -> None:
    executor, _ = make()
    await executor.aclose()
    assert (await run(executor)).value == 2
    await executor.aclose()
    await executor.aclose()
    assert (await run(executor)).value == 2


async def test_closing_before_the_first_cell_is_there_fails_who_waits(make: Make) -> None:
    executor, backend = make()
    task = asyncio.create_task(run(executor))
    await asyncio.sleep(0)
    assert pool_of(backend).counts()["waiting"] == 1
    await executor.aclose()
    result = await asyncio.wait_for(task, 60 * SLOW)
    assert result.status in (Status.FAILED, Status.OK)


# --- preload, and what comes back ---


async def test_what_is_preloaded_is_there_before_the_code_asks(make: Make) -> None:
    executor, _ = make(preload=["decimal", "xml.dom.minidom"])
    plain, _ = make()
    code = "import sys; ('decimal' in sys.modules, 'xml.dom.minidom' in sys.modules)"
    assert (await run(executor, code)).value == (True, True)
    assert (await run(plain, code)).value == (False, False)


async def test_a_preload_that_cannot_be_imported_is_a_clear_error_each_time(make: Make) -> None:
    executor, _ = make(preload=["no_such_module_here"])
    for _ in range(2):
        result = await run(executor)
        assert result.status is Status.FAILED
        assert "preload no_such_module_here: ModuleNotFoundError" in (result.error or "")
        assert "check `preload`" in (result.error or "")


async def test_nothing_that_comes_back_is_unpickled(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    executor, _ = make()

    def never(*_: object, **__: object) -> None:
        raise AssertionError("something was unpickled")

    for module, name in ((pickle, "loads"), (pickle, "load"), (pickle, "Unpickler"), (marshal, "loads")):
        monkeypatch.setattr(module, name, never)
    code = "class A:\n    def __reduce__(self): return (print, ('x',))\n    def __repr__(self): return 'odd'\n"
    assert (await run(executor, code + "A()")).value == "odd"
    assert (await run(executor, "({1: b'a'}, {2.5}, (None,), 2**80)")).value == ({1: b"a"}, {2.5}, (None,), 2**80)
    result = await run(executor, "open('a', 'wb').write(b'x')", files={"b": b"y"}, outputs=["**"])
    assert result.files == {"a": b"x"}
