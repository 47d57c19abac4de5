"""Sends what a run has changed in a project to the parent, entry by entry, from the upper layer of its overlay. Inner.

It runs in init, when nothing else of the cell is alive, with the rights of the guest and no others. Hidden names of the
kernel's overlay are its own: a character device 0/0 stands for what was removed, an attribute marks a directory that
nothing shows through. A guest can make neither; if it could, it would only lie about what it did, to somebody who is
shown exactly that before anything happens.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from collections.abc import Callable, Iterator
from typing import Any

from redoma.backends.jail import protocol

MAX_ENTRIES = 100_000
MAX_DEPTH = 256
"""Directories on the way to an entry: one descriptor is open for each."""
MAX_PATH = 4000
_EVERYTHING = "."  # `EVERYTHING` of backends.base, which is not loaded in a cell
HOLES = 1 << 30
"""Beyond its limit on the disk: bytes that files may have together, holes included, which cost the guest nothing."""
_PIECE = 1 << 20
_COUNT_EVERY = 0.5  # seconds
_OTHERS_BYTES, _OTHERS_FILES = 1 << 30, 100_000
"""What others may write to the same disk while a cell is alive, before we assume that the cell wrote it."""
_OPAQUE = "user.overlay.opaque"
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_ODD = {
    stat.S_IFIFO: "a pipe, which is no file",
    stat.S_IFSOCK: "a socket, which is no file",
    stat.S_IFCHR: "a device, which is no file",
    stat.S_IFBLK: "a device, which is no file",
}

Send = Callable[[bytes], object]


def send(layer: int, tell: Send, disk: int) -> None:
    """Send everything in the layer, which could hold `disk` bytes; a directory before what is in it.

    What is not sent would look as if the run had not put it there, and what the project has in its place would go. So
    a directory that can't be sent as a whole is refused in place of its entry, and too many entries refuse everything.
    """
    sender = _Sender(tell, disk)
    try:
        sender.walk(layer, os.listdir(layer), "", 0)
    except _TooMany:
        sender.refuse(_EVERYTHING, f"more than {MAX_ENTRIES:,} files and directories were changed")


class Size:
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
        opened = [os.dup(self._layer)]
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


class _Sender:
    def __init__(self, tell: Send, disk: int) -> None:
        self._tell, self._room, self._data = tell, disk + HOLES, disk
        self._left = MAX_ENTRIES
        self._linked: dict[int, str] = {}

    def entry(self, path: str, about: dict[str, Any]) -> None:
        self._tell(protocol.frame(protocol.ENTRY, protocol.named(path, json.dumps(about).encode())))

    def refuse(self, path: str, why: str) -> None:
        self.entry(path, {"kind": "refused", "why": why})

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

    def _one(self, directory: int, name: str, path: str, depth: int) -> None:
        about = os.stat(name, dir_fd=directory, follow_symlinks=False)
        mode = stat.S_IMODE(about.st_mode)
        if stat.S_ISDIR(about.st_mode):
            self._directory(directory, name, path, mode, depth)
        elif stat.S_ISLNK(about.st_mode):
            target = os.readlink(name, dir_fd=directory)
            self.entry(path, {"kind": "symlink", "target": os.fsencode(target).decode("latin-1")})
        elif stat.S_ISCHR(about.st_mode) and about.st_rdev == 0:
            self.entry(path, {"kind": "removed"})
        elif not stat.S_ISREG(about.st_mode):
            self.refuse(path, _ODD.get(stat.S_IFMT(about.st_mode), "no regular file"))
        elif about.st_nlink > 1 and about.st_ino in self._linked:
            link_of = os.fsencode(self._linked[about.st_ino]).decode("latin-1")
            self.entry(path, {"kind": "file", "mode": mode, "size": about.st_size, "link_of": link_of})
        elif about.st_size > self._room:
            self.refuse(path, "too much of it is holes, of other files too, or it is too large")
        else:
            self._room -= about.st_size
            self._linked[about.st_ino] = path
            self._file(directory, name, path, about)

    def _directory(self, above: int, name: str, path: str, mode: int, depth: int) -> None:
        if depth >= MAX_DEPTH:
            self.refuse(path, f"nested deeper than {MAX_DEPTH} directories")
            return
        directory = _open(above, name, mode, os.O_DIRECTORY)
        try:
            # All that can fail comes before its entry: a path is either sent or refused.
            names, opaque = os.listdir(directory), _is_opaque(directory)
            longest = max((len(os.fsencode(below)) for below in names), default=0)
            if len(os.fsencode(path)) + 1 + longest > MAX_PATH:
                self.refuse(path, f"it holds a path of more than {MAX_PATH} bytes")
                return
            self.entry(path, {"kind": "directory", "mode": mode, "opaque": opaque})
            self.walk(directory, names, f"{path}/", depth + 1)
        finally:
            os.close(directory)

    def _file(self, directory: int, name: str, path: str, about: os.stat_result) -> None:
        mode = stat.S_IMODE(about.st_mode)
        file = _open(directory, name, mode)
        try:
            self._data -= sum(end - start for start, end in _between_holes(file, about.st_size))
            if self._data < 0:  # only on disk, where nothing stops a write at once
                self.refuse(path, "more was written than may be")
                return
            self.entry(path, {"kind": "file", "mode": mode, "size": about.st_size})
            for place, piece in _pieces(file, about.st_size):
                self._tell(protocol.frame(protocol.DATA, place.to_bytes(8, "big") + piece))
        finally:
            os.close(file)


def _open(directory: int, name: str, mode: int, more: int = 0) -> int:
    """Its owner may always look, whatever its mode was made: the mode has been noted."""
    wanted = 0o500 if more else 0o400
    if mode & wanted != wanted:
        os.chmod(name, mode | wanted, dir_fd=directory)
    return os.open(name, _FLAGS | more, dir_fd=directory)


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


def _pieces(file: int, size: int) -> Iterator[tuple[int, bytes]]:
    for place, end in _between_holes(file, size):
        while place < end:
            piece = os.pread(file, min(_PIECE, end - place), place)
            if not piece:
                return
            yield place, piece
            place += len(piece)
