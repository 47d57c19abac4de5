"""The pool of cells that are made ahead of time. Each is used once. One thread makes, trims and reaps them.

    take() ─▶ an armed cell at once, or a place in the queue      give_back() ─▶ killed, reaped, never used again

Runs, on any event loop, only take the lock. Everything slow (starting a zygote, control groups, waiting for the death
of a cell) happens on the thread. The pool keeps as many cells armed as were recently in use at one time, so that a
burst finds them ready; a few more while runs have to wait for cells; after some idle time, only the minimum. These are
cells of the usual kind. Another kind (a run with its own disk limit, for example) is made on demand; from the second
request on, one of that kind is kept ready. A kind that starts something ahead of the run is only made ahead of time,
too: a run that finds none takes a plain cell.
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
from ...models import Limits
from ...telemetry import WARNING, tell
from .. import linux
from .cell import Cell, Spec, readable
from .cgroup import Cgroups
from .launch import Zygote

_MAX_ARMING = min(16, 2 * (os.cpu_count() or 1))  # at one time, for runs that wait: making one is partly waiting, too
_MAX_AHEAD = 2  # at one time, for runs to come: more would take processor time from those that run
_PATIENCE = 10.0  # seconds that making a cell may take on a busy machine
_REFILL_AFTER = 0.004  # seconds after a cell was taken: the run goes first
_BUSY_FOR = 0.1  # seconds after a run had to wait for a cell: then cells are replaced at once, and more are kept ready
_MORE_IF_BUSY = 2
_MAX_KINDS = 4  # other kinds of which one cell is kept ready
_USUAL_MEMORY = Limits().memory
_RETRY_AFTER = 0.25  # seconds after a failure before a cell is made that no run waits for


class Waiter:
    """A run that waits for a cell. The pool's thread delivers one to the event loop of the run."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.since = time.monotonic()
        self.cell: Cell | None = None
        """Its cell, as soon as the waiter has left the queue: if the wait is cancelled then, the cell is not lost."""
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Cell] = self._loop.create_future()

    def settle(self, outcome: Cell | RedomaError) -> bool:
        """Deliver a cell or an error. Returns False if the event loop is closed."""

        def on_its_loop() -> None:
            if self.future.done():
                return  # it was cancelled
            if isinstance(outcome, RedomaError):
                self.future.set_exception(outcome)
            else:
                self.future.set_result(outcome)

        try:
            self._loop.call_soon_threadsafe(on_its_loop)
        except RuntimeError:  # the loop is closed
            return False
        return True


