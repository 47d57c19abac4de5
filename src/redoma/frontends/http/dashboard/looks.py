"""Prepare runs, diffs and measurements for the templates. All functions are pure; the time is passed in."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from ....lib.sanitise import sanitise, visible
from ....models import Change
from ..numbers import Sample
from ..run_table import Row

MAX_SHOWN = 64 << 10
"""Maximum characters of an output, a piece of code or a diff on a page."""
_MAX_LINES = 2000
_MAX_DISPLAYS = 50
_HOUR = 3600.0
_NONE = "·"
PICTURES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
}
_GOOD, _BAD, _SOFT = {"ok"}, {"error", "failed", "timeout", "memory", "output", "killed"}, {"forbidden", "denied"}


def tone(state: str, status: str = "") -> str:
    """Return the tone of a state or status, which sets its colour: good, bad, busy, asks or quiet."""
    if state in ("running", "queued"):
        return "busy"
    if state in ("waiting", "open"):
        return "asks"
    word = status or state
    if word in _GOOD or word in ("approved", "used", "allow", "applied"):
        return "good"
    if word in _BAD or word in ("interrupted", "forbid", "broken", "critical"):
        return "bad"
    return "asks" if word in _SOFT or word in ("prompt", "pending", "kept", "warning") else "quiet"


class CodeLine(NamedTuple):
    """A line of code with its findings."""

    number: int
    text: str
    findings: tuple[Any, ...]


def lines(text: str, findings: Iterable[Any]) -> tuple[list[CodeLine], bool]:
    """Return code as numbered lines with the findings on each, and whether some was left out."""
    by_line: dict[int, list[Any]] = {}
    for finding in findings:
        by_line.setdefault(finding["line"], []).append(finding)
    whole = visible(text.removesuffix("\n"))
    cut = len(whole) > MAX_SHOWN
    rows = whole[:MAX_SHOWN].split("\n")
    shown = [CodeLine(number, row, tuple(by_line.get(number, ()))) for number, row in enumerate(rows[:_MAX_LINES], 1)]
    return shown, cut or len(rows) > _MAX_LINES


def printed(text: str) -> tuple[str, bool]:
    """Return output as text that is safe to show, and whether some was left out."""
    return sanitise(text[:MAX_SHOWN]), len(text) > MAX_SHOWN


def diff(text: str) -> tuple[list[tuple[str, str]], bool]:
    """Return the lines of a diff without its two headers, each after its kind (add, del, hunk or same), and whether
    some were left out."""
    whole = visible(text)
    kinds = {"+": "add", "-": "del", "@": "hunk", "\\": "hunk"}
    rows = whole[:MAX_SHOWN].removesuffix("\n").split("\n") if whole else []
    # Only at the beginning: further down, `+++ x` is an added line `++ x`, which must not be hidden.
    for header in ("--- ", "+++ "):
        if rows and rows[0].startswith(header):
            rows = rows[1:]
    shown = [(kinds.get(row[:1], "same"), row) for row in rows]
    return shown[:_MAX_LINES], len(whole) > MAX_SHOWN or len(shown) > _MAX_LINES


def seconds(value: float | None) -> str:
    """Format a duration; empty for None."""
    if value is None:
        return ""
    if value < 0.9995:
        return f"{value * 1000:.0f} ms"
    return f"{value:.1f} s" if value < 60 else f"{value // 60:.0f} min {value % 60:.0f} s"


def size(value: float | None) -> str:
    """Format a number of bytes; empty for None."""
    if value is None:
        return ""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1024
    return ""


def clock(value: float | str | datetime | None) -> str:
    """Format a UTC time as a date and a time of day with seconds; empty for None."""
    if value is None or value == "":
        return ""
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, float):
        value = datetime.fromtimestamp(value, UTC)
    return value.strftime("%Y-%m-%d %H:%M:%S")


def took(row: Row) -> float | None:
    """Return how many seconds a run took; None if it did not start or has not ended."""
    return row.ended - row.started if row.ended and row.started else None


class Bar(NamedTuple):
    """A bar of the chart of runs: its position, height and tone."""

    x: float
    y: float
    height: float
    tone: str


class Hour(NamedTuple):
    """Numbers about the runs of the last hour."""

    total: int
    good: str
    median: str
    slowest: str
    bars: tuple[Bar, ...]
    top: int


def hour(rows: Iterable[Row], now: float) -> Hour:
    """Summarise the runs of the last hour, with stacked bars for each minute by their tone."""
    minutes: list[dict[str, int]] = [{} for _ in range(60)]
    times, ended, good = [], 0, 0
    for row in rows:
        minute = int((now - row.created) // 60)
        if not 0 <= minute < 60:
            continue
        kind = tone(row.state, row.status)
        minutes[59 - minute][kind] = minutes[59 - minute].get(kind, 0) + 1
        if (spent := took(row)) is not None:
            times.append(spent)
            ended += 1
            good += row.status == "ok"
    top = max((sum(minute.values()) for minute in minutes), default=0)
    bars = []
    for place, ended_as in enumerate(minutes):
        y = 100.0
        for kind in ("good", "busy", "asks", "quiet", "bad"):
            if number := ended_as.get(kind, 0):
                height = 100.0 * number / top
                y -= height
                bars.append(Bar(place * 10.0, round(y, 2), round(height, 2), kind))
    total = sum(sum(minute.values()) for minute in minutes)
    parts = statistics.quantiles(times, n=20, method="inclusive") if len(times) > 1 else times * 19
    return Hour(
        total,
        f"{100 * good / ended:.0f}%" if ended else _NONE,
        seconds(statistics.median(times)) if times else _NONE,
        seconds(parts[18]) if times else _NONE,
        tuple(bars),
        top,
    )


DISPLAYED = {"png": "image/png", "jpeg": "image/jpeg", "svg": "image/svg+xml", "html": "text/html"}
"""The kinds of displays that a page can show, best first, with their media types."""


class Shown(NamedTuple):
    """A display of a run: its number, the best kind to show it as (empty: as text), and its text."""

    number: int
    kind: str
    text: str


def displays(result: Any) -> list[Shown]:
    """Return the displays of a result, up to a maximum number."""
    found = []
    for number, display in enumerate((result or {}).get("displays", ())[:_MAX_DISPLAYS]):
        data = display["data"]
        text = data.get("text/plain", "") or next((each for each in data.values() if isinstance(each, str)), "")
        found.append(Shown(number, next((kind for kind, name in DISPLAYED.items() if name in data), ""), text))
    return found


def value(result: Any) -> str:
    """Return the value of a run's last expression as text; empty if it is among the displays, in a better form."""
    text: str = (result or {}).get("value_repr") or ""
    return "" if any(shown.kind and shown.text == text for shown in displays(result)) else text


