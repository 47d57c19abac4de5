"""What crosses the boundary, and how much of it. Inner: loaded in the cell too.

Towards the cell everything is ours, so it travels as `marshal`. What comes back may have been shaped by the guest: a
frame is a letter, a length and so many bytes. The parent takes only letters it expects, lengths below a bound for each,
and decodes the bytes as JSON at most.
"""

from __future__ import annotations

import marshal
import struct
from collections.abc import Iterator
from typing import Any

_HEADER = struct.Struct("!cI")

BORN = b"B"
"""From the keeper: its process id, before anything else happens. It goes on once it has read a `GO`."""
INIT = b"I"
"""From the keeper: a descriptor of the cell's init comes along."""
ARMED = b"A"
"""From the guest, before it has run anything: what it found to be in force."""
BROKEN = b"X"
"""From whoever could not do its part of making a cell or a zygote: the step and the reason."""
REFUSED = b"N"
"""The same, where the kernel does not allow the step: trying again is of no use."""
REPORT = b"R"
"""From init: what the guest left about itself (value, exception). Hostile."""
FILE = b"F"
"""From init: a file of the workspace: the length of its name, its name, its content. Hostile."""
LEFT_OUT = b"L"
"""From init: a file that was left out: likewise, with the reason for content."""
ENTRY = b"E"
"""From init: something that the run left in the layer above a project: likewise, with JSON for content. Hostile."""
DATA = b"D"
"""From init: some of the content of the file whose entry came last: its place in it, eight bytes, then the bytes."""
VERDICT = b"V"
"""From init, the last word: how it ended and what it used."""

GO = b"G"
"""To the keeper: everything is prepared on our side."""
END = b"e"
"""To init: end the run. Any other byte that it is sent after its order is the number of a signal for the guest."""

MAX_PAYLOAD = {
    BORN: 16,
    INIT: 0,
    ARMED: 16 << 10,
    BROKEN: 4 << 10,
    REFUSED: 4 << 10,
    REPORT: 8 << 20,
    FILE: 80 << 20,
    LEFT_OUT: 16 << 10,
    ENTRY: 64 << 10,  # a path and the target of a link, each byte of which JSON may write with six
    DATA: (1 << 20) + 8,
    VERDICT: 4 << 10,
}
"""Bytes that a frame of each kind may have."""


class Malformed(Exception):
    """What came back is not what a cell sends. The cell is destroyed."""


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    return _HEADER.pack(kind, len(payload)) + payload


def named(name: str, content: bytes) -> bytes:
    encoded = name.encode("utf-8", "surrogateescape")
    return struct.pack("!I", len(encoded)) + encoded + content


def split_named(payload: bytes) -> tuple[str, bytes]:
    if len(payload) < 4:
        raise Malformed("a file without a name")
    (size,) = struct.unpack_from("!I", payload)
    if size > len(payload) - 4:
        raise Malformed("a name longer than its frame")
    return payload[4 : 4 + size].decode("utf-8", "surrogateescape"), payload[4 + size :]


class Frames:
    """Takes bytes as they come, gives whole frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        self._buffer += data
        while len(self._buffer) >= _HEADER.size:
            kind, size = _HEADER.unpack_from(self._buffer)
            if kind not in MAX_PAYLOAD:
                raise Malformed(f"an unknown kind of frame, {kind!r}")
            if size > MAX_PAYLOAD[kind]:
                raise Malformed(f"a frame of kind {kind!r} with {size} bytes")
            end = _HEADER.size + size
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[_HEADER.size : end])
            del self._buffer[:end]
            yield kind, payload


def order(content: dict[str, Any]) -> bytes:
    """What the guest or init is told, by us: from the same interpreter to the same interpreter."""
    body = marshal.dumps(content)
    return struct.pack("!Q", len(body)) + body


def read_order(receive: Any) -> dict[str, Any] | None:
    """The other end of `order`; None when the parent went away instead. `receive(n)` gives at most n bytes."""
    head = read_exactly(receive, 8)
    if head is None:
        return None
    body = read_exactly(receive, struct.unpack("!Q", head)[0])
    if body is None:
        return None
    content: dict[str, Any] = marshal.loads(body)  # noqa: S302 - written by the parent, which is on the safe side
    return content


def read_exactly(receive: Any, size: int) -> bytes | None:
    chunk: bytes = receive(min(size, 1 << 20)) if size else b""
    if len(chunk) == size:
        return chunk
    data = bytearray(chunk)
    while len(data) < size:
        if not chunk:
            return None
        chunk = receive(min(size - len(data), 1 << 20))
        data += chunk
    return bytes(data)
