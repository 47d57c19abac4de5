"""The trust boundary: one HTTP request with bounded parts, its answer, errors, and envelopes of the Connect protocol.

It is plain ASGI, because there are only a dozen routes, and most answers are streams in special formats.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Literal, TypeVar
from urllib.parse import parse_qsl

import msgspec

from ...backends.base import uncancellable
from ...lib.errors import BackendError, InvalidRequest, RedomaError, Refused
from ...telemetry import ERROR, tell
from ..http.problems import Answered, without_paths

MAX_JSON = 8 << 20
"""Maximum bytes of a JSON body: code, a command or input."""
MAX_QUERY = 16 << 10
_ENVELOPE = struct.Struct(">BI")
_END = 2  # the flag of the last envelope
_T = TypeVar("_T")

Code = Literal[
    "invalid_argument",
    "unauthenticated",
    "permission_denied",
    "not_found",
    "already_exists",
    "resource_exhausted",
    "failed_precondition",
    "deadline_exceeded",
    "unimplemented",
    "internal",
    "unavailable",
]
STATUS: dict[Code, int] = {
    "invalid_argument": 400,
    "unauthenticated": 401,
    "permission_denied": 403,
    "not_found": 404,
    "already_exists": 409,
    "resource_exhausted": 429,
    "failed_precondition": 412,
    "deadline_exceeded": 504,
    "unimplemented": 501,
    "internal": 500,
    "unavailable": 503,
}


class Problem(Exception):
    """An error to answer, with the code of the Connect protocol and the status of HTTP."""

    def __init__(self, code: Code, message: str, *, status: int = 0, retry: int = 0) -> None:
        super().__init__(message)
        self.code, self.message = code, message
        self.status, self.retry = status or STATUS[code], retry


class Gone(Problem):
    """The sandbox does not exist, or has ended. The SDK recognises the status and the words "was not found"."""

    def __init__(self, sandbox: str) -> None:
        super().__init__("unavailable", f"the sandbox {sandbox} was not found", status=502)


def problem_of(error: BaseException) -> Problem:
    """Convert any exception to the problem to answer."""
    match error:
        case Problem():
            return error
        case Answered():
            codes: dict[int, Code] = {status: code for code, status in STATUS.items()}
            return Problem(codes.get(error.status, "internal"), _words(error), status=error.status, retry=error.retry)
        case Refused():
            return Problem("permission_denied", _words(error))
        case InvalidRequest():
            return Problem("invalid_argument", _words(error))
        case OSError():
            return _of_a_file(error)
        case BackendError():
            tell(ERROR, "e2b.failed", error=type(error).__name__)
            return Problem("unavailable", "the sandbox can't do this now")
        case RedomaError():
            return Problem("failed_precondition", _words(error))
    tell(ERROR, "e2b.bug", error=type(error).__name__)
    return Problem("internal", "the server failed: this is a bug in Redoma")


def _words(error: RedomaError) -> str:
    return without_paths(str(error))[:2000]


def _of_a_file(error: OSError) -> Problem:
    # Use our own message: the code in the sandbox may have chosen the one in the exception.
    number = error.errno or errno.EIO
    name = error.filename if isinstance(error.filename, str) else ""
    message = f"{name[:500]}: {os.strerror(number)}" if name else os.strerror(number)
    match number:
        case errno.ENOENT:
            return Problem("not_found", message)
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return Problem("permission_denied", message)
        case errno.ENOSPC | errno.EDQUOT | errno.EFBIG:
            return Problem("resource_exhausted", message, status=507)
    return Problem("invalid_argument", message)


class E2bRequest:
    """A request, with methods to answer it."""

    def __init__(self, scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Any, path: str) -> None:
        self.method: str = scope["method"]
        self.path = path
        self._headers: list[tuple[bytes, bytes]] = scope["headers"]
        self._query: bytes = scope["query_string"]
        self._receive, self._send = receive, send
        self._complete = False
        self.begun = False
        """Whether the answer has begun, so that its status can't be changed."""

    @functools.cached_property
    def query(self) -> dict[str, str]:
        """The query parameters. Raises `Problem` if there are too many or they are too long."""
        text = self._query.decode("utf-8", "replace")
        try:
            if len(text) <= MAX_QUERY:
                return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=50))
        except ValueError:
            pass
        raise Problem("invalid_argument", "the query is too long")

    def header(self, name: str) -> str:
        """Return the value of a header, or an empty string if it was not sent exactly once."""
        found = [value for key, value in self._headers if key.lower() == name.encode()]
        return found[0].decode("latin-1").strip() if len(found) == 1 else ""

    def has_headers(self, prefix: str) -> bool:
        """Return whether any header name begins with `prefix`."""
        return any(key.lower().startswith(prefix.encode()) for key, _ in self._headers)

    # --- its body ---

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives. Raises `Problem` if the client disconnects before its end."""
        while not self._complete:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Problem("invalid_argument", "the request ended early")
            self._complete = not message.get("more_body", False)
            if message.get("body"):
                yield message["body"]

    async def body(self) -> bytes:
        """Return the whole body. Raises `Problem` if it is longer than `MAX_JSON`."""
        found = bytearray()
        async for chunk in self.chunks():
            found += chunk
            if len(found) > MAX_JSON:
                raise Problem("resource_exhausted", f"the request has more than {MAX_JSON:,} bytes", status=413)
        return bytes(found)

    async def json(self, kind: type[_T]) -> _T:
        """Return the body, decoded as JSON of this type. An empty body is an empty object. Raises `Problem`."""
        return decoded(await self.body() or b"{}", kind)

    async def message(self, kind: type[_T]) -> _T:
        """Return the only message of a server-streaming call. Raises `Problem`."""
        async for message in self.messages(kind):
            return message
        raise Problem("invalid_argument", "there is no message")

    async def messages(self, kind: type[_T]) -> AsyncIterator[_T]:
        """Yield the messages of a client stream. Raises `Problem`."""
        buffer = bytearray()
        async for chunk in self.chunks():
            buffer += chunk
            while len(buffer) >= _ENVELOPE.size:
                flag, size = _ENVELOPE.unpack_from(buffer)
                if flag or size > MAX_JSON:
                    why = "compressed messages can't be read" if flag else f"a message has more than {MAX_JSON:,} bytes"
                    raise Problem("invalid_argument", why)
                if len(buffer) < _ENVELOPE.size + size:
                    break
                data = bytes(buffer[_ENVELOPE.size : _ENVELOPE.size + size])
                del buffer[: _ENVELOPE.size + size]
                yield decoded(data, kind)
        if buffer:
            raise Problem("invalid_argument", "the last message is not complete")

    async def until_gone(self, work: Coroutine[Any, Any, _T]) -> _T | None:
        """Run `work` after the body was read. Cancel it, and return None, if the client disconnects first."""
        task, gone = asyncio.ensure_future(work), asyncio.ensure_future(self._gone())
        try:
            await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not task.done():
                task.cancel()
                await uncancellable(asyncio.wait([task]))
        return None if task.cancelled() else task.result()

    async def _gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            continue

    # --- its answer ---

    async def answer(self, content: Any = None, *, status: int = 200, headers: dict[str, str] | None = None) -> None:
        """Answer with JSON, or with nothing."""
        body = b"" if content is None else msgspec.json.encode(content)
        given = {"content-length": str(len(body)), **(headers or {})}
        if content is not None:
            given.setdefault("content-type", "application/json")
        await self.begin(status, given)
        await self.end(body)

    async def begin(self, status: int, headers: dict[str, str]) -> None:
        """Send the status and the headers; the body follows."""
        self.begun = True
        pairs = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
        pairs.append((b"x-content-type-options", b"nosniff"))
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})

    async def piece(self, data: bytes) -> None:
        """Send a piece of the body."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        """Send the last piece of the body."""
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    # --- streams of the Connect protocol ---

    async def begin_stream(self) -> None:
        """Send the status and the headers of a stream."""
        await self.begin(200, {"content-type": "application/connect+json"})

    async def envelope(self, message: Any) -> None:
        """Send one message of the stream."""
        data = msgspec.json.encode(message)
        await self.piece(_ENVELOPE.pack(0, len(data)) + data)

    async def end_stream(self, problem: Problem | None = None) -> None:
        """End the stream, with an error if there is one."""
        said = {} if problem is None else {"error": {"code": problem.code, "message": problem.message}}
        data = msgspec.json.encode(said)
        await self.end(_ENVELOPE.pack(_END, len(data)) + data)


def decoded(data: bytes, kind: type[_T]) -> _T:
    """Decode JSON of this type, ignoring unknown fields. Raises `Problem`."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem("invalid_argument", f"the request can't be read: {str(error)[:200]}") from None


def keepalive_of(request: E2bRequest) -> float:
    """Return the seconds between keepalives of a stream."""
    given = request.header("keepalive-ping-interval")
    return float(min(max(int(given), 1), 90)) if given.isdigit() and len(given) < 6 else 90.0


def deadline_of(request: E2bRequest) -> float | None:
    """Return the seconds that a call may take, or None without a limit."""
    given = request.header("connect-timeout-ms")
    return max(int(given), 1) / 1000 if given.isdigit() and len(given) <= 10 else None


def moment(seconds: float) -> str:
    """Format a time as RFC 3339."""
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1e6):06d}Z"
