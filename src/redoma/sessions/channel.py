"""Our end of the channel to a session's driver. This is the trust boundary: every message may come from an attacker.

Frames and all their parts are bounded, and a head must be one of the messages below. A message about a run that is not
the current one, or that answers no question, is dropped. Values are decoded only by `value_reading.decode`, under its
budget. A session that sends anything else is ended.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Annotated, Any, Literal, Protocol

import msgspec

from ..backends import display
from ..backends.base import Backend, Control, Entry, Outcome, exceeded, uncancellable
from ..lib.errors import BackendError, InvalidRequest
from ..models import Isolation, Request, Stream
from . import frames

PATIENCE = 60.0
"""Seconds that a driver has to start, and to answer a question."""
_MAX_SAID = 4 << 10  # bytes kept of the driver's stderr, which has the traceback of a bug of ours
_MAX_UNREAD = frames.WINDOW + (4 << 20)
"""Bytes of unread output that our driver never exceeds: its window, and what it sends at the end of a run without
regard to the window."""
_Number = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]


class _Said(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="is"):
    """A message from the driver."""


class Ready(_Said, frozen=True, tag="ready"):
    """The driver has started."""


class Out(_Said, frozen=True, tag="out"):
    """Output of a run or of a background process."""

    stream: Stream
    run: _Number = 0
    process: _Number = 0


class Shown(_Said, frozen=True, tag="display"):
    """One display of a run: types and sizes of its representations, whose bytes are the body in this order."""

    run: _Number
    types: Annotated[list[tuple[str, _Number]], msgspec.Meta(max_length=len(display.TYPES))]
    is_value: bool = False


class Done(_Said, frozen=True, tag="done"):
    """A run has ended. The body is the value of its last expression."""

    run: _Number
    exit: Annotated[int, msgspec.Meta(ge=0, le=255)] | None = None
    signal: Annotated[int, msgspec.Meta(ge=1, le=64)] | None = None
    exception: str | None = None
    error: str | None = None
    memory: bool = False
    broken: str = ""
    traceback: str = ""


class Answer(_Said, frozen=True, tag="answer"):
    """The answer to a question of ours."""

    id: _Number
    errno: Annotated[int, msgspec.Meta(ge=1, le=255)] | None = None
    error: str = ""
    size: _Number = 0
    file: str = ""
    pid: _Number = 0


class Exit(_Said, frozen=True, tag="exit"):
    """A background process has ended, with a status as in `subprocess`."""

    process: _Number
    status: Annotated[int, msgspec.Meta(ge=-64, le=255)]


_decoder: msgspec.json.Decoder[Ready | Out | Shown | Done | Answer | Exit] = msgspec.json.Decoder(
    Ready | Out | Shown | Done | Answer | Exit
)


class Listener(Protocol):
    """Receives the messages about one run or process."""

    def out(self, stream: Stream, data: bytes) -> bool:
        """Take output. Returns whether it has been read, so that there is room for more."""

    def shown(self, representations: dict[str, bytes], is_value: bool) -> None: ...

    def done(self, said: Done, value: bytes) -> None: ...

    def exited(self, status: int) -> None: ...


class Channel:
    """The connection to one open session on one backend: `open` it, use it, `close` it."""

    def __init__(self, backend: Backend, request: Request) -> None:
        self._backend, self._request = backend, request
        self._control = Control()
        self._control.lasts = True
        self._reader = frames.Reader()
        self._numbers = itertools.count(1)
        self.runs = itertools.count(1)
        """Numbers for its runs."""
        self._answers: dict[int, asyncio.Future[tuple[Answer, bytes]]] = {}
        self._listeners: dict[tuple[Literal["run", "process"], int], Listener] = {}
        self._said = bytearray()
        self._unread = self._owed = 0
        self._ready = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when nothing of the session is left."""
        self.outcome: Outcome | BackendError | None = None
        """How the session ended."""
        self._closed = ""
        self.malformed = ""
        """Why we ended the session, if it sent an invalid message."""

    @property
    def isolation(self) -> Isolation:
        """The isolation of the session."""
        return self._control.isolation or self._backend.capabilities().isolation

    async def open(self, *first: tuple[dict[str, Any], int]) -> None:
        """Start the session. `first` are messages that it waits for, each with a descriptor to pass. Raises what the
        backend raises, or `BackendError` if the driver does not start."""
        self._task = asyncio.create_task(self._live())
        for head, descriptor in first:
            self._control.post(frames.frame(head), descriptor)
        try:
            async with asyncio.timeout(PATIENCE):
                await self._ready.wait()
        except TimeoutError:
            await self.close()
            raise BackendError("the session did not start", why=f"it said nothing for {PATIENCE:g} s") from None
        except BaseException:
            await self.close()
            raise
        if isinstance(self.outcome, BackendError):
            raise self.outcome
        if self.outcome is not None:
            raise BackendError("the session did not start", why=self._why(self.outcome), next="see `redoma doctor`")

    def _why(self, outcome: Outcome) -> str:
        """Return why it ended, in words."""
        if self.malformed:
            return self.malformed
        if outcome.limit:
            return exceeded(outcome.limit, self._request.limits)
        last = self._said.decode("utf-8", "replace").strip().rpartition("\n")[2]
        return outcome.error or last or f"its Python ended with status {outcome.exit_code}"

    async def _live(self) -> None:
        outcome: Outcome | BackendError = BackendError("the session was ended", why="it was closed")
        try:
            outcome = await self._backend.run(self._request, self._feed, self._control)
        except BackendError as error:
            outcome = error
        finally:
            self.outcome = outcome
            self.ended.set_result(None)
            self._ready.set()
            for future in self._answers.values():
                future.cancel()

    async def close(self, why: str = "it was closed") -> None:
        """End the session: nothing of it is left when this returns. Safe to call twice; the first reason counts."""
        self._closed = self._closed or why
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await uncancellable(asyncio.wait([self._task]))
        if self._task is not None and not self._task.cancelled():
            self._task.exception()  # so that asyncio doesn't report it as never retrieved

    async def read_changes(self, stage: str) -> tuple[Entry, ...]:
        """Return what the session has changed in its project so far: see `Control.read_changes`."""
        if self.ended.done() or self._control.read_changes is None:
            raise self.gone()
        return await self._control.read_changes(stage)

    # --- out of the cell ---

    def _feed(self, stream: Stream, data: bytes) -> bool:
        if stream == "stderr":
            self._said = (self._said + data)[-_MAX_SAID:]
            return True
        if self.malformed:
            return False
        try:
            for head, body in self._reader.feed(data):
                self._take(_decoder.decode(head), body)
        except (frames.Malformed, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self.malformed = f"it sent what is no message of a session ({error}), and was ended"
        return not self.malformed

    def _take(self, said: Any, body: bytes) -> None:
        match said:
            case Out():
                self._count(len(body))
                listener = self._listener(said.run, said.process)
                if listener is None or listener.out(said.stream, body):
                    self.read(len(body))
            case Shown():
                listener = self._listener(said.run, 0)
                if sum(size for _, size in said.types) != len(body):
                    raise frames.Malformed("a display whose parts are not its size")
                if listener is not None:
                    listener.shown(_parts(said.types, body), said.is_value)
            case Done():
                listener = self._listeners.pop(("run", said.run), None)
                if listener is not None:
                    listener.done(said, body)
            case Answer():
                future = self._answers.pop(said.id, None)
                if future is not None and not future.done():
                    future.set_result((said, body))
            case Exit():
                listener = self._listeners.pop(("process", said.process), None)
                if listener is not None:
                    listener.exited(said.status)
            case _:
                self._ready.set()

    def _listener(self, run: int, process: int) -> Listener | None:
        return self._listeners.get(("process", process) if process else ("run", run))

    def _count(self, size: int) -> None:
        self._unread += size
        if self._unread > _MAX_UNREAD:
            raise frames.Malformed("more output than there was room for")

    def read(self, size: int) -> None:
        """Count `size` bytes of output as read. The driver is told in large steps only."""
        self._unread -= size
        self._owed += size
        if self._owed >= frames.WINDOW // 4 and not self.ended.done():
            owed, self._owed = self._owed, 0
            self.post({"do": "room", "bytes": owed})

    # --- into the cell ---

    def number(self) -> int:
        """Return a new number for a process or a question."""
        return next(self._numbers)

    def listen(self, kind: Literal["run", "process"], number: int, listener: Listener) -> None:
        self._listeners[kind, number] = listener

    def forget(self, kind: Literal["run", "process"], number: int) -> None:
        self._listeners.pop((kind, number), None)

    async def write(self, message: bytes, descriptor: int = -1) -> None:
        """Send a frame, with a descriptor if one is given. Raises `BackendError` if the session has ended."""
        try:
            await self._control.write(message, descriptor)
        except InvalidRequest:
            raise self.gone() from None

    def post(self, head: dict[str, Any]) -> None:
        """Send a small message without waiting for room. Does nothing if the session has ended."""
        self._control.post(frames.frame(head))

    async def ask(
        self, head: dict[str, Any], body: bytes = b"", *, patience: float | None = PATIENCE, descriptor: int = -1
    ) -> tuple[Answer, bytes]:
        """Send a question and return the driver's answer. Raises `BackendError` if the session ends meanwhile. One
        that does not answer within `patience` seconds is ended."""
        number = self.number()
        future = self._answers[number] = asyncio.get_running_loop().create_future()
        try:
            await self.write(framed({**head, "id": number}, body), descriptor)
            await asyncio.wait([future], timeout=patience)
            if not future.done():
                self.malformed = f"it did not answer for {patience:g} s, and was ended"
                await self.close()
        finally:
            self._answers.pop(number, None)
        if not future.done() or future.cancelled():
            raise self.gone()
        answer: tuple[Answer, bytes] = future.result()
        return answer

    def gone(self) -> BackendError:
        """Return the error for using a session that has ended."""
        why = self.malformed or self._closed
        if not why and self.outcome is not None:
            why = self.outcome.why if isinstance(self.outcome, BackendError) else self._why(self.outcome)
        return BackendError("the session has ended", why=why, next="restart() it, or open another")


def framed(head: dict[str, Any], body: bytes = b"") -> bytes:
    """Return a message to a driver as a frame. Raises `InvalidRequest` if it is too long."""
    message = frames.frame(head, body)
    if len(body) > frames.MAX_BODY or len(message) - len(body) > frames.MAX_HEAD:
        raise InvalidRequest(
            "it is too long for a session",
            why=f"code and input may have {frames.MAX_BODY >> 20} MiB, words and variables {frames.MAX_HEAD >> 10} KiB",
            next="write it to a file of the session",
        )
    return message


def _parts(types: list[tuple[str, int]], body: bytes) -> dict[str, bytes]:
    """Return type → content, without the types that can't be shown."""
    found, at = dict[str, bytes](), 0
    for kind, size in types:
        if kind in display.TYPES and size <= display.MAX_BYTES:
            found[kind] = body[at : at + size]
        at += size
    return found
