"""Sessions: a cell (or container) that lives and answers many requests.

Theory of operation
-------------------

    AsyncSession ─▶ pipeline (policy, approval, audit, output) ─▶ Turn ─▶ Channel ══ frames ══▶ driver ─▶ worker
                     for every run, as for any other               here  │              in the cell  │
                                                                         └─ one long run of a backend └─▶ commands

- A session is one long run of a program of ours, the `driver`, on a backend that offers `control`. What it is told goes
  in by that run's input, what it says comes out by its output. So the jail and docker need nothing of their own.
- `driver` keeps everything going inside: it forks the `worker`, starts commands and background processes, reads and
  writes files, and passes output on. It runs no foreign code itself, so it answers while a run goes on.
- `worker` is the Python that keeps its variables. It has no thread of ours. Runs reach it by a direct line
  (`line`), or through the driver where descriptors can't be passed.
- `channel` is our end, and the boundary: every frame is bounded and checked, whoever sent it. `turn` is one run in an
  open session, as a backend: so policy, approval, the record and redaction are those of every run.
- `session` has what callers use, and `runs` what runs in it, as they see it.
- `session.fork` makes copies: the worker writes itself to a file in memory (`copying`, c/image.c), which is sealed
  (`image`), and a worker in a new cell of the same zygote becomes it. `overlay` is the project that a session is over.

What earlier code in a session can do: change what later code there finds and returns, since it is the same interpreter.
What it can't: exceed the session's limits, outlive it, keep it from being interrupted or killed, reach another session
or this process, or change the record of what was asked.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .session import AsyncSession, Session

__all__ = ["AsyncSession", "Session"]


def __getattr__(name: str) -> Any:
    # Lazily: a cell imports this package in a bare interpreter, where the imports of the other modules don't exist.
    if name in __all__:
        from . import session

        return getattr(session, name)
    raise AttributeError(name)
