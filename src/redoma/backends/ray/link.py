"""One client's connection to one node. All of it is used on the hub's event loop only."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ... import __version__
from ..base import unmet_needs
from . import protocol as said

if TYPE_CHECKING:
    from .hub import Flight

_PATIENCE = 10.0  # seconds more than a call should take, before it is repeated
_PAUSE = 0.5  # seconds before a call is repeated


class Lost(Exception):
    """The node, its actor or the way there is gone, and so is every run on it."""


async def ask(actor: Any, seal: said.Seal, node: str, link: bytes, call: said.Call, seconds: float) -> said.Answer:
    """Make one call. Raises `Lost`, or `TimeoutError` and `ActorUnavailableError` where it may be repeated."""
    from ray.exceptions import ActorUnavailableError, RayError

    data = seal.call(node, link, call)
    try:
        async with asyncio.timeout(seconds):
            answer = await actor.call.remote(data)
    except ActorUnavailableError:
        raise
    except RayError as error:
        raise Lost(_reason(error)) from error
    if not isinstance(answer, bytes) or not answer:
        raise Lost("it doesn't have the key of this cluster")
    try:
        return seal.open_answer(node, data, answer)
    except said.NotOurs as error:
        raise Lost(str(error)) from error


def _reason(error: Exception) -> str:
    """Return what Ray says, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]


class Link:
    """Sends orders to a node and hands on its news; `on_change` is called when it may have room for more runs, and
    `on_lost` once, when it has ended.
    """

    def __init__(
        self,
        actor: Any,
        seal: said.Seal,
        node: str,
        *,
        on_change: Callable[[], None],
        on_lost: Callable[[Link, str], None],
    ) -> None:
        self._actor, self._seal, self.node = actor, seal, node
        self._on_change, self._on_lost = on_change, on_lost
        self._name = said.NO_LINK
        self.about: said.About | None = None
        self.load = said.Load(capacity=1)
        self.flights: dict[str, Flight] = {}
        self._others = 0
        """Runs of other clients there, as far as is known."""
        self._orders: deque[tuple[said.Order, int]] = deque()
        self._wake = asyncio.Event()
        self._sent: set[str] = set()
        self._answered = time.monotonic()
        self._tasks: list[asyncio.Task[None]] = []
        self._ended = False

    async def open(self) -> None:
        """Say hello. Raises `Lost`."""
        answer = await self._ask(said.Hello(), 60.0)
        if not isinstance(answer, said.Welcome):
            raise Lost("it speaks another version of Redoma's protocol")
        if (theirs := answer.about.versions.get("redoma")) != __version__:
            raise Lost(f"it has Redoma {theirs}, and this is {__version__}")
        self._name, self.about, self.load = answer.link, answer.about, answer.about.load
        self._others = self.load.running + self.load.queued
        self._tasks = [asyncio.create_task(self._keep(work)) for work in (self._send, self._receive)]

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
            request, uses = flight.request, flight.request.uses
            unmet = unmet_needs(offered.capabilities, request, controlled=flight.start.controlled)
            if uses is not None and uses.digest not in offered.environments:
                unmet.append(f"the environment {uses.name or uses.digest[:12]}")
            if not unmet:
                return ""
            why.append(f"{offered.name} doesn't offer {', '.join(unmet)}")
        return "; ".join(why) or f"it offers none of {', '.join(flight.start.backends)}"

    @property
    def room(self) -> int:
        """How many more runs to send there: as many as it runs at a time, and as many to wait there."""
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
            self.order(said.Blob(data=flight.blobs[digest]))
        self.order(flight.start, flight.size)

    def order(self, order: said.Order, size: int = 0) -> None:
        if isinstance(order, said.Blob | said.Input):
            size = len(order.data)
        self._orders.append((order, size))
        self._wake.set()

    async def _send(self) -> None:
        number = 0
        while True:
            await self._wake.wait()
            orders, size = list[said.Order](), 0
            while self._orders and (not orders or size + self._orders[0][1] <= said.MAX_BATCH):
                order, own = self._orders.popleft()
                orders.append(order)
                size += own
            if not self._orders:
                self._wake.clear()
            number += 1
            answer = await self._reliably(said.Send(number=number, orders=tuple(orders)), _PATIENCE)
            if not isinstance(answer, said.Taken) or answer.number != number:
                raise Lost("it was restarted, or had not heard of us for too long")

    # --- news ---

    async def _receive(self) -> None:
        seen = 0
        while True:
            answer = await self._reliably(said.Receive(seen=seen), said.POLL + _PATIENCE)
            if not isinstance(answer, said.News):
                raise Lost("it was restarted, or had not heard of us for too long")
            if answer.number == seen:
                continue
            seen, self.load = answer.number, answer.load
            for item in answer.items:
                self._hand_on(item)
            self._others = max(0, self.load.running + self.load.queued - len(self.flights))
            self._on_change()

    def _hand_on(self, item: said.News1) -> None:
        flight = self.flights.get(item.id)
        if flight is None:
            return
        if isinstance(item, said.Failed) and item.kind in ("busy", "draining", "blobs"):
            if item.kind == "blobs" and not flight.cancelled:
                self._send_start(flight, [digest for digest in item.blobs if digest in flight.blobs])
                return
            del self.flights[item.id]
            flight.link = None
            if flight.cancelled:
                flight.deliver(said.Failed(id=item.id, kind="cancelled"))
            else:
                self._others = max(self._others, 2 * self.load.capacity)  # until its next report
                flight.again()
            return
        if isinstance(item, said.Ended | said.Failed):
            del self.flights[item.id]
        flight.deliver(item)

    # --- calls, and their end ---

    async def _ask(self, call: said.Call, seconds: float) -> said.Answer:
        return await ask(self._actor, self._seal, self.node, self._name, call, seconds)

    async def _reliably(self, call: said.Call, seconds: float) -> said.Answer:
        """Make a call, and repeat it while the way to the node may come back. Raises `Lost`."""
        from ray.exceptions import ActorUnavailableError

        while True:
            try:
                answer = await self._ask(call, seconds)
            except (TimeoutError, ActorUnavailableError) as error:
                if time.monotonic() - self._answered > said.LEASE:
                    raise Lost(f"it has not answered for {said.LEASE:g} s") from error
                await asyncio.sleep(_PAUSE)
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
        """End the link: every run on it is told."""
        if self._ended:
            return
        self._ended = True
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()
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
            await self._ask(said.Bye(), _PATIENCE)
        except Exception:
            return  # it will notice by itself
