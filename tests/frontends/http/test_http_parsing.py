"""What the service takes for one request, by bytes on a connection: no process, no sandbox, only its own parser.

Each check of ours is shown to be needed: uvicorn's own protocol takes what ours refuses.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from redoma.frontends.http import server as listening
from redoma.frontends.http.server import Connection

OK = b"HTTP/1.1 200"
BAD = b"HTTP/1.1 400"
POST = b"POST /a HTTP/1.1\r\nHost: x\r\n"


class Recorder:
    """An application that notes what it was sent; it answers `/early` before it has read the body."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, bytes]] = []
        self.headers: list[dict[bytes, bytes]] = []
        self.hold: asyncio.Event | None = None

    async def __call__(self, scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        body, more = b"", scope["path"] != "/early"
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message["body"], message["more_body"]
        if self.hold is not None:
            await self.hold.wait()
        self.seen.append((scope["path"], body))
        self.headers.append(dict(scope["headers"]))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})


class Listening:
    """A server of this process."""

    def __init__(self, port: int, app: Recorder, connections: set[Any]) -> None:
        self.port, self.app, self.connections = port, app, connections

    async def send(self, *pieces: bytes, pause: float = 0.0, seconds: float = 5.0) -> bytes:
        """Send bytes and return all that comes back until the connection is closed, or nothing has come for long."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        answer = b""
        try:
            with contextlib.suppress(ConnectionError):
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(pause)
            with contextlib.suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(seconds):
                    while part := await reader.read(65536):
                        answer += part
        finally:
            writer.close()
        return answer


@contextlib.asynccontextmanager
async def serving(protocol: type[HttpToolsProtocol]) -> AsyncIterator[Listening]:
    app = Recorder()
    config = uvicorn.Config(app, ws="none", lifespan="off", log_config=None, timeout_keep_alive=1)
    config.load()
    state = ServerState()
    made = await asyncio.get_running_loop().create_server(lambda: protocol(config, state, {}), "127.0.0.1", 0)
    async with made:
        yield Listening(made.sockets[0].getsockname()[1], app, state.connections)
        for task in state.tasks:
            task.cancel()


UNCLEAR = {
    "two lengths": POST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "two equal lengths": POST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "a list of lengths": POST + b"Content-Length: 3, 3\r\n\r\nabc",
    "a length and an encoding": POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "an encoding and a length": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
    "an unknown encoding": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunked is not the last": POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "two encodings": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "an encoding with a tab": POST + b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
    "a signed length": POST + b"Content-Length: +3\r\n\r\nabc",
    "a negative length": POST + b"Content-Length: -3\r\n\r\nabc",
    "a hexadecimal length": POST + b"Content-Length: 0x3\r\n\r\nabc",
    "an empty length": POST + b"Content-Length: \r\n\r\n",
    "a length that overflows": POST + b"Content-Length: 18446744073709551619\r\n\r\nabc",
    "a space before the colon": POST + b"Content-Length : 3\r\n\r\nabc",
    "a folded line": POST + b"X: a\r\n b\r\nContent-Length: 0\r\n\r\n",
    "a header that begins with a space": POST + b" X: a\r\n\r\n",
    "a line without a colon": POST + b"Content-Length\r\n\r\n",
    "a null in a value": POST + b"X: a\x00b\r\n\r\n",
    "a return in a value": POST + b"X: a\rContent-Length: 3\r\n\r\n",
    "bare line feeds": b"POST /a HTTP/1.1\nHost: x\nContent-Length: 0\n\n",
    "one bare line feed": POST + b"X: a\nContent-Length: 0\r\n\r\n",
    "a chunk of no size": POST + b"Transfer-Encoding: chunked\r\n\r\n\r\n\r\n",
    "a chunk of a signed size": POST + b"Transfer-Encoding: chunked\r\n\r\n+3\r\nabc\r\n0\r\n\r\n",
    "a chunk of a size that overflows": POST
    + b"Transfer-Encoding: chunked\r\n\r\n10000000000000003\r\nabc\r\n0\r\n\r\n",
    "a chunk that is longer than its size": POST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcX\r\n0\r\n\r\n",
    "a chunk that ends with a line feed": POST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\n0\r\n\r\n",
    "a size that ends with a line feed": POST + b"Transfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n",
    "no host": b"POST /a HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
    "two hosts": POST + b"Host: y\r\nContent-Length: 0\r\n\r\n",
    "an encoding in HTTP/1.0": b"POST /a HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "HTTP/2.0 in the line": b"POST /a HTTP/2.0\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
    "HTTP/0.9": b"GET /a\r\n\r\n",
    "an unknown method": b"GARBAGE /a HTTP/1.1\r\nHost: x\r\n\r\n",
    "a method in lower case": b"get /a HTTP/1.1\r\nHost: x\r\n\r\n",
    "bytes above ASCII in the address": b"GET /\xe4 HTTP/1.1\r\nHost: x\r\n\r\n",
    "a tunnel": b"CONNECT example.org:443 HTTP/1.1\r\nHost: x\r\n\r\n",
    "chunks after an offer of another protocol": POST
    + b"Connection: Upgrade\r\nUpgrade: h2c\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "another protocol": b"\x16\x03\x01\x02\x00" * 50,
}
OURS = {"no host", "two hosts", "an encoding in HTTP/1.0", "HTTP/2.0 in the line"}
"""Those that llhttp takes."""


@pytest.mark.parametrize("name", UNCLEAR)
async def test_a_request_that_two_servers_could_read_differently_is_refused(name: str) -> None:
    async with serving(Connection) as server:
        answer = await server.send(UNCLEAR[name])
        assert answer.startswith(BAD), answer
        assert server.app.seen == []
        assert answer.count(b"HTTP/1.1") == 1
    if name in OURS:  # without our check it is taken
        async with serving(HttpToolsProtocol) as plain:
            assert (await plain.send(UNCLEAR[name])).startswith(OK)


async def test_a_clear_request_is_taken() -> None:
    async with serving(Connection) as server:
        assert (await server.send(POST + b"Content-Length: 3\r\nConnection: close\r\n\r\nabc")).startswith(OK)
        chunked = POST + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n2;x=y\r\nde\r\n1\r\nf\r\n0\r\n\r\n"
        assert (await server.send(chunked)).startswith(OK)
        assert (await server.send(b"GET /old HTTP/1.0\r\n\r\n")).startswith(OK)
        pieces = [bytes([byte]) for byte in POST + b"Content-Length: 3\r\nConnection: close\r\n\r\nghi"]
        assert (await server.send(*pieces)).startswith(OK)
        assert server.app.seen == [("/a", b"abc"), ("/a", b"def"), ("/old", b""), ("/a", b"ghi")]


async def test_a_trailer_is_no_header() -> None:
    sent = POST + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n1\r\na\r\n0\r\nAuthorization: stolen\r\n\r\n"
    async with serving(HttpToolsProtocol) as plain:
        assert (await plain.send(sent)).startswith(OK)
        assert plain.app.headers[0][b"authorization"] == b"stolen"
    async with serving(Connection) as server:
        assert (await server.send(sent)).startswith(OK)
        assert b"authorization" not in server.app.headers[0]


LARGE = {
    "a header": [POST + b"X: ", *[b"a" * 16_000] * 4],
    "a name": [POST, *[b"a" * 16_000] * 4],
    "many headers": [POST, b"X: a\r\n" * 10_000],
    "an address": [b"GET /", *[b"a" * 16_000] * 4],
    "a trailer": [POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: ", *[b"a" * 16_000] * 4],
    "many trailers": [POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X: a\r\n" * 10_000],
    "an extension of a chunk": [POST + b"Transfer-Encoding: chunked\r\n\r\n1;", *[b"a" * 16_000] * 4],
    "empty lines": [b"\r\n" * 40_000],
}


@pytest.mark.parametrize("name", LARGE)
async def test_what_does_not_end_is_not_kept(name: str) -> None:
    async with serving(Connection) as server:
        answer = await server.send(*LARGE[name], pause=0.01)
        assert answer.startswith(BAD) or answer == b"", answer  # what was not read resets the connection
        assert server.app.seen == []
        assert not server.connections
    if "extension" not in name:
        async with serving(HttpToolsProtocol) as plain:
            assert BAD not in await plain.send(*LARGE[name], pause=0.01, seconds=1.0)


async def test_requests_at_once_are_answered_one_by_one_and_the_rest_is_not_read() -> None:
    one = b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n"
    count = 5000
    async with serving(Connection) as server:
        server.app.hold = asyncio.Event()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"".join(one % number for number in range(count)))
        await asyncio.sleep(0.3)
        (connection,) = server.connections
        assert len(connection.pipeline) < 1000  # those of one piece
        server.app.hold.set()
        answer = b""
        async with asyncio.timeout(60):
            while answer.count(OK) < count:
                answer += await reader.read(65536)
                assert len(connection.pipeline) < 1000
        writer.close()
        assert [path for path, _ in server.app.seen] == [f"/{number}" for number in range(count)]


async def test_garbage_after_a_request_is_no_answer_to_it() -> None:
    async with serving(Connection) as server:
        server.app.hold = asyncio.Event()
        assert await server.send(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\nGARBAGE\r\n\r\n") == b""
    async with serving(HttpToolsProtocol) as plain:
        plain.app.hold = asyncio.Event()
        assert (await plain.send(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\nGARBAGE\r\n\r\n")).startswith(BAD)


async def test_the_rest_of_a_body_that_was_answered_early_is_not_read() -> None:
    async with serving(Connection) as server:
        sent = b"POST /early HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n"
        answer = await server.send(sent, *[b"x" * 65536] * 50, pause=0.001)
        assert answer.startswith(OK) or answer == b""  # what was not read resets the connection
        assert not server.connections
        assert server.app.seen == [("/early", b"")]


async def test_a_short_body_that_was_answered_early_costs_no_connection() -> None:
    """As when a key is refused before its body has arrived: `http.client` sends the two apart."""
    last = b"GET /b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    for head, body in (
        (b"Content-Length: 5\r\n\r\n", b"abcde"),
        (b"Transfer-Encoding: chunked\r\n\r\n", b"5\r\nabcde\r\n0\r\n\r\n"),
    ):
        async with serving(Connection) as server:
            answer = await server.send(b"POST /early HTTP/1.1\r\nHost: x\r\n" + head, body, last, pause=0.1)
            assert answer.count(OK) == 2
            assert server.app.seen == [("/early", b""), ("/b", b"")]


async def test_an_endless_body_that_was_answered_early_ends_the_connection() -> None:
    async with serving(Connection) as server:
        head = b"POST /early HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        answer = await server.send(head, *[b"8000\r\n" + b"x" * 0x8000 + b"\r\n"] * 20, pause=0.01)
        assert answer.count(OK) <= 1
        assert not server.connections


async def test_an_offer_of_another_protocol_is_ignored_and_ends_the_connection() -> None:
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"
    after = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
    async with serving(Connection) as server:
        answer = await server.send(b"GET /a HTTP/1.1\r\nHost: x\r\n" + offer + b"\r\n" + after, after, pause=0.05)
        assert answer.count(OK) == 1
        answer = await server.send(POST + offer + b"Content-Length: 6\r\n\r\nabc", b"def", after, pause=0.05)
        assert answer.count(OK) == 1
        assert server.app.seen == [("/a", b""), ("/a", b"abcdef")]


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\r\n",
        b"POST /a HTTP/1.1\r\nHost:",
        POST + b"Content-Length: 9\r\n\r\n{",
        POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
        b"GET /a HTTP/1.1\r\nHost: x\r\n\r\nGET /b HTTP/1.1\r\nHost:",
    ],
)
async def test_a_request_that_trickles_in_is_dropped(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(listening, "_REQUEST_SECONDS", 0.5)
    async with serving(Connection) as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(sent)
        drip = b"\r\n" if sent in (b"", b"\r\n") else b"1\r\nx\r\n" if b"chunked" in sent else b"x"
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(30):
                for _ in range(6 if b"9" in sent else 10_000):
                    await asyncio.sleep(0.1)
                    if not server.connections:
                        break
                    writer.write(drip if sent else b"")
                while server.connections:  # noqa: ASYNC110 - uvicorn's own set
                    await asyncio.sleep(0.1)
        writer.close()
        assert not server.connections
        assert [path for path, _ in server.app.seen] == (["/a"] if sent.startswith(b"GET") else [])


async def test_a_request_that_is_being_answered_is_not_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "_REQUEST_SECONDS", 0.3)
    async with serving(Connection) as server:
        server.app.hold = asyncio.Event()
        asyncio.get_running_loop().call_later(1.0, server.app.hold.set)
        last = b"POST /b HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\nx"
        answer = await server.send(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n" + last, b"y", pause=0.6)
        assert answer.count(OK) == 2
        assert server.app.seen == [("/a", b""), ("/b", b"xy")]
