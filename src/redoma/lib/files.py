"""Our own files and directories on the host: opening, locking, replacing and removing them.

Nothing here follows a symbolic link in the last name of a path, and nothing blocks on a pipe. Functions raise
`OSError`; the two that judge whether something can be trusted raise the error class that the caller passes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from .errors import RedomaError

OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
SPECIAL = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
"""`stat.S_IFMT` of a mode → what it is, if it is neither a file, a directory nor a link."""
_SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

_ADVICE = {
    errno.ENOSPC: "free some space on that disk",
    errno.EDQUOT: "free some of the disk quota",
    errno.EFBIG: "raise the file size limit (ulimit -f)",
    errno.EACCES: "give this user write permission there, or choose another directory",
    errno.EPERM: "give this user write permission there, or choose another directory",
    errno.EROFS: "choose a directory on a writable file system",
    errno.ELOOP: "put a real file or directory there: a symbolic link could lead anywhere",
    errno.ENOTDIR: "put a real directory there: not a file, and not a symbolic link, which could lead anywhere",
}


class NotRegular(OSError):
    """What was opened is a directory, a device, a pipe or a socket."""

    def __init__(self, path: Path | str) -> None:
        super().__init__(errno.EINVAL, "it is not a regular file", str(path))


def reason(error: OSError) -> str:
    """Return the operating system's message, without the number and the path."""
    return error.strerror or str(error)


def advice(error: OSError) -> str:
    """Return what to do about an error of the operating system."""
    return _ADVICE.get(error.errno or 0, "check the disk and the permissions")


# --- opening ---


@contextlib.contextmanager
def closing(fd: int) -> Iterator[int]:
    """Close a descriptor at the end of the block."""
    try:
        yield fd
    finally:
        os.close(fd)


def open_directory(path: Path, *, create: bool = False) -> int:
    """Open a directory, so that later renames and links don't change where we write.

    `create` makes it, and its missing parents, with mode 0700: others who can write to a parent could replace our
    directory.
    """
    try:
        return os.open(path, OPEN_DIRECTORY)
    except FileNotFoundError:
        if not create:
            raise
    for missing in reversed([path, *path.parents]):
        with contextlib.suppress(FileExistsError):
            os.mkdir(missing, 0o700)
    return os.open(path, OPEN_DIRECTORY)


def require_ours(about: os.stat_result, path: Path | str, *, holds: str, error: type[RedomaError]) -> os.stat_result:
    """Raise `error` if another user owns a file or directory or may write to it: they could rewrite what it `holds`, or
    make us write for them. Returns `about`.
    """
    if about.st_uid != os.geteuid():
        why, step = f"it belongs to user {about.st_uid}", "use a path that belongs to the user Redoma runs as"
    elif about.st_mode & 0o022:
        why, step = "others may write to it", f"chmod go-w {path}, after a look at what is in it"
    else:
        return about
    raise error(f"{path} can't be trusted with {holds}", why=why, next=step)


def open_own_directory(path: Path, *, holds: str, error: type[RedomaError], create: bool = True) -> int:
    """Open a directory that no other user can write to; see `open_directory` and `require_ours`."""
    directory = open_directory(path, create=create)
    try:
        require_ours(os.fstat(directory), path, holds=holds, error=error)
    except BaseException:
        os.close(directory)
        raise
    return directory


def open_regular(path: Path | str, flags: int = os.O_RDONLY, *, dir_fd: int | None = None) -> int:
    """Open a regular file, created with mode 0600 if `flags` say so. Raises `NotRegular` for anything else."""
    fd = os.open(path, flags | _SAFELY, 0o600, dir_fd=dir_fd)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise NotRegular(path)
    return fd


# --- locks ---


