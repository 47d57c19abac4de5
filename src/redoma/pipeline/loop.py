"""The event loop behind the synchronous executor: driven by the thread that waits for it, and by a background thread in
between.

Handing work to another thread and being woken by it costs a quarter of a millisecond per call, more on a busy machine.
So a thread that calls `wait` while no thread drives the loop drives it itself until its work is done. Everything else
on the loop (streams that are being followed, warm containers, work of other threads) continues meanwhile, and
afterwards in the background thread. While there is nothing to do, that thread does not hold the loop: it watches the
loop's epoll descriptor from outside, and drives the loop only when something has happened.

A caller does not drive, and waits for the background thread instead, if

- another thread already drives;
- it is itself inside a running event loop, since a thread can only be inside one;
- it is the main thread, and there is a signal handler written in Python: it may raise at any point, and would break
  other callers' work. Ctrl-C alone is handled: while we drive, it only cancels the caller's own work, and
  `KeyboardInterrupt` is raised once that work has ended.

A forked child has neither the thread nor the right to use the loop: there everything is refused.
"""

from __future__ import annotations

import asyncio
import importlib
import math
import os
import select
import selectors
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future, wait
from contextlib import contextmanager
from typing import Any, TypeVar

from ..lib.errors import RedomaError

T = TypeVar("T")

# The functions of `signal` look each handler up in an enumeration: for all signals that takes longer than the rest of a
# call, and for a handler that is not in it 40 µs.
_handler_of: Callable[[int], Any] = importlib.import_module("_signal").getsignal
_set_handler: Callable[[int, Any], Any] = importlib.import_module("_signal").signal
_MAX_SLEEP = 86400.0  # seconds
_HAND_OVER = 0.01  # seconds to wait for the background thread, which has at most a few callbacks to finish
_OTHERS = sorted(signal.valid_signals() - {signal.SIGINT, signal.SIGKILL, signal.SIGSTOP})


