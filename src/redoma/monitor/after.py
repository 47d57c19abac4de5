"""What follows from a round: it is remembered, somebody is told, and what has a remedy is mended.

The disk that is full is what a monitor is there to tell of. So where nothing can be remembered the round still counts
and is told, from what this process knows; only remedies wait, since nobody could say when they were tried.
"""

from __future__ import annotations

import logging

import msgspec

from ..lib.errors import AuditError, StoreError
from ..pipeline.executor import AsyncExecutor
from . import notify, remedy
from .aside import Aside
from .history import History
from .model import Deed, Held, Plan, Round, State
from .states import settle

_log = logging.getLogger("redoma.monitor")


class After:
    """Keeps what it was last able to read, for the time when it can't."""

    def __init__(self, plan: Plan, executor: AsyncExecutor, history: History) -> None:
        self._checks = {check.name: check for check in plan.checks}
        self._notifiers, self._executor, self._history = plan.notify, executor, history
        self._aside = Aside()
        self._held: dict[str, Held] = {}
        self._heard: dict[tuple[str, str], tuple[State, float]] = {}

    async def follow(self, found: Round) -> Round:
        """The round as it counts, with what was done because of it."""
        checks = self._checks.values()
        try:
            seen = self._history.add(found, checks)
            self._held = self._history.held()
        except StoreError as error:
            verdicts, self._held = settle(found.verdicts, self._held, checks, found.time)
            seen = msgspec.structs.replace(found, verdicts=tuple(verdicts))
            return await self._without_memory(seen, error)
        try:
            with self._history.alone() as alone:
                if not alone:  # a `watch` and a `check` at one time: the other one tells and mends
                    return seen
                self._heard.update(self._history.told())
                return msgspec.structs.replace(seen, deeds=(*await self._tell(seen), *await self._mend(seen)))
        except (StoreError, AuditError) as error:
            return await self._without_memory(seen, error)

    async def _without_memory(self, seen: Round, error: StoreError | AuditError) -> Round:
        _log.error("the history can't be kept: %s", error)
        problems = {**seen.problems, "history": str(error)}
        deeds = (*seen.deeds, *await self._tell(seen, remembering=False))
        return msgspec.structs.replace(seen, problems=problems, deeds=deeds)

    async def _tell(self, seen: Round, *, remembering: bool = True) -> list[Deed]:
        items = notify.due(seen, self._checks.values(), self._notifiers, self._heard)
        deeds = []
        async for item, failure in notify.send(items, self._notifiers, seen, self._executor, self._aside):
            deed = notify.deed_of(item, seen.time, failure)
            if deed.ok:
                self._heard[item.notifier, deed.check] = deed.state, seen.time
                if remembering:
                    self._history.tell(item.notifier, deed.check, deed.state, seen.time)
            if item.event == "silent":
                continue
            _noted(deed)
            deeds.append(deed)
            if remembering:
                self._history.note(deed)
        return deeds

    async def _mend(self, seen: Round) -> list[Deed]:
        deeds = []
        for verdict, cure in remedy.due(seen, self._checks, self._held, self._history):
            deed = await remedy.attempt(verdict, cure, seen.time, self._executor, self._history)
            _noted(deed)
            deeds.append(deed)
        return deeds


def _noted(deed: Deed) -> None:
    """One line of the log."""
    told = {"event": deed.kind, "check": deed.check, "state": deed.state.word, "run": deed.run, "why": deed.text}
    level = logging.INFO if deed.ok else logging.WARNING
    _log.log(level, "%s of %s, %s: %s", deed.kind, deed.check, deed.name, deed.text, extra=told)
