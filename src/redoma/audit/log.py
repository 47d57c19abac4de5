"""Writes the log: one append under one lock; recovers after a crash, and starts a new file each day."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import threading
import time
import weakref
from collections.abc import Callable, Container, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..lib.errors import AuditError
from ..lib.files import closing, open_directory, unlock, write_all
from ..telemetry import ERROR, recorded, tell
from .files import acquire, open_private, open_regular, os_failure, require_ours
from .record import (
    GENESIS,
    MAX_LINE,
    Frame,
    Head,
    Record,
    is_log_name,
    is_torn_name,
    read_frame,
    read_head,
    read_lines,
    seal,
)

if TYPE_CHECKING:
    from ..config import AuditConfig
    from .verify import Verification

Written = tuple[str, str, Mapping[str, Any]]
_OWN_KINDS = ("recovered", "retention")
_HEAD_SIZE = 256
"""The head is overwritten in place at one size, within one disk sector: a kill leaves either the old or the new one."""


_PRIVATE_FILE = stat.S_IFREG | 0o600
_SETTLED = 100_000_000
"""Nanoseconds after a change of the directory until the next change is sure to have another timestamp."""


def _utc_now() -> datetime:
    return datetime.now(UTC)


class AuditLog:
    """A hash-chained log in a directory. Any number of threads and processes may share it.

    The descriptors of an append are kept for the next one, which uses them if the names in the directory still lead to
    the same files.
    """

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
        self._files: _Files | None = None
        self._files_in_use = threading.Lock()

    @classmethod
    def configured(cls, config: AuditConfig) -> AuditLog:
        """Return the log of a configuration."""
        return cls(config.directory, retention_days=config.retention_days, fsync=config.fsync)

    def append(self, kind: str, id: str, data: Mapping[str, Any]) -> Record:  # noqa: A002 - the record's own word
        """Write one record. If this returns, the record is in the log; if it raises AuditError, it is not."""
        if kind in _OWN_KINDS:
            raise AuditError(f"a record of kind {kind!r} can't be added", why="only the log itself writes those")
        try:
            record, written = self._append(kind, id, data)
        except AuditError:
            tell(ERROR, "audit.failed", run=id, kind=kind)
            raise
        for one in written:  # after the lock is released: listeners may be slow
            recorded(*one)
        return record

    def _append(self, kind: str, run: str, data: Mapping[str, Any]) -> tuple[Record, list[Written]]:
        try:
            # Another thread uses our files: its lock on them would not exclude us.
            if not self._files_in_use.acquire(blocking=False):
                return self._write(_Files(self.directory), kind, run, data)
            try:
                files, self._files = self._files, None
                # Not in a forked child: it shares a lock that was taken before the fork with the parent.
                if files is None or files.owner != os.getpid() or not files.are_current():
                    files = _Files(self.directory)
                written = self._write(files, kind, run, data)
                # On a new day the old log is closed with the rest.
                self._files = files if files.log_count == 1 else None
                return written
            finally:
                self._files_in_use.release()
        except OSError as error:
            how = ": set REDOMA_STATE_DIR, or `audit.directory` if the configuration has it"
            raise os_failure(f"the audit log in {self.directory} can't be written", error, to_choose=how) from error

    def _write(self, files: _Files, kind: str, run: str, data: Mapping[str, Any]) -> tuple[Record, list[Written]]:
        acquire(files.lock)
        try:
            files.look_again()
            writer = _Writer(files, self.directory, self._now(), fsync=self._fsync)
            writer.recover()
            writer.start_new_day(self._retention_days)
            return writer.put(kind, run, data), writer.written
        finally:
            unlock(files.lock)

    def close(self) -> None:
        """Close the files that are kept open between records. The next record opens them again."""
        with self._files_in_use:
            self._files = None

    def verify(self, expected_head: str | None = None) -> Verification:
        """Check every record. `expected_head` is a hash from an earlier verification, kept where it can't be
        rewritten.
        """
        from .verify import verify  # this and `read` are not needed to write

        return verify(self.directory, expected_head)

    def records(self, since: datetime | None = None, *, kinds: Container[str] | None = None) -> Iterator[Record]:
        """Yield every record, or those of some kinds, oldest first."""
        from . import read

        return read.records(self.directory, since, kinds)

    def tail(self, count: int) -> list[Record]:
        """Return the newest records, oldest of them first."""
        from . import read

        return read.tail(self.directory, count)

    def show(self, id_prefix: str) -> list[Record]:
        """Return the records of one run, named by a prefix of its id."""
        from . import read

        return read.show(self.directory, id_prefix)


class _Files:
    """The open files of a log. They are closed when the object is garbage-collected."""

    def __init__(self, path: Path) -> None:
        self.owner, self._path, self._user = os.getpid(), path, os.geteuid()
        self._opened = contextlib.ExitStack()
        weakref.finalize(self, self._opened.close)
        self._identities: dict[str, tuple[int, int]] = {}
        self._unchanged_since = 0
        """When the directory was changed last before its names were looked up; 0 if that is not certain."""
        self._is_unchanged = False
        """Whether no name was added, removed or renamed in it since."""
        self._looked_at = time.time_ns()
        """When, or earlier, its names were looked up."""
        self.directory = self._opened.enter_context(closing(open_directory(path, create=True)))
        about = require_ours(self.directory, path)
        self._identity, self._changed = (about.st_dev, about.st_ino), about.st_ctime_ns
        self.lock = self._open("lock", os.O_CREAT)
        self._head = self._log = -1
        self._log_name = ""
        self.log_count = 0
        self.last_head: tuple[bytes, Head] | None = None
        """What the head's file had when it was last read or written, and what that means."""

    def _open(self, name: str, flags: int) -> int:
        fd = self._opened.enter_context(closing(open_private(name, flags, dir_fd=self.directory)))
        about = os.fstat(fd)
        self._identities[name] = about.st_dev, about.st_ino
        return fd

    def head(self) -> int:
        """Return the head, which is created if there is none. The caller must hold the lock."""
        if self._head < 0:
            self._head = self._open("head", os.O_CREAT)
        return self._head

    def log(self, name: str, flags: int) -> int:
        """Return the file of this name, opened with these flags unless it is open already."""
        if name != self._log_name or not self._leads_to(name, self._log):
            self._log, self._log_name = self._open(name, flags), name
            self.log_count += 1
        return self._log

    def are_current(self) -> bool:
        """Return whether the names of the directory, the lock and the head still lead to the same files, private to us.
        If one is replaced a moment later, that is as if it had been replaced during an append.
        """
        self._looked_at = time.time_ns()
        try:
            there = os.stat(self._path, follow_symlinks=False)
        except FileNotFoundError:
            return False
        self._user = os.geteuid()
        if there.st_uid != self._user or there.st_mode & 0o022 or (there.st_dev, there.st_ino) != self._identity:
            return False
        self._changed = there.st_ctime_ns
        self._is_unchanged = self._changed == self._unchanged_since
        return self._leads_to("lock", self.lock) and self._leads_to("head", self._head)

    def look_again(self) -> None:
        """Notice what has changed in the directory while we waited for the lock."""
        changed = os.fstat(self.directory).st_ctime_ns
        if changed != self._changed:
            self._changed, self._is_unchanged = changed, False

    def _leads_to(self, name: str, fd: int) -> bool:
        """Return whether a name leads to the file that we have open, with the owner and the mode of a private file.
        Names are looked up again only if one in the directory has changed.
        """
        try:
            there = os.fstat(fd) if self._is_unchanged else os.stat(name, dir_fd=self.directory, follow_symlinks=False)
        except FileNotFoundError:
            return False
        if there.st_mode != _PRIVATE_FILE or there.st_uid != self._user:
            return False
        return self._is_unchanged or (there.st_dev, there.st_ino) == self._identities[name]

    def newer_than(self, name: str) -> list[str]:
        """Return the log files after this one, which is the last name that is looked up in an append."""
        if self._is_unchanged and name == self._log_name:
            return []
        newer = sorted(each for each in os.listdir(self.directory) if each > name and is_log_name(each))
        # The kernel's clock moves in steps: another change within the same step, or in the future, looks like no
        # change.
        settled = self._looked_at - self._changed > _SETTLED
        self._unchanged_since = self._changed if settled and not newer else 0
        return newer


