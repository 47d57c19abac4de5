"""Reads what a run has changed in a project, from the upper layer of its overlay.

The layer comes as a descriptor of a directory. Usually everything in the cell is dead when it is read. A session may be
alive; then the parts are read one after the other, while it may change them. The guest controls what is in it, and we
are not confined. So every name is opened once, below the directory in which it was listed; links are never followed;
and only regular files are read. Contents are copied into a stage, a private directory, under numbers: no name that the
run chose is used on the host.

The kernel's overlay has two marks of its own: a character device 0/0 stands for something that was removed, and an
extended attribute marks an opaque directory. A guest can make neither. If it could, it would only misreport its own
changes, which are shown before anything is applied.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

import msgspec

from ...lib.errors import BackendError
from ...lib.files import SPECIAL, reason
from ..base import EVERYTHING, OverlayEntry

MAX_ENTRIES = 100_000
MAX_DEPTH = 256
"""Maximum depth of directories: one descriptor is open for each."""
MAX_PATH = 4000
HOLES = 1 << 30
"""Bytes that all files may have beyond the disk limit, including holes, which cost the guest nothing."""
_PIECE = 1 << 20
_COUNT_EVERY = 0.5  # seconds
_OTHERS_BYTES, _OTHERS_FILES = 1 << 30, 100_000
"""What other programs may write to the same disk while a cell is alive before we assume that the cell wrote it."""
_OPAQUE = "user.overlay.opaque"
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def read_live(layer: int, stage: str, *, disk: int) -> tuple[OverlayEntry, ...]:
    """Do the same as `read_changes` for a live cell, and close the layer: the caller may be gone by then."""
    try:
        return read_changes(layer, stage, disk=disk)
    finally:
        os.close(layer)


def read_changes(layer: int, stage: str, *, disk: int) -> tuple[OverlayEntry, ...]:
    """Return every entry of the layer, a directory before its content. `disk` is the number of bytes that it may hold.
    Slow: don't call it on an event loop.

    An entry that was left out would look as if the run had not written it, and applying the others could delete what
    the project has there. So a directory that can't be read as a whole becomes one refused entry, and too many entries
    refuse everything. Raises `BackendError` if the stage has no room.
    """
    reader = _Reader(stage, disk)
    try:
        reader.walk(layer, os.listdir(layer), "", 0)
    except _TooMany:
        reader.refuse(EVERYTHING, f"more than {MAX_ENTRIES:,} files and directories were changed")
    return tuple(reader.entries)


class LayerSize:
    """Measures a layer on disk while the cell is alive. (In memory, its file system has a fixed size.)"""

    def __init__(self, layer: int, *, max_bytes: int, max_files: int) -> None:
        self._layer, self._max_bytes, self._max_files = layer, max_bytes, max_files
        self._before = os.fstatvfs(layer)
        self._count_at = 0.0

    def excess(self) -> str:
        """Return "disk" if the layer holds too much, "space" if too much space of the disk was used, else nothing.

        Cheap: the layer is counted only if free space has shrunk, and from time to time, since others use the disk,
        too. Deleted files that are still open can't be counted, so there is a limit on the loss of free space, whoever
        used it.
        """
        now = os.fstatvfs(self._layer)
        taken_bytes = (self._before.f_bfree - now.f_bfree) * now.f_frsize
        taken_files = self._before.f_ffree - now.f_ffree
        if taken_bytes > 2 * self._max_bytes + _OTHERS_BYTES or taken_files > 2 * self._max_files + _OTHERS_FILES:
            return "space"
        suspected = taken_bytes > self._max_bytes or taken_files > self._max_files
        if not suspected and time.monotonic() < self._count_at:
            return ""
        begun = time.monotonic()
        found = self.counted(unreadable=suspected)
        ended = time.monotonic()
        self._count_at = ended + max(_COUNT_EVERY, 10 * (ended - begun))
        return "disk" if found else ""

    def counted(self, *, unreadable: bool = False) -> bool:
        """Return whether it holds too much. `unreadable` is the answer if a part of it can't be read or is too deep."""
        left_bytes, left_files = self._max_bytes, self._max_files
        hidden = False
        opened = [os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._layer)]
        try:
            todo = [os.listdir(opened[0])]
            while todo:
                if not todo[-1]:
                    todo.pop()
                    os.close(opened.pop())
                    continue
                name = todo[-1].pop()
                try:
                    about = os.stat(name, dir_fd=opened[-1], follow_symlinks=False)
                    left_bytes -= about.st_blocks * 512
                    left_files -= 1
                    if left_bytes < 0 or left_files < 0:
                        return True
                    if stat.S_ISDIR(about.st_mode):
                        if len(opened) > MAX_DEPTH:
                            hidden = True
                            continue
                        opened.append(os.open(name, _FLAGS | os.O_DIRECTORY, dir_fd=opened[-1]))
                        todo.append(os.listdir(opened[-1]))
                except FileNotFoundError:
                    continue  # it was removed meanwhile
                except OSError:
                    hidden = True
        finally:
            for number in opened:
                os.close(number)
        return hidden and unreadable


class _TooMany(Exception):
    pass


