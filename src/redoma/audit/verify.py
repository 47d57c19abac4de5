"""Verifies the log in one pass, with one line in memory, and reports the first problem."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from ..lib.errors import AuditError
from ..lib.files import closing, open_directory
from ..lib.types import resolved
from .files import locked, open_regular, reporting
from .record import GENESIS, Frame, Head, is_log_name, read_frame, read_head, read_lines

Kind = Literal["altered", "removed", "reordered", "inserted", "truncated", "torn", "head", "rewritten"]


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """The first problem found."""

    kind: Kind
    """`torn` is a crash, which the next append recovers from. Everything else is damage."""
    message: str
    file: str = ""
    line: int = 0
    """1-based; 0 if it is not about a line."""
    seq: int = 0
    """The record concerned; 0 if unknown."""


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a verification."""

    records: int
    """How many records were checked before the problem, or in total."""
    head: str
    """The hash of the newest record: keep it elsewhere, and pass it to a later verification."""
    problem: Problem | None = None

    @property
    def ok(self) -> bool:
        return self.problem is None


class _LogLine(NamedTuple):
    file: str
    number: int
    start: int
    raw: bytes
    last: bool
    """Whether it is the last line of the log."""
    ends_file: bool


class _Snapshot(NamedTuple):
    """The log at one moment. Files only grow, so a scan up to these sizes needs no lock."""

    head: Head | None
    head_problem: str
    files: list[tuple[str, int]]


class _Retention(msgspec.Struct):
    class Removed(msgspec.Struct):
        seq: int
        hash: str

    removed: list[Removed]


def verify(path: Path, expected_head: str | None = None) -> Verification:
    """Check the log in a directory. A missing directory is an empty log. Raises `AuditError` for an invalid
    `expected_head`.
    """
    if expected_head is not None and not re.fullmatch("[0-9a-f]{64}", expected_head):
        raise AuditError(
            f"{expected_head!r} is not the hash of a record",
            why="a hash is 64 hexadecimal digits",
            next="pass the head that an earlier `redoma audit verify` printed",
        )
    with reporting(f"the audit log in {path} can't be verified"):
        try:
            directory = open_directory(path, create=False)
        except FileNotFoundError:
            return _Scan(_Snapshot(None, "", []), expected_head).run(iter(()))
        with closing(directory):
            snapshot = _take_snapshot(directory)
            return _Scan(snapshot, expected_head).run(_lines(directory, snapshot.files))


def _take_snapshot(directory: int) -> _Snapshot:
    """Take a snapshot under the lock, so that a line that is being written is not mistaken for a torn one."""
    try:
        lock = open_regular("lock", os.O_RDONLY, dir_fd=directory)
    except FileNotFoundError:
        return _read_snapshot(directory)  # a copy of a log, which has no writers
    with closing(lock), locked(lock, shared=True):
        return _read_snapshot(directory)


def _read_snapshot(directory: int) -> _Snapshot:
    names = sorted(filter(is_log_name, os.listdir(directory)))
    files = [(name, os.stat(name, dir_fd=directory, follow_symlinks=False).st_size) for name in names]
    try:
        with open(open_regular("head", os.O_RDONLY, dir_fd=directory), "rb") as file:
            return _Snapshot(read_head(file.read(4096)), "", files)
    except FileNotFoundError:
        return _Snapshot(None, "the head file is missing", files)
    except ValueError as error:
        return _Snapshot(None, f"the head file can't be read: {error}", files)


def _lines(directory: int, files: list[tuple[str, int]]) -> Iterator[_LogLine]:
    newest = max((name for name, size in files if size), default="")
    for name, size in files:
        with open(open_regular(name, os.O_RDONLY, dir_fd=directory), "rb") as file:
            for number, (start, raw) in enumerate(read_lines(file, 0, size), 1):
                ends = start + len(raw) == size
                yield _LogLine(name, number, start, raw, ends and name == newest, ends)


