"""Writes the log: one append under one lock; recovers after a crash, and starts a new file each day."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Container, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from ..lib.errors import AuditError
from ..telemetry import ERROR, recorded, tell
from . import read, verify
from .files import closing, locked, open_directory, open_private, open_regular, reporting, require_ours, write_all
from .record import GENESIS, MAX_LINE, Frame, Head, Record, is_log_name, is_torn_name, read_frame, read_lines, seal

Written = tuple[str, str, Mapping[str, Any]]
_OWN_KINDS = ("recovered", "retention")
_HEAD_SIZE = 256
"""The head is written over in place at one size, inside one disk sector: a kill leaves the old or the new, whole."""


def _utc_now() -> datetime:
    return datetime.now(UTC)


class AuditLog:
    """A hash-chained log in a directory. Holds nothing open: any number of threads and processes may share it."""

    def __init__(
        self,
        directory: Path,
        *,
        retention_days: int = 30,
        fsync: bool = False,
        now: Callable[[], datetime] = _utc_now,
    ) -> None:
        if retention_days < 1:
            raise AuditError(
                f"the audit log can't be kept for {retention_days} days", why="a day is the least", next="use 1 or more"
            )
        self.directory = directory
        self._retention_days, self._fsync, self._now = retention_days, fsync, now

    def append(self, kind: str, id: str, data: Mapping[str, Any]) -> Record:  # noqa: A002 - the record's own word
        """Write one record. Once this returns it is in the log; if it raises AuditError, it is not."""
        if kind in _OWN_KINDS:
            raise AuditError(f"a record of kind {kind!r} can't be added", why="only the log itself writes those")
        try:
            record, written = self._append(kind, id, data)
        except AuditError:
            tell(ERROR, "audit.failed", run=id, kind=kind)
            raise
        for one in written:  # when the lock is free again: whoever listens may take their time
            recorded(*one)
        return record

    def _append(self, kind: str, run: str, data: Mapping[str, Any]) -> tuple[Record, list[Written]]:
        with reporting(f"the audit log in {self.directory} can't be written"), contextlib.ExitStack() as stack:
            directory = stack.enter_context(closing(open_directory(self.directory, create=True)))
            require_ours(directory, self.directory)
            lock = stack.enter_context(closing(open_private("lock", os.O_CREAT, dir_fd=directory)))
            stack.enter_context(locked(lock))
            writer = _Writer(stack, self.directory, directory, self._now().astimezone(UTC), fsync=self._fsync)
            writer.recover()
            writer.turn_day(self._retention_days)
            return writer.put(kind, run, data), writer.written

    def verify(self, expected_head: str | None = None) -> verify.Verification:
        """Check every record; `expected_head` is a hash from an earlier verification, kept where nobody rewrites it."""
        return verify.verify(self.directory, expected_head)

    def records(self, since: datetime | None = None, *, kinds: Container[str] | None = None) -> Iterator[Record]:
        """Every record, or those of some kinds, oldest first."""
        return read.records(self.directory, since, kinds)

    def tail(self, count: int) -> list[Record]:
        """The newest records, oldest of them first."""
        return read.tail(self.directory, count)

    def show(self, id_prefix: str) -> list[Record]:
        """The records of one run, named by the beginning of its id."""
        return read.show(self.directory, id_prefix)

    def stats(self, since: datetime | None = None) -> read.Stats:
        """The runs on record, counted."""
        return read.stats(self.records(since))


class _Writer:
    """An append while it holds the lock: it knows the head, and the file that the head points into."""

    def __init__(self, stack: contextlib.ExitStack, path: Path, directory: int, now: datetime, *, fsync: bool) -> None:
        self._stack, self._path, self._directory, self._now, self._fsync = stack, path, directory, now, fsync
        self.written: list[Written] = []
        self._head_fd = stack.enter_context(closing(open_private("head", os.O_CREAT, dir_fd=directory)))
        self.head = self._read_head()
        self._log_fd = self._open_log()

    def _read_head(self) -> Head:
        try:
            return msgspec.json.decode(os.pread(self._head_fd, _HEAD_SIZE, 0), type=Head)
        except ValueError as error:
            if any(is_log_name(name) for name in os.listdir(self._directory)):
                raise self._damaged("its head is missing or unreadable") from error
        # Before the first record, so that a record without a head is never the trace of a crash.
        return self._move_head(Head(0, GENESIS, self._today, 0))

    def _open_log(self) -> int:
        # A file is made only where the head expects nothing yet: a log that was deleted must not start afresh.
        flags = os.O_APPEND | (os.O_CREAT if self.head.offset == 0 else 0)
        try:
            return self._stack.enter_context(closing(open_private(self.head.file, flags, dir_fd=self._directory)))
        except FileNotFoundError as error:
            raise self._damaged(f"{self.head.file} is gone") from error

    @property
    def _today(self) -> str:
        return f"audit-{self._now:%Y-%m-%d}.jsonl"

    def _damaged(self, why: str) -> AuditError:
        return AuditError(
            f"the audit log in {self._path} is damaged",
            why=f"{why}, by a power cut or by somebody's hand",
            next="see `redoma audit verify`; move the directory away to keep it as evidence and start a new log",
        )

    def put(self, kind: str, id: str, data: Mapping[str, Any]) -> Record:  # noqa: A002 - the record's own word
        """The record, then the head: a kill between the two leaves a log that is ahead, which `recover` takes over."""
        time = self._now.isoformat(timespec="microseconds")
        record, line = seal(self.head.seq + 1, time, kind, id, data, self.head.hash)
        try:
            write_all(self._log_fd, line)
            if self._fsync:
                os.fsync(self._log_fd)
            self._move_head(Head(record.seq, record.hash, self.head.file, self.head.offset + len(line)))
        except OSError:
            # The caller will act as if there were no record, so there must be none.
            os.ftruncate(self._log_fd, self.head.offset)
            raise
        self.written.append((kind, id, data))
        return record

    def _move_head(self, head: Head) -> Head:
        os.pwrite(self._head_fd, msgspec.json.encode(head).ljust(_HEAD_SIZE - 1) + b"\n", 0)
        if self._fsync and head.offset == 0:
            # A head that is behind within its file does no harm, so it is made durable only when the file changes.
            os.fsync(self._head_fd)
            os.fsync(self._directory)
        self.head = head
        return head

    def recover(self) -> None:
        """Make the log end where its head says, after a writer that was killed half-way or a power cut."""
        ending = b'"hash":"%b"}\n' % self.head.hash.encode()
        if self.head.offset and os.pread(self._log_fd, len(ending), self.head.offset - len(ending)) != ending:
            raise self._damaged(f"{self.head.file} does not hold record {self.head.seq} where it was written")
        self._take_over()
        newer = (name for name in os.listdir(self._directory) if name > self.head.file and is_log_name(name))
        for name in sorted(newer):
            # A power cut may have lost the heads of whole days, and to write on here would begin a second chain. An
            # empty file was never ours: we write into a file only after the head has named it.
            if os.stat(name, dir_fd=self._directory, follow_symlinks=False).st_size:
                self.head = msgspec.structs.replace(self.head, file=name, offset=0)
                self._log_fd = self._open_log()
                self._take_over()

    def _take_over(self) -> None:
        """Move the head to the end of its file."""
        if (size := os.fstat(self._log_fd).st_size) <= self.head.offset:
            return
        with open(self._log_fd, "rb", closefd=False) as file:
            for start, line in read_lines(file, self.head.offset, size):
                try:
                    frame = read_frame(line)
                except ValueError as error:
                    if start + len(line) < size:
                        # One append leaves one fragment, at the very end: this was not a crash.
                        raise self._damaged(f"{self.head.file} holds lines that Redoma did not write") from error
                    self._set_aside(line)
                    return
                if (frame.seq, frame.prev) != (self.head.seq + 1, self.head.hash):
                    raise self._damaged(f"{self.head.file} goes on with record {frame.seq} after {self.head.seq}")
                self._move_head(Head(frame.seq, frame.hash, self.head.file, start + len(line)))

    def _set_aside(self, fragment: bytes) -> None:
        name = f"{self.head.file.removesuffix('.jsonl')}.{self.head.seq + 1}.torn"
        with closing(open_private(name, os.O_CREAT | os.O_TRUNC, dir_fd=self._directory)) as torn:
            write_all(torn, fragment)
            if self._fsync:
                os.fsync(torn)
        os.ftruncate(self._log_fd, self.head.offset)
        digest = hashlib.sha256(fragment).hexdigest()
        self.put("recovered", "", {"bytes": len(fragment), "sha256": digest, "file": name})

    def turn_day(self, retention_days: int) -> None:
        """Go on in a new file on a new day. A clock set back changes nothing: the newest file stays the newest."""
        if self._today <= self.head.file:
            return
        oldest_kept = f"audit-{self._now - timedelta(days=retention_days):%Y-%m-%d}"
        names = sorted(os.listdir(self._directory))
        removed = self._endings([name for name in names if is_log_name(name)], oldest_kept)
        # The head before the file: killed in between, the next append makes it. The other way round, a clock set
        # back after the kill would leave a file newer than the one being written.
        self._move_head(Head(self.head.seq, self.head.hash, self._today, 0))
        self._log_fd = self._open_log()
        if removed:
            self.put("retention", "", {"days": retention_days, "removed": removed})
        # Oldest first, so that a kill on the way leaves a chain that starts right after a file named above.
        for name in names:
            if name < oldest_kept and (is_log_name(name) or is_torn_name(name)):
                os.unlink(name, dir_fd=self._directory)

    def _endings(self, logs: list[str], oldest_kept: str) -> list[dict[str, Any]]:
        """For each file past its retention, the record that it ends with: what comes next names it."""
        endings: list[dict[str, Any]] = []
        if not logs or logs[0] > oldest_kept:
            return endings
        seq, last_hash = self.head.seq, self.head.hash
        for name in reversed(logs):
            if name < oldest_kept:
                endings.insert(0, {"file": name, "seq": seq, "hash": last_hash})
            if first := self._first_record(name):
                seq, last_hash = first.seq - 1, first.prev
        return endings

    def _first_record(self, name: str) -> Frame | None:
        with open(open_regular(name, os.O_RDONLY, dir_fd=self._directory), "rb") as file:
            line = file.readline(MAX_LINE + 1)
        try:
            return read_frame(line) if line else None
        except ValueError as error:
            raise self._damaged(f"the first line of {name} is not a record") from error
