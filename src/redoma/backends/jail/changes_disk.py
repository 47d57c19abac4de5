"""A directory on disk for what runs write to a project, where a tmpfs can't hold it (Linux before 6.6).

An overlay marks what was removed with extended attributes, which a tmpfs does not have before Linux 6.6. So each zygote
of a project gets a private directory on disk, and each of its cells makes a directory in that. The cell's init reads
what is in it; we only remove it, once the cell is dead.

It is always in /var/tmp: that is on a disk, and nobody else can rename our directory in it. A guest can read the path,
which tells it nothing.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from .configuration import UNPRIVILEGED_ID
from .directories import CellDirectories, sweep

PARENT = "/var/tmp"  # noqa: S108 - a private directory in it
_PREFIX = "redoma-layers-"


class ChangesDirectory:
    """A directory for the changes of one zygote's cells. `path` is empty if there can be none, and `why` says why."""

    def __init__(self, project: str = "") -> None:
        self.path, self.why = "", ""
        self._cells: CellDirectories | None = None
        if project and Path(os.path.realpath(PARENT)).is_relative_to(os.path.realpath(project)):
            self.why = f"{PARENT} is in the project"  # one cell could read there what another writes
            return
        owner = UNPRIVILEGED_ID if os.geteuid() == 0 else os.geteuid()
        sweep(PARENT, _PREFIX, owner=owner, modes={0o700})
        try:
            self._cells = _make(owner)
        except OSError as error:
            self.why = f"{PARENT}: {error.strerror}"
        else:
            self.path = self._cells.path

    def take(self) -> str:
        """Return the name in `path` for one more cell, which makes the directory itself. Raises OSError."""
        if self._cells is None:
            raise OSError(errno.ENOENT, self.why)
        return os.path.basename(self._cells.take())

    def give_back(self, name: str) -> None:
        """Remove it. The cell must be dead: nobody else may change what is being removed."""
        if self._cells is not None:
            self._cells.give_back(f"{self.path}/{name}")

    def close(self) -> None:
        """Remove the directory, as soon as no cell has a layer in it."""
        if self._cells is not None:
            self._cells.close()


def _make(owner: int) -> CellDirectories:
    cells = CellDirectories(PARENT, _PREFIX)
    try:
        os.setxattr(cells.path, "user.redoma", b"")  # not every file system can
        if owner != os.geteuid():
            os.chown(cells.path, owner, owner)
    except OSError:
        cells.close()
        raise
    return cells
