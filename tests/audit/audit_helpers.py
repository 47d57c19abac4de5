"""Helpers for the tests of the audit log."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from redoma.audit import AuditLog

INTENT: dict[str, Any] = {"code": "print('Olá')", "backend": "fake", "requester": "ana"}


def fork(function: Callable[[], object]) -> int:
    """Run it in a child and return the pid. A fork, so that what the child does to itself stays there."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            function()
            code = 0
        finally:
            os._exit(code)  # never back into pytest
    return pid


def exit_code(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def opened_in(directory: Path) -> int:
    """How much of a directory this process has open. Elsewhere, other threads open and close files, too."""
    found = 0
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found += os.readlink(f"/proc/self/fd/{number}").startswith(str(directory))
    return found


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def on(day: int, hour: int = 12) -> datetime:
    return datetime(2026, 1, 1, hour, tzinfo=UTC) + timedelta(days=day)


def log_on(directory: Path, day: int, *, retention_days: int = 30, fsync: bool = False) -> AuditLog:
    """Return the log, with a clock that stands still on a day."""
    return AuditLog(directory, retention_days=retention_days, fsync=fsync, now=lambda: on(day))


def run_days(directory: Path, *days: int, retention_days: int = 30) -> AuditLog:
    """Record one run (two records) on each of these days. Returns the log as of the last day."""
    for day in days:
        log = log_on(directory, day, retention_days=retention_days)
        log.append("intent", f"run{day}", INTENT)
        log.append("outcome", f"run{day}", {"status": "ok"})
    return log
