"""The format of messages on a session's channel, for both ends. Loaded in cells and containers, so it uses only the
standard library of Python 3.9.

A frame is two lengths, a head of JSON, and a body of any bytes. `Reader` only refuses lengths that are too large;
`channel`, which reads what comes out of a cell, also bounds each kind of message.
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
"""Bytes of a head. It contains the words and variables of a command, which Linux limits to about 2 MiB."""
MAX_BODY = 8 << 20
CHUNK = 64 << 10
"""Bytes of output in one frame."""
PIECE = 512 << 10
"""Bytes of a file in one frame."""
WINDOW = 1 << 20
"""Bytes of output that may be unread before the driver stops reading more."""


class Malformed(Exception):
    """The data is not a frame."""


_encode = json.JSONEncoder(separators=(",", ":")).encode  # `json.dumps` would make an encoder each time


def frame(head: dict[str, Any], body: bytes = b"") -> bytes:
    return frame_of(_encode(head).encode(), body)


def frame_of(head: bytes, body: bytes) -> bytes:
    """A frame whose head is JSON already."""
    return LENGTHS.pack(len(head), len(body)) + head + body


class Reader:
    """Takes bytes as they arrive, and yields whole frames: the head as bytes, and the body."""

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
