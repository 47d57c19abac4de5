"""Collects the facts of one round. All collectors run at once; each is bounded in time and size, and may fail alone.

There are collectors for the machine itself (`machine`) and the probes of a plan: a file, an HTTP or TCP endpoint, or a
command on a whitelist. The target of a probe may be huge, slow, or not a file at all.
"""

from __future__ import annotations

import asyncio
import http.client
import os
import socket
import stat
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from ..lib.errors import RedomaError
from ..lib.sanitise import sanitise
from ..lib.text import compile_re2
from ..models import KiB
from ..pipeline.executor import AsyncExecutor
from ..redaction import Redactor, clean
from . import machine
from .model import CommandProbe, Facts, FileProbe, HttpProbe, Probe, TcpProbe

T = TypeVar("T")

_SECONDS = 5.0  # for a fact of the machine, which usually takes milliseconds
MOUNT_SECONDS = 2.0
_FILE_SECONDS = 5.0
_COMMAND_SECONDS = 5.0  # in addition to its own time: for starting and ending the command
_MAX_FACT = 256 * 1024  # bytes of one fact
_MAX_PROBLEM = 300
_MAX_BODY = 64 * KiB
_MAX_TEXT = 4000  # characters of a body or an output that are kept
_MAX_LINES = 20
MAX_MEMORY = 1 << 20  # bytes, for a compiled pattern
_MAX_LINE = 300


async def collect(
    probes: Mapping[str, Probe], executor: AsyncExecutor, calls: BoundedCalls
) -> tuple[Facts, dict[str, str]]:
    """Return facts by name, and for each that is None the reason. Raises `RedomaError` if psutil is not installed."""
    machine.require()
    jobs: dict[str, Awaitable[Any]] = {name: calls.run(name, work, _SECONDS) for name, work in machine.FACTS.items()}
    jobs["mounts"] = _mounts(calls)
    for name, probe in probes.items():
        work = run_probe(name, probe, calls, executor)
        jobs[name] = _within(probe.timeout + _COMMAND_SECONDS, work) if isinstance(probe, CommandProbe) else work
    collected = await asyncio.gather(*jobs.values(), return_exceptions=True)
    facts: Facts = {"now": time.time(), "host": machine.host()}
    problems: dict[str, str] = {}
    for name, fact in zip(jobs, collected, strict=True):
        if isinstance(fact, BaseException) and not isinstance(fact, Exception):
            raise fact  # a cancellation, or an exit
        problem = _problem_of(fact)
        facts[name] = None if problem else fact
        if problem:
            problems[name] = sanitise(problem)[:_MAX_PROBLEM]
    if facts["mounts"] is None:
        facts["disk"], problems["disk"] = None, problems["mounts"]
    else:
        spaces = [mount.pop("space") for mount in facts["mounts"]]
        facts["disk"] = [space for space in spaces if space is not None]
    return facts, problems


def _problem_of(fact: Any) -> str:
    """Return why there is no fact, if it is an exception, or why it can't be stored as data; empty if it can."""
    if isinstance(fact, Exception):
        return str(fact) or type(fact).__name__
    try:
        return "it is too large" if len(msgspec.json.encode(fact)) > _MAX_FACT else ""
    except (ValueError, TypeError) as error:  # a name that is not valid text
        return f"it is not plain data ({error})"


async def _mounts(calls: BoundedCalls) -> list[dict[str, Any]]:
    """Check each mount separately: one whose server is gone must not delay the others."""
    mounts = await calls.run("mounts", machine.storage_mounts, _SECONDS)

    async def look(mount: machine.Mount) -> dict[str, Any]:
        space, answers, error = None, True, ""
        try:
            space = await calls.run(f"mount {mount.path}", lambda: machine.space(mount), MOUNT_SECONDS)
        except (OSError, TimedOut) as failure:
            # It is not a failure if we may not enter the directory, or if another mount hides it.
            answers, error = isinstance(failure, PermissionError | FileNotFoundError), sanitise(str(failure))
        return {
            "mount": sanitise(mount.path),
            "kind": mount.kind,
            "broke": mount.broke,
            "answers": answers,
            "error": error or None,
            "space": space,
        }

    return list(await asyncio.gather(*map(look, mounts)))


