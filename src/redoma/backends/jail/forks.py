"""Whether a guest's interpreter must be told that it was forked. Loaded in the zygote.

After a fork, Python makes new locks, forgets the other threads and calls what modules have registered for this. In a
process of one thread, which holds no lock, that changes nothing but what those functions do; and it copies a quarter of
the pages that a guest copies until it is armed. So it is left out if only modules have registered something of which we
know that a guest doesn't need it. For forks of the code itself, all of it stays registered.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

_NOT_NEEDED = {
    "random",  # draws a new seed, and so do we: see `guest.settle`
    "threading",  # forgets other threads, of which there are none
}
_KNOWN = (3, 14)
"""The last version of Python whose `PyOS_AfterFork_Child` was read: it does nothing else in a process of one thread."""


class Registered:
    """Context manager: notes which modules register functions for forks while they are imported."""

    def __init__(self) -> None:
        self._modules: set[str | None] = set()

    def __enter__(self) -> Registered:
        self._register = os.register_at_fork

        def note(**functions: Any) -> None:
            self._modules.update(getattr(function, "__module__", None) for function in functions.values())
            self._register(**functions)

        os.register_at_fork = note
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        os.register_at_fork = self._register

    @property
    def needed(self) -> bool:
        """Whether a guest needs what was registered, as far as we know."""
        return not self._modules <= _NOT_NEEDED or sys.version_info[:2] > _KNOWN
