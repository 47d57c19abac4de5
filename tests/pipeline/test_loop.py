"""The loop behind the executor for ordinary code: every caller gets their own answer, and nothing hangs."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from redoma.lib.errors import RedomaError
from redoma.pipeline.loop import SharedLoop


@pytest.fixture
def loop() -> Iterator[SharedLoop]:
    loop = SharedLoop()
    yield loop
    loop.close(_nothing)


async def _nothing() -> None:
    return


async def _name_of_thread(seconds: float = 0.0) -> str:
    await asyncio.sleep(seconds)
    return threading.current_thread().name


def _in_thread(work: object) -> str:
    with ThreadPoolExecutor(1, thread_name_prefix="caller") as pool:
        return pool.submit(work).result()  # type: ignore[arg-type]


def test_the_caller_itself_drives_the_loop(loop: SharedLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redoma.pipeline.loop._HAND_OVER", 60.0)
    for _ in range(3):
        assert _in_thread(lambda: loop.wait(_name_of_thread(0.01))).startswith("caller")


def test_a_timer_that_the_background_thread_knows_of_wakes_it_once(
    loop: SharedLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each further time costs the caller a switch of threads, and often the loop."""
    calls: list[int] = []

    def count(descriptor: int, value: int) -> None:
        calls.append(value)
        write(descriptor, value)

    async def set_timer() -> None:
        asyncio.get_running_loop().call_later(600, lambda: None)

    write = os.eventfd_write
    monkeypatch.setattr(os, "eventfd_write", count)
    monkeypatch.setattr("redoma.pipeline.loop._HAND_OVER", 60.0)
    _in_thread(lambda: loop.wait(set_timer()))
    for _ in range(50):
        assert _in_thread(lambda: loop.wait(_name_of_thread())).startswith("caller")
    assert len(calls) == 1


