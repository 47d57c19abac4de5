"""Collectors beside the machine's own: a file, an HTTP or TCP endpoint, a listed command. Whatever is at the other end
may be huge, slow, or no file at all; each takes a bounded time and keeps a bounded piece."""

from __future__ import annotations

import http.client
import os
import socket
import stat
import time
from typing import Any
from urllib.parse import urlsplit

from ..lib.errors import RedomaError
from ..models import KiB
from ..output.capture import clean
from ..pipeline.executor import AsyncExecutor
from ..redaction import Redactor
from .aside import Aside, Late
from .model import CommandProbe, FileProbe, HttpProbe, Probe, TcpProbe

_FILE_SECONDS = 5.0
_MOST_BODY = 64 * KiB
_MOST_TEXT = 4000  # characters of a body or an output that become a fact
_MOST_LINES = 20
_LONGEST_LINE = 300


async def probe(name: str, given: Probe, aside: Aside, executor: AsyncExecutor) -> dict[str, Any]:
    """Its facts. Raises what went wrong in collecting them; that something is down is a fact."""
    match given:
        case FileProbe():
            return await aside.run(name, lambda: _file(given), _FILE_SECONDS)
        case TcpProbe():
            return await _tcp(name, given, aside)
        case HttpProbe():
            return await _http(name, given, aside)
        case CommandProbe():
            return await _command(name, given, executor)


def text_of(raw: bytes | str, most: int = _MOST_TEXT) -> str:
    """Somebody's text as a fact: harmless to a terminal, without secrets, and not long."""
    return clean(raw if isinstance(raw, str) else raw.decode("utf-8", "replace"), Redactor())[0][:most]


def search(pattern: str) -> Any:
    """Compiled; bounded in memory, and in time by what RE2 is. Raises re2.error."""
    import re2

    options = re2.Options()
    options.max_mem, options.log_errors = 1 << 20, False
    return re2.compile(pattern, options)


# --- a file ---


def _file(given: FileProbe) -> dict[str, Any]:
    facts: dict[str, Any] = {"exists": False, "size": 0, "age": None, "matches": 0, "lines": []}
    try:
        # O_NONBLOCK: opening a FIFO that nobody writes to would otherwise wait for ever.
        fd = os.open(given.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return facts
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise RedomaError(f"{given.path} can't be read", why="it is not a regular file")
        facts |= {"exists": True, "size": info.st_size, "age": round(max(0.0, time.time() - info.st_mtime), 1)}
        if given.pattern is not None:
            facts |= _lines(_tail(fd, info.st_size, given.tail), given.pattern)
    finally:
        os.close(fd)
    return facts


def _tail(fd: int, size: int, most: int) -> bytes:
    """At most so many bytes at its end, from the beginning of a line unless a single one is longer. Files in /proc say
    that their size is 0."""
    start, data = max(0, size - most), b""
    while len(data) < most and (piece := os.pread(fd, most - len(data), start + len(data))):
        data += piece
    rest = data.partition(b"\n")[2] if start else b""
    return rest or data


def _lines(data: bytes, pattern: str) -> dict[str, Any]:
    found = search(pattern)
    lines = [line for line in data.decode("utf-8", "replace").splitlines() if found.search(line)]
    return {"matches": len(lines), "lines": [text_of(line, _LONGEST_LINE) for line in lines[-_MOST_LINES:]]}


# --- an endpoint ---


async def _tcp(name: str, given: TcpProbe, aside: Aside) -> dict[str, Any]:
    def connect() -> None:
        socket.create_connection((given.host, given.port), timeout=given.timeout).close()

    start, error = time.monotonic(), ""
    try:
        await aside.run(name, connect, given.timeout)
    except (OSError, Late, ValueError) as failure:
        error = text_of(_why(failure), _LONGEST_LINE)
    return {"open": not error, "seconds": round(time.monotonic() - start, 4), "error": error or None}


async def _http(name: str, given: HttpProbe, aside: Aside) -> dict[str, Any]:
    url = urlsplit(given.url)
    make = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    connection = make(url.hostname or "", url.port, timeout=given.timeout)
    facts: dict[str, Any] = {"ok": False, "status": None, "size": 0, "body": "", "error": None}

    sockets: list[socket.socket] = []

    def fetch() -> dict[str, Any]:
        connection.connect()
        sockets.append(connection.sock)  # which the connection hands on to a response that ends with it
        # As it is: whoever answers doesn't decide where we look next, and no proxy of the environment does.
        target = (url.path or "/") + (f"?{url.query}" if url.query else "")
        connection.request("GET", target, headers={"User-Agent": "redoma", "Accept-Encoding": "identity"})
        with connection.getresponse() as response:
            body = response.read(_MOST_BODY)
            return {"status": response.status, "size": len(body), "raw": body}

    def hang_up() -> None:
        """A server that sends a byte a second is never late for a socket's own time-out."""
        for each in sockets:
            each.shutdown(socket.SHUT_RDWR)

    start = time.monotonic()
    try:
        found = await aside.run(name, fetch, given.timeout, stop=lambda: _quietly(hang_up))
    except (OSError, http.client.HTTPException, Late, ValueError) as failure:
        facts["error"] = text_of(_why(failure), _LONGEST_LINE)
    else:
        raw = found.pop("raw")
        as_expected = given.expect is None or search(given.expect).search(raw.decode("utf-8", "replace")) is not None
        facts |= {**found, "body": text_of(raw), "ok": 200 <= found["status"] < 300 and as_expected}
        if not facts["ok"]:
            facts["error"] = f"status {found['status']}" if as_expected else "the body is not as expected"
    finally:
        _quietly(connection.close)
    return {**facts, "seconds": round(time.monotonic() - start, 4)}


def _quietly(close: Any) -> None:
    try:
        close()
    except OSError:  # it is closed already, which is what was wanted
        return


def _why(failure: Exception) -> str:
    return (failure.strerror if isinstance(failure, OSError) and failure.strerror else str(failure)) or repr(failure)


# --- a command ---


async def _command(name: str, given: CommandProbe, executor: AsyncExecutor) -> dict[str, Any]:
    """Through the whole pipeline: list, policy, approval, audit. It is asked for under its own label, so that an
    approval can be pinned to it."""
    limits = {"time": given.timeout, "output_bytes": _MOST_BODY, "output_total": 16 * _MOST_BODY}
    submission = executor.prepare(
        given.command, given.run, {"limits": limits, "label": f"monitor:fact:{name}", "reason": f"the fact {name!r}"}
    )
    result = await executor.submit(submission)
    if result.status.ending != "ran":
        raise RedomaError(f"{given.run} did not run it", why=result.error or result.status.value)
    return {
        **{"exit_code": result.shell_exit, "status": result.status.value, "seconds": round(result.usage.wall, 3)},
        **{"stdout": result.stdout[:_MOST_TEXT], "stderr": result.stderr[:_MOST_TEXT]},
    }
