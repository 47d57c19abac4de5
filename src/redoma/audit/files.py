"""Opening files that only we may write, and one lock. Every path decision of the log is made here."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from ..lib.errors import AuditError

LOCK_SECONDS = 10.0
"""An append holds the lock for microseconds, so a wait this long means that its holder is stopped."""

_ADVICE = {
    errno.ENOSPC: "free some space on that disk",
    errno.EDQUOT: "free some of the disk quota",
    errno.EFBIG: "raise the file size limit (ulimit -f)",
    errno.EACCES: "give this user write permission there, or choose another directory",
    errno.EPERM: "give this user write permission there, or choose another directory",
    errno.EROFS: "choose a directory on a writable file system",
    errno.ELOOP: "replace the symbolic link by what it should be: a link could lead the log anywhere",
    errno.ENOTDIR: "put a real directory there: not a file, and not a symbolic link, which could lead anywhere",
}


@contextlib.contextmanager
def reporting(what: str) -> Iterator[None]:
    """Turn an error of the operating system into one that says what to do about it."""
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, "check the disk and the permissions")
        raise AuditError(what, why=error.strerror or str(error), next=advice) from error


@contextlib.contextmanager
def closing(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


def open_directory(path: Path, *, create: bool) -> int:
    """A descriptor of the directory itself, so that nothing renamed or linked later changes where we write."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        if not create:
            raise
    for missing in reversed([path, *path.parents]):
        # Parents as well: one that others can write would let them put another directory in place of ours.
        with contextlib.suppress(FileExistsError):
            os.mkdir(missing, 0o700)
    return os.open(path, flags)


def require_ours(fd: int, path: Path | str) -> os.stat_result:
    """Refuse what somebody else owns or may write: they could rewrite the log, or have us write for them."""
    info = os.fstat(fd)
    if info.st_uid != os.geteuid():
        why, advice = f"it belongs to user {info.st_uid}", "use a path that belongs to the user Redoma runs as"
    elif info.st_mode & 0o022:
        why, advice = "others may write to it", f"chmod go-w {path}, after a look at what is in it"
    else:
        return info
    raise AuditError(f"{path} can't be trusted with a log", why=why, next=advice)


def open_regular(path: Path | str, flags: int, *, dir_fd: int | None = None) -> int:
    """Open a file, never through a link, and never hanging on a FIFO."""
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600, dir_fd=dir_fd)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise AuditError(f"{path} is not a regular file", why="a log is kept in plain files", next="move it away")
    return fd


def open_private(path: Path | str, flags: int, *, dir_fd: int | None = None) -> int:
    """Open a file to write to: a regular file of ours that nobody else can read or write."""
    fd = open_regular(path, os.O_RDWR | flags, dir_fd=dir_fd)
    try:
        if stat.S_IMODE(require_ours(fd, path).st_mode) != 0o600:
            os.fchmod(fd, 0o600)  # the umask took bits away, or somebody let others read it
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextlib.contextmanager
def locked(fd: int, operation: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Hold the lock of an open file, or say who can't be waited for.

    Polled, since a blocking flock has no time-out: a writer that was stopped (Ctrl-Z) at the wrong moment would
    hang every run on the host without a word.
    """
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(fd, operation | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise AuditError(
                    "the log is locked",
                    why=f"another process has held it for more than {LOCK_SECONDS:.0f} s",
                    next="look for a stopped redoma process (ps, state T) and continue or end it",
                ) from None
            time.sleep(0.0002)
    try:
        yield
    finally:
        # Not left to close(): a child forked meanwhile has a copy of the descriptor, and with it the lock.
        fcntl.flock(fd, fcntl.LOCK_UN)


def write_all(fd: int, data: bytes) -> None:
    """A full disk shows as a short write first; the error comes with the next one."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
