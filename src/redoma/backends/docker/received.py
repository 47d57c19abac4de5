"""Parses what a container sends back: the stub's final message, and files as a tar. Hostile code in the container has
the same rights as the stub, so this file is the trust boundary.

Everything is parsed as a stream and never unpacked: a path is only a dictionary key here. Only regular files that were
requested are kept. Their number, size, depth and name length are bounded as in `collect`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from ..collect import MAX_DEPTH, MAX_ENTRIES, Collection, is_magic, wanted, with_directories
from .stub import PASSED, TAKEN, TOO_LARGE

_MAX_LAST_LINE = 4096
_BLOCK = 512
_MAX_NAME = 1 << 16  # bytes of an entry that only holds the name of the next entry
_KINDS = {
    b"1": "a hard link, whose content was sent under another name",
    b"2": "a symbolic link, which is not followed",
    b"3": "a device, not a regular file",
    b"4": "a device, not a regular file",
    b"6": "a pipe, not a regular file",
}
_REGULAR, _DIRECTORY, _LINK = (b"0", b"\0", b"7"), b"5", b"2"
_LONG_NAME, _EXTENDED = b"L", b"x"
_ABOUT_OTHERS = (b"K", b"g")  # a link's target, and global headers: not used here


class LastWord:
    """Separates the stub's messages from the program's output on the same stream.

    The stub first reports that it has taken its order. Its later messages begin with the nonce: `+` each time that a
    shell has passed a signal on; and when the program has ended, one line and then the files. The line is empty, or `!`
    and what failed, or `=` if the program exited by itself and not by a signal, or the most KiB of memory that one
    of its processes has had. A program that learns the nonce can forge all of it, but only about itself.
    """

    def __init__(self, nonce: bytes, files: Files | None) -> None:
        self._nonce, self._files = nonce, files
        self._held, self._given = b"", 0  # what may begin the nonce, and how much of it was passed on all the same
        self.taken = self.begun = False
        self.passed = 0
        self._line = b""

    def feed(self, data: bytes) -> bytes:
        """Take the next piece of output, and return the part that the program printed."""
        if not self.taken:
            self._held += data
            if len(self._held) < len(TAKEN):
                return b""
            self.taken, data, self._held = True, self._held.removeprefix(TAKEN), b""
        if self.begun:
            self._listen(data)
            return b""
        own, data, given = b"", self._held + data, self._given
        while True:
            before, found, data = data.partition(self._nonce)
            if not data:  # the byte after the nonce decides what it means
                kept = 0 if found else self._begins(before)
                self._held = found or before[len(before) - kept :]
                passed_on = before[: len(before) - kept]
                self._given = max(given - len(passed_on), 0)
                return own + passed_on[given:]
            own += before[given:]
            given = self._given = 0
            if not data.startswith(PASSED):
                self.begun, self._held = True, b""
                self._listen(data)
                return own
            self.passed, data = self.passed + 1, data.removeprefix(PASSED)

    def _begins(self, data: bytes) -> int:
        """Return how many bytes at the end of `data` may be the beginning of the nonce."""
        sizes = range(min(len(data), len(self._nonce) - 1), 0, -1)
        return next((size for size in sizes if self._nonce.startswith(data[-size:])), 0)

    def _listen(self, data: bytes) -> None:
        if not self._line.endswith(b"\n"):
            line, end, data = data.partition(b"\n")
            self._line = (self._line + line)[:_MAX_LAST_LINE] + end
        if data and self._files is not None:
            self._files.feed(data)

    def give(self) -> bytes:
        """Return what is held back because it looks like the beginning of the nonce, when no more has come for a while,
        or at the end of the output. If the rest of the nonce does come, it is recognized all the same."""
        if not self.holds:
            return b""
        held, self._given = self._held[self._given :], len(self._held)
        return held

    @property
    def holds(self) -> bool:
        return self.taken and self._given < len(self._held) < len(self._nonce)

    @property
    def broken(self) -> str | None:
        line = self._line.strip().decode("utf-8", "replace")
        return line[1:] if line.startswith("!") else None

    @property
    def ended_itself(self) -> bool:
        return self._line.strip() == b"="

    @property
    def peak(self) -> int:
        """The most bytes of memory that a process of a killed program has had; 0 if the stub doesn't know."""
        line = self._line.strip()[:15]
        return int(line) << 10 if line.isdigit() else 0


class Unreadable(Exception):
    """What came back is not a tar as a stub makes it."""


