"""What policy says of one thing in a cell and on the host, side by side: for `check` and `policy explain`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from redoma.models import Decision, Evaluation, Finding, Request

if TYPE_CHECKING:
    from redoma.config import Config
    from redoma.policy import Leveled

COLOURS = {Decision.ALLOW: "green", Decision.PROMPT: "yellow", Decision.FORBID: "red"}
EXIT = {Decision.ALLOW: 0, Decision.PROMPT: 1, Decision.FORBID: 2}

_PLACES = {"cell": "auto", "host": "native"}


class Verdict(NamedTuple):
    """What is said of it in one place."""

    where: str
    """`cell`, `host`, or the backend that was named."""
    request: Request
    evaluation: Evaluation
    level: Leveled
    backend: str
    """The one that would run it; empty if none can."""

    @property
    def decision(self) -> Decision:
        return self.evaluation.decision


def verdicts(
    config: Config, what: dict[str, Any], backend: str | None, seconds: float | None, pack: str | None
) -> list[Verdict]:
    """On the backend that was named; else in a cell and on the host. The last one is what counts."""
    from redoma.models import Submission
    from redoma.pipeline.executor import AsyncExecutor
    from redoma.pipeline.intake import build
    from redoma.policy import level_of

    executor = AsyncExecutor(config)  # it starts nothing before something runs
    limits = {} if seconds is None else {"time": seconds}
    found = []
    for where, name in (_PLACES if backend is None else {backend: backend}).items():
        request = build(config, executor.backends, {"backend": name, "limits": limits}, **what)
        evaluation = executor.check(request, pack)
        level = level_of(request, evaluation)
        found.append(Verdict(where, request, evaluation, level, executor.place(Submission(request))))
    return found


def side_by_side(places: Sequence[Verdict]) -> Iterator[tuple[Finding, list[Decision], dict[str, str]]]:
    """Each finding of any place; what it comes to in each, and why it decides nothing there. What is found may differ:
    on the host a command works in a directory."""
    found: dict[tuple[object, ...], dict[str, Finding]] = {}
    for place in places:
        for each in place.evaluation.findings:
            found.setdefault((each.line, each.column, each.rule, each.text), {})[place.where] = each
    for there in found.values():
        decisions = [there[place.where].decision if place.where in there else Decision.ALLOW for place in places]
        reasons = {where: finding.out_of_reach for where, finding in there.items() if finding.out_of_reach}
        yield list(there.values())[-1], decisions, reasons


def heads(places: Sequence[Verdict]) -> str:
    """The title of the columns; none where there is only one."""
    return "  ".join(f"{place.where:6}" for place in places) if len(places) > 1 else ""


def columns(decisions: Sequence[Decision]) -> str:
    """One decision for each place; alone, it needs no padding."""
    if len(decisions) == 1:
        return click.style(decisions[0].value, fg=COLOURS[decisions[0]])
    return "  ".join(click.style(f"{decision.value:6}", fg=COLOURS[decision]) for decision in decisions)
