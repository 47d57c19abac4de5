"""What is about to be done to a project, written down before it is done.

Two kinds of work change a project, and both go by a journal: a list of steps, each with what was seen at its path. If
they are killed, whoever comes next finds the journal, and goes on or back.

- `transaction` applies changes, or undoes them: all of them or none.
- `restore` puts back a checkpoint: path by path, as much as can be.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from ..lib import files
from ..models import Version

NAME = "journal"

T = TypeVar("T")


class Identity(msgspec.Struct, frozen=True, array_like=True):
    """By which something is recognised later, also under another name. The number of an inode alone is soon used again.
    Not `ctime`: a rename, or removing another name of the same file, changes it."""

    inode: int
    kind: int
    size: int = 0
    time: int = 0
    """When its content was changed last, in nanoseconds. A directory has neither this nor a size: things move in it."""


def identity(about: os.stat_result) -> Identity:
    """The identity of what `about` tells of."""
    kind = stat.S_IFMT(about.st_mode)
    if kind == stat.S_IFDIR:
        return Identity(about.st_ino, kind)
    return Identity(about.st_ino, kind, about.st_size, about.st_mtime_ns)


class Step(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is done at one path."""

    path: str
    seen: Identity | None = None
    """What the project had there when it was looked at. If it is anything else when the step is taken, somebody has
    been there, and the step is not taken."""
    to: str = ""
    """Where it is moved to: of a restore only."""

    # Of a transaction only:
    before: Version | None = None
    """What the path has to be ..."""
    after: Version | None = None
    """... and what it will be."""
    source: str = ""
    """The file, among what is kept, with the content that comes."""
    backup: str = ""
    """Where the content that goes is copied to, so that it can be put back."""
    like: str = ""
    """Another path whose attributes it takes over: where it was before."""
    owner: tuple[int, int] | None = None
    """User and group, where they are known: of what an undo puts back."""
    staged: Identity | None = None
    """What comes, once it is made."""

    @property
    def kind(self) -> Literal["add", "remove", "replace", "mode"]:
        if self.before is None:
            return "add"
        if self.after is None:
            return "remove"
        return "mode" if msgspec.structs.replace(self.before, mode=self.after.mode) == self.after else "replace"

    @property
    def empties(self) -> bool:
        """Whether it takes a directory away, which has to be empty by then."""
        return is_directory(self.before) and not is_directory(self.after)


def is_directory(version: Version | None) -> bool:
    return version is not None and version.kind == "directory"


# --- reading and writing ---


def _nothing(point: str) -> None:
    """What happens at a crash point: nothing."""


crash_point: Callable[[str], None] = _nothing
"""Called wherever a crash would leave something to recover. Tests put a crash there."""


def save(path: Path, value: Any, *, durable: bool = True) -> int:
    """Put data into a file, whole or not at all. Returns its size. As ASCII: JSON has no other way to write names that
    are no UTF-8."""
    data = encode(value)
    files.replace(path, data, durable=durable)
    return len(data)


def encode(value: Any) -> bytes:
    return json.dumps(msgspec.to_builtins(value)).encode("ascii")


def load(path: Path, kind: type[T]) -> T:
    """What `save` has put there. Raises `FileNotFoundError`, and `ValueError` for anything else."""
    try:
        number = files.open_regular(path)
    except NotADirectoryError:
        raise FileNotFoundError(path) from None
    except files.NotRegular as error:
        raise ValueError(error.strerror) from error
    with open(number, "rb") as file:
        try:
            return msgspec.convert(json.loads(file.read()), type=kind)
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error


def remove(directory: Path, *, durable: bool = True) -> None:
    """Nothing is going on any more."""
    (directory / NAME).unlink(missing_ok=True)
    files.sync(directory, durable=durable)
    crash_point("journal removed")
