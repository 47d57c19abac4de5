"""Plots made of characters: as wide as the terminal, and in ASCII if it can show nothing else."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence

import click

from .emit import shown

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_HEIGHTS = " ▁▂▃▄▅▆▇█"
_ROWS = 6
"""How high columns over time are."""
_MAX_NAME = 28
_COUNT_WIDTH = 9


def width() -> int:
    """Return the number of columns to draw on."""
    return max(40, min(shutil.get_terminal_size((100, 24)).columns, 160))


def _fine() -> bool:
    """Return whether the terminal can show parts of a block, not only ASCII."""
    return "utf" in (getattr(sys.stdout, "encoding", None) or "ascii").lower()


def bars(
    counts: Mapping[str, int] | Sequence[tuple[str, int]], *, max_rows: int = 12, colour: str = "cyan"
) -> Iterator[str]:
    """Yield one bar a line, between its name and its number; rows beyond `max_rows` are summed up."""
    rows = [*(counts.items() if isinstance(counts, Mapping) else counts)]
    if len(rows) > max_rows:
        rows, rest = rows[: max_rows - 1], rows[max_rows - 1 :]
        rows.append((f"{len(rest)} others", sum(count for _, count in rest)))
    if not rows:
        return
    names = [shown(name, _MAX_NAME) for name, _ in rows]
    longest = max(map(len, names))
    room = width() - longest - _COUNT_WIDTH - 6
    top = max(1, *(count for _, count in rows))
    for name, (_, count) in zip(names, rows, strict=True):
        bar = click.style(_bar(count / top, room), fg=colour)
        yield f"  {name:{longest}}  {bar} {count:,}"


def _bar(share: float, room: int) -> str:
    if not _fine():
        return "#" * max(round(share * room), share > 0)
    eighths = max(round(share * room * 8), share > 0)
    return _EIGHTHS[8] * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")


def columns_over_time(counts: Sequence[tuple[str, int]]) -> Iterator[str]:
    """Yield a row of columns, from the first name to the last; neighbours are merged if there is no room for each."""
    if not counts:
        return
    room = width() - len(f"{sum(count for _, count in counts):,}") - 5
    each = -(-len(counts) // room)  # how many are merged into a column
    values = [sum(count for _, count in counts[at : at + each]) for at in range(0, len(counts), each)]
    wide = max(1, min(3, room // len(values)))
    top = max(1, *values)
    margin, axis = len(f"{top:,}"), "┤" if _fine() else "|"
    for level in range(_ROWS, 0, -1):
        cells = "".join(_column(value / top * _ROWS - (level - 1), value > 0 and level == 1) * wide for value in values)
        label = f"{top:,}" if level == _ROWS else ""
        yield f"  {label:>{margin}} {axis}{click.style(cells.rstrip(), fg='cyan')}"
    first, last = counts[0][0], counts[-1][0]
    gap = len(values) * wide - len(first) - len(last)
    under = f"{first}{' ' * gap}{last}" if gap > 0 else f"{first} … {last}" if len(counts) > 1 else first
    yield f"  {'':{margin}}  {under if _fine() else under.replace('…', '..')}"


def _column(share: float, visible: bool) -> str:
    """Return a part of a column; if `visible`, it is never too small to be seen."""
    if not _fine():
        return "#" if share >= 0.5 or visible else " "
    return _HEIGHTS[max(int(visible), min(8, round(share * 8)))]
