"""Bringing files back from a directory that hostile code has shaped.

The side that collects is the one that isn't confined, so this is the place where jails of this kind break most often.
Everything goes through a directory descriptor; links are never followed and nothing but regular files is opened, so a
link to a key of the host, a FIFO without a writer or a device can neither be read nor keep us waiting. Count, bytes,
depth and length of names are bounded, and so is the list of what was left out.

Inner: it imports the standard library alone, since a cell's init and the native backend use the same function.
Nothing of the run may be alive any more when it is called.
"""

from __future__ import annotations

import fnmatch
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

MOST_FILES = 1000
MOST_BYTES = 64 * 1024 * 1024
"""Of all files together."""
DEEPEST = 32
"""Directories on the way to a file."""
LONGEST_PATH = 1024
"""Bytes of a path, as it is relative to the directory."""
MOST_LEFT_OUT = 100
"""Reasons that are told one by one; how many more there are is told under the empty path, which is no file's."""
MOST_ENTRIES = 100_000
"""Entries that are looked at: a directory of millions would keep us busy."""

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_KINDS = {
    stat.S_IFLNK: "a symbolic link, which is not followed",
    stat.S_IFIFO: "a pipe, not a regular file",
    stat.S_IFSOCK: "a socket, not a regular file",
    stat.S_IFCHR: "a device, not a regular file",
    stat.S_IFBLK: "a device, not a regular file",
}


def collect(
    directory: int, patterns: Iterable[str], given: Mapping[str, bytes]
) -> tuple[dict[str, bytes], dict[str, str]]:
    """The new and changed files below an open directory that fit one of the patterns, and why others stayed behind.

    A pattern is a relative path in which `*`, `?` and `[…]` stand for parts of one name, and a whole name `**` for any
    number of directories; at the end, for everything below. Names that begin with a dot are names like others. A file
    that is as it was `given` is not brought back. Names that are no UTF-8 have their bytes as lone surrogates.
    """
    patterns = list(patterns)
    collection = _Collection(given)
    collection.walk(directory, "", Patterns(patterns), 0)
    for pattern in patterns:
        known = pattern in collection.files or pattern in collection.left_out or f"{pattern}/" in collection.left_out
        if not known and not is_magic(pattern):  # one file by its name: its absence is news
            collection.leave_out(pattern, "unchanged" if pattern in collection.unchanged else "there is no such file")
    if collection.more:
        collection.left_out[""] = f"and {collection.more:,} more"
    return collection.files, collection.left_out


def wanted(path: str, patterns: Iterable[str]) -> bool:
    """Whether the file with this path fits one of the patterns."""
    *directories, name = path.split("/")
    rest = Patterns(patterns)
    for directory in directories:
        rest = rest.below(directory)
    return rest.fit(name)


_MAGIC = re.compile(r"[*?\[]")


def is_magic(pattern: str) -> bool:
    """Whether it may stand for more than the one file of its name."""
    return bool(_MAGIC.search(pattern))


class Patterns:
    """What is left of some patterns in one directory. Each step takes time linear in them, whatever the names are."""

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self._rests: set[tuple[str, ...]] = set()
        for pattern in patterns:
            self._add(tuple(pattern.split("/")))

    def _add(self, rest: tuple[str, ...]) -> None:
        while rest:
            self._rests.add(rest)
            if rest[0] != "**" or len(rest) == 1:
                return
            rest = rest[1:]  # `**` may also stand for no directory at all

    def below(self, name: str) -> Patterns:
        """What is left in the directory `name`."""
        inner = Patterns()
        for rest in self._rests:
            if rest[0] == "**":
                inner._add(rest)
            elif len(rest) > 1 and _fits(name, rest[0]):
                inner._add(rest[1:])
        return inner

    def fit(self, name: str) -> bool:
        """Whether the file `name` is wanted."""
        return any(len(rest) == 1 and (rest[0] == "**" or _fits(name, rest[0])) for rest in self._rests)

    def name(self, name: str) -> bool:
        """Whether it is asked for by exactly this name."""
        return (name,) in self._rests and not is_magic(name)

    def __bool__(self) -> bool:
        return bool(self._rests)


def _fits(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern)


