"""How a run ended: from the raw facts that a backend has to the `Outcome` that everybody else sees.

Jail, docker and native each learn of the end in their own way. They write down what they know as an `Ending`; what it
means (which status, which words, which exit code) is decided here, so that the same end reads the same everywhere.
"""

from __future__ import annotations

import signal
from typing import Any

import msgspec

from ..models import Isolation, Limits, Seed, Status, Usage
from .base import Entry, Outcome, exceeded


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend knows of the end of one run. As they stand, the fields say that nothing of the kind happened."""

    exit_code: int | None = None
    """The program's own."""
    signal: int | None = None
    """The signal that ended the program."""
    names_limit: bool = True
    """Whether SIGXCPU and SIGXFSZ can only come from limits that we have set."""
    out_of_memory: bool = False
    """Whether the kernel killed a process of the run for want of memory."""
    flooded: bool = False
    """Whether it printed more than it may, before we ended it for anything else. It may have ended by itself since."""
    stopped: Status | None = None
    """The status for which we ended the run, if it had not ended by itself before."""
    limit: str = ""
    """The limit that the run exceeded, as a field of `Limits`."""
    killed: str = ""
    """Why the run was killed, where that was for none of its limits."""
    broken: str = ""
    """The step that failed before the program could start, and why: "start make: No such file or directory"."""
    error: str | None = None
    """What the program says of its own failure."""

    def verdict(self, limits: Limits) -> tuple[Status, str | None, int | None]:
        """Status, error and exit code. The first cause that applies counts: what the kernel did, what we did, what the
        limits did, and last what the program did itself."""
        if self.out_of_memory:
            return Status.MEMORY, None, None
        if self.flooded:
            return Status.OUTPUT, None, None
        if self.stopped is not None:
            return self.stopped, exceeded(self.limit, limits) if self.limit else None, None
        match self.limit:
            case "":
                pass
            case "memory":
                return Status.MEMORY, None, None
            case "cpu":
                return Status.TIMEOUT, exceeded("cpu", limits), None
            case _:
                return Status.KILLED, exceeded(self.limit, limits), None
        if self.killed:
            return Status.KILLED, self.killed, None
        if self.broken:
            return Status.ERROR, f"could not {self.broken}", self.exit_code
        if self.signal is not None:
            return Status.KILLED, self._by_signal(self.signal, limits), 128 + self.signal
        return Status.OK if self.exit_code == 0 else Status.ERROR, self.error or None, self.exit_code

    def _by_signal(self, number: int, limits: Limits) -> str:
        """The limit that a signal stands for, or else its name."""
        if self.names_limit and number in (signal.SIGXFSZ, signal.SIGXCPU):
            return exceeded("file_size" if number == signal.SIGXFSZ else "cpu", limits)
        try:
            return f"it was ended by {signal.Signals(number).name}"
        except ValueError:
            return f"it was ended by signal {number}"

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
        entries: tuple[Entry, ...] | None = None,
    ) -> Outcome:
        """The outcome of a run that ended like this. `value` counts only if it went well, `exception` if it failed."""
        status, error, exit_code = self.verdict(limits)
        return Outcome(
            status=status,
            exit_code=exit_code,
            value=value if status is Status.OK else None,
            exception=exception if status in (Status.ERROR, Status.MEMORY) else None,
            error=error,
            isolation=isolation,
            usage=usage,
            seed=seed,
            files=files or {},
            left_out=left_out or {},
            entries=entries,
        )
