"""Whoever decides sees what would run, in the order in which it runs: nothing in the text hides, moves or imitates."""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime
from typing import Any, Literal

import pytest
from approval_stage import case_of

from redoma.approval import Ask, describe
from redoma.approval.ask import ask_of
from redoma.approval.webhook import summary
from redoma.frontends.cli.emit import shown
from redoma.lib.sanitise import visible

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def ask_for(code: str, **fields: Any) -> Ask:
    return ask_of(case_of(code, **fields), b"k" * 32, id="1" * 32, created=NOW, expires=NOW)


TRICKS = {
    "override": ("rm -rf x # \u202esafe\u202c", r"rm -rf x # \u202esafe\u202c"),
    "isolate": ("ls \u2067; rm x\u2069", r"ls \u2067; rm x\u2069"),
    "marks of direction": ("a\u200eb\u200fc\u061cd", r"a\u200eb\u200fc\u061cd"),
    "hebrew around punctuation": ("cp \u05d0 / \u05d1", r"cp \u05d0 / \u05d1"),
    "arabic letters and digits": ("rm \u0627\u0661 -rf \u0662", r"rm \u0627\u0661 -rf \u0662"),
    "syriac, nko, adlam": ("\u0710\u07ca\U0001e900", r"\u0710\u07ca\U0001e900"),
    "zero width": ("r\u200bm\u2060 \ufeffx", r"r\u200bm\u2060 \ufeffx"),
    "joiners": ("a\u200db\u200cc", r"a\u200db\u200cc"),
    "variation selectors": ("rm\ufe0f x\U000e0100", r"rm\ufe0f x\U000e0100"),
    "tags": ("ls\U000e0072\U000e006d", r"ls\U000e0072\U000e006d"),
    "fillers": ("a\u3164b\u115fc\uffa0d\u2800e\U0001d159f\ufffcg", r"a\u3164b\u115fc\uffa0d\u2800e\U0001d159f\ufffcg"),
    "blanks": ("a\u00a0b\u2003c\u3000d", r"a\xa0b\u2003c\u3000d"),
    "line ends": ("a\u2028b\u2029c\x85d\x0be\x0cf\rg", r"a\u2028b\u2029c\x85d\x0be\x0cf\rg"),
    "terminal": ("ls\x1b[2K\x1b[1Aecho\x9b31m\x07\x08", r"ls\x1b[2K\x1b[1Aecho\x9b31m\x07\x08"),
    "title": ("\x1b]0;safe\x07ls", r"\x1b]0;safe\x07ls"),
    "strike-through": ("r\u0336m\u0336", r"r\u0336m\u0336"),
    "enclosing": ("rm\u20dd", r"rm\u20dd"),
    "on a blank": ("rm \u0301x", r"rm \u0301x"),
    "second mark": ("e\u0301\u0302", "e\u0301" + r"\u0302"),
    "private use": ("\ue000\U000f0000", r"\ue000\U000f0000"),
}


@pytest.mark.parametrize("name", TRICKS)
def test_what_hides_or_moves_text_is_shown_as_an_escape_everywhere(name: str) -> None:
    text, expected = TRICKS[name]
    assert visible(text) == expected
    ask = ask_for(text, reason=text, label=text, requester=text)
    lines = describe(ask).text.split("\n")
    assert f"  | {expected}" in lines
    assert f"label:    {expected}" in lines
    posted = summary(ask)
    assert {posted["text"], posted["reason"], posted["label"], posted["requester"]} == {expected}
    assert shown(text, 200) == expected


def test_a_long_pile_of_marks_is_escaped_and_bounded() -> None:
    ask = ask_for("ls a" + "\u0336" * 50_000)
    told = describe(ask)
    assert not told.whole  # 300,000 characters of escapes: nobody decides on that at a prompt
    assert "too long to be shown" in told.text
    assert len(told.text) < 10_000
    assert len(summary(ask)["text"]) < 5_000


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_accents_stay_readable(form: Literal["NFC", "NFD"]) -> None:
    text = unicodedata.normalize(form, "echo 'Olá, A³X! ação, pêssego, você, à, ü, ñ, Übergröße, 日本語, Ελλάδα, €'")
    assert visible(text) == text
    assert f"  | {text}" in describe(ask_for(text)).text


def test_a_line_that_a_terminal_would_wrap_has_its_bar_on_every_row() -> None:
    fake = "risks, by policy standard:" + " " * 50 + "  (none was found)"
    for padding in ("x" * 76, " " * 76, "日" * 38, "\t" * 9):
        text = describe(ask_for(f"pip install x #{padding}{fake}")).text
        rows = [row for row in text.split("\n") if "(none was found)" in row or row.startswith("risks, by policy")]
        assert [row for row in rows if not row.startswith("  |")] == ["risks, by policy standard:"]
        barred = [row for row in text.split("\n") if row.startswith("  |")]
        assert max(map(cells, barred)) <= 80


def cells(row: str) -> int:
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in row)
    return len(row) + wide + 7 * row.count("\t")


def test_a_reason_does_not_push_the_rest_out_of_sight() -> None:
    text = describe(ask_for("pip install x", reason="please " * 100_000, label="l" * 100_000)).text
    assert text.count("more characters") == 2
    assert len(text) < 10_000


def test_what_is_cut_off_for_a_webhook_is_said() -> None:
    posted = summary(ask_for("echo " + "a" * 5000 + "; pip install evil"))
    assert posted["text"].endswith("more characters)")


def test_a_secret_is_not_posted_for_being_broken_by_something_invisible() -> None:
    key = "ghp_" + "a1B2c3D4e5F6g7H8i9J0" * 2
    posted = summary(ask_for(f"curl -H 'Authorization: {key[:20]}\u200b{key[20:]}' x.io # \u202e"))
    assert key[:20] not in posted["text"]
    assert key[20:] not in posted["text"]
