"""The Lua backend: runs a script in its own Lua state in a cell. The script asks Redoma for everything it can't do
itself.

    script ─▶ Lua state ─▶ host ══ frames ══▶ LuaBackend ─▶ Broker ─▶ processes
      └──────── in a cell ─────────┘            here

The boundary is the cell and this file: a script can catch limits that its Lua state sets (`pcall`), and an interpreter
may have bugs. So everything that comes out of the cell is treated as hostile. A frame is bounded in size and must hold
one of the questions below; only one question may be open at a time; the broker looks names up only among what this
script was given. A script whose host breaks the protocol is ended.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

import msgspec

from ...lib.errors import BackendUnavailable, InvalidRequest, RedomaError
from ...lib.extras import pip_install
from ...models import Isolation, Limits, Request, Status, Stream
from ..base import Backend, Capabilities, Control, Outcome, Sink, uncancellable
from ..jail.launch import is_seen_in_cells
from . import host

if TYPE_CHECKING:
    from ..jail import JailBackend

_LAYER = {"interpreter": "Lua 5.4 without files, programs and modules"}
_HEADER = struct.Struct("!I")
_PACKAGES = str(Path(__file__).parents[3])


class _ScriptMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="do"):
    """A message from a script. Its strings are Lua's bytes, one character each: see `as_bytes` and `as_text`."""


class Print(_ScriptMessage, frozen=True, tag="print"):
    text: str


class Get(_ScriptMessage, frozen=True, tag="get"):
    entry: str


class Release(_ScriptMessage, frozen=True, tag="release"):
    executor: int


class Exec(_ScriptMessage, frozen=True, tag="exec"):
    executor: int
    command: str | Annotated[list[str], msgspec.Meta(min_length=1)]
    work_dir: str | None
    env: dict[str, str]


class Start(_ScriptMessage, frozen=True, tag="start"):
    process: int


class Write(_ScriptMessage, frozen=True, tag="write"):
    text: str
    process: int


class CloseStdin(_ScriptMessage, frozen=True, tag="close_stdin"):
    process: int


class Signal(_ScriptMessage, frozen=True, tag="signal"):
    process: int
    number: int


class Wait(_ScriptMessage, frozen=True, tag="wait"):
    process: int


class Close(_ScriptMessage, frozen=True, tag="close"):
    process: int


class Read(_ScriptMessage, frozen=True, tag="read"):
    process: int
    stream: Stream
    size: Annotated[int, msgspec.Meta(gt=0)] | None


class CloseStream(_ScriptMessage, frozen=True, tag="close_stream"):
    process: int
    stream: Stream


Question = Get | Release | Exec | Start | Write | CloseStdin | Signal | Wait | Close | Read | CloseStream
"""All messages but `Print`, which gets no answer."""
Answer = str | int | Literal[True] | None
"""Text as Lua has it (see `as_latin`), a number, true if there is no value, or nil."""

_decoder: msgspec.json.Decoder[Print | Question] = msgspec.json.Decoder(Print | Question)


def as_bytes(latin: str) -> bytes:
    """Return the bytes of a Lua string. Raises `InvalidRequest` if Lua can't have sent it."""
    try:
        return latin.encode("latin-1")
    except UnicodeEncodeError:  # not from our host.py
        raise InvalidRequest(
            "a string can't be read", why="it is not a string that Lua can have", next="pass bytes"
        ) from None


def as_text(latin: str) -> str:
    """Return the text of a Lua string that should be UTF-8, such as a name."""
    return as_bytes(latin).decode("utf-8", "surrogateescape")


def as_latin(text: str) -> str:
    """Return text as a Lua string, one character for each byte."""
    return text.encode("utf-8", "backslashreplace").decode("latin-1")


class Broker(Protocol):
    """Does what a script requests."""

    async def answer(self, question: Question) -> Answer:
        """Return the answer to a question. Raises `RedomaError` if it can't be done: the script gets nil and the
        message.
        """

    async def aclose(self) -> None:
        """End everything that the script started; called when the script has ended."""


Boot = Callable[[host.ScriptJob], str]
"""Returns the code that runs a script on another backend."""


def cells() -> JailBackend:
    """Return a jail with a Lua state in each cell. No cell is made ahead."""
    from ..jail import JailBackend

    return JailBackend(minimum=0, preload=("lupa.lua54",), prelude=host.__name__)


def in_cell(job: host.ScriptJob) -> str:
    """Return the code that runs a script in one of `cells`."""
    return f"{host.PROGRAM}({job!r})"


def on_host(job: host.ScriptJob) -> str:
    """Return the code that runs a script on the host, with no boundary but Lua itself: for trusted scripts."""
    return f"import sys; sys.path.append({_PACKAGES!r}); from redoma.backends.lua import host; host.run({job!r})"


