"""The attacks on the jail fail in lean cells, with a user of their own and with Redoma's, but for those that
`lean_suite` says why. Those of its own are seen to succeed without the boundary; the others in test_jail_attacks.py."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import jail_crew
import pytest
from jail_crew import Crew
from lean_suite import OWN_NAMES, applicable

from redoma.backends.jail.lean import why_not

KINDS = ["its own user", "redoma's user"] if os.getuid() == 0 else ["redoma's user"]


def _command(kind: str, place: Path) -> list[str]:
    """How the attackers are started: by an ordinary user, or by root with an interpreter that others can read."""
    if os.getuid() != 0:
        return [*jail_crew.ourselves(place), "lean"]
    command = jail_crew.unprivileged(place)
    return [*(command if kind == "redoma's user" else command[len(jail_crew.BECOME) :]), "lean"]


def _objection(name: str, verdict: dict[str, Any]) -> str:
    if "absent" in verdict:
        return ""
    if "broken" in verdict:
        return str(verdict["broken"])
    if not verdict["started"]:
        return f"the attack never ran: {verdict['guarded']}"
    if verdict["breached"]:
        return f"the lean cell is broken: {verdict['guarded']}"
    if name in OWN_NAMES and not verdict["control"]:
        return f"it fails anyway, so the test proves nothing: {verdict['bare']}"
    return ""


@pytest.mark.parametrize("kind", KINDS)
def test_the_attacks_fail_in_lean_cells_and_leave_nothing(kind: str) -> None:
    own_user = kind == "its own user"
    if why := why_not(own_user=own_user):
        pytest.skip(why)
    attacks = applicable(own_user=own_user)
    with tempfile.TemporaryDirectory(prefix="attack-crew-") as place:
        crew = Crew(attacks, _command(kind, Path(place)))
        try:
            objections = {name: why for name in attacks if (why := _objection(name, crew.verdict(name)))}
            left = crew.leftovers()
        finally:
            crew.dismiss()
    assert not objections, "\n".join(f"{name}: {why}" for name, why in objections.items())
    assert left == {}


def test_no_more_is_waived_than_is_argued() -> None:
    assert len(applicable(own_user=True)) > 285
    assert len(applicable(own_user=False)) > 285
