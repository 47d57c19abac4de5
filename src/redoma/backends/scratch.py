"""A run's own directory on the host: made with its files in it, and removed whatever the run did to it."""

from __future__ import annotations

import itertools
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ..lib.errors import BackendError


@contextmanager
def scratch(files: Mapping[str, bytes]) -> Iterator[Path]:
    """A private directory that holds `files`, removed at the end. `Request` checked the paths: relative, no `..`."""
    try:
        directory = Path(tempfile.mkdtemp(prefix="redoma-"))
    except OSError as error:
        raise BackendError("no scratch directory could be made", why=str(error), next="free space in TMPDIR") from error
    try:
        try:
            for name, content in files.items():
                path = directory / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        except OSError as error:
            raise BackendError(
                "a file of the request could not be placed", why=str(error), next="check its name and the free space"
            ) from error
        yield directory
    finally:
        try:
            remove_tree(directory)
        except OSError as error:
            raise BackendError(f"{directory} could not be removed", why=str(error), next="remove it by hand") from error


def remove_tree(directory: Path) -> None:
    """Remove a tree that hostile code has shaped.

    `shutil.rmtree` recurses (a tree deeper than the recursion limit stays) and gives up on a directory with mode 000;
    `TemporaryDirectory` mends modes by path, through symbolic links. So: descriptors only, links never followed, modes
    mended through the descriptor, and sub-directories are moved up to the top rather than descended into, so that depth
    costs neither stack nor descriptors. They are moved under names that nobody could have put there before.
    """
    try:
        if directory.is_symlink():  # put there by the run, in the place of what it was given
            directory.unlink()
            return
        top = _open_directory(str(directory), None)
    except FileNotFoundError:
        return  # the run has removed it itself
    fresh = (f"{secrets.token_hex(8)}-{number}" for number in itertools.count())
    try:
        while names := os.listdir(top):
            for name in names:
                _remove_entry(name, top, fresh)
    finally:
        os.close(top)
    os.rmdir(directory)


def _remove_entry(name: str, top: int, fresh: Iterator[str]) -> None:
    if not _is_directory(name, top):
        os.unlink(name, dir_fd=top)
        return
    below = _open_directory(name, top)
    try:
        for inner in os.listdir(below):
            if _is_directory(inner, below):
                os.close(_open_directory(inner, below))  # a directory must be writable to be moved
                os.rename(inner, next(fresh), src_dir_fd=below, dst_dir_fd=top)
            else:
                os.unlink(inner, dir_fd=below)
    finally:
        os.close(below)
    os.rmdir(name, dir_fd=top)


def _is_directory(name: str, parent: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)


def _open_directory(name: str, parent: int | None) -> int:
    """Open a directory with full rights for its owner; a symbolic link in its place is an error, not a detour."""
    pin = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        if os.fstat(pin).st_mode & 0o700 != 0o700:
            os.chmod(f"/proc/self/fd/{pin}", 0o700)  # the pinned inode itself, not whatever has its name by now
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=pin)
    finally:
        os.close(pin)
