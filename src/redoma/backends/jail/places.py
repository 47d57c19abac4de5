"""Directories and users of lean cells: each cell has a directory of its own and, where Redoma is root and may change
users, a user id that nobody else has.

The directories are in one that only this Redoma has. It is locked, so that the next Redoma of this user can tell
whether its owner lives, and removes what a killed one left.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import sys
import sysconfig
import tempfile
import threading
import time
from pathlib import Path

from ...lib import files
from ...lib.errors import BackendUnavailable
from ...lib.files import remove_tree
from .compiled import INIT
from .configuration import LEAN_WRITABLE

_PREFIX = "redoma-lean-"
_NEW = 60.0  # seconds: a younger directory may not be locked yet by its maker
_PARENTS = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - a private directory in it
_FIRST_USER, _USERS = 0x40000000, 0x20000000
"""Far from all that a system gives to somebody. Drawn at random: two Redomas in one container don't know each other."""
_SMALL_FIRST, _SMALL_USERS = 62000, 3000
"""Where a container has no such numbers, since its own are a part of the host's."""


class Places:
    """Where the lean cells of one process live."""

    def __init__(self, *, own_user: bool) -> None:
        self._own_user = own_user
        self._made = self._used = 0
        self._closed = False
        self._lock = threading.Lock()
        with contextlib.suppress(OSError):
            _sweep()
        self.path = _make_base(own_user=own_user)
        self._held = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        files.lock(self._held, seconds=_NEW)

    def take(self) -> tuple[str, int]:
        """A new directory for a cell, and the number of its user (0: ours). Raises OSError."""
        with self._lock:
            self._made += 1
            self._used += 1
            path = f"{self.path}/{self._made}"
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
        with contextlib.suppress(OSError):  # `close` tries again
            remove_tree(Path(path))
        with self._lock:
            self._used -= 1
        self._remove_if_unused()

    def close(self) -> None:
        """Remove everything, as soon as no cell has a directory in it."""
        self._closed = True
        self._remove_if_unused()

    def _remove_if_unused(self) -> None:
        with self._lock:
            if not self._closed or self._used or self._held < 0:
                return
            held, self._held = self._held, -1
        with contextlib.suppress(OSError):  # left for `_sweep`
            remove_tree(Path(self.path))
        os.close(held)


def _parents() -> list[str]:
    return list(dict.fromkeys([os.environ.get("TMPDIR", ""), *_PARENTS]))


def _make_base(*, own_user: bool) -> str:
    tried = []
    for parent in filter(None, _parents()):
        try:
            path = tempfile.mkdtemp(prefix=_PREFIX, dir=os.path.realpath(parent))
            if own_user:
                os.chmod(path, 0o711)  # noqa: S103 - cells pass through it to their own, and can't list it
        except OSError as error:
            tried.append(f"{parent}: {error.strerror}")
        else:
            return path
    raise BackendUnavailable(
        "a lean cell needs a directory to write to", why="; ".join(tried), next="mount one at /tmp, or set TMPDIR"
    )


def _draw_user() -> int:
    """An even number that no process has; the one after it is the init's."""
    first, count = (_FIRST_USER, _USERS) if _has_large_numbers() else (_SMALL_FIRST, _SMALL_USERS)
    while True:
        user = first + 2 * secrets.randbelow(count // 2)
        if first == _FIRST_USER or not _in_use({user, user + 1}):
            return user


def _has_large_numbers() -> bool:
    with open("/proc/self/uid_map") as file:
        ranges = [tuple(map(int, line.split())) for line in file]
    return any(first <= _FIRST_USER and first + size >= _FIRST_USER + _USERS for first, _, size in ranges)


def _in_use(users: set[int]) -> bool:
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{name}").st_uid in users:
                    return True
    return False


def may_change_users() -> bool:
    """Whether we are root with the rights to give each cell a user of its own, and files to that user, which can read
    the interpreter: else there would be no standard library."""
    if os.geteuid() != 0 or closed_to_others(sys.executable, os.__file__, sysconfig.get_path("purelib"), INIT):
        return False
    with open("/proc/self/status") as file:
        effective = next(int(line.split()[1], 16) for line in file if line.startswith("CapEff:"))
    needed = (0, 1, 3, 5, 6, 7, 8)  # CHOWN, DAC_OVERRIDE, FOWNER, KILL, SETGID, SETUID, SETPCAP
    return all(effective >> number & 1 for number in needed) and (_has_large_numbers() or _has_small_numbers())


def closed_to_others(*paths: str) -> str:
    """The first of these paths, or of the directories above it, that other users can't read or pass through."""
    for path in map(os.path.realpath, paths):
        for each in (path, *map(str, Path(path).parents)):
            mode = os.stat(each).st_mode
            needed = (stat.S_IROTH if each == path else 0) | (stat.S_IXOTH if stat.S_ISDIR(mode) else 0)
            if mode & needed != needed:
                return each
    return ""


def _has_small_numbers() -> bool:
    with open("/proc/self/uid_map") as file:
        ranges = [tuple(map(int, line.split())) for line in file]
    return any(first <= _SMALL_FIRST and first + size >= _SMALL_FIRST + _SMALL_USERS for first, _, size in ranges)


def _sweep() -> None:
    """Remove what a Redoma of this user left that was killed: its lock is gone with it."""
    for parent in filter(None, _parents()):
        with contextlib.suppress(OSError):
            for entry in os.scandir(parent):
                if entry.name.startswith(_PREFIX):
                    with contextlib.suppress(OSError):
                        _sweep_one(entry.path)


def _sweep_one(path: str) -> None:
    held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        about = os.fstat(held)
        ours = about.st_uid == os.geteuid() and stat.S_IMODE(about.st_mode) in (0o700, 0o711)
        if ours and time.time() - about.st_mtime > _NEW and files.lock(held):
            remove_tree(Path(path))
    finally:
        os.close(held)
