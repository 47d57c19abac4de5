"""How a run ended: turns the raw facts that a backend has into the `Outcome` that all other code uses.

Jail, docker and native learn of the end in different ways. Each records what it knows as an `Ending`. Status, message
and exit code are decided here, so that the same end reads the same on every backend.
"""

from __future__ import annotations

import signal
from typing import Any

import msgspec

from ..models import Display, Isolation, Limits, Request, Seed, Status, Usage
from .base import Outcome, OverlayEntry, exceeded

_LIMIT_SIGNALS: dict[int, str] = {signal.SIGXFSZ: "file_size", signal.SIGXCPU: "cpu"}


class FinalStatus(msgspec.Struct, frozen=True):
    """How a run ended, as its result says it."""

    status: Status
    error: str | None = None
    exit_code: int | None = None
    limit: str = ""
    """The limit that ended the run, if the status alone does not imply it."""


def _by_signal(number: int) -> str:
    try:
        return f"it was ended by {signal.Signals(number).name}"
    except ValueError:
        return f"it was ended by signal {number}"


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend knows of the end of one run. The defaults mean that nothing of the kind happened."""

    exit_code: int | None = None
    """The program's own."""
    signal: int | None = None
    """The signal that ended the program."""
    names_limit: bool = True
    """Whether SIGXCPU and SIGXFSZ can only come from limits that we have set."""
    out_of_memory: bool = False
    """Whether the kernel's OOM killer killed a process of the run."""
    flooded: bool = False
    """Whether it printed more than allowed before we ended it for any other reason. It may have ended by itself
    since.
    """
    stopped: Status | None = None
    """The status for which we ended the run, if it had not ended by itself before."""
    limit: str = ""
    """The limit that the run exceeded, as a field of `Limits`."""
    memory_error: bool = False
    """Whether the code ended with a MemoryError: nobody ended it, and how much it used is not known."""
    killed: str = ""
    """Why the run was killed, if not for one of its limits."""
    broken: str = ""
    """The step that failed before the program could start, and why: "start make: No such file or directory"."""
    error: str | None = None
    """The program's own error message."""

    @property
    def verdict(self) -> FinalStatus:
        """The status. The first cause that applies counts: what the kernel did, what we did, what the limits did, and
        last what the program did itself.
        """
        if self.out_of_memory:
            return FinalStatus(Status.MEMORY)
        if self.flooded:
            return FinalStatus(Status.OUTPUT)
        if self.stopped is not None:
            return FinalStatus(self.stopped, limit=self.limit)
        if self.limit:
            status = {"memory": Status.MEMORY, "cpu": Status.TIMEOUT}.get(self.limit, Status.KILLED)
            return FinalStatus(status, limit=self.limit)
        if self.memory_error:
            return FinalStatus(Status.MEMORY, limit="memory")
        if self.killed:
            return FinalStatus(Status.KILLED, self.killed)
        if self.broken:
            return FinalStatus(Status.ERROR, f"could not {self.broken}", self.exit_code)
        if self.signal is not None:
            limit = _LIMIT_SIGNALS.get(self.signal, "") if self.names_limit else ""
            return FinalStatus(Status.KILLED, None if limit else _by_signal(self.signal), 128 + self.signal, limit)
        return FinalStatus(Status.OK if self.exit_code == 0 else Status.ERROR, self.error or None, self.exit_code)

    def outcome(
        self,
        limits: Limits,
        *,
        isolation: Isolation,
        usage: Usage,
        value: Any = None,
        exception: str | None = None,
        seed: Seed | None = None,
        files: dict[str, bytes] | None = None,
        left_out: dict[str, str] | None = None,
        entries: tuple[OverlayEntry, ...] | None = None,
        displays: tuple[Display, ...] = (),
    ) -> Outcome:
        """Return the outcome of a run that ended like this. `value` is used only if it succeeded, `exception` only if
        it failed. `exception` may come from the guest: it is ignored if it is not a name.
        """
        verdict = self.verdict
        status, error = verdict.status, verdict.error
        if verdict.limit not in ("", "memory"):
            error = exceeded(verdict.limit, limits)
        elif verdict.limit and self.memory_error:
            error = f"it ended with a MemoryError; it may use {limits.memory} bytes of memory"
        return Outcome(
            status=status,
            exit_code=verdict.exit_code,
            value=value if status is Status.OK else None,
            exception=_name(exception) if status in (Status.ERROR, Status.MEMORY) else None,
            error=error,
            limit=verdict.limit,
            isolation=isolation,
            usage=usage,
            seed=seed,
            files=files or {},
            left_out=left_out or {},
            entries=entries,
            displays=displays,
        )


def _name(claimed: str | None) -> str | None:
    return claimed if claimed and len(claimed) < 200 and claimed.isidentifier() else None


def not_started(request: Request, broken: str) -> str:
    """The step that failed before the program could start, with what to do about it where that is an interpreter."""
    if not request.interpreter or not broken.startswith("start "):
        return broken
    return (
        f"{broken}. It is what runs {request.language} code, and has to be among the programs that a run sees: those "
        "below /usr, or those of its image. Install it there, or name another one as "
        f"`languages.{request.language}.argv` in redoma.yaml"
    )