def lock(fd: int, *, shared: bool = False, seconds: float = 0.0, pause: float = 0.005) -> bool:
    """Lock an open file or directory (flock). Returns False if another process still holds it after `seconds`.

    Polled, since a blocking flock has no time-out: a process that was stopped (Ctrl-Z) at the wrong moment would
    silently block all others.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(pause)
        else:
            return True


def unlock(fd: int) -> None:
    """Release a lock. Never left to `close`: a child forked meanwhile has a copy of the descriptor, and with it the
    lock.
    """
    fcntl.flock(fd, fcntl.LOCK_UN)


@contextlib.contextmanager
def locked(fd: int, *, shared: bool = False, seconds: float = 0.0, pause: float = 0.005) -> Iterator[bool]:
    """Hold a lock for the length of the block; see `lock`. Yields whether it is held."""
    held = lock(fd, shared=shared, seconds=seconds, pause=pause)
    try:
        yield held
    finally:
        if held:
            unlock(fd)


@contextlib.contextmanager
def claimed(path: Path | str, *, dir_fd: int | None = None) -> Iterator[bool]:
    """Lock a file or directory itself for the length of the block. Yields whether it is held: not if it is gone,
    another process holds it, or its name now leads to another one. Never waits.
    """
    try:
        fd = os.open(path, os.O_RDONLY | _SAFELY, dir_fd=dir_fd)
    except FileNotFoundError:
        yield False
        return
    with closing(fd), locked(fd) as held:
        yield held and _has_name(fd, path, dir_fd)


def _has_name(fd: int, path: Path | str, dir_fd: int | None) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, dir_fd=dir_fd, follow_symlinks=False))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def temporary_directory(parent: Path, prefix: str) -> Iterator[Path]:
    """Yield a new directory that `sweep` leaves alone for the length of the block. The block decides what happens to
    it.
    """
    while True:
        directory = parent / f"{prefix}{os.urandom(8).hex()}"
        directory.mkdir(0o700)
        with claimed(directory) as ours:
            if ours:  # otherwise it was swept between the two calls
                yield directory
                return


def sweep(parent: Path, prefix: str) -> None:
    """Remove the temporary directories of killed processes: their locks are free."""
    for name in os.listdir(parent):
        if name.startswith(prefix):
            with claimed(parent / name) as abandoned:
                if abandoned:
                    remove_tree(parent / name)


# --- writing ---


def write_all(fd: int, data: bytes, at: int | None = None) -> None:
    """Write all of it, at an offset if given. On a full disk the first write is short; the next one raises."""
    view = memoryview(data)
    while view:
        written = os.write(fd, view) if at is None else os.pwrite(fd, view, at)
        view, at = view[written:], None if at is None else at + written


def replace(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace a file of ours (mode 0600), or create it. A reader finds either the old content or the new one.

    Only for one writer at a time, which must hold a lock: the temporary file has a fixed name, so that one left by a
    crash is removed. `durable` waits until the content and its name are on the disk.
    """
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    with closing(os.open(new, NEW_FILE, 0o600)) as fd:
        write_all(fd, data)
        sync(fd, durable=durable)
    os.rename(new, path)
    sync(path.parent, durable=durable)


def sync(file: int | Path, *, durable: bool = True) -> None:
    """Wait until a file, or the names in a directory, are on the disk. Does nothing unless `durable`."""
    if not durable:
        return
    if isinstance(file, int):
        os.fsync(file)
        return
    with closing(os.open(file, os.O_RDONLY | os.O_CLOEXEC)) as fd:
        os.fsync(fd)


# --- removing ---


def remove_tree(directory: Path) -> None:
    """Remove a tree that hostile code has shaped.

    `shutil.rmtree` recurses (a tree deeper than the recursion limit stays) and gives up on a directory with mode 000;
    `TemporaryDirectory` changes modes by path, through symbolic links. So this function uses only descriptors, never
    follows links, changes modes through the descriptor, and moves sub-directories up to the top instead of descending
    into them, so that depth costs neither stack nor descriptors. Their new names are random, so hostile code can't have
    created them before.
    """
    try:
        if directory.is_symlink():  # created by the run, in place of its directory
            directory.unlink()
            return
        top = _open_writable(str(directory), None)
    except FileNotFoundError:
        return  # the run has removed it itself
    fresh = (f"{os.urandom(8).hex()}-{number}" for number in itertools.count())
    with closing(top):
        while names := os.listdir(top):
            for name in names:
                _remove_entry(name, top, fresh)
    os.rmdir(directory)


def _remove_entry(name: str, top: int, fresh: Iterator[str]) -> None:
    if not _is_directory(name, top):
        os.unlink(name, dir_fd=top)
        return
    with closing(_open_writable(name, top)) as below:
        for inner in os.listdir(below):
            if _is_directory(inner, below):
                os.close(_open_writable(inner, below))  # a directory must be writable to be moved
                os.rename(inner, next(fresh), src_dir_fd=below, dst_dir_fd=top)
            else:
                os.unlink(inner, dir_fd=below)
    os.rmdir(name, dir_fd=top)


def _is_directory(name: str, parent: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)


def _open_writable(name: str, parent: int | None) -> int:
    """Open a directory with full rights for its owner. A symbolic link in its place is an error."""
    pin = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    with closing(pin):
        if os.fstat(pin).st_mode & 0o700 != 0o700:
            os.chmod(f"/proc/self/fd/{pin}", 0o700)  # the pinned inode itself, not whatever has its name by now
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=pin)
