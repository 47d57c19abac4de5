"""One search for many texts finds whatever a search of each finds."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from redoma.redaction import Redactor
from redoma.redaction.patterns import PATTERNS, Pattern

EXAMPLES = [text for pattern in PATTERNS for text in (*pattern.match, *pattern.not_match)]
VALUES = ("Tr0ub4dor", "p ss/w+rd", "line one of it\nline two of a value")
REDACTORS = (Redactor(), Redactor(VALUES))
whole = st.sampled_from(EXAMPLES)
cut = st.builds(lambda text, start, stop: text[start : len(text) - stop], whole, st.integers(0, 6), st.integers(0, 6))
texts = st.lists(st.one_of(whole, cut, st.text(max_size=20), st.sampled_from(VALUES)), max_size=4)


@given(texts, st.sampled_from(REDACTORS))
@example(["pass=hunter2hunter2"], REDACTORS[0])  # patterns that begin at the beginning of a text or after white space
@example(["x", "key = 9f86d081884c7d659a2feaa0c55ad015"], REDACTORS[0])
@example(["\ud800", "ghp_" + "x9Yk2LmN" * 4 + "x9Yk"], REDACTORS[0])
@settings(max_examples=500)
def test_where_one_search_finds_nothing_a_search_of_each_finds_nothing(texts: list[str], redactor: Redactor) -> None:
    if redactor.finds_nothing_in(texts):
        assert all(redactor.redact(text) == (text, {}) for text in texts)
        assert redactor.redact_data(texts) == (texts, {})


@pytest.mark.parametrize("text", EXAMPLES)
def test_one_search_finds_every_example_between_other_texts(text: str) -> None:
    redactor = REDACTORS[0]
    if redactor.redact(text)[1]:
        assert not redactor.finds_nothing_in([text])
        assert not redactor.finds_nothing_in(["before", text, "behind"])


def test_it_does_say_that_ordinary_texts_have_nothing() -> None:
    assert Redactor(VALUES).finds_nothing_in(["print('hello')", "root", "it is Python code that nobody has reviewed"])
    assert Redactor().finds_nothing_in([])
    assert not Redactor(VALUES).finds_nothing_in(["print('hello')", f"x = {VALUES[0]!r}"])


ANCHORS = re.compile(rb"\\[ABzZ]|(?<!\\)[\^$]")
LIKE_A_LINE = (rb"(?m:^", rb"(?:^|\s)", rb"(?:^|\n)")
"""Where the end of a line is as good as the beginning of the text."""


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.kind)
def test_no_pattern_tells_the_end_of_a_line_from_the_end_of_a_text(pattern: Pattern) -> None:
    rest = re.sub(rb"\\\\|\\[\^$\[\]]", b"", pattern.regex)  # escaped ones are characters
    rest = re.sub(rb"\[\^?\]?[^\]]*\]", b"", rest)  # and so are those in a class
    for known in LIKE_A_LINE:
        rest = rest.replace(known, b"")
    assert not ANCHORS.search(rest), rest
