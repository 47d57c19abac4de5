"""Reads files back from a directory that hostile code has shaped.

The collecting side is not confined, so jails of this kind break most often here. Every access goes through a directory
descriptor. Links are never followed and only regular files are opened, so a link to a key of the host, a FIFO without a
writer or a device can neither be read nor block us. Count, bytes, depth and length of names are bounded, and so is the
list of what was left out.

This module imports only the standard library, since a cell's init and the native backend use the same function. No
process of the run may be alive when it is called.
"""

from __future__ import annotations

import fnmatch
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from ..lib.files import SPECIAL
from ..lib.patterns import lazy_pattern

MAX_FILES = 1000
MAX_BYTES = 64 * 1024 * 1024
"""Of all files together."""
MAX_DEPTH = 32
"""Directories on the way to a file."""
MAX_PATH = 1024
"""Bytes of a path, relative to the directory."""
MAX_LEFT_OUT = 100
"""Reasons that are listed one by one. The number of further ones is listed under the empty path, which no file has."""
MAX_ENTRIES = 100_000
"""Entries that are looked at: listing a directory of millions would take too long."""

MISSING = "there is no such file"
UNCHANGED, NOTHING_NEW = "unchanged", "a directory with nothing new in it"
"""Reasons why something requested by its name was left out; the last two are about something that was there before, or
is empty."""

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_NO_FILES = {kind: f"{what}, not a regular file" for kind, what in SPECIAL.items()}
_NO_FILES[stat.S_IFLNK] = "a symbolic link, which is not followed"


def collect(
    directory: int, patterns: Iterable[str], given: Mapping[str, bytes]
) -> tuple[dict[str, bytes], dict[str, str]]:
    """Read the new and changed files below an open directory that match one of the patterns.

    Returns the files by path, and the reasons why others were left out by path.

    A pattern is a relative path. `*`, `?` and `[…]` match parts of one name; a whole name `**` matches any number of
    directories, and at the end everything below. A pattern without any of these that names a directory stands for
    everything below it. Names that begin with a dot are not special. A file that is unchanged
    since it was `given` is not returned. Bytes of names that are not UTF-8 become lone surrogates.
    """
    patterns = list(patterns)
    walk = _Walk(given)
    walk.directory(directory, "", Patterns(with_directories(patterns)), 0)
    return walk.found.finish(patterns)


def with_directories(patterns: Sequence[str]) -> list[str]:
    """Return the patterns, and what each plain name stands for if it is a directory's: everything below it."""
    return [*patterns, *(f"{pattern}/**" for pattern in patterns if not is_magic(pattern))]


def wanted(path: str, patterns: Iterable[str]) -> bool:
    """Return whether the file with this path matches one of the patterns."""
    *directories, name = path.split("/")
    rest = Patterns(patterns)
    for directory in directories:
        rest = rest.below(directory)
    return rest.fit(name)


_MAGIC = lazy_pattern(r"[*?\[]")


def is_magic(pattern: str) -> bool:
    """Return whether a pattern may match more than the one file of its name."""
    return bool(_MAGIC.search(pattern))


class Patterns:
    """The remaining parts of some patterns, seen from one directory. Each step takes time linear in them, whatever the
    names.
    """

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self._rests: set[tuple[str, ...]] = set()
        for pattern in patterns:
            self._add(tuple(pattern.split("/")))

    def _add(self, rest: tuple[str, ...]) -> None:
        while rest:
            self._rests.add(rest)
            if rest[0] != "**" or len(rest) == 1:
                return
            rest = rest[1:]  # `**` also matches no directory at all

    def below(self, name: str) -> Patterns:
        """Return the remaining patterns in the directory `name`."""
        inner = Patterns()
        for rest in self._rests:
            if rest[0] == "**":
                inner._add(rest)
            elif len(rest) > 1 and fnmatch.fnmatchcase(name, rest[0]):
                inner._add(rest[1:])
        return inner

    def fit(self, name: str) -> bool:
        """Return whether the file `name` is wanted."""
        return any(len(rest) == 1 and (rest[0] == "**" or fnmatch.fnmatchcase(name, rest[0])) for rest in self._rests)

    def name(self, name: str) -> bool:
        """Return whether a pattern is exactly this name."""
        return (name,) in self._rests and not is_magic(name)

    def __bool__(self) -> bool:
        return bool(self._rests)


