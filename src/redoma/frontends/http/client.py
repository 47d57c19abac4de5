"""A client of a service: the same calls as the library's, executed by `redoma serve` elsewhere.

    client = redoma.connect("http://127.0.0.1:8800", key="rdm_…")
    result = client.run("print(6 * 7)")               # the same Result
    for ask in client.approvals.list(): …
    client.changes.apply(result.id)
    with client.session() as session: …               # as redoma.Session

It uses the standard library for HTTP, so that no further package has to be installed.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import http.client
import json
import os
import re
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from redoma.lib.errors import InvalidRequest, ServiceError
from redoma.models import Chunk, Display, Limits, Result, Status

from ...lib.types import resolved

if TYPE_CHECKING:
    from .client_sessions import AsyncRemoteSession, RemoteSession

C = TypeVar("C")
P = ParamSpec("P")
T = TypeVar("T")
_OPTIONS = (
    *("args", "backend", "env", "environment", "expect", "files", "label", "limits", "memory", "network", "outputs"),
    *("packages", "policy", "project", "reason", "require", "secrets", "stdin", "timeout", "wait", "workspace"),
)
PICTURES = ("image/png", "image/jpeg")
"""Types of displays whose content is bytes."""
_FIRST_LOOK, _MAX_PAUSE = 0.05, 1.0  # seconds between polls of a run, doubled each time
_RESULT = msgspec.json.Decoder(resolved(Result))
_MAX_IDLE = 10.0
"""Seconds of idleness after which a connection is not used again: the server closes it soon after."""


def connect(url: str, key: str | None = None, *, timeout: float = 600.0) -> Client:
    """Return a client of a service. It connects at its first call.

    Args:
        url: The service's address: `http://HOST:PORT`, `https://HOST`, or `unix:/path/to/socket`.
        key: An API key: see `redoma keys`; by default the one in the variable REDOMA_KEY.
        timeout: Seconds to wait for an answer.

    Returns:
        A `Client`; its `asynchronous` has the same calls for asyncio code.

    Raises:
        InvalidRequest: The URL or the key is malformed, or there is no key.
    """
    if key is None:
        from ...config import service_key

        key = service_key()
        if not key:
            raise InvalidRequest(
                "there is no key for the service",
                why="none was given, and REDOMA_KEY is not set",
                next="pass key='rdm_…'; `redoma keys create`, where the service runs, makes one",
            )
    return Client(url, key, timeout=timeout)


class Client:
    """A client of a service. Any number of threads may share it; each gets its own connection."""

    def __init__(self, url: str, key: str, *, timeout: float = 600.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https", "unix") or not (parts.hostname or parts.path):
            raise InvalidRequest(
                f"{url!r} is not the address of a service",
                why="it needs a scheme and a host",
                next="use http://HOST:PORT",
            )
        if not key.isascii() or not key.isprintable() or not key:
            raise InvalidRequest(
                "this is not a key", why="a key has visible characters only", next="use the key's text"
            )
        self._parts, self._key, self._timeout = parts, key, timeout
        self._local, self._lock = threading.local(), threading.Lock()
        self._open: set[http.client.HTTPConnection] = set()
        self.approvals = Approvals(self)
        self.changes = Changes(self)
        self.environments = Environments(self)

    @property
    def asynchronous(self) -> AsyncClient:
        """The same calls for asyncio code."""
        return AsyncClient(self)

    def run(self, /, code: str, language: str = "python", **options: Any) -> Result:
        """Run source text on the service and return its `Result`.

        Options are those of `redoma.run` that make sense remotely: there is no `cwd`, and `project` is the name of a
        project that the server offers. If a person has to approve the run, wait for that; with `wait=False`, return a
        result with the status `pending` instead. Raises `InvalidRequest` if the request is invalid, `ServiceError` if
        the service refuses it.
        """
        return self._run({"code": code, "language": language}, options)

    def command(self, /, argv: Iterable[str], **options: Any) -> Result:
        """Run a program with its arguments on the service, without a shell. Options are those of `run`."""
        if isinstance(argv, str):
            raise InvalidRequest("argv is one text", why="it takes a list of words", next="split it")
        return self._run({"argv": list(argv), "language": "command"}, options)

    def _run(self, what: dict[str, Any], options: dict[str, Any]) -> Result:
        data, _ = self.fetch("POST", "/v1/runs", _body(what, options))
        result = _decoded(data)
        return result if options.get("wait") is False else self._decided(result)

    def _decided(self, result: Result) -> Result:
        """If the run waits for an approval, wait for that and for its end."""
        return self.wait(result.id) if result.status is Status.PENDING else result

    def submit(self, /, code: str, language: str = "python", *, idempotency_key: str = "", **options: Any) -> str:
        """Queue source text to run, durably. Return the id of the run, for `show`, `wait` and `cancel`."""
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        body = _body({"code": code, "language": language}, options)
        run: str = self.request("POST", "/v1/runs/async", body, headers=headers)["id"]
        return run

    def wait(self, id: str) -> Result:  # noqa: A002 - the run's field name
        """Wait for a run's end and return its result. Raises `ServiceError` if it was cancelled or interrupted."""
        pause = _FIRST_LOOK
        while True:
            found = self.show(id)
            if found["state"] == "done":
                return result_of(found["result"])
            if found["state"] in ("cancelled", "interrupted"):
                raise ServiceError(f"the run was {found['state']}", why=found["note"], next="run it again")
            time.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE)

    def stream(self, code: str, language: str = "python", **options: Any) -> RemoteRun:
        """Return a run of source text on the service: iterate over it for its output, then read its `result`."""
        return RemoteRun(self, _body({"code": code, "language": language}, options), wait=options.get("wait", True))

    def session(self, **options: Any) -> RemoteSession:
        """Return a session on the service: a Python that keeps its variables, in its own cell.

        `with` or its first use opens it. Options are those of `redoma.Session`, but `project` is the name of a project
        that the server offers. Raises `InvalidRequest` for an unknown option.
        """
        from .client_sessions import AsyncRemoteSession, RemoteSession

        return RemoteSession(AsyncRemoteSession(self, options))

    Session = session

    def sessions(self) -> Any:
        """Return the sessions that this key may see, newest first."""
        return self.request("GET", "/v1/sessions")["sessions"]

    def runs(self, limit: int = 50, before: str = "") -> Any:
        """Return the newest runs that this key may list: `{"runs": […], "next": …}`. For older ones, pass `next` as
        `before`."""
        return self.request("GET", f"/v1/runs?{urlencode({'limit': limit, 'before': before})}")

    def show(self, id: str) -> Any:  # noqa: A002 - the run's field name
        """Return a run with its state, its request and its result."""
        return self.request("GET", f"/v1/runs/{quote(id, safe='')}")

    def cancel(self, id: str) -> Any:  # noqa: A002 - the run's field name
        """Cancel a run. Return it as `show` does."""
        return self.request("POST", f"/v1/runs/{quote(id, safe='')}/cancel")

    def check(self, code: str, language: str = "python", policy: str | None = None) -> Any:
        """Return what the service's policy says about source text, without running it."""
        return self.request("POST", "/v1/policy/check", {"code": code, "language": language, "policy": policy})

    def close(self) -> None:
        """Close the connections of all threads. The client can be used again."""
        with self._lock:
            held, self._open = self._open, set()
        for connection in held:
            connection.close()

    def _drop(self) -> None:
        """Close the connection of this thread."""
        if (held := getattr(self._local, "connection", None)) is not None:
            held.close()
            self._local.connection = None
            with self._lock:
                self._open.discard(held)

    def _drop_if_stale(self) -> None:
        """Close the connection of this thread if the service has closed it, or is about to."""
        held: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if held is None or held.sock is None:
            return
        idle = time.monotonic() - getattr(self._local, "used", 0.0)
        arrived = select.poll()
        arrived.register(held.sock, select.POLLIN)
        if idle > _MAX_IDLE or arrived.poll(0):  # the service sends nothing between two requests: it has closed it
            self._drop()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- HTTP ---

    def request(self, method: str, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None) -> Any:
        """Send a request and return the decoded JSON answer. Raises `InvalidRequest` or `ServiceError`."""
        return _json(self.fetch(method, path, body, headers=headers)[0])

    def fetch(
        self, method: str, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None
    ) -> tuple[bytes, http.client.HTTPMessage]:
        """Send a request; a body of bytes is sent as it is, any other as JSON. Return the answer's body and headers.

        Raises `InvalidRequest` or `ServiceError`.
        """
        self._drop_if_stale()
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self.connection()
        if connection not in self._open:  # it is new, or used again after `close`
            with self._lock:
                self._open.add(connection)
        try:
            response = self.send(connection, method, path, body, headers)
            data = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._drop()
            raise self.unreachable(error) from error
        except BaseException:  # such as Ctrl-C in the middle of an answer
            self._drop()
            raise
        self._local.used = time.monotonic()
        if response.status >= 400:
            raise _refused(response.status, data, response.headers.get("Retry-After", ""))
        return data, response.headers

    def send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> http.client.HTTPResponse:
        """Send a request over a connection. Raises `OSError` or `http.client.HTTPException`."""
        raw = isinstance(body, bytes)
        kind = "application/octet-stream" if raw else "application/json"
        given = {"Authorization": f"Bearer {self._key}", "Content-Type": kind, **(headers or {})}
        connection.request(method, path, body if raw or body is None else json.dumps(body).encode(), given)
        return connection.getresponse()

    def connection(self) -> http.client.HTTPConnection:
        """Return a new connection to the service, not opened yet."""
        parts = self._parts
        if parts.scheme == "unix":
            return _Unix(parts.path, self._timeout)
        host = parts.hostname or ""
        if parts.scheme == "https":
            context = ssl.create_default_context()
            return _Secure(host, parts.port, timeout=self._timeout, context=context)
        return _Connection(host, parts.port, timeout=self._timeout)

    def unreachable(self, error: Exception) -> ServiceError:
        """Return the error to raise if the service can't be reached."""
        where = self._parts.path if self._parts.scheme == "unix" else self._parts.netloc.rpartition("@")[2]
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return ServiceError(f"the service at {where} can't be reached", why=why, next="start it with `redoma serve`")


