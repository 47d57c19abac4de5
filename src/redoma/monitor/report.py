"""A round as a page, as Markdown or as JSON, for readers without access to the machine.

Texts of rules and collectors may be hostile, so everything in them is shown as plain text. A page is one self-contained
file; it has no JavaScript and allows none.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from .. import __version__
from ..lib.errors import InvalidRequest, RedomaError
from ..lib.extras import pip_install
from ..lib.sanitise import visible
from ..redaction import Redactor, clean
from .history import DAY, UNSEEN, History, Spell, numbers
from .model import Action, Check, CheckResult, Round, State, to_dict

if TYPE_CHECKING:
    from jinja2 import Environment

Kind = Literal["html", "md", "json"]

Points = list[tuple[float, float]]
_MAX_ACTIONS = 50
_MAX_POINTS = 240
_MAX_PLOTS = 12
_MAX_FACTS = 200_000


def render(latest: Round, history: History | None, kind: Kind, checks: Iterable[Check] = ()) -> str:
    """Return the report of a round, with plots from `history`. Raises `RedomaError` if a page needs Jinja2 and it is
    not installed.
    """
    writers = {"html": page, "md": markdown, "json": data}
    return writers[kind](gather(latest, history, checks))


def kind_of(path: Path) -> Kind:
    """Return the kind of report for a file's suffix. Raises `InvalidRequest` for any other."""
    for kind in get_args(Kind):
        if path.suffix.lower() == f".{kind}":
            return kind  # type: ignore[no-any-return] # get_args says Any
    raise InvalidRequest(
        f"a report can't be written to {str(path)!r}",
        why="the end of its name says the format, and it is none of .html, .md and .json",
        next="name it report.html, for example",
    )


# --- contents of every kind of report ---


class Plot(NamedTuple):
    """How a series is shown."""

    title: str
    unit: str = ""
    top: float | None = None
    """The upper end of its scale, if known."""


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


def plots(names: list[str]) -> dict[str, Plot]:
    """Return how to show the series that are meaningful to people, the most important first."""
    chosen: dict[str, Plot] = {}
    for pattern, title, unit, top in _KNOWN:
        for name in sorted(names):
            if len(chosen) < _MAX_PLOTS and name not in chosen and (match := re.fullmatch(pattern, name)):
                chosen[name] = Plot(title.format(*match.groups()), unit, top)
    return chosen


class ReportData(NamedTuple):
    """The contents of every kind of report."""

    latest: Round
    checks: dict[str, Check]
    begin: float
    """The start of the history that is shown."""
    curves: list[tuple[Plot, Points]]
    spells: dict[str, list[Spell]]
    actions: list[Action]

    @property
    def verdicts(self) -> list[CheckResult]:
        """The verdicts, the most urgent first."""
        return sorted(self.latest.verdicts, key=lambda verdict: (-verdict.state.urgency, verdict.check))

    @property
    def counts(self) -> dict[State, int]:
        states = [verdict.state for verdict in self.latest.verdicts]
        return {state: states.count(state) for state in sorted(State, key=lambda state: -state.urgency)}

    @property
    def facts(self) -> Any:
        """The facts without secrets: lines of a log or a server's answer may contain some."""
        return _redacted(self.latest.facts, Redactor())

    @property
    def summary(self) -> str:
        """The overall state in a few words."""
        counts = self.counts
        bad = [f"{count} {state.word}" for state, count in counts.items() if count and state is not State.OK]
        if bad:
            return ", ".join(bad)
        return "all is well" if counts[State.OK] else "nothing was checked"