class Collection:
    """The files to return under one budget, and the reasons why others were left out. Also used for containers."""

    def __init__(self, given: Mapping[str, bytes]) -> None:
        self._given = given
        self._files: dict[str, bytes] = {}
        self._left_out: dict[str, str] = {}
        self._unchanged: set[str] = set()
        self._directories: set[str] = set()
        self._more, self._room = 0, MAX_BYTES

    def leave_out(self, path: str, why: str) -> None:
        if len(self._left_out) < MAX_LEFT_OUT:
            self._left_out[path[:MAX_PATH]] = why
        else:
            self._more += 1

    def note_directory(self, path: str) -> None:
        """Note that what was requested by this name is a directory."""
        self._directories.add(path)

    def objection(self, path: str, size: int) -> str | None:
        """Return why a file of this size can't be kept; None if its content should be read."""
        if len(os.fsencode(path)) > MAX_PATH:
            return f"its path is longer than {MAX_PATH} bytes"
        if path in self._given and len(self._given[path]) == size <= MAX_BYTES:
            return None  # only its content shows whether it has changed
        return self._no_room(size)

    def _no_room(self, size: int) -> str | None:
        if len(self._files) >= MAX_FILES:
            return f"more than {MAX_FILES:,} files"
        if size > self._room:
            whole = f"it has {size:,} bytes, and all files together may have {MAX_BYTES:,}"
            return whole if size > MAX_BYTES else f"no room left: {whole}"
        return None

    def keep(self, path: str, content: bytes) -> None:
        """Keep a file that had no objection, unless it is as it was given."""
        if self._given.get(path) == content:
            self._unchanged.add(path)
        elif (why := self._no_room(len(content))) is not None:
            self.leave_out(path, why)
        else:
            self._room -= len(content) - len(self._files.get(path, b""))
            self._files[path] = content

    def finish(self, patterns: Iterable[str]) -> tuple[dict[str, bytes], dict[str, str]]:
        """Return the files, and the reasons why others were left out."""
        for pattern in patterns:
            if is_magic(pattern) or pattern in self._files or pattern in self._left_out:
                continue
            # It was requested by name: report that it is missing.
            if pattern not in self._directories:
                self.leave_out(pattern, UNCHANGED if pattern in self._unchanged else MISSING)
            elif not any(path.startswith(f"{pattern}/") for path in (*self._files, *self._left_out)):
                self.leave_out(f"{pattern}/", NOTHING_NEW)
        if self._more:
            self._left_out[""] = f"and {self._more:,} more"
        return self._files, self._left_out


class _Walk:
    """A walk through the directories that may hold a wanted file."""

    def __init__(self, given: Mapping[str, bytes]) -> None:
        self.found = Collection(given)
        self._entries = MAX_ENTRIES

    def directory(self, directory: int, prefix: str, patterns: Patterns, depth: int) -> None:
        for name, mode in self._listed(directory, prefix):
            path = prefix + name
            if stat.S_ISDIR(mode):
                if patterns.name(name):
                    self.found.note_directory(path)
                if inner := patterns.below(name):
                    self._descend(directory, name, f"{path}/", inner, depth + 1)
            elif not patterns.fit(name):
                continue
            elif not stat.S_ISREG(mode):
                self.found.leave_out(path, _NO_FILES.get(stat.S_IFMT(mode), "not a regular file"))
            else:
                self._file(directory, name, path)

    def _listed(self, directory: int, prefix: str) -> Iterator[tuple[str, int]]:
        """Yield names and modes, sorted: what is left out must not depend on the order in which files were created."""
        try:
            with os.scandir(directory) as entries:
                listed = [entry.name for entry in islice(entries, self._entries + 1)]
        except OSError as error:
            self.found.leave_out(prefix or ".", f"can't be listed: {error.strerror}")
            return
        if len(listed) > self._entries:
            self.found.leave_out(prefix or ".", f"not looked through: more than {MAX_ENTRIES:,} files and directories")
            return
        self._entries -= len(listed)
        for name in sorted(listed):
            try:
                mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
            except OSError as error:
                self.found.leave_out(prefix + name, f"can't be looked at: {error.strerror}")
                continue
            yield name, mode

    def _descend(self, directory: int, name: str, prefix: str, patterns: Patterns, depth: int) -> None:
        if depth > MAX_DEPTH:
            self.found.leave_out(prefix, f"nested deeper than {MAX_DEPTH} directories")
            return
        try:
            below = os.open(name, _FLAGS | os.O_DIRECTORY, dir_fd=directory)
        except OSError as error:
            self.found.leave_out(prefix, f"can't be opened: {error.strerror}")
            return
        try:
            self.directory(below, prefix, patterns, depth)
        finally:
            os.close(below)

    def _file(self, directory: int, name: str, path: str) -> None:
        try:
            file = os.open(name, _FLAGS, dir_fd=directory)
        except OSError as error:
            self.found.leave_out(path, f"can't be opened: {error.strerror}")
            return
        try:
            about = os.fstat(file)
            # It was regular when it was listed: if it isn't now, a process of the run is alive.
            why = self.found.objection(path, about.st_size) if stat.S_ISREG(about.st_mode) else "not a regular file"
            if why is not None:
                self.found.leave_out(path, why)
            else:
                self.found.keep(path, _read(file, about.st_size))
        except OSError as error:
            self.found.leave_out(path, f"can't be read: {error.strerror}")
        finally:
            os.close(file)


def _read(file: int, size: int) -> bytes:
    """Read at most `size` bytes: the size that a file in /proc or a growing file claims is not a bound."""
    pieces: list[bytes] = []
    while size > 0 and (piece := os.read(file, min(size, 1 << 20))):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)