class _Writer:
    """An append while it holds the lock: it knows the head, and the file that the head points into."""

    def __init__(self, files: _Files, path: Path, now: datetime, *, fsync: bool) -> None:
        self._files, self._path, self._directory, self._fsync = files, path, files.directory, fsync
        self._now = now if now.tzinfo is UTC else now.astimezone(UTC)
        self._time = self._now.isoformat(timespec="microseconds")
        self._today = f"audit-{self._time[:10]}.jsonl"
        self.written: list[Written] = []
        self._head_fd = files.head()
        self.head = self._read_head()
        self._log_fd = self._open_log()

    def _read_head(self) -> Head:
        data, known = os.pread(self._head_fd, _HEAD_SIZE, 0), self._files.last_head
        if known is not None and data == known[0]:  # as nearly always: nobody else has written
            return known[1]
        try:
            head = read_head(data)
            self._files.last_head = data, head
            return head
        except ValueError as error:
            if any(is_log_name(name) for name in os.listdir(self._directory)):
                raise self._damaged("its head is missing or unreadable") from error
        # Written before the first record, so that a record without a head is never the trace of a crash.
        return self._move_head(Head(0, GENESIS, self._today, 0))

    def _open_log(self) -> int:
        # Create a file only if the head expects nothing in it yet: a log that was deleted must not start again.
        flags = os.O_APPEND | (os.O_CREAT if self.head.offset == 0 else 0)
        try:
            return self._files.log(self.head.file, flags)
        except FileNotFoundError as error:
            raise self._damaged(f"{self.head.file} is gone") from error

    def _damaged(self, why: str) -> AuditError:
        return AuditError(
            f"the audit log in {self._path} is damaged",
            why=f"{why}, by a power cut or by somebody's hand",
            next="see `redoma audit verify`; move the directory away to keep it as evidence and start a new log",
        )

    def put(self, kind: str, id: str, data: Mapping[str, Any]) -> Record:  # noqa: A002 - the record's own word
        """Write the record, then the head. A kill between the two leaves a log ahead of its head, which `recover`
        accepts.
        """
        record, line = seal(self.head.seq + 1, self._time, kind, id, data, self.head.hash)
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
        data = msgspec.json.encode(head).ljust(_HEAD_SIZE - 1) + b"\n"
        self._files.last_head = data, head
        os.pwrite(self._head_fd, data, 0)
        if self._fsync and head.offset == 0:
            # A head that is behind within its file does no harm, so it is synced only when the file changes.
            os.fsync(self._head_fd)
            os.fsync(self._directory)
        self.head = head
        return head

    def recover(self) -> None:
        """Make the log end where its head says, after a killed writer or a power cut."""
        ending = b'"hash":"%b"}\n' % self.head.hash.encode()
        if self.head.offset and os.pread(self._log_fd, len(ending), self.head.offset - len(ending)) != ending:
            raise self._damaged(f"{self.head.file} does not hold record {self.head.seq} where it was written")
        self._advance_head()
        for name in self._files.newer_than(self.head.file):
            # A power cut may have lost the heads of whole days; writing on here would begin a second chain. An empty
            # file was never ours: we write into a file only after the head has named it.
            if os.stat(name, dir_fd=self._directory, follow_symlinks=False).st_size:
                self.head = msgspec.structs.replace(self.head, file=name, offset=0)
                self._log_fd = self._open_log()
                self._advance_head()

    def _advance_head(self) -> None:
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

    def start_new_day(self, retention_days: int) -> None:
        """Continue in a new file on a new day. A clock set back changes nothing: the newest file stays the newest."""
        if self._today <= self.head.file:
            return
        oldest_kept = f"audit-{self._now - timedelta(days=retention_days):%Y-%m-%d}"
        names = sorted(os.listdir(self._directory))
        removed = self._endings([name for name in names if is_log_name(name)], oldest_kept)
        # The head before the file: if killed in between, the next append creates the file. The other way round, a clock
        # set back after the kill would leave a file newer than the one being written.
        self._move_head(Head(self.head.seq, self.head.hash, self._today, 0))
        self._log_fd = self._open_log()
        if removed:
            self.put("retention", "", {"days": retention_days, "removed": removed})
        # Oldest first, so that a kill halfway leaves a chain that starts right after a file named above.
        for name in names:
            if name < oldest_kept and (is_log_name(name) or is_torn_name(name)):
                os.unlink(name, dir_fd=self._directory)

    def _endings(self, logs: list[str], oldest_kept: str) -> list[dict[str, Any]]:
        """Return, for each file past its retention, the record that it ends with, as the following file names it."""
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
