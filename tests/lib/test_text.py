"""Helpers for text: suggestions, shortening, RE2 patterns."""

from __future__ import annotations

import pytest

from redoma.lib.text import closest, compile_re2, did_you_mean, shorten, suggest


def test_a_misspelt_word_is_answered_with_the_one_that_was_meant() -> None:
    assert closest("standrad", ["strict", "standard"]) == "standard"
    assert did_you_mean("tiem", ["time", "memory"], "see the manual") == "did you mean 'time'?"


def test_a_word_like_no_other_is_answered_with_the_choices() -> None:
    assert closest("zzz", ["time", "memory"]) is None
    assert did_you_mean("zzz", ["time", "memory"], "see the manual") == "see the manual"
    assert suggest("zzz", ["time", "memory"]) == "use one of: memory, time"


def test_a_hint_lists_a_bounded_number_of_choices() -> None:
    hint = suggest("zzz", [f"a{number:03}" for number in range(1000)])
    assert len(hint) < 200
    assert hint.endswith(", ...")


@pytest.mark.parametrize(("text", "shown"), [("", ""), ("abcd", "abcd"), ("abcde", "abc…")])
def test_shortened_text_is_never_longer_than_asked_for(text: str, shown: str) -> None:
    assert shorten(text, 4) == shown


def test_an_invalid_pattern_is_a_value_error_that_says_why() -> None:
    assert compile_re2("a+b").search("xaab")
    with pytest.raises(ValueError, match="missing"):
        compile_re2("(a")
    with pytest.raises(ValueError, match="invalid perl operator"):
        compile_re2("(?=a)")