class Curve(NamedTuple):
    """A line of a plot: its name, its tone, its points in an area of 598 by 100, and its last value."""

    name: str
    tone: str
    points: str
    last: str


class Plot(NamedTuple):
    """Lines over the last hour, and the value at the top of the plot."""

    curves: tuple[Curve, ...]
    top: str


def latency(rows: Iterable[Row], now: float) -> Plot | None:
    """Plot how long runs took, per minute: median and 95th percentile. Return None if no run has ended."""
    minutes: list[list[float]] = [[] for _ in range(60)]
    for row in rows:
        minute = int((now - row.created) // 60)
        if 0 <= minute < 60 and (spent := took(row)) is not None:
            minutes[59 - minute].append(spent)
    filled = [(now - 60 * (59.5 - place), times) for place, times in enumerate(minutes) if times]
    if not filled:
        return None
    middle = [(at, statistics.median(times)) for at, times in filled]
    slow = [(at, sorted(times)[int(0.95 * (len(times) - 1) + 0.5)]) for at, times in filled]
    return _plot((("median", "good", middle), ("95th percentile", "asks", slow)), now, seconds)


def gauges(samples: Iterable[Sample], now: float) -> dict[str, Plot] | None:
    """Plot cells and memory over the last hour. Return None if there are no samples."""
    taken = [sample for sample in samples if now - sample.time < _HOUR]
    if not taken:
        return None
    ready = [(sample.time, float(sample.ready)) for sample in taken]
    used = [(sample.time, float(sample.used)) for sample in taken]
    memory = [(sample.time, float(sample.memory)) for sample in taken]
    cells = [(sample.time, float(sample.cells)) for sample in taken]
    whole = lambda value: f"{value:.0f}"  # noqa: E731 - a name for it
    return {
        "Cells": _plot((("armed", "good", ready), ("in use", "busy", used)), now, whole),
        "Memory": _plot((("the server", "quiet", memory), ("its cells", "busy", cells)), now, size),
    }


def _plot(
    lines: Iterable[tuple[str, str, list[tuple[float, float]]]], now: float, shown: Callable[[float], str]
) -> Plot:
    lines = tuple(lines)
    top = max((value for _, _, points in lines for _, value in points), default=0.0) or 1.0
    curves = []
    for name, tone_, points in lines:
        placed = [(598 * (1 - (now - at) / _HOUR), 99 - 97 * value / top) for at, value in points]
        text = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed if x >= 0)
        if len(placed) == 1:  # a single point would draw no line
            x, y = placed[0]
            text = f"{x - 3:.1f},{y:.1f} {x + 3:.1f},{y:.1f}"
        curves.append(Curve(name, tone_, text, shown(points[-1][1]) if points else _NONE))
    return Plot(tuple(curves), shown(top))


def changes(result: Any) -> tuple[Change, ...]:
    """Return the changes that a run made in its project."""
    found = result["effect"]["changes"] if result and result["effect"] and "changes" in result["effect"] else ()
    return msgspec.convert(found, tuple[Change, ...])


def result_of(row: Row) -> Any:
    """Return the result of a run as decoded JSON; None if there is none."""
    return None if row.result is None else json.loads(row.result)
