"""What Redoma and the process of its proxies say to each other: frames of MessagePack, each with its length in front.

There is one connection for each run. Redoma sends a `ProxyJob`, and closes its direction when the run has ended. The
process answers `Ready`, then a `Recorded` for each request as it ends, and at last `Ended`. The process reads what
hostile code and hosts send, so Redoma bounds what it says: the size of a frame here, and their number where it listens.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

import msgspec

from ..lib.types import resolved
from ..models.network import HostRule, NetworkRequest
from .credentials import Held

MAX_JOB, MAX_ANSWER = 64 << 20, 64 << 10
"""Bytes of a frame to the process, and of one from it."""
MAX_RECORDS, MAX_SUMS = 1000, 100
"""Requests of a run that are recorded one by one; more are summed up by host, decision and rule, at most so many times,
and then by decision alone."""
MAX_RECORDED = MAX_RECORDS + MAX_SUMS + 3


class ProxyJob(msgspec.Struct, frozen=True, kw_only=True):
    """The proxy of one run. `cafile` and `capath` are what this machine trusts; empty: what OpenSSL knows."""

    rules: tuple[HostRule, ...]
    held: tuple[Held, ...]
    max_bytes: int
    max_connections: int
    place: str
    cafile: str
    capath: str


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The proxy serves. `certificate` is that of the authority the guest should trust; empty if no TLS is read."""

    certificate: bytes


class Recorded(msgspec.Struct, frozen=True, tag=True):
    """A request has ended."""

    request: NetworkRequest


class Ended(msgspec.Struct, frozen=True, tag=True):
    """Every connection is closed, and every request was recorded."""


ProxyAnswer = Ready | Recorded | Ended
T = TypeVar("T")
_jobs = msgspec.msgpack.Decoder(resolved(ProxyJob))
_answers: msgspec.msgpack.Decoder[ProxyAnswer] = msgspec.msgpack.Decoder(resolved(ProxyAnswer))


class Broken(Exception):
    """The connection ended, or what came over it is not a message."""


def frame(message: ProxyJob | ProxyAnswer) -> bytes:
    """Return a message as it is sent."""
    data = msgspec.msgpack.encode(message)
    return len(data).to_bytes(4, "big") + data


async def read_job(reader: asyncio.StreamReader) -> ProxyJob:
    """Read the job of a connection. Raises `Broken`."""
    return _decoded(_jobs, await _read(reader, MAX_JOB))


async def read_answer(reader: asyncio.StreamReader) -> ProxyAnswer:
    """Read the next message of the process. Raises `Broken`."""
    answer: ProxyAnswer = _decoded(_answers, await _read(reader, MAX_ANSWER))
    return answer


async def _read(reader: asyncio.StreamReader, limit: int) -> bytes:
    try:
        size = int.from_bytes(await reader.readexactly(4), "big")
        if size > limit:
            raise Broken(f"a message of {size} bytes")
        return await reader.readexactly(size)
    except (asyncio.IncompleteReadError, OSError):
        raise Broken("the connection ended") from None


def _decoded(decoder: msgspec.msgpack.Decoder[T], data: bytes) -> T:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, ValueError):
        raise Broken("it is not a message") from None
