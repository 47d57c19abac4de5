"""Cells kept armed ahead of time, each used once. One thread makes them, trims them and reaps them.

    take() ─▶ an armed cell at once, or a place in the queue      give_back() ─▶ killed, reaped, never used again

Whoever runs things, on whichever event loop, only touches the lock; everything slow (starting a zygote, control groups,
waiting for a death) is the thread's. As many cells are kept armed as were lately in use at one time, so a burst is
answered from what is ready; after a while without use, only the minimum. Those are of the usual kind; another kind (a
run may have its own limit on disk) is made to order, and from the second time on one of it is kept ready, too.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import select
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from ...lib.errors import BackendError, BackendUnavailable, RedomaError
from ...telemetry import WARNING, tell
from .cell import Cell, Spec, readable
from .cgroup import Cgroups
from .launch import Zygote

_MAX_ARMING = 2  # at one time: more would only take the processors from what runs
_PATIENCE = 10.0  # seconds to make a cell, on a machine that is very busy
_REFILL_AFTER = 0.004  # seconds after a cell was taken: first the run, then the next cell
_MAX_KINDS = 4  # besides the usual one, of which one is kept ready
_RETRY_AFTER = 0.25  # seconds after a cell could not be made, before one is made that nobody waits for


class Waiter:
    """A run that waits for a cell, and how to deliver one to its event loop from another thread."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.since = time.monotonic()
        self.cell: Cell | None = None
        """Its cell, from the moment that it has left the queue. If the wait is cancelled then, it is found here."""
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Cell] = self._loop.create_future()

    def settle(self, outcome: Cell | RedomaError) -> bool:
        """Deliver a cell or an error. Returns False if the event loop is closed."""

        def on_its_loop() -> None:
            if self.future.done():
                return  # cancelled meanwhile
            if isinstance(outcome, RedomaError):
                self.future.set_exception(outcome)
            else:
                self.future.set_result(outcome)

        try:
            self._loop.call_soon_threadsafe(on_its_loop)
        except RuntimeError:  # its loop has been closed
            return False
        return True


