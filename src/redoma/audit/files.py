"""Opens and locks the files of the log, with errors that say what to do. All path decisions of the log are here."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from ..lib import files
from ..lib.errors import AuditError

LOCK_SECONDS = 10.0
"""An append holds the lock for microseconds, so if we wait this long, its holder is stopped."""


@contextlib.contextmanager
def reporting(what: str) -> Iterator[None]:
    """Turn an error of the operating system into an `AuditError` that says what to do about it."""
    try:
        yield
    except OSError as error:
        raise os_failure(what, error) from error


def os_failure(what: str, error: OSError, *, to_choose: str = "") -> AuditError:
    """Return the error that says what to do about an error of the operating system. `to_choose` is added to advice to
    choose another directory.
    """
    advice = files.advice(error)
    return AuditError(what, why=files.reason(error), next=advice + (to_choose if "choose" in advice else ""))


def require_ours(fd: int, path: Path | str) -> os.stat_result:
    """Raise `AuditError` if another user owns the file or may write to it."""
    return files.require_ours(os.fstat(fd), path, holds="a log", error=AuditError)


def open_regular(path: Path | str, flags: int, *, dir_fd: int | None = None) -> int:
    """Open a file, never through a link, and never blocking on a FIFO."""
    try:
        return files.open_regular(path, flags, dir_fd=dir_fd)
    except files.NotRegular as error:
        raise AuditError(
            f"{path} is not a regular file", why="a log is kept in plain files", next="move it away"
        ) from error


def open_private(path: Path | str, flags: int, *, dir_fd: int | None = None) -> int:
    """Open a file for writing: a regular file of ours that no other user can read or write."""
    fd = open_regular(path, os.O_RDWR | flags, dir_fd=dir_fd)
    try:
        if stat.S_IMODE(require_ours(fd, path).st_mode) != 0o600:
            os.fchmod(fd, 0o600)  # the umask removed bits, or another user was allowed to read it
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextlib.contextmanager
def locked(fd: int, *, shared: bool = False) -> Iterator[None]:
    """Hold the lock of an open file for the length of the block. Raises `AuditError` as `acquire` does."""
    acquire(fd, shared=shared)
    try:
        yield
    finally:
        files.unlock(fd)


def acquire(fd: int, *, shared: bool = False) -> None:
    """Lock an open file; `files.unlock` releases it. Raises `AuditError` if its holder doesn't do that in time."""
    if not files.lock(fd, shared=shared, seconds=LOCK_SECONDS, pause=0.0002):
        raise AuditError(
            "the log is locked",
            why=f"another process has held it for more than {LOCK_SECONDS:.0f} s",
            next="look for a stopped redoma process (ps, state T) and continue or end it",
        )