async def _within(seconds: float, work: Awaitable[Any]) -> Any:
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        raise TimedOut(f"it has not ended within {seconds:g} s") from None


# --- work that may hang ---


class TimedOut(Exception):
    """A call has not returned in time."""


class BoundedCalls:
    """Makes calls that may hang, each on its own thread, with a limited wait.

    Nothing can interrupt a system call on a file system whose server is gone. So the thread is abandoned; it is a
    daemon, so it doesn't delay our exit. While it hangs, no other call with the same name is made.
    """

    def __init__(self) -> None:
        self._hanging: dict[str, threading.Thread] = {}

    async def run(
        self, name: str, work: Callable[[], T], seconds: float, *, stop: Callable[[], None] | None = None
    ) -> T:
        """Return what `work` returns, or raise what it raises. Raises `TimedOut` after `seconds`. If `work` still runs
        when the wait ends, `stop` is called.
        """
        if (hanging := self._hanging.get(name)) is not None:
            if hanging.is_alive():
                raise TimedOut("it still hangs from an earlier round")
            del self._hanging[name]
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def settle(failure: BaseException | None, value: Any) -> None:
            if not done.done():
                done.set_exception(failure) if failure is not None else done.set_result(value)

        def body() -> None:
            failure, value = None, None
            try:
                value = work()
            except Exception as error:
                failure = error
            with suppress(RuntimeError):  # the caller has stopped waiting, and the loop is closed
                loop.call_soon_threadsafe(settle, failure, value)

        thread = threading.Thread(target=body, name=f"redoma-monitor-{name}", daemon=True)
        thread.start()
        try:
            async with asyncio.timeout(seconds):
                return await done
        except TimeoutError:
            if not done.cancelled():  # it raised that itself, or finished at that very moment
                return done.result()
            self._hanging[name] = thread
            raise TimedOut(f"it has not answered within {seconds:g} s") from None
        finally:
            if stop is not None and thread.is_alive():
                stop()


# --- probes ---


async def run_probe(name: str, probe: Probe, calls: BoundedCalls, executor: AsyncExecutor) -> dict[str, Any]:
    """Return the facts of one probe. Raises if they can't be collected; that a server is down is a fact, no error."""
    match probe:
        case FileProbe():
            return await calls.run(name, lambda: _file(probe), _FILE_SECONDS)
        case TcpProbe():
            return await _tcp(name, probe, calls)
        case HttpProbe():
            return await _http(name, probe, calls)
        case CommandProbe():
            return await _command(name, probe, executor)


def text_of(raw: bytes | str, max_length: int = _MAX_TEXT) -> str:
    """Return foreign text as a fact: harmless to a terminal, without secrets, and bounded."""
    return clean(raw if isinstance(raw, str) else raw.decode("utf-8", "replace"), Redactor())[0][:max_length]


