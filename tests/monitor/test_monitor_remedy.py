"""Nothing is mended without a yes; with a pinned one it is, unattended, and with another command it is an alarm."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from after_stage import CRITICAL, NOON, OK, UNKNOWN, WARNING, Place, found, with_remedy
from monitor_stage import patient as patient

from redoma.approval import Ledger
from redoma.approval.store import open_store
from redoma.audit import AuditLog
from redoma.config import NativeEntry
from redoma.monitor.model import Check, CommandProbe, Plan, Remedy, Round, State
from redoma.monitor.report import render
from redoma.monitor.service import Monitor
from redoma.pipeline.executor import AsyncExecutor

RISKY = "./systemctl restart app"
"""What policy asks a person about. Where it runs here it only writes down that it did."""
HARMLESS = "touch mended"


@pytest.fixture
def listed(tmp_path: Path) -> Place:
    return Place(tmp_path, whitelist=[HARMLESS, "false"])


@pytest.fixture
def asking(tmp_path: Path) -> Place:
    program = tmp_path / "systemctl"
    program.write_text('#!/bin/sh\necho "$@" >> restarted\n')
    program.chmod(0o755)
    return Place(tmp_path, approver="queue")


async def mend(place: Place, command: str, time: float = NOON, **fields: float) -> Round:
    return await place.responder(with_remedy(command, **fields)).respond(found(CRITICAL, time, "full"))


def texts(seen: Round) -> list[str]:
    return [action.text for action in seen.actions]


def ledger(place: Place) -> Ledger:
    assert place.config.state is not None
    audit = AuditLog(place.config.audit.directory, retention_days=30)
    return Ledger(open_store(place.config.state), audit.append)


def approve(place: Place, *, pinned: bool) -> None:
    (entry,) = ledger(place).entries("open")
    now = datetime.now(UTC)
    until = now + timedelta(days=1)
    said = entry.ask.answer("approved", approver="bob", reason="it only cleans", at=now, expires=until, pinned=pinned)
    ledger(place).answer(said)


async def test_a_listed_command_that_policy_allows_mends_and_is_told(listed: Place, tmp_path: Path) -> None:
    seen = await mend(listed, HARMLESS)
    (action,) = seen.actions
    assert (action.ok, action.name, action.text.split(",")[0]) == (True, "ops:shell", "ran")
    assert (tmp_path / "mended").exists()
    assert action.run
    assert listed.history.actions(0) == [action]


@pytest.mark.parametrize("state", [OK, UNKNOWN])
async def test_what_is_well_or_not_known_is_not_mended(listed: Place, tmp_path: Path, state: State) -> None:
    seen = await listed.responder(with_remedy(HARMLESS)).respond(found(state))
    assert not seen.actions
    assert not (tmp_path / "mended").exists()


async def test_it_waits_until_the_state_has_lasted(listed: Place) -> None:
    ran = [bool((await mend(listed, HARMLESS, NOON + second, after=60.0)).actions) for second in (0, 59, 60)]
    assert ran == [False, False, True]


async def test_what_gets_worse_or_goes_to_and_fro_has_lasted_as_well(listed: Place) -> None:
    responder, ran = listed.responder(with_remedy(HARMLESS, after=60.0)), []
    for second, state in ((0, WARNING), (40, CRITICAL), (59, WARNING), (60, CRITICAL)):
        ran.append(bool((await responder.respond(found(state, NOON + second))).actions))
    assert ran == [False, False, False, True]


@pytest.mark.parametrize("command", [HARMLESS, "false"])
async def test_it_is_tried_again_only_after_a_while_also_over_restarts(tmp_path: Path, command: str) -> None:
    ran = []
    for second in (0, 1, 3599, 3600, 3601):
        place = Place(tmp_path, whitelist=[HARMLESS, "false"])
        ran.append(len((await mend(place, command, NOON + second, again=3600.0)).actions))
    assert ran == [1, 0, 0, 1, 0]


async def test_a_kill_in_the_middle_does_not_make_it_run_again_at_once(
    listed: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(AsyncExecutor, "submit", killed)
        with pytest.raises(KeyboardInterrupt):
            await mend(listed, HARMLESS)
    assert "nothing is known of its end" in listed.history.actions(0)[0].text
    assert not (await mend(listed, HARMLESS, NOON + 1)).actions


async def test_what_is_not_on_the_list_is_refused_and_told_in_the_report(listed: Place) -> None:
    seen = await mend(listed, "touch other")
    assert texts(seen)[0].startswith("refused: ")
    for kind in ("html", "md", "json"):
        assert "refused: " in render(seen, listed.history, kind)


async def test_without_an_approver_it_is_refused_and_told(tmp_path: Path) -> None:
    place = Place(tmp_path)
    seen = await mend(place, RISKY)
    assert texts(seen)[0].startswith("refused: ")
    assert "refused: " in render(seen, place.history, "html")


async def test_what_needs_a_yes_waits_without_holding_up_the_round_and_is_asked_once(asking: Place) -> None:
    seen = await mend(asking, RISKY)
    (entry,) = ledger(asking).entries("open")
    assert entry.ask.label == "monitor:disk"
    assert "the check disk is critical: full" in entry.ask.reason
    assert texts(seen) == [
        f"waits for a person: redoma approvals show {entry.ask.id[:12]}; to let it run unattended: "
        f"redoma approvals approve {entry.ask.id[:12]} --pin-until DATE --reason TEXT"
    ]
    assert not (await mend(asking, RISKY, NOON + 1)).actions
    assert texts(await mend(asking, RISKY, NOON + 300)) == texts(seen)
    assert len(ledger(asking).entries("open")) == 1


async def test_an_approval_lets_it_run_once_and_a_pin_for_good(asking: Place, tmp_path: Path) -> None:
    await mend(asking, RISKY, again=0.0)
    assert not (tmp_path / "restarted").exists()
    approve(asking, pinned=False)
    assert texts(await mend(asking, RISKY, NOON + 1, again=0.0))[0].startswith("ran")
    assert texts(await mend(asking, RISKY, NOON + 2, again=0.0))[0].startswith("waits")
    approve(asking, pinned=True)
    for second in (3, 4):
        assert texts(await mend(asking, RISKY, NOON + second, again=0.0))[0].startswith("ran")
    assert (tmp_path / "restarted").read_text() == "restart app\n" * 3


@pytest.mark.parametrize("command", [RISKY + "s", "touch elsewhere"])
async def test_a_command_that_is_not_the_pinned_one_is_an_alarm_and_does_not_run(
    asking: Place, tmp_path: Path, command: str
) -> None:
    """Also where policy would let it run without asking anybody."""
    await mend(asking, RISKY, again=0.0)
    approve(asking, pinned=True)
    seen = await mend(asking, command, NOON + 1, again=0.0)
    assert "ALARM: the pinned script 'monitor:disk' has changed" in texts(seen)[0]
    assert not (tmp_path / "elsewhere").exists()
    assert 'class="alarm"' in render(seen, asking.history, "html")
    log = AuditLog(asking.config.audit.directory, retention_days=30)
    assert "alarm" in [record.kind for record in log.tail(10)]


async def test_where_nothing_can_be_noted_nothing_is_mended(listed: Place, tmp_path: Path) -> None:
    await listed.responder().respond(found(OK))
    listed.history.store.path.write_bytes(b"nonsense" * 1000)
    seen = await mend(listed, HARMLESS)
    assert not (tmp_path / "mended").exists()
    assert "history" in seen.problems


async def test_an_executor_that_is_gone_is_told(listed: Place) -> None:
    gone = Check(name="disk", rule="", remedy=Remedy(run="ops:gone", command="x"))
    seen = await listed.responder(gone).respond(found(CRITICAL))
    assert "unknown executor" in texts(seen)[0]


async def test_a_pin_of_the_remedy_is_none_of_the_rule_nor_of_a_fact_of_the_same_name(asking: Place) -> None:
    """Each is asked for under a label of its own: else the rule of a check whose remedy is pinned would be an alarm."""
    listed = NativeEntry(name="listed", default_work_dir=asking.directory, command_whitelist=("echo full",))
    config = msgspec.structs.replace(asking.config, entries={**asking.config.entries, "ops:listed": listed})
    check = msgspec.structs.replace(with_remedy(RISKY, again=0.0), rule="'full' in disk_use['stdout']", name="disk_use")
    probes = {"disk_use": CommandProbe(run="ops:listed", command="echo full")}
    async with AsyncExecutor(config) as executor:
        monitor = Monitor(Plan(checks=(check,), collect=dict(probes)), executor, asking.history)
        assert texts(await monitor.round())[0].startswith("waits")
        approve(asking, pinned=True)
        seen = await monitor.round()
    assert (seen.verdicts[0].state, seen.problems) == (State.WARNING, {})
    assert texts(seen)[0].startswith("ran")