def test_a_caller_takes_over_from_a_background_thread_that_is_about_to_stop(
    loop: SharedLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or it would find that thread busy with its work the next time, too, and so on."""
    monkeypatch.setattr("redoma.pipeline.loop._HAND_OVER", 60.0)
    driving = threading.Event()

    def callback() -> None:
        driving.set()
        time.sleep(0.05)

    async def leave_something() -> None:
        asyncio.get_running_loop().call_later(0.01, callback)

    _in_thread(lambda: loop.wait(leave_something()))
    assert driving.wait(60)
    assert _in_thread(lambda: loop.wait(_name_of_thread())).startswith("caller")


def test_many_threads_at_once_each_get_their_own_answer(loop: SharedLoop) -> None:
    async def echo(number: int) -> int:
        for _ in range(3):
            await asyncio.sleep(0.0005 * (number % 4))
        return number

    with ThreadPoolExecutor(8) as pool:
        numbers = list(range(400))
        assert list(pool.map(lambda number: loop.wait(echo(number)), numbers, timeout=60)) == numbers


def test_work_outlives_the_caller_who_drove_the_loop_meanwhile(loop: SharedLoop) -> None:
    driving, joined, left = threading.Event(), threading.Event(), threading.Event()

    async def meanwhile(begun: threading.Event, over: threading.Event) -> str:
        begun.set()
        while not over.is_set():  # noqa: ASYNC110 - an event of threads
            await asyncio.sleep(0.005)
        return threading.current_thread().name

    with ThreadPoolExecutor(2) as pool:
        short = pool.submit(lambda: loop.wait(meanwhile(driving, joined)))
        assert driving.wait(60)
        long = pool.submit(lambda: loop.wait(meanwhile(joined, left)))
        try:
            assert short.result(60) != "redoma"
        finally:
            joined.set()
            left.set()
        assert long.result(60) == "redoma"


def test_timers_and_descriptors_are_served_while_nobody_waits(loop: SharedLoop) -> None:
    fired, here, there = threading.Event(), *os.pipe()
    woken = threading.Event()

    def read() -> None:
        os.read(here, 1)
        woken.set()

    async def plan() -> None:
        current = asyncio.get_running_loop()
        current.call_later(0.05, fired.set)
        current.add_reader(here, read)

    loop.wait(plan())
    assert fired.wait(60)
    os.write(there, b"x")
    assert woken.wait(60)

    async def forget() -> None:
        asyncio.get_running_loop().remove_reader(here)

    loop.wait(forget())
    os.close(here)
    os.close(there)


def test_a_shorter_timer_set_by_a_later_caller_is_served_in_time(loop: SharedLoop) -> None:
    async def plan(seconds: float, event: threading.Event) -> None:
        asyncio.get_running_loop().call_later(seconds, event.set)

    late, soon = threading.Event(), threading.Event()
    loop.wait(plan(600, late))
    time.sleep(0.05)
    loop.wait(plan(0.05, soon))
    assert soon.wait(60)
    assert not late.is_set()


def test_nothing_spins_while_nobody_waits(loop: SharedLoop) -> None:
    loop.wait(_name_of_thread())
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.1


def test_it_can_be_called_inside_a_running_event_loop(loop: SharedLoop) -> None:
    async def outer() -> str:
        return loop.wait(_name_of_thread(0.01))

    assert asyncio.run(outer()) == "redoma"


def test_a_handler_of_the_caller_that_raises_hits_only_the_caller(loop: SharedLoop) -> None:
    ended = threading.Event()

    async def long() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    def at_alarm(*_: object) -> None:
        raise TimeoutError("enough")

    before = signal.signal(signal.SIGALRM, at_alarm)
    try:
        with pytest.raises(TimeoutError, match="enough"):
            loop.wait(long())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert ended.is_set()
    assert loop.wait(_name_of_thread())


def test_what_the_work_raises_is_raised(loop: SharedLoop) -> None:
    async def fail() -> None:
        raise LookupError("not here")

    with pytest.raises(LookupError, match="not here"):
        _in_thread(lambda: loop.wait(fail()))
    assert loop.wait(_name_of_thread())


def test_closing_ends_whoever_drives_and_whoever_waits() -> None:
    loop = SharedLoop()
    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(lambda: loop.wait(asyncio.sleep(60))) for _ in range(2)]
        time.sleep(0.1)
        loop.close(_nothing)
        wait(running, 10)
        for each in running:
            assert isinstance(each.exception(), RedomaError)
    loop.close(_nothing)
    with pytest.raises(RedomaError, match="closed"):
        loop.wait(asyncio.sleep(0))


def test_closing_while_others_call_leaves_nobody_waiting() -> None:
    for _ in range(30):
        loop = SharedLoop()

        def call(loop: SharedLoop = loop) -> int:
            done = 0
            try:
                while True:
                    loop.wait(asyncio.sleep(0))
                    done += 1
            except RedomaError:
                return done

        with ThreadPoolExecutor(3) as pool:
            calls = [pool.submit(call) for _ in range(3)]
            time.sleep(0.005)
            loop.close(_nothing)
            assert wait(calls, 20).not_done == set()


def test_closing_ends_a_loop_that_still_waits_for_an_interrupted_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = SharedLoop()
    loop._waited_for.add(Future())  # a signal handler raised between registering a caller and starting its work
    start = loop._start_elsewhere

    def start_and_be_slow(work: Coroutine[Any, Any, None]) -> object:
        started = start(work)
        wait([started], 10)
        time.sleep(0.1)  # the loop is in its select again before anybody asks to be told of the end
        return started

    monkeypatch.setattr(loop, "_start_elsewhere", start_and_be_slow)
    closing = threading.Thread(target=loop.close, args=[_nothing], daemon=True)
    closing.start()
    closing.join(60)
    assert not closing.is_alive()


_INTERRUPTED = """
import asyncio, signal, sys, threading, time
from redoma.pipeline.loop import SharedLoop

loop = SharedLoop()
async def nothing(): pass
async def name(): return threading.current_thread().name

async def work():
    print("started in", threading.current_thread().name, flush=True)
    try:
        await asyncio.sleep(60)
    finally:
        print("ending", flush=True)
        await {ending}
        print("ended", flush=True)

try:
    loop.wait(work())
except KeyboardInterrupt:
    print("interrupted", flush=True)
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
print("again in", loop.wait(name()), flush=True)
loop.close(nothing)
"""


@contextmanager
def _killed_after(seconds: float, program: subprocess.Popen[str]) -> Iterator[None]:
    timer = threading.Timer(seconds, program.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _interrupted(ending: str, interrupts: int) -> list[str]:
    """What a program prints that gets Ctrl-C when its work has started, and again when that is being ended."""
    program = subprocess.Popen(
        [sys.executable, "-c", _INTERRUPTED.format(ending=ending)], stdout=subprocess.PIPE, text=True
    )
    said: list[str] = []
    with program, _killed_after(60, program):
        assert program.stdout is not None
        for line in program.stdout:
            said.append(line.strip())
            if line.startswith("started") or (line.startswith("ending") and interrupts > 1):
                program.send_signal(signal.SIGINT)
    assert program.returncode == 0
    return said


def test_ctrl_c_ends_the_work_before_it_reaches_the_caller() -> None:
    assert _interrupted("asyncio.sleep(0.1)", 1) == [
        "started in MainThread",
        "ending",
        "ended",
        "interrupted",
        "again in MainThread",
    ]


def test_a_second_ctrl_c_does_not_wait_for_the_end() -> None:
    said = _interrupted("asyncio.sleep(50)", 2)
    assert said[:3] == ["started in MainThread", "ending", "interrupted"]
    assert said[3].startswith("again in")


def test_closing_ends_what_a_second_ctrl_c_has_left_behind() -> None:
    said = _interrupted("asyncio.Event().wait()", 2)
    assert said[:3] == ["started in MainThread", "ending", "interrupted"]


@pytest.mark.parametrize("handler", ["the default", "the caller's own"])
def test_ctrl_c_at_any_moment_leaves_a_loop_that_works(tmp_path: Path, handler: str) -> None:
    """Ctrl-C again and again, while short calls follow each other: wherever it hits, the next call is answered."""
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
        import asyncio, os, signal, sys, threading, time, warnings
        from redoma.pipeline.loop import SharedLoop

        loop = SharedLoop()
        async def nothing(): pass
        def raising(*_): raise KeyboardInterrupt
        if sys.argv[1] != "the default":
            signal.signal(signal.SIGINT, raising)
        over = False
        begin = threading.Event()  # not before the threads have started: their start is not ours to guard
        def disturb():
            begin.wait()
            while not over:
                time.sleep(0.0007)
                os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=disturb, daemon=True).start()
        answered = interrupted = 0
        end = time.monotonic() + 3
        def calls():
            global answered
            begin.set()
            for number in range(1000):
                loop.wait(asyncio.sleep(0, number))
                answered += 1
                if time.monotonic() > end: break
        def all_calls():
            global interrupted, over
            while time.monotonic() < end or not (answered and interrupted):
                try:
                    calls()
                except KeyboardInterrupt:
                    interrupted += 1
            over = True
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        def uninterrupted(work):  # on a busy machine Ctrl-C also hits what counts it, and what catches that
            while True:
                try:
                    return work()
                except KeyboardInterrupt:
                    pass
        warnings.simplefilter("ignore")  # of work that never began: to print it takes longer than to be interrupted
        uninterrupted(lambda: uninterrupted(lambda: uninterrupted(all_calls)))
        assert loop.wait(asyncio.sleep(0.01, "fine")) == "fine"
        loop.close(nothing)
        assert answered and interrupted, (answered, interrupted)
        print("fine")
        """)
    )
    done = subprocess.run([sys.executable, program, handler], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "fine\n", done.stderr[-2000:]


def test_a_forked_child_is_refused_and_takes_nothing_from_its_parent() -> None:
    program = textwrap.dedent("""
        import asyncio, gc, os, sys, threading
        from redoma.lib.errors import RedomaError
        from redoma.pipeline.loop import SharedLoop

        async def nothing(): pass
        loop = SharedLoop()
        loop.wait(asyncio.sleep(0.01))
        child = os.fork()
        if child == 0:
            try:
                loop.wait(asyncio.sleep(0))
            except RedomaError:
                loop.close(nothing)
                own = SharedLoop()
                assert own.wait(asyncio.sleep(0.01, 1)) == 1
                own.close(nothing)
                del loop, own
                gc.collect()
                sys.exit(7)  # by the interpreter's own way out, which takes everything apart
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        inside = loop.start(asyncio.sleep(0.05, "from another thread"))
        assert inside.result(50) == "from another thread"
        assert loop.wait(asyncio.sleep(0.01, "driven")) == "driven"
        loop.close(nothing)
        print("fine")
        """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("fine\n", "")
