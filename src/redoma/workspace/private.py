"""Files and directories that are ours alone: where changes are kept, and what is written there."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ..lib.errors import WorkspaceError

LOCK_SECONDS = 30.0
"""How long to wait for another process that keeps or applies changes."""

_ADVICE = {
    errno.ENOSPC: "free some space on that disk",
    errno.EDQUOT: "free some of the disk quota",
    errno.EFBIG: "raise the file size limit (ulimit -f)",
    errno.EACCES: "give this user the rights to change it",
    errno.EPERM: "give this user the rights to change it",
    errno.EROFS: "use a writable file system",
    errno.ELOOP: "put a real directory there: a link could lead anywhere",
    errno.ENOTDIR: "put a real directory there: not a file, and not a link",
}

T = TypeVar("T")


def failure(what: str, error: OSError) -> WorkspaceError:
    """An error of the operating system, with what to do about it."""
    why = error.strerror or str(error)
    if isinstance(error.filename, str):
        why += f" ({ascii(error.filename)[1:-1]})"
    return WorkspaceError(what, why=why, next=_ADVICE.get(error.errno or 0, "check the disk and the permissions"))


def open_directory(path: Path) -> int:
    """A descriptor of a directory that nobody else can write to; made, with its parents, if it isn't there."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        number = os.open(path, flags)
    except FileNotFoundError:
        for missing in reversed([path, *path.parents]):
            with contextlib.suppress(FileExistsError):
                os.mkdir(missing, 0o700)
        number = os.open(path, flags)
    about = os.fstat(number)
    if about.st_uid != os.geteuid() or about.st_mode & 0o022:
        os.close(number)
        others = f"it belongs to user {about.st_uid}" if about.st_uid != os.geteuid() else "others may write to it"
        raise WorkspaceError(
            f"{path} can't be trusted with changes to keep",
            why=others,
            next="use a state directory of your own, with mode 0700",
        )
    return number


@contextlib.contextmanager
def locked(directory: int, *, wait: bool = True) -> Iterator[bool]:
    """Hold the lock of a directory of ours, or say who has it. Without waiting, whether it is held."""
    number = os.open("lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=directory)
    try:
        held = _lock(number, time.monotonic() + LOCK_SECONDS if wait else 0.0)
        if not held and wait:
            holder = os.pread(number, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise WorkspaceError(
                "the kept changes are locked",
                why=f"process {holder} has held them for more than {LOCK_SECONDS:.0f} s",
                next="wait for it, or look whether it is stopped (ps, state T) and continue or end it",
            )
        if held:
            os.pwrite(number, f"{os.getpid():<31}\n".encode(), 0)
        try:
            yield held
        finally:
            if held:  # not left to close(): a child forked meanwhile has a copy of the descriptor, and with it the lock
                fcntl.flock(number, fcntl.LOCK_UN)
    finally:
        os.close(number)


def _lock(number: int, deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        else:
            return True


@contextlib.contextmanager
def claimed(directory: Path) -> Iterator[bool]:
    """Hold the lock of a directory by itself, if nobody does and it has this name still. Never waits."""
    try:
        number = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        yield False
        return
    held = False
    try:
        held = _lock(number, 0.0) and _is_still(directory, number)
        yield held
    finally:
        fcntl.flock(number, fcntl.LOCK_UN)  # not left to close(), as above
        os.close(number)


def _is_still(path: Path, number: int) -> bool:
    try:
        return os.path.samestat(os.fstat(number), path.lstat())
    except FileNotFoundError:
        return False


def sync(number: int, *, durable: bool) -> None:
    if durable:
        os.fsync(number)


def sync_path(path: Path, *, durable: bool) -> None:
    if durable:
        number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def write(path: Path, value: Any, *, durable: bool) -> None:
    """Put data into a file, whole or not at all. As ASCII: JSON has no other way to write names that are no UTF-8."""
    new = path.with_name(f"{path.name}.new")
    number = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(number, "wb") as file:
        file.write(json.dumps(msgspec.to_builtins(value)).encode("ascii"))
        file.flush()
        sync(number, durable=durable)
    os.rename(new, path)
    sync_path(path.parent, durable=durable)


def read(path: Path, kind: type[T]) -> T:
    """What `write` has put there. Raises `ValueError` for anything else."""
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(number, "rb") as file:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise ValueError("it is not a regular file")
        return msgspec.convert(json.loads(file.read()), type=kind)
