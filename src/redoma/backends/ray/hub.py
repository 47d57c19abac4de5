"""The client's side of a cluster: a thread that tracks the nodes, keeps a link to each, and places runs on them."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TypeAlias

from ...lib.errors import BackendError, BackendUnavailable, Unsupported
from ...models import Request
from . import protocol
from .link import Link, Lost

_PATIENCE = 120.0  # seconds for Ray to connect, and for the first node to answer; `_START` is added
_LOOK = 2.0  # seconds between looks at the list of nodes
_START = 15.0  # seconds for the first node to be listed

Told: TypeAlias = protocol.News1 | Lost | BackendError


class Parcel(NamedTuple):
    """What a run needs on its node."""

    start: protocol.Start
    blobs: dict[str, bytes]
    """Its large files by their hashes."""
    packed: Callable[[], Iterator[bytes]] | None
    """Packs its environment, if this machine has it."""


class Flight:
    """A run on its way to a node and back. `deliver` is called with every message about it, on the hub's thread."""

    def __init__(self, parcel: Parcel, deliver: Callable[[Told], None]) -> None:
        start = parcel.start
        self.start, self.blobs, self.packed, self.deliver = start, parcel.blobs, parcel.packed, deliver
        self.size = protocol.encoded_size(start)
        self.link: Link | None = None
        self.cancelled = self.looked = False
        self.got = False
        """Whether it has had its environment sent to a node, or waited for that."""
        self.asked_again = False
        """Whether it was sent again to a node that had refused it before its environment arrived there."""
        self.placed: Callable[[], None] = lambda: None
        """Called when a node has been chosen."""
        self.again: Callable[[], None] = lambda: None
        """Called to place it again, because a node didn't take it."""
        self.beside: Flight | None = None
        """The session that it is a copy of: it has to run on the same node."""

    @property
    def request(self) -> Request:
        return self.start.request


class Cluster(Protocol):
    """The way to the nodes: see `engine.RayCluster`."""

    key: bytes

    def connect(self) -> None:
        """Connect this process. Raises `BackendUnavailable`."""

    def disconnect(self) -> None: ...

    def nodes(self) -> set[str]:
        """Return the ids of the nodes that are alive and run something of Redoma."""

    def actor(self, node: str) -> Any:
        """Return the actor of a node: its `call.remote` takes bytes, and returns an awaitable of bytes."""


