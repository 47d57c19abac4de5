"""Connections of the proxy: plain TCP, and TLS over another connection, also after some bytes of it were read."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress

CHUNK = 1 << 16
_MAX_HELLO = 1 << 16  # bytes of a TLS greeting


class Unreachable(ConnectionError):
    """The network has no way to the other side any more, for the reason that it says."""


def why_broken(error: Exception) -> str:
    """Return the reason on record for a connection that ended with this error."""
    if isinstance(error, Unreachable):
        return f"the host can't be reached: {error}"
    return "the connection was broken off, or took too long"


class Stream:
    """A connection. Bytes that were read can be put back."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer, self._back = reader, writer, b""
        # asyncio does this only for sockets that say that they are TCP, which an accepted one may not.
        if (connection := writer.get_extra_info("socket")) is not None:
            with suppress(OSError):  # it is gone already
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def unread(self, data: bytes) -> None:
        """Put bytes back: the next `read` returns them."""
        self._back = data + self._back

    async def read(self) -> bytes:
        """Return some bytes; none at the end, or if the other side broke the connection off. Raises `Unreachable`."""
        if self._back:
            data, self._back = self._back, b""
            return data
        try:
            return await self._reader.read(CHUNK)
        except (ConnectionError, TimeoutError):
            return b""
        except OSError as error:  # EHOSTUNREACH, ENETUNREACH: they have no class of their own
            raise Unreachable(error.strerror or str(error)) from error

    async def write(self, data: bytes) -> None:
        """Write everything; waits while the other side does not read. Raises ConnectionError if it is gone."""
        self._writer.write(data)
        try:
            await self._writer.drain()
        except (ConnectionError, TimeoutError):
            raise
        except OSError as error:  # as above
            raise Unreachable(error.strerror or str(error)) from error

    async def end(self) -> None:
        """Close the direction of writing."""
        with suppress(OSError, RuntimeError):
            if self._writer.can_write_eof():
                self._writer.write_eof()

    def close(self) -> None:
        with suppress(RuntimeError):  # the event loop is closed
            self._writer.close()

    def abort(self) -> None:
        """Close it at once, and drop what was not sent yet."""
        with suppress(RuntimeError):
            self._writer.transport.abort()


class TlsStream(Stream):
    """TLS over another stream."""

    def __init__(self, inner: Stream, context: ssl.SSLContext, *, server: bool, name: str | None = None) -> None:
        self._inner, self._back = inner, b""
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=server, server_hostname=name)

    async def handshake(self) -> None:
        """Do the TLS handshake. Raises ssl.SSLError, or ConnectionError if the other side closes the connection."""
        while True:
            try:
                self._tls.do_handshake()
                return await self._flush()
            except ssl.SSLWantReadError:
                await self._flush()
                if not await self._feed():
                    raise ConnectionResetError("it was closed during the TLS handshake") from None
            except ssl.SSLError:
                with suppress(ConnectionError):
                    await self._flush()  # the alert that says why
                raise

    async def _flush(self) -> None:
        if data := self._out.read():
            await self._inner.write(data)

    async def _feed(self) -> bool:
        data = await self._inner.read()
        if data:
            self._in.write(data)
        else:
            self._in.write_eof()
        return bool(data)

    async def read(self) -> bytes:
        if self._back:
            data, self._back = self._back, b""
            return data
        while True:
            try:
                return self._tls.read(CHUNK)
            except ssl.SSLWantReadError:
                with suppress(ConnectionError):
                    await self._flush()
                await self._feed()
            except ssl.SSLError:  # closed, properly or not, or garbled
                return b""

    async def write(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[self._tls.write(left) :]
        except ssl.SSLError as error:
            raise ConnectionResetError(str(error)) from error
        await self._flush()

    async def end(self) -> None:
        with suppress(ssl.SSLError, ConnectionError):
            self._tls.unwrap()
        with suppress(ConnectionError):
            await self._flush()

    def close(self) -> None:
        self._inner.close()

    def abort(self) -> None:
        self._inner.abort()


async def pump(client: Stream, upstream: Stream, passed: Callable[[int, int], None]) -> None:
    """Pass bytes on in both directions until both have ended, or one is broken off.

    `passed` is told how many bytes were read from the client and from the other side; what it raises ends everything.
    """

    async def one_way(source: Stream, target: Stream) -> None:
        while data := await source.read():
            passed(*((len(data), 0) if source is client else (0, len(data))))
            await target.write(data)
        await target.end()

    tasks = [asyncio.ensure_future(one_way(*way)) for way in ((client, upstream), (upstream, client))]
    try:
        with suppress(ConnectionError, TimeoutError):
            await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class NotTls(Exception):
    """The bytes are not a TLS ClientHello."""


async def server_name(stream: Stream, first: bytes) -> tuple[str | None, bytes]:
    """Read a ClientHello that begins with `first`. Returns its SNI (None without one) and all bytes read.

    OpenSSL parses it. Raises NotTls for anything else, and ConnectionError if it ends too early.
    """
    named: list[str | None] = []

    def found(_socket: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> int:
        named.append(name)
        return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME  # no more than the name is wanted

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = found
    incoming = ssl.MemoryBIO()
    greeting = context.wrap_bio(incoming, ssl.MemoryBIO(), server_side=True)
    data = first
    incoming.write(first)
    while True:
        try:
            greeting.do_handshake()
        except ssl.SSLWantReadError:
            if len(data) > _MAX_HELLO:
                raise NotTls("a TLS greeting that does not end") from None
            more = await stream.read()
            if not more:
                raise ConnectionResetError("it was closed during the TLS handshake") from None
            data += more
            incoming.write(more)
            continue
        except ssl.SSLError as error:
            if not named:
                raise NotTls(error.reason or "it is not a TLS greeting") from None
        if not named:
            raise NotTls("it is not a TLS greeting")
        return named[0], data
