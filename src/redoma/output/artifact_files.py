"""The directory of artifacts: private to this user, never reached through a link, bounded in size.

An artifact is a file `RUN.stdout` or `RUN.stderr`. While it is written it is a `.part` file that its writer keeps
locked. An unlocked one was left by a process that died, and the next writer removes it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from ..lib import files
from ..lib.errors import RedomaError
from ..lib.patterns import lazy_pattern

MAX_FILES = 10_000
_NAME = lazy_pattern(r"(?P<run>[A-Za-z0-9_:-][A-Za-z0-9._:-]{0,127})\.(?P<stream>stdout|stderr)\Z")
_PART = lazy_pattern(r"\.[0-9a-f]{32}\.part\Z")


class ArtifactFile(msgspec.Struct, frozen=True, order=True):
    """An artifact in the directory; `time` is when it was written, `name` its file."""

    time: float
    run: str
    stream: str
    name: str
    size: int


def name_of(run: str, stream: str) -> str:
    """Return the file name of an artifact. Raises `ValueError` for a run id that can't be part of one."""
    name = f"{run}.{stream}"
    if not _NAME.match(name):
        raise ValueError(f"a run with the id {run[:80]!r} can't have an artifact")
    return name


@contextmanager
def opened(path: Path, *, create: bool = False) -> Iterator[int]:
    """Yield a descriptor of the directory. Raises `OSError`, or `RedomaError` if another user could write there."""
    with files.closing(files.open_own_directory(path, holds="output", error=RedomaError, create=create)) as directory:
        if os.fstat(directory).st_mode & 0o077:
            os.fchmod(directory, 0o700)
        yield directory


def open_file(directory: int, name: str) -> int:
    """Open an artifact for reading. Links and anything but regular files are refused."""
    try:
        return files.open_regular(name, dir_fd=directory)
    except files.NotRegular as error:
        raise RedomaError(f"{name} is not an artifact", why="it is not a regular file", next="move it away") from error


def list_artifacts(directory: int) -> list[ArtifactFile]:
    """Return the artifacts, oldest first."""
    artifacts: list[ArtifactFile] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if not (name := _NAME.match(entry.name)):
                continue
            with suppress(FileNotFoundError):  # another process pruned it
                about = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(about.st_mode):
                    file = ArtifactFile(about.st_mtime, name["run"], name["stream"], entry.name, about.st_size)
                    artifacts.append(file)
    return sorted(artifacts)


def prune(directory: int, *, before: float, total: int) -> None:
    """Remove the part files of dead writers, artifacts written before a time, then the oldest until the rest is within
    bounds.
    """
    for name in os.listdir(directory):
        if _PART.match(name):
            _remove_dead(directory, name)
    artifacts = list_artifacts(directory)
    size, count = sum(one.size for one in artifacts), len(artifacts)
    for one in artifacts:
        if one.time >= before and size <= total and count <= MAX_FILES:
            break
        with suppress(FileNotFoundError):
            os.unlink(one.name, dir_fd=directory)
        size, count = size - one.size, count - 1


def _remove_dead(directory: int, name: str) -> None:
    with suppress(FileNotFoundError), files.closing(open_file(directory, name)) as part, files.locked(part) as dead:
        if dead:
            os.unlink(name, dir_fd=directory)


def new_part(directory: int) -> tuple[int, str]:
    """Create a private, locked file. Returns its descriptor and name."""
    name = f".{os.urandom(16).hex()}.part"
    part = os.open(name, files.NEW_FILE, 0o600, dir_fd=directory)
    try:
        os.fchmod(part, 0o600)  # whatever the umask is
        if not files.lock(part):  # another process prunes, and takes this for a dead writer's file
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK), name)
    except OSError:
        os.close(part)
        os.unlink(name, dir_fd=directory)
        raise
    return part, name
