"""Shows output during the run: as harmless, free of secrets and bounded as the result's.

What was shown can't be taken back, so nothing is shown that later output could turn into something else. The rules:

1. Whole lines are shown at once. Escape sequences, redrawn lines and nearly all secrets end with their line.
2. Text that may continue in the next line waits for it: a private key from its first line on, lines that look like the
   middle of one, and whatever could be the beginning of a secret of the request, in any encoding the redactor knows.
3. An unfinished line, such as a prompt, is shown 0.1 s later, up to where it could be the beginning of a secret of the
   request or looks like the beginning of another; the rest waits for the end of the line. A line with control
   characters waits as a whole. If later output changes what was shown (a redrawn line), the line is shown again.
4. Everything that waits is shown when the run ends.

One leak remains: a secret that is recognised only by its form, printed in two parts with a pause between, is shown in
part if its first part looks like nothing special. Secrets of the request are never shown in part.

Within the limits, and apart from lines shown again, the whole stream equals the text of the result. Beyond them it
stops: what follows is kept as in the result, beginning and end in half the room, and shown when the run ends. With
`whole` the only bound is how much the run may print in total; a line too long to wait for is then shown up to where no
secret of the expected length can begin, if it is plain text. Other long lines wait for their end.

Memory is bounded however slow the reader is: by the limits on output, and by how much may have to wait.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from threading import Lock

import msgspec

from ..lib.sanitise import is_clean
from ..models import Chunk, Limits, Stream
from ..redaction import Redactor
from ..redaction.redactor import replace
from ..redaction.scanner import Match, cut_outside, matches_after
from ..redaction.unfinished import Unfinished
from .capture import Ends, Text, bounded
from .cleaning import CONTEXT, character_start, is_plain

DELAY = 0.1
"""Seconds after which an unfinished line is shown as far as possible."""
_INSIDE_CHARACTER = bytes(range(0x80, 0xC0))


class Live:
    """Takes output as it arrives, from any thread, and returns what may be shown by now."""

    def __init__(self, limits: Limits, redactor: Redactor, *, whole: bool = False) -> None:
        """`whole`: show everything that is printed, not only as much as the result keeps."""
        self.redactor = redactor
        unfinished = Unfinished(redactor)
        self._streams: dict[Stream, _StreamView] = {
            name: _StreamView(limits, redactor, unfinished, whole) for name in ("stdout", "stderr")
        }
        self._ready: list[tuple[Stream, list[bytes]]] = []
        self._lock = Lock()
        self.wake: Callable[[], None] = lambda: None
        """Called after output has arrived."""

    def feed(self, stream: Stream, data: bytes) -> None:
        """Take some output, and wake the reader."""
        with self._lock:
            self._append(stream, self._streams[stream].add(data, time.monotonic()))
        self.wake()

    def take(self) -> tuple[list[Chunk], float | None]:
        """Return what may be shown now, and after how many seconds to ask again even if nothing new arrives."""
        now, waits = time.monotonic(), []
        with self._lock:
            for name, shown in self._by_arrival():
                self._append(name, shown.lines())
                if shown.since is not None and now >= shown.since + DELAY:
                    self._append(name, shown.paused())
                if shown.since is not None:
                    waits.append(shown.since + DELAY - now)
            return self._take_ready(), min(waits, default=None)

    def finish(self) -> list[Chunk]:
        """Return everything that is left; called when the run has ended."""
        with self._lock:
            for name, shown in self._by_arrival():
                self._append(name, shown.ended())
            return self._take_ready()

    @property
    def altered(self) -> frozenset[Stream]:
        """The streams that were not all plain text: some of it was replaced or left out."""
        with self._lock:
            return frozenset(name for name, shown in self._streams.items() if shown.altered)

    def _by_arrival(self) -> list[tuple[Stream, _StreamView]]:
        return sorted(self._streams.items(), key=lambda item: item[1].since or 0.0)

    def _append(self, stream: Stream, text: bytes) -> None:
        if not text:
            return
        if not self._ready or self._ready[-1][0] != stream:
            self._ready.append((stream, []))
        self._ready[-1][1].append(text)

    def _take_ready(self) -> list[Chunk]:
        """Return what is ready, joined: a slow reader gets one large piece, not a million."""
        ready, self._ready = self._ready, []
        return [Chunk(stream, b"".join(pieces).decode()) for stream, pieces in ready]


class _StreamView:
    """One stream: what was shown of it, and what waits."""

    def __init__(self, limits: Limits, redactor: Redactor, unfinished: Unfinished, whole: bool) -> None:
        self._limits, self._redactor, self._unfinished, self._whole = limits, redactor, unfinished, whole
        # How much may still be shown.
        self._bytes, self._lines = (sys.maxsize, sys.maxsize) if whole else (limits.output_bytes, limits.output_lines)
        self._context = b""  # sanitised text that was shown
        self._pending = bytearray()  # raw text, from the beginning of a line on
        self._shown = b""  # how much of it, sanitised, was shown already
        self._line_open = False  # whether the end of the last shown line is still to be shown
        self._reshow = False  # whether that line has changed since, and must be shown again
        self._rest: Ends | None = None  # output after the limit is reached
        self._max_waiting = 4 * redactor.margin  # bytes
        self._due = self._max_waiting  # bytes that may wait before `add` looks at them
        self.since: float | None = None
        """Since when something waits that a pause might release."""
        self.altered = False
        """Whether some of it was not plain text."""

    def add(self, data: bytes, now: float) -> bytes:
        """Take some output. Returns what to show at once: nothing, unless too much waits."""
        if self._rest is not None:
            self._rest.add(data)
            return b""
        self._pending += data
        if self.since is None or b"\n" in data:  # for an unfinished line, the time of its beginning stays
            self.since = now
        if len(self._pending) <= self._due:
            return b""
        text = self._advance(self._whole_lines())
        if len(self._pending) > self._max_waiting:  # a line, or a key, without an end
            if self._whole:
                text += self._part_of_long_line()
            else:
                self._stop()
        # Text that must wait even so is not examined again for each small piece.
        self._due = self._max_waiting if len(self._pending) <= self._max_waiting else 2 * len(self._pending)
        return text

    def lines(self) -> bytes:
        """Return the whole lines that may be shown."""
        if len(self._pending) > self._max_waiting:
            return b""  # `add` has examined it
        text = self._advance(self._whole_lines())
        if not self._pending:
            self.since = None
        return text

    def paused(self) -> bytes:
        """Return what may be shown of an unfinished line; called after a pause."""
        self.since = None
        return self._advance(self._plain(), inside=True)

    def _part_of_long_line(self) -> bytes:
        """Return a part of a line without an end. It must be plain text: then a cut changes nothing."""
        line = bytes(self._pending[: character_start(self._pending, len(self._pending) - 1)])
        if b"\n" in line or not is_plain(line) or not line.startswith(self._shown):
            return b""  # lines that wait, or text that can't be cut
        start = len(self._shown)
        matches = matches_after(self._redactor.find(self._context + line), len(self._context))
        stop = _outside(matches, start, max(start, len(line) - self._redactor.margin))
        stop = max(start, character_start(line, stop))
        text = (b"\n" if self._reshow else b"") + _redacted(line, matches, start, stop) if stop > start else b""
        self._context = (self._context + line[:stop])[-CONTEXT:].lstrip(_INSIDE_CHARACTER)
        self._shown, self._line_open, self._reshow = b"", self._line_open or text != b"", self._reshow and not text
        del self._pending[:stop]
        return text

    def ended(self) -> bytes:
        """Return the rest; called when the run has ended."""
        text = self._advance(bytes(self._pending), ended=True)
        return text if self._rest is None else text + self._end_of(self._rest)

    def _whole_lines(self) -> bytes:
        return bytes(self._pending[: self._pending.rfind(b"\n") + 1])

    def _plain(self) -> bytes:
        """Return the whole lines, and the unfinished one if it is plain text."""
        lines = self._whole_lines()
        last = bytes(self._pending[len(lines) :])
        try:
            last.decode()
        except UnicodeDecodeError as error:
            if error.reason != "unexpected end of data":
                return lines
            last = last[: error.start]  # cut in the middle of a character
        return lines + last if is_clean(last) else lines

    def _advance(self, raw: bytes, *, inside: bool = False, ended: bool = False) -> bytes:
        """Return what is safe to show of `raw`, a prefix of `pending`, and wasn't shown yet."""
        clean = self._redactor.sanitise(raw)
        self.altered = self.altered or clean != raw
        if self._shown.startswith(clean):
            return b""
        if not clean.startswith(self._shown):
            self._shown, self._reshow = b"", self._line_open
        before, start = len(self._context), len(self._shown)
        data = self._context + clean
        matches = matches_after(self._redactor.find(data), before)
        if ended:
            stop = len(clean)
        elif inside:
            stop = self._unfinished.inside_line(data, before + start) - before
        else:
            stop = clean.rfind(b"\n", 0, self._unfinished.after_lines(data, before + start) - before) + 1
            # A secret of several lines: end where its first line begins.
            while (outside := cut_outside(matches, stop)) < stop:
                stop = clean.rfind(b"\n", 0, outside) + 1
        stop, text, enough = self._within_limits(clean, matches, _outside(matches, start, stop))
        self._move_on(raw, clean, stop)
        if enough:
            self._stop()
        return text

    def _within_limits(self, clean: bytes, matches: list[Match], stop: int) -> tuple[int, bytes, bool]:
        """Return where to stop, the text to show up to there, and whether the limit is reached."""
        start, before, enough = len(self._shown), b"\n" if self._reshow else b"", False
        while True:
            text = before + _redacted(clean, matches, start, stop) if stop > start else b""
            lines = text.count(b"\n")
            if lines + (not text.endswith(b"\n") and text != b"") <= self._lines and len(text) <= self._bytes:
                break
            enough = True
            if lines > self._lines:  # replacements have no more lines than what they replace
                stop = _after_lines(clean, start, self._lines)
            else:
                stop = max(start, clean.rfind(b"\n", start, (start + stop) // 2) + 1)
            stop = _outside(matches, start, stop)
        if text:
            self._line_open, self._reshow = not text.endswith(b"\n"), False
        self._lines -= lines
        self._bytes -= len(text)
        return stop, text, enough

    def _move_on(self, raw: bytes, clean: bytes, stop: int) -> None:
        """Drop the lines that were shown to their end."""
        self._shown = clean[:stop]
        if stop == len(clean) and raw.endswith(b"\n"):
            done, lines = raw, clean
        else:
            done = raw[: _after_lines(raw, 0, self._shown.count(b"\n"))]
            lines = self._redactor.sanitise(done)
        if self._shown.startswith(lines):  # otherwise a raw line has become two: keep it, and examine it again
            self._context = (self._context + lines)[-CONTEXT:].lstrip(_INSIDE_CHARACTER)
            self._shown = self._shown[len(lines) :]
            del self._pending[: len(done)]

    def _stop(self) -> None:
        """Stop showing: keep the following output as a result does."""
        self._rest = Ends(self._limits.output_bytes // 4 + self._max_waiting)
        self._rest.add(self._context + bytes(self._pending))
        self._pending.clear()
        self.since = None

    def _end_of(self, rest: Ends) -> bytes:
        text = rest.clean(self._redactor)
        already = self._context + self._shown
        shown_before = replace(already, self._redactor.find(already))[0]
        if text.data.startswith(shown_before):
            text = _without_beginning(text, len(shown_before))
        half = msgspec.structs.replace(
            self._limits,
            output_bytes=max(1, self._limits.output_bytes // 2),
            output_lines=max(1, self._limits.output_lines // 2),
        )
        return bounded(text, half)[0]


def _outside(matches: list[Match], start: int, stop: int) -> int:
    """Return a position to stop that is inside nothing found, and not before what was shown."""
    return max(start, cut_outside(matches, stop))


def _redacted(clean: bytes, matches: list[Match], start: int, stop: int) -> bytes:
    """Return a part of the text, redacted. If something found begins before it, the rest of that is replaced."""
    inside = matches_after((item for item in matches if item.end <= stop), start)
    return replace(clean[start:stop], inside)[0]


def _after_lines(data: bytes, start: int, lines: int) -> int:
    """Return the position after `lines` line ends."""
    for _ in range(lines):
        start = data.find(b"\n", start) + 1
    return start


def _without_beginning(text: Text, size: int) -> Text:
    marks = matches_after((mark for mark in text.marks if mark.start >= size), size)
    return msgspec.structs.replace(text, data=text.data[size:], marks=marks, seam=max(0, text.seam - size))