class _Scan:
    """How far the chain has been followed."""

    def __init__(self, snapshot: _Snapshot, expected_head: str | None) -> None:
        self._snapshot, self._head = snapshot, snapshot.head
        self._expected = expected_head
        self._records = 0
        self._start, self._start_hash = 0, GENESIS
        self._seq, self._hash = 0, GENESIS
        self._unattested: _LogLine | None = None
        self._retired = 0
        self._at: _LogLine | None = None

    def run(self, lines: Iterator[_LogLine]) -> Verification:
        problem = next(filter(None, (self._step(line, lines) for line in lines)), None) or self._ending()
        return Verification(records=self._records, head=self._hash, problem=problem)

    def _step(self, line: _LogLine, rest: Iterator[_LogLine]) -> Problem | None:
        try:
            frame = read_frame(line.raw)
        except ValueError as error:
            return self._unreadable(line, str(error))
        if self._at is None and frame.seq > 1:
            self._start, self._start_hash = self._seq, self._hash = frame.seq - 1, frame.prev
            self._unattested = line
        if frame.seq != self._seq + 1:
            return self._misplaced(line, frame, rest)
        if frame.prev != self._hash:
            return self._unlinked(line, frame)
        if self._head and (problem := _beside_head(self._head, line, frame)):
            return problem
        self._records, self._seq, self._hash, self._at = self._records + 1, frame.seq, frame.hash, line
        if self._expected in (frame.hash, frame.prev):
            self._expected = None
        return self._attest(line, frame) if frame.kind == "retention" else None

    def _attest(self, line: _LogLine, frame: Frame) -> Problem | None:
        try:
            removed = msgspec.json.decode(frame.data, type=resolved(_Retention)).removed
        except (ValueError, RecursionError) as error:
            return _problem(
                "altered", line, frame.seq, f"record {frame.seq} is not a retention record of ours: {error}"
            )
        for file in removed:
            if (file.seq, file.hash) == (self._start, self._start_hash):
                self._unattested = None
            if file.seq < self._start:
                self._retired = max(self._retired, file.seq)
            if file.hash == self._expected:
                self._expected = None
        return None

    def _unreadable(self, line: _LogLine, why: str) -> Problem:
        # The first line of a log after retention may be any record; its own claim proves nothing.
        seq = self._seq + 1 if self._at else 0
        which = f"record {seq}" if seq else "the first record"
        head = self._head
        acknowledged = head is None or head.seq > self._seq or (line.file, line.start) < (head.file, head.offset)
        if line.last and not acknowledged:
            message = f"the log ends in a line that a crash left behind ({why}); the next run recovers it"
            return _problem("torn", line, seq, message)
        if line.ends_file and not line.raw.endswith(b"\n"):
            return _problem("truncated", line, seq, f"{line.file} ends in the middle of {which}")
        return _problem("altered", line, seq, f"{which} was altered: {why}")

    def _unlinked(self, line: _LogLine, frame: Frame) -> Problem:
        # If a record got a new hash to match its new content, the next one still names the old hash.
        if self._at is None:
            return _problem("altered", line, frame.seq, "record 1 does not begin the chain")
        message = f"record {self._seq} was altered: record {frame.seq} names another hash for it"
        return _problem("altered", self._at, self._seq, message)

    def _misplaced(self, line: _LogLine, frame: Frame, rest: Iterator[_LogLine]) -> Problem:
        wanted = self._seq + 1
        if frame.seq <= self._start:
            return _problem("reordered", line, frame.seq, f"record {frame.seq} comes after record {self._seq}")
        if frame.seq < wanted:
            message = f"there is a second record {frame.seq}, after record {self._seq}"
            return _problem("inserted", line, frame.seq, message)
        for later in rest:
            if later.raw.startswith(b'{"seq":%d,' % wanted):
                message = f"record {wanted} was moved: it comes after record {frame.seq}, in {later.file}"
                return _problem("reordered", line, wanted, f"{message} line {later.number}")
        gone = f"record {wanted} is" if frame.seq == wanted + 1 else f"records {wanted} to {frame.seq - 1} are"
        return _problem("removed", line, wanted, f"{gone} missing before record {frame.seq}")

    def _ending(self) -> Problem | None:
        head = self._head
        if head and head.seq > self._seq:
            return Problem(
                kind="truncated",
                file=self._at.file if self._at else head.file,
                line=self._at.number + 1 if self._at else 1,
                seq=self._seq + 1,
                message=f"the log ends with record {self._seq}, but record {head.seq} had been written",
            )
        if self._unattested:
            message = f"the log starts at record {self._start + 1}, and no retention record says why"
            return _problem("removed", self._unattested, self._retired + 1, message)
        if head is None and self._snapshot.files:
            message = f"{self._snapshot.head_problem}, so a cut at the end can't be seen"
            return Problem(kind="head", file="head", message=message)
        if head and 0 < self._start >= head.seq:
            # A kill can't cause this: files are removed only after the head has moved on to the retention record.
            return Problem(kind="head", file="head", message=f"the head names record {head.seq}, which is long gone")
        if self._expected:
            message = f"no record has the hash {self._expected}: the log was rewritten, or cut back, since"
            return Problem(kind="rewritten", message=message)
        return None


def _beside_head(head: Head, line: _LogLine, frame: Frame) -> Problem | None:
    """Return a problem that an append would run into: a record on the wrong side of the head's position."""
    end = line.start + len(line.raw)
    if frame.seq == head.seq and frame.hash != head.hash:
        return _problem("altered", line, frame.seq, f"record {frame.seq} is not the one that the head names")
    if frame.seq == head.seq and head.offset:
        fits = (line.file, end) == (head.file, head.offset)
    else:  # in a file that the head has only just named, nothing is acknowledged yet
        fits = (frame.seq <= head.seq) == ((line.file, line.start) < (head.file, head.offset))
    if fits:
        return None
    expected = f"the head says that record {head.seq} is the last before byte {head.offset} of {head.file}"
    return _problem("head", line, frame.seq, f"record {frame.seq} ends at byte {end} of {line.file}, but {expected}")


def _problem(kind: Kind, line: _LogLine, seq: int, message: str) -> Problem:
    return Problem(kind=kind, file=line.file, line=line.number, seq=seq, message=message)
