"""Listening: where, with which limits, and stopping when told to."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ...lib.errors import ConfigError, InvalidRequest
from ...lib.unix_socket import listen_private
from .app import build
from .service import Service

Application = Callable[[Any, Any, Any], Any]
"""Called with scope, receive and send."""
DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8800
_REQUEST_SECONDS = 30.0
"""How long a request may take to arrive, from its first byte to its last."""
_MAX_HEADERS = 32 << 10
_MAX_PIECE = 16 << 10
"""Bytes that are read of one connection in one turn of the event loop: parsing many tiny chunks is slow."""
_MAX_CONNECTIONS = 1000
_EVENTS = 3.0
"""Seconds that connections get to end beyond the time that runs get."""


class Connection(H11Protocol):
    """A connection of one client. h11 is strict about what a request is, so that two readers can't differ over where
    one ends; and a request that does not arrive in time is dropped, so that slow clients can't hold connections."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        transport.max_size = _MAX_PIECE  # type: ignore[attr-defined] # asyncio reads 256 KiB at once otherwise
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        super().connection_lost(exc)

    def _watch(self) -> None:
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._stop_watching()
        elif self._timer is None:
            self._timer = self.loop.call_later(_REQUEST_SECONDS, self._too_slow)

    def _stop_watching(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self.transport.abort()


class _Server(uvicorn.Server):
    """uvicorn's server, which tells the service when it is to stop, and ends without raising the signal again."""

    def __init__(self, config: uvicorn.Config, service: Service, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._service, self._ready = service, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def handle_exit(self, sig: int, frame: Any) -> None:
        if self.should_exit:  # a second time: at once
            self._service.give_up()
        self._service.drain()
        self.should_exit = True


def listen(host: str, port: int, path: Path | None) -> socket.socket:
    """A socket to listen on. Raises `ConfigError` if there can be none."""
    try:
        if path is not None:
            return listen_private(path)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # By its protocol asyncio knows that it may switch Nagle's algorithm off, which would hold answers up by 40 ms.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        return listening
    except (OSError, OverflowError) as error:
        where = path or f"{host}:{port}"
        raise ConfigError(
            f"the service can't listen on {where}",
            why=getattr(error, "strerror", None) or str(error),
            next="choose another address, or stop what uses it",
        ) from error


def is_local(host: str) -> bool:
    """Whether only this machine can connect to an address. Raises `InvalidRequest` for a name that is no address."""
    try:
        return ipaddress.ip_address("127.0.0.1" if host == "localhost" else host).is_loopback
    except ValueError:
        raise InvalidRequest(
            f"{host!r} is no address", why="the service listens on an address", next="use one such as 127.0.0.1"
        ) from None


def _is_news(record: logging.LogRecord) -> bool:
    """Return whether a message of uvicorn is worth showing. E2B's interface leaves an answer unfinished on purpose when
    a sandbox is killed, because the SDK expects that."""
    return "without completing response" not in record.getMessage()


def _by_port(main: Any, others: dict[int, Application]) -> Any:
    """One application that is another on some ports."""
    if not others:
        return main

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        local = scope.get("server") or ("", None)
        await others.get(local[1] or 0, main)(scope, receive, send)

    return answer


def serve(
    service: Service,
    *,
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    path: Path | None = None,
    more: Mapping[int, Application] | None = None,
    ready: Callable[[str, list[str]], None] = lambda url, others: None,
) -> None:
    """Serve until SIGTERM or SIGINT. `more` are applications with ports of their own, at the same address. `ready` is
    called with the URL, and those of `more`, once connections are accepted.

    Raises `ConfigError` for an address that others can reach, unless there is a key: without one nobody could use it.
    """
    if path is None and not is_local(host) and not service.keys.any_good():
        raise ConfigError(
            f"the service does not listen on {host}",
            why="others can reach that address, and there is no key yet",
            next="make one with `redoma keys create NAME`, and put a server that speaks TLS in front",
        )
    address = "127.0.0.1" if host == "localhost" else host
    listening = listen(address, port, path)
    others: dict[int, Application] = {}
    sockets = [listening]
    try:
        for number, application in (more or {}).items():
            sockets.append(listen(address, number, None))
            others[sockets[-1].getsockname()[1]] = application
        shown = f"[{host}]" if ":" in host else host
        url = f"unix:{path}" if path is not None else f"http://{shown}:{listening.getsockname()[1]}"
        config = uvicorn.Config(
            _by_port(build(service), others),
            http=Connection,
            ws="none",
            lifespan="on",
            loop="asyncio",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=_MAX_CONNECTIONS,
            h11_max_incomplete_event_size=_MAX_HEADERS,
            timeout_keep_alive=15,
            timeout_graceful_shutdown=int(service.settings.drain + _EVENTS),
        )
        urls = [f"http://{shown}:{number}" for number in others]
        logging.getLogger("uvicorn.error").addFilter(_is_news)
        server = _Server(config, service, lambda: ready(url, urls))
        try:
            asyncio.run(server.serve(sockets=sockets))
        except SystemExit:  # how uvicorn says that the application could not start
            raise ConfigError("the service could not start", why=service.failure, next="fix that first") from None
    finally:
        for each in sockets:
            each.close()
        if path is not None:
            path.unlink(missing_ok=True)
