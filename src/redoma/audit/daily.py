"""A plain log for people: one JSON line a record, one file a day, kept for some days. What must be tamper-evident is in
the audit log.

The standard library's rotating handler is not used: if two processes rotate at midnight, each renames the other's new
file away.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from ..lib.errors import AuditError
from ..lib.files import closing, write_all
from .files import locked, open_private, reporting

_KEEP_DAYS = 30


class DailyLog:
    """Writes the log. Holds nothing open, so threads, processes and forks may share it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, record: Mapping[str, Any]) -> None:
        """Add one record, with the time. Raises AuditError if it can't be written."""
        now = datetime.now(UTC)
        try:
            line = msgspec.json.encode({"timestamp": now.isoformat(timespec="microseconds"), **record}) + b"\n"
        except ValueError as invalid:
            raise AuditError(f"a record of {self.path} can't be written as JSON", why=str(invalid)) from invalid
        with reporting(f"{self.path} can't be written"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            while not self._append(line, now):
                continue

    def _append(self, line: bytes, now: datetime) -> bool:
        """Append a line. Returns False if the file was, or had to be, renamed: the next try gets a new one."""
        with closing(open_private(self.path, os.O_CREAT | os.O_APPEND)) as fd, locked(fd):
            # Another process may have renamed the file while we waited for its lock.
            if not self._is_current(fd):
                return False
            info = os.fstat(fd)
            written = f"{datetime.fromtimestamp(info.st_mtime, UTC):%Y-%m-%d}"
            if info.st_size and written < f"{now:%Y-%m-%d}" and self._rotate(written, now):
                return False
            # A process killed while writing leaves half a line: begin a new one.
            torn = info.st_size and os.pread(fd, 1, info.st_size - 1) != b"\n"
            try:
                write_all(fd, b"\n" * bool(torn) + line)
            except OSError:
                os.ftruncate(fd, info.st_size)
                raise
            return True

    def _is_current(self, fd: int) -> bool:
        try:
            return os.path.samestat(os.fstat(fd), os.lstat(self.path))
        except FileNotFoundError:
            return False

    def _rotate(self, written: str, now: datetime) -> bool:
        old = self.path.with_name(f"{self.path.name}.{written}")
        if os.path.lexists(old):
            return False  # the clock was set back: continue in today's file rather than overwrite a day
        os.rename(self.path, old)
        dated = re.compile(re.escape(self.path.name) + r"\.([0-9]{4}-[0-9]{2}-[0-9]{2})")
        oldest_kept = f"{now - timedelta(days=_KEEP_DAYS):%Y-%m-%d}"
        for name in os.listdir(self.path.parent):
            if (match := dated.fullmatch(name)) and match[1] < oldest_kept:
                (self.path.parent / name).unlink(missing_ok=True)
        return True
