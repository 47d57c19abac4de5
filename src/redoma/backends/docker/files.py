"""Reading the files that a container sends back: a tar, made where hostile code has the same rights.

It is read as it comes, and never unpacked: a path is a key in a dictionary here, and nothing else. Only regular files
that were asked for are kept; count, bytes, depth and length of names are bounded as in `collect`, whose words are used.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from ..collect import DEEPEST, LONGEST_PATH, MOST_BYTES, MOST_ENTRIES, MOST_FILES, MOST_LEFT_OUT, is_magic, wanted
from .stub import TOO_LARGE

_BLOCK = 512
_LONGEST_NAME = 1 << 16  # bytes of an entry that only holds the name of the next
_KINDS = {
    b"1": "a hard link, whose content was sent under another name",
    b"2": "a symbolic link, which is not followed",
    b"3": "a device, not a regular file",
    b"4": "a device, not a regular file",
    b"6": "a pipe, not a regular file",
}
_REGULAR, _DIRECTORY, _LINK = (b"0", b"\0", b"7"), b"5", b"2"
_LONG_NAME, _EXTENDED = b"L", b"x"
_ABOUT_OTHERS = (b"K", b"g")  # where a link leads, and what holds for all that follows: nothing that is used here


class Unreadable(Exception):
    """It is no tar."""


class Files:
    """Fed with a tar piece by piece."""

    def __init__(self, patterns: Iterable[str], given: Mapping[str, bytes]) -> None:
        self._patterns, self._given = tuple(patterns), given
        self.files: dict[str, bytes] = {}
        self.left_out: dict[str, str] = {}
        self._unchanged: set[str] = set()
        self._more, self._room, self._entries = 0, MOST_BYTES, MOST_ENTRIES
        self._waiting = bytearray()
        self._skip = 0
        """Bytes to come that nobody wants."""
        self._take: tuple[bytes, str, int] | None = None
        """Kind, path and size of what is being collected."""
        self._name: str | None = None
        """Of the next entry, where it was too long for its own header."""
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
            self._leave_out(".", f"what came back was not to be read: {broken}")

    def _advance(self) -> bool:
        """One step, if there is enough for it."""
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
            self._over = True  # the mark of its end
            return
        self._entries -= 1
        if self._entries < 0:
            raise Unreadable(f"more than {MOST_ENTRIES:,} files and directories")
        kind, size = header[156:157], _number(header[124:136])
        if kind in (_LONG_NAME, _EXTENDED):
            if size > _LONGEST_NAME:
                raise Unreadable("a name without end")
            self._take = (kind, "", size)
            return
        if kind in _ABOUT_OTHERS:
            self._skip = size + -size % _BLOCK
            return
        path, self._name = (self._name or _path(header)).removeprefix("./").rstrip("/"), None
        if kind == _LINK and (whole := _left_behind(header)):
            self._wants(_REGULAR[0], path, whole)  # it is not, and this says why
            return
        if kind not in _REGULAR and kind not in (b"S", b"D"):
            size = 0  # links, devices and directories have none, whatever they say
        if self._wants(kind, path, size):
            self._take = (kind, path, size)
        else:
            self._skip = size + -size % _BLOCK

    def _wants(self, kind: bytes, path: str, size: int) -> bool:
        """Whether the content is to be kept. Says why not, where it was asked for."""
        names = path.split("/")
        if path in ("", ".") or "" in names or ".." in names or "." in names or "\0" in path:
            return False
        if kind == _DIRECTORY:
            if path in self._patterns and not is_magic(path):
                self._leave_out(f"{path}/", f"a directory; ask for {path}/** to have what is in it")
            return False
        if not wanted(path, self._patterns):
            return False
        why = None
        if kind not in _REGULAR:
            why = _KINDS.get(kind, "not a regular file")
        elif len(names) - 1 > DEEPEST:
            why = f"nested deeper than {DEEPEST} directories"
        elif len(os.fsencode(path)) > LONGEST_PATH:
            why = f"its path is longer than {LONGEST_PATH} bytes"
        elif path in self._given and len(self._given[path]) == size <= MOST_BYTES:
            return True  # whether it has changed is to be seen
        elif len(self.files) >= MOST_FILES:
            why = f"more than {MOST_FILES:,} files"
        elif size > self._room:
            whole = f"it has {size:,} bytes, and all files together may have {MOST_BYTES:,}"
            why = whole if size > MOST_BYTES else f"no room left: {whole}"
        if why is not None:
            self._leave_out(path, why)
        return why is None

    def _taken(self, kind: bytes, path: str, content: bytes) -> None:
        if kind == _LONG_NAME:
            self._name = os.fsdecode(content.rstrip(b"\0"))
        elif kind == _EXTENDED:
            for record in content.split(b"\n"):
                name, _, value = record.partition(b" ")[2].partition(b"=")
                if name == b"path":
                    self._name = os.fsdecode(value)
        elif self._given.get(path) == content:
            self._unchanged.add(path)
        elif len(self.files) >= MOST_FILES or len(content) > self._room:
            self._leave_out(path, "no room left")
        else:
            self._room -= len(content) - len(self.files.get(path, b""))
            self.files[path] = content

    def _leave_out(self, path: str, why: str) -> None:
        if len(self.left_out) < MOST_LEFT_OUT:
            self.left_out[path[:LONGEST_PATH]] = why
        else:
            self._more += 1

    def finish(self) -> tuple[dict[str, bytes], dict[str, str]]:
        """What there is, and why others stayed behind."""
        if not self._over:
            self._leave_out(".", "not all came back: the container ended before")
        for pattern in self._patterns:
            known = pattern in self.files or pattern in self.left_out or f"{pattern}/" in self.left_out
            if not known and not is_magic(pattern):  # one file by its name: its absence is news
                self._leave_out(pattern, "unchanged" if pattern in self._unchanged else "there is no such file")
        if self._more:
            self.left_out[""] = f"and {self._more:,} more"
        return self.files, self.left_out


def _number(field: bytes) -> int:
    text = field.strip(b" \0")
    if text and not set(text) <= set(b"01234567"):
        raise Unreadable("a header that makes no sense")
    return int(text or b"0", 8)


def _left_behind(header: bytes) -> int:
    """The size of a file whose content the stub has not sent; 0 for a link that is one."""
    target = header[157:257].split(b"\0", 1)[0]
    size = target.removeprefix(TOO_LARGE.encode())
    return int(size) if size != target and size.isdigit() else 0


def _path(header: bytes) -> str:
    name = header[:100].split(b"\0", 1)[0]
    if header[257:263] == b"ustar\0" and (prefix := header[345:500].split(b"\0", 1)[0]):
        name = prefix + b"/" + name
    return os.fsdecode(name)