_PLAIN_HEAD = re.compile(rb"HTTP/1\.1 ([2-5][0-9]{2}) ([!-~ ]*)\r\n((?:[a-z-]+: [!-~]+(?: [!-~]+)*\r\n)+)\r\n")
"""The head of an answer as `redoma serve` sends it."""


class _Response(http.client.HTTPResponse):
    """An answer; if its head is plain, it is not read by the slow parser for e-mail that the standard library uses."""

    def begin(self) -> None:
        reader: Any = self.fp  # a `BufferedReader`
        headers: Any = self.headers  # None until the head was read
        found = _PLAIN_HEAD.match(reader.peek()) if headers is None else None
        if found is None or not self._has_begun(int(found[1]), found[2].decode(), found[3].decode()):
            super().begin()
        else:
            reader.read(found.end())

    def _has_begun(self, status: int, reason: str, lines: str) -> bool:
        """Set what `HTTPResponse.begin` would set. Return False if the body's end is not given by its length alone."""
        headers = http.client.HTTPMessage()
        for line in lines.splitlines():
            headers.set_raw(*line.split(": ", 1))
        length = headers.get_all("content-length", [])
        unusual = "connection" in headers or "transfer-encoding" in headers or status in (204, 304)
        if unusual or len(length) != 1 or not length[0].isdigit():
            return False
        self.headers = self.msg = headers
        self.code = self.status = status
        self.reason, self.version = reason.strip(), 11
        self.chunked, self.will_close, self.length = False, False, int(length[0])
        return True


