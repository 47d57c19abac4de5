"""Globs of rules: the quick way for plain words finds exactly what their expressions find."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from redoma.models import Decision
from redoma.policy import Rule
from redoma.policy.facts import Call, Command
from redoma.policy.globs import any_glob, check_glob, glob_expression
from redoma.policy.match import Matcher

WORDS = st.text(alphabet="aAkKsS\u017f\u212a*?[]$!-\n\0", max_size=4)


@given(globs=st.lists(WORDS, max_size=3), text=WORDS, ignore_case=st.booleans())
@example(globs=["sudo"], text="SUDO", ignore_case=True)
@example(globs=["s"], text="\u017f", ignore_case=True)
@example(globs=["\u212a"], text="k", ignore_case=True)
@example(globs=["rm", "RM"], text="r", ignore_case=True)
@example(globs=[], text="", ignore_case=False)
def test_a_glob_fits_exactly_what_its_expression_fits(globs: list[str], text: str, ignore_case: bool) -> None:
    flags = re.DOTALL | (re.IGNORECASE if ignore_case else 0)
    try:
        expressions = [re.compile(glob_expression(glob), flags) for glob in globs]
    except re.error:
        return  # which `check_glob` refuses in any rule
    expected = any(expression.fullmatch(text) for expression in expressions)
    assert bool(any_glob(globs, ignore_case=ignore_case)(text)) is expected


@given(
    st.text(alphabet="aAkK\u017f*?[$]", min_size=1, max_size=4),
    st.text(alphabet="aAkK\u017f\u212a", min_size=1, max_size=4),
)
def test_the_name_of_a_command_fits_as_its_glob_does(glob: str, name: str) -> None:
    try:
        check_glob(glob)
    except ValueError:  # refused when the rule is read
        return
    rule = Rule(id="x", decision=Decision.PROMPT, reason="x", command=(f"{glob} rest",))
    found = list(Matcher([rule]).of_fact(Command(name=name, args=("rest",)), "bash"))
    assert bool(found) is bool(any_glob([glob])(name))


DOTTED = st.text(alphabet="ab.*?[]!$\0", min_size=1, max_size=5)


@given(st.lists(DOTTED, min_size=1, max_size=3), DOTTED)
@example(["a.*", "[.]b"], "ab")
@example(["os.*", "*"], "print")
@example(["a[!.]b"], "aab")
@example(["a[.b]a"], "aba")
def test_the_name_of_a_call_fits_as_the_globs_do_with_a_dot_or_without(globs: list[str], name: str) -> None:
    try:
        for glob in globs:
            check_glob(glob)
    except ValueError:  # refused when the rule is read
        return
    rule = Rule(id="x", decision=Decision.PROMPT, reason="x", calls=tuple(globs))
    found = list(Matcher([rule]).of_fact(Call(name=name, literal=False), "python"))
    wild = [glob for glob in globs if not {"*", "?", "[", "$"}.isdisjoint(glob)]
    assert bool(found) is (name in set(globs) - set(wild) or bool(any_glob(wild, ignore_case=False)(name)))
