"""The trust boundary: which messages cross it, and how large they may be. Also loaded inside cells.

Messages to the guest are our own, so they are in `marshal`; init, which is written in C, gets a structure. The guest
may have forged anything that comes back. That consists of frames: a letter, a length, and that many bytes. The parent
accepts only the letters that it expects, bounds the length for each, and decodes the bytes at most as JSON.
"""

from __future__ import annotations

import marshal
import struct

TYPE_CHECKING = False  # these modules are large, and this is loaded in a bare interpreter
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_HEADER = struct.Struct("!cI")
MARSHAL = 4
"""The format of our messages: that of Python 3.4, since a guest may run on an older interpreter than Redoma."""

INIT = b"I"
"""From the zygote, with a pidfd of the cell's init."""
LAYER = b"Y"
"""From the maker of a cell, with a descriptor of the layer above the project."""
LISTENER = b"S"
"""From the maker of a cell, with a socket that listens on the cell's own loopback."""
ARMED = b"A"
"""From the guest, before it has run anything: the result of the probe. From the zygote: that it is ready."""
BROKEN = b"X"
"""From a process that can't do its part of making a cell or a zygote: the step and the reason."""
REFUSED = b"N"
"""The same, if the kernel does not allow the step: trying again is useless."""
UNLOADED = b"P"
"""From a zygote: a module that it was told to preload can't be imported, and why."""
REPORT = b"R"
"""From init: the guest's report on itself (value, exception). Untrusted."""
FILES = b"W"
"""From init, with a descriptor of the workspace. Its contents are untrusted."""
VERDICT = b"V"
"""From init, at the end: how the run ended and what it used."""

START = b"s"
"""To the guest, after its order: run it. Until this comes it only prepares."""
END = b"e"
"""To init: end the run. Any other byte after its order is the number of a signal for the guest."""

RUN_ORDER = struct.Struct("=QQ6I")
"""`struct run_order` of c/cell.h: the order that init gets when a run begins."""
VERDICT_PARTS = struct.Struct("=IIQQ")
"""`struct verdict` of c/cell.h: status, cause, microseconds of processor time, bytes of memory."""
CAUSES = ("", "end", "cpu", "processes", "memory")
"""Why init ended a run, in the order of `enum cause`."""

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
"""The maximum payload of each kind of frame, in bytes."""


MAX_VALUE = 1 << 20
"""Maximum bytes of the value of a last expression."""
MAX_SHOWN = 3 << 20
"""Maximum bytes of all displays of a run. In a report they are base64, which takes a third more."""


class Malformed(Exception):
    """Something came back that no cell sends. The cell is destroyed."""


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    """Return a frame: letter, length, payload."""
    return _HEADER.pack(kind, len(payload)) + payload


class Frames:
    """Splits a stream of bytes into frames. `feed` raises `Malformed`."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the frames that are complete now. Raises `Malformed`."""
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
    """Encode an order for the guest. `marshal` is safe here: we write it, and it has plain values only."""
    body = marshal.dumps(content, MARSHAL)
    return struct.pack("!Q", len(body)) + body


def read_order(receive: Any) -> dict[str, Any] | None:
    """Receive and decode an order; None if the parent went away. `receive(n)` returns at most n bytes."""
    head = read_exactly(receive, 8)
    if head is None:
        return None
    body = read_exactly(receive, struct.unpack("!Q", head)[0])
    if body is None:
        return None
    content: dict[str, Any] = marshal.loads(body)  # noqa: S302 - written by the parent, which is on the safe side
    return content


def read_exactly(receive: Any, size: int) -> bytes | None:
    """Receive exactly `size` bytes; None if the other end went away."""
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