def _file(probe: FileProbe) -> dict[str, Any]:
    facts: dict[str, Any] = {"exists": False, "size": 0, "age": None, "matches": 0, "lines": []}
    try:
        # O_NONBLOCK: opening a FIFO without a writer would otherwise block forever.
        fd = os.open(probe.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return facts
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise RedomaError(f"{probe.path} can't be read", why="it is not a regular file")
        facts |= {"exists": True, "size": info.st_size, "age": round(max(0.0, time.time() - info.st_mtime), 1)}
        if probe.pattern is not None:
            facts |= _lines(_tail(fd, info.st_size, probe.tail), probe.pattern)
    finally:
        os.close(fd)
    return facts


def _tail(fd: int, size: int, max_bytes: int) -> bytes:
    """Return the last `max_bytes` bytes of a file, from the beginning of a line unless one line is longer. `size` may
    be 0 although there is content, as for files in /proc.
    """
    start, data = max(0, size - max_bytes), b""
    while len(data) < max_bytes and (piece := os.pread(fd, max_bytes - len(data), start + len(data))):
        data += piece
    rest = data.partition(b"\n")[2] if start else b""
    return rest or data


def _lines(data: bytes, pattern: str) -> dict[str, Any]:
    regex = compile_re2(pattern, max_memory=MAX_MEMORY)
    lines = [line for line in data.decode("utf-8", "replace").splitlines() if regex.search(line)]
    return {"matches": len(lines), "lines": [text_of(line, _MAX_LINE) for line in lines[-_MAX_LINES:]]}


async def _tcp(name: str, probe: TcpProbe, calls: BoundedCalls) -> dict[str, Any]:
    def connect() -> None:
        socket.create_connection((probe.host, probe.port), timeout=probe.timeout).close()

    start, error = time.monotonic(), ""
    try:
        await calls.run(name, connect, probe.timeout)
    except (OSError, TimedOut, ValueError) as failure:
        error = text_of(_why(failure), _MAX_LINE)
    return {"open": not error, "seconds": round(time.monotonic() - start, 4), "error": error or None}


async def _http(name: str, probe: HttpProbe, calls: BoundedCalls) -> dict[str, Any]:
    url = urlsplit(probe.url)
    make = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    connection = make(url.hostname or "", url.port, timeout=probe.timeout)
    facts: dict[str, Any] = {"ok": False, "status": None, "size": 0, "body": "", "error": None}

    sockets: list[socket.socket] = []

    def fetch() -> dict[str, Any]:
        connection.connect()
        sockets.append(connection.sock)  # later the connection may no longer have it
        # No redirects and no proxies of the environment: the server must not decide what is fetched next.
        target = (url.path or "/") + (f"?{url.query}" if url.query else "")
        connection.request("GET", target, headers={"User-Agent": "redoma", "Accept-Encoding": "identity"})
        with connection.getresponse() as response:
            body = response.read(_MAX_BODY)
            return {"status": response.status, "size": len(body), "raw": body}

    def hang_up() -> None:
        """Shut the socket down: a server that sends one byte a second never exceeds the time-out of the socket."""
        for each in sockets:
            each.shutdown(socket.SHUT_RDWR)

    start = time.monotonic()
    try:
        answer = await calls.run(name, fetch, probe.timeout, stop=lambda: _quietly(hang_up))
    except (OSError, http.client.HTTPException, TimedOut, ValueError) as failure:
        facts["error"] = text_of(_why(failure), _MAX_LINE)
    else:
        raw = answer.pop("raw")
        as_expected = (
            probe.expect is None
            or compile_re2(probe.expect, max_memory=MAX_MEMORY).search(raw.decode("utf-8", "replace")) is not None
        )
        facts |= {**answer, "body": text_of(raw), "ok": 200 <= answer["status"] < 300 and as_expected}
        if not facts["ok"]:
            facts["error"] = f"status {answer['status']}" if as_expected else "the body is not as expected"
    finally:
        _quietly(connection.close)
    return {**facts, "seconds": round(time.monotonic() - start, 4)}


def _quietly(close: Any) -> None:
    try:
        close()
    except OSError:  # it is already closed
        return


def _why(failure: Exception) -> str:
    return (failure.strerror if isinstance(failure, OSError) and failure.strerror else str(failure)) or repr(failure)


async def _command(name: str, probe: CommandProbe, executor: AsyncExecutor) -> dict[str, Any]:
    """Run a command on a whitelist through the whole pipeline: policy, approval, audit. It has its own label, so that
    an approval of it can be pinned.
    """
    limits = {"time": probe.timeout, "output_bytes": _MAX_BODY, "output_total": 16 * _MAX_BODY}
    submission = executor.prepare(
        probe.command, probe.run, {"limits": limits, "label": f"monitor:fact:{name}", "reason": f"the fact {name!r}"}
    )
    result = await executor.submit(submission)
    if result.status.ending != "ran":
        raise RedomaError(f"{probe.run} did not run it", why=result.error or result.status.value)
    return {
        "exit_code": result.shell_exit,
        "status": result.status.value,
        "seconds": round(result.usage.wall, 3),
        "stdout": result.stdout[:_MAX_TEXT],
        "stderr": result.stderr[:_MAX_TEXT],
    }
