"""Listen on an address with limits on requests and connections, and stop on a signal."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httptools
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

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
_MAX_IGNORED = 64 << 10
"""Bytes that are still read of a body whose request was answered before they came (a refused key, say): to close
at once would cost the client its connection, and may cost it the answer."""
_MAX_CONNECTIONS = 1000
_EVENTS = 3.0
"""Seconds that connections get to close, in addition to the time that runs get to end."""


class Connection(HttpToolsProtocol):
    """A client's connection. On top of uvicorn's own, it makes sure of this:

    - Two parsers can't disagree about where a request ends: see `_must_be_clear`, and llhttp's own strict checks.
    - A request has a bounded head, bounded trailers, and a bounded time to arrive: slow clients hold no connections.
    - A client that sends several requests at once has one of them answered at a time, and the rest are not read.
    """

    _timer: asyncio.TimerHandle | None = None
    _left: int | None = None
    """Bytes to come of the body of a request that offered another protocol, such as h2c: llhttp leaves them to us. The
    request is answered as if it had not, and is the connection's last: what follows it is not read."""
    _head_is_complete = False
    _head_size = 0
    """Bytes of the request's header and trailer fields so far."""
    _ignored = 0
    """Bytes received of a body after its request was answered."""
    _unread = 0
    """Bytes received since the parser last reported a complete head, a part of a body or the end of a request."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # uvicorn's own signature
        transport.max_size = _MAX_PIECE  # type: ignore[attr-defined] # asyncio's default is 256 KiB
        super().connection_made(_Joined(transport, self.loop))  # type: ignore[arg-type] # it has what uvicorn uses
        self.flow = _Flow(self.transport, self)
        self._watch()

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._unread += len(data)
        before = self._unread
        try:
            if self._left is None:
                self.parser.feed_data(data)
            else:
                self._take(data)
        except httptools.HttpParserUpgrade as offer:
            self._take(data[offer.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("The request can't be read.")
        if self._unread == before > _MAX_HEADERS:  # a header, a trailer or an extension of a chunk that does not end
            self.send_400_response("The request's header is too large.")
        if not self.transport.is_closing():
            self._watch()

    def _take(self, data: bytes) -> None:
        part = data[: self._left]
        self._left = (self._left or 0) - len(part)
        if self.cycle.more_body:
            self.on_body(part)
        if self.cycle.more_body and not self._left:
            super().on_message_complete()
        self._unread = 0

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        super().connection_lost(exc)

    # --- what the parser reports; an error raised in here is answered with 400 ---

    def on_message_begin(self) -> None:
        self._head_is_complete, self._head_size, self._ignored = False, 0, 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_size += len(name) + len(value) + 4
        if self._head_size > _MAX_HEADERS:
            raise ValueError("the header is too large")
        if not self._head_is_complete:  # a trailer is dropped: it must not pass for a header that was checked
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._unread, self._head_is_complete = 0, True
        _must_be_clear(self.parser.get_http_version(), self.headers)
        super().on_headers_complete()
        if self.parser.should_upgrade():
            given = dict(self.headers)
            if b"transfer-encoding" in given:
                raise ValueError("chunks after an offer of another protocol")
            self._left, self.cycle.keep_alive = int(given.get(b"content-length", b"0")), False

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        if self.cycle.response_complete:
            self._ignored += len(body)
            if self._ignored > _MAX_IGNORED:
                self.transport.close()
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unread = 0
        if self._left is None:
            super().on_message_complete()
        if self.cycle.response_complete:  # it was answered early, and is over only now
            self.cycle.more_body = False
            self._stop_watching()

    def send_400_response(self, msg: str) -> None:
        now = self.cycle
        is_own = now is not None and now.more_body and not now.response_started and not self.pipeline
        if now is None or now.response_complete or is_own:
            super().send_400_response(msg)
        else:  # it would be read as the answer to a request before
            self.transport.abort()

    def on_response_complete(self) -> None:
        answered_early = not self.pipeline and self.cycle.more_body
        self.transport.flush()  # type: ignore[attr-defined] # see `_Joined`
        super().on_response_complete()
        if answered_early and int(dict(self.headers).get(b"content-length", b"0")) > _MAX_IGNORED:
            self.transport.close()

    # --- the time a request may take to arrive ---

    @property
    def _is_answering(self) -> bool:
        """Whether a complete request is being answered, or waits for that."""
        now = self.cycle
        return bool(self.pipeline) or (now is not None and not now.more_body and not now.response_complete)

    def _watch(self) -> None:
        if self._is_answering:
            self._stop_watching()
        elif self._timer is None:
            self._timer = self.loop.call_later(_REQUEST_SECONDS, self._too_slow)

    def _stop_watching(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        if not self._is_answering:
            self.transport.abort()


class _Joined:
    """A transport that sends what is written in one turn of the event loop at once: an answer's head and its body."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._held: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._held:
            self._loop.call_soon(self.flush)
        self._held.append(data)

    def flush(self) -> None:
        """Send what was written."""
        if self._held:
            held, self._held = self._held, []
            self._transport.write(b"".join(held))

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _Flow(FlowControl):
    """uvicorn's flow control; it does not read on while requests of the connection wait for their turn."""

    def __init__(self, transport: asyncio.Transport, connection: Connection) -> None:
        super().__init__(transport)
        self._connection = connection

    def resume_reading(self) -> None:
        if not self._connection.pipeline:
            super().resume_reading()


def _must_be_clear(version: str, headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Raise `ValueError` for a request that another server could read differently, where llhttp does not.

    llhttp itself refuses unclear lengths and encodings, spaces before a colon, folded lines and bare line feeds.
    """
    names = [name for name, _ in headers]
    if version not in ("1.0", "1.1"):
        raise ValueError("neither HTTP/1.0 nor HTTP/1.1")
    hosts = names.count(b"host")
    if hosts > 1 or (version == "1.1" and not hosts):
        raise ValueError("not one host")
    encodings = [value.strip().lower() for name, value in headers if name == b"transfer-encoding"]
    if encodings and (version == "1.0" or encodings != [b"chunked"]):  # another server may look for a length instead
        raise ValueError("an encoding other than chunked, or in HTTP/1.0")


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
            f"{host!r} is not an address", why="the service listens on an address", next="use one such as 127.0.0.1"
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


def _configured(service: Service, others: dict[int, Application]) -> uvicorn.Config:
    return uvicorn.Config(
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
        timeout_keep_alive=15,
        timeout_graceful_shutdown=int(service.settings.drain + _EVENTS),
    )


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
        urls = [f"http://{shown}:{number}" for number in others]
        logging.getLogger("uvicorn.error").addFilter(_is_news)
        server = _Server(_configured(service, others), service, lambda: ready(url, urls))
        try:
            asyncio.run(server.serve(sockets=sockets))
        except SystemExit:  # uvicorn exits if the application could not start
            raise ConfigError("the service could not start", why=service.failure, next="fix that first") from None
    finally:
        for each in sockets:
            each.close()
        if path is not None:
            path.unlink(missing_ok=True)
