"""Approvals on the path of a request: nothing runs without one, and everything that ends otherwise says why."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from approval_stage import RISKY

import redoma.exec
from redoma import AsyncExecutor, Config, FakeBackend, Refused, Result, Status
from redoma.approval import Ask, Callback, Ledger
from redoma.approval.store import open_store
from redoma.audit import AuditLog
from redoma.config import ApprovalConfig, AuditConfig, DockerConfig, DockerEntry, MontyEntry, NativeEntry, PolicyConfig
from redoma.lib.errors import ApprovalError, InvalidRequest
from redoma.models import Approval, Decision


class Way:
    """An executor with a backend that only remembers; made anew, it is the same after a restart."""

    def __init__(self, directory: Path) -> None:
        audit = AuditConfig(directory=directory / "audit")
        self.config = Config(audit=audit, state=directory / "state", approval=ApprovalConfig(approver="queue"))
        self.log = AuditLog(audit.directory)

    def change(self, **fields: Any) -> None:
        self.config = msgspec.structs.replace(self.config, **fields)

    async def run(self, code: str = RISKY, **options: Any) -> tuple[Result, int]:
        """The result, and how often something ran."""
        approver = options.pop("approver", None)
        fakes = [FakeBackend(name=name) for name in ("jail", "native")]
        async with AsyncExecutor(self.config, backends=fakes, approver=approver) as executor:
            if "id" in options:
                result = await executor.resume(options.pop("id"), **options)
            elif "entry" in options:
                result = await executor.command(code.split(), **options)
            else:
                result = await executor.run(code, "bash", **options)
        return result, sum(len(fake.requests) for fake in fakes)

    async def approve(self, id: str, **said: Any) -> None:  # noqa: A002 - what it is called everywhere
        assert self.config.state is not None
        ledger = Ledger(open_store(self.config.state), self.log.append)
        ledger.answer(yes(ledger.load(id).ask, **said))

    @property
    def kinds(self) -> list[str]:
        return [record.kind for record in self.log.records()]


def yes(ask: Ask, **said: Any) -> Approval:
    now = datetime.now(UTC)
    said = {"reason": "looked at it", "at": now, "expires": now + timedelta(hours=1), **said}
    return ask.answer("approved", approver="bob", **said)


@pytest.fixture
def way(tmp_path: Path) -> Way:
    return Way(tmp_path)


async def pinned(way: Way) -> None:
    waiting, _ = await way.run(wait=False, label="check")
    await way.approve(waiting.approval_id, pinned=True)


async def test_what_waits_runs_once_it_is_approved_and_only_once(way: Way) -> None:
    waiting, ran = await way.run(wait=False)
    assert (waiting.status, waiting.shell_exit, ran) == (Status.PENDING, 75, 0)
    assert (await way.run(id=waiting.approval_id))[0].status is Status.PENDING
    await way.approve(waiting.approval_id)
    done, ran = await way.run(id=waiting.approval_id)
    assert (done.status, ran, done.approval and done.approval.approver) == (Status.OK, 1, "bob")
    again, ran = await way.run(id=waiting.approval_id)
    assert (again.status, ran) == (Status.DENIED, 0)
    assert "has been used" in (again.error or "")
    assert {"approval.asked", "approval.given", "approval.used", "approval.refused"} <= set(way.kinds)


@pytest.mark.parametrize("answered", [False, True])
async def test_a_policy_that_has_changed_since_is_asked_about_again_even_if_it_allows_it_now(
    way: Way, answered: bool
) -> None:
    waiting, _ = await way.run(wait=False)
    if answered:
        await way.approve(waiting.approval_id)
    rules = {finding.rule: Decision.ALLOW for finding in waiting.evaluation.findings}
    way.change(policy=PolicyConfig(decisions=rules))
    result, ran = await way.run(id=waiting.approval_id)
    assert (result.status, ran) == (Status.DENIED, 0)
    assert "not what was asked about" in (result.error or "")
    assert way.kinds.count("approval.refused") == 1


async def test_a_pinned_script_that_changed_says_alarm(way: Way) -> None:
    await pinned(way)
    assert (await way.run(label="check"))[1] == 1
    for code in (RISKY + " evil", "ls", "rm -rf /"):
        result, ran = await way.run(code, label="check")
        assert ran == 0
        assert (result.error or "").startswith("ALARM: the pinned script 'check' has changed"), code
        assert way.kinds[-3:] == ["alarm", "intent", "outcome"]


@pytest.mark.parametrize(("expect", "mismatch"), [("regex:^$", False), ("json", True), (None, False)])
async def test_what_is_expected_is_said_again_when_it_is_resumed(way: Way, expect: str | None, mismatch: bool) -> None:
    waiting, _ = await way.run(wait=False)
    await way.approve(waiting.approval_id)
    with pytest.raises(InvalidRequest):
        await way.run(id=waiting.approval_id, expect="regex:(")
    result, ran = await way.run(id=waiting.approval_id, expect=expect, writes=["out/**"])
    assert (result.ok, ran, result.mismatch is not None) == (not mismatch, 1, mismatch)


async def test_what_needs_nobody_runs_also_where_it_holds_its_secret(way: Way) -> None:
    """Nobody is asked, so nothing is kept: only the record is made, and that knows the secret."""
    await way.run(wait=False, label="other")  # there is a ledger
    for label in ("job", "check"):
        result, ran = await way.run("echo hunter2", label=label, secrets={"T": "hunter2"})
        assert (result.status, ran) == (Status.OK, 1)
    await pinned(way)
    result, ran = await way.run("echo hunter2", label="check", reason="with hunter2", secrets={"T": "hunter2"})
    assert (result.status, ran, (result.error or "")[:5]) == (Status.DENIED, 0, "ALARM")
    assert way.kinds[-3:] == ["alarm", "intent", "outcome"]
    assert "hunter2" not in str([record.data for record in way.log.records()])


async def test_whether_it_may_run_that_can_not_be_known_is_a_no_on_record(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pin_alarm(*_: Any) -> None:
        raise ApprovalError("nobody knows")

    monkeypatch.setattr("redoma.approval.Gate.pin_alarm", pin_alarm)
    result, ran = await way.run("echo 1", label="job")
    assert (result.status, result.error, ran) == (Status.DENIED, "nobody knows", 0)
    assert way.kinds == ["intent", "outcome"]


async def test_why_somebody_could_not_be_asked_is_said(way: Way) -> None:
    result, ran = await way.run("pip install s3cr3t-value", secrets={"TOKEN": "s3cr3t-value"})
    assert (result.status, ran) == (Status.DENIED, 0)
    assert "the value of its secret TOKEN" in (result.error or "")


async def test_an_approver_of_ones_own_is_asked(way: Way) -> None:
    result, ran = await way.run(approver=Callback(yes))
    assert (result.status, ran) == (Status.OK, 1)
    result, ran = await way.run(approver=Callback(lambda ask: True))  # type: ignore[arg-type, return-value]
    assert (result.status, ran) == (Status.DENIED, 0)


ENTRY = NativeEntry(name="shell", default_work_dir=Path("/tmp"))


@pytest.mark.parametrize(
    "change",
    [
        {"entries": {"app:shell": msgspec.structs.replace(ENTRY, default_env={"A": "1"})}},
        {"entries": {"app:shell": msgspec.structs.replace(ENTRY, caller_env=("PATH",))}},
        {"docker": DockerConfig(command="evil:latest")},
    ],
    ids=str,
)
async def test_an_executor_that_is_configured_anew_is_asked_about_again(way: Way, change: dict[str, Any]) -> None:
    way.change(entries={"app:shell": ENTRY}, approval=ApprovalConfig(approver="queue", timeout=60))
    asked: list[Ask] = []

    def remember(ask: Ask) -> Approval:
        asked.append(ask)
        return yes(ask, pinned=True)

    async def once() -> Status:
        code, told = "curl https://example.org", Callback(remember)
        return (await way.run(code, entry="app:shell", label="nightly", approver=told))[0].status

    assert (await once(), await once(), len(asked)) == (Status.OK, Status.OK, 1)
    way.change(**change)
    await once()
    assert len(asked) == 2 or way.kinds.count("alarm") == 1


@pytest.mark.parametrize("label", ["", "calc"])
async def test_a_process_that_nobody_can_talk_to_waits_for_a_person(way: Way, label: str) -> None:
    await pinned(way)
    way.change(entries={"app:calc": MontyEntry(name="calc")})
    for answer, forbidden in ((yes, False), (lambda ask: None, False), (yes, True)):
        fake = FakeBackend(name="monty")
        async with AsyncExecutor(way.config, backends=[fake], approver=Callback(answer)) as executor:
            calc = redoma.exec.aget("app:calc", executor)
            process = calc.exec("import os; os.system('rm -rf /')" if forbidden else "eval(x)", label=label)
            if answer is yes and not forbidden:
                await process.start()
                assert (await process.wait(), len(fake.requests)) == (0, 1)
            else:
                with pytest.raises(Refused):
                    await process.start()
                assert fake.requests == []
            await calc.release()


def test_a_container_of_another_image_is_another_setting() -> None:
    from redoma.pipeline.executor import digest_for

    def of(**fields: Any) -> str:
        entry = DockerEntry(**{"name": "box", "image": "python:3.11-slim", **fields})
        config = Config(audit=AuditConfig(directory=Path("/nowhere")), entries={"app:box": entry})
        return digest_for(config, "app:box")

    assert of() == of()
    assert len({of(), of(image="evil"), of(volumes=("/:/host",)), of(network_mode="host")}) == 4
