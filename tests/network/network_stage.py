"""Hosts under names of their own, on this machine's loopback, and a proxy to reach them by."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import re
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from redoma.models.network import SecretUse, host_rules, placeholder
from redoma.network.authority import Authority
from redoma.network.credentials import Credentials, Held
from redoma.network.proxy import Proxy


class Seen(dict[str, Any]):
    """A request as a host has got it."""


class Host:
    """A real server for one name. It says what it was sent; some paths make it do more:

    /echo answers with the headers and the body; /pieces with the value of `Authorization`, a byte at a time; /header
    with it in a header, /trailer in a trailer, /hints in an answer before the answer, /zipped compressed; /gzip with
    the body compressed; /to?URL redirects, /carry?URL with it behind the URL;
    /endless never stops.
    """

    def __init__(self, name: str = "api.test", *, tls: Authority | None = None) -> None:
        self.name, self.seen = name, list[Seen]()
        self.files: dict[str, bytes] = {}
        """Path → what it answers there."""
        host = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                host.seen.append(self.told())
                path, _, query = self.path.partition("?")
                if path in host.files:
                    kind = "text/html" if path.endswith("/") else "application/octet-stream"
                    return self.say(200, host.files[path], **{"Content-Type": kind})
                match path:
                    case "/to":
                        self.say(302, b"", Location=unquote(query))
                    case "/carry":
                        self.say(302, b"", Location=unquote(query) + quote(self.headers.get("Authorization", "")))
                    case "/pieces":
                        self.pieces(self.headers.get("Authorization", "").encode())
                    case "/header":
                        self.say(200, b"", Echo=self.headers.get("Authorization", ""))
                    case "/name":
                        name = re.sub(r"[^A-Za-z0-9]", "", self.headers.get("Authorization", ""))
                        self.say(200, b"", **{name: "1", f"x-{name.lower()}": "1"})
                    case "/broken-status" | "/broken-header" | "/broken-chunk":
                        self.broken(path, self.headers.get("Authorization", ""))
                    case "/trailer":
                        self.pieces(b"x", trailer=self.headers.get("Authorization", ""))
                    case "/gzip":
                        self.say(200, gzip.compress(self.body), **{"Content-Encoding": "gzip"})
                    case "/zipped":
                        told = self.headers.get("Authorization", "").encode()
                        self.say(200, gzip.compress(told), **{"Content-Encoding": "gzip"})
                    case "/hints":
                        self.send_response_only(103)
                        self.send_header("Echo", self.headers.get("Authorization", ""))
                        self.end_headers()
                        self.say(200, b"")
                    case "/endless":
                        self.endless()
                    case "/large":
                        self.say(200, b"x" * int(parse_qs(query)["size"][0]))
                    case _ if host.files:
                        self.say(404, b"not here")
                    case _:
                        self.say(200, json.dumps(host.seen[-1]).encode())
                return None

            do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_OPTIONS = do_PATCH = do_TRACE = answer  # noqa: N815

            def told(self) -> Seen:
                if self.headers.get("Transfer-Encoding") == "chunked":
                    self.body = b""
                    while size := int(self.rfile.readline(), 16):
                        self.body += self.rfile.read(size)
                        self.rfile.readline()
                    while self.rfile.readline().strip():
                        continue
                else:
                    self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                body = self.body.decode("latin-1")
                return Seen(method=self.command, path=self.path, headers=headers, body=body)

            def say(self, status: int, body: bytes, **headers: str) -> None:
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def pieces(self, data: bytes, trailer: str = "") -> None:
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for byte in data:
                    self.wfile.write(b"1\r\n%c\r\n" % byte)
                    self.wfile.flush()
                self.wfile.write(b"0\r\n" + (f"Echo: {trailer}\r\n".encode() if trailer else b"") + b"\r\n")

            def broken(self, path: str, echo: str) -> None:
                head = "HTTP/1.1 200 OK\r\n"
                self.wfile.write({
                    "/broken-status": f"HTTP/1.1 {echo}\r\n\r\n",
                    "/broken-header": f"{head}{echo}\r\n\r\n",
                    "/broken-chunk": f"{head}Transfer-Encoding: chunked\r\n\r\n{echo}\r\n",
                }[path].encode())  # fmt: skip
                self.close_connection = True

            def endless(self) -> None:
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                with contextlib.suppress(OSError):
                    while True:
                        self.wfile.write(b"1000\r\n" + b"x" * 4096 + b"\r\n")

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            request_queue_size = 512
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                pass  # clients break connections off on purpose

        self._server = Server(("127.0.0.1", 0), Handler)
        if tls is not None:
            context = tls.context(name)
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def rule(self) -> str:
        return f"{self.name}:{self.port}=127.0.0.1"

    @property
    def url(self) -> str:
        return f"{self.name}:{self.port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextlib.contextmanager
def hosts(*names: str, tls: Authority | None = None) -> Iterator[list[Host]]:
    found = [Host(name, tls=tls) for name in names]
    try:
        yield found
    finally:
        for host in found:
            host.close()


def trusting(authority: Authority) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.load_verify_locations(cadata=authority.certificate.decode())
    return context


AUTHORITY = Authority()
"""That of hosts in tests: what a real one would have from a public authority."""
PROXY_AUTHORITY = Authority()
"""That of proxies in tests, which only guests trust."""


class Served:
    """A proxy, and where it listens."""

    def __init__(self, proxy: Proxy, port: int) -> None:
        self.proxy, self.port = proxy, port

    async def say(self, data: bytes, *, then: bytes = b"") -> bytes:
        """Send bytes, and `then` once something has come back; all that comes back until the end."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        first = b""
        try:
            writer.write(data)
            if then:
                first = await reader.read(65536)
                writer.write(then)
            writer.write_eof()
            async with asyncio.timeout(60):
                return first + await reader.read()
        except OSError:
            return first
        finally:
            writer.close()

    async def tls(self, to: str, name: str, request: bytes, context: ssl.SSLContext) -> bytes:
        """Open a tunnel to `to`, TLS in it for `name`, and send a request; all that comes back."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(f"CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            if b" 200 " not in head:
                return head + await reader.read()
            await writer.start_tls(context, server_hostname=name)
            writer.write(request)
            async with asyncio.timeout(60):
                return await reader.read()
        except (ConnectionError, ssl.SSLError, asyncio.IncompleteReadError) as error:
            return f"broken off: {error!r}".encode()
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError, ssl.SSLError, TimeoutError):
                async with asyncio.timeout(2):
                    await writer.wait_closed()

    async def recorded(self, count: int) -> None:
        """Wait until so many requests are on record: that of a tunnel is when both sides have ended."""
        async with asyncio.timeout(60):
            while len(self.proxy.records) < count:  # noqa: ASYNC110 - nobody tells of it
                await asyncio.sleep(0.005)

    @property
    def told(self) -> list[tuple[str, str, str]]:
        return [(one.decision, f"{one.method} {one.host}{one.path}", one.why) for one in self.proxy.records]


@contextlib.asynccontextmanager
async def proxied(
    rules: Iterable[Any],
    *,
    secrets: dict[str, tuple[str, SecretUse]] | None = None,
    names: dict[str, list[str]] | None = None,
    max_bytes: int = 1 << 26,
    max_connections: int = 256,
) -> AsyncIterator[Served]:
    """A proxy with these rules. `names` are the addresses that the name service would give."""

    async def resolve(name: str) -> list[str]:
        if names is None or name not in names:
            raise socket.gaierror(-2, "Name or service not known")
        return names[name]

    held = [
        Held(name, value.encode(), placeholder("run", name).encode(), use)
        for name, (value, use) in (secrets or {}).items()
    ]
    listener = socket.create_server(("127.0.0.1", 0))
    proxy = Proxy(
        listener,
        host_rules(rules),
        credentials=Credentials(held),
        authority=lambda: PROXY_AUTHORITY,
        max_bytes=max_bytes,
        max_connections=max_connections,
        resolve=resolve,
        trust=lambda: trusting(AUTHORITY),
    )
    async with proxy:
        yield Served(proxy, listener.getsockname()[1])


def get(url: str, *headers: str, method: str = "GET", body: str = "") -> bytes:
    """A request as a client sends it to a proxy, or, with a path only, inside of a tunnel."""
    parts = urlsplit(url)
    length = [f"Content-Length: {len(body)}"] if body else []
    given = [] if any(header.lower().startswith("host:") for header in headers) else [f"Host: {parts.netloc}"]
    lines = [f"{method} {url} HTTP/1.1", *given, *headers, *length, "Connection: close", "", ""]
    return "\r\n".join(lines).encode() + body.encode()


def inside(host: str, path: str, *headers: str, method: str = "GET", body: str = "") -> bytes:
    """A request inside of a tunnel."""
    return get(path, f"Host: {host}", *headers, method=method, body=body)