class _Connection(http.client.HTTPConnection):
    """A connection that sends a request in one piece: in two, the server has to wake up twice."""

    response_class = _Response
    _held: list[Any] | None = None

    def request(self, *args: Any, **options: Any) -> None:
        self._held = []
        try:
            super().request(*args, **options)
            pieces = self._held
        finally:
            self._held = None
        self.send(b"".join(pieces))

    def send(self, data: Any) -> None:
        if self._held is None:
            super().send(data)
        else:
            self._held.append(data)


class _Secure(_Connection, http.client.HTTPSConnection):
    """The same over TLS."""


class _Unix(_Connection):
    """The same over a Unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class EventLines:
    """The events of a run as pairs of a name and data, over a separate connection.

    If it started the run, closing it cancels the run. Raises `InvalidRequest` or `ServiceError`.
    """

    def __init__(self, client: Client, path: str, body: dict[str, Any] | None = None) -> None:
        """Start a run with `body`; without a body, follow an existing run."""
        self._connection, self._name = client.connection(), ""
        try:
            self._response = client.send(self._connection, "GET" if body is None else "POST", path, body)
            if self._response.status >= 400:
                retry = self._response.headers.get("Retry-After", "")
                raise _refused(self._response.status, self._response.read(), retry)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise client.unreachable(error) from error
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> EventLines:
        return self

    def __next__(self) -> tuple[str, Any]:
        try:
            for line in self._response:
                if line.startswith(b"event: "):
                    self._name = line[7:].strip().decode()
                elif line.startswith(b"data: "):
                    return self._name, _json(line[6:])
        except (OSError, ValueError, AttributeError, http.client.HTTPException) as error:  # or another thread closed it
            self.close()
            raise ServiceError("the run was lost", why=str(error), next="see what became of it: runs()") from error
        self.close()
        raise StopIteration

    def close(self) -> None:
        """Close the connection, even while another thread waits for the next event."""
        if self._connection.sock is not None:
            with suppress(OSError):
                self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._connection.close()


class RemoteRun:
    """The output of a run of a service, piece by piece, and then its `result`.

    Calling `close` or leaving the `with` block before the end cancels the run.
    """

    def __init__(self, client: Client, body: dict[str, Any], *, wait: bool) -> None:
        self._client, self._body, self._wait = client, body, wait
        self._result: Result | None = None
        self._lines: EventLines | None = None

    @property
    def result(self) -> Result:
        """The result, once all output was read. Raises `ServiceError` before."""
        if self._result is None:
            raise ServiceError("there is no result", why="the run goes on, or was left early", next="read all of it")
        return self._result

    def __iter__(self) -> Iterator[Chunk]:
        self._lines = lines = EventLines(self._client, "/v1/runs/stream", self._body)
        note = ""
        try:
            for name, data in lines:
                if name == "output":
                    yield Chunk(data["stream"], data["text"])
                elif name == "result":
                    self._result = result_of(data)
                elif name == "state":
                    note = data["note"]
        finally:
            lines.close()
        if self._result is None:
            raise ServiceError("the run has no result", why=note or "it was ended", next="run it again")
        if self._wait:
            self._result = self._client._decided(self._result)

    def close(self) -> None:
        """Stop following the run; the service cancels it if it still runs."""
        if self._lines is not None:
            self._lines.close()

    def __enter__(self) -> RemoteRun:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Approvals:
    """Runs of the service that wait for a person's approval."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def list(self, *, everything: bool = False) -> Any:
        """Return the open approvals, oldest first; with `everything` the answered ones as well."""
        return self._client.request("GET", f"/v1/approvals?all={str(everything).lower()}")["approvals"]

    def show(self, id: str) -> Any:  # noqa: A002 - the approval's field name
        """Return an approval in full: command, reasoning, risks and effect."""
        return self._client.request("GET", f"/v1/approvals/{quote(id, safe='')}")

    def approve(self, id: str, *, reason: str, digest: str = "") -> Any:  # noqa: A002 - as above
        """Approve exactly this run, once. If `digest` is given, anything with another digest is not approved."""
        return self._answer(id, "approve", reason, digest)

    def deny(self, id: str, *, reason: str) -> Any:  # noqa: A002 - as above
        """Deny an approval."""
        return self._answer(id, "deny", reason, "")

    def _answer(self, id: str, action: str, reason: str, digest: str) -> Any:  # noqa: A002 - as above
        path = f"/v1/approvals/{quote(id, safe='')}/{action}"
        return self._client.request("POST", path, {"reason": reason, "digest": digest})