class LuaBackend:
    """Runs Lua scripts on another backend, `inner`, and under its name. `boot` returns the code that does so there."""

    def __init__(self, inner: Backend, broker: Broker, boot: Boot) -> None:
        self.name, self.reach = inner.name, inner.reach
        self._inner, self._broker, self._boot = inner, broker, boot

    def capabilities(self) -> Capabilities:
        found = importlib.util.find_spec("lupa")
        if found is None or found.origin is None:
            raise BackendUnavailable("Lua is not here", why="lupa isn't installed", next=pip_install("redoma[lua]"))
        if self.name == "jail" and not is_seen_in_cells(found.origin):
            raise BackendUnavailable(
                "Lua can't be used in a cell",
                why=f"lupa is in {os.path.dirname(found.origin)}, and a cell has the packages of this interpreter only",
                next="pip install 'redoma[lua]' where Redoma's interpreter has its packages",
            )
        can = self._inner.capabilities()
        return Capabilities(languages=frozenset({"lua"}), isolation=_with_layer(can.isolation), limits=can.limits)

    async def run(self, request: Request, sink: Sink, control: Control | None = None) -> Outcome:
        channel, inside, input_ = _Channel(sink, self._broker), self._inside(request), Control()
        serving = asyncio.create_task(channel.serve(input_))
        try:
            outcome = await self._inner.run(inside, channel.feed, input_)
        except BackendUnavailable as error:
            raise BackendUnavailable(
                error.what,
                why=error.why,
                next=f"{error.next}, or choose the backend `native` to run it on the host itself, without isolation",
            ) from error
        finally:
            serving.cancel()
            await uncancellable(self._end(serving))
        outcome = msgspec.structs.replace(outcome, isolation=_with_layer(outcome.isolation))
        if channel.malformed:
            outcome = msgspec.structs.replace(outcome, status=Status.KILLED, exit_code=None, error=channel.malformed)
        return outcome

    def _inside(self, request: Request) -> Request:
        name, *arguments = request.argv or ("script.lua",)
        return Request(
            code=self._boot({"source": request.code, "name": name, "arguments": arguments}),
            # the request's value is for Python calls
            limits=msgspec.structs.replace(request.limits, recursion=Limits().recursion),
            require=tuple(layer for layer in request.require if layer not in _LAYER),
        )

    async def _end(self, serving: asyncio.Task[None]) -> None:
        await asyncio.wait([serving])
        await self._broker.aclose()

    async def aclose(self) -> None:
        """Do nothing: the inner backend belongs to the caller."""


def _with_layer(isolation: Isolation) -> Isolation:
    return Isolation(layers={**isolation.layers, **_LAYER}, missing=isolation.missing)


class _Channel:
    """Our end of the channel to a script. Everything that arrives is treated as hostile."""

    def __init__(self, sink: Sink, broker: Broker) -> None:
        self._sink, self._broker = sink, broker
        self._buffer = bytearray()
        self._asked: asyncio.Queue[Question] = asyncio.Queue()
        self._waits = False
        self.malformed = ""
        """Why the script was ended, if it sent something that our host.py would not send."""

    def feed(self, stream: Stream, data: bytes) -> bool:
        """Take output of the cell, as a `Sink`: returning False ends the run."""
        if stream == "stderr":
            return self._sink(stream, data)
        self._buffer += data
        while not self.malformed and len(self._buffer) >= _HEADER.size:
            (size,) = _HEADER.unpack_from(self._buffer)
            if size > host.MAX_FRAME:
                self.malformed = f"it sent a message of {size} bytes, which no script's host does, and was ended"
                break
            end = _HEADER.size + size
            if len(self._buffer) < end:
                break
            payload = bytes(self._buffer[_HEADER.size : end])
            del self._buffer[:end]
            if not self._take(payload):
                return False
        return not self.malformed

    def _take(self, payload: bytes) -> bool:
        try:
            question = _decoder.decode(payload)
            if isinstance(question, Print):
                return self._sink("stdout", as_bytes(question.text))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, InvalidRequest):
            self.malformed = "it sent what is not a message of a script's host, and was ended"
            return False
        if self._waits:
            self.malformed = "it asked again before it had its answer, which no script's host does, and was ended"
            return False
        self._waits = True
        self._asked.put_nowait(question)
        return True

    async def serve(self, control: Control) -> None:
        """Answer the questions one after the other, until cancelled."""
        while True:
            answer = await self._answer(await self._asked.get())
            payload = msgspec.json.encode(answer)
            self._waits = False
            try:
                await control.write(_HEADER.pack(len(payload)) + payload)
            except InvalidRequest:
                return  # the run has ended meanwhile

    async def _answer(self, question: Question) -> dict[str, Any]:
        try:
            return {"value": await self._broker.answer(question)}
        except RedomaError as error:
            return {"error": as_latin(str(error))}
        except Exception as error:  # a bug in Redoma must not end the script
            return {"error": as_latin(f"a bug in Redoma, please report it: {error!r}")}
