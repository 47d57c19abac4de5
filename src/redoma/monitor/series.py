"""The numbers among the facts, by name, and how those that people know are called and drawn."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from .model import Facts

_MOST, _DEEPEST = 200, 4
"""Of a collector that goes wild no more than this is kept, round for round."""
_NAMES = ("mount", "name", "sensor")
"""What tells one item of a list from another."""
_LEFT_OUT = frozenset({"now", "mounts", "zombies", "largest", "booted", "most"})
"""What says nothing as a curve."""


def numbers(facts: Facts) -> dict[str, float]:
    """Every number in the facts, as `disk./home.percent`."""
    found: dict[str, float] = {}
    for name, value in _walk("", facts, 0):
        if len(found) == _MOST:
            break
        found[name.encode("utf-8", "backslashreplace").decode()] = value  # as the history has it
    return found


def _walk(name: str, value: Any, depth: int) -> Iterator[tuple[str, float]]:
    match value:
        case bool():
            yield name, float(value)
        case int() | float():
            try:
                number = float(value)
            except OverflowError:
                return
            if math.isfinite(number):
                yield name, number
        case dict() if depth < _DEEPEST:
            for key, item in value.items():
                if key not in _LEFT_OUT:
                    yield from _walk(f"{name}.{key}"[-120:] if name else str(key)[:120], item, depth + 1)
        case list() | tuple() if depth < _DEEPEST:
            for number, item in enumerate(value):
                keys = (item[key] for key in _NAMES if isinstance(item, dict) and isinstance(item.get(key), str))
                yield from _walk(f"{name}.{next(keys, number)}"[-120:], item, depth + 1)


class Plot(NamedTuple):
    """How a series is shown."""

    title: str
    unit: str = ""
    top: float | None = None
    """The upper end of its scale, where that is known."""


_KNOWN: tuple[tuple[str, str, str, float | None], ...] = (
    (r"cpu\.percent", "Processor", "%", 100.0),
    (r"memory\.percent", "Memory", "%", 100.0),
    (r"load\.one", "Load, 1 minute", "", None),
    (r"swap\.percent", "Swap", "%", 100.0),
    (r"disk\.(.+)\.percent", "Disk {}", "%", 100.0),
    (r"temperatures\.(.+)\.current", "Temperature {}", "°C", None),
    (r"processes\.total", "Processes", "", None),
    (r"(?!uptime)([a-z][a-z0-9_]*)\.seconds", "{}: seconds to answer", "s", None),
)


def plots(names: list[str], most: int = 12) -> dict[str, Plot]:
    """Those of the series that say something to people, the most telling first."""
    chosen: dict[str, Plot] = {}
    for pattern, title, unit, top in _KNOWN:
        for name in sorted(names):
            if len(chosen) < most and name not in chosen and (match := re.fullmatch(pattern, name)):
                chosen[name] = Plot(title.format(*match.groups()), unit, top)
    return chosen
