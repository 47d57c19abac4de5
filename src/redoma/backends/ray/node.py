"""A node of the cluster, without Ray: obeys the orders of its clients, and keeps news for them.

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
from collections import ChainMap, OrderedDict, deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress

import msgspec

from ...lib.errors import BackendError, RedomaError, Unsupported
from ...models import NetworkRequest, Request, Stream
from ...models.reach import NOTHING
from ...telemetry import WARNING, metrics, tell
from ..base import Backend, Control, Outcome, kept_requests
from ..image import MemoryImage
from . import protocol
from .arrivals import Arrival as Arrival
from .arrivals import Arrivals, ClientGone
from .line import Listener

_GATHER = 0.01  # seconds to wait after the first output, to send the rest of a burst, or the end, with it
_RATE_OVER = 10.0  # seconds
_MAX_BLOBS = 256 << 20  # bytes of files that are kept for later runs
_PROBES = (("python", "1"), ("bash", ":"))  # the smallest program in each language


class _Run:
    """A run of one link."""

    def __init__(self, start: protocol.Start) -> None:
        self.request, self.backends, self.session = start.request, start.backends, start.session
        self.control: Control | None = Control() if start.controlled else None
        if self.control is not None:
            self.control.lasts = start.lasts
        self.task: asyncio.Task[protocol.Ended | protocol.Failed] | None = None
        self.waits = True
        """Whether it still waits for a free place."""
        self.told_isolation = False
        self.failure: RedomaError | None = None
        """Why the node itself ended it; None if it didn't."""


class _Image:
    """An image of a session on this node, and the descriptors opened on it for copies."""

    def __init__(self, size: int) -> None:
        self.image, self._opened = MemoryImage(size), ExitStack()

    def opened(self) -> int:
        return self._opened.enter_context(self.image.to_read())

    def close(self) -> None:
        self._opened.close()
        self.image.close()


class _Link:
    """The node's side of a link: the runs and images of one client, and the news that it hasn't received yet."""

    def __init__(self) -> None:
        self.runs: dict[str, _Run] = {}
        self.taken = self.number = 0
        self.items: deque[tuple[protocol.News1, int]] = deque()
        self.unseen: protocol.News | None = None
        """The last news sent, until the client confirms that it has arrived."""
        self.wake, self.urgent = asyncio.Event(), asyncio.Event()
        self.heard = time.monotonic()
        self.receiving = 0
        self.blobs: dict[str, bytes] = {}
        """The files that were sent since the last start: they are for the next one, and not given up before."""
        self.images: dict[str, _Image] = {}

    def tell(self, item: protocol.News1) -> None:
        size = len(item.data) if isinstance(item, protocol.Output) else protocol.encoded_size(item)
        self.items.append((item, size))
        self.wake.set()
        if not isinstance(item, protocol.Output):
            self.urgent.set()

    def next_items(self) -> tuple[protocol.News1, ...]:
        items, _ = protocol.take_batch(self.items)
        if not self.items:
            self.wake.clear()
            self.urgent.clear()
        return items


