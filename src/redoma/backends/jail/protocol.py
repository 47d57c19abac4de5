"""What crosses the boundary, and how much of it. Inner: loaded in the cell too.

Towards the guest everything is ours, so it travels as `marshal`; init, which is no Python, gets a structure. What comes
back may have been shaped by the guest: a frame is a letter, a length and so many bytes. The parent takes only letters
it expects, lengths below a bound for each, and decodes the bytes as JSON at most.
"""

from __future__ import annotations

import marshal
import struct

TYPE_CHECKING = False  # both are large, and this is loaded in a bare interpreter
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_HEADER = struct.Struct("!cI")

INIT = b"I"
"""From the zygote: a descriptor of the cell's init comes along."""
LAYER = b"Y"
"""From the maker of a cell: a descriptor of the layer above the project comes along."""
LISTENER = b"S"
"""From the maker of a cell: a socket that listens on the cell's own loopback comes along."""
ARMED = b"A"
"""From the guest, before it has run anything: what it found to be in force. From the zygote: that it is ready."""
BROKEN = b"X"
"""From whoever could not do its part of making a cell or a zygote: the step and the reason."""
REFUSED = b"N"
"""The same, from a zygote, where the kernel does not allow the step: trying again is of no use."""
UNLOADED = b"P"
"""From a zygote: a module that it was told to preload can't be imported, and why."""
REPORT = b"R"
"""From init: what the guest left about itself (value, exception). Hostile."""
FILES = b"W"
"""From init: a descriptor of the workspace comes along. Its contents are hostile."""
VERDICT = b"V"
"""From init, the last word: how it ended and what it used."""

END = b"e"
"""To init: end the run. Any other byte that it is sent after its order is the number of a signal for the guest."""

RUN_ORDER = struct.Struct("=QQ6I")
"""`struct run_order` of c/cell.h: what init is told when a run begins."""
VERDICT_PARTS = struct.Struct("=IIQQ")
"""`struct verdict` of c/cell.h: status, cause, microseconds of processor time, bytes of memory."""
CAUSES = ("", "end", "cpu", "processes", "memory")
"""Why init ended a run, by `enum cause`."""

MAX_PAYLOAD = {
    INIT: 0,
    LAYER: 0,
    LISTENER: 0,
    ARMED: 16 << 10,
    BROKEN: 4 << 10,
    REFUSED: 4 << 10,
    UNLOADED: 4 << 10,
    REPORT: 12 << 20,
    FILES: 0,
    VERDICT: VERDICT_PARTS.size,
}
"""Bytes that a frame of each kind may have."""


MAX_SHOWN = 3 << 20
"""Bytes of all that a run shows: pictures, tables. In a report they are base64, and so a third more."""


class Malformed(Exception):
    """What came back is not what a cell sends. The cell is destroyed."""


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    return _HEADER.pack(kind, len(payload)) + payload


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
    """What the guest is told, by us: from the same interpreter to the same interpreter."""
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
