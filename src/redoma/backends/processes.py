"""Whether a process is still the one that it was: a process id is given to another process later."""

from __future__ import annotations

import os


def start_time(pid: int) -> int | None:
    """When a process was started, in ticks since the boot; None if there is none, or /proc doesn't show it."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError):
        return None


def exists(pid: int) -> bool:
    """Whether there is a process with this id, whosever it is."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # the second: it can't be the id of a process
        return False
    except PermissionError:
        return True
    return True
