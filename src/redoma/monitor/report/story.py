"""What every kind of report tells, gathered once; and how numbers and times are written."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, NamedTuple

from ...redaction import Redactor, clean
from ..history import DAY, History, Spell
from ..model import Check, Deed, Round, State, Verdict
from ..series import Plot, numbers, plots

_MOST_DEEDS = 50
_MOST_POINTS = 240

Points = list[tuple[float, float]]


class Story(NamedTuple):
    seen: Round
    checks: dict[str, Check]
    begin: float
    """From when on the history is shown."""
    curves: list[tuple[Plot, Points]]
    spells: dict[str, list[Spell]]
    deeds: list[Deed]

    @property
    def verdicts(self) -> list[Verdict]:
        """The most urgent first."""
        return sorted(self.seen.verdicts, key=lambda verdict: (-verdict.state.urgency, verdict.check))

    @property
    def counts(self) -> dict[State, int]:
        states = [verdict.state for verdict in self.seen.verdicts]
        return {state: states.count(state) for state in sorted(State, key=lambda state: -state.urgency)}

    @property
    def facts(self) -> Any:
        """Without secrets: lines of a log, or the answer of a server, may hold some."""
        return _redacted(self.seen.facts, Redactor())

    @property
    def summary(self) -> str:
        """In a few words."""
        counts = self.counts
        bad = [f"{count} {state.word}" for state, count in counts.items() if count and state is not State.OK]
        if bad:
            return ", ".join(bad)
        return "all is well" if counts[State.OK] else "nothing was checked"


def gather(seen: Round, history: History | None, checks: Iterable[Check], span: float = DAY) -> Story:
    since, now = seen.time - span, numbers(seen.facts)
    chosen = plots([*now, *(history.names(since) if history else [])])
    # What was seen while the clock was ahead is kept, and is for nobody to see until it is due.
    spells = [spell for spell in history.spells(since) if spell.since <= seen.time] if history else []
    curves = []
    for name, plot in chosen.items():
        points = [point for point in history.series(name, since) if point[0] <= seen.time] if history else []
        if not points and name in now:
            points = [(seen.time, now[name])]
        curves.append((plot, fewer(points)))
    times = [points[0][0] for _, points in curves if points] + [spell.since for spell in spells]
    deeds = history.deeds(since)[-_MOST_DEEDS:] if history else list(seen.deeds)
    return Story(
        seen=seen,
        checks={check.name: check for check in checks},
        begin=max(since, min(times, default=seen.time)),
        curves=curves,
        spells={check: [spell for spell in spells if spell.check == check] for check in {s.check for s in spells}},
        deeds=deeds[::-1],
    )


def _redacted(value: Any, redactor: Redactor) -> Any:
    match value:
        case str():
            return clean(value, redactor)[0]
        case dict():
            return {clean(str(key), redactor)[0]: _redacted(item, redactor) for key, item in value.items()}
        case list() | tuple():
            return [_redacted(item, redactor) for item in value]
    return value


def fewer(points: Points, most: int = _MOST_POINTS) -> Points:
    """No more points than can be told apart, with every peak still there."""
    if len(points) <= most:
        return points
    first, last = points[0][0], points[-1][0]
    highest: dict[int, tuple[float, float]] = {}
    for time, value in points:
        at = int((time - first) / (last - first or 1.0) * (most - 1))
        if at not in highest or value > highest[at][1]:
            highest[at] = time, value
    return list(highest.values())


def amount(value: float, unit: str = "") -> str:
    """As people write it."""
    digits = 0 if abs(value) >= 100 or value == int(value) else 1 if abs(value) >= 1 else 2
    return f"{value:.{digits}f} {unit}".strip()


def lasting(seconds: float) -> str:
    """A length of time, in its two largest units."""
    seconds = max(0, round(seconds))
    parts = []
    days = () if seconds < 2 * 86400 else (("d", 86400),)
    for unit, size in (*days, ("h", 3600), ("min", 60), ("s", 1)):
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2]) or "0 s"


def quick(seconds: float) -> str:
    """How long a rule took."""
    return f"{seconds * 1000:.{0 if seconds > 0.01 else 1}f} ms" if seconds < 1 else f"{seconds:.1f} s"


def moment(seconds: float, form: str = "%Y-%m-%d %H:%M:%S UTC") -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime(form)
    except (ValueError, OverflowError, OSError):
        return "?"


def standing(verdict: Verdict, now: float) -> str:
    """Since when it is so, and what may come."""
    since = f"for {lasting(now - verdict.since)}" if verdict.since and now - verdict.since >= 1 else "just now"
    if verdict.found is not verdict.state and verdict.found is not State.OK:
        since += f"; found {verdict.found.word}, which has to last"
    return since
