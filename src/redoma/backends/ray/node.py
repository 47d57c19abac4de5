"""A node of the cluster, without Ray: obeys the orders of its clients, and keeps what they have to be told.

`Node.call` takes and returns sealed bytes, and is all that Ray gets to see. It never raises, whatever it is sent: an
exception would travel pickled.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import platform
import socket
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from contextlib import suppress

import msgspec

from ...lib.errors import BackendError, RedomaError, Unsupported
from ...models import Request, Stream
from ...models.reach import NOTHING
from ...telemetry import WARNING, metrics, tell
from ..base import Backend, Control, Outcome, unmet_needs
from ..hosts import kept_requests
from . import protocol as said

_GATHER = 0.01  # seconds after the first output: the rest of a burst, or the end, goes with it
_RATE_OVER = 10.0  # seconds
_MAX_BLOBS = 256 << 20  # bytes of files that are kept for later runs
_PROBES = (("python", "1"), ("bash", ":"))  # the smallest program in each language


class _Run:
    """A run of one link."""

    def __init__(self, start: said.Start) -> None:
        self.request, self.backends = start.request, start.backends
        self.control: Control | None = Control() if start.controlled else None
        if self.control is not None:
            self.control.lasts = start.lasts
        self.task: asyncio.Task[said.Ended | said.Failed] | None = None
        self.waits = True
        """Whether it has no place yet."""
        self.told_isolation = False


class _Link:
    """What one client has asked for, and what it has not been told yet."""

    def __init__(self) -> None:
        self.runs: dict[str, _Run] = {}
        self.taken = self.number = 0
        self.items: deque[tuple[said.News1, int]] = deque()
        self.unseen: said.News | None = None
        """The last news, until the client has said that they arrived."""
        self.wake, self.urgent = asyncio.Event(), asyncio.Event()
        self.heard = time.monotonic()
        self.receiving = 0

    def tell(self, item: said.News1) -> None:
        size = len(item.data) if isinstance(item, said.Output) else said.encoded_size(item)
        self.items.append((item, size))
        self.wake.set()
        if not isinstance(item, said.Output):
            self.urgent.set()

    def next_items(self) -> tuple[said.News1, ...]:
        items, size = list[said.News1](), 0
        while self.items and (not items or size + self.items[0][1] <= said.MAX_BATCH):
            item, own = self.items.popleft()
            items.append(item)
            size += own
        if not self.items:
            self.wake.clear()
            self.urgent.clear()
        return tuple(items)


class Node:
    """Runs the orders of all clients on `backends`, at most `capacity` at a time; as many more may wait.

    `id` is Ray's id of the node, `key` the key of the cluster. `offer` names the backends that clients may use, in the
    order in which they are tried. `environments` returns the digests of the environments that are here.
    """

    def __init__(
        self,
        backends: Mapping[str, Backend],
        *,
        id: str,  # noqa: A002
        key: bytes,
        offer: tuple[str, ...],
        capacity: int,
        versions: Mapping[str, str],
        environments: Callable[[], frozenset[str]] = frozenset,
        lease: float = said.LEASE,
    ) -> None:
        self._backends, self._id, self._seal = backends, id, said.Seal(key)
        self._offer, self._capacity, self._lease = offer, capacity, lease
        self._environments = environments
        self._versions = {"python": platform.python_version(), "kernel": platform.release(), **versions}
        self._offered: tuple[said.Offered, ...] | None = None
        self._probing = asyncio.Lock()
        self._links: dict[bytes, _Link] = {}
        self._places = asyncio.Semaphore(capacity)
        self._running = self._queued = self._ended = 0
        self._ends: deque[float] = deque(maxlen=100_000)
        self._draining = False
        self._blobs: OrderedDict[str, bytes] = OrderedDict()
        self._watching: asyncio.Task[None] | None = None

    async def call(self, data: bytes) -> bytes:
        """Answer a sealed call; with nothing if it is not one that was sealed for this node."""
        try:
            link, call, nonce = self._seal.open_call(self._id, data)
        except said.NotOurs as error:
            tell(WARNING, "cluster.refused", why=str(error))
            return b""
        return self._seal.answer(self._id, nonce, await self._answer(link, call))

    async def _answer(self, name: bytes, call: said.Call) -> said.Answer:
        if isinstance(call, said.Ask):
            if call.drain is not None:
                self._draining = call.drain
            return await self._about()
        if isinstance(call, said.Hello):
            if self._watching is None:
                self._watching = asyncio.create_task(self._watch())
            about = await self._about()
            name = os.urandom(said.LINK_BYTES)
            self._links[name] = _Link()
            return said.Welcome(link=name, about=about)
        link = self._links.get(name)
        if link is None:
            return said.Unknown()
        link.heard = time.monotonic()
        match call:
            case said.Send():
                if call.number == link.taken + 1:  # else it was repeated, because our answer was lost
                    link.taken = call.number
                    for order in call.orders:
                        self._obey(link, order)
                return said.Taken(number=link.taken)
            case said.Receive():
                return await self._news(link, call.seen)
            case said.Bye():
                await self._drop(name)
                return said.Taken()

    # --- news ---

    async def _news(self, link: _Link, seen: int) -> said.News:
        if link.unseen is not None and seen != link.unseen.number:
            return link.unseen
        link.unseen = None
        link.receiving += 1
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(said.POLL):
                    await link.wake.wait()
                async with asyncio.timeout(_GATHER):
                    await link.urgent.wait()
        finally:
            link.receiving -= 1
            link.heard = time.monotonic()
        if link.unseen is None:  # else a repeated call was answered meanwhile
            link.number += 1
            link.unseen = said.News(number=link.number, load=self._load(), items=link.next_items())
        return link.unseen

    def _load(self) -> said.Load:
        return said.Load(capacity=self._capacity, running=self._running, queued=self._queued, draining=self._draining)

    async def _about(self) -> said.About:
        async with self._probing:
            if self._offered is None:
                self._offered = tuple([await self._probe(name) for name in self._offer])
        since = time.monotonic() - _RATE_OVER
        return said.About(
            node=self._id,
            host=socket.gethostname(),
            pid=os.getpid(),
            versions=self._versions,
            load=self._load(),
            ended=self._ended,
            rate=sum(1 for at in self._ends if at > since) / _RATE_OVER,
            armed=metrics.pooled().get("armed", 0),
            backends=self._offered,
        )

    async def _probe(self, name: str) -> said.Offered:
        """Run the smallest program on a backend, and return what it is found to offer."""
        if name not in self._backends:
            return said.Offered(name=name, why_not="no backend has this name")
        try:
            backend = self._backends[name]
            if not backend.reach.within(NOTHING):
                return said.Offered(name=name, why_not=f"its runs could touch {backend.reach.words} of the node")
            can = backend.capabilities()
            language, code = next(each for each in _PROBES if each[0] in can.languages)
            outcome = await backend.run(Request(code=code, language=language), lambda *_: True)
        except Exception as error:  # whatever is wrong with it, the node goes on with the others
            return said.Offered(name=name, why_not=str(error) or type(error).__name__)
        if outcome.exit_code != 0:
            return said.Offered(name=name, why_not=outcome.error or f"a trial ended with {outcome.status.value}")
        return said.offered(name, can, outcome.isolation, self._environments())

    # --- orders ---

    def _obey(self, link: _Link, order: said.Order) -> None:
        match order:
            case said.Start():
                self._start(link, order)
            case said.Blob(data=data):
                self._keep(data)
            case said.Cancel(id=name):
                if (run := link.runs.get(name)) is not None and run.task is not None:
                    run.task.cancel()
            case said.Input(id=name, data=data):
                if (run := link.runs.get(name)) is not None and run.control is not None:
                    if data:
                        run.control.post(data)
                    else:
                        run.control.end_input()
            case said.Signal(id=name, number=number):
                if (run := link.runs.get(name)) is not None and run.control is not None:
                    with suppress(RedomaError):  # it has just ended
                        run.control.signal(number)

    def _keep(self, data: bytes) -> None:
        self._blobs[hashlib.sha256(data).hexdigest()] = data
        while len(self._blobs) > 1 and sum(map(len, self._blobs.values())) > _MAX_BLOBS:
            self._blobs.popitem(last=False)

    def _start(self, link: _Link, start: said.Start) -> None:
        name = start.request.id
        if self._draining:
            link.tell(said.Failed(id=name, kind="draining"))
            return
        if self._running + self._queued >= 2 * self._capacity:
            link.tell(said.Failed(id=name, kind="busy"))
            return
        if missing := {digest for digest in start.blobs.values() if digest not in self._blobs}:
            link.tell(said.Failed(id=name, kind="blobs", blobs=tuple(sorted(missing))))
            return
        if start.blobs:
            files = {path: self._blobs[digest] for path, digest in start.blobs.items()}
            for digest in start.blobs.values():
                self._blobs.move_to_end(digest)
            whole = msgspec.structs.replace(start.request, files={**start.request.files, **files})
            start = msgspec.structs.replace(start, request=whole)
        run = link.runs[name] = _Run(start)
        self._queued += 1
        run.task = asyncio.create_task(self._run(link, run))
        # Not at the end of the task: one that is cancelled before its first step does nothing at all.
        run.task.add_done_callback(lambda task: self._finish(link, run, task))

    async def _run(self, link: _Link, run: _Run) -> said.Ended | said.Failed:
        """Take a run to its end. Returns what to tell its client."""
        name = run.request.id
        try:
            async with self._places:
                run.waits = False
                self._queued -= 1
                self._running += 1
                try:
                    return said.ended(name, await self._execute(link, run))
                finally:
                    self._running -= 1
        except asyncio.CancelledError as error:
            return said.Failed(id=name, kind="cancelled", network=kept_requests(error))
        except RedomaError as error:
            kind = "unsupported" if isinstance(error, Unsupported) else "error"
            network = kept_requests(error)
            return said.Failed(id=name, kind=kind, what=error.what, why=error.why, next=error.next, network=network)
        except Exception as error:  # a bug: the client must hear of it, and not wait for ever
            return said.Failed(id=name, kind="error", what=f"the node failed: {type(error).__name__}", why=str(error))

    def _finish(self, link: _Link, run: _Run, task: asyncio.Task[said.Ended | said.Failed]) -> None:
        """Tell the client how a run ended."""
        name = run.request.id
        self._queued -= run.waits
        del link.runs[name]
        self._ended += 1
        self._ends.append(time.monotonic())
        link.tell(said.Failed(id=name, kind="cancelled") if task.cancelled() else task.result())

    async def _execute(self, link: _Link, run: _Run) -> Outcome:
        request = run.request
        printed = 0

        def sink(stream: Stream, data: bytes) -> bool:
            nonlocal printed
            if run.control is not None and run.control.isolation is not None and not run.told_isolation:
                run.told_isolation = True
                link.tell(said.Began(id=request.id, isolation=run.control.isolation))
            printed += len(data)
            # A little more than is allowed, so that the client's own count is over it, too.
            link.tell(said.Output(id=request.id, stream=stream, data=data))
            return printed <= request.limits.output_total

        return await self._backend_for(run).run(request, sink, run.control)

    def _backend_for(self, run: _Run) -> Backend:
        """Return the first backend that offers what a request needs. Raises `Unsupported`."""
        why: list[str] = []
        for offered in self._offered or ():
            if offered.name in run.backends and not offered.why_not:
                unmet = unmet_needs(offered.capabilities, run.request, controlled=run.control is not None)
                if not unmet:
                    return self._backends[offered.name]
                why.append(f"{offered.name} doesn't offer {', '.join(unmet)}")
        raise Unsupported("this node can't run the request", why="; ".join(why) or "it offers none of the backends")

    # --- ends ---

    async def _watch(self) -> None:
        """End what belongs to clients that have not been heard of."""
        while True:
            await asyncio.sleep(self._lease / 6)
            now = time.monotonic()
            for name, link in list(self._links.items()):
                if not link.receiving and now - link.heard > self._lease:
                    await self._drop(name)

    async def _drop(self, name: bytes) -> None:
        link = self._links.pop(name, None)
        if link is None:
            return
        tasks = [run.task for run in link.runs.values() if run.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def aclose(self) -> None:
        """End everything, and release what the backends keep warm."""
        if self._watching is not None:
            self._watching.cancel()
        for name in list(self._links):
            await self._drop(name)
        for offered in self._offered or ():
            if not offered.why_not:
                await self._backends[offered.name].aclose()


def lost(why: str) -> BackendError:
    """Return the error for a run that its node took with it."""
    return BackendError(
        "the node that ran it was lost",
        why=why,
        next="check whether it had an effect, then run it again; `redoma cluster status` lists the nodes",
    )
