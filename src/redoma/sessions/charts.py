"""The data of matplotlib figures and pandas tables. Loaded in cells and containers, so it uses only the standard
library of Python 3.9.

The format is that of E2B's charts: one chart for each pair of axes, and a `superchart` around several. It is read from
what was drawn; a chart of a kind that is not recognised is `unknown`, and has only a title.
"""

from __future__ import annotations

import json
import math
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

_MAX_POINTS = 20_000
_UNIT = re.compile(r"[(\[]([^()\[\]]+)[)\]]\s*$")
_BOX = 7
"""Lines of one box: the box, two whiskers, two caps, the median and the outliers. A filled box is not a line."""


def chart_of(figure: Any) -> str | None:
    """Return a figure as JSON; None if it is empty or can't be read."""
    try:
        charts = [_chart(axes) for axes in figure.get_axes()]
        title = str(figure._suptitle.get_text()) if getattr(figure, "_suptitle", None) else None
        if len(charts) > 1:
            return json.dumps({"type": "superchart", "title": title, "elements": charts}, allow_nan=False)
        return json.dumps(charts[0], allow_nan=False) if charts else None
    except Exception:  # code can do anything to its figures; the picture is shown anyway
        return None


def table_of(value: Any) -> str | None:
    """Return the columns of a pandas table as JSON; None if it is not one, or can't be read."""
    frame, table = getattr(sys.modules.get("pandas"), "DataFrame", None), value
    if not isinstance(frame, type) or not isinstance(value, frame) or table.size > _MAX_POINTS:
        return None
    try:
        columns = table.to_dict(orient="list")
        return json.dumps({str(name): [_cell(each) for each in column] for name, column in columns.items()})
    except Exception:  # as above
        return None


def _cell(value: Any) -> Any:
    try:
        return _plain(value) if not isinstance(value, (bool, int)) else value
    except (TypeError, ValueError):
        return str(value)


def _chart(axes: Any) -> dict[str, Any]:
    lines, names = list(axes.get_lines()), [type(each).__name__ for each in axes.patches]
    title = str(axes.get_title()) or None
    if "Wedge" in names:
        return {"type": "pie", "title": title, "elements": _wedges(axes)}
    if axes.containers and "Rectangle" in names:
        return {"type": "bar", "title": title, **_labels(axes), "elements": _bars(axes)}
    if boxes := _boxes(axes, lines, names):
        return {"type": "box_and_whisker", "title": title, **_labels(axes), "elements": boxes}
    points = {"title": title, **_labels(axes), **_scale(axes, "x"), **_scale(axes, "y")}
    if lines:
        return {"type": "line", **points, "elements": [_series(each, *each.get_data(orig=True)) for each in lines]}
    scattered = [each for each in axes.collections if type(each).__name__ == "PathCollection"]
    if scattered:
        return {"type": "scatter", **points, "elements": [_series(each, *_columns(each)) for each in scattered]}
    return {"type": "unknown", "title": title, "elements": []}


def _labels(axes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("x", "y"):
        label = str(getattr(axes, f"get_{name}label")()) or None
        unit = _UNIT.search(label or "")
        found |= {f"{name}_label": label, f"{name}_unit": unit[1] if unit else None}
    return found


def _scale(axes: Any, name: str) -> dict[str, Any]:
    axis = getattr(axes, f"{name}axis")
    kind = type(axis.get_converter() if hasattr(axis, "get_converter") else axis.converter).__name__
    scale = "datetime" if "Date" in kind else "categorical" if "Category" in kind else str(axis.get_scale())
    return {
        f"{name}_ticks": _plain_all(axis.get_ticklocs()),
        f"{name}_tick_labels": [str(each.get_text()) for each in axis.get_ticklabels()],
        f"{name}_scale": scale,
    }


def _columns(collection: Any) -> tuple[Any, Any]:
    offsets = collection.get_offsets()
    return offsets[:, 0], offsets[:, 1]


def _series(artist: Any, horizontal: Any, vertical: Any) -> dict[str, Any]:
    # Without `strict`, which Python 3.9 doesn't have.
    pairs = list(zip(_plain_all(horizontal), _plain_all(vertical)))  # noqa: B905
    return {"label": _label(artist.get_label()), "points": pairs}


def _label(text: Any) -> str:
    return "" if str(text).startswith("_") else str(text)


def _bars(axes: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for container in axes.containers:
        across = getattr(container, "orientation", "vertical") == "horizontal"
        axis = axes.yaxis if across else axes.xaxis
        labels = [str(each.get_text()) for each in axis.get_ticklabels()]
        names = dict(zip(_plain_all(axis.get_ticklocs()), labels))  # noqa: B905 - Python 3.9
        for bar in getattr(container, "patches", ()):
            middle = bar.get_y() + bar.get_height() / 2 if across else bar.get_x() + bar.get_width() / 2
            label = names.get(_plain(middle)) or str(_plain(middle))
            value = _plain(bar.get_width() if across else bar.get_height())
            found.append({"label": label, "group": _label(container.get_label()), "value": value})
    return found[:_MAX_POINTS]


def _wedges(axes: Any) -> list[dict[str, Any]]:
    wedges = [each for each in axes.patches if type(each).__name__ == "Wedge"]
    return [
        {"label": _label(each.get_label()), "angle": _plain(each.theta2 - each.theta1), "radius": _plain(each.r)}
        for each in wedges[:_MAX_POINTS]
    ]


def _boxes(axes: Any, lines: list[Any], patches: list[str]) -> list[dict[str, Any]]:
    """Return the boxes, if it is a box plot."""
    filled = [each for each in axes.patches if type(each).__name__ == "PathPatch"]
    names = [str(each.get_text()) for each in axes.xaxis.get_ticklabels()]
    drawn: list[tuple[list[Any], list[Any]]] = []
    if filled and len(filled) == len(patches) and len(lines) >= len(filled) * (_BOX - 1):
        rest = lines[-len(filled) * (_BOX - 1) :]
        drawn = [
            (box.get_path().vertices[:, 1], rest[at * (_BOX - 1) : (at + 1) * (_BOX - 1)])
            for at, box in enumerate(filled)
        ]
    elif lines and len(lines) % _BOX == 0 and len(lines[0].get_xdata()) == 5:
        drawn = [(lines[at].get_ydata(), lines[at + 1 : at + _BOX]) for at in range(0, len(lines), _BOX)]
    found: list[dict[str, Any]] = []
    for at, (box, parts) in enumerate(drawn):
        low, high, _, _, median, outliers = (_plain_all(each.get_ydata()) for each in parts)
        # The path of a filled box ends with a point of no meaning.
        quartiles = _plain_all(box)[:5]
        found.append(
            {
                "label": names[at] if at < len(names) else "",
                "min": min(low),
                "first_quartile": min(quartiles),
                "median": median[0],
                "third_quartile": max(quartiles),
                "max": max(high),
                "outliers": outliers,
            }
        )
    return found


def _plain_all(values: Iterable[Any]) -> list[Any]:
    return [_plain(each) for each in list(values)[:_MAX_POINTS]]


def _plain(value: Any) -> Any:
    """Return a value as a number or text that JSON can represent."""
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if type(value).__name__ == "datetime64":
        return str(value)
    if isinstance(value, str):
        return str(value)
    number = round(float(value), 9)
    return number if math.isfinite(number) else None
