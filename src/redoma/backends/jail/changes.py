"""What a run has changed in a project, read from the upper layer of its overlay.

The layer comes as a descriptor of a directory. Nothing of the cell is alive any more when it is read; but a session may
be, and then what is told is what was found, some of it a moment later than the rest. A guest has shaped it, and we are
not confined: every name is opened once, below the directory that it was listed in, links are never followed, and
nothing but regular files is read. Contents go into a stage, a directory that only we know, under numbers:
no name that the run chose is used on the host.

Hidden names of the kernel's overlay are its own: a character device 0/0 stands for what was removed, an attribute marks
a directory that nothing shows through. A guest can make neither; if it could, it would only lie about what it did, to
somebody who is shown exactly that before anything happens.
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
from ..base import EVERYTHING, Entry

MAX_ENTRIES = 100_000
MAX_DEPTH = 256
"""Directories on the way to an entry: one descriptor is open for each."""
MAX_PATH = 4000
HOLES = 1 << 30
"""Beyond its limit on the disk: bytes that files may have together, holes included, which cost the guest nothing."""
_PIECE = 1 << 20
_COUNT_EVERY = 0.5  # seconds
_OTHERS_BYTES, _OTHERS_FILES = 1 << 30, 100_000
"""What others may write to the same disk while a cell is alive, before we assume that the cell wrote it."""
_OPAQUE = "user.overlay.opaque"
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_ODD = {
    stat.S_IFIFO: "a pipe, which is no file",
    stat.S_IFSOCK: "a socket, which is no file",
    stat.S_IFCHR: "a device, which is no file",
    stat.S_IFBLK: "a device, which is no file",
}


def read_live(layer: int, stage: str, *, disk: int) -> tuple[Entry, ...]:
    """As `read_changes`, of a cell that is alive. Closes the layer: the caller may be gone when this ends."""
    try:
        return read_changes(layer, stage, disk=disk)
    finally:
        os.close(layer)


def read_changes(layer: int, stage: str, *, disk: int) -> tuple[Entry, ...]:
    """Every entry of the layer, which could hold `disk` bytes; a directory before what is in it. Slow: not for an event
    loop.

    What is not told would look as if the run had not put it there, and what the project has in its place would go. So
    a directory that can't be told as a whole is refused in place of its entry, and too many entries refuse everything.
    """
    reader = _Reader(stage, disk)
    try:
        reader.walk(layer, os.listdir(layer), "", 0)
    except _TooMany:
        reader.refuse(EVERYTHING, f"more than {MAX_ENTRIES:,} files and directories were changed")
    return tuple(reader.entries)


class LayerSize:
    """How much a layer on disk holds, while the cell is alive. A layer in memory has a cap of its own."""

    def __init__(self, layer: int, *, max_bytes: int, max_files: int) -> None:
        self._layer, self._max_bytes, self._max_files = layer, max_bytes, max_files
        self._before = os.fstatvfs(layer)
        self._count_at = 0.0

    def excess(self) -> str:
        """`disk` if it holds too much, `space` if the disk has lost too much meanwhile, else nothing.

        Cheap: free space tells when to count. Others use the disk too, so now and then count anyway. Deleted files that
        are still open can't be counted, so there is a limit on what the disk may lose, whoever used it.
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
        """Whether it holds too much. `unreadable` is the answer where a part of it can't be read or is too deep."""
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
                    continue  # it has gone since
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
        self.entries: list[Entry] = []
        self._stage, self._room, self._data = stage, disk + HOLES, disk
        self._left = MAX_ENTRIES
        self._linked: dict[int, Entry] = {}

    def refuse(self, path: str, why: str) -> None:
        self.entries.append(Entry(path=path, kind="refused", why=why[:200]))

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
        # What has this name is opened once, and everything is asked of that: the session may live, and change it.
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
            self.entries.append(Entry(path=path, kind="symlink", target=os.readlink("", dir_fd=found)))
        elif stat.S_ISCHR(about.st_mode) and about.st_rdev == 0:
            self.entries.append(Entry(path=path, kind="removed"))
        elif not stat.S_ISREG(about.st_mode):
            self.refuse(path, _ODD.get(stat.S_IFMT(about.st_mode), "no regular file"))
        elif about.st_nlink > 1 and (first := self._linked.get(about.st_ino)) is not None:
            self.entries.append(msgspec.structs.replace(first, path=path, mode=mode, link_of=first.path))
        elif about.st_size > self._room:
            self.refuse(path, "too much of it is holes, of other files too, or it is too large")
        else:
            self._room -= about.st_size
            self._file(found, path, about)

    def _directory(self, directory: int, path: str, mode: int, depth: int) -> None:
        # All that can fail comes before its entry: a path is either told or refused.
        names, opaque = os.listdir(directory), _is_opaque(directory)
        longest = max((len(os.fsencode(below)) for below in names), default=0)
        if len(os.fsencode(path)) + 1 + longest > MAX_PATH:
            self.refuse(path, f"it holds a path of more than {MAX_PATH} bytes")
            return
        self.entries.append(Entry(path=path, kind="directory", mode=mode, opaque=opaque))
        self.walk(directory, names, f"{path}/", depth + 1)

    def _file(self, found: int, path: str, about: os.stat_result) -> None:
        mode, size = stat.S_IMODE(about.st_mode), about.st_size
        file = _open(found, mode)
        try:
            self._data -= sum(end - start for start, end in _between_holes(file, size))
            if self._data < 0:  # only on disk, where nothing stops a write at once
                self.refuse(path, "more was written than may be")
                return
            blob = str(len(self.entries))
            sha256 = _copy(file, size, os.path.join(self._stage, blob))
        finally:
            os.close(file)
        entry = Entry(path=path, kind="file", mode=mode, size=size, blob=blob, sha256=sha256)
        self.entries.append(entry)
        self._linked[about.st_ino] = entry


def _open(found: int, mode: int, more: int = 0) -> int:
    """Open what was found, a file or a directory. Its owner may always look, whatever its mode was made; that of a file
    is put back, that of a directory is for the caller to put back."""
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
    """Where there is something in a file, from and to."""
    end = 0
    while end < size:
        try:
            start = os.lseek(file, end, os.SEEK_DATA)
            end = min(os.lseek(file, start, os.SEEK_HOLE), size)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole is left
                return
            raise
        yield start, end


def _copy(file: int, size: int, target: str) -> str:
    """Copy the first `size` bytes, holes as holes, to a new file. Returns their SHA-256.

    Raises `BackendError` if there is no room for them: a change that we can't keep is no fault of the run's.
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
        """Give it its size. Returns the SHA-256 of its content."""
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
            "what the run changed can't be kept", why=error.strerror or str(error), next="free some space on the disk"
        ) from error
