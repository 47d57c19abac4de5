"""The report as a page: one file that needs nothing else, runs nothing, and is read in any browser."""

from __future__ import annotations

import base64
import hashlib
import json

from ... import __version__
from ..history import Spell
from ..model import Deed, State, Verdict
from ..series import Plot
from . import draw
from .markup import Markup, element, said, text, void
from .story import Points, Story, amount, lasting, moment, quick, standing
from .style import STYLE

_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
_POLICY = f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'"
"""No script, no image, no font, no frame and no other style: also if an escape were forgotten somewhere."""
_MOST_FACTS = 200_000
_FAILED = draw.icon(State.CRITICAL, "failed")


def page(story: Story) -> str:
    seen = story.seen
    head = element(
        "head",
        void("meta", charset="utf-8"),
        void("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        void("meta", name="viewport", content="width=device-width, initial-scale=1"),
        void("meta", name="color-scheme", content="light dark"),
        void("meta", name="referrer", content="no-referrer"),
        void("meta", name="generator", content=f"redoma {__version__}"),
        element("title", f"{seen.host}: {story.summary}"),
        element("style", Markup(STYLE)),
    )
    sections = [_top(story), _counts(story), _alerts(story), _fine(story), _plots(story), _done(story), _facts(story)]
    foot = f"Redoma {__version__}. Times are UTC. Each rule was evaluated in the sandbox that is named beside it."
    body = element("body", element("main", *sections), element("footer", foot))
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _top(story: Story) -> Markup:
    seen = story.seen
    when = element("time", moment(seen.time), datetime=moment(seen.time, "%Y-%m-%dT%H:%M:%SZ"))
    summary = story.summary[:1].upper() + story.summary[1:]
    return element(
        "header",
        element("div", element("h1", said(seen.host)), when),
        element("p", draw.icon(seen.state), summary, class_=f"badge {seen.state.word}"),
        class_="top",
    )


def _counts(story: Story) -> Markup:
    items = [
        element("li", element("b", str(count)), element("span", state.word), class_=state.word if count else "none")
        for state, count in story.counts.items()
    ]
    return element("ul", *items, class_="counts")


def _alerts(story: Story) -> str:
    bad = [verdict for verdict in story.verdicts if verdict.state is not State.OK]
    cards = [_alert(story, verdict) for verdict in bad]
    return Markup(element("h2", "Needs attention") + element("div", *cards, class_="cards")) if bad else ""


def _alert(story: Story, verdict: Verdict) -> Markup:
    check = story.checks.get(verdict.check)
    facts = [standing(verdict, story.seen.time), *_by(verdict)]
    parts = [
        element(
            "header",
            draw.icon(verdict.state),
            element("h3", said(verdict.check)),
            element("span", verdict.state.word, class_="pill"),
        ),
        element("p", said(verdict.message or "The rule gave no message."), class_="message"),
        element("p", check.about, class_="soft") if check and check.about else "",
        element("p", *(element("span", fact) for fact in facts), class_="facts"),
        _strip(story, verdict.check),
    ]
    return element("article", *parts, class_=f"card alert {verdict.state.word}")


def _fine(story: Story) -> str:
    fine = [verdict for verdict in story.verdicts if verdict.state is State.OK]
    if not fine:
        return ""
    items = []
    for verdict in fine:
        check = story.checks.get(verdict.check)
        note = verdict.message or (check.about if check else "")
        if verdict.found is not State.OK:
            note = f"{standing(verdict, story.seen.time)}. {verdict.message}"
        items.append(
            element(
                "li",
                draw.icon(State.OK, "ok"),
                element("div", element("h3", said(verdict.check)), element("p", said(note)) if note else ""),
                _strip(story, verdict.check),
                element("span", ", ".join(_by(verdict)), class_="soft by"),
            )
        )
    return Markup(element("h2", "In order") + element("ul", *items, class_="rows"))


def _by(verdict: Verdict) -> list[str]:
    return [f"{verdict.sandbox}, {quick(verdict.seconds)}"] if verdict.sandbox else []


def _strip(story: Story, check: str) -> Markup:
    spells: list[Spell] = story.spells.get(check, [])
    return draw.strip(spells, story.begin, story.seen.time)


def _plots(story: Story) -> str:
    if not story.curves:
        return ""
    span = story.seen.time - story.begin
    note = element("small", f"the last {lasting(span)}") if span >= 1 else element("small", "the history begins now")
    cards = [_plot(story, plot, points) for plot, points in story.curves if points]
    return Markup(element("h2", "This machine", note) + element("div", *cards, class_="plots"))


def _plot(story: Story, plot: Plot, points: Points) -> Markup:
    values = [value for _, value in points]
    low, high, now = min(values), max(values), values[-1]
    between = f"{amount(low)} to {amount(high, plot.unit)}" if low < high else f"always {amount(now, plot.unit)}"
    header = element("header", element("h3", said(plot.title)), element("b", amount(now, plot.unit)))
    if len(points) > 1:
        begin, end = story.begin, story.seen.time
        ago = f"{lasting(end - begin)} ago"
        label = f"{plot.title} since {ago}: {between}, now {amount(now, plot.unit)}"
        top = draw.scale(plot, points)
        scale = element("span", amount(top, plot.unit), class_="top-of-scale", aria_hidden="true")
        picture = element("div", draw.curve(points, top, begin, end, label), scale, class_="frame")
        foot = element("p", *(element("span", word) for word in (ago, between, "now")), class_="ends")
    else:
        picture = draw.bar(now / plot.top) if plot.top else text("")
        foot = element("p", element("span", f"of {amount(plot.top, plot.unit)}" if plot.top else "now"), class_="ends")
    return element("section", header, picture, foot, class_="card plot")


def _done(story: Story) -> str:
    deeds, problems = story.deeds, story.seen.problems
    parts = []
    if deeds:
        parts += [element("h2", "What was done"), element("ul", *map(_deed, deeds), class_="rows deeds")]
    if problems:
        items = [
            element("li", draw.icon(State.UNKNOWN), element("div", element("h3", said(name)), element("p", said(why))))
            for name, why in sorted(problems.items())
        ]
        parts += [element("h2", "What could not be collected"), element("ul", *items, class_="rows deeds")]
    return Markup("".join(parts))


def _deed(deed: Deed) -> Markup:
    about = f"{deed.kind} by " if deed.kind == "remedy" else "notice to "
    heading = element("h3", said(deed.check), element("small", Markup(" "), about, said(deed.name), class_="soft"))
    told = element("p", said(deed.text), class_="alarm" if "ALARM" in deed.text else None)
    when = element("time", moment(deed.time, "%d %b %H:%M:%S"))
    waits = deed.text.startswith("waits")
    mark = draw.icon(State.OK, "done") if deed.ok else draw.icon(State.WARNING, "waits") if waits else _FAILED
    return element("li", mark, element("div", heading, told), when)


def _facts(story: Story) -> Markup:
    facts = json.dumps(story.facts, indent=2, default=str, ensure_ascii=False)[:_MOST_FACTS]
    return element("details", element("summary", "All facts that the rules were given"), element("pre", facts))
