"""The filter that an engine is given says what the jail's does: one table, two forms."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redoma.backends.docker import syscalls
from redoma.backends.jail import seccomp
from redoma.backends.jail.seccomp import Condition

_PROFILE: list[dict[str, Any]] = json.loads(syscalls.profile())["syscalls"]
_TOLD = {name for rule in _PROFILE for name in rule["names"]}
_INTERESTING = sorted(
    {
        (value + step) & 0xFFFFFFFF
        for rules in seccomp.CHECKED.values()
        for rule in rules
        for condition in rule.conditions
        for value in (*condition.values, condition.mask)
        for step in (-1, 0, 1)
    }
)
_WORDS = st.one_of(st.sampled_from(_INTERESTING), st.integers(0, 0xFFFFFFFF))


def _lets_pass(name: str, arguments: list[int]) -> bool:
    """As libseccomp reads the rules: any that fits, and all arguments of it."""
    return any(
        all(arguments[arg["index"]] & arg["value"] == arg["valueTwo"] for arg in rule["args"])
        for rule in _PROFILE
        if name in rule["names"] and rule["action"] == "SCMP_ACT_ALLOW"
    )


def _jail_lets_pass(name: str, arguments: list[int]) -> bool:
    def holds(condition: Condition) -> bool:
        return (arguments[condition.argument] & condition.mask in condition.values) is condition.wanted

    return not any(all(map(holds, rule.conditions)) for rule in seccomp.CHECKED[name])


_OTHERWISE = {
    "fcntl",
    "sched_setaffinity",
    "sched_setscheduler",
    "sched_setparam",
    "sched_setattr",
    "setpriority",
    "ioprio_set",
}


@pytest.mark.parametrize("name", sorted(set(seccomp.CHECKED) - _OTHERWISE))
@settings(max_examples=300, deadline=None)
@given(low=st.lists(_WORDS, min_size=6, max_size=6), high=st.integers(0, 0xFFFFFFFF))
def test_a_call_passes_where_the_jail_lets_it_pass(name: str, low: list[int], high: int) -> None:
    arguments = [word | high << 32 for word in low]  # the upper half makes no difference, in neither
    assert _lets_pass(name, arguments) is _jail_lets_pass(name, low)


def test_every_call_that_the_jail_knows_is_in_it() -> None:
    known = [*seccomp.ALLOWED.values(), *seccomp.REFUSED.values(), *seccomp.ABSENT.values(), seccomp.PRETENDED]
    assert {name for names in known for name in names.split()} | set(seccomp.CHECKED) == _TOLD


def test_no_call_is_both_allowed_and_refused() -> None:
    """libseccomp 2.5.4 then drops the rules that allow, without an error."""
    answers: dict[str, set[tuple[str, int | None]]] = {}
    for rule in _PROFILE:
        for name in rule["names"]:
            answers.setdefault(name, set()).add((rule["action"], rule.get("errnoRet")))
    assert [name for name, found in answers.items() if len(found) > 1] == []
