"""The journal: what is about to be done to a project, written down before it is done.

Two kinds of work change a project. Both use a journal: a list of steps, each with what was seen at its path. If the
process is killed, the next one finds the journal, and finishes the work or takes it back.

- `transaction` applies changes, or undoes them: all of them or none.
- `restore` rolls back to a checkpoint: path by path, as much as possible.
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
from ..lib.types import resolved
from ..models import Version

NAME = "journal"

T = TypeVar("T")


class Identity(msgspec.Struct, frozen=True, array_like=True):
    """What identifies a file later, also under another name. An inode number alone is not enough, because it may be
    reused soon. `ctime` is not included, because a rename or the removal of another hard link changes it.
    """

    inode: int
    kind: int
    size: int = 0
    time: int = 0
    """`mtime` in nanoseconds. For a directory neither this nor the size is set: both change with its content."""


def identity(about: os.stat_result) -> Identity:
    """Return the identity of a stat result."""
    kind = stat.S_IFMT(about.st_mode)
    if kind == stat.S_IFDIR:
        return Identity(about.st_ino, kind)
    return Identity(about.st_ino, kind, about.st_size, about.st_mtime_ns)


class Step(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is done at one path."""

    path: str
    seen: Identity | None = None
    """What was at the path when the project was compared. If something else is there now, the step is not taken."""
    to: str = ""
    """The target of a move; only in a restore."""

    # Only in a transaction:
    before: Version | None = None
    """What the path must be now; None for nothing."""
    after: Version | None = None
    """What it will be; None for nothing."""
    source: str = ""
    """The file with the new content, among the kept changes."""
    backup: str = ""
    """Where the old content is copied to, so that it can be restored."""
    like: str = ""
    """For a moved file: the path that it was moved from, whose attributes it keeps."""
    owner: tuple[int, int] | None = None
    """User and group, if known, of what an undo restores."""
    staged: Identity | None = None
    """The identity of the replacement, once it is in the stage."""

    @property
    def kind(self) -> Literal["add", "remove", "replace", "mode"]:
        if self.before is None:
            return "add"
        if self.after is None:
            return "remove"
        return "mode" if msgspec.structs.replace(self.before, mode=self.after.mode) == self.after else "replace"

    @property
    def empties(self) -> bool:
        """Whether it removes a directory, which must be empty by then."""
        return is_directory(self.before) and not is_directory(self.after)


def is_directory(version: Version | None) -> bool:
    return version is not None and version.kind == "directory"


# --- reading and writing ---


def no_crash(point: str) -> None:
    """Do nothing: the crash point outside of tests."""


crash_point: Callable[[str], None] = no_crash
"""Called wherever a crash would leave something to recover. Tests replace it to crash there."""


def save(path: Path, value: Any, *, durable: bool = True) -> int:
    """Write data to a file atomically. Returns its size. The JSON is ASCII, because only escapes can represent names
    that are not UTF-8.
    """
    data = encode(value)
    files.replace(path, data, durable=durable)
    return len(data)


def encode(value: Any) -> bytes:
    return json.dumps(msgspec.to_builtins(value)).encode("ascii")


def load(path: Path, kind: type[T]) -> T:
    """Read what `save` wrote. Raises `FileNotFoundError`, and `ValueError` for anything that `save` didn't write."""
    try:
        number = files.open_regular(path)
    except NotADirectoryError:
        raise FileNotFoundError(path) from None
    except files.NotRegular as error:
        raise ValueError(error.strerror) from error
    with open(number, "rb") as file:
        try:
            return msgspec.convert(json.loads(file.read()), type=resolved(kind))
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error


def remove(directory: Path) -> None:
    """Remove the journal, because the work is done."""
    (directory / NAME).unlink(missing_ok=True)
    files.sync(directory)
    crash_point("journal removed")