def gather(latest: Round, history: History | None, checks: Iterable[Check], span: float = DAY) -> ReportData:
    """Gather the contents of a report on a round and the `span` seconds before it."""
    since, now = latest.time - span, numbers(latest.facts)
    chosen = plots([*now, *(history.names(since) if history else [])])
    # What was recorded while the clock was ahead is kept, but not shown until its time.
    spells = [spell for spell in history.spells(since) if spell.since <= latest.time] if history else []
    curves = []
    for name, plot in chosen.items():
        points = [point for point in history.series(name, since) if point[0] <= latest.time] if history else []
        if not points and name in now:
            points = [(latest.time, now[name])]
        curves.append((plot, thin_out(points)))
    times = [points[0][0] for _, points in curves if points] + [spell.since for spell in spells]
    actions = history.actions(since)[-_MAX_ACTIONS:] if history else list(latest.actions)
    return ReportData(
        latest=latest,
        checks={check.name: check for check in checks},
        begin=max(since, min(times, default=latest.time)),
        curves=curves,
        spells={check: [spell for spell in spells if spell.check == check] for check in {s.check for s in spells}},
        actions=actions[::-1],
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


def thin_out(points: Points) -> Points:
    """Return at most `_MAX_POINTS` points: the highest of each part of the time."""
    if len(points) <= _MAX_POINTS:
        return points
    first, last = points[0][0], points[-1][0]
    highest: dict[int, tuple[float, float]] = {}
    for time, value in points:
        at = int((time - first) / (last - first or 1.0) * (_MAX_POINTS - 1))
        if at not in highest or value > highest[at][1]:
            highest[at] = time, value
    return list(highest.values())


# --- formatting numbers and times ---


def amount(value: float, unit: str = "") -> str:
    """Return a number for people: `89.2 %`."""
    digits = 0 if abs(value) >= 100 or value == int(value) else 1 if abs(value) >= 1 else 2
    return f"{value:.{digits}f} {unit}".strip()


def duration(seconds: float) -> str:
    """Return a length of time in its two largest units: `1 h 2 min`."""
    seconds = max(0, round(seconds))
    parts = []
    days = () if seconds < 2 * 86400 else (("d", 86400),)
    for unit, size in (*days, ("h", 3600), ("min", 60), ("s", 1)):
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2]) or "0 s"


def short_duration(seconds: float) -> str:
    """Return a short time: `12 ms`."""
    return f"{seconds * 1000:.{0 if seconds > 0.01 else 1}f} ms" if seconds < 1 else f"{seconds:.1f} s"


