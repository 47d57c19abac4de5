"""What a run printed, made fit to be read: bounded, harmless to a terminal, and without secrets.

The order matters. Secrets are first set apart from the escape sequences around them, or one that was cut short would
take a letter along; then escape sequences go, or one in the middle of a key would hide it; then secrets, while the text
is still whole; only then is it cut to size, so that a cut never leaves half a secret behind.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import msgspec

from ..models import Artifact, KiB, Limits, MiB, Stream
from ..redaction import Redactor
from ..redaction.redactor import replace
from ..redaction.scanner import Found

# --- sanitising ----------------------------------------------------------------------------------------------

# After the escape: strings to the terminal (OSC: titles, links, the clipboard; DCS, SOS, PM, APC), CSI (colours, the
# cursor), then the short ones. A string ends at any control character, so that an unfinished one hides nothing and
# costs no second look. To start with one literal makes the search ten times as fast.
_SEQUENCE = re.compile(r"\x1b(?:[\]PX^_][^\x00-\x1f\x7f]*(?:\x07|\x1b\\)|\[[0-?]*[ -/]*[@-~]|[\]PX^_]|[ -/]*[0-~])")
# The same introducers as one character each; what `ESC [` is in seven bits, U+009B is in eight.
_C1 = re.compile(r"[\x80-\x9f]")
# Bold and underline as `man` prints them: a character over itself, or over an underscore.
_OVERSTRUCK = re.compile(r"_\x08|(.)\x08(?=\1)")
_CONTROLS = bytes({*range(0x20), 0x7F} - {*b"\t\n"})
# Beyond ASCII: what reverses the order of text, and what has no width and so can hide in a word.
_INVISIBLE = (
    "\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_REMOVED = re.compile(f"[{_INVISIBLE}]+")
# Joiners and variation selectors make emoji and Persian or Indic words, but between ASCII letters they only hide.
_JOINERS = "\u200c\u200d\ufe00-\ufe0f"
_STRAY_JOINERS = re.compile(rf"(?<![^\x00-\x7f])[{_JOINERS}]+")
_SHAPELESS = re.compile(f"[{_INVISIBLE}{_JOINERS}\u2800\ufffc\U0001d159\U000e0100-\U000e01ef]")
_RIGHT_TO_LEFT = frozenset({"R", "AL", "AN"})
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def is_clean(data: bytes) -> bool:
    """Whether there is nothing to do, as for most text; so this is what decides how fast sanitising is."""
    if data.isascii():
        return len(data.translate(None, _CONTROLS)) == len(data)
    return _odd().search(data) is None


@functools.cache
def _odd() -> Any:
    import re2  # four times as fast as `re` on text that is not ASCII

    return re2.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f{_INVISIBLE}{_JOINERS}\u2028\u2029]")


def sanitise(text: str) -> str:
    """The text as plain lines: no control characters but tab and newline, nothing invisible, valid as UTF-8.

    Everything unwanted is removed, not shown as an escape: what remains is what a reader of the text would see, and a
    key with an invisible character inside becomes a whole key again, which redaction then finds. Of a line redrawn
    with carriage returns (a progress bar) the last state is kept, as on a terminal.
    """
    text = _SURROGATE.sub("\ufffd", text)
    return text if is_clean(text.encode()) else _without_sequences(_without_invisible(text))


def visible(text: str) -> str:
    """The text for somebody who decides by it: what could not be seen, or would move other text, is an escape.

    Unlike `sanitise` it removes nothing, since what is shown has to be what runs: a right-to-left override in a comment
    can make code look like another program, and so can letters that are written from right to left, since the signs
    between two of them change places. A mark stays on a letter that it belongs to (é, ã, ç), and one at most. Line ends
    and tabs stay.
    """
    if text.isascii() and is_clean(text.encode()):
        return text
    shown: list[str] = []
    before = ""
    for char in text:
        shown.append(char if char in "\n\t" or _is_plain(char, before) else ascii(char)[1:-1])
        before = char
    return "".join(shown)


def _is_plain(char: str, before: str) -> bool:
    """Whether it has a shape and a place of its own, after the one before it."""
    if " " <= char <= "~":
        return True
    if not char.isprintable() or _SHAPELESS.match(char) or unicodedata.bidirectional(char) in _RIGHT_TO_LEFT:
        return False
    return not unicodedata.category(char).startswith("M") or len(unicodedata.normalize("NFC", before + char)) == 1


def _without_invisible(text: str) -> str:
    """Nothing invisible beyond ASCII, and sequences in their seven-bit form only."""
    if is_clean(text.encode().translate(None, _CONTROLS)):
        return text
    text = _C1.sub(lambda c1: "\x1b" + chr(ord(c1[0]) - 0x40), text)
    text = _STRAY_JOINERS.sub("", _REMOVED.sub("", text))
    return text.replace("\u2028", "\n").replace("\u2029", "\n")


def _without_sequences(text: str) -> str:
    text = _SEQUENCE.sub("", text)
    if "\x08" in text:
        text = _OVERSTRUCK.sub("", text)
    if "\r" in text:
        text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return text.encode().translate(None, _CONTROLS).decode()


# --- capturing -----------------------------------------------------------------------------------------------

LONGEST_SECRET = 16 * KiB
"""As far as a secret is expected to reach beyond a place where the text is cut."""
_MARKER_ROOM = 96
"""Bytes of the marker and its newlines, at most."""


class Captured(msgspec.Struct, frozen=True, kw_only=True):
    """What a run printed, fit to be shown and stored."""

    stdout: str = ""
    stderr: str = ""
    redacted: dict[str, int] = {}
    """How many secrets of each kind were taken out of the text that is left."""
    omitted: dict[Stream, int] = {}
    """Bytes left out of each stream that was too long."""
    artifacts: dict[Stream, Artifact] = {}
    """All of each stream that was too long."""


class Spool(Protocol):
    """Keeps all of a stream that is too long to be kept here; see `artifacts`. It never fails."""

    def add(self, raw: bytes) -> None:
        """The next piece, as it was printed."""

    def put(self, text: bytes, redacted: dict[str, int]) -> None:
        """All of it, sanitised and redacted."""

    def finish(self) -> Artifact: ...

    def close(self) -> None: ...


class Capture:
    """Takes the output of one run as it comes, in bounded memory, whatever the run prints.

    `keep` is asked for a place for all of a stream once some of it has to be left out. Then `close` it at the end."""

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
        # Next to a gap `margin` bytes are looked at but not shown. Raw text is kept for more than that, because
        # escape sequences make it shrink.
        self._margin = max(LONGEST_SECRET, redactor.longest)
        room = limits.output_bytes // 2 + 4 * self._margin
        self._streams: dict[Stream, Ends] = {"stdout": Ends(room), "stderr": Ends(room)}

    def feed(self, stream: Stream, data: bytes) -> bool:
        """Take some output. False once both streams together have printed more than the run may."""
        self._left -= len(data)
        if self._keep is not None:
            self._spill(self._keep, stream, data)
        self._streams[stream].add(data)
        if self._pass_on is not None:
            self._pass_on(stream, data)
        return self._left >= 0

    def _spill(self, keep: Callable[[Stream], Spool], stream: Stream, data: bytes | None) -> None:
        """Before the middle is dropped, all that there is goes to the spool; and from then on everything else."""
        ends = self._streams[stream]
        if stream in self._spools:
            self._spools[stream].add(data or b"")
        elif ends.loses(data):
            self._spools[stream] = keep(stream)
            for piece in (*ends.whole(), data or b""):
                self._spools[stream].add(piece)

    def finish(self) -> Captured:
        texts: dict[Stream, str] = {}
        redacted: Counter[str] = Counter()
        omitted: dict[Stream, int] = {}
        artifacts: dict[Stream, Artifact] = {}
        for stream, ends in self._streams.items():
            if self._keep is not None:
                self._spill(self._keep, stream, None)
            whole = ends.clean(self._redactor, self._margin)
            text, marks, missing = bounded(whole, self._limits)
            texts[stream] = text.decode()
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
        if stream not in self._spools:  # nothing was dropped: it is all here, and only too long to be shown
            self._spools[stream] = keep(stream)
            self._spools[stream].put(whole.data, dict(Counter(mark.kind for mark in whole.marks)))
        return self._spools[stream].finish()

    def close(self) -> None:
        """Leave nothing of an artifact that was not finished. Safe to call twice."""
        for spool in self._spools.values():
            spool.close()


class Ends:
    """The first and the last bytes of a stream, and how much lay between."""

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
        # Only now and then, so that many small writes don't move the tail each time.
        if len(self._tail) > 2 * self._keep:
            self._trim()

    def loses(self, data: bytes | None) -> bool:
        """Whether to take this, or if it is None to come to the end, drops something for the first time."""
        if self._gap:
            return False
        size = len(self._head) + len(self._tail)
        return size > 2 * self._keep if data is None else size + len(data) > 3 * self._keep

    def whole(self) -> tuple[bytes, bytes]:
        """All of it, before anything was dropped."""
        return bytes(self._head), bytes(self._tail)

    def _trim(self) -> None:
        surplus = max(0, len(self._tail) - self._keep)
        self._gap += surplus
        self._gap_lines += self._tail.count(b"\n", 0, surplus)
        del self._tail[:surplus]

    def clean(self, redactor: Redactor, margin: int) -> Text:
        """What was kept, sanitised and redacted. `margin` bytes on either side of the gap were for looking only."""
        self._trim()
        if not self._gap:
            data, found = _scanned(self._head + self._tail, redactor)
            return Text(*replace(data, found))
        head, found = _scanned(self._head, redactor)
        # A match across the edge is of a secret that may go on in the gap: the edge moves until it is outside.
        before = self._head.rfind(b"\n", 0, max(0, len(self._head) - margin)) + 1
        stop = max(0, len(head) - margin, _length_within(head, self._head[:before], redactor))
        stop = min([stop, *(item.start for item in found if item.end > stop)])
        first, marks = replace(head[:stop], [item for item in found if item.end <= stop])
        tail, found = _scanned(self._tail, redactor)
        after = self._tail.find(b"\n", margin) + 1
        start = min(margin, len(tail), _length_within(tail, self._tail[:after], redactor) or len(tail))
        start = max([start, *(item.end for item in found if item.start < start)])
        kept = [Found(f.start - start, f.end - start, f.kind) for f in found if f.start >= start]
        last, more = replace(tail[start:], kept)
        seam = len(first)
        return Text(
            data=first + last,
            marks=[*marks, *(Found(m.start + seam, m.end + seam, m.kind) for m in more)],
            seam=seam,
            gap=self._gap + len(head) - stop + start,
            gap_lines=self._gap_lines + head.count(b"\n", stop) + tail.count(b"\n", 0, start),
        )


def _length_within(data: bytes, raw: bytearray, redactor: Redactor) -> int:
    """How much of sanitised `data` these raw lines, its first, became; 0 if that can't be told.

    Sanitising shrinks text: of a progress bar only the last state stays. A margin counted in what is left could be
    all there is.
    """
    lines = _scanned(raw, redactor)[0] if raw else b""
    return len(lines) if data.startswith(lines) else 0


class Text(NamedTuple):
    """Sanitised and redacted text, where the replacements are, and what is missing of it at the seam."""

    data: bytes
    marks: list[Found]
    seam: int = 0
    gap: int = 0
    gap_lines: int = 0


def clean(text: str, redactor: Redactor) -> tuple[str, dict[str, int]]:
    """A message as output would show it, and what was redacted: sanitising first alone could hide half a secret."""
    data, found = _scanned(text.encode("utf-8", "replace"), redactor)
    return replace(data, found)[0].decode(), dict(Counter(item.kind for item in found))


def _scanned(raw: bytes | bytearray, redactor: Redactor) -> tuple[bytes, list[Found]]:
    data = sanitised(raw, redactor)
    return data, redactor.find(data)


def sanitised(raw: bytes | bytearray, redactor: Redactor) -> bytes:
    """Output as plain lines, with its secrets still in it and in one piece. What a line becomes is its own matter."""
    # Invalid bytes become U+FFFD: one sign that no program prints by accident, where \xNN could be its own text.
    text = raw.decode("utf-8", "replace")
    data = text.encode()
    if is_clean(data):
        return data
    return _without_sequences(redactor.mend(_without_invisible(text).encode()).decode()).encode()


# --- bounding ------------------------------------------------------------------------------------------------


def bounded(text: Text, limits: Limits) -> tuple[bytes, list[Found], int]:
    """The beginning and the end, marker included within the limits; the replacements in them; the bytes left out."""
    data, size = text.data, len(text.data)
    lines = data.count(b"\n") + (not data.endswith(b"\n") and size > 0)
    if not text.gap and size <= limits.output_bytes and lines <= limits.output_lines:
        return data, text.marks, 0
    # Where not even the marker fits, `omitted` alone says that something is missing.
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
    """Where the beginning ends: after so many lines, or else at the last line end that fits, or else inside a line."""
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
    stop = min([stop, *(mark.start for mark in text.marks if mark.start < stop < mark.end)])
    while _inside_character(data, stop):
        stop -= 1
    return stop


def _tail_start(text: Text, size: int, lines: int) -> int:
    """Where the end begins, by the same rules."""
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
    while _inside_character(data, start):
        start += 1
    return start


def _inside_character(data: bytes, at: int) -> bool:
    return 0 < at < len(data) and data[at] & 0xC0 == 0x80


def _size(count: int) -> str:
    if count < KiB:
        return f"{count} bytes"
    return f"{count / MiB:,.1f} MB" if count >= MiB else f"{count / KiB:.1f} KB"
