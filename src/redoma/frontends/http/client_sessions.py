"""Sessions of a service, with the interface of `redoma.Session` and `redoma.AsyncSession`.

There is one implementation, the asynchronous one; `RemoteSession` wraps it for synchronous code. The module is imported
when the first session is made.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, urlencode

import msgspec

from ...exec import AsyncProcess, Output
from ...lib.errors import RedomaError, Refused, ServiceError
from ...models import Chunk, Effect, Isolation, Language, Result
from ...pipeline.loop import SharedLoop
from ...pipeline.sync import Driven, Executor, driven, driven_end, wrapped
from ...sessions.channel import Answer
from ...sessions.folder import AsyncFiles, FilesOfSession
from ...sessions.runs import CALLBACKS, Event, RunOptions, deliver, must_have_no_callbacks
from ...sessions.session import SessionRun, SessionUsage
from .client_shapes import body_of, converted, must_be_known, result_of
from .client_transport import Events

if TYPE_CHECKING:
    from ...models import Submission
    from ...pipeline.executor import AsyncExecutor
    from .client import Client

_OPTIONS = (
    *("backend", "env", "environment", "files", "idle", "label", "lifetime", "limits", "memory", "packages", "policy"),
    *("project", "reason", "require", "secrets", "timeout", "workspace"),
)
_RUN_OPTIONS = (
    *("args", "charts", "context", "cwd", "env", "expect", "label", "limits", "policy", "reason", "stdin", "timeout"),
    *CALLBACKS,
)
_PROCESS_OPTIONS = ("env", "cwd", "pty", "size", "timeout", "policy", "reason", "label")


class AsyncRemoteSession:
    """A session of a service. Use it as an asynchronous context manager, or call `aclose` when done.

    It has the interface of `redoma.AsyncSession` except `apply`: changes to a service's project need two keys, so
    `keep` them and let another key apply them. `show` fetches the session's current state.
    """

    def __init__(self, client: Client, options: dict[str, Any], *, shown: Any = None) -> None:
        """Make a session. `shown` is what the service returned for it, if it is open already."""
        self.client, self._body = client, body_of(options, _OPTIONS)
        self._opening = asyncio.Lock()
        self._shown = shown
        self._closed = False
        self.files = AsyncRemoteFiles(self)
        """Its files."""

    # --- state ---

    @property
    def id(self) -> str:
        """Its id; empty until it is opened."""
        return "" if self._shown is None else str(self._shown["id"])

    async def open(self) -> None:
        """Open the session now; otherwise its first use does. Raises `ServiceError` if the service refuses."""
        async with self._opening:
            if self._closed:
                raise ServiceError("the session has ended", why="it was closed", next="open another")
            if self._shown is None:
                self._shown = await asyncio.to_thread(self.client.request, "POST", "/v1/sessions", self._body)

    async def show(self) -> Any:
        """Fetch and return the session's state, why it ended, and when it was last used."""
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
        """Whether it was opened and had not ended when its state was last fetched: see `show`."""
        return self._shown is not None and not self._closed and self._shown["state"] != "ended"

    @property
    def ended(self) -> str:
        """Why it had ended when its state was last fetched; empty if it had not."""
        return "it was closed" if self._closed else "" if self._shown is None else str(self._shown["ended"])

    @property
    def isolation(self) -> Isolation:
        """The isolation between its code and the host of the service."""
        return Isolation(layers={} if self._shown is None else self._shown["isolation"])

    async def interrupt(self) -> bool:
        """Interrupt the current run, as Ctrl-C does. Return whether there was one."""
        return bool((await self.ask("POST", "/interrupt"))["interrupted"])

    async def complete(self, text: str, *, context: str = "main") -> list[str]:
        """Return the names in a context that begin with `text`: see `AsyncSession.complete`."""
        return list((await self.ask("POST", "/complete", {"text": text, "context": context}))["names"])

    async def restart(self) -> None:
        """Start a new Python, without the variables and processes of the old one."""
        self._shown = await self.ask("POST", "/restart")

    async def forget(self, context: str = "main") -> None:
        """Drop the variables of a context once no run is active."""
        await self.ask("DELETE", f"/contexts/{quote(context, safe='')}")

    async def usage(self) -> SessionUsage:
        """Return what its processes and files use now."""
        return converted(await self.ask("GET", "/usage"), SessionUsage)

    async def fork(self, n: int = 1) -> list[AsyncRemoteSession]:
        """Copy the session with its variables and files: see `AsyncSession.fork`. Close each copy when done."""
        copies = (await self.ask("POST", "/fork", {"n": n}))["sessions"]
        return [AsyncRemoteSession(self.client, {}, shown=shown) for shown in copies]

    # --- its project ---

    async def changes(self) -> Effect:
        """Return what it has changed in its project so far (`workspace="overlay"`)."""
        return converted(await self.ask("GET", "/changes"), Effect)

    async def keep(self) -> Any:
        """Keep what it has changed so far. Return the changes; by their `id` another key can apply them."""
        return await self.ask("POST", "/changes/keep")

    async def discard(self) -> None:
        """Discard what it has changed in its project. Variables and other files stay."""
        await self.ask("POST", "/changes/discard")

    async def aclose(self) -> None:
        """End the session; nothing of it is left when this returns. Safe to call twice."""
        closed, self._closed = self._closed, True
        async with self._opening:  # another task may be opening it: then there is a session to end
            if self._shown is None or closed:
                return
            try:
                await asyncio.to_thread(self.client.request, "DELETE", f"/v1/sessions/{self.id}")
            except ServiceError as error:
                if error.status != 404:  # 404: the service has forgotten it
                    raise

    async def __aenter__(self) -> AsyncRemoteSession:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def ask(self, method: str, below: str, body: Any = None) -> Any:
        """Send a request about the session and return the JSON answer. Opens the session if needed."""
        await self.open()
        return await asyncio.to_thread(self.client.request, method, f"/v1/sessions/{self.id}{below}", body)

    async def fetch(self, method: str, below: str) -> tuple[bytes, Any]:
        """Send a request like `ask`, and return the raw body and the headers of the answer."""
        await self.open()
        return await asyncio.to_thread(self.client.transport.fetch, method, f"/v1/sessions/{self.id}{below}")

    # --- runs ---

    async def run(self, /, code: str, language: Language = "python", **options: Any) -> Result:
        """Run source text in the session and return its `Result`. Options are those of `Session.run` that make sense
        remotely; others are refused."""
        return await self._run(options, code=code, language=language)

    async def bash(self, /, script: str, **options: Any) -> Result:
        """Run a Bash script."""
        return await self.run(script, "bash", **options)

    async def javascript(self, /, code: str, **options: Any) -> Result:
        """Run JavaScript in a separate process: files stay, variables don't."""
        return await self.run(code, "javascript", **options)

    async def command(self, /, command: str | Iterable[str], **options: Any) -> Result:
        """Run a command: a string is a line of Bash, a list is a program and its arguments."""
        if isinstance(command, str):
            return await self.run(command, "bash", **options)
        return await self._run(options, argv=list(command), language="command")

    def stream(self, /, code: str, language: Language = "python", **options: Any) -> AsyncRemoteSessionRun:
        """Return a run to follow: `async for event in run` (a `Chunk` or a `Display`), then `run.result`.

        Calling `aclose` or leaving the `async with` block before the end interrupts the run.
        """
        return self._stream(options, code=code, language=language)

    def stream_command(self, /, argv: Iterable[str], **options: Any) -> AsyncRemoteSessionRun:
        """Run a program with its arguments, and follow it as `stream` does."""
        return self._stream(options, argv=list(argv), language="command")

    def _stream(self, options: dict[str, Any], **what: Any) -> AsyncRemoteSessionRun:
        must_have_no_callbacks(options)
        return AsyncRemoteSessionRun(self, body_of(options, _RUN_OPTIONS, **what))

    async def _run(self, options: dict[str, Any], **what: Any) -> Result:
        body = body_of(options, _RUN_OPTIONS, **what)
        if not any(options.get(name) for name in CALLBACKS):
            return result_of(await self.ask("POST", "/run", body))
        async with AsyncRemoteSessionRun(self, body) as run:
            return await deliver(run, cast("RunOptions", options))

    # --- processes in the background ---

    async def start(self, command: str | Iterable[str], **options: Any) -> AsyncRemoteProcess:
        """Start a command in the background: see `AsyncSession.start`. Raises `Refused` if it was not allowed."""
        must_be_known(options, _PROCESS_OPTIONS)
        body: dict[str, Any] = {"command": command if isinstance(command, str) else list(command)}
        body |= {name: value for name, value in options.items() if value and name not in ("pty", "size")}
        if options.get("env"):
            body["env"] = dict(options["env"])
        if options.get("pty") or options.get("size"):
            rows, columns = options.get("size") or (24, 80)
            body["terminal"] = {"rows": rows, "columns": columns}
        shown = await self.ask("POST", "/processes", body)
        if shown["state"] == "done" and not shown["pid"]:
            result = await asyncio.to_thread(self.client.wait, shown["id"])
            raise Refused("the session did not run the command", result)
        return AsyncRemoteProcess(self, shown)


