"""A run that reaches the hosts it names: what the backends that support this have in common.

Proxies are in a process of their own, one for each backend of an executor, which is started when it is first needed and
ends with the backend. So a run with many connections does not compete for this interpreter's lock with runs that start
and end here, and what hostile code and hosts send is not read in this process. It gets two descriptors for each run:
the listening socket from inside the cell, and a connection over which it is told the rules and secrets
(`network/messages.py`). What comes back is typed and bounded. A run whose proxy is lost fails, and the next run starts
another process.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import msgspec

from ..lib.errors import BackendError, BackendUnavailable
from ..lib.extras import pip_install
from ..lib.files import reason
from ..models import HostRule, Isolation, NetworkRequest, Request
from ..models.network import placeholder, written
from .base import Outcome, keep_requests, uncancellable
from .spawn import Child, spawn

if TYPE_CHECKING:
    from ..network.messages import ProxyJob

Run = Callable[[Isolation, dict[str, str], dict[str, bytes]], Awaitable[Outcome]]
"""Runs the request, given its isolation, variables, and files by absolute paths inside."""

_NEEDED = ("h11", "cryptography", "idna")
_BOOT = "import json; sys.path[:] = json.loads(sys.argv.pop(1)); from redoma.backends.hosts_process import main; main()"
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_START_TIME, _SEND_TIME, _END_TIME = 60.0, 5.0, 30.0
_MAX_SHOWN = 5


async def run_with_hosts(
    request: Request,
    isolation: Isolation,
    listener: socket.socket,
    proxies: ProxyProcess,
    run: Run,
    *,
    place: str = "/run",
) -> Outcome:
    """Run a request while its proxy serves `listener`, a socket inside, which is closed here. `place` is a directory
    inside for the files that programs need to use the proxy.

    Returns an outcome that includes the network requests. Raises `BackendUnavailable` if packages are missing,
    `BackendError` if the proxy is lost. An error or a cancellation carries the requests, too (`kept_requests`).
    """
    isolation = msgspec.structs.replace(isolation, layers={**isolation.layers, "hosts": _promise(request.network)})
    requests: list[NetworkRequest] = []
    try:
        async with proxies.serve(request, listener, requests, place) as (env, files):
            outcome = await run(isolation, env, files)
    except BaseException as error:
        keep_requests(error, requests)
        raise
    return msgspec.structs.replace(outcome, network=tuple(requests))


def _promise(rules: tuple[HostRule, ...]) -> str:
    """Describe the layer `hosts` for the result."""
    shown = ", ".join(map(str, rules[:_MAX_SHOWN])) + (" and more" if len(rules) > _MAX_SHOWN else "")
    return f"reached only through a proxy outside, which permits {shown}"


_lock = threading.Lock()  # two threads must not start the same process twice
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


class ProxyProcess:
    """The process that serves the proxies of a backend's runs. Threads, event loops and forked processes may share
    this: a forked process starts its own.
    """

    def __init__(self) -> None:
        self._started: _Started | None = None

    def warm(self) -> None:
        """Start the process, unless it runs. Raises `BackendUnavailable` if packages are missing."""
        _check_packages()
        with _lock:
            self._running()

    @asynccontextmanager
    async def serve(
        self, request: Request, listener: socket.socket, requests: list[NetworkRequest], place: str
    ) -> AsyncIterator[tuple[dict[str, str], dict[str, bytes]]]:
        """Serve `listener` with the proxy of a request, and close every connection at the end. Gives the variables and
        files that the run needs; adds to `requests` whatever it asks for, as it ends.

        Raises `BackendError` if the process is lost. What runs in this context is cancelled then.
        """
        from ..network import inside

        with listener:
            _check_packages()
            address = written(*listener.getsockname()[:2])
            started, connection = self._hand_over(listener)
        try:
            served = await _Served.begin(connection, _job(request, place), requests)
        except BackendError:
            self._drop(started)
            raise
        try:
            async with served.watched():
                yield inside.variables(address, place, served.certificate), inside.files(place, served.certificate)
        finally:
            try:
                await uncancellable(served.end())  # a run that is cancelled leaves no connection behind either
            finally:
                if not served.whole:
                    self._drop(started)
        if not served.whole:
            raise _lost("its last requests are not on record")

    def close(self) -> None:
        """End the process, and wait for that."""
        with _lock:
            started, self._started = self._started, None
        if started is not None:
            started.close()

    def _hand_over(self, listener: socket.socket) -> tuple[_Started, socket.socket]:
        """Give a listening socket to the process, which may have to be started. Returns our end of its connection."""
        ours, theirs = socket.socketpair()
        with theirs, _lock:
            for again in (True, False):
                started = self._running()
                try:
                    socket.send_fds(started.control, [b"r"], [listener.fileno(), theirs.fileno()])
                    return started, ours
                except OSError as error:  # it was killed since, or stopped
                    self._started = None
                    started.close(0)
                    if not again:
                        ours.close()
                        raise _lost(reason(error)) from error
        raise AssertionError("unreachable")

    def _running(self) -> _Started:
        if self._started is not None and self._started.owner != os.getpid():
            self._started.close()
            self._started = None
        if self._started is None:
            self._started = _Started()
        return self._started

    def _drop(self, started: _Started) -> None:
        """End a process that was lost or does not answer; the next run starts another."""
        with _lock:
            if self._started is not started:
                return
            self._started = None
        started.close(0)


class _Started:
    """A process of proxies."""

    def __init__(self) -> None:
        # The packages that this process would import; nothing relative to a directory, which may be a hostile project.
        paths = [path for path in sys.path if os.path.isabs(path)]
        paths.append(os.path.dirname(_PACKAGE))
        try:
            pid, descriptor = spawn(_BOOT, msgspec.json.encode(paths).decode())
        except OSError as error:
            raise BackendError(
                "the network proxy could not be started", why=str(error), next="free some processes"
            ) from error
        self.owner, self.control = os.getpid(), socket.socket(fileno=descriptor)
        self.control.settimeout(_SEND_TIME)
        self._child = Child(pid)

    def close(self, milliseconds: int = 2000) -> None:
        """End it, with all proxies, and wait so long before it is killed. In a forked process, only close our copies of
        its descriptors.
        """
        self.control.close()
        if self.owner == os.getpid():
            self._child.end(milliseconds)
        else:
            self._child.forget()


class _Served:
    """Our end of the connection about one run."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        certificate: bytes,
        requests: list[NetworkRequest],
    ) -> None:
        self._reader, self._writer, self._requests = reader, writer, requests
        self.certificate = certificate
        self.whole = False
        """Whether the proxy has ended, and every request is there."""
        self._listening = asyncio.ensure_future(self._listen())

    @classmethod
    async def begin(cls, connection: socket.socket, job: ProxyJob, requests: list[NetworkRequest]) -> _Served:
        """Send the job, and wait until the proxy serves. Raises `BackendError` if it doesn't."""
        from ..network.messages import Broken, Ready, frame, read_answer

        reader, writer = await asyncio.open_connection(sock=connection)
        try:
            async with asyncio.timeout(_START_TIME):
                writer.write(frame(job))
                await writer.drain()
                answer = await read_answer(reader)
            if not isinstance(answer, Ready):
                raise Broken("it says something else first")
            return cls(reader, writer, answer.certificate, requests)
        except (Broken, OSError) as error:  # a TimeoutError is one
            writer.close()
            raise _lost(f"it did not begin to serve: {str(error) or 'it took too long'}") from None
        except BaseException:
            writer.close()
            raise

    async def _listen(self) -> None:
        """Take the records as they come, until the proxy has ended or is lost."""
        from ..network.messages import MAX_RECORDED, Broken, Ended, Recorded, read_answer

        with suppress(Broken):
            while len(self._requests) <= MAX_RECORDED:
                answer = await read_answer(self._reader)
                if not isinstance(answer, Recorded):
                    self.whole = isinstance(answer, Ended)
                    return
                self._requests.append(answer.request)

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Cancel what runs in this context when the proxy is lost, and raise `BackendError` instead."""
        task, lost = asyncio.current_task(), False
        assert task is not None  # noqa: S101 - this is a coroutine

        def stop(_: object) -> None:
            nonlocal lost
            lost = True
            task.cancel()

        self._listening.add_done_callback(stop)
        try:
            yield
        except asyncio.CancelledError:
            if lost and task.uncancel() == 0:
                raise _lost("its process was ended, or failed") from None
            raise
        finally:
            self._listening.remove_done_callback(stop)
        if lost:  # the run ended in the same moment
            task.uncancel()

    async def end(self) -> None:
        """Have the proxy end, and take its last records."""
        with suppress(OSError, RuntimeError):
            self._writer.write_eof()
        await asyncio.wait([self._listening], timeout=_END_TIME)
        self._listening.cancel()
        self._writer.close()


def _job(request: Request, place: str) -> ProxyJob:
    import ssl  # most runs name no hosts

    from ..network.credentials import Held
    from ..network.messages import ProxyJob

    paths = ssl.get_default_verify_paths()  # by the environment, which the process doesn't have
    return ProxyJob(
        rules=request.network,
        held=tuple(
            Held(
                name,
                request.secrets.get(name, "").encode("utf-8", "surrogateescape"),
                placeholder(request.id, name).encode(),
                use,
            )
            for name, use in request.held.items()
        ),
        max_bytes=request.limits.network_bytes,
        max_connections=request.limits.connections,
        place=place,
        cafile=paths.cafile or "",
        capath=paths.capath or "",
    )


def _check_packages() -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise BackendUnavailable(
            "named hosts can't be reached",
            why=f"not installed: {', '.join(missing)}",
            next=pip_install("redoma[network]"),
        )


def _lost(why: str) -> BackendError:
    return BackendError("the network proxy of the run was lost", why=why, next="run it again")
