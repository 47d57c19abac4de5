"""Captures what a run prints: bounded in memory, harmless to a terminal, and without secrets.

The order matters. First, secrets are separated from adjacent escape sequences: an unfinished sequence would otherwise
swallow a letter of the secret. Then escape sequences are removed: one in the middle of a key would hide it. Then
secrets are removed, while the text is still complete. Only then is it cut to size, so that a cut never leaves half a
secret.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Protocol

import msgspec

from ..models import Artifact, KiB, Limits, MiB, Stream
from ..redaction import Redactor
from ..redaction.redactor import replace
from ..redaction.scanner import Match, cut_outside, matches_after
from .cleaning import character_start

_MARKER_ROOM = 96
"""Maximum bytes of the marker and its newlines."""


class Captured(msgspec.Struct, frozen=True, kw_only=True):
    """What a run printed, safe to show and store."""

    stdout: str = ""
    stderr: str = ""
    redacted: dict[str, int] = {}
    """How many secrets of each kind were removed from the remaining text."""
    omitted: dict[Stream, int] = {}
    """Bytes left out of each stream that was too long."""
    artifacts: dict[Stream, Artifact] = {}
    """The whole text of each stream that was too long."""


class Spool(Protocol):
    """Keeps the whole text of a stream that is too long for the result; see `artifacts`. Its methods don't raise."""

    def add(self, raw: bytes) -> None:
        """Add the next piece, as it was printed."""

    def put(self, text: bytes, redacted: dict[str, int]) -> None:
        """Set the whole stream at once, already sanitised and redacted."""

    def finish(self) -> Artifact: ...

    def close(self) -> None: ...


class Capture:
    """Takes the output of one run as it arrives, in bounded memory, whatever the run prints.

    `pass_on` is called with each piece as it arrives. `keep` is called for a spool for a whole stream, once some of the
    stream must be left out here; `close` discards unfinished spools.
    """

    def __init__(
        self,
        limits: Limits,
        redactor: Redactor,
        pass_on: Callable[[Stream, bytes], None] | None = None,
        keep: Callable[[Stream], Spool] | None = None,
    ) -> None:
        self._limits, self._redactor, self._pass_on, self._keep = limits, redactor, pass_on, keep
        self._spools: dict[Stream, Spool] = {}
        self._left = limits.output_total
        # Next to a gap, `margin` bytes are examined but not shown. More raw text than that is kept, because removing
        # escape sequences shrinks it.
        room = limits.output_bytes // 2 + 4 * redactor.margin
        self._streams: dict[Stream, Ends] = {"stdout": Ends(room), "stderr": Ends(room)}

    def feed(self, stream: Stream, data: bytes) -> bool:
        """Take some output. Returns False once both streams together have printed more than allowed."""
        self._left -= len(data)
        if self._keep is not None:
            self._spill(self._keep, stream, data)
        self._streams[stream].add(data)
        if self._pass_on is not None:
            self._pass_on(stream, data)
        return self._left >= 0

    def _spill(self, keep: Callable[[Stream], Spool], stream: Stream, data: bytes | None) -> None:
        """Before the middle is dropped for the first time, give the spool everything so far; afterwards, everything
        new.
        """
        ends = self._streams[stream]
        if stream in self._spools:
            self._spools[stream].add(data or b"")
        elif ends.loses(data):
            self._spools[stream] = keep(stream)
            for piece in (*ends.whole(), data or b""):
                self._spools[stream].add(piece)

    def finish(self) -> Captured:
        """Return the output, cleaned and cut to the limits; called when the run has ended."""
        texts: dict[Stream, str] = {}
        redacted: Counter[str] = Counter()
        omitted: dict[Stream, int] = {}
        artifacts: dict[Stream, Artifact] = {}
        for stream, ends in self._streams.items():
            if self._keep is not None:
                self._spill(self._keep, stream, None)
            whole = ends.clean(self._redactor)
            text, marks, missing = bounded(whole, self._limits)
            texts[stream] = text.decode()
            if marks:
                redacted.update(mark.kind for mark in marks)
            if missing:
                omitted[stream] = missing
            if missing and self._keep is not None:
                artifacts[stream] = self._kept(self._keep, stream, whole)
        return Captured(
            stdout=texts["stdout"],
            stderr=texts["stderr"],
            redacted=dict(redacted),
            omitted=omitted,
            artifacts=artifacts,
        )

    def _kept(self, keep: Callable[[Stream], Spool], stream: Stream, whole: Text) -> Artifact:
        if stream not in self._spools:  # nothing was dropped: all of it is here, and only too long to be shown
            self._spools[stream] = keep(stream)
            self._spools[stream].put(whole.data, dict(Counter(mark.kind for mark in whole.marks)))
        return self._spools[stream].finish()

    def close(self) -> None:
        """Discard unfinished artifacts. Safe to call twice."""
        for spool in self._spools.values():
            spool.close()