class SharedLoop:
    """An event loop for synchronous code. Any number of threads may use it."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._selector = _Selector()
        self._loop = _Loop(self._selector)
        self._gate = threading.Lock()
        self._closing = self._over = False  # closing was requested; nothing is left to do
        self._driving = threading.Lock()
        """Held by the thread that drives the loop."""
        self._sleeps_until = math.inf
        """When the background thread next looks at the loop by itself, in the loop's time. Changed only while it
        drives.
        """
        self._in_background = False
        """Whether the background thread drives."""
        self._woken = False
        """Whether it has been woken and has not driven since. Changed only while driving."""
        self._waited_for: set[Future[Any]] = set()
        """Work that other threads than the driving one wait for."""
        self._events = select.epoll()
        """What the background thread waits on while no thread drives: the loop's descriptor, and a wake-up call."""
        self._call = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._events.register(self._call, select.EPOLLIN)
        self._events.register(self._selector.fileno(), select.EPOLLIN)
        self._thread = threading.Thread(target=self._drive_in_between, name="redoma", daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start work on the loop. Cancelling the returned future ends the work; it is done when the work is. Raises
        `RedomaError` if this is closed.
        """
        with self._open_for(work):
            return self._start_elsewhere(work)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Do the work, and return or raise what it does. If this raises for another reason, such as Ctrl-C, the work
        has been ended first. Raises `RedomaError` if this is closed, or gets closed meanwhile.
        """
        if not _may_drive():
            return self._result(self.start(work))
        with _interrupts() as interrupts:
            answer = self._drive(work, interrupts)
        if interrupts.count > 1:
            raise KeyboardInterrupt  # a second Ctrl-C: don't wait for the work to end
        return self._result(answer, interrupted=interrupts.count > 0)

    def _result(self, answer: Future[T] | asyncio.Task[T], *, interrupted: bool = False) -> T:
        """Return or raise what the work does. If this raises for another reason, the work has been ended first."""
        try:
            if interrupted:
                raise KeyboardInterrupt
            return answer.result()
        except (CancelledError, asyncio.CancelledError):
            raise RedomaError("the run was ended", why="its executor was closed", next="make a new one") from None
        except BaseException:
            if isinstance(answer, Future) and not answer.done():  # Ctrl-C: the run ends before we do
                answer.cancel()
                wait([answer])
            raise

    def close(self, last: Callable[[], Awaitable[None]]) -> None:
        """End everything on the loop, do `last`, and close the loop. Safe to call twice, from several threads, and in a
        forked child, where it does nothing.
        """
        if self._owner != os.getpid():
            return
        with self._gate:
            first, self._closing = not self._closing, True
        if first:
            finished = self._start_elsewhere(_finish(last))
            finished.add_done_callback(self._end)
            finished.result()
        self._thread.join()
        if first:
            self._loop.close()
            self._events.close()
            os.close(self._call)

    @contextmanager
    def _open_for(self, work: Coroutine[Any, Any, Any]) -> Iterator[None]:
        # in a child that was forked while the gate was held, acquiring it would block forever
        if self._owner == os.getpid():
            with self._gate:  # start nothing on a loop that is about to stop: it would never finish
                if not self._closing:
                    yield
                    return
        work.close()
        raise RedomaError("this executor is closed", why="it was, or its process forked", next="make a new one")

    def _start_elsewhere(self, work: Coroutine[Any, Any, T]) -> _Started[T]:
        answer: _Started[T] = _Started(self._loop)
        self._waited_for.add(answer)
        answer.add_done_callback(self._waited_for.discard)
        self._loop.call_soon_threadsafe(answer.begin, work)
        return answer

    # --- driving in the caller's thread ---

    def _drive(self, work: Coroutine[Any, Any, T], interrupts: _Interrupts) -> Future[T] | asyncio.Task[T]:
        """Drive the loop until the work is done, and return its task. If another thread already drives, or Ctrl-C stops
        us, return a future for what another thread does.
        """
        with self._open_for(work):
            if not self._take_over():
                return self._start_elsewhere(work)
            task = self._loop.create_task(work)
        left: _Started[T] | None = None
        self._events.unregister(self._selector.fileno())  # otherwise each event would wake the background thread, too

        def stop(_: object) -> None:
            self._loop.stop()

        try:
            task.add_done_callback(stop)
            interrupts.meant_for(task)
            self._loop.run_forever()
        finally:
            if not task.done():  # after a second Ctrl-C it ends while another thread drives
                task.remove_done_callback(stop)
                left = _Started(self._loop)
                left.take(task)
            elif not task.cancelled():
                task.exception()  # we have seen it, even if Ctrl-C is what we raise: asyncio would print it
            self._events.register(self._selector.fileno(), select.EPOLLIN)
            earlier = _next_timer(self._loop) < self._sleeps_until
            needed = self._over or self._waited_for or earlier or _has_ready(self._loop) or left is not None
            if needed and not self._woken:
                self._woken = True
                self._wake()
            self._driving.release()  # last: from here on another thread may close the loop, and its descriptors with it
        return left or task

    def _take_over(self) -> bool:
        """Return whether the current thread drives from now on. The background thread is waited for if it is about to
        stop: a caller who left its work to that thread would find it busy again the next time, and so on.
        """
        if self._driving.acquire(blocking=False):
            return True
        return self._in_background and not self._waited_for and self._driving.acquire(timeout=_HAND_OVER)

    # --- driving in the background thread ---

    def _drive_in_between(self) -> None:
        timeout = _MAX_SLEEP
        while True:
            for descriptor, _ in self._events.poll(timeout):
                if descriptor == self._call:
                    os.eventfd_read(self._call)
            with self._driving:
                self._in_background, self._woken = True, False
                self._selector.on_idle = self._let_go
                self._loop.run_forever()
                self._selector.on_idle = None
                self._in_background = False
                if self._over:
                    return
                # It may have been stopped by a late Ctrl-C. No event announces callbacks that are already ready.
                self._sleeps_until = self._loop.time() if _has_ready(self._loop) else _next_timer(self._loop)
                timeout = min(max(0.0, self._sleeps_until - self._loop.time()), _MAX_SLEEP)

    def _let_go(self) -> bool:
        """Stop driving if there is nothing to do now, unless another thread waits for our work: then it would resume at
        once.
        """
        if self._waited_for and not self._over:
            return False
        self._loop.stop()
        return True

    def _end(self, _finished: object) -> None:
        """End the loop once the last work is done. Called in the driving thread, or in the closing one if the work was
        done before this was registered; then the driving thread may be blocked in the loop's own select. Other
        registered waiters don't count: a signal may have interrupted one after it registered.
        """
        self._over = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._wake()

    def _wake(self) -> None:
        os.eventfd_write(self._call, 1)


async def _finish(last: Callable[[], Awaitable[None]]) -> None:
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in others:
            task.cancel()
        await asyncio.wait(others)
    await last()


class _Started(Future[T]):
    """A future that, unlike that of `run_coroutine_threadsafe`, is done not when it is cancelled but when its task has
    ended: then nothing of the run is left.
    """

    task: asyncio.Task[T]

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop

    def begin(self, work: Coroutine[Any, Any, T]) -> None:
        """Create the task; called in the thread that drives the loop."""
        self.take(self._loop.create_task(work))

    def take(self, task: asyncio.Task[T]) -> None:
        """Be the future of a task; called in the thread that drives the loop."""
        self.task = task
        task.add_done_callback(self._deliver)

    def cancel(self) -> bool:
        if self.done():
            return False
        self._loop.call_soon_threadsafe(lambda: self.task.cancel())  # runs after `begin`: calls keep their order
        return True

    def _deliver(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.set_exception(CancelledError())
        elif error := task.exception():
            self.set_exception(error)
        else:
            self.set_result(task.result())


class _Loop(asyncio.SelectorEventLoop):
    """Leaves its descriptors alone in a forked child: they are shared with the parent, and removing one from the epoll
    instance would remove it from the parent's.
    """

    _owner = 0

    def run_forever(self) -> None:
        self._owner = os.getpid()
        super().run_forever()

    def __del__(self) -> None:
        if self._owner == os.getpid():
            super().__del__()


class _Selector(selectors.EpollSelector):
    """Calls `on_idle`, if set, instead of blocking when the loop has nothing to do."""

    def __init__(self) -> None:
        super().__init__()
        self.on_idle: Callable[[], bool] | None = None
        """Returns whether the loop stops; if not, it waits as usual."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.on_idle is None or (timeout is not None and timeout <= 0):
            return super().select(timeout)
        return super().select(0) or ([] if self.on_idle() else super().select(timeout))


def _may_drive() -> bool:
    """Return whether the current thread may drive a loop: see above."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        return False
    if threading.current_thread() is not threading.main_thread():
        return True
    at_interrupt = _handler_of(signal.SIGINT)
    if callable(at_interrupt) and at_interrupt is not signal.default_int_handler:
        return False
    return not any(map(callable, map(_handler_of, _OTHERS)))


def _has_ready(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether a loop that is not being driven has callbacks waiting; True if unknown."""
    return bool(getattr(loop, "_ready", True))


def _next_timer(loop: asyncio.AbstractEventLoop) -> float:
    """Return when the first timer of a loop that is not being driven is due, in its time; 0 if unknown."""
    timers = getattr(loop, "_scheduled", None)
    if timers is None:
        return 0.0
    return min((timer.when() for timer in timers if not timer.cancelled()), default=math.inf)


class _Interrupts:
    """Ctrl-C while a loop is driven: the first cancels a task, the second stops the loop that runs it."""

    def __init__(self) -> None:
        self.count = 0
        self._task: asyncio.Task[Any] | None = None

    def meant_for(self, task: asyncio.Task[Any]) -> None:
        """Set the task to cancel, and cancel it if Ctrl-C came before."""
        self._task = task
        if self.count:
            task.cancel()

    def __call__(self, _number: int, _frame: object) -> None:
        self.count += 1
        if self._task is not None:
            loop = self._task.get_loop()
            loop.call_soon_threadsafe(self._task.cancel if self.count == 1 else loop.stop)


@contextmanager
def _interrupts() -> Iterator[_Interrupts]:
    """Count Ctrl-C for the length of the block, if it would otherwise raise `KeyboardInterrupt`."""
    interrupts = _Interrupts()
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or _handler_of(signal.SIGINT) is not signal.default_int_handler:
        yield interrupts
        return
    _set_handler(signal.SIGINT, interrupts)
    try:
        yield interrupts
    finally:
        _set_handler(signal.SIGINT, signal.default_int_handler)
