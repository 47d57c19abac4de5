"""One client's connection to one node. All of it is used on the hub's event loop only."""

from __future__ import annotations

import asyncio
import functools
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ... import __version__
from ...lib.errors import BackendError
from . import protocol
from .line import NodeLine

if TYPE_CHECKING:
    from .hub import Flight

_PATIENCE = 10.0  # seconds more than a call should take, before it is repeated
_PAUSE = 0.5  # seconds before a call is repeated
_RECONNECT = 5.0  # seconds between attempts to connect directly
_MAX_QUEUED = 2 * protocol.MAX_BATCH  # while more bytes of orders wait, no more of an environment is read


class Lost(Exception):
    """The node, its actor or the connection to it is gone, and so is every run on it."""


async def ask(
    actor: Any,
    seal: protocol.Seal,
    node: str,
    link: bytes,
    call: protocol.Call,
    seconds: float,
    line: NodeLine | None = None,
) -> protocol.Answer:
    """Make one call, directly if there is a `line` and else through Ray, and return the answer. Raises `TimeoutError`,
    `OSError` or `ActorUnavailableError` if the call may be repeated, otherwise `Lost`.
    """
    from ray.exceptions import ActorUnavailableError, RayError

    data = seal.call(node, link, call)
    try:
        async with asyncio.timeout(seconds):
            answer = await (line.call(data) if line is not None else actor.call.remote(data))
    except ActorUnavailableError:
        raise
    except RayError as error:
        raise Lost(_reason(error)) from error
    if not isinstance(answer, bytes) or not answer:
        raise Lost("it doesn't have the key of this cluster")
    try:
        return seal.open_answer(node, data, answer)
    except protocol.NotOurs as error:
        raise Lost(str(error)) from error


