"""A report says what there is to say, and whatever a rule or a collector said in it is text and nothing else."""

from __future__ import annotations

import html
import html.parser
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from after_stage import CRITICAL, NOON, OK, UNKNOWN, WARNING, found

from redoma.lib.errors import InvalidRequest, RedomaError
from redoma.monitor import report
from redoma.monitor.history import History
from redoma.monitor.model import Action, Check, CheckResult, Round
from redoma.monitor.report import amount, duration, environment, kind_of, render, safe, style

HOSTILE = (
    "<script>document.title='owned'</script>",
    "</style><script>document.title='owned'</script>",
    '"><img src=x onerror="document.title=\'owned\'">',
    "' onmouseover='document.title=1' x='",
    "</title></svg><svg onload=document.title=1>",
    "<a href=javascript:alert(1)>x</a> &lt;b&gt; <!-- ]]>",
    "\u202egnp.exe \u2066\u200b\u2069",
    "\x1b[2J\x1b]0;owned\x07\x1b]52;c;b3duZWQ=\x07\x9b31m\x00",
    "| a | b |\n\n# heading\n![x](http://evil/x.png) [y](javascript:1) `code` http://evil/ www.evil.org @user",
    "\ud800 lone",
)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    """A few hours of one machine, everything in it hostile that can be."""
    made = History(tmp_path_factory.mktemp("report") / "monitor.db")
    for minute in range(0, 60, 5):
        made.add(hostile(NOON + 60 * minute), CHECKS)
    for number, text in enumerate(HOSTILE):
        kind = "remedy" if number % 2 else "notice"
        made.add_action(
            Action(time=NOON + number, kind=kind, check=text, name=text, state=CRITICAL, ok=False, text=text)  # type: ignore[arg-type] # one of the two
        )
    return made


CHECKS = [Check(name=text, rule=text, about=text) for text in HOSTILE]


def hostile(time: float = NOON + 3600) -> Round:
    states = [OK, WARNING, CRITICAL, UNKNOWN]
    verdicts = [
        CheckResult(check=text, state=states[n % 4], found=states[(n + 1) % 4], message=text, sandbox=text, since=NOON)
        for n, text in enumerate(HOSTILE)
    ]
    facts = {
        "cpu": {"percent": time % 97},
        "disk": [{"mount": text, "percent": 50.0} for text in HOSTILE],
        **{text: {text: [text]} for text in HOSTILE},
    }
    problems = {text: text for text in HOSTILE}
    return Round(time=time, host=HOSTILE[0], facts=facts, problems=problems, verdicts=tuple(verdicts))


class Page(html.parser.HTMLParser):
    """What a parser makes of it: elements, attributes, and the text between."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.said = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.said += data


def attacked(page: Page) -> list[str]:
    """What of the attacks has become markup."""
    live = {"script", "img", "a", "iframe", "object", "embed", "link", "form", "input", "base", "foreignobject"}
    found = sorted(live & set(page.tags))
    return found + [name for name, _ in page.attributes if name.startswith("on") or name in ("href", "src", "style")]


def test_whatever_is_said_in_a_page_is_text(history: History) -> None:
    page = Page(render(hostile(), history, "html", CHECKS))
    assert attacked(page) == []
    for text in HOSTILE[:6]:
        assert text in page.said  # as it was said, for the reader


def test_the_attack_succeeds_where_nothing_is_escaped(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    without = environment().overlay(autoescape=False)
    monkeypatch.setattr(report, "environment", lambda: without)
    assert {"script", "img", "a"} <= set(attacked(Page(render(hostile(), history, "html", CHECKS))))


def test_nothing_in_a_page_is_invisible_or_moves_other_text(history: History) -> None:
    text = render(hostile(), history, "html", CHECKS)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069\ud800-\udfff]", text)
    assert "\\u202egnp.exe" in text
    text.encode()


def test_a_page_allows_neither_scripts_nor_anything_from_elsewhere(history: History) -> None:
    text = render(hostile(), history, "html", CHECKS)
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert html.unescape(policy[1]).startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy[1]
    # Before anything that was said by anybody.
    assert text.index("Content-Security-Policy") < text.index("<title>")
    plain = render(found(CRITICAL, facts={"cpu": {"percent": 3.0}}), None, "html")
    assert not re.search(r"src=|href=|url\(|@import|//", plain)


@pytest.fixture(scope="session")
def chromium() -> str:
    return shutil.which("chromium") or pytest.skip("chromium is missing: scripts/packages chromium")


def test_a_real_browser_shows_the_page_and_runs_nothing_of_it(
    history: History, tmp_path: Path, chromium: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where an escape was forgotten: then the page's own policy keeps it from running."""
    pages = {"escaped": render(hostile(), history, "html", CHECKS)}
    with monkeypatch.context() as patch:
        without = environment().overlay(autoescape=False)
        patch.setattr(report, "environment", lambda: without)
        pages["forgotten"] = render(hostile(), history, "html", CHECKS)
    # That a script would have run, and would be seen: without the policy it does.
    pages["unprotected"] = pages["forgotten"].replace("Content-Security-Policy", "nothing", 1)
    shown = {}
    for name, text in pages.items():
        file = tmp_path / f"{name}.html"
        file.write_text(text)
        options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
        command = [chromium, *options, "--dump-dom", file.as_uri()]
        shown[name] = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    titles = {name: re.search("<title>(.*?)</title>", text, re.DOTALL) for name, text in shown.items()}
    assert titles["unprotected"] is not None
    assert titles["unprotected"][1] == "owned"
    for name in ("escaped", "forgotten"):
        found = titles[name]
        assert found is not None
        assert found[1] != "owned"
    page = Page(shown["escaped"])
    assert attacked(page) == []
    assert "Needs attention" in page.said
    assert page.tags.count("svg") > len(HOSTILE)


