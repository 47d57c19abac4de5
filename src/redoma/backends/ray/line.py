"""A direct connection from a client to a node, for the same sealed calls that Ray could carry.

A call of an actor costs Ray more than a millisecond of processor time, on either side; here it costs a tenth of that.
Ray is still how a node is found, and what carries calls while there is no such connection: a firewall between two
machines makes runs slower, and nothing else.

Whoever can reach a node's port can connect, so nothing is believed before it is proved. The node sends a random
challenge, and the client has to return it in a sealed call before anything longer than a short message is read. A
frame is its length and the number of the call (4 bytes each, big-endian), then the sealed bytes.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Awaitable, Callable

from . import protocol

CONNECT = 3.0
"""Seconds for a connection to be made and proved, on either side."""
MAX_FRAME = 1 << 30
"""Bytes of a call or an answer."""
MAX_CONNECTIONS = 1024
"""Connections to a node at a time, proved or not."""
_MAX_UNPROVED = 1024  # bytes of a frame from a client that has not proved yet that it has the key
_HEAD = struct.Struct(">II")
_BUFFER = 1 << 20


class Listener:
    """Answers calls on a node's address. `answer` is `Node.call`, and `proves` tells whether a sealed call returns the
    challenge of its connection.
    """

    def __init__(
        self, answer: Callable[[bytes], Awaitable[bytes]], proves: Callable[[bytes, bytes], bytes | None]
    ) -> None:
        self._answer, self._proves = answer, proves
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._answers: set[asyncio.Task[None]] = set()

    async def open(self, host: str) -> int:
        """Listen on a free port of this address, and return the port. Raises `OSError`."""
        self._server = await asyncio.start_server(self._connected, host, 0, limit=_BUFFER)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Close the port and all connections."""
        if self._server is not None:
            self._server.close()
        tasks = [*self._connections, *self._answers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self._connections) >= MAX_CONNECTIONS:
            writer.close()
            return
        self._connections.add(task)
        try:
            async with asyncio.timeout(CONNECT):
                await self._prove(reader, writer)
            while True:
                async with asyncio.timeout(protocol.LEASE):  # a client asks for news every few seconds, if it is there
                    number, data = await _read(reader, MAX_FRAME)
                # It is answered also if the connection ends meanwhile: an order is obeyed as a whole.
                answer = asyncio.create_task(self._reply(writer, number, data))
                self._answers.add(answer)
                answer.add_done_callback(self._answers.discard)
        except (OSError, EOFError, protocol.NotOurs):
            return  # a client that is still there calls again, through Ray or over a new connection
        finally:
            self._connections.discard(task)
            writer.close()

    async def _prove(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        challenge = os.urandom(protocol.CHALLENGE_BYTES)
        writer.write(challenge)
        number, data = await _read(reader, _MAX_UNPROVED)
        answer = self._proves(data, challenge)
        if answer is None:
            raise protocol.NotOurs("the challenge did not come back sealed")
        _write(writer, number, answer)

    async def _reply(self, writer: asyncio.StreamWriter, number: int, data: bytes) -> None:
        answer = await self._answer(data)
        if not answer:
            writer.close()
            return
        _write(writer, number, answer)
        try:
            await writer.drain()
        except OSError:
            return  # the reader of this connection notices, too


class NodeLine:
    """A client's connection to a node. Made by `connect`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._number = 0
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    async def connect(cls, host: str, port: int, seal: protocol.Seal, node: str) -> NodeLine:
        """Connect to a node. Raises `OSError` or `TimeoutError` if it can't be reached, and `NotOurs` if what answers
        there doesn't have the key.
        """
        async with asyncio.timeout(CONNECT):
            reader, writer = await asyncio.open_connection(host, port, limit=_BUFFER)
            try:
                challenge = await reader.readexactly(protocol.CHALLENGE_BYTES)
                proof = seal.call(node, protocol.NO_LINK, protocol.Prove(challenge=challenge))
                _write(writer, 0, proof)
                _, answer = await _read(reader, _MAX_UNPROVED)
                seal.open_answer(node, proof, answer)
            except BaseException as error:
                writer.close()
                if isinstance(error, EOFError):
                    raise ConnectionError("the node closed the connection") from error
                raise
        line = cls(reader, writer)
        line._reading = asyncio.create_task(line._read())
        return line

    async def call(self, data: bytes) -> bytes:
        """Send a sealed call and return the sealed answer. Raises `OSError` if the connection ends before."""
        if self._reading is None or self._reading.done():
            raise ConnectionError("the connection has ended")
        self._number = (self._number + 1) % (1 << 32)
        number, answer = self._number, asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            _write(self._writer, number, data)
            await self._writer.drain()
            return bytes(await answer)
        finally:
            del self._waiting[number]

    def close(self) -> None:
        """Close it. Calls that wait for an answer raise `OSError`."""
        if self._reading is not None:
            self._reading.cancel()
        self._writer.close()

    async def _read(self) -> None:
        try:
            while True:
                number, data = await _read(self._reader, MAX_FRAME)
                waiting = self._waiting.get(number)
                if waiting is not None and not waiting.done():
                    waiting.set_result(data)
        except (OSError, EOFError, protocol.NotOurs):
            return
        finally:
            self._writer.close()
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(ConnectionError("the connection to the node has ended"))


async def _read(reader: asyncio.StreamReader, most: int) -> tuple[int, bytes]:
    """Read a frame; return the number of its call, and its bytes. Raises `NotOurs` if it is longer than `most`."""
    size, number = _HEAD.unpack(await reader.readexactly(_HEAD.size))
    if size > most:
        raise protocol.NotOurs(f"a frame of {size} bytes is too long")
    return number, await reader.readexactly(size)


def _write(writer: asyncio.StreamWriter, number: int, data: bytes) -> None:
    writer.write(_HEAD.pack(len(data), number) + data)
