"""What a test could leave behind on this host."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from pace import SLOW


def children_of(pid: int) -> set[int]:
    found: set[int] = set()
    with suppress(FileNotFoundError, ProcessLookupError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended takes no other's children
                found.update(map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split()))
    return found


def descendants(roots: Iterable[int] | None = None) -> set[int]:
    """Return every live process below this one, or below the given ones."""
    found: set[int] = set()
    todo = [os.getpid()] if roots is None else list(roots)
    while todo:
        new = children_of(todo.pop()) - found
        found |= new
        todo.extend(new)
    return found


def scratch_directories() -> set[str]:
    return {name for name in os.listdir(tempfile.gettempdir()) if name.startswith("redoma-")}


def _command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")[:200]
    except (FileNotFoundError, ProcessLookupError):
        return "it has ended"


class Before:
    """What existed when this was made. `check` fails if there is more later."""

    def __init__(self) -> None:
        self._processes, self._scratch = descendants(), scratch_directories()

    def check(self, keepers: Iterable[int] = ()) -> None:
        """Fail if there is more. Processes below `keepers` don't count: they are kept ready for a next run."""
        deadline = time.monotonic() + 60 * SLOW  # monty's pool reaps its warm worker a moment after it is closed
        while (left := self._left(keepers)) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not left, f"left behind: {[_command_of(pid) for pid in left]}"
        assert scratch_directories() <= self._scratch, "a scratch directory was left behind"

    def _left(self, keepers: Iterable[int]) -> set[int]:
        # Those below keepers are read last: processes that started or ended meanwhile don't count as left.
        left = descendants() - self._processes
        return left and (left - descendants(keepers)) & descendants()
