"""Pictures as inline SVG. They stretch to the width they are given, so their words are beside them, in HTML."""

from __future__ import annotations

import itertools
import math

from ..history import UNSEEN, Spell
from ..model import State
from ..series import Plot
from .markup import Markup, element
from .story import Points, moment

_WIDTH, _HEIGHT = 400.0, 100.0
_THINNEST = 4.0
_SHAPES = {  # told apart by form as well as by colour
    State.OK: ("M12 1a11 11 0 1 0 0 22 11 11 0 0 0 0-22z", "M7 12.5l3.5 3.5 6.5-7.5"),
    State.WARNING: ("M12 1.5 L23.5 22 H.5 z", "M12 9v6 M12 18.6v.1"),
    State.CRITICAL: ("M7.4 1h9.2L23 7.4v9.2L16.6 23H7.4L1 16.6V7.4z", "M8 8l8 8 M16 8l-8 8"),
    State.UNKNOWN: ("M12 .5 23.5 12 12 23.5 .5 12z", "M9.5 9.5a2.5 2.5 0 1 1 3.4 2.4c-.7.3-.9.8-.9 1.6 M12 16.9v.1"),
}


def icon(state: State, label: str = "") -> Markup:
    """A state as a form. It stands beside its word, or else has a `label`."""
    around, inside = _SHAPES[state]
    about = {"role": "img", "aria_label": label} if label else {"aria_hidden": "true"}
    paths = element("path", d=around), element("path", d=inside, class_="on")
    return element("svg", *paths, viewBox="0 0 24 24", class_=f"icon {state.word}", **about)


def strip(spells: list[Spell], begin: float, end: float) -> Markup:
    """How a check stood over time; where nobody looked nothing is drawn."""
    wide = 1000.0 / max(end - begin, 1.0)
    parts = []
    for number, spell in enumerate(spells):
        until = spell.until
        if number + 1 < len(spells) and spells[number + 1].since - until < UNSEEN:
            until = spells[number + 1].since
        left, right = (min(max((at - begin) * wide, 0.0), 1000.0) for at in (spell.since, until))
        left = min(left, 1000.0 - _THINNEST)
        title = f"{spell.state.word}, {moment(spell.since, '%d %b %H:%M')} to {moment(spell.until, '%H:%M')}"
        message = f": {spell.message[:200]}" if spell.message else ""
        parts.append(
            element(
                "rect",
                element("title", title + message),
                **{"x": left, "y": 0.0, "width": max(right - left, _THINNEST), "height": 10.0},
                class_=spell.state.word,
            )
        )
    bad = sum(spell.state is not State.OK for spell in spells)
    stood = "" if spells else "nobody has looked"
    stood = stood or ("always ok" if not bad else "once not ok" if bad == 1 else f"{bad} times not ok")
    label = f"How it stood since {moment(begin, '%d %b %H:%M')}: {stood}"
    return element(
        "svg",
        *parts,
        **{"class_": "strip", "viewBox": "0 0 1000 10", "preserveAspectRatio": "none"},
        **{"role": "img", "aria_label": label},
    )


def scale(plot: Plot, points: Points) -> float:
    """The upper end of its scale: a round number above every point."""
    if plot.top:
        return plot.top
    highest = max(max(value for _, value in points), 1e-9)
    size = 10.0 ** math.floor(math.log10(highest))
    return next(step * size for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10, 15) if step * size > highest)


def curve(points: Points, top: float, begin: float, end: float, label: str) -> Markup:
    """A line over an area, with a break where nobody looked."""
    wide, high = _WIDTH / max(end - begin, 1e-9), _HEIGHT / top
    lines = [element("line", x1=0.0, x2=_WIDTH, y1=y, y2=y, class_="grid") for y in (0.0, _HEIGHT / 2, _HEIGHT)]
    for part in _unbroken(points):
        at = [((time - begin) * wide, _HEIGHT - min(max(value, 0.0) * high, _HEIGHT)) for time, value in part]
        if len(at) == 1:  # a moment is drawn as one
            at.append((at[0][0] + 1.0, at[0][1]))
        path = " L".join(f"{x:.1f} {y:.1f}" for x, y in at)
        lines.append(
            element("path", d=f"M{path} L{at[-1][0]:.1f} {_HEIGHT:g} L{at[0][0]:.1f} {_HEIGHT:g} Z", class_="fill")
        )
        lines.append(element("path", d=f"M{path}", class_="line"))
    return element(
        "svg",
        *lines,
        **{"class_": "area", "viewBox": f"0 0 {_WIDTH:g} {_HEIGHT:g}", "preserveAspectRatio": "none"},
        **{"role": "img", "aria_label": label},
    )


def bar(share: float) -> Markup:
    """How much of the whole it is."""
    inside = element("rect", x=0.0, y=0.0, width=min(max(share, 0.0), 1.0) * 100, height=10.0)
    return element("svg", inside, class_="bar", viewBox="0 0 100 10", preserveAspectRatio="none", aria_hidden="true")


def _unbroken(points: Points) -> list[Points]:
    steps = sorted(later[0] - earlier[0] for earlier, later in itertools.pairwise(points))
    longest = 4 * steps[len(steps) // 2] if steps else 0.0
    parts: list[Points] = [[]]
    for point in points:
        if parts[-1] and point[0] - parts[-1][-1][0] > longest:
            parts.append([])
        parts[-1].append(point)
    return parts
