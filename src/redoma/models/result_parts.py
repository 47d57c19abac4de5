"""What is learned of a run: what it used and drew, the failures in what it printed, and where that can be read."""

from __future__ import annotations

from typing import Literal

import msgspec

from ..lib.errors import RedomaError


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a run used. None means the backend can't tell: never a made-up zero."""

    wall: float = 0.0
    cpu: float | None = None
    memory: int | None = None


class Seed(msgspec.Struct, frozen=True, kw_only=True):
    """What the random numbers of a Python run came from, so that they can be drawn again. Nothing that must not be
    guessed comes from it: `secrets`, `os.urandom` and `uuid4` ask the kernel."""

    random: int
    """Of `random`, and of `numpy.random` where that is preloaded."""
    hashes: int
    """Of the hashes of text, and so of the order of sets: what PYTHONHASHSEED is to an interpreter."""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A failure that was recognised in what a run printed. A help for reading, never a verdict: programs print what
    they like."""

    kind: str
    """Stable, from the general to the special: `python.exception`, `tool.make`, `file.missing`."""
    message: str
    file: str = ""
    line: int = 0
    column: int = 0
    """1-based; 0 where it isn't told."""
    function: str = ""
    exception: str = ""
    """The type, as its language spells it."""


class Artifact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that a run printed to one stream, where the result has only its beginning and its end: as free of secrets and
    as harmless as the result. Kept for a while; `artifacts.Kept` is one that can be read."""

    id: str
    """The run's; with the stream, what `redoma output` finds it by."""
    stream: Literal["stdout", "stderr"]
    size: int = 0
    """Bytes, of UTF-8 text."""
    line_count: int = 0
    sha256: str = ""
    redacted: dict[str, int] = {}
    """How many secrets of each kind were taken out of it."""
    missing: str = ""
    """Why it isn't all there: the disk was full, or it was more than is kept. Empty if it is."""

    def read(self, start: int = 0, size: int = 65536) -> bytes:
        """Some of its bytes; fewer, or none, at its end."""
        raise self._only_described()

    def lines(self, first: int = 1, count: int = 100) -> list[str]:
        """Some of its lines, without their ends; the first is 1."""
        raise self._only_described()

    def _only_described(self) -> RedomaError:
        return RedomaError(
            f"the {self.stream} of run {self.id} can't be read from here",
            why="this is its description only",
            next=f"use `redoma output {self.id} --stream {self.stream}`",
        )