class _Collection:
    def __init__(self, given: Mapping[str, bytes]) -> None:
        self.given = given
        self.files: dict[str, bytes] = {}
        self.left_out: dict[str, str] = {}
        self.unchanged: set[str] = set()
        self.more = 0
        self._room, self._entries = MOST_BYTES, MOST_ENTRIES

    def leave_out(self, path: str, why: str) -> None:
        if len(self.left_out) < MOST_LEFT_OUT:
            self.left_out[path[:LONGEST_PATH]] = why
        else:
            self.more += 1

    def walk(self, directory: int, prefix: str, patterns: Patterns, depth: int) -> None:
        for name, mode in self._listed(directory, prefix):
            path = prefix + name
            if stat.S_ISDIR(mode):
                if patterns.name(name):
                    self.leave_out(f"{path}/", f"a directory; ask for {path}/** to have what is in it")
                if inner := patterns.below(name):
                    self._descend(directory, name, f"{path}/", inner, depth + 1)
            elif not patterns.fit(name):
                continue
            elif not stat.S_ISREG(mode):
                self.leave_out(path, _KINDS.get(stat.S_IFMT(mode), "not a regular file"))
            else:
                self._take(directory, name, path)

    def _listed(self, directory: int, prefix: str) -> Iterator[tuple[str, int]]:
        """Names and modes, sorted: what is left out must not depend on the order in which files were made."""
        try:
            with os.scandir(directory) as entries:
                listed = [entry.name for entry in islice(entries, self._entries + 1)]
        except OSError as error:
            self.leave_out(prefix or ".", f"can't be listed: {error.strerror}")
            return
        if len(listed) > self._entries:
            self.leave_out(prefix or ".", f"not looked through: more than {MOST_ENTRIES:,} files and directories")
            return
        self._entries -= len(listed)
        for name in sorted(listed):
            try:
                mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
            except OSError as error:
                self.leave_out(prefix + name, f"can't be looked at: {error.strerror}")
                continue
            yield name, mode

    def _descend(self, directory: int, name: str, prefix: str, patterns: Patterns, depth: int) -> None:
        if depth > DEEPEST:
            self.leave_out(prefix, f"nested deeper than {DEEPEST} directories")
            return
        try:
            below = os.open(name, _FLAGS | os.O_DIRECTORY, dir_fd=directory)
        except OSError as error:
            self.leave_out(prefix, f"can't be opened: {error.strerror}")
            return
        try:
            self.walk(below, prefix, patterns, depth)
        finally:
            os.close(below)

    def _take(self, directory: int, name: str, path: str) -> None:
        if len(os.fsencode(path)) > LONGEST_PATH:
            self.leave_out(path, f"its path is longer than {LONGEST_PATH} bytes")
            return
        try:
            file = os.open(name, _FLAGS, dir_fd=directory)
        except OSError as error:
            self.leave_out(path, f"can't be opened: {error.strerror}")
            return
        try:
            self._keep(file, path)
        except OSError as error:
            self.leave_out(path, f"can't be read: {error.strerror}")
        finally:
            os.close(file)

    def _keep(self, file: int, path: str) -> None:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode):  # it was when it was listed: something of the run is alive
            self.leave_out(path, "not a regular file")
            return
        given = self.given.get(path)
        content: bytes | None = None
        if given is not None and len(given) == about.st_size:
            content = _read(file, about.st_size)
            if content == given:
                self.unchanged.add(path)
                return
        if len(self.files) >= MOST_FILES:
            self.leave_out(path, f"more than {MOST_FILES:,} files")
        elif about.st_size > self._room:
            whole = f"it has {about.st_size:,} bytes, and all files together may have {MOST_BYTES:,}"
            self.leave_out(path, whole if about.st_size > MOST_BYTES else f"no room left: {whole}")
        else:
            self.files[path] = _read(file, about.st_size) if content is None else content
            self._room -= len(self.files[path])


def _read(file: int, size: int) -> bytes:
    """At most so many bytes: what a file of /proc or one that still grows claims to have is no bound."""
    pieces: list[bytes] = []
    while size > 0 and (piece := os.read(file, min(size, 1 << 20))):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)
