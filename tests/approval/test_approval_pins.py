"""What is approved for good, and what the ledger keeps of it all."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from approval_stage import RISKY, Stage, case_of

from redoma.approval.ask import encode
from redoma.lib.errors import ApprovalError, StoreError
from redoma.models import Judged, Limits, Status


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


@pytest.fixture
def apart(tmp_path: Path) -> Stage:
    """Where the requester can't be the approver."""
    return Stage(tmp_path, separate=True)


async def pinned(stage: Stage, case: Judged, **said: Any) -> str:
    until = stage.now.replace(year=2027)
    return await stage.approved(case, **{"pinned": True, "expires": until, **said})


async def test_a_pin_is_good_for_any_number_of_runs_until_its_date(stage: Stage) -> None:
    case = case_of(label="/opt/check.sh")
    await pinned(stage, case)
    for _ in range(3):
        assert (await stage.gate().ask(case_of(label="/opt/check.sh"))).status is None
        stage.later(days=100)
    stage.later(days=100)
    assert (await stage.gate().ask(case)).status is Status.DENIED
    assert (stage.kinds.count("approval.used"), stage.kinds.count("approval.pinned")) == (3, 1)


async def test_an_answer_given_now_counts_as_long_as_is_configured_and_a_pin_until_its_date(stage: Stage) -> None:
    case, later = case_of(label="check"), stage.now.replace(year=2027)
    ask = stage.ledger.load(await stage.pending(case)).ask
    stage.later(minutes=30)
    once = stage.ledger.reply(ask, "approved", approver="bob", reason="looked at it")
    pin = stage.ledger.reply(ask, "approved", approver="bob", reason="looked at it", pinned_until=later)
    assert (once.at, once.expires, once.pinned) == (stage.now, stage.now + timedelta(hours=1), False)
    assert (pin.at, pin.expires, pin.pinned) == (stage.now, later, True)
    stage.ledger.answer(once)
    stage.later(minutes=59)
    assert (await stage.gate().ask(case)).status is None


@pytest.mark.parametrize(
    "change", [{"code": RISKY + " evil"}, {"env": {"A": "1"}}, {"limits": Limits(time=40)}], ids=str
)
async def test_a_pinned_script_that_changed_is_an_alarm(stage: Stage, change: dict[str, Any]) -> None:
    id = await pinned(stage, case_of(label="/opt/check.sh"))  # noqa: A001
    changed = case_of(**{"label": "/opt/check.sh", **change})
    for verdict in (
        await stage.gate(stage.approving).ask(changed),
        await stage.gate(stage.approving).ask(changed, wait=False),
        stage.gate().pin_alarm(changed),
    ):
        assert verdict is not None
        assert verdict.status is Status.DENIED
        assert verdict.error.startswith("ALARM: the pinned script '/opt/check.sh' has changed")
        assert stage.kinds[-1] == "alarm"
        assert stage.audit[-1][2]["pin"] == id
    assert stage.ledger.entries("open") == []
    assert (await stage.gate().ask(case_of(label="/opt/check.sh"))).status is None


async def test_a_pinned_script_under_another_policy_or_secret_is_asked_about_again(stage: Stage) -> None:
    """The script has not changed, so that is no alarm; but nobody has said yes to this."""
    await pinned(stage, case_of(label="check", secrets={"TOKEN": "first-value"}))
    others: list[dict[str, Any]] = [{"policy": "strict"}, {"secrets": {"TOKEN": "other-value"}}]
    for fields in others:
        case = case_of(**{"label": "check", "secrets": {"TOKEN": "first-value"}, **fields})
        assert (await stage.gate().ask(case)).status is Status.DENIED
        assert stage.kinds[-1] == "approval.denied"
        assert stage.gate().pin_alarm(case) is None


async def test_a_label_of_another_requester_is_another_script(stage: Stage) -> None:
    await pinned(stage, case_of(label="check"))
    assert stage.gate().pin_alarm(case_of("pip install other", label="check", requester="eve")) is None
    assert (await stage.gate().ask(case_of(label="check", requester="eve"))).status is Status.DENIED
    assert "alarm" not in stage.kinds


async def test_what_has_no_label_can_not_be_pinned(stage: Stage) -> None:
    with pytest.raises(ApprovalError, match="it has no label"):
        await pinned(stage, case_of())
    assert stage.kinds[-1] == "approval.refused"


