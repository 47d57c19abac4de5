"""Every attack fails in the jail, and is seen to succeed where the layer that stops it is missing."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jail_crew import Crew, ourselves, unprivileged
from jail_suite import ATTACKS

USERS: dict[str, Callable[[Path], list[str]]] = {"root": ourselves, "unprivileged": unprivileged}
if os.getuid() != 0:
    USERS = {"unprivileged": ourselves}


@pytest.fixture(scope="module", params=USERS)
def crew(request: pytest.FixtureRequest) -> Iterator[Crew]:
    """One user's crew, on the attacks that were selected."""
    calls = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    selected = [call["name"] for call in calls if call.get("crew") == request.param and "name" in call]
    with tempfile.TemporaryDirectory(prefix="attack-crew-") as place:
        crew = Crew(selected, USERS[request.param](Path(place)))
        yield crew
        crew.dismiss()


@pytest.mark.parametrize("name", ATTACKS)
def test_the_attack_fails_in_the_jail_and_succeeds_without_what_stops_it(name: str, crew: Crew) -> None:
    verdict = crew.verdict(name)
    if "absent" in verdict:
        pytest.skip(verdict["absent"])
    assert "broken" not in verdict, verdict["broken"]
    assert verdict["started"], f"the attack never ran: {verdict['guarded']}"
    assert not verdict["breached"], f"the jail is broken: {verdict['guarded']}"
    assert not verdict.get("filter"), f"the filter of system calls has a gap: {verdict['alone']}"
    # Where only the host's root could do it at all, nobody else can see it succeed.
    assert verdict.get("control", True), f"it fails anyway, so the test proves nothing: {verdict['bare']}"


def test_the_attacks_leave_nothing_on_the_host(crew: Crew) -> None:
    assert crew.leftovers() == {}


def test_there_are_more_than_a_hundred() -> None:
    assert len(ATTACKS) > 110
