"""A cluster as a backend: sends requests to its nodes, and decides what happens to a run whose node is lost."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import reduce

import msgspec

from ...lib.errors import BackendError, BackendUnavailable, Unsupported
from ...models import Isolation, Request, Status, Stream
from ...models.reach import NOTHING
from ...telemetry import WARNING, tell
from ..base import Capabilities, Control, Outcome, Sink, keep_requests
from . import protocol
from .hub import Cluster, Flight, Hub, Parcel, Told
from .link import Lost

_MAX_REPEATED = 256 << 10
"""Maximum output per stream, in bytes, after which a run can still be retried: the retry must print the same again."""


class RayBackend:
    """Runs requests on the nodes of a Ray cluster.

    `find` returns the cluster, and raises `BackendUnavailable` if there is none. `backends`: which backends of a node
    may be used. `require`: isolation layers that every run must have. `queue`: how many runs may wait for a node.
    `packed` takes the digest of an environment and returns a function that yields it in pieces, or None if this machine
    doesn't have it. `python`: the interpreter that the environments of this machine are for.
    """

    name = "ray"
    reach = NOTHING

    def __init__(
        self,
        find: Callable[[], Cluster],
        *,
        backends: Iterable[str] = ("jail", "docker"),
        require: Iterable[str] = (),
        queue: int = 1000,
        packed: Callable[[str], Callable[[], Iterator[bytes]] | None] = lambda digest: None,
        python: str = "",
    ) -> None:
        self._find, self._packed, self._python = find, packed, python
        self._backends, self._require, self._queue = tuple(backends), tuple(require), queue
        self._hub: Hub | None = None
        self._images: dict[str, NodeImage] = {}
        self._lock = threading.Lock()

    def _connected(self) -> Hub:
        """Return the hub, connected. Raises `BackendUnavailable`."""
        with self._lock:
            if self._hub is None:
                self._hub = Hub(self._find(), self._queue, self._python)
            hub = self._hub
        if hub.pid != os.getpid():
            raise BackendUnavailable(
                "the cluster can't be used in a forked process",
                why="Ray's connection belongs to its parent",
                next="make the executor in the child",
            )
        try:
            hub.wait()
        except BackendUnavailable:
            with self._lock:
                if self._hub is hub:
                    self._hub = None  # the next run tries again
            raise
        return hub

    def capabilities(self) -> Capabilities:
        """Return what the nodes offer together; each run goes to a node that offers all that it needs. Raises
        `BackendUnavailable` if no node can run anything.
        """
        hub = self._connected()
        abouts = hub.abouts()
        offers = [
            each for about in abouts for each in about.backends if each.name in self._backends and not each.why_not
        ]
        if not offers:
            why = [f"node {about.node[:8]}: {_why_nothing(about, self._backends)}" for about in abouts]
            raise BackendUnavailable(
                "the cluster has no node for this",
                why="; ".join(filter(None, [*why, hub.problems])) or "it has none that runs anything of Redoma",
                next="see `redoma cluster status`",
            )
        layers = reduce(lambda found, offer: {**offer.isolation.layers, **found}, offers, dict[str, str]())
        missing = {name for offer in offers for name in offer.isolation.missing} - set(layers)
        abilities = frozenset[str]().union(*(offer.abilities for offer in offers))
        offered = protocol.Offered(
            name=self.name,
            languages=frozenset[str]().union(*(offer.languages for offer in offers)),
            isolation=Isolation(layers=layers, missing=tuple(sorted(missing))),
            limits=frozenset[str]().union(*(offer.limits for offer in offers)),
            abilities=abilities,
        )
        copies = any(offer.sessions for offer in offers)
        return msgspec.structs.replace(offered.capabilities, image=self._new_image if copies else None)

    def _new_image(self, size: int) -> NodeImage:
        image = NodeImage(self._connected(), size, self._images)
        self._images[image.name] = image
        return image

    async def run(self, request: Request, sink: Sink, control: Control | None = None) -> Outcome:
        hub = self._connected()
        try:
            first = _Attempt(hub, self._parcel(request, control), sink, control, self._images)
            try:
                return await first.run()
            except Lost as gone:
                if first.why_not:
                    raise _lost(f"{gone}; {first.why_not}") from gone
                tell(WARNING, "cluster.retried", run=request.id, why=str(gone))
            second = _Attempt(hub, self._parcel(request, control), sink, control, self._images, printed=first.printed)
            try:
                return await second.run()
            except Lost as gone:
                raise _lost(f"{gone}; it was the second node") from gone
        finally:
            if control is not None:
                control.close()

    def _parcel(self, request: Request, control: Control | None) -> Parcel:
        """Return the order for a request, with its large files and its environment separate. Raises `Unsupported`."""
        blobs = dict[str, bytes]()
        names = dict[str, str]()
        for path, data in request.files.items():
            if len(data) >= protocol.BLOB:
                names[path] = hashlib.sha256(data).hexdigest()
                blobs[names[path]] = data
        files = {path: data for path, data in request.files.items() if path not in names}
        require = tuple(dict.fromkeys((*request.require, *self._require)))
        start = protocol.Start(
            request=msgspec.structs.replace(request, files=files, require=require),
            backends=self._backends,
            blobs=names,
            controlled=control is not None,
            lasts=control is not None and control.lasts,
            session=control is not None and control.session,
            copy_of=control.copy_of if control is not None else "",
        )
        try:
            protocol.encoded_size(start)
        except UnicodeEncodeError as error:
            raise Unsupported(
                "ray can't run this request",
                why="it holds text that is not Unicode, which can't be sent to a node",
                next="pass such bytes as a file or as input",
            ) from error
        if request.uses is not None and request.uses.interpreter is not None:
            raise Unsupported(
                "ray can't run this request",
                why=f"its environment is for {request.uses.interpreter.path}, an interpreter of this machine",
                next="make it for the interpreter that Redoma runs on: redoma env create, without --python",
            )
        packed = self._packed(request.uses.digest) if request.uses is not None else None
        return Parcel(start, blobs, packed)

    async def aclose(self) -> None:
        with self._lock:
            hub, self._hub = self._hub, None
        if hub is not None and hub.pid == os.getpid():
            await asyncio.to_thread(hub.close)


def _why_nothing(about: protocol.About, backends: tuple[str, ...]) -> str:
    why = [f"{each.name}: {each.why_not}" for each in about.backends if each.why_not and each.name in backends]
    return ", ".join(why) or f"it offers none of {', '.join(backends)}"


class NodeImage:
    """An image on the node of a session, from which copies are made there: see `backends.base.Image`. Here it is only a
    name. `images`: all images that haven't been closed, by name.
    """

    def __init__(self, hub: Hub, size: int, images: dict[str, NodeImage]) -> None:
        self._hub, self.size, self._images = hub, size, images
        self.name = secrets.token_hex(16)
        self.flight: Flight | None = None
        """The session; None until the image has been passed to it."""

    @property
    def to_write(self) -> str:
        return self.name

    def seal(self) -> None:
        """Nothing to do here: the node seals it before the first copy."""

    @contextmanager
    def to_read(self) -> Iterator[str]:
        yield self.name

    def close(self) -> None:
        self._images.pop(self.name, None)
        if self.flight is not None:
            with suppress(BackendUnavailable):  # the hub is being closed, which tells the node
                self._hub.order(self.flight, protocol.CloseImage(name=self.name))


class _Attempt:
    """One attempt to run something on a node. Lives on the caller's event loop."""

    def __init__(
        self,
        hub: Hub,
        parcel: Parcel,
        sink: Sink,
        control: Control | None,
        images: Mapping[str, NodeImage],
        *,
        printed: dict[Stream, bytes] | None = None,
    ) -> None:
        self._images = images
        self._hub, self._sink, self._control = hub, sink, control
        self._loop, self._told = asyncio.get_running_loop(), asyncio.Queue[Told]()
        self._flight, self._placed = Flight(parcel, self._deliver), asyncio.Event()
        if (origin := self._images.get(parcel.start.copy_of)) is not None:
            self._flight.beside = origin.flight
        self._flight.placed = lambda: self._on_loop(self._placed.set)
        self.printed: dict[Stream, bytes] = {}
        """What it has printed, until that exceeds `_MAX_REPEATED`."""
        self._too_much = False
        self._again = dict(printed or {})
        """The rest of what the previous attempt printed: this one has to print it too, and it isn't passed on again."""
        self._flooded = False

    def _deliver(self, item: Told) -> None:
        self._on_loop(self._told.put_nowait, item)

    def _on_loop(self, work: Callable[..., object], *arguments: object) -> None:
        with suppress(RuntimeError):  # the caller's loop is closed
            self._loop.call_soon_threadsafe(work, *arguments)

    @property
    def why_not(self) -> str:
        """Why it can't be tried on another node; empty if it can."""
        request = self._flight.request
        if request.network:
            return "it may have reached other hosts, so it was not tried again"
        if self._control is not None:
            return "it takes live input, which can't be sent again"
        return "it had printed too much to be tried again" if self._too_much else ""

    async def run(self) -> Outcome:
        """Return the outcome. Raises `Lost` if the node was lost, and `BackendError` if the node could not run it."""
        self._hub.submit(self._flight)
        feeding = asyncio.create_task(self._feed(self._control)) if self._control is not None else None
        try:
            return await self._follow()
        except asyncio.CancelledError as cancelled:
            await self._end(cancelled)
            raise
        finally:
            if feeding is not None:
                feeding.cancel()

    async def _follow(self) -> Outcome:
        while True:
            item = await self._told.get()
            match item:
                case protocol.Output(stream=stream, data=data):
                    self._print(stream, data)
                case protocol.Began(isolation=isolation):
                    if self._control is not None:
                        self._control.isolation = isolation
                case protocol.Ended():
                    return self._outcome(protocol.outcome_of(item))
                case protocol.Failed():
                    if self._flooded and item.kind == "cancelled":
                        return Outcome(status=Status.OUTPUT, isolation=self._isolation(), network=item.network)
                    failure = _failure(item)
                    keep_requests(failure, item.network)
                    raise failure
                case BaseException():
                    raise item

    def _outcome(self, outcome: Outcome) -> Outcome:
        if any(self._again.values()):
            raise _lost("a node was lost, and on another it printed less than before, so its output can't be trusted")
        if self._flooded and outcome.status is not Status.OUTPUT:
            return msgspec.structs.replace(outcome, status=Status.OUTPUT, limit="output_total", value=None)
        return outcome

    def _isolation(self) -> Isolation:
        link = self._flight.link
        offers = link.about.backends if link is not None and link.about is not None else ()
        return next((each.isolation for each in offers if not each.why_not), Isolation())

    def _print(self, stream: Stream, data: bytes) -> None:
        if before := self._again.get(stream, b""):
            same = min(len(before), len(data))
            if before[:same] != data[:same]:
                self._hub.cancel(self._flight)
                raise _lost("a node was lost, and on another it printed something else, so its output can't be trusted")
            self._again[stream], data = before[same:], data[same:]
            if not data:
                return
        if not self._too_much:
            self.printed[stream] = self.printed.get(stream, b"") + data
            self._too_much = len(self.printed[stream]) > _MAX_REPEATED
        if not self._sink(stream, data) and not self._flooded:
            self._flooded = True
            self._hub.cancel(self._flight)

    async def _feed(self, control: Control) -> None:
        """Send input and signals once a node is chosen. They are queued behind the order that starts the run."""
        name = self._flight.request.id
        await self._placed.wait()
        control.deliver_signals(lambda number: self._hub.order(self._flight, protocol.Signal(id=name, number=number)))
        while data := await control.read():
            given = protocol.Input(id=name, data=data)
            if isinstance(control.passed, str) and (image := self._images.get(control.passed)) is not None:
                room = image.size if image.flight is None else 0
                image.flight = image.flight or self._flight
                given = protocol.Input(id=name, data=data, image=image.name, room=room)
            self._hub.order(self._flight, given)
        self._hub.order(self._flight, protocol.Input(id=name, data=b""))

    async def _end(self, cancelled: asyncio.CancelledError) -> None:
        """Make the node kill the run, and wait until it has."""
        with suppress(BackendUnavailable):  # the hub is being closed, which tells the node and us
            self._hub.cancel(self._flight)
        while True:
            try:
                item = await self._told.get()
            except asyncio.CancelledError:
                continue  # cancelled again: still wait until nothing is left of the run
            if isinstance(item, protocol.Failed):
                keep_requests(cancelled, item.network)
            elif isinstance(item, protocol.Ended):
                keep_requests(cancelled, item.outcome.network)
            if not isinstance(item, protocol.Output | protocol.Began):
                return


def _lost(why: str) -> BackendError:
    """Return the error for a run that was lost with its node."""
    return BackendError(
        "the node that ran it was lost",
        why=why,
        next="check whether it had an effect, then run it again; `redoma cluster status` lists the nodes",
    )


def _failure(failed: protocol.Failed) -> BackendError:
    kind = Unsupported if failed.kind == "unsupported" else BackendError
    if failed.kind == "cancelled":
        return BackendError("the run was ended", why="its node was told to", next="run it again")
    return kind(failed.what, why=failed.why, next=failed.next)
