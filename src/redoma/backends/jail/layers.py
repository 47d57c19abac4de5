"""Where the kernel's tmpfs can't hold what a run writes to a project (Linux before 6.6): directories on disk.

An overlay marks what was removed with extended attributes, and a tmpfs has none before 6.6. So each zygote of a project
is given a private directory on a disk that has them, and each of its cells makes a directory in that. What is in one is
read by the cell's init; we only remove it, once the cell is dead.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from pathlib import Path

from ..scratch import remove_tree
from .root import UNPRIVILEGED_ID

_PREFIX = "redoma-layers-"
_NEW = 60.0  # seconds in which a directory may not be locked yet by who made it


class Layers:
    """A directory for the layers of one zygote. `path` is empty where no disk takes extended attributes."""

    def __init__(self) -> None:
        self.path, self._lock = "", -1
        self._made = self._used = 0
        self._closed = False
        for parent in dict.fromkeys((tempfile.gettempdir(), "/var/tmp")):  # noqa: S108 - a private directory in it
            with contextlib.suppress(OSError):
                _sweep(parent)
                self._make(parent)
                return

    def _make(self, parent: str) -> None:
        path = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
        try:
            os.setxattr(path, "user.redoma", b"")
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if os.geteuid() == 0:
                os.chown(path, UNPRIVILEGED_ID, UNPRIVILEGED_ID)
        except OSError:
            os.rmdir(path)
            raise
        self.path, self._lock = path, lock

    def take(self) -> str:
        """The name of a directory for one more cell, which makes it."""
        self._made += 1
        self._used += 1
        return str(self._made)

    def give_back(self, name: str) -> None:
        """Remove it. The cell must be dead: nobody else may change what is being removed."""
        with contextlib.suppress(OSError):  # left for `_sweep`
            remove_tree(Path(self.path, name))
        self._used -= 1
        self._remove_if_unused()

    def close(self) -> None:
        """Remove the directory, as soon as no cell has a layer in it."""
        self._closed = True
        self._remove_if_unused()

    def _remove_if_unused(self) -> None:
        if self._closed and not self._used and self._lock >= 0:
            with contextlib.suppress(OSError):
                remove_tree(Path(self.path))
            os.close(self._lock)
            self._lock = -1


def _sweep(parent: str) -> None:
    """Remove what a Redoma of this user left that was killed: its lock is gone with it."""
    for entry in os.scandir(parent):
        if not entry.name.startswith(_PREFIX):
            continue
        with contextlib.suppress(OSError):
            about = entry.stat(follow_symlinks=False)
            ours = about.st_uid in (os.geteuid(), UNPRIVILEGED_ID if os.geteuid() == 0 else os.geteuid())
            if not ours or time.time() - about.st_mtime < _NEW:
                continue
            lock = os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_tree(Path(entry.path))
            finally:
                os.close(lock)
