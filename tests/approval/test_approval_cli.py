"""`redoma approvals`, as a person types it; and the section `approval` of a configuration."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from approval_stage import Stage, case_of, effect_of

from redoma.audit import AuditLog
from redoma.config import check
from redoma.models import Status

Redoma = Callable[..., "subprocess.CompletedProcess[str]"]
HOSTILE = "pip install a \x1b[2J\u202e # "


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setenv("REDOMA_STATE_DIR", str(tmp_path / "state"))
    made = Stage(tmp_path)
    made.now = datetime.now(UTC)
    return made


@pytest.fixture
def me() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"


def recorded(stage: Stage) -> list[tuple[str, dict[str, Any]]]:
    log = AuditLog(stage.path.parent / "audit")
    assert log.verify().ok
    return [(record.kind, record.data) for record in log.records()]


def test_where_nothing_waits_it_says_so_and_makes_nothing(stage: Stage, redoma_command: Redoma) -> None:
    listed = redoma_command("approvals", "list")
    assert (listed.returncode, listed.stdout, listed.stderr) == (0, "", "nothing waits for an answer\n")
    assert redoma_command("approvals", "pins").stderr == "nothing is pinned\n"
    assert json.loads(redoma_command("approvals", "list", "--json").stdout) == []
    assert not stage.path.exists()


async def test_what_waits_is_listed_shown_and_approved(stage: Stage, redoma_command: Redoma, me: str) -> None:
    case = case_of(HOSTILE, reason="to see", effect=effect_of())
    id = await stage.pending(case)  # noqa: A001
    listed = redoma_command("approvals", "list").stdout
    shown = redoma_command("approvals", "show", id[:8]).stdout
    assert id in listed
    for part in ("reason:   to see", r"  | pip install a \x1b[2J\u202e # ", "risks, by policy standard:", "  | +new"):
        assert part in shown
    assert "\x1b" not in listed + shown
    assert "\u202e" not in listed + shown
    answer = redoma_command("approvals", "approve", id, "--reason", "I have read it", "--json")
    assert answer.returncode == 0, answer.stderr
    approval = json.loads(answer.stdout)["approval"]
    assert (approval["approver"], approval["reason"], approval["pinned"]) == (me, "I have read it", False)
    assert [kind for kind, _ in recorded(stage)] == ["approval.given"]
    assert (await stage.gate().redeem(id, case)).status is None
    assert redoma_command("approvals", "list").stdout == ""
    assert "used" in redoma_command("approvals", "list", "--all").stdout


async def test_a_no_is_one(stage: Stage, redoma_command: Redoma, me: str) -> None:
    id = await stage.pending(case_of())  # noqa: A001
    assert redoma_command("approvals", "deny", id, "--reason", "no").returncode == 0
    verdict = await stage.gate().redeem(id, case_of())
    assert (verdict.status, verdict.error) == (Status.DENIED, f"{me} has denied it: no")
    again = redoma_command("approvals", "approve", id, "--reason", "yes after all")
    assert (again.returncode, "can't be answered any more" in again.stderr) == (125, True)
    assert [kind for kind, _ in recorded(stage)] == ["approval.denied", "approval.refused"]


@pytest.mark.parametrize("work", ["approve", "deny"])
async def test_an_answer_needs_a_reason(stage: Stage, redoma_command: Redoma, work: str) -> None:
    id = await stage.pending(case_of())  # noqa: A001
    for reason in ([], ["--reason", " "]):
        answer = redoma_command("approvals", work, id, *reason)
        assert answer.returncode == (125 if reason else 2)
        assert "reason" in answer.stderr
        assert "Traceback" not in answer.stderr
    assert stage.ledger.load(id).state == "open"


@pytest.mark.parametrize(("work", "id"), [("approve", "0" * 32), ("deny", "\x1b[2J"), ("unpin", "' OR 1=1 --")])
async def test_a_forged_id_is_refused_and_on_record(stage: Stage, redoma_command: Redoma, work: str, id: str) -> None:  # noqa: A002
    await stage.pending(case_of())
    answer = redoma_command("approvals", work, "--reason", "x", "--", id)
    assert (answer.returncode, "nothing was asked under the id" in answer.stderr) == (2, True)
    assert "\x1b" not in answer.stderr
    assert [kind for kind, _ in recorded(stage)] == ["approval.refused"]


async def test_the_approver_is_who_the_operating_system_says(
    stage: Stage, redoma_command: Redoma, me: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "apart.yaml").write_text("approval: {separate: true}\n")
    for name in ("USER", "LOGNAME", "SUDO_USER"):
        monkeypatch.setenv(name, "somebody-else")
    case = case_of(requester=me)
    id = await stage.pending(case)  # noqa: A001
    config = ("--config", str(tmp_path / "apart.yaml"))
    answer = redoma_command(*config, "approvals", "approve", id, "--reason", "mine")
    assert (answer.returncode, f"{me} has asked for it" in answer.stderr) == (125, True)
    assert redoma_command(*config, "approvals", "approve", id, "--reason", "x", "--as", "bob").returncode == 2
    assert stage.ledger.load(id).state == "open"
    assert [kind for kind, _ in recorded(stage)] == ["approval.refused"]


async def test_a_pin_is_listed_and_taken_back(stage: Stage, redoma_command: Redoma) -> None:
    case = case_of(label="/opt/check.sh")
    id = await stage.pending(case)  # noqa: A001
    pin = ("approvals", "approve", id, "--reason", "nightly", "--pin-until")
    past = redoma_command(*pin, "2020-01-01")
    assert (past.returncode, "void at once" in past.stderr) == (125, True)
    assert redoma_command(*pin, "soon").returncode == 2
    for far in ("9999-12-31", "9998-12-31"):
        late = redoma_command(*pin, far)
        assert (late.returncode, "a pin ends before 9998" in late.stderr) == (2, True)
        assert "Traceback" not in late.stderr
    assert redoma_command(*pin, "2099-12-31").returncode == 0
    assert "2100-01-01" in redoma_command("approvals", "pins").stdout
    for _ in range(2):
        assert (await stage.gate().ask(case)).status is None
    assert "used 2 times" in redoma_command("approvals", "show", id).stdout
    assert redoma_command("approvals", "unpin", id, "--reason", "it is done").returncode == 0
    assert (await stage.gate().ask(case)).status is Status.DENIED
    kinds = [kind for kind, _ in recorded(stage)]
    assert kinds == ["approval.refused", "approval.given", "approval.pinned", "approval.unpinned"]


async def test_a_database_that_can_not_be_used_is_an_error_without_a_traceback(
    stage: Stage, redoma_command: Redoma
) -> None:
    await stage.pending(case_of())
    stage.path.write_bytes(b"nonsense" * 1000)
    answer = redoma_command("approvals", "list")
    assert (answer.returncode, "it is damaged" in answer.stderr) == (125, True)
    assert "Traceback" not in answer.stderr


MISTAKES = {
    "approval: {webhook: 'file:///etc/passwd'}": ("approval.webhook", "nothing can be posted there"),
    "approval: {webhook: 'https://me:pw@example.com'}": ("approval.webhook", "nothing can be posted there"),
    "approval: {webhook: 'http://[::1'}": ("approval.webhook", "nothing can be posted there"),
    "approval: {webhook: 'http://a b'}": ("approval.webhook", "nothing can be posted there"),
    "approval: {approver: everybody}": ("approval.approver", "expected one of auto, console, deny, queue"),
    "approval: {timeout: 0}": ("approval.timeout", "expected a number from 1 to 86400"),
    "approval: {separate: 1}": ("approval.separate", "expected true or false"),
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_in_the_configuration_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "redoma.yaml").write_text(text)
    (problem,) = check(tmp_path / "redoma.yaml")
    assert problem.key == MISTAKES[text][0]
    assert problem.message.startswith(MISTAKES[text][1])
