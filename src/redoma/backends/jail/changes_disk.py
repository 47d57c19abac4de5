"""A directory on disk for what runs write to a project, where a tmpfs can't hold it (Linux before 6.6).

An overlay marks what was removed with extended attributes, and a tmpfs has none before 6.6. So each zygote of a project
is given a private directory on disk, and each of its cells makes a directory in that. What is in one is read by the
cell's init; we only remove it, once the cell is dead.

It is in /var/tmp and nowhere else: that is on a disk, nobody can rename what is ours in it, and a guest, which can read
where it is, learns nothing from that.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from pathlib import Path

from ...lib import files
from ...lib.files import remove_tree
from .configuration import UNPRIVILEGED_ID

PARENT = "/var/tmp"  # noqa: S108 - a private directory in it
_PREFIX = "redoma-layers-"
_NEW = 60.0  # seconds: a younger directory may not be locked yet by its maker


class ChangesDirectory:
    """A directory for the changes of one zygote's cells. `path` is empty if there can be none, and `why` says why."""

    def __init__(self, project: str = "") -> None:
        self.path, self.why, self._lock = "", "", -1
        self._made = self._used = 0
        self._closed = False
        if project and Path(os.path.realpath(PARENT)).is_relative_to(os.path.realpath(project)):
            self.why = f"{PARENT} is in the project"  # one cell could read there what another writes
            return
        with contextlib.suppress(OSError):
            _sweep()
        try:
            self._make()
        except OSError as error:
            self.why = f"{PARENT}: {error.strerror}"

    def _make(self) -> None:
        import tempfile

        path = tempfile.mkdtemp(prefix=_PREFIX, dir=os.path.realpath(PARENT))  # it is bound by this path: no links
        lock = -1
        try:
            os.setxattr(path, "user.redoma", b"")
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            files.lock(lock, seconds=_NEW)
            if os.geteuid() == 0:
                os.chown(path, UNPRIVILEGED_ID, UNPRIVILEGED_ID)
        except OSError:
            if lock >= 0:
                os.close(lock)
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
        with contextlib.suppress(OSError):  # `close` tries again
            remove_tree(Path(self.path, name))
        self._used -= 1
        self._remove_if_unused()

    def close(self) -> None:
        """Remove the directory, as soon as no cell has a layer in it."""
        self._closed = True
        self._remove_if_unused()

    def _remove_if_unused(self) -> None:
        if self._closed and not self._used and self._lock >= 0:
            with contextlib.suppress(OSError):  # left for `_sweep`
                remove_tree(Path(self.path))
            os.close(self._lock)
            self._lock = -1


def _sweep() -> None:
    """Remove what a Redoma of this user left that was killed: its lock is gone with it.

    Only a directory with mode 0700: others could have moved any other of ours here, under this name.
    """
    owner = UNPRIVILEGED_ID if os.geteuid() == 0 else os.geteuid()
    for entry in os.scandir(PARENT):
        if not entry.name.startswith(_PREFIX):
            continue
        with contextlib.suppress(OSError):
            lock = os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                about = os.fstat(lock)
                ours = (about.st_uid, stat.S_IMODE(about.st_mode)) == (owner, 0o700)
                if ours and time.time() - about.st_mtime > _NEW and files.lock(lock):
                    remove_tree(Path(entry.path))
            finally:
                os.close(lock)
