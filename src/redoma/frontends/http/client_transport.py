"""HTTP to a service: requests, and streams of events.

It uses the standard library, so that no further package has to be installed.
"""

from __future__ import annotations

import http.client
import json
import re
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from ...lib.errors import InvalidRequest, ServiceError
from ...models import Chunk, Display, Result
from .client_shapes import display_of, json_of, result_of

_MAX_IDLE = 10.0
"""Seconds of idleness after which a connection is not used again: the server closes it soon after."""


class Transport:
    """Requests to a service. Any number of threads may share it; each gets its own connection."""

    def __init__(self, url: str, key: str, timeout: float) -> None:
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

    def request(self, method: str, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None) -> Any:
        """Send a request and return the decoded JSON answer. Raises `InvalidRequest` or `ServiceError`."""
        return json_of(self.fetch(method, path, body, headers=headers)[0])

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
        with self._or_else(self._drop):
            response = self._send(connection, method, path, body, headers)
            data = response.read()
        self._local.used = time.monotonic()
        if response.status >= 400:
            raise _refused(response, data)
        return data, response.headers

    def follow(self, path: str, body: dict[str, Any] | None = None) -> Events:
        """Start a run with `body`, or without one follow an existing run. Raises `InvalidRequest` or `ServiceError`."""
        connection = self.connection()
        with self._or_else(lambda: _end(connection)):
            response = self._send(connection, "GET" if body is None else "POST", path, body)
            if response.status >= 400:
                raise _refused(response, response.read())
        return Events(connection, response)

    def _send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: Any,
        headers: Mapping[str, str] | None = None,
    ) -> http.client.HTTPResponse:
        raw = isinstance(body, bytes)
        kind = "application/octet-stream" if raw else "application/json"
        given = {"Authorization": f"Bearer {self._key}", "Content-Type": kind, **(headers or {})}
        connection.request(method, path, body if raw or body is None else json.dumps(body).encode(), given)
        return connection.getresponse()

    @contextmanager
    def _or_else(self, end: Callable[[], None]) -> Iterator[None]:
        """Call `end` if anything fails, also by Ctrl-C in the middle of an answer.

        Raises `ServiceError` for an error of the connection.
        """
        try:
            yield
        except (OSError, http.client.HTTPException) as error:
            end()
            raise self._unreachable(error) from error
        except BaseException:
            end()
            raise

    def _unreachable(self, error: Exception) -> ServiceError:
        where = self._parts.path if self._parts.scheme == "unix" else self._parts.netloc.rpartition("@")[2]
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return ServiceError(f"the service at {where} can't be reached", why=why, next="start it with `redoma serve`")

    # --- connections ---

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

    def close(self) -> None:
        """Close the connections of all threads. The next request opens another."""
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


class Events:
    """What a run prints and displays, over a separate connection; after the last, `result` has its result.

    If it started the run, closing it cancels the run. Raises `ServiceError`.
    """

    def __init__(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        self._connection, self._response = connection, response
        self._result: Result | None = None
        self._note = ""

    def __iter__(self) -> Events:
        return self

    def __next__(self) -> Chunk | Display:
        for name, data in self._named():
            if name == "output":
                return Chunk(data["stream"], data["text"])
            if name == "display":
                return display_of(data)
            if name == "result":
                self._result = result_of(data)
            elif name == "state":
                self._note = data["note"]
        self.close()
        raise StopIteration

    def _named(self) -> Iterator[tuple[str, Any]]:
        """Yield the events that follow, each with its name."""
        name = ""
        try:
            for line in self._response:
                if line.startswith(b"event: "):
                    name = line[7:].strip().decode()
                elif line.startswith(b"data: "):
                    yield name, json_of(line[6:])
        except (OSError, ValueError, AttributeError, http.client.HTTPException) as error:  # or another thread closed it
            self.close()
            raise ServiceError("the run was lost", why=str(error), next="see what became of it: runs()") from error

    def result(self, what: str = "run", again: str = "run it again") -> Result:
        """Return the result, after the last event. Raises `ServiceError`, in these words, if there is none."""
        if self._result is None:
            raise ServiceError(f"the {what} has no result", why=self._note or "it was ended", next=again)
        return self._result

    def close(self) -> None:
        """Close the connection, even while another thread waits for the next event."""
        _end(self._connection)


def _end(connection: http.client.HTTPConnection) -> None:
    if connection.sock is not None:
        with suppress(OSError):
            connection.sock.shutdown(socket.SHUT_RDWR)
    connection.close()


def _refused(response: http.client.HTTPResponse, data: bytes) -> InvalidRequest | ServiceError:
    """Return the error that an answer describes."""
    status, retry = response.status, response.headers.get("Retry-After", "")
    try:
        said = json.loads(data)
    except ValueError:
        said = None
    if not isinstance(said, dict):
        said = {"error": f"the service answered {status}", "next": "check the address"}
    what, why, step, code = (str(said.get(name, "")) for name in ("error", "why", "next", "code"))
    if status in (400, 422):
        return InvalidRequest(what, why=why, next=step)
    return ServiceError(what, why=why, next=step, status=status, retry=int(retry) if retry.isdigit() else 0, code=code)


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
