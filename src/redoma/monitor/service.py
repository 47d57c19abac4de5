"""One round: collects facts, evaluates every rule, logs which sandbox evaluated it, and acts on the result."""

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
from .actions import Responder
from .collect import BoundedCalls, collect
from .history import History
from .model import Check, CheckResult, Facts, Plan, Round, State
from .rules import RuleResult, evaluate, tidy

_MAX_PARALLEL = 4  # rules at a time; Monty has at least as many workers, so that no rule spends its time waiting
log = logging.getLogger("redoma.monitor")


class Monitor:
    """Makes the rounds of one plan. Keep it between rounds: it knows which calls still hang."""

    def __init__(
        self, plan: Plan, executor: AsyncExecutor, history: History | None = None, *, only: Collection[str] = ()
    ) -> None:
        """`only` names the checks to make; empty for all. Without a `history`, a round has no consequences: no notices
        are sent, and no remedies are run. Raises `InvalidRequest` for an unknown check.
        """
        must_be_known("check", only, [check.name for check in plan.checks])
        self.plan, self._executor = plan, executor
        self._checks = [check for check in plan.checks if not only or check.name in only]
        self._calls = BoundedCalls()
        self._responder = Responder(plan, executor, history) if history else None

    async def round(self) -> Round:
        """Make one round and act on it. Raises `RedomaError` only if nothing can be checked at all."""
        latest = await self._check_all()
        if self._responder:
            latest = await self._responder.respond(latest)
        metrics.CHECK_STATE.set({(verdict.check,): float(verdict.state) for verdict in latest.verdicts})
        metrics.CHECK_SECONDS.set({(verdict.check,): verdict.seconds for verdict in latest.verdicts})
        metrics.ROUND_TIME.set({(): latest.time})
        return latest

    async def _check_all(self) -> Round:
        facts, problems = await collect(self.plan.collect, self._executor, self._calls)
        for name, why in problems.items():
            log.warning("the fact %s is missing: %s", name, why, extra={"event": "fact", "fact": name, "why": why})
        places = asyncio.Semaphore(_MAX_PARALLEL)

        async def check_in_turn(check: Check) -> CheckResult:
            async with places:
                return await self._check(check, facts, problems)

        verdicts = await asyncio.gather(*map(check_in_turn, self._checks))
        return Round(time=facts["now"], host=facts["host"], facts=facts, problems=problems, verdicts=tuple(verdicts))

    async def _check(self, check: Check, facts: Facts, problems: dict[str, str]) -> CheckResult:
        try:
            result = await evaluate(check, facts, self._executor)
        except RedomaError as error:  # about this rule only, such as an invalid policy of the user
            result = RuleResult(
                CheckResult(check=check.name, state=State.UNKNOWN, found=State.UNKNOWN, message=tidy(str(error)))
            )
        verdict = result.verdict
        missing = [name for name in problems if name in result.facts]
        if verdict.state is State.UNKNOWN and missing:
            why = ", ".join(f"{name} is missing ({problems[name]})" for name in missing)
            verdict = msgspec.structs.replace(verdict, message=tidy(f"{why}; {verdict.message}"))
        _log_verdict(verdict, result.monty_error)
        return verdict


def _log_verdict(verdict: CheckResult, monty_error: str) -> None:
    """Log which sandbox evaluated which rule, for how long, and the result."""
    by = f"{verdict.sandbox or 'no sandbox'} in {verdict.seconds:.3f} s, run {verdict.run or 'none'}"
    why = (f": {verdict.message}" if verdict.message else "") + (f" (monty: {monty_error})" if monty_error else "")
    fields = {
        "event": "rule",
        "check": verdict.check,
        "sandbox": verdict.sandbox,
        "seconds": verdict.seconds,
        "state": verdict.state.word,
        "run": verdict.run,
        "why": verdict.message,
        "tried": monty_error,
    }
    log.info("rule %s: %s, by %s%s", verdict.check, verdict.state.word, by, why, extra=fields)


class LogFile(logging.Handler):
    """Writes the log as JSON lines, one file a day."""

    _FIELDS = ("event", "check", "sandbox", "seconds", "state", "run", "why", "tried", "fact")

    def __init__(self, state: Path) -> None:
        super().__init__(logging.INFO)
        self._file = DailyLog(state / "logs" / "monitor.log")

    def emit(self, record: logging.LogRecord) -> None:
        fields = {name: getattr(record, name) for name in self._FIELDS if hasattr(record, name)}
        try:
            self._file.add({"level": record.levelname.lower(), "message": record.getMessage(), **fields})
        except AuditError as error:  # the round is about to report the full disk
            logging.getLogger("redoma").warning("%s", error)
