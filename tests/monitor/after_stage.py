"""Rounds with given findings; what follows from them is real."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from redoma import Config
from redoma.config import ApprovalConfig, AuditConfig, NativeEntry
from redoma.monitor.actions import Responder
from redoma.monitor.history import NAME, History
from redoma.monitor.model import Check, CheckResult, Notifier, Plan, Remedy, Round, State
from redoma.pipeline.executor import AsyncExecutor

NOON = 1_767_268_800.0  # 2026-01-01 12:00 UTC
OK, WARNING, CRITICAL, UNKNOWN = State


def found(states: Mapping[str, State] | State, time: float = NOON, message: str = "", **fields: Any) -> Round:
    """Return a round as the rules leave it."""
    given = states if isinstance(states, Mapping) else {"disk": states}
    verdicts = [
        CheckResult(check=check, state=state, found=state, message=message, sandbox="monty", seconds=0.001)
        for check, state in given.items()
    ]
    return Round(**{"time": time, "host": "web-1", "facts": {}, "verdicts": tuple(verdicts), **fields})


class Place:
    """The state of one machine. A second one at the same path is the same machine after a restart."""

    def __init__(self, directory: Path, *, approver: str = "deny", whitelist: Iterable[str] | None = None) -> None:
        self.directory = directory
        state = directory / "state"
        entry = NativeEntry(name="shell", default_work_dir=directory, command_whitelist=_tuple(whitelist))
        self.config = Config(
            audit=AuditConfig(directory=state / "audit"),
            state=state,
            approval=ApprovalConfig(approver=approver),  # type: ignore[arg-type] # one of the words
            entries={"ops:shell": entry},
        )
        self.history = History(state / NAME)

    def responder(self, *checks: Check, notify: Mapping[str, Notifier] | None = None) -> Responder:
        plan = Plan(checks=checks or (Check(name="disk", rule="True"),), notify=dict(notify or {}))
        return Responder(plan, AsyncExecutor(self.config, backends=self._backends()), self.history)

    def _backends(self) -> list[Any]:
        from redoma.backends.native.backend import NativeBackend

        return [NativeBackend()]


def with_remedy(command: str, **fields: Any) -> Check:
    return Check(name="disk", rule="True", remedy=Remedy(run="ops:shell", command=command, **fields))


def _tuple(words: Iterable[str] | None) -> tuple[str, ...] | None:
    return None if words is None else tuple(words)
