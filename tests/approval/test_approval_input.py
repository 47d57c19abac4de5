"""Input that comes while a program runs: a yes to the program alone is none to what it will be told."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from approval_stage import START, altered_case, case_of

import redoma.exec
from redoma import AsyncExecutor, Config, Refused
from redoma.approval import Ask, Callback, describe
from redoma.approval.ask import ask_of, digest_of
from redoma.config import ApprovalConfig, AuditConfig, Entry, NativeEntry, PolicyConfig
from redoma.models import Approval, Decision
from redoma.policy import Permit


@pytest.fixture
def config(tmp_path: Path) -> Config:
    listed = NativeEntry(name="listed", default_work_dir=tmp_path, command_whitelist=("bash",))
    entries: dict[str, Entry] = {
        "app:shell": NativeEntry(name="shell", default_work_dir=tmp_path),
        "app:listed": listed,
    }
    audit = AuditConfig(directory=tmp_path / "audit")
    return Config(audit=audit, state=tmp_path / "state", approval=ApprovalConfig(approver="queue"), entries=entries)


class Person:
    """Pins what they are asked for, so many times."""

    def __init__(self, pins: int = 1) -> None:
        self.asked: list[Ask] = []
        self._pins = pins

    def decide(self, ask: Ask) -> Approval:
        self.asked.append(ask)
        if len(self.asked) > self._pins:
            return ask.answer("denied", approver="bob", reason="who knows", at=datetime.now(UTC))
        now = datetime.now(UTC)
        until = now + timedelta(hours=1)
        return ask.answer("approved", approver="bob", reason="fine", at=now, expires=until, pinned=True)


@pytest.mark.parametrize("entry", ["app:shell", "app:listed"])
async def test_a_pin_of_an_interpreter_is_not_good_for_input_that_nobody_has_read(config: Config, entry: str) -> None:
    person = Person()
    async with AsyncExecutor(config, approver=Callback(person.decide)) as executor:
        for _ in range(2):
            assert (await executor.command(["bash"], entry=entry, label="nightly")).ok
        async with redoma.exec.aget(entry, executor) as processes:
            with pytest.raises(Refused, match="who knows"):
                await processes.exec(["bash"], label="nightly").start()
    assert [ask.unread_input for ask in person.asked] == [False, True]
    assert person.asked[0].content == person.asked[1].content
    told = "input:    whatever it is given while it runs"
    assert [told in describe(ask).text.splitlines() for ask in person.asked] == [False, True]


def test_a_digest_binds_that_there_will_be_input() -> None:
    case = case_of()
    live = altered_case(case, unread_input=True)
    assert digest_of(case, b"")[0] == digest_of(live, b"")[0]
    assert digest_of(case, b"")[1] != digest_of(live, b"")[1]
    assert ask_of(live, b"", id="1" * 32, created=START, expires=START).unread_input


@pytest.mark.parametrize("live", [False, True])
async def test_a_permit_is_not_good_for_input_that_nobody_has_read(config: Config, live: bool) -> None:
    """And a denial of such a run shows no lines, since none would permit it."""
    async with AsyncExecutor(config) as executor:
        asked = executor.prepare(["bash"], "app:shell", {"backend": "native"})
        rules = [finding.rule for finding in executor.judge(asked).evaluation.findings]
        digest = redoma.policy.fingerprint(asked.judged, "app:shell")
    permits = tuple(Permit(rule=rule, language="command", sha256=digest, entry="app:shell") for rule in rules)
    permitting = msgspec.structs.replace(config, policy=PolicyConfig(permits=permits))
    person = Person(pins=0)
    async with AsyncExecutor(permitting, approver=Callback(person.decide)) as executor:
        asked, _ = redoma.exec._prepare(executor, "app:shell", ["bash"], {}, live_input=live)
        assert executor.judge(asked).evaluation.decision is (Decision.PROMPT if live else Decision.ALLOW)
        result = await executor.submit(asked)
    assert result.ok is not live
    assert (result.denial.narrowest if result.denial else "") == ""
