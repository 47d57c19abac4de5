"""A directory, and paths below it that can't lead anywhere else.

Paths are relative, with `/` between names. The kernel resolves them (`openat2`) and refuses symbolic links and ways out
on all of the way; so the last name is only ever used together with a descriptor of the directory that holds it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from ..backends import linux
from ..lib.errors import WorkspaceError
from ..models import Version

BENEATH = linux.RESOLVE_BENEATH | linux.RESOLVE_NO_SYMLINKS | linux.RESOLVE_NO_MAGICLINKS
_LOOK = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}


class Odd(Exception):
    """What is there is neither a regular file nor a directory nor a link: a device, a pipe, a socket."""


class Tree:
    """An open directory. Close it, or use it as a context manager."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """`path` itself may lead through links: whoever names a project means what it leads to."""
        self.path = os.path.realpath(path)
        try:
            self.fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise WorkspaceError(
                f"the project {self.path} can't be opened", why=error.strerror or str(error), next="name a directory"
            ) from error

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @contextmanager
    def parent(self, path: str) -> Iterator[tuple[int, str]]:
        """A descriptor of the directory that holds `path`, and its last name. Raises `OSError` if the way there is no
        way: `ENOENT`, `ENOTDIR`, `ELOOP` for a link on it, `EXDEV` for one that would leave."""
        above, _, name = path.rpartition("/")
        if name in ("", ".", ".."):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        directory = self.directory(above or ".")
        try:
            yield directory, name
        finally:
            os.close(directory)

    def directory(self, path: str) -> int:
        """A descriptor of a directory below; `.` for this one. The caller closes it."""
        return linux.openat2(self.fd, path, os.O_RDONLY | os.O_DIRECTORY, resolve=BENEATH)

    def file(self, path: str) -> int:
        """A descriptor of a regular file below, to read. The caller closes it."""
        number = linux.openat2(self.fd, path, _LOOK, resolve=BENEATH)
        if not stat.S_ISREG(os.fstat(number).st_mode):
            os.close(number)
            raise Odd(path)
        return number

    def stat(self, path: str) -> os.stat_result | None:
        """Of the last name itself, links not followed. None where there is no such path."""
        try:
            with self.parent(path) as (directory, name):
                return os.stat(name, dir_fd=directory, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EXDEV):  # there is a link on the way: so that path is not there
                return None
            raise

    def version(self, path: str) -> Version | None:
        """What is there now, its content read as a whole. None where there is nothing; `Odd` for what is no file."""
        about = self.stat(path)
        if about is None:
            return None
        kind = _KINDS.get(stat.S_IFMT(about.st_mode))
        mode = stat.S_IMODE(about.st_mode)
        if kind == "directory":
            return Version(kind="directory", mode=mode)
        if kind == "symlink":
            with self.parent(path) as (directory, name):
                return Version(kind="symlink", target=os.readlink(name, dir_fd=directory))
        if kind != "file":
            raise Odd(path)
        number = self.file(path)
        try:
            about = os.fstat(number)
            return Version(kind="file", mode=stat.S_IMODE(about.st_mode), size=about.st_size, sha256=digest_of(number))
        finally:
            os.close(number)


def above(path: str) -> Iterator[str]:
    """The directories that a path goes through, from the top, and the path itself."""
    end = path.find("/")
    while end >= 0:
        yield path[:end]
        end = path.find("/", end + 1)
    yield path


def digest_of(number: int) -> str:
    """SHA-256 of an open file, from its beginning."""
    with open(number, "rb", closefd=False) as file:
        file.seek(0)
        return hashlib.file_digest(file, "sha256").hexdigest()
