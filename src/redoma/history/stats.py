"""The runs of a period in numbers: `AuditLog.stats`, and what a report draws beside it."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Literal

import msgspec

from ..audit import Record, Stats
from ..audit.read import stats
from ..audit.records import read_intent, read_outcome
from ..lib.errors import AuditError

EDGES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""Seconds that part the bars of the histogram; the last is of all that took longer."""
_MAX_HOURS = 48
_MAX_DAYS = 120


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """What `Stats` doesn't have."""

    stats: Stats
    by_rule: dict[str, int]
    """In how many runs each was found."""
    by_level: dict[str, int]
    by_decision: dict[str, int]
    per: Literal["hour", "day", "week"]
    over_time: list[tuple[str, int]]
    """The runs of each hour, day or week from the first to the last, those without any too; UTC."""
    durations: list[int]
    """How many took at most each of `EDGES`, and last those that took longer."""


def overview(records: Iterable[Record]) -> Overview:
    hours, rules, levels, decisions = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    durations = [0] * (len(EDGES) + 1)

    def passing() -> Iterator[Record]:
        """Count records as they pass by: they are read once, and not kept."""
        for record in records:
            with suppress(AuditError):  # of a record that is not understood only the time counts
                if record.kind == "intent":
                    hours[record.time[:13]] += 1
                    intent = read_intent(record)
                    rules.update({*intent.rules})
                    levels[intent.level.value] += 1
                    decisions[intent.decision.value] += 1
                elif record.kind == "outcome":
                    durations[bisect_left(EDGES, read_outcome(record).duration)] += 1
            yield record

    counted = stats(passing())
    per, over_time = _over_time(hours)
    return Overview(
        stats=counted,
        by_rule=dict(rules.most_common()),
        by_level=dict(sorted(levels.items())),
        by_decision=dict(decisions.most_common()),
        per=per,
        over_time=over_time,
        durations=durations,
    )


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
