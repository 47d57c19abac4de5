"""What is being done to a project, written down before it is done.

    preparing ──▶ committed ──▶ done
        │             └──▶ returning ──▶ returned
        └──▶ (nothing was moved)

Until it is committed nothing of the project has changed (but for directories and files of ours that were opened to look
into them), so whoever finds it goes back. From then on everything that is needed lies next to the project's files, so
whoever finds it goes on, or back, if somebody has got in the way. `returning` never becomes `committed` again; `done`
and `returned` are written before our directory is cleared, since after that what lies in it tells nothing any more.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from . import private
from .plan import Step

NAME = "journal"

Phase = Literal["preparing", "committed", "returning", "returned", "done"]


class Thing(msgspec.Struct, frozen=True, array_like=True):
    """By which something is known again after it was moved. The number of an inode alone is soon used again."""

    inode: int
    kind: int
    size: int = 0
    time: int = 0
    """When its content was changed last, in nanoseconds. A directory has neither this nor a size: things move in it."""


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """What a step moves."""

    there: Thing | None = None
    """What the project had."""
    staged: Thing | None = None
    """What comes."""


def thing(about: os.stat_result) -> Thing:
    kind = stat.S_IFMT(about.st_mode)
    if kind == stat.S_IFDIR:
        return Thing(about.st_ino, kind)
    return Thing(about.st_ino, kind, about.st_size, about.st_mtime_ns)


class Journal(msgspec.Struct, frozen=True, kw_only=True):
    phase: Phase
    action: Literal["apply", "undo"]
    project: str
    stage: str
    """The name of our own directory in the project ..."""
    stage_inode: int = 0
    """... and the inode of it, once it is made."""
    paths: tuple[str, ...]
    """Of the changes that this is about."""
    left: dict[str, str] = {}
    """Path → why it is not among them."""
    steps: tuple[Step, ...]
    marks: tuple[Mark, ...] = ()
    """One for each step, once it is committed."""
    opened: dict[str, int] = {}
    """What was shut to its owner, us, and has been opened for the time: path → its own mode."""
    owners: dict[str, tuple[int, int]] = {}
    """Of what the project had."""
    staying: tuple[str, ...] = ()
    """Names in our directory that could not be put back ..."""
    problems: tuple[str, ...] = ()
    """... and why."""


def _nothing(point: str) -> None:
    """What happens at each point where a crash would leave something to recover: nothing. A test puts one there."""


at: Callable[[str], None] = _nothing


def write(directory: Path, journal: Journal, *, durable: bool) -> None:
    private.write(directory / NAME, journal, durable=durable)
    at(f"journal {journal.phase}")


def read(directory: Path) -> Journal | None:
    """The journal of what was not finished there; None if there is none. `ValueError` for what is none of ours."""
    try:
        return private.read(directory / NAME, Journal)
    except FileNotFoundError:
        return None


def remove(directory: Path, *, durable: bool) -> None:
    (directory / NAME).unlink(missing_ok=True)
    private.sync_path(directory, durable=durable)
    at("journal removed")