class AsyncRemoteSessionRun:
    """A run in a session of a service: yields its output and displays in order, then has a `result`."""

    def __init__(self, session: AsyncRemoteSession, body: dict[str, Any]) -> None:
        self._session, self._body = session, body
        self._events: Events | None = None
        self._result: Result | None = None
        self._over = False

    @property
    def result(self) -> Result:
        """The result, once the run has ended. Raises `ServiceError` before."""
        if self._result is None:
            raise ServiceError("there is no result", why="the run goes on, or was left early", next="read all of it")
        return self._result

    async def next_event(self) -> Event | None:
        """Return the next output or display; None after the last. Raises `ServiceError` if there is no result."""
        if self._events is None:
            session = self._session
            await session.open()
            path = f"/v1/sessions/{session.id}/run/stream"
            self._events = await asyncio.to_thread(session.client.transport.follow, path, self._body)
        if not self._over:
            try:
                event = await asyncio.to_thread(next, self._events, None)
            except asyncio.CancelledError:
                await self.aclose()
                raise
            if event is not None:
                return event
            self._over = True
        self._result = self._events.result()
        return None

    async def aclose(self) -> None:
        """Stop following the run; the service interrupts it if it still runs."""
        self._over = True
        if self._events is not None:
            self._events.close()

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


