"""A text without the hints of a kind has nothing of that kind in it: derived from the patterns, and tried."""

from __future__ import annotations

import re._constants as op
import re._parser as parser
import warnings
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redoma.redaction import hints, scanner
from redoma.redaction.patterns import PATTERNS, Pattern

MAX_SPELLINGS = 256


def test_every_kind_has_hints_and_every_hint_is_in_lower_case() -> None:
    assert set(hints.HINTS) == {pattern.kind for pattern in PATTERNS}
    for _, texts in hints.HINTS.values():
        assert all(text and text == text.lower() and text.isascii() for text in texts)


@pytest.mark.parametrize("pattern", PATTERNS, ids=[f"{number}-{p.kind}" for number, p in enumerate(PATTERNS)])
def test_a_pattern_can_not_match_without_a_hint(pattern: Pattern) -> None:
    digits, texts = hints.HINTS[pattern.kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = parser.parse(pattern.regex.decode("latin-1"))
    assert least_digits(tree) >= digits
    assert tree.getwidth()[0] >= hints.MIN_LENGTHS.get(pattern.kind, 0)
    assert not texts or always_has(tree, [text.decode() for text in texts])


@pytest.mark.parametrize(
    ("regex", "holds"),
    [
        (r"\bkey(?:s|z)", True),
        (r"(?i:KEY)x", True),
        (r"k[e]y", True),
        (r"(?:my)?key{2}", True),  # `ke`, then two of y
        (r"key{0,1}", False),
        (r"(?:k|ke(?:y|z))", False),
        (r"k(?:ey[0-9]{3,}|eyx)", True),
        (r"[kK]{1,2}ey", False),
        (r"key|cey", False),
        (r"(?:key)?x", False),
        (r"(?:key){1,3}", True),
        (r"ke.y", False),
        (r"k(?:ey|eys)", True),
    ],
)
def test_the_derivation_itself(regex: str, holds: bool) -> None:
    assert always_has(parser.parse(regex), ["key"]) == holds


def least_digits(tree: Iterable[Any]) -> int:
    """How many digits each match has at least."""
    count = 0
    for what, value in tree:
        letters = choices(what, value)
        if letters is not None:
            count += letters <= set("0123456789")
        elif what is op.BRANCH:
            count += min(map(least_digits, value[1]))
        elif what is op.SUBPATTERN:
            count += least_digits(value[3])
        elif what in (op.MAX_REPEAT, op.MIN_REPEAT):
            count += value[0] * least_digits(value[2])
    return count


def always_has(tree: Iterable[Any], texts: list[str]) -> bool:
    """Whether each match contains one of the texts, whatever its case. False may also mean that we can't tell."""
    parts = list(tree)
    for start in range(len(parts)):
        spelt, _ = spellings(parts[start:])
        if all(any(text in spelling for text in texts) for spelling in spelt):
            return True
    for what, value in parts:
        if what is op.BRANCH and all(always_has(branch, texts) for branch in value[1]):
            return True
        if what is op.SUBPATTERN and always_has(value[3], texts):
            return True
        if what in (op.MAX_REPEAT, op.MIN_REPEAT) and value[0] and always_has(value[2], texts):
            return True
    return False


def spellings(tree: Iterable[Any]) -> tuple[set[str], bool]:
    """All that a part can begin with, in lower case, and whether each is all that it matches then."""
    spelt, whole = {""}, True
    for what, value in tree:
        more, whole = {""}, what is op.AT
        if (letters := choices(what, value)) is not None:
            more, whole = letters, True
        elif what is op.SUBPATTERN:
            more, whole = spellings(value[3])
        elif what is op.BRANCH:
            branches = [spellings(branch) for branch in value[1]]
            more, whole = set().union(*(each for each, _ in branches)), all(each for _, each in branches)
        elif what in (op.MAX_REPEAT, op.MIN_REPEAT):
            once, complete = spellings(value[2])
            if complete and len(once) == 1:
                more = {"".join(once) * value[0]}
        if len(spelt) * len(more) > MAX_SPELLINGS:
            return spelt, False
        spelt = {before + after for before in spelt for after in more}
        if not whole:
            break
    return spelt, whole


def choices(what: Any, value: Any) -> set[str] | None:
    """The characters that a part stands for, in lower case, if it is one of a few ASCII characters."""
    if what is op.LITERAL and value < 128:
        return {chr(value).lower()}
    if what is not op.IN:
        return None
    found: set[str] = set()
    for kind, each in value:
        if kind is op.LITERAL and each < 128:
            found.add(chr(each).lower())
        elif kind is op.RANGE and each[1] < 128:
            found |= {chr(number).lower() for number in range(each[0], each[1] + 1)}
        elif kind is op.CATEGORY and each is op.CATEGORY_DIGIT:
            found |= set("0123456789")
        else:
            return None
    return found


examples = [text for pattern in PATTERNS for text in (*pattern.match, *pattern.not_match)]
pieces = (
    st.sampled_from(examples)
    | st.sampled_from(examples).flatmap(lambda text: st.integers(0, len(text)).map(lambda cut: text[cut:]))
    | st.sampled_from([text.decode() for _, texts in hints.HINTS.values() for text in texts])
    | st.sampled_from([" ", "\n", "\t", ": ", "=", '"', "'", "1234567890", "4111111111111111", "é"])
    | st.text(max_size=12)
)


@settings(max_examples=60, deadline=None)
@given(st.lists(pieces, max_size=5).map("".join), st.booleans(), st.booleans())
def test_a_short_text_gives_what_the_automaton_of_all_patterns_gives(text: str, upper: bool, named: bool) -> None:
    data = (text.upper() if upper else text).encode("utf-8", "surrogatepass")[: scanner._SHORT]
    everything, all_before, scans_before = scanner._everything(), scanner._all, scanner._scans
    try:
        scanner._all, scanner._scans = None, 0
        by_hints = list(scanner.find(data, named=named))
    finally:
        scanner._all, scanner._scans = all_before, scans_before
    assert scanner._automata_for(data) is everything
    assert by_hints == list(scanner.find(data, named=named))
