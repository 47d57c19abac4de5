"""Our end of the channel to a session: to its driver and, where descriptors can be passed, directly to its Python. This
is the trust boundary: every message may come from an attacker.

Frames and all their parts are bounded, and a head must be one of the messages below. A message about a run that is not
the current one, or that answers no question, is dropped. Values are decoded only by `value_reading.read`, under its
budget. A session that sends anything else is ended.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
from contextlib import suppress
from typing import Annotated, Any, Literal, Protocol, assert_never

import msgspec

from ..backends import display
from ..backends.base import Backend, Control, Outcome, OverlayEntry, Passed, exceeded, uncancellable
from ..lib.errors import BackendError, InvalidRequest
from ..models import Isolation, Request, Stream
from . import frames
from .line import Line

PATIENCE = 60.0
"""Seconds that a driver has to start, and to answer a question."""
_MAX_SAID = 4 << 10  # bytes kept of the driver's stderr, which has the traceback of a bug of ours
_MAX_UNREAD = frames.WINDOW + (4 << 20)
"""Bytes of unread output that our driver never exceeds: its window, and what it sends at the end of a run without
regard to the window."""
_SHOWN = frames.frame({"do": "shown"})
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


_Message = Ready | Out | Shown | Done | Answer | Exit
_decoder: msgspec.json.Decoder[_Message] = msgspec.json.Decoder(_Message)
_encoder = msgspec.json.Encoder()


class Listener(Protocol):
    """Receives the messages about one run or process."""

    def out(self, stream: Stream, data: bytes) -> bool:
        """Take output. Returns whether it has been read, so that there is room for more."""

    def shown(self, representations: dict[str, bytes], is_value: bool) -> None: ...

    def done(self, said: Done, value: bytes) -> None: ...

    def exited(self, status: int) -> None: ...

    def lost(self) -> None:
        """The session has ended."""


class Channel:
    """The connection to one open session on one backend: `open` it, use it, `close` it."""

    def __init__(self, backend: Backend, request: Request) -> None:
        self._backend, self._request = backend, request
        self._control = Control()
        self._control.lasts = True
        self._control.session = backend.capabilities().image is not None
        self._reader, self._line_reader = frames.Reader(), frames.Reader()
        self._line: Line | None = None
        self._displayed = False  # whether a display is among the messages that just came by the line
        self._run: Listener | None = None  # the run that goes on
        self._interrupts = set[asyncio.Task[None]]()  # those that the driver has not handled yet
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

    async def open(self, *first: tuple[dict[str, Any], Passed]) -> None:
        """Start the session. `first` are messages that it waits for, each with what to pass. Raises what the
        backend raises, or `BackendError` if the driver does not start."""
        if self._backend.capabilities().descriptors:
            try:
                self._line = Line(self._hear, self._printed)
            except OSError as error:
                raise BackendError("the session did not start", why=str(error), next="close some files") from error
            first = (({"do": "line"}, self._line.far_end), *first)
        for head, passed in first:
            self._control.post(frames.frame(head), passed)
            if isinstance(passed, str):
                self._control.copy_of = passed
        self._task = asyncio.create_task(self._live())
        try:
            async with asyncio.timeout(PATIENCE):
                await self._ready.wait()
        except TimeoutError:
            await self.close()
            raise BackendError("the session did not start", why=f"it said nothing for {PATIENCE:g} s") from None
        except BaseException:
            await self.close()
            raise
        if self._line is not None:
            self._line.connected()
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
            if self._line is not None:
                self._line.finish()
            self.outcome = outcome
            self.ended.set_result(None)
            self._ready.set()
            for future in self._answers.values():
                future.cancel()
            for listener in list(self._listeners.values()):
                listener.lost()

    async def close(self, why: str = "it was closed") -> None:
        """End the session: nothing of it is left when this returns. Safe to call twice; the first reason counts."""
        self._closed = self._closed or why
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await uncancellable(asyncio.wait([self._task]))
        if self._task is not None and not self._task.cancelled():
            self._task.exception()  # so that asyncio doesn't report it as never retrieved

    async def read_changes(self, stage: str) -> tuple[OverlayEntry, ...]:
        """Return what the session has changed in its project so far: see `Control.read_changes`."""
        if self.ended.done() or self._control.read_changes is None:
            raise self.gone()
        return await self._control.read_changes(stage)

    # --- out of the cell ---

    def _feed(self, stream: Stream, data: bytes) -> bool:
        if stream == "stderr":
            self._said = (self._said + data)[-_MAX_SAID:]
            return True
        return self._read_frames(self._reader, data)

    def _hear(self, data: bytes) -> None:
        """Take what came by the direct line."""
        self._displayed = False
        if not self._read_frames(self._line_reader, data) and self._task is not None:
            self._task.cancel()

    def _read_frames(self, reader: frames.Reader, data: bytes) -> bool:
        """Take messages. Returns whether all of them were valid so far."""
        if self.malformed:
            return False
        try:
            for head, body in reader.feed(data):
                self._take(_decoder.decode(head), body)
        except (frames.Malformed, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self.malformed = f"it sent what is not a message of a session ({error}), and was ended"
        return not self.malformed

    def _printed(self, stream: Stream, data: bytes) -> bool:
        """Take what was printed during a run. Returns whether it has been read."""
        return self._run is None or self._run.out(stream, data)

    def _take(self, said: _Message, body: bytes) -> None:
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
                if self._line is not None:
                    if self._displayed:  # it would have us read its output again and again
                        raise frames.Malformed("a display before the last one was taken")
                    self._displayed = True
                    self._line.drain()  # it was printed before
                    self._line.send(_SHOWN)
                if listener is not None:
                    listener.shown(_parts(said.types, body), said.is_value)
            case Done():
                listener = self._listeners.pop(("run", said.run), None)
                if listener is not None:
                    self._end_run()
                    listener.done(said, body)
            case Answer():
                future = self._answers.pop(said.id, None)
                if future is not None and not future.done():
                    future.set_result((said, body))
            case Exit():
                listener = self._listeners.pop(("process", said.process), None)
                if listener is not None:
                    listener.exited(said.status)
            case Ready():
                self._ready.set()
            case _:
                assert_never(said)

    def _listener(self, run: int, process: int) -> Listener | None:
        return self._listeners.get(("process", process) if process else ("run", run))

    def _count(self, size: int) -> None:
        self._unread += size
        if self._unread > _MAX_UNREAD:
            raise frames.Malformed("more output than there was room for")

    def run_output_read(self, size: int) -> None:
        """Count so many bytes of a run's output as read."""
        if self._line is not None:
            self._line.read(size)
        else:
            self.read(size)

    def read(self, size: int) -> None:
        """Count `size` bytes of output that the driver sent as read. It is told in large steps only."""
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
        if kind == "run":
            self._run = listener
            if self._line is not None:
                self._line.begin()

    def forget(self, kind: Literal["run", "process"], number: int) -> None:
        listener = self._listeners.pop((kind, number), None)
        if kind == "run" and listener is not None:
            self._end_run()

    def _end_run(self) -> None:
        """Take what the current run has printed. What is printed from now on belongs to the next one."""
        if self._line is not None and not self.ended.done():
            self._line.drain()
            self._line.end()
        self._run = None

    async def run_python(self, message: bytes) -> None:
        """Send a message to the session's Python. Raises `BackendError` if the session has ended."""
        if self._line is None:
            await self.write(message)
        elif self.ended.done():
            raise self.gone()
        else:
            self._line.send(message)

    async def settled(self, patience: float) -> None:
        """Wait until no interrupt is on its way: it could hit the next run. A driver that has not handled one after
        `patience` seconds, though the run has ended, is none of ours: then the session is ended, and `BackendError`
        raised."""
        if not self._interrupts:
            return
        _, left = await asyncio.wait(self._interrupts, timeout=patience)
        if left:
            self.malformed = "it did not handle an interrupt, and was ended"
            await self.close()
            raise self.gone()

    def interrupt(self, run: int) -> None:
        """Ctrl-C for a run."""
        task = asyncio.get_running_loop().create_task(self._interrupt(run))
        self._interrupts.add(task)
        task.add_done_callback(self._interrupts.discard)

    async def _interrupt(self, run: int) -> None:
        with suppress(BackendError):  # it has ended meanwhile
            await self.ask({"do": "interrupt", "run": run})

    async def restart(self) -> None:
        """Start a new Python in the session. A run that goes on is over."""
        if self._line is None:
            await self.ask({"do": "restart"})
        else:
            self._line.renew()
            self._line_reader = frames.Reader()
            await self.ask({"do": "restart"}, passed=self._line.far_end)
            self._line.connected()
        for (kind, number), listener in list(self._listeners.items()):
            if kind == "run":
                self.forget("run", number)
                listener.done(Done(run=number, signal=signal.SIGKILL), b"")
        if self._line is not None:
            self._line.discard()

    async def write(self, message: bytes, passed: Passed = -1) -> None:
        """Send a frame, and pass something along with it if given. Raises `BackendError` if the session has ended."""
        try:
            await self._control.write(message, passed)
        except InvalidRequest:
            raise self.gone() from None

    def post(self, head: dict[str, Any]) -> None:
        """Send a small message without waiting for room. Does nothing if the session has ended."""
        self._control.post(frames.frame(head))

    async def ask(
        self,
        head: dict[str, Any],
        body: bytes = b"",
        *,
        patience: float | None = PATIENCE,
        passed: Passed = -1,
        of_python: bool = False,
    ) -> tuple[Answer, bytes]:
        """Send a question, and return the answer of the driver, or `of_python`. Raises `BackendError` if the session
        ends meanwhile. One that does not answer within `patience` seconds is ended."""
        number = self.number()
        future = self._answers[number] = asyncio.get_running_loop().create_future()
        try:
            message = framed({**head, "id": number}, body)
            await (self.run_python(message) if of_python else self.write(message, passed))
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
    try:
        message = frames.frame_of(_encoder.encode(head), body)
    except UnicodeEncodeError:  # a name that is not UTF-8: only the slower encoder can escape it
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
