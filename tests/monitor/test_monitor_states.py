"""What a rule finds counts when it has lasted, and each state has a beginning."""

from __future__ import annotations

import pytest
from after_stage import CRITICAL, NOON, OK, UNKNOWN, WARNING, found

from redoma.monitor.history import settle
from redoma.monitor.model import Check, State, StoredState


def play(lasting: float, *steps: tuple[float, State]) -> list[tuple[State, float]]:
    """The states, with how long after the first round each began, of a check whose rule finds this at these seconds."""
    held: dict[str, StoredState] = {}
    seen = []
    for seconds, state in steps:
        now = NOON + seconds
        settled, held = settle(found(state, now), held, [Check(name="disk", rule="", lasting=lasting)])
        (verdict,) = settled.verdicts
        assert verdict.found is state
        seen.append((verdict.state, verdict.since - NOON))
    return seen


def test_without_a_time_to_last_what_is_found_is_so_at_once() -> None:
    assert play(0, (0, CRITICAL), (1, CRITICAL), (2, OK)) == [(CRITICAL, 0), (CRITICAL, 0), (OK, 2)]


def test_what_is_found_counts_when_it_has_lasted() -> None:
    steps = [(0.0, OK), (10.0, WARNING), (60.0, WARNING), (70.0, WARNING)]
    assert play(60, *steps) == [(OK, 0), (OK, 0), (OK, 0), (WARNING, 70)]


def test_a_moment_of_ok_begins_the_wait_anew() -> None:
    steps = [(0.0, CRITICAL), (50.0, OK), (60.0, CRITICAL), (100.0, CRITICAL), (120.0, CRITICAL)]
    assert [state for state, _ in play(60, *steps)] == [OK, OK, OK, OK, CRITICAL]


def test_that_all_is_well_again_and_that_nothing_is_known_are_so_at_once() -> None:
    steps = [(0.0, CRITICAL), (60.0, CRITICAL), (61.0, UNKNOWN), (62.0, CRITICAL), (63.0, OK), (64.0, UNKNOWN)]
    assert play(60, *steps) == [(OK, 0), (CRITICAL, 60), (UNKNOWN, 61), (CRITICAL, 62), (OK, 63), (UNKNOWN, 64)]


def test_after_unknown_a_new_finding_still_has_to_last() -> None:
    assert [state for state, _ in play(60, (0, UNKNOWN), (1, WARNING), (61, WARNING))] == [UNKNOWN, OK, WARNING]


def test_from_bad_to_worse_needs_no_second_wait() -> None:
    assert play(60, (0, WARNING), (60, WARNING), (61, CRITICAL))[-1] == (CRITICAL, 61)


@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
def test_a_clock_that_jumps_neither_holds_a_state_back_for_long_nor_begins_it_in_the_future(jump: float) -> None:
    steps = [(0.0, CRITICAL), (jump, CRITICAL), (jump + 60, CRITICAL)]
    state, since = play(60, *steps)[-1]
    assert state is CRITICAL
    assert since <= jump + 60


def test_each_check_stands_for_itself() -> None:
    checks = [Check(name="disk", rule=""), Check(name="memory", rule="", lasting=60)]
    both = found({"disk": CRITICAL, "memory": CRITICAL})
    settled, _ = settle(both, {}, checks)
    assert [verdict.state for verdict in settled.verdicts] == [CRITICAL, OK]