def test_a_page_tells_every_state_in_words_and_every_picture_has_a_name(history: History) -> None:
    text = render(hostile(), history, "html", CHECKS)
    for word in ("critical", "warning", "unknown", "ok"):
        assert f"<span>{word}</span>" in text
    pictures = re.findall(r"<svg[^>]*>", text)
    assert pictures
    assert all('aria-label="' in picture or 'aria-hidden="true"' in picture for picture in pictures)


def test_where_nobody_looked_a_picture_says_so(history: History) -> None:
    assert "nobody has looked" in render(found(CRITICAL), None, "html")
    assert "always ok" not in render(found(CRITICAL), None, "html")


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_every_text_has_the_contrast_that_people_need(scheme: int) -> None:
    """4.5, as WCAG AA has it."""

    def light(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    colours = dict(
        re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", style().split("@media (prefers-color-scheme: dark)")[scheme])
    )
    states = ("ok", "warning", "critical", "unknown")
    pairs = [(state, f"{state}-wash") for state in states] + [(state, "card") for state in states]
    pairs += [(ink, on) for ink in ("ink", "soft") for on in ("paper", "card")]
    for ink, on in pairs:
        darker, lighter = sorted((light(colours[ink]), light(colours[on])))
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5, (ink, on)


@pytest.mark.parametrize("text", HOSTILE)
def test_in_markdown_it_is_text_on_one_line(text: str) -> None:
    line = safe(text)
    assert "\n" not in line
    assert line.isprintable()
    bare = re.sub(r"\\[\\`*_{}\[\]<>#|~!&@$:.]", "", line)
    assert not re.search(r"[<>`|\[\]#*_!@&]|https?://|www\.", bare)


def test_a_report_in_markdown_is_one_table_whatever_is_said(history: History) -> None:
    text = render(hostile(), history, "md", CHECKS)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {7, 5}  # verdicts, and numbers
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        "## The last 1 h",
        "## What was done",
        "## What could not be collected",
    ]


def test_a_report_in_json_is_whole_and_harmless_to_a_terminal(history: History) -> None:
    text = render(hostile(), history, "json", CHECKS)
    assert text.isascii()
    assert "\x1b" not in text
    told = json.loads(text)
    assert told["state"] == "critical"
    assert {verdict["message"] for verdict in told["verdicts"]} == set(HOSTILE)
    assert len(told["series"]["Processor"]["points"]) == 12


def test_what_is_no_number_in_json_is_null() -> None:
    text = render(found(OK, facts={"x": float("nan"), "y": [float("inf")]}), None, "json")
    assert json.loads(text, parse_constant=pytest.fail)["facts"] == {"x": None, "y": [None]}


@pytest.mark.parametrize("kind", ["html", "json"])
def test_no_secret_of_a_fact_is_in_a_report(kind: str) -> None:
    key = "AKIA" + "IOSFODNN7EXAMPLQ"
    text = render(found(OK, facts={"log": {"lines": [f"key {key}"]}}), None, kind)  # type: ignore[arg-type] # one of them
    assert key not in text


@pytest.mark.parametrize("kind", ["html", "md", "json"])
def test_the_first_round_and_an_empty_one_have_reports_too(kind: str, tmp_path: Path) -> None:
    history = History(tmp_path / "monitor.db")
    for seen in (Round(time=NOON, host="", facts={}), found(CRITICAL, facts={"cpu": {"percent": 3.0}})):
        assert render(seen, history, kind)  # type: ignore[arg-type] # one of them
    assert not history.store.exists


def test_the_most_urgent_is_first_and_what_waits_is_said() -> None:
    seen = found({"b": OK, "a": WARNING, "c": CRITICAL})
    text = render(seen, None, "md")
    assert re.findall(r"^\| \S+ \| (\w) \|", text, re.MULTILINE) == ["c", "a", "b"]
    waiting = Round(
        time=NOON,
        host="x",
        facts={},
        verdicts=(CheckResult(check="a", state=OK, found=CRITICAL, since=NOON - 90),),
    )
    for kind in ("md", "html"):
        assert "for 1 min 30 s; found critical, which has to last" in render(waiting, None, kind)


@pytest.mark.parametrize("name", ["report", "report.pdf", "html", ".html.exe"])
def test_a_file_of_another_kind_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match=r"none of \.html, \.md and \.json"):
        kind_of(Path(name))


def test_numbers_and_times_are_written_as_people_do() -> None:
    assert [amount(value, "%") for value in (100.0, 89.23, 0.256, 0.0)] == ["100 %", "89.2 %", "0.26 %", "0 %"]
    times = [0, 59, 60, 3725, 86400, 200_000]
    assert [duration(seconds) for seconds in times] == ["0 s", "59 s", "1 min", "1 h 2 min", "24 h", "2 d 7 h"]


def test_without_jinja2_only_the_page_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    environment.cache_clear()
    with pytest.raises(RedomaError, match=r"Jinja2 is not installed.*redoma\[monitor\]"):
        render(found(OK), None, "html")
    assert render(found(OK), None, "md")
    assert render(found(OK), None, "json")
