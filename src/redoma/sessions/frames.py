"""How both ends of a session's channel write a message. Inner: loaded in cells and containers, so it needs nothing but
the standard library of Python 3.9.

A frame is two lengths, a head of JSON, and a body of any bytes. What comes out of a cell is read by `channel`, which
has bounds of its own for every kind of message; `Reader` only keeps anybody from announcing more than it may.
"""

from __future__ import annotations

import json
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

LENGTHS = struct.Struct("!II")
MAX_HEAD = 4 << 20
"""Bytes of a head. The words and variables of a command are in it, for which Linux has a bound of about 2 MiB."""
MAX_BODY = 8 << 20
CHUNK = 64 << 10
"""Bytes of output in one frame."""
PIECE = 512 << 10
"""Bytes of a file in one frame."""
WINDOW = 1 << 20
"""Bytes of output that may be on their way, or wait for a slow reader, before the driver stops reading more."""


class Malformed(Exception):
    """What came is no frame."""


_encode = json.JSONEncoder(separators=(",", ":")).encode  # `json.dumps` would make an encoder each time


def frame(head: dict[str, Any], body: bytes = b"") -> bytes:
    return frame_of(_encode(head).encode(), body)


def frame_of(head: bytes, body: bytes) -> bytes:
    """A frame whose head is JSON already."""
    return LENGTHS.pack(len(head), len(body)) + head + body


class Reader:
    """Takes bytes as they come, gives whole frames: the head as bytes, and the body."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        buffer = self._buffer
        buffer += data
        while len(buffer) >= LENGTHS.size:
            head, body = LENGTHS.unpack_from(buffer)
            if head > MAX_HEAD or body > MAX_BODY:
                raise Malformed(f"a message of {head + body} bytes")
            start, end = LENGTHS.size + head, LENGTHS.size + head + body
            if len(buffer) < end:
                return
            found = bytes(buffer[LENGTHS.size : start]), bytes(buffer[start:end])
            del buffer[:end]
            yield found