class Changes:
    """Changes to projects that runs in overlays on the service have made."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def list(self) -> Any:
        """Return all kept changes, newest first."""
        return self._client.request("GET", "/v1/changes")["changes"]

    def show(self, id: str) -> Any:  # noqa: A002 - the run's field name
        """Return the changes of a run with their diffs."""
        return self._client.request("GET", f"/v1/changes/{quote(id, safe='')}")

    def apply(self, id: str, *, paths: Iterable[str] | None = None, named: Iterable[str] = ()) -> Any:  # noqa: A002
        """Write a run's changes to the project, all or nothing.

        `paths` selects some of them; `named` lists the protected paths to write too.
        """
        body = {"paths": None if paths is None else [*paths], "named": [*named]}
        return self._client.request("POST", f"/v1/changes/{quote(id, safe='')}/apply", body)

    def discard(self, id: str) -> Any:  # noqa: A002 - as above
        """Discard the changes of a run; the project was never touched."""
        return self._client.request("POST", f"/v1/changes/{quote(id, safe='')}/discard")

    def undo(self, id: str) -> Any:  # noqa: A002 - as above
        """Restore exactly the paths that were applied to their earlier state."""
        return self._client.request("POST", f"/v1/changes/{quote(id, safe='')}/undo")


class Environments:
    """Named sets of packages for runs and sessions on the service. Changing them needs the scope `admin`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def list(self) -> Any:
        """Return all environments, ordered by name."""
        return self._client.request("GET", "/v1/environments")["environments"]

    def show(self, name: str) -> Any:
        """Return an environment: its packages, their versions, and the hashes of the files they were installed from."""
        return self._client.request("GET", f"/v1/environments/{quote(name, safe='')}")

    def create(self, name: str, packages: Iterable[str]) -> Any:
        """Install packages on the service, in a cell that can reach only the package index, under this name."""
        return self._client.request("POST", "/v1/environments", {"name": name, "packages": [*packages]})

    def update(self, name: str) -> Any:
        """Install an environment's packages again, in the newest versions that fit its requirements."""
        return self._client.request("POST", f"/v1/environments/{quote(name, safe='')}/update")

    def remove(self, name: str) -> Any:
        """Remove an environment. Runs that use it keep its files until they end."""
        return self._client.request("DELETE", f"/v1/environments/{quote(name, safe='')}")