class Ends:
    """The first and the last `keep` bytes of a stream, and how much was between."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._head, self._tail = bytearray(), bytearray()
        self._gap = self._gap_lines = 0

    def add(self, data: bytes) -> None:
        room = self._keep - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        # Not each time, so that many small writes don't keep moving the tail.
        if len(self._tail) > 2 * self._keep:
            self._trim()

    def loses(self, data: bytes | None) -> bool:
        """Return whether adding `data`, or ending the stream if it is None, drops something for the first time."""
        if self._gap:
            return False
        size = len(self._head) + len(self._tail)
        return size > 2 * self._keep if data is None else size + len(data) > 3 * self._keep

    def whole(self) -> tuple[bytes, bytes]:
        """Return the whole stream, as long as nothing was dropped."""
        return bytes(self._head), bytes(self._tail)

    def _trim(self) -> None:
        surplus = max(0, len(self._tail) - self._keep)
        self._gap += surplus
        self._gap_lines += self._tail.count(b"\n", 0, surplus)
        del self._tail[:surplus]

    def clean(self, redactor: Redactor) -> Text:
        """Return what was kept, sanitised and redacted. Next to the gap, `redactor.margin` bytes are left out: a secret
        may begin there and continue in the gap, or the reverse.
        """
        if not self._head:  # as most programs leave standard error
            return Text(b"", [])
        self._trim()
        margin = redactor.margin
        if not self._gap:
            whole = redactor.sanitise(self._head + self._tail)
            return Text(*replace(whole, redactor.find(whole)))
        head = redactor.sanitise(self._head)
        matches = redactor.find(head)
        before = self._head.rfind(b"\n", 0, max(0, len(self._head) - margin)) + 1
        stop = max(0, len(head) - margin, _length_within(head, self._head[:before], redactor))
        stop = cut_outside(matches, stop)
        first, marks = replace(head[:stop], [item for item in matches if item.end <= stop])
        tail = redactor.sanitise(self._tail)
        matches = redactor.find(tail)
        after = self._tail.find(b"\n", margin) + 1
        start = min(margin, len(tail), _length_within(tail, self._tail[:after], redactor) or len(tail))
        start = max([start, *(item.end for item in matches if item.start < start)])
        last, more = replace(tail[start:], matches_after(matches, start))
        seam = len(first)
        return Text(
            data=first + last,
            marks=[*marks, *(Match(m.start + seam, m.end + seam, m.kind) for m in more)],
            seam=seam,
            gap=self._gap + len(head) - stop + start,
            gap_lines=self._gap_lines + head.count(b"\n", stop) + tail.count(b"\n", 0, start),
        )


def _length_within(data: bytes, raw: bytearray, redactor: Redactor) -> int:
    """Return the size in sanitised `data` of its first lines, given raw; 0 if unknown.

    Sanitising shrinks text: only the last state of a progress bar remains. A margin counted in what remains could be
    all of it.
    """
    lines = redactor.sanitise(raw) if raw else b""
    return len(lines) if data.startswith(lines) else 0


class Text(msgspec.Struct, frozen=True):
    """Sanitised and redacted text, the positions of its replacements, and how much is missing at the seam."""

    data: bytes
    marks: list[Match]
    seam: int = 0
    gap: int = 0
    gap_lines: int = 0


# --- bounding ------------------------------------------------------------------------------------------------


def bounded(text: Text, limits: Limits) -> tuple[bytes, list[Match], int]:
    """Cut text to the limits. Returns its beginning and end with a marker between, their replacements, and how many
    bytes were left out.
    """
    data, size = text.data, len(text.data)
    lines = data.count(b"\n") + (not data.endswith(b"\n") and size > 0)
    if not text.gap and size <= limits.output_bytes and lines <= limits.output_lines:
        return data, text.marks, 0
    # If not even the marker fits, only `omitted` says that something is missing.
    room, marked = limits.output_bytes - _MARKER_ROOM, limits.output_bytes > _MARKER_ROOM
    head_lines = limits.output_lines // 2 if marked else limits.output_lines
    stop = _head_stop(text, room // 2 if marked else limits.output_bytes, head_lines)
    start = _tail_start(text, room // 2, limits.output_lines - 1 - head_lines) if marked else size
    missing = text.gap + start - stop
    missing_lines = text.gap_lines + data.count(b"\n", stop, start)
    head, marker = data[:stop], b""
    if marked:
        counted = f"{missing_lines:,} lines, " if missing_lines else ""
        marker = f"[… {counted}{_size(missing)} left out …]\n".encode()
        marker = marker if not head or head.endswith(b"\n") else b"\n" + marker
    return head + marker + data[start:], [m for m in text.marks if m.end <= stop or m.start >= start], missing


def _head_stop(text: Text, size: int, lines: int) -> int:
    """Return where the head ends: after `lines` lines, else at the last line end that fits, else inside a line."""
    data = text.data
    stop = min(size, text.seam if text.gap else len(data))
    line_end = -1
    for _ in range(lines):
        line_end = data.find(b"\n", line_end + 1, stop)
        if line_end < 0:
            break
    else:
        return line_end + 1
    if (line_end := data.rfind(b"\n", stop // 2, stop)) >= 0:
        return line_end + 1
    return character_start(data, cut_outside(text.marks, stop))


def _tail_start(text: Text, size: int, lines: int) -> int:
    """Return where the tail begins, by the same rules."""
    data = text.data
    start = max(len(data) - size, text.seam if text.gap else 0)
    line_end = len(data) - data.endswith(b"\n")
    if not lines:
        return len(data)
    for _ in range(lines):
        line_end = data.rfind(b"\n", start, line_end)
        if line_end < 0:
            break
    else:
        return line_end + 1
    if (line_end := data.find(b"\n", start, (start + len(data)) // 2)) >= 0:
        return line_end + 1
    start = max([start, *(mark.end for mark in text.marks if mark.start < start < mark.end)])
    while 0 < start < len(data) and data[start] & 0xC0 == 0x80:  # not in the middle of a character
        start += 1
    return start


def _size(count: int) -> str:
    if count < KiB:
        return f"{count} bytes"
    return f"{count / MiB:,.1f} MB" if count >= MiB else f"{count / KiB:.1f} KB"