class AsyncRemoteProcess(AsyncProcess):
    """A background process in a session of a service. Calls that change it are awaited: `await process.signal(2)`."""

    def __init__(self, session: AsyncRemoteSession, shown: Any) -> None:
        super().__init__("the session", cast("AsyncExecutor", None), cast("Submission", None), None)
        self._session, self.id = session, str(shown["id"])
        self.pid = int(shown["pid"])
        """Its process id inside the session, as the session reports it."""
        self._task = asyncio.get_running_loop().create_task(self._follow())
        # `wait` and `result` raise the error; without a call of them it needs no warning.
        self._task.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _follow(self) -> Result:
        arrived: asyncio.Queue[Event | Exception | None] = asyncio.Queue()
        events = await asyncio.to_thread(self._session.client.transport.follow, f"/v1/runs/{self.id}/events")
        loop = asyncio.get_running_loop()
        # A separate thread: the loop's pool is small, and this one waits as long as the process lives.
        threading.Thread(target=_pass_on, args=(events, loop, arrived.put_nowait), daemon=True).start()
        followed = False
        try:
            while (event := await arrived.get()) is not None:
                if isinstance(event, Exception):
                    raise event
                if isinstance(event, Chunk):
                    followed = True
                    self._printed[event.stream].add(event.text)
            result = events.result("process", "start it again")
            if not followed:  # no output events: take it from the result
                self._printed["stdout"].add(result.stdout)
                self._printed["stderr"].add(result.stderr)
            return result
        finally:
            events.close()
            for printed in self._printed.values():
                printed.end()

    async def start(self) -> None:
        """Raise `InvalidRequest`: the session has started it already."""
        raise self._unstartable()

    async def write_stdin(self, data: str | bytes) -> None:
        """Write to its input. Wait while much of it is unread."""
        await self._tell("input", data.encode() if isinstance(data, str) else bytes(data))

    async def close_stdin(self) -> None:  # type: ignore[override] # asynchronous here: it sends a request
        """Close its input."""
        await self._tell("input?end=true", b"")

    async def signal(self, number: int) -> None:  # type: ignore[override] # the same
        """Send a signal to the process group of the program."""
        await self._tell("signal", {"signal": number})

    async def resize(self, rows: int, columns: int) -> None:
        """Set the size of its terminal, if it has one."""
        await self._tell("resize", {"rows": rows, "columns": columns})

    async def close(self) -> None:
        """End it if it still runs. Safe to call twice."""
        if not self.started().done():
            with suppress(ServiceError):  # the session has ended, and the process with it
                await asyncio.to_thread(self._session.client.cancel, self.id)
        await super().close()

    async def _tell(self, what: str, body: Any) -> None:
        await self._session.ask("POST", f"/processes/{self.id}/{what}", body)