def utc_time(seconds: float, form: str = "%Y-%m-%d %H:%M:%S UTC") -> str:
    """Return a Unix time in UTC; `?` if it is out of range."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime(form)
    except (ValueError, OverflowError, OSError):
        return "?"


def how_long(verdict: CheckResult, now: float) -> str:
    """Return how long a check has been in its state, and which state may follow."""
    since = f"for {duration(now - verdict.since)}" if verdict.since and now - verdict.since >= 1 else "just now"
    if verdict.found is not verdict.state and verdict.found is not State.OK:
        since += f"; found {verdict.found.word}, which has to last"
    return since


# --- Markdown and JSON ---


_EMOJI = {State.OK: "✅", State.WARNING: "⚠️", State.CRITICAL: "❌", State.UNKNOWN: "❔"}
# Characters that could be markup anywhere in a line, HTML or an automatic link. What is markup only at the beginning of
# a line doesn't matter: no text begins one.
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~!&@$])|(?<=\w)(:)(?=//)|(?<=[wW]{3})(\.)")


def safe(text: str) -> str:
    """Escape text for Markdown: on one line, and as plain text only."""
    line = " ".join(visible(text).split())
    return _SPECIAL.sub(lambda found: "\\" + found[0], line)


def markdown(report: ReportData) -> str:
    """Return the report as Markdown."""
    latest = report.latest
    lines = [
        f"# {safe(latest.host)}: {report.summary}",
        "",
        f"Looked at on {utc_time(latest.time)}.",
        "",
        "| | check | state | since | what | evaluated by |",
        "|---|---|---|---|---|---|",
    ]
    for verdict in report.verdicts:
        by = f"{safe(verdict.sandbox)}, {short_duration(verdict.seconds)}" if verdict.sandbox else ""
        what = safe(verdict.message or (report.checks[verdict.check].about if verdict.check in report.checks else ""))
        since = how_long(verdict, latest.time)
        name, state = safe(verdict.check), verdict.state.word
        lines.append(f"| {_EMOJI[verdict.state]} | {name} | {state} | {since} | {what} | {by} |")
    if report.curves:
        span = duration(latest.time - report.begin)
        lines += ["", f"## The last {span}", "", "| | now | lowest | highest |", "|---|--:|--:|--:|"]
        for plot, points in report.curves:
            values = [value for _, value in points]
            cells = [amount(value, plot.unit) for value in (values[-1], min(values), max(values))]
            lines.append(f"| {safe(plot.title)} | {' | '.join(cells)} |")
    if report.actions:
        lines += ["", "## What was done", ""]
        for action in report.actions:
            mark = "" if action.ok else "**failed** "
            what = f"{safe(action.check)}, {action.kind} by {safe(action.name)}: {safe(action.text)}"
            lines.append(f"- {utc_time(action.time)} {mark}{what}")
    if latest.problems:
        lines += ["", "## What could not be collected", ""]
        lines += [f"- {safe(name)}: {safe(why)}" for name, why in sorted(latest.problems.items())]
    return "\n".join(lines) + "\n"


def data(report: ReportData) -> str:
    """Return the report as JSON, in ASCII: harmless to a terminal whatever it contains."""
    latest = report.latest
    contents: dict[str, Any] = {
        "version": 1,
        "host": latest.host,
        "time": latest.time,
        "state": latest.state.word,
        "verdicts": [to_dict(verdict) for verdict in report.verdicts],
        "actions": [to_dict(action) for action in report.actions],
        "problems": latest.problems,
        "series": {plot.title: {"unit": plot.unit, "points": points} for plot, points in report.curves},
        "spells": {check: [to_dict(spell) for spell in spells] for check, spells in sorted(report.spells.items())},
        "facts": report.facts,
    }
    # NaN and Infinity are not JSON.
    plain = json.loads(json.dumps(contents, default=str), parse_constant=lambda _: None)
    return json.dumps(plain, indent=2) + "\n"


# --- a page ---


_TEMPLATES = Path(__file__).with_name("templates")
_WIDTH, _HEIGHT = 400.0, 100.0  # as in the template
_MIN_WIDTH = 4.0
_SHAPES = {  # distinguishable by shape, not only by colour
    State.OK: ("M12 1a11 11 0 1 0 0 22 11 11 0 0 0 0-22z", "M7 12.5l3.5 3.5 6.5-7.5"),
    State.WARNING: ("M12 1.5 L23.5 22 H.5 z", "M12 9v6 M12 18.6v.1"),
    State.CRITICAL: ("M7.4 1h9.2L23 7.4v9.2L16.6 23H7.4L1 16.6V7.4z", "M8 8l8 8 M16 8l-8 8"),
    State.UNKNOWN: ("M12 .5 23.5 12 12 23.5 .5 12z", "M9.5 9.5a2.5 2.5 0 1 1 3.4 2.4c-.7.3-.9.8-.9 1.6 M12 16.9v.1"),
}


def style() -> str:
    """Return the style sheet of a page: light and dark, for phones, desktops and paper."""
    return (_TEMPLATES / "report.css").read_text(encoding="utf-8")


@functools.cache
def environment() -> Environment:
    """Return the template environment. Everything that is inserted is escaped, and characters that are invisible or
    would move other text are made visible.
    """
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError:
        raise RedomaError(
            "a page can't be written", why="Jinja2 is not installed", next=pip_install("redoma[monitor]")
        ) from None
    templates = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: visible(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.globals.update(
        amount=amount, duration=duration, utc_time=utc_time, short_duration=short_duration, how_long=how_long
    )
    return templates


def page(report: ReportData) -> str:
    """Return the report as HTML."""
    look = style()
    digest = base64.b64encode(hashlib.sha256(look.encode()).digest()).decode()
    return (
        environment()
        .get_template("report.html")
        .render(
            report=report,
            latest=report.latest,
            State=State,
            shapes=_SHAPES,
            timeline=lambda check: timeline(report.spells.get(check, []), report.begin, report.latest.time),
            charts=[chart(plot, points, report) for plot, points in report.curves if points],
            facts=json.dumps(report.facts, indent=2, default=str, ensure_ascii=False)[:_MAX_FACTS],
            style=look,
            # No scripts, images, fonts, frames or other styles, even if an escape were forgotten somewhere.
            policy=f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
            version=__version__,
        )
    )


class Timeline(NamedTuple):
    """The states of a check over time, as a row of rectangles, with a gap for each time when it was not checked."""

    label: str
    parts: list[tuple[State, float, float, str]]
    """State, left, width and title of each; 1000 is the whole width."""


def timeline(spells: list[Spell], begin: float, end: float) -> Timeline:
    """Lay out the spells of one check between two times."""
    scale = 1000.0 / max(end - begin, 1.0)
    parts = []
    for number, spell in enumerate(spells):
        until = spell.until
        if number + 1 < len(spells) and spells[number + 1].since - until < UNSEEN:
            until = spells[number + 1].since
        left, right = (min(max((at - begin) * scale, 0.0), 1000.0) for at in (spell.since, until))
        left = min(left, 1000.0 - _MIN_WIDTH)
        title = f"{spell.state.word}, {utc_time(spell.since, '%d %b %H:%M')} to {utc_time(spell.until, '%H:%M')}"
        message = f": {spell.message[:200]}" if spell.message else ""
        parts.append((spell.state, left, max(right - left, _MIN_WIDTH), title + message))
    bad = sum(spell.state is not State.OK for spell in spells)
    stood = "" if spells else "nobody has looked"
    stood = stood or ("always ok" if not bad else "once not ok" if bad == 1 else f"{bad} times not ok")
    return Timeline(f"States since {utc_time(begin, '%d %b %H:%M')}: {stood}", parts)


class CurvePiece(NamedTuple):
    """An unbroken piece of a curve, as SVG paths."""

    path: str
    area: str
    """The area below it."""


class Chart(NamedTuple):
    """A series as a picture with captions."""

    plot: Plot
    now: float
    between: str
    """Lowest and highest value, as text."""
    ago: str
    top: float
    """The upper end of the scale."""
    lines: list[CurvePiece]
    """Empty if there is only one point."""


def chart(plot: Plot, points: Points, report: ReportData) -> Chart:
    """Lay out a series over the period of the report."""
    values = [value for _, value in points]
    low, high, now = min(values), max(values), values[-1]
    between = f"{amount(low)} to {amount(high, plot.unit)}" if low < high else f"always {amount(now, plot.unit)}"
    top = scale(plot, points)
    begin, end = report.begin, report.latest.time
    lines = curve(points, top, begin, end) if len(points) > 1 else []
    return Chart(plot, now, between, f"{duration(end - begin)} ago", top, lines)


def scale(plot: Plot, points: Points) -> float:
    """Return the upper end of the scale of a plot: a round number above every point."""
    if plot.top:
        return plot.top
    highest = max(max(value for _, value in points), 1e-9)
    size = 10.0 ** math.floor(math.log10(highest))
    return next(step * size for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10, 15) if step * size > highest)


def curve(points: Points, top: float, begin: float, end: float) -> list[CurvePiece]:
    """Return a line with the area below it for each piece of a series; the series breaks where data are missing."""
    wide, high = _WIDTH / max(end - begin, 1e-9), _HEIGHT / top
    lines = []
    for part in _unbroken(points):
        at = [((time - begin) * wide, _HEIGHT - min(max(value, 0.0) * high, _HEIGHT)) for time, value in part]
        if len(at) == 1:  # draw a single point as a short line
            at.append((at[0][0] + 1.0, at[0][1]))
        path = "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in at)
        lines.append(CurvePiece(path, f"{path} L{at[-1][0]:.1f} {_HEIGHT:g} L{at[0][0]:.1f} {_HEIGHT:g} Z"))
    return lines


def _unbroken(points: Points) -> list[Points]:
    steps = sorted(later[0] - earlier[0] for earlier, later in itertools.pairwise(points))
    longest = 4 * steps[len(steps) // 2] if steps else 0.0
    parts: list[Points] = [[]]
    for point in points:
        if parts[-1] and point[0] - parts[-1][-1][0] > longest:
            parts.append([])
        parts[-1].append(point)
    return parts