def _reason(error: Exception) -> str:
    """Return what Ray says, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]


class Link:
    """Sends orders to a node and delivers its news. `on_change` is called when the node may have room for more runs,
    and `on_lost` once, when the link has ended.
    """

    def __init__(
        self,
        actor: Any,
        seal: protocol.Seal,
        node: str,
        *,
        python: str = "",
        on_change: Callable[[], None],
        on_lost: Callable[[Link, str], None],
    ) -> None:
        self._actor, self._seal, self.node, self._python = actor, seal, node, python
        self._on_change, self._on_lost = on_change, on_lost
        self._name = protocol.NO_LINK
        self.about: protocol.About | None = None
        self.load = protocol.Load(capacity=1)
        self.flights: dict[str, Flight] = {}
        self._others = 0
        """Runs of other clients there, as far as is known."""
        self._orders: deque[tuple[protocol.Order, int]] = deque()
        self._wake = asyncio.Event()
        self._queued, self._drained = 0, asyncio.Event()
        self._sent: set[str] = set()
        self._environments: set[str] = set()
        """Digests of the environments that the node has, as far as is known."""
        self._sending: dict[str, list[Flight]] = {}
        """Runs that wait until their environment has been sent, by its digest."""
        self._arrived: set[str] = set()
        """Digests of the environments that were sent over this link."""
        self._answered = time.monotonic()
        self._line: NodeLine | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._ended = False

    async def open(self) -> None:
        """Open the link on the node and begin to send and receive. Raises `Lost`."""
        answer = await self._ask(protocol.Hello(), 60.0)
        if not isinstance(answer, protocol.Welcome):
            raise Lost("it did not answer as a node does")
        if (theirs := answer.about.versions.get("redoma")) != __version__:
            raise Lost(f"it has Redoma {theirs}, and this is {__version__}")
        self._name, self.about, self.load = answer.link, answer.about, answer.about.load
        self._others = self.load.running + self.load.queued
        self._environments = {digest for each in answer.about.backends for digest in each.environments}
        await self._connect()
        self._tasks = [asyncio.create_task(self._keep(work)) for work in (self._send, self._receive, self._reconnect)]

    # --- what it offers ---

    def objections(self, flight: Flight) -> str:
        """Return why it can't take this run; empty if it can."""
        if self.load.draining:
            return "it is draining"
        why: list[str] = []
        for offered in self.about.backends if self.about else ():
            if offered.name not in flight.start.backends:
                continue
            if offered.why_not:
                why.append(f"{offered.name}: {offered.why_not}")
                continue
            unmet = offered.unmet(flight.request, controlled=flight.start.controlled, session=flight.start.session)
            if self.has_to_get(flight) and not self._can_send(flight):
                uses = flight.request.uses
                unmet.append(f"the environment {(uses.name or uses.digest[:12]) if uses else ''}")
            if not unmet:
                return ""
            why.append(f"{offered.name} doesn't offer {', '.join(unmet)}")
        return "; ".join(why) or f"it offers none of {', '.join(flight.start.backends)}"

    def has_to_get(self, flight: Flight) -> bool:
        """Whether the run needs an environment that the node doesn't have."""
        uses = flight.request.uses
        return uses is not None and uses.digest not in self._environments

    def _can_send(self, flight: Flight) -> bool:
        same = self.about is not None and self.about.python == self._python != ""
        return flight.packed is not None and same

    @property
    def room(self) -> int:
        """How many more runs the node can take: it may have `capacity` running, and as many more waiting."""
        return 2 * self.load.capacity - self._others - len(self.flights)

    @property
    def fullness(self) -> float:
        return (self._others + len(self.flights)) / self.load.capacity

    # --- orders ---

    def begin(self, flight: Flight) -> None:
        flight.link = self
        self.flights[flight.request.id] = flight
        flight.placed()
        self._send_start(flight, [digest for digest in flight.blobs if digest not in self._sent])

    def _send_start(self, flight: Flight, blobs: list[str]) -> None:
        for digest in blobs:
            self._sent.add(digest)
            self.order(protocol.Blob(data=flight.blobs[digest]))
        self.order(flight.start, flight.size)

    async def _send_environment(self, digest: str, flight: Flight) -> None:
        """Send the environment of a run in pieces, and then all runs that wait for it."""
        chunks = flight.packed() if flight.packed is not None else iter(())
        try:
            while chunk := await asyncio.to_thread(next, chunks, b""):
                while self._queued > _MAX_QUEUED:
                    self._drained.clear()
                    await self._drained.wait()
                self.order(protocol.EnvironmentPart(digest=digest, data=chunk))
        except OSError as error:
            self.order(protocol.EnvironmentEnd(digest=digest, whole=False))
            for waiting in self._sending.pop(digest):
                self._fail(waiting, f"the environment can't be sent to node {self.node[:8]}", why=str(error))
            return
        self.order(protocol.EnvironmentEnd(digest=digest))
        self._environments.add(digest)
        self._arrived.add(digest)
        for waiting in self._sending.pop(digest):
            self.order(waiting.start, waiting.size)

    def _get(self, flight: Flight) -> None:
        """Send the environment of a run that the node refused because it doesn't have the environment."""
        uses = flight.request.uses
        if uses is None or flight.got or not self._can_send(flight):
            self._fail(flight, f"node {self.node[:8]} doesn't have the environment", why="it could not keep it")
            return
        if uses.digest in self._arrived and not flight.asked_again:
            flight.asked_again = True  # most likely it was refused just before the environment arrived
            self.order(flight.start, flight.size)
            return
        flight.got = True
        if (waiting := self._sending.get(uses.digest)) is not None:  # empty if the earlier ones were cancelled
            waiting.append(flight)
            return
        self._sending[uses.digest] = [flight]
        self._environments.discard(uses.digest)
        self._tasks.append(
            asyncio.create_task(self._keep(functools.partial(self._send_environment, uses.digest, flight)))
        )

    def _fail(self, flight: Flight, what: str, *, why: str) -> None:
        del self.flights[flight.request.id]
        flight.deliver(BackendError(what, why=why, next="make it there: redoma env create"))

    def cancel(self, flight: Flight) -> None:
        """End a run that was given to this node."""
        for waiting in self._sending.values():
            if flight in waiting:  # the node doesn't know it yet
                waiting.remove(flight)
                del self.flights[flight.request.id]
                flight.deliver(protocol.Failed(id=flight.request.id, kind="cancelled"))
                return
        self.order(protocol.Cancel(id=flight.request.id))

    def order(self, order: protocol.Order, size: int = 0) -> None:
        if isinstance(order, protocol.Blob | protocol.Input | protocol.EnvironmentPart):
            size = len(order.data)
        self._orders.append((order, size))
        self._queued += size
        self._wake.set()

    async def _send(self) -> None:
        number = 0
        while True:
            await self._wake.wait()
            orders, size = protocol.take_batch(self._orders)
            if not self._orders:
                self._wake.clear()
            self._queued -= size
            self._drained.set()
            number += 1
            answer = await self._reliably(protocol.Send(number=number, orders=orders), _PATIENCE)
            if not isinstance(answer, protocol.Taken) or answer.number != number:
                raise Lost("it was restarted, or had not heard of us for too long")

    # --- news ---

    async def _receive(self) -> None:
        seen = 0
        while True:
            answer = await self._reliably(protocol.Receive(seen=seen), protocol.POLL + _PATIENCE)
            if not isinstance(answer, protocol.News):
                raise Lost("it was restarted, or had not heard of us for too long")
            if answer.number == seen:
                continue
            seen, self.load = answer.number, answer.load
            for item in answer.items:
                self._hand_on(item)
            self._others = max(0, self.load.running + self.load.queued - len(self.flights))
            self._on_change()

    def _hand_on(self, item: protocol.News1) -> None:
        flight = self.flights.get(item.id)
        if flight is None:
            return
        if isinstance(item, protocol.Failed) and item.kind in ("busy", "draining", "blobs"):
            if item.kind == "blobs" and not flight.cancelled:
                self._send_start(flight, list(flight.blobs))  # all: the node holds them until the start that follows
                return
            del self.flights[item.id]
            flight.link = None
            if flight.cancelled:
                flight.deliver(protocol.Failed(id=item.id, kind="cancelled"))
            else:
                self._others = max(self._others, 2 * self.load.capacity)  # not back here while this report is read
                flight.again()
            return
        if isinstance(item, protocol.Failed) and item.kind == "environment" and not flight.cancelled:
            self._get(flight)
            return
        if isinstance(item, protocol.Ended | protocol.Failed):
            del self.flights[item.id]
        flight.deliver(item)

    # --- calls, and their end ---

    async def _connect(self) -> None:
        """Connect directly, if the node can be reached."""
        if self.about is None or not self.about.port:
            return
        try:
            self._line = await NodeLine.connect(self.about.address, self.about.port, self._seal, self.node)
        except (OSError, protocol.NotOurs):
            self._line = None  # there is Ray

    async def _reconnect(self) -> None:
        while True:
            await asyncio.sleep(_RECONNECT)
            if self._line is None:
                await self._connect()

    def _hang_up(self, line: NodeLine | None) -> None:
        if line is not None:
            line.close()
        if self._line is line:
            self._line = None

    async def _ask(self, call: protocol.Call, seconds: float) -> protocol.Answer:
        line = self._line
        try:
            return await ask(self._actor, self._seal, self.node, self._name, call, seconds, line)
        except OSError:  # also if it took too long
            self._hang_up(line)
            raise

    async def _reliably(self, call: protocol.Call, seconds: float) -> protocol.Answer:
        """Make a call, and repeat it while the connection may come back, for `LEASE` seconds. Raises `Lost`."""
        from ray.exceptions import ActorUnavailableError

        while True:
            line = self._line
            try:
                answer = await self._ask(call, seconds)
            except (OSError, ActorUnavailableError) as error:
                if time.monotonic() - self._answered > protocol.LEASE:
                    raise Lost(f"it has not answered for {protocol.LEASE:g} s") from error
                if line is None or isinstance(error, TimeoutError):
                    await asyncio.sleep(_PAUSE)
                # Else a direct connection has ended: repeat it at once, through Ray, which knows if the node is gone.
            else:
                self._answered = time.monotonic()
                return answer

    async def _keep(self, work: Callable[[], Any]) -> None:
        try:
            await work()
        except Lost as lost:
            self.lose(str(lost))
        except Exception as error:  # a bug must not leave runs waiting for ever
            self.lose(f"{type(error).__name__}: {error}")

    def lose(self, why: str) -> None:
        """End the link, and deliver `Lost` to every run on it."""
        if self._ended:
            return
        self._ended = True
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()
        self._hang_up(self._line)
        self._on_lost(self, why)
        flights, self.flights = list(self.flights.values()), {}
        for flight in flights:
            flight.link = None
            flight.deliver(Lost(why))

    async def close(self) -> None:
        """Say goodbye, so that the node ends whatever is still there."""
        if self._ended:
            return
        self._ended = True
        for task in self._tasks:
            task.cancel()
        try:
            await self._ask(protocol.Bye(), _PATIENCE)
        except Exception:
            return  # the node will notice by itself
        finally:
            self._hang_up(self._line)