class Pool:
    """Cells of one zygote. Keeps `minimum` armed, lets `maximum` run and `queue` wait, trims after `idle` seconds.

    `usual` is the kind of cell that is made ahead; `start` starts a zygote, on the pool's own thread. `once`: there
    is going to be one run, so the zygote ends while its result is still being made.
    """

    def __init__(
        self,
        *,
        minimum: int,
        maximum: int,
        queue: int,
        idle: float,
        usual: Spec,
        without: frozenset[str],
        start: Callable[[], tuple[Zygote, Cgroups | None]],
        once: bool = False,
    ) -> None:
        self._once = once
        self._minimum, self._maximum, self._queue_size, self._idle = minimum, maximum, queue, idle
        self._usual, self._without, self._start = usual, without, start
        # Re-entrant: a run that was dropped with its loop gives its cell back when the garbage collector gets to it, in
        # the middle of anything.
        self._lock = threading.RLock()
        try:
            self._wake_reading, self._wake_writing = os.pipe()
        except OSError as error:
            raise BackendError("the jail could not be started", why=str(error), next="close some files") from error
        for number in (self._wake_reading, self._wake_writing):
            os.set_blocking(number, False)
        self._armed: deque[Cell] = deque()
        self._queue: deque[Waiter] = deque()
        self._running: set[Cell] = set()
        self._dying: list[Cell] = []
        self._arming: dict[Cell, float] = {}
        self._asked: dict[Spec, int] = {}
        """How often each other kind of cell was asked for lately."""
        self._zygote: Zygote | None = None
        self._hung_up: list[Zygote] = []
        """Zygotes that are about to end, and are waited for when we do."""
        self._groups: Cgroups | None = None
        self._closing = self._ended = False  # asked to end; everything has ended
        self._warming = False  # asked to start the zygote before anybody waits for a cell
        self._spent = False  # of a pool for one run: it has been made
        self._expected = 0  # runs that were announced by `warm`, and have no cell yet
        self.runs = 0
        """How many runs use it, from before they take a cell until they have given it back."""
        self._peak, self._last_use, self._refill_at, self._retry_at = 0, time.monotonic(), 0.0, 0.0
        self._thread: threading.Thread | None = None
        _pools.add(self)

    # --- for those who run things, on any thread ---

    async def take(self, spec: Spec) -> Cell:
        """An armed cell of this kind, as soon as there is one. Must be given back with `give_back`.

        Raises `BackendError` if too many runs wait already or a cell can't be made.
        """
        with self._lock:
            if self._closing:
                raise BackendError("the jail is closed", why="its executor was", next="make a new executor")
            self._count(spec)
            if not self._queue and (cell := self._pop(spec)) is not None:
                return cell
            if len(self._queue) >= self._queue_size:
                raise BackendError(
                    "too many runs wait for a cell",
                    why=f"{len(self._running)} run and {len(self._queue)} wait, which is as many as may",
                    next="run fewer at a time, or raise `maximum` or `queue` of the jail",
                )
            waiter = Waiter(spec)
            self._queue.append(waiter)
            try:
                self._ensure_thread()
            except RuntimeError as error:
                self._queue.remove(waiter)
                raise BackendError("the jail can't work", why=str(error), next="free some processes") from error
            self._wake()
        try:
            return await waiter.future
        except BaseException:  # cancelled, refused, or dropped along with its loop
            with self._lock:
                if waiter in self._queue:
                    self._queue.remove(waiter)
            if waiter.cell is not None:
                self.give_back(waiter.cell)
            raise

    def warm(self) -> None:
        """Begin to make a cell, for a run that is about to come. Whatever goes wrong, that run will be told."""
        with self._lock, suppress(RuntimeError):
            self._warming, self._expected = True, 1
            self._ensure_thread()

    def _count(self, spec: Spec) -> None:
        """Note that a cell of this kind is asked for. Called with the lock held."""
        if spec != self._usual and spec.seed is None:  # a seed is asked for once
            self._asked[spec] = self._asked.pop(spec, 0) + 1
            if len(self._asked) > 4 * _MAX_KINDS:
                del self._asked[next(iter(self._asked))]

    def _kept(self) -> list[Spec]:
        """The other kinds of which one is kept ready: those last asked for among those asked for more than once."""
        return [spec for spec, times in self._asked.items() if times > 1][-_MAX_KINDS:]

    def _pop(self, spec: Spec) -> Cell | None:
        """An armed cell of this kind that is still alive. Called with the lock held."""
        if self._zygote_is_gone():
            return None  # they are about to be
        for cell in list(self._armed):
            if cell.spec == spec:
                self._armed.remove(cell)
                if cell.waits():
                    self._use(cell)
                    return cell
                self._dying.append(cell)
        return None

    def _use(self, cell: Cell) -> None:
        self._running.add(cell)
        self._expected = 0
        self._peak = max(self._peak, len(self._running))
        self._last_use = time.monotonic()
        self._refill_at = self._last_use + _REFILL_AFTER

    def give_back(self, cell: Cell) -> None:
        """Destroy a cell that was taken, used or not. Safe to call twice."""
        with self._lock:
            if cell not in self._running:
                return
            cell.close()
            self._running.discard(cell)
            self._dying.append(cell)
            if self._once and not self._ended:
                self._spent = True
                self._wake()
            if not self._ended:
                with suppress(RuntimeError):  # no thread to be had: `aclose`, or the next thread, will reap it
                    self._ensure_thread()
                self._wake_soon()
                return
        self._reap_all(seconds=1.0)

    def leave(self) -> bool:
        """Begin to end everything, unless it is in use. Returns whether it does; `aclose` waits for the end."""
        with self._lock:
            if self._running or self._queue:
                return False
            self._closing = True
            self._wake()
            return True

    async def aclose(self) -> None:
        """End everything. Returns when nothing of it is alive."""
        with self._lock:
            self._closing = True
            thread = self._thread
            self._wake()
        # Not in another thread: at the end of the interpreter none can be started any more.
        while thread is not None and thread.is_alive():  # noqa: ASYNC110 - a thread sets no asyncio.Event
            await asyncio.sleep(0.002)
        if not self._ended:  # there never was a thread, or it has died
            self._end()

    def _close_pipe(self) -> None:
        numbers = self._wake_reading, self._wake_writing
        self._wake_reading = self._wake_writing = -1
        for number in numbers:
            if number >= 0:
                os.close(number)

    def forget(self) -> None:
        """In a forked child, close our copies of the parent's descriptors: else its death would go unnoticed."""
        self._lock = threading.RLock()  # the old one may be held by a thread that is not here
        self._closing = self._ended = True
        for cell in [*self._armed, *self._running, *self._arming, *self._dying]:
            cell.close()
            cell.close_handle()
        if self._zygote is not None:
            self._zygote.forget()
        for zygote in self._hung_up:
            zygote.forget()
        self._close_pipe()
        # A run of the parent's that is collected here as garbage finds nothing to give back.
        self._armed, self._running, self._arming, self._dying = deque(), set(), {}, []
        self._queue = deque()

    def counts(self) -> dict[str, int]:
        with self._lock:
            known = {"armed": self._armed, "arming": self._arming, "running": self._running, "waiting": self._queue}
            return {name: len(cells) for name, cells in known.items()}

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it is alive any more."""
        return self._ended

    @property
    def zygote_pid(self) -> int | None:
        return self._zygote.pid if self._zygote else None

    def _wake(self) -> None:
        """Wake the thread. Called with the lock held: once the pipe is closed, its number may be another file's."""
        if self._wake_writing >= 0:
            try:
                os.write(self._wake_writing, b"w")
            except BlockingIOError:
                return  # so full that it will wake anyway

    def _wake_soon(self) -> None:
        """Wake the thread at once if somebody waits. Else let the caller have its result first, since the thread would
        hold the interpreter's lock for half a millisecond."""
        try:
            loop = None if self._queue else asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        if loop is None:
            self._wake()
        else:
            loop.call_later(_REFILL_AFTER, self._wake_locked)

    def _wake_locked(self) -> None:
        with self._lock:
            self._wake()

    def _ensure_thread(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._live, name="redoma-jail", daemon=True)
            self._thread.start()

    # --- the thread ---

    def _live(self) -> None:
        try:
            while not self._closing:
                begun = time.monotonic()
                try:
                    self._round()
                except RedomaError as error:
                    self._fail_all(error, self._waiting_since(begun))
                    time.sleep(0.01)
                except Exception as error:  # no descriptors, no memory, a bug: who waits is told, the thread goes on
                    why = f"{type(error).__name__}: {error}"
                    self._fail_all(BackendError("the jail ran into a problem", why=why, next="run it again"), begun)
                    time.sleep(0.05)
        finally:
            if self._closing:
                self._end()
            else:  # nobody is left to answer them; the next who comes starts another thread
                with self._lock:
                    self._thread = None  # or one who comes while we are on our way out would count on us
                self._fail_all(BackendError("the jail was interrupted", why="its thread ended", next="run it again"))

    def _round(self) -> None:
        self._reap()
        self._end_early()
        self._need_zygote()
        self._hand_out()
        self._arm()
        self._listen()
        self._sort_out()
        self._hand_out()
        self._trim()

    def _end_early(self) -> None:
        """Begin to end the zygote of a pool that was for one run. Another run would get another."""
        with self._lock:
            spent, self._spent = self._spent, False
            if not spent or self._queue or self._running or self._zygote is None:
                return
            zygote, self._zygote = self._zygote, None
            self._hung_up.append(zygote)
        zygote.hang_up()

    def _listen(self) -> None:
        """Sleep until something happens, or something is due."""
        poll = select.poll()
        poll.register(self._wake_reading, select.POLLIN)
        for cell in self._arming:
            poll.register(cell.control, select.POLLIN)
            if cell.found is None:
                poll.register(cell.order, select.POLLIN)
        for cell in self._dying:
            if cell.handle >= 0:
                poll.register(cell.handle, select.POLLIN)
        if self._zygote is not None:
            poll.register(self._zygote, select.POLLIN)
        happened = {number for number, _ in poll.poll(self._pause())}
        if self._wake_reading in happened:
            with suppress(BlockingIOError):
                os.read(self._wake_reading, 1 << 12)
        for cell in list(self._arming):
            if {cell.control.fileno(), cell.order.fileno()} & happened:
                cell.advance()

    def _pause(self) -> float | None:
        """Milliseconds until something is due that no descriptor tells of; None if nothing is."""
        now = time.monotonic()
        due: list[float] = []
        if self._dying:
            due.append(0.02)
        if self._arming:
            due.append(0.5)
        if self._zygote is not None and len(self._arming) < _MAX_ARMING and self._lacking() is not None:
            due.append(max(0.0, self._refill_at - now if self._running else 0.0, self._retry_at - now))
        if len(self._armed) > self._minimum:
            due.append(max(0.0, self._last_use + self._idle - now))
        return min(due) * 1000 + 0.5 if due else None

    def _zygote_is_gone(self) -> bool:
        # It never says anything but its end.
        return self._zygote is not None and readable(self._zygote.fileno())

    def _need_zygote(self) -> None:
        if self._zygote_is_gone():
            self._lose_zygote()
        if self._zygote is None and (self._queue or self._warming):
            self._warming = False
            self._zygote, self._groups = self._start()

    def _waiting_since(self, begun: float) -> float:
        """Since when a run must have waited to be told of a failure that began at this moment. If the zygote was
        killed, and its cells with it, runs wait a while longer: the next zygote will make their cells."""
        return min(begun, time.monotonic() - _PATIENCE) if self._zygote_is_gone() else begun

    def _lose_zygote(self) -> None:
        """The zygote was killed, and every cell with it. Those that run will notice by themselves."""
        with self._lock:
            lost, self._zygote = self._zygote, None
            self._dying += [*self._armed, *self._arming]
            self._armed.clear()
            self._arming.clear()
        if lost is not None:
            tell(WARNING, "jail.zygote.lost", pid=lost.pid)
            lost.close()

    def _lacking(self) -> Spec | None:
        """The kind of the next cell to make ahead, if there is to be one."""
        with self._lock:
            ready = [cell.spec for cell in (*self._armed, *self._arming)]
            if len(ready) + len(self._running) >= self._maximum:
                return None
            # With a minimum of none, none is made ahead but for a run that was announced.
            ahead = max(self._minimum, self._peak) if self._minimum else self._expected
            if ready.count(self._usual) < ahead:
                return self._usual
            kept = self._kept() if self._minimum else []
            return next((spec for spec in kept if spec not in ready), None)

    def _arm(self) -> None:
        if (zygote := self._zygote) is None:
            return
        now = time.monotonic()
        with self._lock:
            waiting = [waiter.spec for waiter in self._queue]
            quiet = now >= self._retry_at and (not self._running or now >= self._refill_at)
        coming = [cell.spec for cell in self._arming]
        for spec in waiting:
            if spec in coming:
                coming.remove(spec)
            elif self._room():
                self._begin(zygote, spec)
        with suppress(BackendError):  # nobody waits for these: tried again later
            while quiet and not waiting and (lacking := self._lacking()) is not None and self._room():
                self._begin(zygote, lacking)

    def _room(self) -> bool:
        with self._lock:
            if len(self._arming) >= _MAX_ARMING:
                return False
            while len(self._armed) + len(self._arming) + len(self._running) >= self._maximum:
                if not (self._armed and self._queue):
                    return False
                self._dying.append(self._armed.popleft())  # of another kind than those who wait need
            return True

    def _begin(self, zygote: Zygote, spec: Spec) -> None:
        self._retry_at = time.monotonic() + _RETRY_AFTER
        group = self._groups.make(str(next(_numbers))) if self._groups else None
        try:
            cell = Cell(zygote, spec, self._without, group)
        except BackendError:
            if group is not None:
                group.remove()
            raise
        self._retry_at = 0.0
        self._arming[cell] = time.monotonic() + _PATIENCE

    def _sort_out(self) -> None:
        """Move the cells that have become ready to the armed ones, and those that broke to the dying."""
        now = time.monotonic()
        for cell, deadline in list(self._arming.items()):
            if cell.broken is None and not cell.ready and now > deadline:
                cell.broken = f"it was not ready after {_PATIENCE:g} s"
            if cell.broken is None and not cell.ready:
                continue
            with self._lock:
                del self._arming[cell]
                (self._dying if cell.broken is not None else self._armed).append(cell)
            if cell.broken is not None:
                self._retry_at = now + _RETRY_AFTER
                self._fail_one(cell, deadline - _PATIENCE)

    def _hand_out(self) -> None:
        """Give armed cells to the runs that wait, in the order in which they came."""
        served: list[tuple[Waiter, Cell]] = []
        with self._lock:
            for waiter in list(self._queue):
                if waiter in self._queue and (cell := self._pop(waiter.spec)) is not None:
                    self._queue.remove(waiter)
                    waiter.cell = cell
                    served.append((waiter, cell))
            keep = self._kept()
            for cell in [cell for cell in self._armed if cell.spec != self._usual]:
                if cell.spec in keep:
                    keep.remove(cell.spec)
                else:  # made to order, and not fetched
                    self._armed.remove(cell)
                    self._dying.append(cell)
        for waiter, cell in served:
            if not waiter.settle(cell):
                self.give_back(cell)

    def _fail_one(self, cell: Cell, begun: float) -> None:
        """Tell the first run that waited for this cell. Those that came later get another try, which may go well."""
        why = cell.broken or ""
        # What the kernel refuses is no accident: another backend may be tried.
        kind = BackendUnavailable if cell.refused else BackendError
        error = kind("a cell could not be made", why=why, next="see `redoma doctor`")
        since = self._waiting_since(begun)
        with self._lock:
            waiter = next((one for one in self._queue if one.spec == cell.spec and one.since <= since), None)
            if waiter is not None and waiter in self._queue:
                self._queue.remove(waiter)
        tell(WARNING, "jail.cell.failed", why=why)
        if waiter is not None:
            waiter.settle(error)

    def _fail_all(self, error: RedomaError, begun: float = math.inf) -> None:
        """Tell every run that waited since before `begun`."""
        with self._lock:
            waiting = [waiter for waiter in self._queue if waiter.since <= begun]
            self._queue = deque(waiter for waiter in self._queue if waiter.since > begun)
        for waiter in waiting:
            waiter.settle(error)

    def _trim(self) -> None:
        if time.monotonic() < self._last_use + self._idle:
            return
        with self._lock:
            self._peak = 0
            self._asked.clear()
            self._armed = deque(sorted(self._armed, key=lambda cell: cell.spec == self._usual))  # the others go first
            while len(self._armed) > self._minimum:
                self._dying.append(self._armed.popleft())

    def _reap(self) -> None:
        """Kill the dying cells, and remove what is left of those that are dead."""
        with self._lock:
            dying, self._dying = self._dying, []
        left: list[Cell] = []
        try:
            for cell in dying:
                cell.kill()
                cell.close()
            while dying:
                if not dying[-1].reap():
                    left.append(dying[-1])
                dying.pop()
        finally:  # one that can't be reaped keeps neither us nor the others from trying again
            with self._lock:
                self._dying += left + dying

    def _reap_all(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._dying and time.monotonic() < deadline:
            with suppress(BackendError):  # a control group that can't be removed is swept by the next Redoma
                self._reap()
            if self._dying:
                time.sleep(0.001)

    def _end(self) -> None:
        self._fail_all(BackendError("the jail is closed", why="its executor was", next="make a new executor"))
        with self._lock:
            self._dying += [*self._armed, *self._arming]
            self._armed.clear()
            self._arming.clear()
            running = list(self._running)
        for cell in running:  # only killed: its descriptors are in the hands of an event loop, which gives it back
            cell.broken = "the jail was closed"
            cell.kill()
        self._reap_all(seconds=5.0)
        deadline = time.monotonic() + 5
        while any(cell.alive() for cell in running) and time.monotonic() < deadline:
            time.sleep(0.001)
        with self._lock:
            self._ended = True  # from here on, whoever gives a cell back reaps it
            self._close_pipe()
            lost = [*self._hung_up, *([self._zygote] if self._zygote is not None else [])]
            self._zygote, self._hung_up = None, []
        for zygote in lost:
            zygote.close()
        self._reap_all(seconds=1.0)


_numbers = itertools.count(1)  # of this process: several pools make their groups in one place
_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


def _in_forked_child() -> None:
    for pool in list(_pools):
        pool.forget()
    _pools.clear()


os.register_at_fork(after_in_child=_in_forked_child)
