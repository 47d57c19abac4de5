"""Runs on record, one flat row each: what was asked joined with what came of it, to be searched and exported.

One pass, a run at a time: what is held is only what has begun and not ended. So rows come in the order of their ends,
and at last those that have none.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from ..audit import Record
from ..lib.errors import InvalidRequest
from .recorded import found_by, pairs


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run as a row of a table."""

    id: str
    time: str
    """When it was asked for: ISO 8601, UTC."""
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
    """What was found, each once, in order."""
    approver: str = ""
    status: str = ""
    """Empty if there is no end on record: it still runs, or was cut short."""
    backend: str = ""
    """What ran it; for one that did not run, what was asked for."""
    exit_code: int | None = None
    duration: float | None = None
    """Seconds."""
    cpu: float | None = None
    memory: int | None = None
    """Bytes."""
    error: str = ""
    denied_by: str = ""
    changes: int | None = None
    """To its project."""
    result: str = ""


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """What to look for. Everything that is said must hold; of several values of one field, any."""

    until: str = ""
    """A time as `Run.time` has it; runs from then on are left out."""
    statuses: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    """Globs, such as `network.*`."""
    requesters: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    levels: tuple[str, ...] = ()
    decisions: tuple[str, ...] = ()
    text: str = ""
    """In what was asked for, its label or reason, its error or its result; whatever its case."""
    regex: str = ""
    """RE2, in the same places."""

    def fits(self, run: Run) -> bool:
        asked = (
            (self.statuses, run.status or "interrupted"),
            (self.requesters, run.requester),
            (self.backends, run.backend),
            (self.levels, run.level),
            (self.decisions, run.decision),
        )
        if any(wanted and value not in wanted for wanted, value in asked) or (self.until and run.time >= self.until):
            return False
        if self.rules and not any(fnmatch.fnmatchcase(rule, glob) for glob in self.rules for rule in run.rules):
            return False
        return self.fits_text((run.text, run.label, run.reason, run.error, run.result))

    def fits_text(self, texts: Iterable[str]) -> bool:
        texts = [text for text in texts if text]
        if self.text and not any(self.text.casefold() in text.casefold() for text in texts):
            return False
        return not self.regex or any(expression(self.regex).search(text) for text in texts)


def expression(pattern: str) -> Any:
    """An RE2 expression: it takes linear time, whatever it is and whatever it looks at."""
    from ..lib.text import compile_re2

    try:
        return compile_re2(pattern)
    except ValueError as error:
        raise InvalidRequest(
            f"{pattern[:80]!r} is not a valid RE2 expression",
            why=str(error),
            next="correct it; RE2 has no look-around and no back-references",
        ) from None


def search(records: Iterable[Record], query: Query) -> Iterator[Run]:
    """The runs that fit, in the order of their ends."""
    return (run for run in runs(records) if query.fits(run))


def runs(records: Iterable[Record]) -> Iterator[Run]:
    """Every run whose beginning is among the records."""
    for intent, outcome in pairs(records):
        yield _ended(_begun(intent), outcome) if outcome else _begun(intent)


def _begun(record: Record) -> Run:
    data = record.data
    return Run(
        id=record.id,
        time=record.time,
        requester=_text(data, "requester"),
        label=_text(data, "label"),
        entry=_text(data, "entry"),
        language=_text(data, "language"),
        text=_text(data, "code"),
        reason=_text(data, "reason"),
        policy=_text(data, "policy"),
        decision=_text(data, "decision"),
        level=_text(data, "level"),
        rules=tuple(dict.fromkeys(found_by(data))),
        approver=_text(data.get("approval"), "approver"),
        backend=_text(data, "backend"),
    )


def _ended(run: Run, record: Record) -> Run:
    data = record.data
    return msgspec.structs.replace(
        run,
        ended=record.time,
        status=_text(data, "status"),
        backend=_text(data, "backend") or run.backend,
        exit_code=_number(data, "exit_code"),
        duration=_number(data, "duration"),
        cpu=_number(data, "cpu"),
        memory=_number(data, "memory_used"),
        error=_text(data, "error"),
        denied_by=_text(data.get("denial"), "rule"),
        changes=_number(data.get("effect"), "changes"),
        result=_text(data, "result"),
    )


def _text(data: Any, name: str) -> str:
    return str(data.get(name) or "") if isinstance(data, dict) else ""


def _number(data: Any, name: str) -> Any:
    value = data.get(name) if isinstance(data, dict) else None
    return value if isinstance(value, (int, float)) else None
