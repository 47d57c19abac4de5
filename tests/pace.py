"""How slow this machine is, for the deadlines of tests, and how much time there is for random ones."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable

SLOW = int(os.environ.get("REDOMA_SLOW", "1"))
"""How many times slower this machine is than an ordinary one; more than 1 for an emulated one."""
MANY = int(os.environ.get("REDOMA_MANY", "1"))
"""How many times as many random cases to try as usual: some after a change to what they are about."""


def least_cpu(work: Callable[[], object], tries: int = 3) -> float:
    """Return the least processor time, in seconds, that `work` took of this thread in some tries.

    Of this thread, because threads of other tests may run in this process; the least, because a neighbour that keeps
    the processor busy makes all work take longer.
    """
    least = math.inf
    for _ in range(tries):
        start = time.thread_time()
        work()
        least = min(least, time.thread_time() - start)
    return least