async def test_a_pin_that_is_taken_back_or_replaced_is_void(stage: Stage) -> None:
    first, second = case_of(label="check"), case_of("pip install other", label="check")
    id = await stage.pending(second)  # noqa: A001
    await pinned(stage, first)
    stage.ledger.answer(stage.yes(stage.ledger.load(id).ask, pinned=True))
    assert (await stage.gate().ask(second)).status is None
    assert (await stage.gate().ask(first)).error.startswith("ALARM")
    stage.ledger.unpin(id, by="bob", reason="done")
    for case in (first, second):
        assert (await stage.gate().ask(case)).status is Status.DENIED
    assert (await stage.gate().redeem(id, second)).error == "its approval was taken back"
    assert stage.kinds.count("approval.unpinned") == 2


async def test_an_own_pin_is_refused_where_they_have_to_be_two(apart: Stage) -> None:
    with pytest.raises(ApprovalError, match="ana has asked for it"):
        await pinned(apart, case_of(label="check"), approver="ana")


async def test_a_label_costs_nothing_where_nothing_was_ever_approved(stage: Stage) -> None:
    assert stage.gate().pin_alarm(case_of(label="check")) is None
    assert not stage.path.exists()


# --- too much ---


async def test_what_is_too_large_is_put_to_nobody(stage: Stage) -> None:
    verdict = await stage.gate(stage.approving).ask(case_of(files={"big": bytes(13 << 20)}))
    assert (verdict.status, "too large" in verdict.error) == (Status.DENIED, True)
    assert stage.kinds == ["approval.refused"]


async def test_nobody_is_flooded_with_questions(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redoma.approval.ledger.MAX_OPEN", 3)
    for number in range(3):
        await stage.pending(case_of(f"pip install a{number}"))
    verdict = await stage.gate(stage.approving).ask(case_of(), wait=False)
    assert (verdict.status, "3 requests wait" in verdict.error) == (Status.DENIED, True)
    stage.later(hours=2)
    await stage.pending(case_of())


async def test_what_is_done_with_makes_room_and_what_is_in_force_stays(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    pin = await pinned(stage, case_of(label="check"))
    done = case_of("pip install done")
    used = await stage.approved(done)
    await stage.gate().redeem(used, done)
    open_ = await stage.pending(case_of("pip install open"))
    size = sum(len(encode(entry.ask)) for entry in stage.ledger.entries("approved", "used", "open"))
    monkeypatch.setattr("redoma.approval.ledger.MAX_TOTAL", size)
    new = await stage.pending(case_of("pip install new1"))
    assert {entry.ask.id for entry in stage.ledger.entries("approved", "used", "open")} == {pin, open_, new}


async def test_a_record_that_was_tampered_with_is_not_run(stage: Stage) -> None:
    case = case_of()
    id = await stage.approved(case)  # noqa: A001
    with stage.ledger.store.writing() as db:
        db.execute("UPDATE asks SET ask = replace(ask, 'requests', 'evil')")
    ask = stage.gate().recall(id, {})
    evil = case_of(ask.request.code)
    assert evil.request.code == "pip install evil"
    assert (await stage.gate().redeem(id, evil)).status is Status.DENIED
    with stage.ledger.store.writing() as db:
        db.execute("UPDATE asks SET ask = '{}'")
    with pytest.raises(StoreError, match="its record is damaged"):
        await stage.gate().redeem(id, case)


async def test_a_time_that_no_calendar_has_keeps_nobody_from_reading_the_book(stage: Stage) -> None:
    """As an earlier version has written it."""
    id = await stage.approved(case_of())  # noqa: A001
    with stage.ledger.store.writing() as db:
        db.execute("UPDATE asks SET good_until = 253402300800.0, decided = -1e12")
    (entry,) = stage.ledger.entries("approved")
    assert (entry.ask.id, entry.approval and entry.approval.expires.year) == (id, 9998)


async def test_an_answer_that_can_not_be_kept_is_refused_whoever_writes_it(stage: Stage) -> None:
    id = await stage.pending(case_of())  # noqa: A001
    with pytest.raises(ApprovalError, match="the year 9999"):
        stage.ledger.answer(stage.yes(stage.ledger.load(id).ask, expires=datetime.max.replace(tzinfo=UTC)))
    assert (stage.kinds[-1], stage.ledger.load(id).state) == ("approval.refused", "open")