class InThreads(Generic[C]):
    """The calls of `core` for asyncio code: each one is made in a thread."""

    def __init__(self, core: C) -> None:
        self.core = core


def in_thread(
    method: Callable[Concatenate[C, P], T],
) -> Callable[Concatenate[InThreads[C], P], Coroutine[Any, Any, T]]:
    """Return an asynchronous version of a method, which calls it in a thread."""

    @functools.wraps(method)
    async def call(self: InThreads[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(method, self.core, *args, **kwargs)

    return call


class AsyncApprovals(InThreads[Approvals]):
    """`Approvals` for asyncio code."""

    list = in_thread(Approvals.list)
    show = in_thread(Approvals.show)
    approve = in_thread(Approvals.approve)
    deny = in_thread(Approvals.deny)


class AsyncChanges(InThreads[Changes]):
    """`Changes` for asyncio code."""

    list = in_thread(Changes.list)
    show = in_thread(Changes.show)
    apply = in_thread(Changes.apply)
    discard = in_thread(Changes.discard)
    undo = in_thread(Changes.undo)


class AsyncEnvironments(InThreads[Environments]):
    """`Environments` for asyncio code."""

    list = in_thread(Environments.list)
    show = in_thread(Environments.show)
    create = in_thread(Environments.create)
    update = in_thread(Environments.update)
    remove = in_thread(Environments.remove)


class AsyncClient(InThreads[Client]):
    """A `Client` for asyncio code."""

    def __init__(self, core: Client) -> None:
        super().__init__(core)
        self.approvals = AsyncApprovals(core.approvals)
        self.changes = AsyncChanges(core.changes)
        self.environments = AsyncEnvironments(core.environments)

    run = in_thread(Client.run)
    command = in_thread(Client.command)
    submit = in_thread(Client.submit)
    wait = in_thread(Client.wait)
    runs = in_thread(Client.runs)
    show = in_thread(Client.show)
    cancel = in_thread(Client.cancel)
    check = in_thread(Client.check)
    sessions = in_thread(Client.sessions)

    def session(self, **options: Any) -> AsyncRemoteSession:
        """Return a session on the service: see `Client.session`."""
        from .client_sessions import AsyncRemoteSession

        return AsyncRemoteSession(self.core, options)

    Session = session

    async def aclose(self) -> None:
        """Close the connections. The client can be used again."""
        self.core.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()


def _body(what: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a request for a run. Raises `InvalidRequest` for an unknown option."""
    must_be_known(options, _OPTIONS)
    limits = limits_of(options)
    plain = ("backend", "env", "environment", "expect", "label", "policy", "project", "reason", "secrets", "workspace")
    body = what | {name: options[name] for name in plain if options.get(name)}
    body |= lists_of(options, ("network", "outputs", "packages", "require"))
    if limits:
        body["limits"] = limits
    add_args(body, options)
    if options.get("stdin"):
        body["stdin"] = content_of(options["stdin"])
    if options.get("files"):
        body["files"] = files_of(options["files"])
    return body


# What a caller gives is read as the library reads it. Its module is loaded only when such an option is given.


def add_args(body: dict[str, Any], options: Mapping[str, Any]) -> None:
    """Add the option `args` to the body of a run. Raises `InvalidRequest` if the run is a command."""
    if not options.get("args"):
        return
    if body["language"] == "command":
        from ...pipeline.intake import args_with_command

        raise args_with_command()
    body["argv"] = lists_of(options, ("args",))["args"]


def must_be_known(options: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise `InvalidRequest` for an option that is not in `known`."""
    if not options.keys() <= set(known):
        from ...pipeline import intake

        intake.must_be_known("option", options, known)


def lists_of(options: Mapping[str, Any], names: Iterable[str]) -> dict[str, list[Any]]:
    """Return those of the named options that were given; each is a list. Raises `InvalidRequest` if one is not."""
    found = {name: options[name] for name in names if options.get(name)}
    if not found:
        return {}
    from ...pipeline.intake import words

    return {name: list(words(name, given)) for name, given in found.items()}


def limits_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the limits among the options, including `timeout` and `memory`. Raises `InvalidRequest`."""
    if options.keys().isdisjoint(("limits", "timeout", "memory")):
        return {}
    from ...pipeline.intake import limits_given

    limits = limits_given(options)
    return msgspec.structs.asdict(limits) if isinstance(limits, Limits) else dict(limits or {})


def files_of(given: Any) -> dict[str, Any]:
    """Return files for a request: from a mapping of names to contents, or from paths. Raises `InvalidRequest`."""
    from ...pipeline.intake import named_files

    return {name: content_of(one) for name, one in named_files(given).items()}


def content_of(given: bytes | str | os.PathLike[str]) -> Any:
    """Return content for a request: text as it is, bytes or the file at a path as base64. Raises `InvalidRequest`."""
    from ...pipeline.intake import content

    found = content(given)
    return found if isinstance(found, str) else {"base64": base64.b64encode(found).decode()}


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError as error:
        raise ServiceError("the answer can't be read", why="it is not JSON", next="check the address") from error


def result_of(shape: Any) -> Result:
    """Return the `Result` that a service sent. Raises `ServiceError` if it is malformed."""
    try:
        return _with_pictures(msgspec.convert(shape, resolved(Result)))
    except msgspec.ValidationError as error:
        raise ServiceError("the answer can't be read", why=str(error), next="use a client of its version") from error


def _decoded(data: bytes) -> Result:
    """Return the `Result` in a service's answer. Raises `ServiceError` if it is malformed."""
    try:
        return _with_pictures(_RESULT.decode(data))
    except msgspec.MsgspecError:  # not this type; or JSON that msgspec does not take: lone surrogates
        return result_of(_json(data))


def _with_pictures(result: Result) -> Result:
    if not result.displays:
        return result
    return msgspec.structs.replace(result, displays=tuple(map(_with_bytes, result.displays)))


def display_of(shape: Any) -> Display:
    """Return a display that a service sent, with pictures decoded from base64. Raises `ServiceError`."""
    try:
        return _with_bytes(msgspec.convert(shape, resolved(Display)))
    except msgspec.ValidationError as error:
        raise ServiceError("the answer can't be read", why=str(error), next="use a client of its version") from error


def _with_bytes(display: Display) -> Display:
    try:
        data = {
            kind: base64.b64decode(content, validate=True) if kind in PICTURES else content
            for kind, content in display.data.items()
        }
    except (ValueError, TypeError) as error:
        raise ServiceError("the answer can't be read", why="a picture is not base64", next="report it") from error
    return msgspec.structs.replace(display, data=data)


def _refused(status: int, data: bytes, retry: str) -> Exception:
    said: Any = None
    try:
        said = json.loads(data)
        what, why, step = (str(said.get(name, "")) for name in ("error", "why", "next"))
    except (ValueError, AttributeError):
        what, why, step = f"the service answered {status}", "", "check the address"
    if status in (400, 422):
        return InvalidRequest(what, why=why, next=step)
    code = str(said.get("code", "")) if isinstance(said, dict) else ""
    return ServiceError(what, why=why, next=step, status=status, retry=int(retry) if retry.isdigit() else 0, code=code)
