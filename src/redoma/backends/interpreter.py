"""What guests do to the interpreter that will run the code. Loaded in cells. In containers, the text of this file is
inserted into `docker/guest.py`, so it may use only the standard library of Python 3.8.
"""

from __future__ import annotations

import io
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Through(io.FileIO):
    """An unbuffered stream. Unlike a plain unbuffered file, it completes writes that a signal interrupted or a
    non-blocking pipe took only in part.
    """

    def write(self, data: Any) -> int:
        done = super().write(data) or 0
        if done != len(data):
            view = memoryview(data).cast("B")
            while done < len(view):
                done += super().write(view[done:]) or 0
        return done


def allow_calls(depth: int, ours: int) -> None:
    """Let the code make calls `depth` deep, not counting the frames below it. `ours` is the number of frames from here
    to its first call.

    The interpreter counts from the bottom of the stack, and refuses a limit that is not above what is in use.
    """
    used = 1
    while True:
        try:
            sys.setrecursionlimit(used)
            break
        except RecursionError:
            used += 1
    sys.setrecursionlimit(used + depth + ours)
