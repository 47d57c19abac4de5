"""The report as Markdown and as JSON."""

from __future__ import annotations

import json
import re
from typing import Any

from ...lib.sanitise import visible
from ..model import State, worded
from .story import Story, amount, lasting, moment, quick, standing

_MARKS = {State.OK: "✅", State.WARNING: "⚠️", State.CRITICAL: "❌", State.UNKNOWN: "❔"}
# What could be markup anywhere in a line, HTML, or a link that the reader makes by itself. No text begins a line.
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~!&@$])|(?<=\w)(:)(?=//)|(?<=[wW]{3})(\.)")


def safe(text: str) -> str:
    """Text of somebody else, on one line, as nothing but text."""
    line = " ".join(visible(text).split())
    return _SPECIAL.sub(lambda found: "\\" + found[0], line)


def markdown(story: Story) -> str:
    seen = story.seen
    lines = [
        f"# {safe(seen.host)}: {story.summary}",
        "",
        f"Looked at on {moment(seen.time)}.",
        "",
        "| | check | state | since | what | evaluated by |",
        "|---|---|---|---|---|---|",
    ]
    for verdict in story.verdicts:
        by = f"{safe(verdict.sandbox)}, {quick(verdict.seconds)}" if verdict.sandbox else ""
        what = safe(verdict.message or (story.checks[verdict.check].about if verdict.check in story.checks else ""))
        since = standing(verdict, seen.time)
        name, state = safe(verdict.check), verdict.state.word
        lines.append(f"| {_MARKS[verdict.state]} | {name} | {state} | {since} | {what} | {by} |")
    if story.curves:
        span = lasting(seen.time - story.begin)
        lines += ["", f"## The last {span}", "", "| | now | lowest | highest |", "|---|--:|--:|--:|"]
        for plot, points in story.curves:
            values = [value for _, value in points]
            cells = [amount(value, plot.unit) for value in (values[-1], min(values), max(values))]
            lines.append(f"| {safe(plot.title)} | {' | '.join(cells)} |")
    if story.deeds:
        lines += ["", "## What was done", ""]
        for deed in story.deeds:
            mark = "" if deed.ok else "**failed** "
            told = f"{safe(deed.check)}, {deed.kind} by {safe(deed.name)}: {safe(deed.text)}"
            lines.append(f"- {moment(deed.time)} {mark}{told}")
    if seen.problems:
        lines += ["", "## What could not be collected", ""]
        lines += [f"- {safe(name)}: {safe(why)}" for name, why in sorted(seen.problems.items())]
    return "\n".join(lines) + "\n"


def data(story: Story) -> str:
    """In ASCII: whatever is in it, it is harmless to a terminal."""
    seen = story.seen
    told: dict[str, Any] = {
        "version": 1,
        "host": seen.host,
        "time": seen.time,
        "state": seen.state.word,
        "verdicts": [worded(verdict) for verdict in story.verdicts],
        "deeds": [worded(deed) for deed in story.deeds],
        "problems": seen.problems,
        "series": {plot.title: {"unit": plot.unit, "points": points} for plot, points in story.curves},
        "spells": {check: [worded(spell) for spell in spells] for check, spells in sorted(story.spells.items())},
        "facts": story.facts,
    }
    plain = json.loads(json.dumps(told, default=str), parse_constant=lambda _: None)  # what is no number in JSON
    return json.dumps(plain, indent=2) + "\n"