def _pass_on(events: Events, loop: asyncio.AbstractEventLoop, put: Callable[[Any], None]) -> None:
    """Pass events to a loop, then None, or the `ServiceError` that ended them."""
    with suppress(RuntimeError):  # the loop is closed
        try:
            for event in events:
                loop.call_soon_threadsafe(put, event)
            loop.call_soon_threadsafe(put, None)
        except ServiceError as error:
            loop.call_soon_threadsafe(put, error)


class AsyncRemoteFiles(AsyncFiles):
    """Files of a session of a service: like those of a local session, but each operation is an HTTP request."""

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


class _ClientLoop:
    """One event loop that drives the sessions of all clients in synchronous code."""

    _made: SharedLoop | None = None
    _owner = 0
    _gate = threading.Lock()

    def wait(self, work: Any) -> Any:
        with self._gate:
            if self._made is None or self._owner != os.getpid():
                self._made, self._owner = SharedLoop(), os.getpid()
        return self._made.wait(work)


_loop = cast("Executor", _ClientLoop())


class RemoteProcess(Driven[AsyncRemoteProcess]):
    """A background process in a session of a service: write to it, `wait` for it, `close` it."""

    stdout_stream = wrapped(AsyncRemoteProcess.stdout_stream, Output)
    stderr_stream = wrapped(AsyncRemoteProcess.stderr_stream, Output)
    write_stdin = driven(AsyncRemoteProcess.write_stdin)
    close_stdin = driven(AsyncRemoteProcess.close_stdin)
    signal = driven(AsyncRemoteProcess.signal)
    resize = driven(AsyncRemoteProcess.resize)
    wait = driven(AsyncRemoteProcess.wait)
    close = driven_end(AsyncRemoteProcess.close)

    @property
    def pid(self) -> int:
        """Its process id inside the session, as the session reports it."""
        return self.core.pid

    @property
    def result(self) -> Result:
        """The result, once it has ended. Raises `RedomaError` before."""
        return self.core.result


class RemoteSession(Driven[AsyncRemoteSession]):
    """A session of a service, with the interface of `redoma.Session` except `apply`: see `AsyncRemoteSession`.

    Use it as a context manager, or call `close` when done.
    """

    def __init__(self, core: AsyncRemoteSession) -> None:
        super().__init__(core, _loop)
        self.files = FilesOfSession(self.core.files, _loop)
        """Its files."""

    open = driven(AsyncRemoteSession.open)
    show = driven(AsyncRemoteSession.show)
    run = driven(AsyncRemoteSession.run)
    bash = driven(AsyncRemoteSession.bash)
    javascript = driven(AsyncRemoteSession.javascript)
    command = driven(AsyncRemoteSession.command)
    restart = driven(AsyncRemoteSession.restart)
    complete = driven(AsyncRemoteSession.complete)
    interrupt = driven(AsyncRemoteSession.interrupt)
    forget = driven(AsyncRemoteSession.forget)
    usage = driven(AsyncRemoteSession.usage)
    changes = driven(AsyncRemoteSession.changes)
    keep = driven(AsyncRemoteSession.keep)
    discard = driven(AsyncRemoteSession.discard)
    stream = wrapped(AsyncRemoteSession.stream, SessionRun)
    stream_command = wrapped(AsyncRemoteSession.stream_command, SessionRun)
    close = driven_end(AsyncRemoteSession.aclose)

    def start(self, command: str | Iterable[str], **options: Any) -> RemoteProcess:
        """Start a command in the background: see `AsyncRemoteSession.start`."""
        return RemoteProcess(_loop.wait(self.core.start(command, **options)), _loop)

    def fork(self, n: int = 1) -> list[RemoteSession]:
        """Copy the session: see `AsyncRemoteSession.fork`."""
        return [RemoteSession(core) for core in _loop.wait(self.core.fork(n))]

    @property
    def id(self) -> str:
        """Its id; opens the session if needed."""
        if not self.core.id:
            self.open()
        return self.core.id

    @property
    def alive(self) -> bool:
        """Whether it was opened and has not ended."""
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
        """The isolation between its code and the host of the service."""
        return self.core.isolation

    def __enter__(self) -> RemoteSession:
        self.open()
        return self
