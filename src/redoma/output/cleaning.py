"""Cleans output of any length, a block at a time, exactly as the result's output is cleaned.

Whole lines are released as in `live`: text that a next line could turn into a secret waits for it. A line that is too
long to wait for is cut where no secret of the expected length can be. If it is not plain text, or if something that
waits for its end never ends, the rest is dropped: that is better than half a secret.
"""

from __future__ import annotations

import time
from collections import Counter

from ..lib.sanitise import is_clean
from ..models import KiB, MiB
from ..redaction import Redactor
from ..redaction.redactor import replace
from ..redaction.scanner import Match, cut_outside, matches_after
from ..redaction.unfinished import Unfinished

BLOCK = 256 * KiB
CONTEXT = 2048
"""Bytes of released text to remember: they may contain the name that marks the next value as a secret."""
MAX_WAITING = 1 * MiB
MAX_SECONDS = 4.0
"""Maximum processor time for one stream: text made to look like secrets takes a hundred times as long as other text."""


def is_plain(data: bytes) -> bool:
    """Return whether it is valid UTF-8 that sanitising would not change."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return is_clean(data)


def character_start(data: bytes | bytearray, at: int) -> int:
    """Return the position where the character at a position of UTF-8 text begins."""
    while 0 < at < len(data) and data[at] & 0xC0 == 0x80:
        at -= 1
    return at


class Lost(Exception):
    """The rest of the output can't be cleaned; the message says why."""


class StreamCleaner:
    """Cleans one stream, which comes in pieces of any size."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor, self._unfinished = redactor, Unfinished(redactor)
        self._max_waiting = max(MAX_WAITING, 8 * redactor.margin)
        self._pending = bytearray()  # raw, except for waiting lines at its beginning, which are already sanitised
        self._due = BLOCK
        self._context = b""
        self._left = MAX_SECONDS
        self._lost = ""  # why nothing more will be released
        self.redacted: Counter[str] = Counter()

    def add(self, data: bytes) -> bytes:
        """Take some output and return what can be released by now. Raises `Lost`."""
        if self._lost:
            raise Lost(self._lost)
        self._pending += data
        if len(self._pending) < self._due:
            return b""
        text = self._timed(ended=False)
        self._due = max(BLOCK, 2 * len(self._pending))  # don't try again for each small piece
        if len(self._pending) > self._max_waiting:
            self._lost = f"a line, or what may be a secret, is longer than {self._max_waiting:,} bytes"
        elif self._left <= 0:
            self._lost = f"to look through it took more than {MAX_SECONDS:g} s"
        return text

    def end(self) -> bytes:
        """Return the rest; called when the stream has ended. Raises `Lost`."""
        if self._lost:
            raise Lost(self._lost)
        return self._timed(ended=True)

    def _timed(self, *, ended: bool) -> bytes:
        started = time.thread_time()
        text = self._whole_lines(ended)
        if not ended and len(self._pending) > self._max_waiting // 2:
            text += self._long_line()
        self._left -= time.thread_time() - started
        return text

    def _whole_lines(self, ended: bool) -> bytes:
        raw = self._pending if ended else self._pending[: self._pending.rfind(b"\n") + 1]
        clean = self._redactor.sanitise(raw)
        data, before = self._context + clean, len(self._context)
        stop = len(clean)
        if not ended:
            stop = clean.rfind(b"\n", 0, self._unfinished.after_lines(data, before) - before) + 1
        return self._release(clean, self._redactor.find(data), stop, len(raw))

    def _long_line(self) -> bytes:
        """Release a part of a line that has waited too long. It must be plain text, so that a cut changes nothing."""
        clean = bytes(self._pending[: character_start(self._pending, len(self._pending) - 1)])
        if not is_plain(clean):
            return b""
        stop = len(clean) - self._redactor.margin
        return self._release(clean, self._redactor.find(self._context + clean), stop, len(clean))

    def _release(self, clean: bytes, matches: list[Match], stop: int, taken: int) -> bytes:
        """Return the text up to `stop`, or up to a secret that spans it; the rest waits. `taken` is how many pending
        bytes have become `clean`.
        """
        here = matches_after(matches, len(self._context))
        stop = character_start(clean, max(0, cut_outside(here, stop)))
        gone = [item for item in here if item.end <= stop]
        self._pending[:taken] = clean[stop:]
        self._context = (self._context + clean[:stop])[-CONTEXT:]
        self.redacted.update(item.kind for item in gone)
        return replace(clean[:stop], gone)[0]
