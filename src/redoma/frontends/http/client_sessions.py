"""Sessions of a service as if they were here: the interface of `redoma.Session` and `redoma.AsyncSession`.

There is one implementation, the asynchronous one; `RemoteSession` drives it for ordinary code. Loaded when the first
session is opened.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import urlencode

import msgspec

from ...lib.errors import InvalidRequest, RedomaError, ServiceError
from ...models import Chunk, Isolation, Language, Result
from ...pipeline.loop import SharedLoop
from ...pipeline.sync import Driven, Executor, driven, driven_end
from ...sessions.channel import Answer
from ...sessions.folder import AsyncFiles, FilesOfSession
from ...sessions.session import Event, RunOptions, deliver
from . import client as plain

if TYPE_CHECKING:
    from .client import Client

T = TypeVar("T")
_OPTIONS = (
    *("backend", "env", "files", "idle", "label", "lifetime", "limits", "memory", "policy", "project", "reason"),
    *("require", "secrets", "timeout", "workspace"),
)
_RUN_OPTIONS = tuple(name for name in RunOptions.__annotations__ if name not in ("requester", "whole_output"))
_CALLBACKS = ("on_stdout", "on_stderr", "on_result")


async def _in_thread(call: Any) -> Any:
    return await asyncio.to_thread(call)


class AsyncRemoteSession:
    """A session of a service. Use it as an asynchronous context manager, or call `aclose` when done.

    What `redoma.AsyncSession` has it has too, but for processes in the background (`start`).
    """

    def __init__(self, client: Client, options: dict[str, Any]) -> None:
        plain.must_be_known(options, _OPTIONS)
        limits = plain.limits_of(options)
        own = ("backend", "env", "idle", "label", "lifetime", "policy", "project", "reason", "secrets", "workspace")
        self._body = {name: options[name] for name in own if options.get(name)}
        if limits:
            self._body["limits"] = limits
        if options.get("files"):
            self._body["files"] = plain.files_of(options["files"])
        if options.get("require"):
            self._body["require"] = list(options["require"])
        self._client = client
        self._opening = asyncio.Lock()
        self._shown: Any = None
        self._closed = False
        self.files = AsyncRemoteFiles(self)
        """Its files."""

    # --- its life ---

    @property
    def id(self) -> str:
        """Its id; empty until it is opened."""
        return "" if self._shown is None else str(self._shown["id"])

    async def open(self) -> None:
        """Open it now; else the first use does. Raises `ServiceError` if the service refuses."""
        async with self._opening:
            if self._closed:
                raise ServiceError("the session has ended", why="it was closed", next="open another")
            if self._shown is None:
                self._shown = await _in_thread(lambda: self._client.request("POST", "/v1/sessions", self._body))

    async def show(self) -> Any:
        """What the service says of it: state, why it has ended, when it was used."""
        if not self._closed:
            try:
                self._shown = await self.ask("GET", "")
            except ServiceError as error:
                if error.status != 404:
                    raise
                self._shown = {**self._shown, "state": "ended", "ended": "the service has forgotten it"}
        return self._shown

    @property
    def alive(self) -> bool:
        """Whether it has been opened and had not ended when it was last looked at: see `show`."""
        return self._shown is not None and not self._closed and self._shown["state"] != "ended"

    @property
    def ended(self) -> str:
        """Why it has ended, as far as it was looked at; empty if it has not."""
        return "it was closed" if self._closed else "" if self._shown is None else str(self._shown["ended"])

    @property
    def isolation(self) -> Isolation:
        """What stands between its code and the host of the service."""
        return Isolation(layers={} if self._shown is None else self._shown["isolation"])

    async def interrupt(self) -> bool:
        """Interrupt what runs, as Ctrl-C does. Returns whether something did."""
        return bool((await self.ask("POST", "/interrupt"))["interrupted"])

    async def complete(self, text: str, *, context: str = "main") -> list[str]:
        """The names in a context that begin with `text`: see `AsyncSession.complete`."""
        return list((await self.ask("POST", "/complete", {"text": text, "context": context}))["names"])

    async def restart(self) -> None:
        """Have a new Python, without variables or processes of the old one."""
        self._shown = await self.ask("POST", "/restart")

    async def aclose(self) -> None:
        """End it: nothing of it is left when this returns. Safe to call twice."""
        closed, self._closed = self._closed, True
        if self._shown is not None and not closed:
            try:
                await _in_thread(lambda: self._client.request("DELETE", f"/v1/sessions/{self.id}"))
            except ServiceError as error:
                if error.status != 404:  # it has been forgotten
                    raise

    async def __aenter__(self) -> AsyncRemoteSession:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def ask(self, method: str, below: str, body: Any = None) -> Any:
        """Send a request about it; it is opened first if need be."""
        await self.open()
        return await _in_thread(lambda: self._client.request(method, f"/v1/sessions/{self.id}{below}", body))

    async def fetch(self, method: str, below: str) -> tuple[bytes, Any]:
        """As `ask`, for an answer that is no JSON: its body and its headers."""
        await self.open()
        path = f"/v1/sessions/{self.id}{below}"
        return cast("tuple[bytes, Any]", await _in_thread(lambda: self._client.fetch(method, path)))

    # --- runs ---

    async def run(self, /, code: str, language: Language = "python", **options: Any) -> Result:
        """Run source text there and return its `Result`. Options are those of `Session.run`."""
        return await self._run({"code": code, "language": language}, options)

    async def bash(self, /, script: str, **options: Any) -> Result:
        """Run a Bash script."""
        return await self.run(script, "bash", **options)

    async def command(self, /, command: str | Iterable[str], **options: Any) -> Result:
        """Run a command: a text is a line of Bash, a list is a program and its arguments."""
        if isinstance(command, str):
            return await self.run(command, "bash", **options)
        return await self._run({"argv": list(command), "language": "command"}, options)

    def stream(self, code: str, language: Language = "python", **options: Any) -> AsyncRemoteSessionRun:
        """Run source text there and follow it: `async for event in run` (a `Chunk` or a `Display`), then `run.result`.
        Left early, with `aclose` or by the end of its block, the run is interrupted."""
        for name in _CALLBACKS:
            if options.get(name) is not None:
                raise InvalidRequest(f"{name} was given to a stream", why="it would get nothing", next="leave it out")
        return AsyncRemoteSessionRun(self, _run_body({"code": code, "language": language}, options))

    async def _run(self, what: dict[str, Any], options: dict[str, Any]) -> Result:
        body = _run_body(what, options)
        if not any(options.get(name) for name in _CALLBACKS):
            return plain.result_of(await self.ask("POST", "/run", body))
        async with AsyncRemoteSessionRun(self, body) as run:
            return await deliver(run, cast("RunOptions", options))


def _run_body(what: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    plain.must_be_known(options, _RUN_OPTIONS)
    body = what | {
        name: options[name] for name in ("context", "env", "expect", "label", "policy", "reason") if options.get(name)
    }
    if limits := plain.limits_of(options):
        body["limits"] = limits
    if options.get("args"):
        body["argv"] = list(options["args"])
    if options.get("stdin"):
        body["stdin"] = plain.content_of(options["stdin"])
    return body


class AsyncRemoteSessionRun:
    """A run in a session of a service to follow: what it prints and shows, in order; then its `result`."""

    def __init__(self, session: AsyncRemoteSession, body: dict[str, Any]) -> None:
        self._session, self._body = session, body
        self._lines: plain.EventLines | None = None
        self._result: Result | None = None
        self._note, self._over = "", False

    @property
    def result(self) -> Result:
        if self._result is None:
            raise ServiceError("there is no result", why="the run goes on, or was left early", next="read all of it")
        return self._result

    async def next_event(self) -> Event | None:
        """The next piece of output or display; None when the run has ended and everything was given."""
        if self._lines is None:
            session = self._session
            await session.open()
            path = f"/v1/sessions/{session.id}/run/stream"
            self._lines = await _in_thread(lambda: plain.EventLines(session._client, path, self._body))
        lines = self._lines
        while not self._over:
            try:
                found = await _in_thread(lambda: next(lines, None))
            except asyncio.CancelledError:
                await self.aclose()
                raise
            if found is None:
                self._over = True
                break
            name, data = found
            if name == "output":
                return Chunk(data["stream"], data["text"])
            if name == "display":
                return plain.display_of(data["data"])
            if name == "result":
                self._result = plain.result_of(data)
            elif name == "state":
                self._note = data["note"]
        if self._result is None:
            raise ServiceError("the run has no result", why=self._note or "it was ended", next="run it again")
        return None

    async def aclose(self) -> None:
        """Leave it: the service interrupts the run."""
        self._over = True
        if self._lines is not None:
            self._lines.close()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        event = await self.next_event()
        if event is None:
            raise StopAsyncIteration
        return event

    async def __aenter__(self) -> AsyncRemoteSessionRun:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()


class AsyncRemoteFiles(AsyncFiles):
    """Files of a session of a service: as those of a session here, but for how an operation gets there."""

    def __init__(self, session: AsyncRemoteSession) -> None:
        self._remote = session

    async def _do(self, operation: str, path: str, body: bytes = b"", **more: Any) -> tuple[Answer, bytes]:
        named = urlencode({"path": path, **{name: str(value).lower() for name, value in more.items()}})
        try:
            match operation:
                case "read":
                    data, headers = await self._remote.fetch("GET", f"/files/content?{named}")
                    return Answer(id=0, file=headers["X-Redoma-File"], size=int(headers["X-Redoma-Size"])), data
                case "write":
                    await self._remote.ask("PUT", f"/files/content?{named}", body)
                case "list":
                    found = await self._remote.ask("GET", f"/files?{named}")
                    return Answer(id=0), msgspec.json.encode(found["files"])
                case "stat":
                    return Answer(id=0), msgspec.json.encode([await self._remote.ask("GET", f"/files/stat?{named}")])
                case "remove":
                    await self._remote.ask("DELETE", f"/files?{named}")
                case _:
                    await self._remote.ask("POST", f"/files/{operation}", {"path": path, **more})
        except ServiceError as error:
            if number := getattr(errno, error.code, None) if error.code else None:
                raise OSError(number, os.strerror(number), path) from None
            raise
        return Answer(id=0), b""


class _Loop:
    """What drives the sessions of clients in ordinary code: one event loop for all of them."""

    _made: SharedLoop | None = None
    _owner = 0
    _gate = threading.Lock()

    def wait(self, work: Any) -> Any:
        with self._gate:
            if self._made is None or self._owner != os.getpid():
                self._made, self._owner = SharedLoop(), os.getpid()
        return self._made.wait(work)


_loop = cast("Executor", _Loop())


class RemoteSessionRun(Driven[AsyncRemoteSessionRun]):
    """A run in a session of a service to follow: what it prints and shows, in order; then its `result`."""

    @property
    def result(self) -> Result:
        return self.core.result

    next_event = driven(AsyncRemoteSessionRun.next_event)
    close = driven_end(AsyncRemoteSessionRun.aclose)

    def __iter__(self) -> Iterator[Event]:
        while (event := self.next_event()) is not None:
            yield event


class RemoteSession(Driven[AsyncRemoteSession]):
    """A session of a service. Use it as a context manager, or call `close` when done.

    What `redoma.Session` has it has too, but for processes in the background (`start`).
    """

    def __init__(self, client: Client, options: dict[str, Any]) -> None:
        super().__init__(AsyncRemoteSession(client, options), _loop)
        self.files = FilesOfSession(self.core.files, _loop)
        """Its files."""

    open = driven(AsyncRemoteSession.open)
    show = driven(AsyncRemoteSession.show)
    run = driven(AsyncRemoteSession.run)
    bash = driven(AsyncRemoteSession.bash)
    command = driven(AsyncRemoteSession.command)
    restart = driven(AsyncRemoteSession.restart)
    complete = driven(AsyncRemoteSession.complete)
    interrupt = driven(AsyncRemoteSession.interrupt)
    close = driven_end(AsyncRemoteSession.aclose)

    def stream(self, code: str, language: Language = "python", **options: Any) -> RemoteSessionRun:
        """Run source text there and follow it: `with … as run`, `for event in run`, then `run.result`."""
        return RemoteSessionRun(self.core.stream(code, language, **options), _loop)

    @property
    def id(self) -> str:
        if not self.core.id:
            self.open()
        return self.core.id

    @property
    def alive(self) -> bool:
        """Whether it has been opened and has not ended."""
        with suppress(RedomaError):
            if self.core.id:
                self.show()
        return self.core.alive

    @property
    def ended(self) -> str:
        """Why it has ended; empty if it has not."""
        with suppress(RedomaError):
            if self.core.id:
                self.show()
        return self.core.ended

    @property
    def isolation(self) -> Isolation:
        """What stands between its code and the host of the service."""
        return self.core.isolation

    def __enter__(self) -> RemoteSession:
        self.open()
        return self
