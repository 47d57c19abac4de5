"""Whether a guest's interpreter must be told that it was forked. Loaded in the zygote.

After a fork, Python makes new locks, forgets the other threads and calls what modules have registered for this. In a
process of one thread, which holds no lock, that changes nothing but what those functions do; and it copies a quarter of
the pages that a guest copies until it is armed. So it is left out if only modules have registered something of which we
know that a guest doesn't need it. For forks of the code itself, all of it stays registered.
"""

from __future__ import annotations

import gc
import os
import sys

_NOT_NEEDED = {
    "random",  # draws a new seed, and so do we: see `guest.settle`
    "threading",  # forgets other threads, of which there are none
}
_KNOWN = (3, 14)
"""The last version of Python whose `PyOS_AfterFork_Child` was read: it does nothing else in a process of one thread."""


def are_reported() -> bool:
    """Return whether a guest's interpreter must be told of its fork, as far as we know."""
    modules = _registered_by()
    return modules is None or not modules <= _NOT_NEEDED or sys.version_info[:2] > _KNOWN


def _registered_by() -> set[str | None] | None:
    """Return the names of the modules that have registered functions for forks; None if that can't be found out.

    Also those of `.pth` files, which have run before us. The interpreter keeps the functions in three lists, which
    Python code can't get at; but the lists refer to a function that we register.
    """

    def ours() -> None:
        """Do nothing: it is registered for a moment only."""

    os.register_at_fork(before=ours, after_in_parent=ours, after_in_child=ours)
    lists = [holder for holder in gc.get_referrers(ours) if isinstance(holder, list)]
    for functions in lists:
        functions.remove(ours)
    if len(lists) != 3:
        return None
    return {getattr(function, "__module__", None) for functions in lists for function in functions}
