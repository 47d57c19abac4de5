"""Directories and users of lean cells: each cell has a directory of its own and, where Redoma is root and may change
users, a user id that nobody else has.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import sys
import sysconfig
from pathlib import Path

from ...lib.errors import BackendUnavailable
from .. import linux
from .compiled import INIT
from .configuration import LEAN_WRITABLE
from .directories import CellDirectories, sweep

_PREFIX = "redoma-lean-"
_PARENTS = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - a private directory in it
_FIRST_USER, _USERS = 0x40000000, 0x20000000
"""Far above the ids that systems assign. Drawn at random: two Redomas in one container don't know of each other."""
_SMALL_FIRST, _SMALL_USERS = 62000, 3000
"""For containers without such large ids, whose own are a part of the host's."""


class Places:
    """Where the lean cells of one process live."""

    def __init__(self, *, own_user: bool) -> None:
        self._own_user = own_user
        parents = list(dict.fromkeys(filter(None, [os.environ.get("TMPDIR", ""), *_PARENTS])))
        for parent in parents:
            sweep(parent, _PREFIX, owner=os.geteuid(), modes={0o700, 0o711})
        self._cells = _make(parents)
        if own_user:
            os.chmod(self._cells.path, 0o711)  # noqa: S103 - cells pass through it to their own, and can't list it

    def take(self) -> tuple[str, int]:
        """Return a new directory for a cell, and the id of its user (0: ours). Raises OSError."""
        path = self._cells.take()
        user = _draw_user() if self._own_user else 0
        try:
            for each in (path, *(path + name for name in LEAN_WRITABLE)):
                os.mkdir(each, 0o700)
                if user:
                    os.chown(each, user, user)
        except OSError:
            self.give_back(path)
            raise
        return path, user

    def give_back(self, path: str) -> None:
        """Remove a cell's directory. The cell must be dead: nobody else may change what is being removed."""
        self._cells.give_back(path)

    def close(self) -> None:
        """Remove everything, as soon as no cell has a directory in it."""
        self._cells.close()


def _make(parents: list[str]) -> CellDirectories:
    tried = []
    for parent in parents:
        try:
            return CellDirectories(parent, _PREFIX)
        except OSError as error:
            tried.append(f"{parent}: {error.strerror}")
    raise BackendUnavailable(
        "a lean cell needs a directory to write to", why="; ".join(tried), next="mount one at /tmp, or set TMPDIR"
    )


def _draw_user() -> int:
    """Return an even user id that no process has; the one after it is for the cell's init."""
    first, count = (_FIRST_USER, _USERS) if _has_large_numbers() else (_SMALL_FIRST, _SMALL_USERS)
    while True:
        user = first + 2 * secrets.randbelow(count // 2)
        if first == _FIRST_USER or not _in_use({user, user + 1}):
            return user


def _has_large_numbers() -> bool:
    return _can_use(_FIRST_USER, _USERS)


def _can_use(first: int, count: int) -> bool:
    """Return whether our user namespace has all of these user ids."""
    with open("/proc/self/uid_map") as file:
        ranges = [tuple(map(int, line.split())) for line in file]
    return any(start <= first and start + size >= first + count for start, _, size in ranges)


def _in_use(users: set[int]) -> bool:
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{name}").st_uid in users:
                    return True
    return False


def may_change_users() -> bool:
    """Return whether we can give each cell a user of its own: we are root with the needed capabilities, and other users
    can read the interpreter and its standard library.
    """
    if os.geteuid() != 0 or closed_to_others(sys.executable, os.__file__, sysconfig.get_path("purelib"), INIT):
        return False
    needed = (0, 1, 3, 5, 6, 7, 8)  # CHOWN, DAC_OVERRIDE, FOWNER, KILL, SETGID, SETUID, SETPCAP
    return linux.has_capabilities(*needed) and (_has_large_numbers() or _can_use(_SMALL_FIRST, _SMALL_USERS))


def closed_to_others(*paths: str) -> str:
    """Return the first of these paths, or of the directories above them, that other users can't read or pass; else
    nothing.
    """
    for path in map(os.path.realpath, paths):
        for each in (path, *map(str, Path(path).parents)):
            mode = os.stat(each).st_mode
            needed = (stat.S_IROTH if each == path else 0) | (stat.S_IXOTH if stat.S_ISDIR(mode) else 0)
            if mode & needed != needed:
                return each
    return ""
