"""A directory, and paths below it that can't lead out of it.

Paths are relative, with `/` between names. The kernel resolves the directories in them (`openat2`), and refuses
symbolic links and paths that lead out. The last name is only ever used together with a descriptor of the directory that
contains it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, Self

from ..backends import linux
from ..lib.errors import WorkspaceError
from ..lib.files import SPECIAL, NotRegular, closing, open_regular, reason
from ..models import Version
from .copying import digest_of

BENEATH = linux.RESOLVE_BENEATH | linux.RESOLVE_NO_SYMLINKS | linux.RESOLVE_NO_MAGICLINKS
Kind = Literal["file", "directory", "symlink", "odd"]
_KINDS: dict[int, Kind] = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}


def kind_of(about: os.stat_result) -> Kind:
    """Return the kind of a file; `odd` for what is never copied: devices, pipes, sockets."""
    return _KINDS.get(stat.S_IFMT(about.st_mode), "odd")


def odd_name(about: os.stat_result | None) -> str:
    """Return the word for an odd file in a message; empty if it isn't odd."""
    return SPECIAL.get(stat.S_IFMT(about.st_mode), "") if about else ""


class Tree:
    """An open directory. Close it, or use it as a context manager."""

    resolve = BENEATH
    """How the kernel resolves paths."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open a directory. Links in `path` itself are followed. Raises `WorkspaceError` if it can't be opened."""
        self.path = os.path.realpath(path)
        try:
            self.fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise WorkspaceError(
                f"the project {self.path} can't be opened", why=reason(error), next="name a directory"
            ) from error

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @contextmanager
    def parent(self, path: str) -> Iterator[tuple[int, str]]:
        """Open the directory that contains `path` for the length of the block. Yields its descriptor and the last name.

        Raises `OSError` if the path can't be followed: `ENOENT`, `ENOTDIR`, `ELOOP` for a link in it, `EXDEV` for one
        that would leave the directory.
        """
        above, _, name = path.rpartition("/")
        if name in ("", ".", ".."):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        with closing(self.directory(above)) as directory:
            yield directory, name

    def directory(self, path: str) -> int:
        """Return a descriptor of a directory below; empty or `.` for this one. The caller closes it."""
        return linux.openat2(self.fd, path or ".", os.O_RDONLY | os.O_DIRECTORY, resolve=self.resolve)

    def list(self, path: str) -> list[str]:
        """Return the names in a directory below."""
        with closing(self.directory(path)) as directory:
            return os.listdir(directory)

    def file(self, path: str) -> int:
        """Return a descriptor of a regular file below, for reading; the caller closes it. Raises `NotRegular` for
        anything else.
        """
        with self.parent(path) as (directory, name):
            return open_regular(name, dir_fd=directory)

    def target(self, path: str) -> str:
        """Return the target of a symbolic link."""
        with self.parent(path) as (directory, name):
            return os.readlink(name, dir_fd=directory)

    def stat(self, path: str) -> os.stat_result | None:
        """Return the stat of a path, without following a link at its end. None if there is no such path."""
        try:
            with self.parent(path) as (directory, name):
                return os.stat(name, dir_fd=directory, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EXDEV):  # the path leads through a link, so it isn't in this tree
                return None
            raise

    def version(self, path: str) -> Version | None:
        """Return what is at a path; None if nothing is there. Reads a file completely. Raises `NotRegular` for devices,
        pipes and sockets.
        """
        about = self.stat(path)
        if about is None:
            return None
        mode = stat.S_IMODE(about.st_mode)
        match kind_of(about):
            case "directory":
                return Version(kind="directory", mode=mode)
            case "symlink":
                return Version(kind="symlink", target=self.target(path))
            case "odd":
                raise NotRegular(path)
        with closing(self.file(path)) as file:
            about = os.fstat(file)
            return Version(kind="file", mode=stat.S_IMODE(about.st_mode), size=about.st_size, sha256=digest_of(file))


def parents(path: str) -> Iterator[str]:
    """Yield the directories that a path goes through, from the top."""
    end = path.find("/")
    while end >= 0:
        yield path[:end]
        end = path.find("/", end + 1)


def with_parents(path: str) -> Iterator[str]:
    """Yield the directories that a path goes through, from the top, and the path itself."""
    yield from parents(path)
    yield path


def depth(path: str) -> int:
    """Return how many directories a path goes through; -1 for the project itself."""
    return -1 if path in ("", ".") else path.count("/")
