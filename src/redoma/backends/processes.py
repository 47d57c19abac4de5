"""Tells whether a pid still belongs to the same process: pids are reused."""

from __future__ import annotations

import os


def start_time(pid: int) -> int | None:
    """Return when a process was started, in ticks since boot; None if there is none, or /proc doesn't show it."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError):
        return None


def exists(pid: int) -> bool:
    """Return whether there is a process with this pid, of any user."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # OverflowError: it can't be a pid
        return False
    except PermissionError:
        return True
    return True