class Node:
    """Runs the orders of all clients on `backends`, at most `capacity` at a time; as many more may wait.

    `id` is Ray's id of the node, `key` the key of the cluster. `offer` names the backends that clients may use, in the
    order in which they are tried. `sessions` are backends for sessions that can be copied, each under the name of the
    backend whose isolation it has. `environments` returns the digests of the environments on this node, which are for
    the interpreter `python`; `receive` takes the digest of another one and begins to receive it. `address` is the IP
    address to listen on for direct connections; empty for none.
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
        sessions: Mapping[str, Backend] | None = None,
        environments: Callable[[], frozenset[str]] = frozenset,
        receive: Callable[[str], Arrival] | None = None,
        python: str = "",
        address: str = "",
        lease: float = protocol.LEASE,
    ) -> None:
        self._sessions = dict(sessions or {})
        self._backends, self._id, self._seal = backends, id, protocol.Seal(key)
        self._offer, self._capacity, self._lease = offer, capacity, lease
        self._environments, self._python = environments, python if receive is not None else ""
        self._arrivals = Arrivals(environments, receive)
        self._versions = {"python": platform.python_version(), "kernel": platform.release(), **versions}
        self._offered: tuple[protocol.Offered, ...] | None = None
        self._probing = asyncio.Lock()
        self._links: dict[bytes, _Link] = {}
        self._places = asyncio.Semaphore(capacity)
        self._running = self._queued = self._ended = 0
        self._ends: deque[float] = deque(maxlen=100_000)
        self._draining = False
        self._blobs: OrderedDict[str, bytes] = OrderedDict()
        self._watching: asyncio.Task[None] | None = None
        self._address, self._port = address, 0
        self._listener = Listener(self.call, self._proof)

    async def call(self, data: bytes) -> bytes:
        """Return the sealed answer to a sealed call; empty if the call wasn't sealed for this node."""
        try:
            link, call, nonce = self._seal.open_call(self._id, data)
        except protocol.NotOurs as error:
            tell(WARNING, "cluster.refused", why=str(error))
            return b""
        return self._seal.answer(self._id, nonce, await self._answer(link, call))

    async def _answer(self, name: bytes, call: protocol.Call) -> protocol.Answer:
        if isinstance(call, protocol.Ask):
            if call.drain is not None:
                self._draining = call.drain
            return await self._about()
        if isinstance(call, protocol.Hello):
            if self._watching is None:
                self._watching = asyncio.create_task(self._watch())
            about = await self._about()
            name = os.urandom(protocol.LINK_BYTES)
            self._links[name] = _Link()
            return protocol.Welcome(link=name, about=about)
        link = self._links.get(name)
        if link is None:
            return protocol.Unknown()
        link.heard = time.monotonic()
        match call:
            case protocol.Send():
                if call.number == link.taken + 1:  # else it was repeated, because our answer was lost
                    link.taken = call.number
                    for order in call.orders:
                        self._obey(link, order)
                return protocol.Taken(number=link.taken)
            case protocol.Receive():
                return await self._news(link, call.seen)
            case protocol.Bye():
                await self._drop(name)
                return protocol.Taken()
            case protocol.Prove():
                return protocol.Unknown()  # it belongs at the beginning of a connection

    def _proof(self, data: bytes, challenge: bytes) -> bytes | None:
        """Return the sealed answer to a call that returns the challenge of a connection; None if it doesn't."""
        try:
            _, call, nonce = self._seal.open_call(self._id, data)
        except protocol.NotOurs:
            return None
        if not isinstance(call, protocol.Prove) or call.challenge != challenge:
            return None
        return self._seal.answer(self._id, nonce, protocol.Taken())

    async def _listen(self) -> None:
        if not self._address or self._port:
            return
        try:
            self._port = await self._listener.open(self._address)
        except OSError as error:  # calls go through Ray then
            tell(WARNING, "cluster.no_direct_connections", address=self._address, why=str(error))
            self._address = ""

    # --- news ---

    async def _news(self, link: _Link, seen: int) -> protocol.News:
        if link.unseen is not None and seen != link.unseen.number:
            return link.unseen
        link.unseen = None
        link.receiving += 1
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(protocol.POLL):
                    await link.wake.wait()
                async with asyncio.timeout(_GATHER):
                    await link.urgent.wait()
        finally:
            link.receiving -= 1
            link.heard = time.monotonic()
        if link.unseen is None:  # else a repeated call was answered meanwhile
            link.number += 1
            link.unseen = protocol.News(number=link.number, load=self._load(), items=link.next_items())
        return link.unseen

    def _load(self) -> protocol.Load:
        return protocol.Load(
            capacity=self._capacity, running=self._running, queued=self._queued, draining=self._draining
        )

    async def _about(self) -> protocol.About:
        async with self._probing:
            await self._listen()
            if self._offered is None:
                self._offered = tuple([await self._probe(name) for name in self._offer])
        since = time.monotonic() - _RATE_OVER
        return protocol.About(
            node=self._id,
            host=socket.gethostname(),
            pid=os.getpid(),
            versions=self._versions,
            load=self._load(),
            ended=self._ended,
            rate=sum(1 for at in self._ends if at > since) / _RATE_OVER,
            armed=metrics.pooled().get("armed", 0),
            backends=self._offered,
            python=self._python,
            port=self._port,
            address=self._address,
        )

    async def _probe(self, name: str) -> protocol.Offered:
        """Run the smallest program on a backend, and return what the backend offers, or why it doesn't work."""
        if name not in self._backends:
            return protocol.Offered(name=name, why_not="no backend has this name")
        try:
            backend = self._backends[name]
            if not backend.reach.within(NOTHING):
                return protocol.Offered(name=name, why_not=f"its runs could touch {backend.reach.words} of the node")
            can = backend.capabilities()
            language, code = next(each for each in _PROBES if each[0] in can.languages)
            outcome = await backend.run(Request(code=code, language=language), lambda *_: True)
        except Exception as error:  # whatever is wrong with it, the node goes on with the others
            return protocol.Offered(name=name, why_not=str(error) or type(error).__name__)
        if outcome.exit_code != 0:
            return protocol.Offered(name=name, why_not=outcome.error or f"a trial ended with {outcome.status.value}")
        return protocol.offered(name, can, outcome.isolation, self._environments(), sessions=name in self._sessions)

    # --- orders ---

    def _obey(self, link: _Link, order: protocol.Order) -> None:
        match order:
            case protocol.Start():
                self._start(link, order)
                link.blobs.clear()
            case protocol.Blob(data=data):
                link.blobs[digest := hashlib.sha256(data).hexdigest()] = data
                self._keep(digest, data)
            case protocol.EnvironmentPart(digest=digest, data=data):
                self._arrivals.take(link, digest, data)
            case protocol.EnvironmentEnd(digest=digest, whole=whole):
                self._arrivals.end(link, digest, whole=whole)
            case protocol.Cancel(id=name):
                if (run := link.runs.get(name)) is not None and run.task is not None:
                    run.task.cancel()
            case protocol.Input(id=name):
                if (run := link.runs.get(name)) is not None and run.control is not None:
                    self._feed(link, run, run.control, order)
            case protocol.CloseImage(name=name):
                if (image := link.images.pop(name, None)) is not None:
                    image.close()
            case protocol.Signal(id=name, number=number):
                if (run := link.runs.get(name)) is not None and run.control is not None:
                    with suppress(RedomaError):  # it has just ended
                        run.control.signal(number)

    def _feed(self, link: _Link, run: _Run, control: Control, given: protocol.Input) -> None:
        if not given.data:
            control.end_input()
        elif not given.image:
            control.post(given.data)
        else:
            try:
                if given.room:
                    link.images[given.image] = _Image(given.room)
                image = link.images[given.image]
                control.post(given.data, image.image.to_write if given.room else image.opened())
            except (RedomaError, OSError, KeyError) as error:  # the session waits for an image that it won't get
                run.failure = BackendError("the session can't be copied", why=str(error), next="close some sessions")
                if run.task is not None:
                    run.task.cancel()

    def _why_no_copy(self, link: _Link, name: str) -> str:
        """Return why a session can't be copied from this image now; empty if it can."""
        if self._draining:
            return "its node is draining"
        if self._running + self._queued >= self._capacity:
            return f"its node has {self._capacity} places, and all are taken"
        if name not in link.images:
            return "its image is gone"
        try:
            link.images[name].image.seal()
        except RedomaError as error:
            return error.why
        return ""

    def _keep(self, digest: str, data: bytes) -> None:
        self._blobs[digest] = data
        self._blobs.move_to_end(digest)
        while len(self._blobs) > 1 and sum(map(len, self._blobs.values())) > _MAX_BLOBS:
            self._blobs.popitem(last=False)

    def _start(self, link: _Link, start: protocol.Start) -> None:
        blobs = ChainMap(link.blobs, self._blobs)
        if (failed := self._why_not(link, start, blobs)) is not None:
            link.tell(failed)
            return
        name = start.request.id
        if start.blobs:
            files = {path: blobs[digest] for path, digest in start.blobs.items()}
            for digest in self._blobs.keys() & start.blobs.values():
                self._blobs.move_to_end(digest)
            whole = msgspec.structs.replace(start.request, files={**start.request.files, **files})
            start = msgspec.structs.replace(start, request=whole)
        run = link.runs[name] = _Run(start)
        self._queued += 1
        run.task = asyncio.create_task(self._run(link, run))
        # A callback, and not a `finally` in the task: a task that is cancelled before its first step runs no code.
        run.task.add_done_callback(lambda task: self._finish(link, run, task))

    def _why_not(self, link: _Link, start: protocol.Start, blobs: Mapping[str, bytes]) -> protocol.Failed | None:
        """Return why a run can't be started now; None if it can."""
        name, uses = start.request.id, start.request.uses
        if start.copy_of and (why := self._why_no_copy(link, start.copy_of)):
            # It can't go to another node, and must not wait: sessions of its own family may have taken all places.
            what, after = "the session can't be forked", "close some sessions, or see `redoma cluster status`"
            return protocol.Failed(id=name, kind="error", what=what, why=why, next=after)
        if self._draining:
            return protocol.Failed(id=name, kind="draining")
        if self._running + self._queued >= 2 * self._capacity:
            return protocol.Failed(id=name, kind="busy")
        if missing := {digest for digest in start.blobs.values() if digest not in blobs}:
            return protocol.Failed(id=name, kind="blobs", blobs=tuple(sorted(missing)))
        # The path of an interpreter on another machine means nothing here.
        if uses is not None and (uses.interpreter is not None or not self._arrivals.expects(uses.digest)):
            return protocol.Failed(id=name, kind="environment")
        return None

    async def _run(self, link: _Link, run: _Run) -> protocol.Ended | protocol.Failed:
        """Execute a run to its end; return what to tell its client."""
        name, uses = run.request.id, run.request.uses
        try:
            if uses is not None:
                await self._arrivals.wait_for(uses.digest)
            async with self._places:
                run.waits = False
                self._queued -= 1
                self._running += 1
                try:
                    return protocol.ended(name, await self._execute(link, run))
                finally:
                    self._running -= 1
        except asyncio.CancelledError as error:
            if run.failure is not None:
                return _failed(name, run.failure, kept_requests(error))
            return protocol.Failed(id=name, kind="cancelled", network=kept_requests(error))
        except ClientGone:
            return protocol.Failed(id=name, kind="environment")  # this client sends it, or finds that it can't
        except RedomaError as error:
            return _failed(name, error, kept_requests(error))
        except Exception as error:  # a bug: the client must hear of it, and not wait for ever
            return protocol.Failed(
                id=name, kind="error", what=f"the node failed: {type(error).__name__}", why=str(error)
            )

    def _finish(self, link: _Link, run: _Run, task: asyncio.Task[protocol.Ended | protocol.Failed]) -> None:
        """Tell the client how a run ended."""
        name = run.request.id
        self._queued -= run.waits
        del link.runs[name]
        self._ended += 1
        self._ends.append(time.monotonic())
        link.tell(protocol.Failed(id=name, kind="cancelled") if task.cancelled() else task.result())

    async def _execute(self, link: _Link, run: _Run) -> Outcome:
        request = run.request
        printed = 0

        def sink(stream: Stream, data: bytes) -> bool:
            nonlocal printed
            if run.control is not None and run.control.isolation is not None and not run.told_isolation:
                run.told_isolation = True
                link.tell(protocol.Began(id=request.id, isolation=run.control.isolation))
            printed += len(data)
            # The data that exceeds the limit is sent, too, so that the client's own count also exceeds it.
            link.tell(protocol.Output(id=request.id, stream=stream, data=data))
            return printed <= request.limits.output_total

        return await self._backend_for(run).run(request, sink, run.control)

    def _backend_for(self, run: _Run) -> Backend:
        """Return the first backend that offers what a request needs. Raises `Unsupported`."""
        why: list[str] = []
        for offered in self._offered or ():
            if offered.name in run.backends and not offered.why_not:
                unmet = offered.unmet(run.request, controlled=run.control is not None, session=run.session)
                if not unmet:
                    return (self._sessions if run.session else self._backends)[offered.name]
                why.append(f"{offered.name} doesn't offer {', '.join(unmet)}")
        raise Unsupported("this node can't run the request", why="; ".join(why) or "it offers none of the backends")

    # --- ends ---

    async def _watch(self) -> None:
        """Drop the links of clients that haven't been heard from for a lease, and end their runs."""
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
        await self._arrivals.drop(link)
        for image in link.images.values():
            image.close()

    async def aclose(self) -> None:
        """End everything, and release what the backends keep warm."""
        if self._watching is not None:
            self._watching.cancel()
        await self._listener.close()
        for name in list(self._links):
            await self._drop(name)
        for offered in self._offered or ():
            if not offered.why_not:
                await self._backends[offered.name].aclose()
        for cells in self._sessions.values():
            await cells.aclose()


def _failed(run: str, error: RedomaError, network: tuple[NetworkRequest, ...]) -> protocol.Failed:
    kind = "unsupported" if isinstance(error, Unsupported) else "error"
    return protocol.Failed(id=run, kind=kind, what=error.what, why=error.why, next=error.next, network=network)