class Files:
    """Reads a tar piece by piece. Keeps the files that match a pattern and differ from those `given`."""

    def __init__(self, patterns: Iterable[str], given: Mapping[str, bytes]) -> None:
        self._patterns, self._found = tuple(patterns), Collection(given)
        self._wanted = with_directories(self._patterns)
        self._entries = MAX_ENTRIES
        self._waiting = bytearray()
        self._skip = 0
        """Bytes to come that are discarded."""
        self._take: tuple[bytes, str, int] | None = None
        """Kind, path and size of the entry that is being read."""
        self._name: str | None = None
        """The name of the next entry, if it was too long for the header."""
        self._over = False

    def feed(self, data: bytes) -> None:
        if self._over:
            return
        self._waiting += data
        try:
            while self._advance():
                continue
        except Unreadable as broken:
            self._over = True
            self._found.leave_out(".", f"what came back was not to be read: {broken}")

    def _advance(self) -> bool:
        """Take one step if there are enough bytes for it. Returns whether another may be possible."""
        if self._skip:
            passed = min(self._skip, len(self._waiting))
            del self._waiting[:passed]
            self._skip -= passed
            return not self._skip and bool(self._waiting)
        if self._take is not None:
            kind, path, size = self._take
            if len(self._waiting) < size:
                return False
            content = bytes(self._waiting[:size])
            del self._waiting[:size]
            self._take, self._skip = None, -size % _BLOCK
            self._taken(kind, path, content)
            return True
        if len(self._waiting) < _BLOCK:
            return False
        header = bytes(self._waiting[:_BLOCK])
        del self._waiting[:_BLOCK]
        self._header(header)
        return not self._over

    def _header(self, header: bytes) -> None:
        if not header.strip(b"\0"):
            self._over = True  # the end-of-archive mark
            return
        self._entries -= 1
        if self._entries < 0:
            raise Unreadable(f"more than {MAX_ENTRIES:,} files and directories")
        kind, size = header[156:157], _number(header[124:136])
        if kind in (_LONG_NAME, _EXTENDED):
            if size > _MAX_NAME:
                raise Unreadable("a name without end")
            self._take = (kind, "", size)
            return
        if kind in _ABOUT_OTHERS:
            self._skip = size + -size % _BLOCK
            return
        path, self._name = (self._name or _path(header)).removeprefix("./").rstrip("/"), None
        if kind == _LINK and (whole := _left_behind(header)):
            self._wants(_REGULAR[0], path, whole)  # records why it is left out
            return
        if kind not in _REGULAR and kind not in (b"S", b"D"):
            size = 0  # links, devices and directories have no content, whatever the header says
        if self._wants(kind, path, size):
            self._take = (kind, path, size)
        else:
            self._skip = size + -size % _BLOCK

    def _wants(self, kind: bytes, path: str, size: int) -> bool:
        """Return whether to keep the content of an entry. If it was requested and can't be kept, note why."""
        names = path.split("/")
        if path in ("", ".") or "" in names or ".." in names or "." in names or "\0" in path:
            return False
        if kind == _DIRECTORY:
            if path in self._patterns and not is_magic(path):
                self._found.note_directory(path)
            return False
        if not wanted(path, self._wanted):
            return False
        if kind not in _REGULAR:
            why: str | None = _KINDS.get(kind, "not a regular file")
        elif len(names) - 1 > MAX_DEPTH:
            why = f"nested deeper than {MAX_DEPTH} directories"
        else:
            why = self._found.objection(path, size)
        if why is not None:
            self._found.leave_out(path, why)
        return why is None

    def _taken(self, kind: bytes, path: str, content: bytes) -> None:
        if kind == _LONG_NAME:
            self._name = os.fsdecode(content.rstrip(b"\0"))
        elif kind == _EXTENDED:
            for record in content.split(b"\n"):
                name, _, value = record.partition(b" ")[2].partition(b"=")
                if name == b"path":
                    self._name = os.fsdecode(value)
        else:
            self._found.keep(path, content)

    def finish(self) -> tuple[dict[str, bytes], dict[str, str]]:
        """Return the files, and the reasons why others were left out."""
        if not self._over:
            self._found.leave_out(".", "not all came back: the container ended before")
        return self._found.finish(self._patterns)


def _number(field: bytes) -> int:
    text = field.strip(b" \0")
    if text and not set(text) <= set(b"01234567"):
        raise Unreadable("a header that makes no sense")
    return int(text or b"0", 8)


def _left_behind(header: bytes) -> int:
    """Return the size of a file that the stub did not send; 0 for a real symlink."""
    target = header[157:257].split(b"\0", 1)[0]
    size = target.removeprefix(TOO_LARGE.encode())
    return int(size) if size != target and size.isdigit() else 0


def _path(header: bytes) -> str:
    name = header[:100].split(b"\0", 1)[0]
    if header[257:263] == b"ustar\0" and (prefix := header[345:500].split(b"\0", 1)[0]):
        name = prefix + b"/" + name
    return os.fsdecode(name)
