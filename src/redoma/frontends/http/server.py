"""Listen on an address with limits on requests and connections, and stop on a signal."""

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
"""An ASGI application: called with scope, receive and send."""
DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8800
_REQUEST_SECONDS = 30.0
"""How long a request may take to arrive, from its first byte (or, the first request, from the connection) on."""
_MAX_HEADERS = 32 << 10
_MAX_PIECE = 16 << 10
"""Maximum bytes read from one connection in one turn of the event loop: parsing many tiny chunks is slow."""
_MAX_CONNECTIONS = 1000
_EVENTS = 3.0
"""Seconds that connections get to close, in addition to the time that runs get to end."""


class Connection(H11Protocol):
    """A client's connection.

    h11 parses requests strictly, so that two parsers can't disagree about where a request ends. A connection whose
    request does not arrive in time is dropped, so that slow clients can't hold connections.
    """

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # uvicorn's own signature
        transport.max_size = _MAX_PIECE  # type: ignore[attr-defined] # asyncio's default is 256 KiB
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
    """uvicorn's server; it also drains the service on a signal, and does not raise the signal again at its end."""

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
        if self.should_exit:  # the second signal: don't wait for runs
            self._service.give_up()
        self._service.drain()
        self.should_exit = True


def listen(host: str, port: int, path: Path | None) -> socket.socket:
    """Return a socket bound to `path`, or without one to `host` and `port`. Raises `ConfigError` if that fails."""
    try:
        if path is not None:
            return listen_private(path)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # Only if the protocol is given does asyncio switch off Nagle's algorithm, which would delay answers by 40 ms.
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
    """Return whether only this machine can connect to `host`. Raises `InvalidRequest` if it is not an IP address."""
    try:
        return ipaddress.ip_address("127.0.0.1" if host == "localhost" else host).is_loopback
    except ValueError:
        raise InvalidRequest(
            f"{host!r} is no address", why="the service listens on an address", next="use one such as 127.0.0.1"
        ) from None


def _is_news(record: logging.LogRecord) -> bool:
    """Return whether to log a message of uvicorn: not that a response is incomplete.

    The E2B interface leaves a response incomplete on purpose when a sandbox is killed, because the SDK expects that.
    """
    return "without completing response" not in record.getMessage()


def _by_port(main: Any, others: dict[int, Application]) -> Any:
    """Return an application that passes requests on the ports in `others` to those applications, the rest to `main`."""
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
    """Serve until SIGTERM or SIGINT.

    `more` are further applications by port, at the same address. Once connections are accepted, `ready` is called with
    the service's URL and a list of the URLs of `more`.

    Raises `ConfigError` if the service can't listen or start, or if other machines can reach the address and there is
    no valid key: without one nobody could use the service.
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
        except SystemExit:  # uvicorn exits if the application could not start
            raise ConfigError("the service could not start", why=service.failure, next="fix that first") from None
    finally:
        for each in sockets:
            each.close()
        if path is not None:
            path.unlink(missing_ok=True)
