"""Containers that are made ahead and wait for their order. Each is used once.

Everything happens on one event loop. The requests decide which kind of container is kept ready: the first request, and
later any two in a row that want the same kind.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable

from ...lib.errors import BackendError
from ...telemetry import WARNING, tell
from ..base import uncancellable
from .box import ContainerSpec
from .container import Container
from .engine import closed

_LATER = 0.25  # seconds that a run has the machine to itself before the next container is made
_RETRY_AFTER = 5.0  # seconds to wait after one could not be made, if no run needs it


class ContainerPool:
    """Makes containers with `make`, keeps `minimum` of each kind in use ready, and lets `maximum` run at a time."""

    def __init__(
        self,
        make: Callable[[ContainerSpec], Awaitable[Container]],
        *,
        minimum: int,
        maximum: int,
        queue: int,
        idle: float,
    ) -> None:
        self._make = make
        self._minimum, self._most_waiting, self._idle = minimum, queue, idle
        self._places = asyncio.Semaphore(maximum)
        self._maximum, self._waiting, self._running, self._peak = maximum, 0, 0, 0
        self._armed: deque[_Warm] = deque()
        self._usual: dict[bool, ContainerSpec] = {}
        """The spec that is kept ready for Python, and the one for everything else."""
        self._last: dict[bool, ContainerSpec] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._refill_timer: asyncio.TimerHandle | None = None
        self._retry_at = 0.0
        self._closed = False

    async def take(self, spec: ContainerSpec) -> Container:
        """Return a container that waits for its order; wait for a free place if necessary. Return it with `give_back`.

        Raises `BackendError` if too many runs wait already, or no container can be made.
        """
        if self._closed:
            raise closed()
        if self._places.locked() and self._waiting >= self._most_waiting:
            raise BackendError(
                "too many runs wait for a container",
                why=f"{self._waiting} do already",
                next="send fewer at a time, or raise `docker.maximum` or `docker.queue`",
            )
        self._waiting += 1
        try:
            await self._places.acquire()
        finally:
            self._waiting -= 1
        try:
            container = await self._ready(spec)
        except BaseException:
            self._places.release()
            raise
        self._running += 1
        self._peak = max(self._peak, self._running)
        self._refill(_LATER)
        return container

    async def _ready(self, spec: ContainerSpec) -> Container:
        if self._closed:
            raise closed()
        self._learn(spec)
        while (warm := next((one for one in self._armed if one.spec == spec), None)) is not None:
            self._armed.remove(warm)
            self._refill(_LATER)  # before the wait below, which may be cancelled
            if (container := await warm.claim()) is not None:
                return container
        return await self._make(spec)

    def _learn(self, spec: ContainerSpec) -> None:
        if self._usual.setdefault(spec.python, spec) != spec and self._last.get(spec.python) == spec:
            self._usual[spec.python] = spec
        self._last[spec.python] = spec

    async def give_back(self, container: Container) -> None:
        """Remove a container that was taken."""
        self._running -= 1
        self._places.release()
        self._refill(0.0)
        await container.remove()

    def counts(self) -> dict[str, int]:
        return {"armed": len(self._armed), "running": self._running, "waiting": self._waiting}

    # --- ahead of time ---

    def _refill(self, seconds: float) -> None:
        if not self._minimum or self._closed:
            return
        if self._refill_timer is not None:
            self._refill_timer.cancel()
        loop = asyncio.get_running_loop()
        self._refill_timer = loop.call_later(max(seconds, self._retry_at - time.monotonic()), self._fill)

    def _fill(self) -> None:
        if self._closed:
            return
        usual = set(self._usual.values())
        for warm in [warm for warm in self._armed if warm.spec not in usual or warm.is_dead]:
            self._armed.remove(warm)
            self._begin(warm.drop())
        ahead = min(max(self._minimum, self._peak), self._maximum)
        for spec in usual:
            for _ in range(ahead - sum(warm.spec == spec for warm in self._armed)):
                self._armed.append(_Warm(spec, self._make, self._died))
        self._refill_timer = asyncio.get_running_loop().call_later(self._idle, self._trim)

    def _died(self, warm: _Warm) -> None:
        """Handle a waiting container that died or could not be made: try another later."""
        if warm in self._armed:
            if not self._closed:  # otherwise we killed it ourselves
                tell(WARNING, "docker.container.lost", image=warm.spec.image)
            self._armed.remove(warm)
            self._begin(warm.drop())
            self._retry_at = time.monotonic() + _RETRY_AFTER
            self._refill(_RETRY_AFTER)

    def _trim(self) -> None:
        """After some time without requests, remove the containers beyond the minimum."""
        self._peak = self._running
        for spec in set(self._usual.values()):
            for warm in [warm for warm in self._armed if warm.spec == spec][max(self._minimum, self._peak) :]:
                self._armed.remove(warm)
                self._begin(warm.drop())

    def _begin(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # mark as retrieved; leftovers are swept by the next Redoma process

    def close(self) -> None:
        """Hand out no more containers, and make none ahead."""
        self._closed = True
        if self._refill_timer is not None:
            self._refill_timer.cancel()

    async def aclose(self) -> None:
        self.close()
        while self._armed:
            self._begin(self._armed.popleft().drop())
        while self._tasks:
            await uncancellable(asyncio.wait(set(self._tasks)))


class _Warm:
    """A container that is being made, or waits."""

    def __init__(
        self, spec: ContainerSpec, make: Callable[[ContainerSpec], Awaitable[Container]], died: Callable[[_Warm], None]
    ) -> None:
        self.spec, self._make, self._died = spec, make, died
        self._container: Container | None = None
        self._made = asyncio.Event()
        self._claimed = False
        self._task = asyncio.create_task(self._live())

    async def _live(self) -> None:
        """Make the container, then read from it. A waiting container sends nothing, so any data means that it has
        ended.
        """
        try:
            self._container = await self._make(self.spec)
            self._made.set()
            await self._container.read()
        except (BackendError, TimeoutError):
            pass
        self._made.set()
        if not self._claimed:
            self._died(self)

    @property
    def is_dead(self) -> bool:
        return self._task.done()

    async def claim(self) -> Container | None:
        """Return the container as soon as it is ready; None if it has died."""
        self._claimed = True
        try:
            await self._made.wait()
            for _ in range(2):  # let the event loop read what has arrived: it may be the container's end
                await asyncio.sleep(0)
            if not self._task.done():
                self._task.cancel()
                await asyncio.wait([self._task])
                return self._container
        except BaseException:  # it is on no list any more, so nothing else would remove it
            await uncancellable(self.drop())
            raise
        await uncancellable(self.drop())
        return None

    async def drop(self) -> None:
        self._claimed = True
        self._task.cancel()
        await asyncio.wait([self._task])
        if self._container is not None:
            await self._container.remove()
