"""One round: collect, judge every rule, log which sandbox judged it; then what follows from it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from pathlib import Path

import msgspec

from ..audit import DailyLog
from ..lib.errors import AuditError, RedomaError
from ..pipeline.executor import AsyncExecutor
from ..pipeline.intake import must_be_known
from ..telemetry import metrics
from .actions import Actions
from .collect import BoundedCalls, collect
from .history import History
from .model import Check, Facts, Plan, Round, State, Verdict
from .rules import Evaluated, evaluate, tidy

_AT_A_TIME = 4  # rules: as many as Monty has workers, so that none waits for long while its time already runs
log = logging.getLogger("redoma.monitor")


class Monitor:
    """Rounds of one plan. What hung in one is remembered in the next, so keep it."""

    def __init__(
        self, plan: Plan, executor: AsyncExecutor, history: History | None = None, *, only: Collection[str] = ()
    ) -> None:
        """`only`: the names of the checks to make, instead of all. Without a `history` nothing follows from a round:
        nobody is told, and nothing is mended."""
        must_be_known("check", only, [check.name for check in plan.checks])
        self.plan, self._executor = plan, executor
        self._checks = [check for check in plan.checks if not only or check.name in only]
        self._calls = BoundedCalls()
        self._actions = Actions(plan, executor, history) if history else None

    async def round(self) -> Round:
        """What is found now, and done because of it. Raises `RedomaError` only where nothing can be found at all."""
        found = await self._found()
        if self._actions:
            found = await self._actions.follow(found)
        metrics.CHECK_STATE.set({(verdict.check,): float(verdict.state) for verdict in found.verdicts})
        metrics.CHECK_SECONDS.set({(verdict.check,): verdict.seconds for verdict in found.verdicts})
        metrics.ROUND_TIME.set({(): found.time})
        return found

    async def _found(self) -> Round:
        facts, problems = await collect(self.plan.collect, self._executor, self._calls)
        for name, why in problems.items():
            log.warning("the fact %s is missing: %s", name, why, extra={"event": "fact", "fact": name, "why": why})
        places = asyncio.Semaphore(_AT_A_TIME)

        async def judge(check: Check) -> Verdict:
            async with places:
                return await self._judged(check, facts, problems)

        verdicts = await asyncio.gather(*map(judge, self._checks))
        return Round(time=facts["now"], host=facts["host"], facts=facts, problems=problems, verdicts=tuple(verdicts))

    async def _judged(self, check: Check, facts: Facts, problems: dict[str, str]) -> Verdict:
        try:
            found = await evaluate(check, facts, self._executor)
        except RedomaError as error:  # ours, about this rule: such as a policy of the user's that can't be used
            found = Evaluated(
                Verdict(check=check.name, state=State.UNKNOWN, found=State.UNKNOWN, message=tidy(str(error)))
            )
        verdict = found.verdict
        missing = [name for name in problems if name in found.uses]
        if verdict.state is State.UNKNOWN and missing:
            why = ", ".join(f"{name} is missing ({problems[name]})" for name in missing)
            verdict = msgspec.structs.replace(verdict, message=tidy(f"{why}; {verdict.message}"))
        note(verdict, found.tried)
        return verdict


def note(verdict: Verdict, tried: str = "") -> None:
    """One line of the log: which sandbox evaluated which rule, for how long, and what came of it."""
    told = {
        **{"event": "rule", "check": verdict.check, "sandbox": verdict.sandbox, "seconds": verdict.seconds},
        **{"state": verdict.state.word, "run": verdict.run, "why": verdict.message, "tried": tried},
    }
    log.info(
        "rule %s: %s, by %s in %.3f s, run %s%s%s",
        *(verdict.check, verdict.state.word, verdict.sandbox or "no sandbox", verdict.seconds, verdict.run or "none"),
        f": {verdict.message}" if verdict.message else "",
        f" (monty: {tried})" if tried else "",
        extra=told,
    )


class LogFile(logging.Handler):
    """The log as a file of JSON lines, one file a day."""

    _FIELDS = ("event", "check", "sandbox", "seconds", "state", "run", "why", "tried", "fact")

    def __init__(self, state: Path) -> None:
        super().__init__(logging.INFO)
        self._file = DailyLog(state / "logs" / "monitor.log")

    def emit(self, record: logging.LogRecord) -> None:
        told = {name: getattr(record, name) for name in self._FIELDS if hasattr(record, name)}
        try:
            self._file.add({"level": record.levelname.lower(), "message": record.getMessage(), **told})
        except AuditError as error:  # a full disk is what the round is about to tell
            logging.getLogger("redoma").warning("%s", error)