class Pool:
    """Cells of one zygote. Keeps `minimum` armed, lets `maximum` run and `queue` wait, trims after `idle` seconds.

    `usual` is the kind of cell that is made ahead. `without` are layers to leave out, for tests. `start` starts a
    zygote; it is called on the pool's thread. `once`: there will be only one run, so the zygote ends right after it.
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
        # Re-entrant: a run that was dropped with its loop gives its cell back whenever the garbage collector finds it,
        # perhaps on a thread that holds the lock.
        self._lock = threading.RLock()
        try:
            self._alarm = linux.timer()
        except OSError as error:
            raise BackendError("the jail could not be started", why=str(error), next="close some files") from error
        self._alarm_is_set = False
        self._armed: deque[Cell] = deque()
        self._queue: deque[Waiter] = deque()
        self._running: set[Cell] = set()
        self._dying: list[Cell] = []
        self._arming: dict[Cell, float] = {}
        """Cells that are being made, and since when."""
        self._asked: dict[Spec, int] = {}
        """How often each other kind of cell was requested recently."""
        self._zygote: Zygote | None = None
        self._hung_up: list[Zygote] = []
        """Zygotes that were told to end. They are waited for when the pool closes."""
        self._groups: Cgroups | None = None
        self._closing = self._ended = False  # told to end; everything has ended
        self._warming = False  # told to start the zygote before a run waits for a cell
        self._spent = False  # a pool with `once` has had its run
        self._expected = 0  # runs that `warm` announced and that have no cell yet
        self.runs = 0
        """How many runs use this pool, from before they take a cell until they have given it back."""
        self._peak, self._last_use, self._refill_at, self._retry_at = 0, time.monotonic(), 0.0, 0.0
        self._busy_until = 0.0
        self._thread: threading.Thread | None = None
        _pools.add(self)

    # --- called by runs, on any thread ---

    async def take(self, spec: Spec) -> Cell:
        """Return an armed cell of this kind, as soon as there is one. Give it back with `give_back`.

        Raises `BackendError` if too many runs wait already or a cell can't be made.
        """
        with self._lock:
            if self._closing:
                raise BackendError("the jail is closed", why="its executor was", next="make a new executor")
            if (cell := self.take_now(spec)) is not None:
                return cell
            self._count(spec)
            if len(self._queue) >= self._queue_size:
                raise BackendError(
                    "too many runs wait for a cell",
                    why=f"{len(self._running)} run and {len(self._queue)} wait, which is as many as may",
                    next="run fewer at a time, or raise `maximum` or `queue` of the jail",
                )
            waiter = Waiter(spec.plain)
            self._queue.append(waiter)
            # The first run of all always waits, and other kinds mostly do.
            if self._peak and waiter.spec == self._usual:
                self._busy_until = waiter.since + _BUSY_FOR
            try:
                self._ensure_thread()
            except RuntimeError as error:
                self._queue.remove(waiter)
                raise BackendError("the jail can't work", why=str(error), next="free some processes") from error
            self._wake()
        try:
            return await waiter.future
        except BaseException:  # cancelled, refused, or dropped with its loop
            with self._lock:
                if waiter in self._queue:
                    self._queue.remove(waiter)
            if waiter.cell is not None:
                self.give_back(waiter.cell)
            raise

    def take_now(self, spec: Spec) -> Cell | None:
        """Do the same as `take` if a cell is ready and no other run waits for one; else return None."""
        with self._lock:
            if self._closing or self._queue or (cell := self._pop(spec) or self._pop(spec.plain)) is None:
                return None
            self._count(spec)
            if self._is_busy:
                self._wake()
            return cell

    def warm(self) -> None:
        """Begin to make a cell for a run that will come soon. Errors are reported to that run."""
        with self._lock, suppress(RuntimeError):
            self._warming, self._expected = True, 1
            self._ensure_thread()

    def _count(self, spec: Spec) -> None:
        """Count a request for a cell of this kind. The lock must be held."""
        if spec != self._usual and spec.seed is None:  # a given seed is rarely requested twice
            self._asked[spec] = self._asked.pop(spec, 0) + 1
            if len(self._asked) > 4 * _MAX_KINDS:
                del self._asked[next(iter(self._asked))]

    def _kept(self) -> list[Spec]:
        """Return the other kinds of which a cell is kept ready: the latest that were requested more than once."""
        return [spec for spec, times in self._asked.items() if times > 1][-_MAX_KINDS:]

    def _pop(self, spec: Spec) -> Cell | None:
        """Return an armed cell of this kind that is still alive, or None. The lock must be held."""
        if self._zygote_is_gone():
            return None  # its cells are about to die
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
        self._refill_at = self._last_use + self._refill_after

    @property
    def _is_busy(self) -> bool:
        return time.monotonic() < self._busy_until

    @property
    def _max_ahead(self) -> int:
        return _MAX_ARMING if self._is_busy else _MAX_AHEAD

    @property
    def _refill_after(self) -> float:
        return 0.0 if self._is_busy else _REFILL_AFTER

    def give_back(self, cell: Cell) -> None:
        """Destroy a cell that was taken, used or not. Safe to call twice."""
        with self._lock:
            if cell not in self._running:
                return
            self._running.discard(cell)
            self._dying.append(cell)
            if not self._ended:
                self._spent = self._once
                try:
                    self._ensure_thread()  # which kills and closes it
                except RuntimeError:  # none can be started: `aclose`, or the next thread, reaps the cell
                    cell.close()
                # Later, unless a run waits, so that the caller gets its result first: the thread would hold the
                # interpreter's lock for half a millisecond.
                self._wake(0.0 if self._queue or self._once else self._refill_after)
                return
        self._reap_all(seconds=1.0)

    def leave(self) -> bool:
        """Begin to close the pool, unless it is in use. Returns whether it does; `aclose` waits for the end."""
        with self._lock:
            if self._running or self._queue:
                return False
            self._closing = True
            self._wake()
            return True

    async def aclose(self) -> None:
        """Close the pool. Returns when none of its processes is alive; with `once`, when its zygote was killed."""
        with self._lock:
            self._closing = True
            thread = self._thread
            self._wake()
        # Not joined in another thread: at the end of the interpreter none can be started.
        while thread is not None and thread.is_alive():  # noqa: ASYNC110 - a thread sets no asyncio.Event
            await asyncio.sleep(0.002)
        if not self._ended:  # there was no thread, or it died
            self._end()

    def _close_alarm(self) -> None:
        number, self._alarm = self._alarm, -1
        if number >= 0:
            os.close(number)

    def forget(self) -> None:
        """In a forked child: close our copies of the parent's descriptors, so that cells notice the parent's death."""
        self._lock = threading.RLock()  # the old one may be held by a thread that this process doesn't have
        self._closing = self._ended = True
        for cell in [*self._armed, *self._running, *self._arming, *self._dying]:
            cell.close()
            cell.close_handle()
        if self._zygote is not None:
            self._zygote.forget()
        for zygote in self._hung_up:
            zygote.forget()
        self._close_alarm()
        # So that a run of the parent which is garbage-collected here gives nothing back.
        self._armed, self._running, self._arming, self._dying = deque(), set(), {}, []
        self._queue = deque()

    def counts(self) -> dict[str, int]:
        """Return how many cells there are in each state, and how many runs wait."""
        with self._lock:
            known = {"armed": self._armed, "arming": self._arming, "running": self._running, "waiting": self._queue}
            return {name: len(cells) for name, cells in known.items()}

    @property
    def has_ended(self) -> bool:
        """Whether the pool is closed and none of its processes is alive."""
        return self._ended

    @property
    def zygote_pid(self) -> int | None:
        """The process id of the zygote, if there is one."""
        return self._zygote.pid if self._zygote else None

    def _wake(self, after: float = 0.0) -> None:
        """Wake the thread at once; or after some seconds, if nothing else wakes it before. The lock must be held: after
        the alarm is closed, its number may be that of another file.
        """
        if self._alarm >= 0 and not (after and self._alarm_is_set):
            self._alarm_is_set = True
            linux.set_timer(self._alarm, after)

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
                except Exception as error:  # no descriptors, no memory, a bug: report it, go on
                    why = f"{type(error).__name__}: {error}"
                    self._fail_all(BackendError("the jail ran into a problem", why=why, next="run it again"), begun)
                    time.sleep(0.05)
        finally:
            if self._closing:
                self._end()
            else:  # the thread was interrupted; the next run starts another one
                with self._lock:
                    self._thread = None  # so that a run which comes now doesn't rely on this one
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
        """Tell the zygote of a pool with `once` to end after its run. A further run would get a new zygote."""
        with self._lock:
            spent, self._spent = self._spent, False
            if not spent or self._queue or self._running or self._zygote is None:
                return
            zygote, self._zygote = self._zygote, None
            self._hung_up.append(zygote)
        zygote.hang_up()

    def _listen(self) -> None:
        """Sleep until a descriptor is readable or something is due."""
        poll = select.poll()
        poll.register(self._alarm, select.POLLIN)
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
        if self._alarm in happened:
            with self._lock, suppress(BlockingIOError):  # it may have been set again just now
                self._alarm_is_set = False
                os.read(self._alarm, 8)
        for cell in list(self._arming):
            if {cell.control.fileno(), cell.order.fileno()} & happened:
                cell.advance()

    def _pause(self) -> float | None:
        """Return the milliseconds until something is due that no descriptor reports; None if nothing is."""
        now = time.monotonic()
        due: list[float] = []
        if self._dying:
            due.append(0.02)
        if self._arming:
            due.append(0.5)
        if self._zygote is not None and len(self._arming) < self._max_ahead and self._lacking() is not None:
            due.append(max(0.0, self._refill_at - now if self._running else 0.0, self._retry_at - now))
        if len(self._armed) > self._minimum:
            due.append(max(0.0, self._last_use + self._idle - now))
        return min(due) * 1000 + 0.5 if due else None

    def _zygote_is_gone(self) -> bool:
        # It sends nothing once it is ready, so this can only be its end.
        return self._zygote is not None and readable(self._zygote.fileno())

    def _need_zygote(self) -> None:
        if self._zygote_is_gone():
            self._lose_zygote()
        if self._zygote is None and (self._queue or self._warming):
            self._warming = False
            self._zygote, self._groups = self._start()

    def _waiting_since(self, begun: float) -> float:
        """Return since when a run must have waited to be told of a failure that began at `begun`.

        If the zygote was killed, and its cells with it, runs wait on for a while: the next zygote will make their
        cells.
        """
        return min(begun, time.monotonic() - _PATIENCE) if self._zygote_is_gone() else begun

    def _lose_zygote(self) -> None:
        """Clean up after a killed zygote: all its cells are dead. Runs in them notice it themselves."""
        with self._lock:
            lost, self._zygote = self._zygote, None
            self._dying += [*self._armed, *self._arming]
            self._armed.clear()
            self._arming.clear()
        if lost is not None:
            tell(WARNING, "jail.zygote.lost", pid=lost.pid)
            lost.close()

    def _lacking(self) -> Spec | None:
        """Return the kind of the next cell to make ahead, or None."""
        with self._lock:
            ready = [cell.spec for cell in (*self._armed, *self._arming)]
            if len(ready) + len(self._running) >= self._maximum:
                return None
            # If the minimum is 0, a cell is made ahead only for a run that was announced.
            wanted = self._peak + (_MORE_IF_BUSY if self._is_busy else 0)
            ahead = max(self._minimum, wanted) if self._minimum else self._expected
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
            elif self._make_room(_MAX_ARMING):
                self._begin(zygote, spec, warm=False)
        with suppress(BackendError):  # no run waits for these: try again later
            ahead = self._max_ahead if quiet and not waiting else 0
            while (lacking := self._lacking()) is not None and self._make_room(ahead):
                self._begin(zygote, lacking, warm=not self._is_busy)

    def _make_room(self, max_arming: int) -> bool:
        """Return whether another cell may be made. If there are as many as may be, and runs wait for another kind, an
        armed cell makes room.
        """
        with self._lock:
            if len(self._arming) >= max_arming:
                return False
            while len(self._armed) + len(self._arming) + len(self._running) >= self._maximum:
                if not (self._armed and self._queue):
                    return False
                self._dying.append(self._armed.popleft())
            return True

    def _begin(self, zygote: Zygote, spec: Spec, *, warm: bool) -> None:
        self._retry_at = time.monotonic() + _RETRY_AFTER  # unless it can be begun
        group = self._groups.make(str(next(_numbers))) if self._groups else None
        try:
            if group is not None:
                group.limit(_USUAL_MEMORY)  # ahead, because it takes as long as a round trip to the cell
            cell = Cell(zygote, spec, self._without, group, warm=warm)
        except BackendError:
            if group is not None:
                group.remove()
            raise
        self._retry_at = 0.0
        self._arming[cell] = time.monotonic()

    def _sort_out(self) -> None:
        """Move cells that are ready now to the armed ones, and broken cells to the dying ones."""
        now = time.monotonic()
        for cell, begun in list(self._arming.items()):
            if cell.broken is None and not cell.ready and now > begun + _PATIENCE:
                cell.broken = f"it was not ready after {_PATIENCE:g} s"
            if cell.broken is None and not cell.ready:
                continue
            with self._lock:
                del self._arming[cell]
                (self._dying if cell.broken is not None else self._armed).append(cell)
                if cell.broken is not None and cell.spec.ahead is not None:
                    self._asked.pop(cell.spec, None)  # no run needs this kind
            if cell.broken is not None:
                self._retry_at = now + _RETRY_AFTER
                self._fail_one(cell, begun)

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
                else:  # made on demand, for a run that no longer waits
                    self._armed.remove(cell)
                    self._dying.append(cell)
        for waiter, cell in served:
            if not waiter.settle(cell):
                self.give_back(cell)

    def _fail_one(self, cell: Cell, begun: float) -> None:
        """Report a broken cell to the first run that waited for its kind. Later runs get another attempt."""
        why = cell.broken or ""
        # If the kernel refuses it, trying again is useless: another backend may be tried.
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
        """Report an error to every run that waited since before `begun`."""
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
            self._armed = deque(sorted(self._armed, key=lambda cell: cell.spec == self._usual))  # other kinds go first
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
        finally:  # one that can't be reaped must not keep the others from being reaped
            with self._lock:
                self._dying += left + dying

    def _reap_all(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._dying and time.monotonic() < deadline:
            with suppress(BackendError):  # the next Redoma sweeps a control group that can't be removed
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
        for cell in running:  # only killed: an event loop uses its descriptors, and gives the cell back
            cell.broken = "the jail was closed"
            cell.kill()
        self._reap_all(seconds=5.0)
        deadline = time.monotonic() + 5
        while any(cell.alive() for cell in running) and time.monotonic() < deadline:
            time.sleep(0.001)
        with self._lock:
            self._ended = True  # from now on, `give_back` reaps
            self._close_alarm()
            lost = [*self._hung_up, *([self._zygote] if self._zygote is not None else [])]
            self._zygote, self._hung_up = None, []
        for zygote in lost:
            zygote.close(wait=not self._once)
        self._reap_all(seconds=1.0)


_numbers = itertools.count(1)  # unique in this process: several pools make their groups in one place
_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


def _in_forked_child() -> None:
    for pool in list(_pools):
        pool.forget()
    _pools.clear()


os.register_at_fork(after_in_child=_in_forked_child)
