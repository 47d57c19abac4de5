"""A private directory of this process in which each of its cells gets a directory of its own.

It is locked for as long as its owner lives, so the next Redoma of the same user can tell what a killed one left, and
removes that. `changes_disk` and `places` use it.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from collections.abc import Container
from pathlib import Path

from ...lib import files

_NEW = 60.0  # seconds: the owner of a younger directory may not have locked it yet


class CellDirectories:
    """Makes the private directory below `parent`, which must exist. Raises OSError if it can't."""

    def __init__(self, parent: str, prefix: str) -> None:
        import tempfile  # slow to import, and most zygotes need no such directory

        self.path = tempfile.mkdtemp(prefix=prefix, dir=os.path.realpath(parent))  # bind mounts take no links
        self._made = self._used = 0
        self._closed = False
        self._guard = threading.Lock()
        try:
            self._lock = os.open(self.path, files.OPEN_DIRECTORY)
        except OSError:  # too many open files
            os.rmdir(self.path)
            raise
        files.lock(self._lock, seconds=_NEW)

    def take(self) -> str:
        """Return the path for one more cell. Nothing is there yet."""
        with self._guard:
            self._made += 1
            self._used += 1
            return f"{self.path}/{self._made}"

    def give_back(self, path: str) -> None:
        """Remove a cell's directory. The cell must be dead: nobody else may change what is being removed."""
        with contextlib.suppress(OSError):  # `close` tries again
            files.remove_tree(Path(path))
        with self._guard:
            self._used -= 1
        self._remove_if_unused()

    def close(self) -> None:
        """Remove everything, as soon as the last cell has given its directory back."""
        self._closed = True
        self._remove_if_unused()

    def _remove_if_unused(self) -> None:
        with self._guard:
            if not self._closed or self._used or self._lock < 0:
                return
            lock, self._lock = self._lock, -1
        with contextlib.suppress(OSError):  # left for `sweep`
            files.remove_tree(Path(self.path))
        os.close(lock)


def sweep(parent: str, prefix: str, *, owner: int, modes: Container[int]) -> None:
    """Remove what a killed Redoma left below `parent`: the kernel has released its lock.

    Only directories of `owner` with one of these modes. Somebody else may have given the name to another directory of
    ours, but only if others could write to it.
    """
    with contextlib.suppress(OSError):
        for entry in os.scandir(parent):
            if entry.name.startswith(prefix):
                with contextlib.suppress(OSError):
                    _sweep_one(entry.path, owner, modes)


def _sweep_one(path: str, owner: int, modes: Container[int]) -> None:
    with files.closing(os.open(path, files.OPEN_DIRECTORY | os.O_NONBLOCK)) as lock:
        about = os.fstat(lock)
        ours = about.st_uid == owner and stat.S_IMODE(about.st_mode) in modes
        if ours and time.time() - about.st_mtime > _NEW and files.lock(lock):
            files.remove_tree(Path(path))
