"""Output of any length made fit to be kept, a block at a time: what comes out is what the result would show of it.

Whole lines are let go as `live` lets them go: what a next line could turn into a secret waits for it. A line that is
too long to wait for is cut where no secret of the expected length can be; if it is not plain text, or if what waits for
its end goes on and on, the rest is lost: better that than half a secret.
"""

from __future__ import annotations

import time
from collections import Counter

from ...models import KiB, MiB
from ...redaction import Redactor
from ...redaction.redactor import replace
from ...redaction.scanner import Found
from ...redaction.unfinished import Unfinished
from ..capture import LONGEST_SECRET, is_clean, sanitised

_BLOCK = 256 * KiB
_MOST_WAITING = 1 * MiB
_CONTEXT = 2048  # bytes of what was let go: in them may be the name that gives the next value away
_SECONDS = 4.0
"""Of processor time, for one stream: text that is written to look like secrets takes a hundred times what others do."""


class Lost(Exception):
    """From here on nothing is kept, and why."""


class Flow:
    """Takes one stream, in pieces of any size."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor, self._unfinished = redactor, Unfinished(redactor)
        self._margin = max(LONGEST_SECRET, redactor.longest)
        self._most = max(_MOST_WAITING, 8 * self._margin)
        self._pending = bytearray()  # raw, but for lines at its beginning that wait: those are sanitised already
        self._due = _BLOCK
        self._context = b""
        self._left = _SECONDS
        self._lost = ""  # why, once what was let go is all there will be
        self.redacted: Counter[str] = Counter()

    def add(self, data: bytes) -> bytes:
        """Take some, and give what may be let go. Raises `Lost`."""
        if self._lost:
            raise Lost(self._lost)
        self._pending += data
        if len(self._pending) < self._due:
            return b""
        text = self._timed(ended=False)
        self._due = max(_BLOCK, 2 * len(self._pending))  # not again for each small piece
        if len(self._pending) > self._most:
            self._lost = f"a line, or what may be a secret, is longer than {self._most:,} bytes"
        elif self._left <= 0:
            self._lost = f"to look through it took more than {_SECONDS:g} s"
        return text

    def end(self) -> bytes:
        """The rest. Raises `Lost`."""
        if self._lost:
            raise Lost(self._lost)
        return self._timed(ended=True)

    def _timed(self, *, ended: bool) -> bytes:
        started = time.thread_time()
        text = self._whole_lines(ended)
        if not ended and len(self._pending) > self._most // 2:
            text += self._long_line()
        self._left -= time.thread_time() - started
        return text

    def _whole_lines(self, ended: bool) -> bytes:
        raw = self._pending if ended else self._pending[: self._pending.rfind(b"\n") + 1]
        clean = sanitised(raw, self._redactor)
        data, before = self._context + clean, len(self._context)
        stop = len(clean)
        if not ended:
            stop = clean.rfind(b"\n", 0, self._unfinished.after_lines(data, before) - before) + 1
        return self._let_go(clean, self._redactor.find(data), stop, len(raw))

    def _long_line(self) -> bytes:
        """Some of what waits for too long: it must be what it looks like, so that a cut changes nothing."""
        size = len(self._pending)
        while size and self._pending[size - 1] & 0xC0 == 0x80:  # not in the middle of a character
            size -= 1
        clean = bytes(self._pending[: max(0, size - 1)])
        if not _is_plain(clean):
            return b""
        return self._let_go(clean, self._redactor.find(self._context + clean), len(clean) - self._margin, len(clean))

    def _let_go(self, clean: bytes, found: list[Found], stop: int, taken: int) -> bytes:
        """The text up to `stop`, or up to what begins before and ends after it; the rest of it waits."""
        before = len(self._context)
        here = [Found(max(0, f.start - before), f.end - before, f.kind) for f in found if f.end > before]
        stop = max(0, min([stop, *(item.start for item in here if item.start < stop < item.end)]))
        while 0 < stop < len(clean) and clean[stop] & 0xC0 == 0x80:
            stop -= 1
        gone = [item for item in here if item.end <= stop]
        self._pending[:taken] = clean[stop:]
        self._context = (self._context + clean[:stop])[-_CONTEXT:]
        self.redacted.update(item.kind for item in gone)
        return replace(clean[:stop], gone)[0]


def _is_plain(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return is_clean(data)