class Hub:
    """Keeps links to all nodes of a cluster, and lets up to `queue` runs wait for a node. `python` is the interpreter
    that the environments of this machine are for.
    """

    def __init__(self, cluster: Cluster, queue: int, python: str = "") -> None:
        self._cluster, self._queue, self._python = cluster, queue, python
        self._seal = protocol.Seal(cluster.key)
        self.pid = os.getpid()
        self.links: dict[str, Link] = {}
        self._joining: dict[str, asyncio.Task[None]] = {}
        self._unable: dict[str, str] = {}
        """Why there is no link to a node."""
        self._waiting: deque[Flight] = deque()
        self._ready = threading.Event()
        self._failure: BackendUnavailable | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = False
        self._look_again: asyncio.Event | None = None
        self._looking = True
        self._thread = threading.Thread(target=self._main, name="redoma-ray", daemon=True)
        self._thread.start()

    # --- for callers, on any thread ---

    def wait(self) -> None:
        """Wait until a node can be used, or none can. Raises `BackendUnavailable` if the cluster can't be reached."""
        if not self._ready.wait(_START + _PATIENCE):
            raise BackendUnavailable("the cluster can't be used", why="no node was ready in time", next=_STATUS)
        if self._failure is not None:
            raise self._failure

    def abouts(self) -> list[protocol.About]:
        """Return what every node with a link reported about itself when the link was opened."""
        return [link.about for link in list(self.links.values()) if link.about is not None]

    @property
    def problems(self) -> str:
        """Why there are no links to some nodes."""
        return "; ".join(f"node {node[:8]}: {why}" for node, why in sorted(self._unable.items()))

    def submit(self, flight: Flight) -> None:
        """Place a run as soon as a node has room."""
        flight.again = lambda: self._put(flight, first=True)
        self._call(self._put, flight)

    def order(self, flight: Flight, order: protocol.Order) -> None:
        """Send an order to the node that has this run; do nothing if no node has it."""

        def send() -> None:
            if flight.link is not None:
                flight.link.order(order)

        self._call(send)

    def cancel(self, flight: Flight) -> None:
        """End a run, wherever it is."""
        self._call(self._cancel, flight)

    def close(self) -> None:
        """Close all links, so that the nodes end the runs that are left."""
        self._closing = True
        if self._thread.is_alive() and self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._wake)
            self._thread.join()

    def _call(self, work: Callable[..., Any], *arguments: Any) -> None:
        if self._loop is None or self._closing:
            raise BackendUnavailable("the cluster can't be used", why="the executor was closed", next="make a new one")
        self._loop.call_soon_threadsafe(work, *arguments)

    # --- the thread ---

    def _main(self) -> None:
        try:
            self._cluster.connect()
        except BackendUnavailable as error:
            self._failure = error
            self._ready.set()
            return
        try:
            asyncio.run(self._live())
        finally:
            if self._failure is None:
                self._failure = BackendUnavailable("the cluster can't be used", why="the connection was closed")
            self._ready.set()
            self._cluster.disconnect()

    async def _live(self) -> None:
        self._loop, self._look_again = asyncio.get_running_loop(), asyncio.Event()
        started = self._loop.time()
        while not self._closing:
            tried = not self._joining and (self._unable or self._loop.time() - started > _START)
            if self.links or tried:
                self._ready.set()
            await self._look()
            pause = 0.1 if not self._ready.is_set() else _LOOK
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._look_again.wait()
            self._look_again.clear()
        for task in self._joining.values():
            task.cancel()
        for flight in self._waiting:
            flight.deliver(Lost("the executor was closed"))
        links = list(self.links.values())
        await asyncio.gather(*(link.close() for link in links))
        for link in links:
            for flight in link.flights.values():
                flight.deliver(Lost("the executor was closed"))

    def _wake(self) -> None:
        if self._look_again is not None:
            self._look_again.set()

    async def _look(self) -> None:
        """Compare the links with Ray's list of nodes."""
        try:
            alive = await asyncio.to_thread(self._cluster.nodes)
        except Exception:
            return  # Ray's head doesn't answer: keep the links that still work
        for node, link in list(self.links.items()):
            if node not in alive:
                link.lose("Ray has given the node up")
        for node in alive:
            if node not in self.links and node not in self._joining:
                self._joining[node] = asyncio.create_task(self._join(node))
        self._unable = {node: why for node, why in self._unable.items() if node in alive}
        self._looking = False
        self._pump()

    async def _join(self, node: str) -> None:
        link: Link | None = None
        try:
            actor = await asyncio.to_thread(self._cluster.actor, node)
            link = Link(actor, self._seal, node, python=self._python, on_change=self._pump, on_lost=self._lost)
            await link.open()
            self.links[node] = link
            self._unable.pop(node, None)
            self._wake()
        except Exception as error:  # it is tried again at the next look
            self._unable[node] = str(error) or type(error).__name__
        finally:
            del self._joining[node]
            self._pump()

    def _lost(self, link: Link, why: str) -> None:
        self._unable[link.node] = why
        if self.links.get(link.node) is link:
            del self.links[link.node]
        self._looking = True
        self._wake()

    # --- placing ---

    def _put(self, flight: Flight, *, first: bool = False) -> None:
        if flight.beside is not None:
            if (link := flight.beside.link) is None:
                flight.deliver(Lost("the node of the session that it is a copy of is gone"))
            else:
                link.begin(flight)
            return
        if first:
            self._waiting.appendleft(flight)
        elif len(self._waiting) >= self._queue:
            flight.deliver(
                BackendError(
                    "the cluster is busy",
                    why=f"{self._queue} runs wait for a node already",
                    next="try again later, or raise `cluster.queue`",
                )
            )
            return
        else:
            self._waiting.append(flight)
        self._pump()

    def _pump(self) -> None:
        """Give waiting runs to nodes with room. Nodes that have the environment come first, then the least loaded."""
        left: deque[Flight] = deque()
        while self._waiting:
            free = [link for link in self.links.values() if link.room > 0]
            if not free and self.links:
                break
            flight = self._waiting.popleft()
            objections = {link.node: link.objections(flight) for link in self.links.values()}
            able = [link for link in free if not objections[link.node]]
            if able:
                min(able, key=lambda link: (link.has_to_get(flight), link.fullness)).begin(flight)
            elif any(not why for why in objections.values()) or self._joining or self._looking:
                left.append(flight)
            elif not flight.looked:  # a node may have joined since the last look
                flight.looked = self._looking = True
                self._wake()
                left.append(flight)
            else:
                flight.deliver(_no_node({**self._unable, **objections}))
        left.extend(self._waiting)
        self._waiting = left

    def _cancel(self, flight: Flight) -> None:
        flight.cancelled = True
        if flight.link is not None:
            flight.link.cancel(flight)
        elif flight in self._waiting:
            self._waiting.remove(flight)
            flight.deliver(protocol.Failed(id=flight.request.id, kind="cancelled"))


_STATUS = "see `redoma cluster status`"


def _no_node(objections: dict[str, str]) -> BackendError:
    why = "; ".join(f"node {node[:8]}: {why}" for node, why in sorted(objections.items()) if why)
    return Unsupported("no node of the cluster can run this", why=why or "it has no nodes for this", next=_STATUS)
