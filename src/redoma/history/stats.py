"""Statistics of the runs of a period, and the data for a report's charts."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Literal

import msgspec

from ..audit import Record
from ..audit.records import read_intent
from ..lib.errors import AuditError

EDGES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""Upper ends of the histogram's bars, in seconds; one more bar counts everything longer."""
_MAX_HOURS = 48
_MAX_DAYS = 120


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of a period, counted."""

    runs: int
    by_status: dict[str, int]
    by_backend: dict[str, int]
    """The number of runs by the backend that ran them. A refused run has no backend, and is not counted."""
    by_requester: dict[str, int]
    interrupted: int
    """The number of runs with an intent and no outcome, because they have not ended, or were interrupted."""
    duration_p50: float | None
    """The median duration in seconds, of the runs that have an outcome."""
    duration_p95: float | None
    first: str | None
    """The time of the first record; None for an empty log."""
    last: str | None
    by_rule: dict[str, int]
    """In how many runs each rule matched."""
    by_level: dict[str, int]
    by_decision: dict[str, int]
    per: Literal["hour", "day", "week"]
    over_time: list[tuple[str, int]]
    """The number of runs for each hour, day or week from the first to the last, including 0; UTC."""
    durations: list[int]
    """How many took at most each of `EDGES`, and last those that took longer."""


def overview(records: Iterable[Record]) -> Overview:
    """Count the recorded runs in one pass. For a record that can't be decoded, only the plain fields count."""
    hours, rules, levels, decisions = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    statuses, backends, requesters = Counter[str](), Counter[str](), Counter[str]()
    durations, unfinished = array("d"), set[str]()
    first, last = None, None
    for record in records:
        first, last = first or record.time, record.time
        if record.kind == "intent":
            hours[record.time[:13]] += 1
            unfinished.add(record.id)
            requesters[str(record.data.get("requester") or "unknown")] += 1
            with suppress(AuditError):
                intent = read_intent(record)
                rules.update({*intent.rules})
                levels[intent.level.value] += 1
                decisions[intent.decision.value] += 1
        elif record.kind == "outcome":
            unfinished.discard(record.id)
            statuses[str(record.data.get("status") or "unknown")] += 1
            if backend := record.data.get("backend"):
                backends[str(backend)] += 1
            if isinstance(duration := record.data.get("duration"), int | float):
                durations.append(duration)
    ordered = sorted(durations)
    bars = Counter(bisect_left(EDGES, duration) for duration in ordered)
    per, over_time = _over_time(hours)
    return Overview(
        runs=hours.total(),
        by_status=dict(statuses.most_common()),
        by_backend=dict(backends.most_common()),
        by_requester=dict(requesters.most_common()),
        interrupted=len(unfinished),
        duration_p50=_percentile(ordered, 0.50),
        duration_p95=_percentile(ordered, 0.95),
        first=first,
        last=last,
        by_rule=dict(rules.most_common()),
        by_level=dict(sorted(levels.items())),
        by_decision=dict(decisions.most_common()),
        per=per,
        over_time=over_time,
        durations=[bars[number] for number in range(len(EDGES) + 1)],
    )


def _percentile(ordered: list[float], share: float) -> float | None:
    """Return the smallest value such that at least this share of all values is not above it; None without values."""
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else None


def _over_time(hours: Counter[str]) -> tuple[Literal["hour", "day", "week"], list[tuple[str, int]]]:
    if not hours:
        return "day", []
    times = {datetime.fromisoformat(f"{hour}:00"): count for hour, count in hours.items()}
    first, last = min(times), max(times)
    if last - first < timedelta(hours=_MAX_HOURS):
        return "hour", _filled(times, first, last, timedelta(hours=1), "%Y-%m-%d %H:00")
    first = first.replace(hour=0)
    if last - first < timedelta(days=_MAX_DAYS):
        return "day", _filled(times, first, last, timedelta(days=1), "%Y-%m-%d")
    first -= timedelta(days=first.weekday())
    return "week", _filled(times, first, last, timedelta(weeks=1), "%Y-%m-%d")


def _filled(
    times: dict[datetime, int], first: datetime, last: datetime, step: timedelta, form: str
) -> list[tuple[str, int]]:
    counts = [0] * ((last - first) // step + 1)
    for time, count in times.items():
        counts[(time - first) // step] += count
    return [(f"{first + number * step:{form}}", count) for number, count in enumerate(counts)]
