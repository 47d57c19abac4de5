"""Recorded runs as flat rows (intent and outcome joined), for searching and exporting.

The log is read once, in order: only runs that have begun and not ended are in memory. Rows come in the order in which
the runs ended; those without an end come last.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from ..audit import Record
from ..audit.records import read_intent, read_outcome
from ..lib.errors import AuditError, InvalidRequest
from .recorded import pairs


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One run as a row of a table."""

    id: str
    time: str
    """When it was submitted: ISO 8601, UTC."""
    ended: str = ""
    requester: str = ""
    label: str = ""
    entry: str = ""
    """The configured executor that it was for."""
    language: str = ""
    text: str = ""
    reason: str = ""
    policy: str = ""
    decision: str = ""
    level: str = ""
    rules: tuple[str, ...] = ()
    """The matching rules, each once, in order."""
    approver: str = ""
    status: str = ""
    """Empty if no end is recorded, because the run has not ended, or was interrupted."""
    backend: str = ""
    """The backend that ran it; if it did not run, the requested one."""
    exit_code: int | None = None
    duration: float | None = None
    """Seconds."""
    cpu: float | None = None
    memory: int | None = None
    """Bytes."""
    error: str = ""
    denied_by: str = ""
    changes: int | None = None
    """The number of changes to its project."""
    result: str = ""


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """What to search for. All given fields must match. If a field has several values, one of them must match."""

    until: str = ""
    """A time in the form of `RunSummary.time`; runs from then on are left out."""
    statuses: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    """Globs, such as `network.*`."""
    requesters: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    levels: tuple[str, ...] = ()
    decisions: tuple[str, ...] = ()
    text: str = ""
    """Text to find in the code, label, reason, error or result, ignoring case."""
    regex: str = ""
    """An RE2 pattern for the same fields."""

    def fits(self, run: RunSummary) -> bool:
        asked = (
            (self.statuses, run.status or "interrupted"),
            (self.backends, run.backend),
            (self.levels, run.level),
            (self.decisions, run.decision),
        )
        if any(wanted and value not in wanted for wanted, value in asked) or (self.until and run.time >= self.until):
            return False
        if not self.fits_requester(run.requester):
            return False
        if self.rules and not any(fnmatch.fnmatchcase(rule, glob) for glob in self.rules for rule in run.rules):
            return False
        return self.fits_text((run.text, run.label, run.reason, run.error, run.result))

    def fits_requester(self, name: str) -> bool:
        """Return whether requests by this requester match. The owner of a key matches with any client: `key:maria`
        matches `key:maria e2b`.
        """
        return not self.requesters or name in self.requesters or name.partition(" ")[0] in self.requesters

    def fits_text(self, texts: Iterable[str]) -> bool:
        texts = [text for text in texts if text]
        if self.text and not any(self.text.casefold() in text.casefold() for text in texts):
            return False
        return not self.regex or any(expression(self.regex).search(text) for text in texts)


def expression(pattern: str) -> Any:
    """Compile an RE2 expression, which takes linear time on any text. Raises `InvalidRequest`."""
    from ..lib.text import compile_re2

    try:
        return compile_re2(pattern)
    except ValueError as error:
        raise InvalidRequest(
            f"{pattern[:80]!r} is not a valid RE2 expression",
            why=str(error),
            next="correct it; RE2 has no look-around and no back-references",
        ) from None


def search(records: Iterable[Record], query: Query) -> Iterator[RunSummary]:
    """Yield the runs that match, in the order in which they ended."""
    return (run for run in runs(records) if query.fits(run))


def runs(records: Iterable[Record]) -> Iterator[RunSummary]:
    """Yield every run whose beginning is among the records."""
    for intent, outcome in pairs(records):
        yield _row(intent, outcome)


def _row(begun: Record, ended: Record | None) -> RunSummary:
    try:
        intent = read_intent(begun)
        outcome = read_outcome(ended) if ended else None
    except AuditError:  # one unreadable record must not hide the others
        return RunSummary(id=begun.id, time=begun.time, ended=ended.time if ended else "", status="unknown")
    return RunSummary(
        id=begun.id,
        time=begun.time,
        ended=ended.time if ended else "",
        requester=intent.requester,
        label=intent.label,
        entry=intent.entry,
        language=intent.language,
        text=intent.code,
        reason=intent.reason,
        policy=intent.policy,
        decision=intent.decision.value,
        level=intent.level.value,
        rules=tuple(dict.fromkeys(intent.rules)),
        approver=intent.approval.approver if intent.approval else "",
        status=outcome.status.value if outcome else "",
        backend=(outcome.backend if outcome else "") or intent.backend,
        exit_code=outcome.exit_code if outcome else None,
        duration=outcome.duration if outcome else None,
        cpu=outcome.cpu if outcome else None,
        memory=outcome.memory_used if outcome else None,
        error=(outcome.error if outcome else "") or "",
        denied_by=outcome.denial.rule if outcome and outcome.denial else "",
        changes=outcome.effect.changes if outcome and outcome.effect else None,
        result=outcome.result if outcome else "",
    )