class _Reader:
    def __init__(self, stage: str, disk: int) -> None:
        self.entries: list[OverlayEntry] = []
        self._stage, self._room, self._data = stage, disk + HOLES, disk
        self._left = MAX_ENTRIES
        self._linked: dict[int, OverlayEntry] = {}

    def refuse(self, path: str, why: str) -> None:
        self.entries.append(OverlayEntry(path=path, kind="refused", why=why[:200]))

    def walk(self, directory: int, names: list[str], prefix: str, depth: int) -> None:
        for name in sorted(names):
            path = prefix + name
            self._left -= 1
            if self._left < 0:
                raise _TooMany
            try:
                self._one(directory, name, path, depth)
            except OSError as error:
                self.refuse(path, f"it can't be read: {error.strerror}")

    def _one(self, above: int, name: str, path: str, depth: int) -> None:
        # Open the name once and use only that descriptor: a live session may change what the name stands for.
        found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
        try:
            about = os.fstat(found)
            mode = stat.S_IMODE(about.st_mode)
            if not stat.S_ISDIR(about.st_mode):
                self._leaf(found, path, about)
                return
            if depth >= MAX_DEPTH:
                self.refuse(path, f"nested deeper than {MAX_DEPTH} directories")
                return
            directory = _open(found, mode, os.O_DIRECTORY)
        finally:
            os.close(found)
        try:
            self._directory(directory, path, mode, depth)
        finally:
            if not _may_look(mode, os.O_DIRECTORY):
                os.fchmod(directory, mode)
            os.close(directory)

    def _leaf(self, found: int, path: str, about: os.stat_result) -> None:
        mode = stat.S_IMODE(about.st_mode)
        if stat.S_ISLNK(about.st_mode):
            self.entries.append(OverlayEntry(path=path, kind="symlink", target=os.readlink("", dir_fd=found)))
        elif stat.S_ISCHR(about.st_mode) and about.st_rdev == 0:
            self.entries.append(OverlayEntry(path=path, kind="removed"))
        elif not stat.S_ISREG(about.st_mode):
            what = SPECIAL.get(stat.S_IFMT(about.st_mode))
            self.refuse(path, f"{what}, which is not a file" if what else "no regular file")
        elif about.st_nlink > 1 and (first := self._linked.get(about.st_ino)) is not None:
            self.entries.append(msgspec.structs.replace(first, path=path, mode=mode, link_of=first.path))
        elif about.st_size > self._room:
            self.refuse(path, "too much of it is holes, of other files too, or it is too large")
        else:
            self._room -= about.st_size
            self._file(found, path, about)

    def _directory(self, directory: int, path: str, mode: int, depth: int) -> None:
        # Everything that can fail comes before its entry: a path is either listed or refused.
        names, opaque = os.listdir(directory), _is_opaque(directory)
        longest = max((len(os.fsencode(below)) for below in names), default=0)
        if len(os.fsencode(path)) + 1 + longest > MAX_PATH:
            self.refuse(path, f"it holds a path of more than {MAX_PATH} bytes")
            return
        self.entries.append(OverlayEntry(path=path, kind="directory", mode=mode, opaque=opaque))
        self.walk(directory, names, f"{path}/", depth + 1)

    def _file(self, found: int, path: str, about: os.stat_result) -> None:
        mode, size = stat.S_IMODE(about.st_mode), about.st_size
        file = _open(found, mode)
        try:
            self._data -= sum(end - start for start, end in _between_holes(file, size))
            if self._data < 0:  # only on disk, where no write fails at once
                self.refuse(path, "more was written than may be")
                return
            blob = str(len(self.entries))
            sha256 = _copy(file, size, os.path.join(self._stage, blob))
        finally:
            os.close(file)
        entry = OverlayEntry(path=path, kind="file", mode=mode, size=size, blob=blob, sha256=sha256)
        self.entries.append(entry)
        self._linked[about.st_ino] = entry


def _open(found: int, mode: int, more: int = 0) -> int:
    """Open a file or directory for reading, whatever mode the guest gave it. The mode of a file is restored here, that
    of a directory by the caller.
    """
    place = f"/proc/self/fd/{found}"
    if not _may_look(mode, more):
        os.chmod(place, mode | _LOOK[more])
    try:
        return os.open(place, _FLAGS & ~os.O_NOFOLLOW | more)
    finally:
        if not more and not _may_look(mode, more):
            os.chmod(place, mode)


_LOOK = {0: 0o400, os.O_DIRECTORY: 0o500}


def _may_look(mode: int, more: int) -> bool:
    return mode & _LOOK[more] == _LOOK[more]


def _is_opaque(directory: int) -> bool:
    try:
        return os.getxattr(directory, _OPAQUE) == b"y"
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.EOPNOTSUPP):
            return False
        raise


def _between_holes(file: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each part of a file that is not a hole."""
    end = 0
    while end < size:
        try:
            start = os.lseek(file, end, os.SEEK_DATA)
            end = min(os.lseek(file, start, os.SEEK_HOLE), size)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole follows
                return
            raise
        yield start, end


def _copy(file: int, size: int, target: str) -> str:
    """Copy the first `size` bytes to a new file, keeping holes. Returns their SHA-256.

    Raises `BackendError` if there is no room: that is our failure, not the run's.
    """
    with _Staged(target) as staged:
        for place, end in _between_holes(file, size):
            while place < end and (piece := os.pread(file, min(_PIECE, end - place), place)):
                staged.write(place, piece)
                place += len(piece)
        return staged.finish(size)


class _Staged:
    """A new file in the stage."""

    def __init__(self, path: str) -> None:
        with _keeping():
            self._number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._number)

    def write(self, place: int, piece: bytes) -> None:
        with _keeping():
            while piece:
                written = os.pwrite(self._number, piece, place)
                place, piece = place + written, piece[written:]

    def finish(self, size: int) -> str:
        """Set its size. Returns the SHA-256 of its content."""
        with _keeping():
            os.ftruncate(self._number, size)
            with open(self._number, "rb", closefd=False) as made:
                return hashlib.file_digest(made, "sha256").hexdigest()


@contextmanager
def _keeping() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BackendError(
            "what the run changed can't be kept", why=reason(error), next="free some space on the disk"
        ) from error
