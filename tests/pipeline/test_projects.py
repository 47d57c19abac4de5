"""Runs over a project on the whole path: policy, a person, the overlay, its effect, and what is decided of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from redoma import AsyncExecutor, Config, Executor, InvalidRequest, RedomaError, Rule, Status
from redoma.approval import Ask, Callback, Ledger
from redoma.approval.ask import decode
from redoma.approval.store import open_store
from redoma.audit import AuditLog
from redoma.backends.base import Capabilities
from redoma.backends.fake import FakeBackend
from redoma.config import ApprovalConfig, PolicyConfig
from redoma.lib.errors import ApprovalError, Conflict, WorkspaceError
from redoma.models import Approval, Decision, Effect, Judged, Request, Submission, WorkspaceKind
from redoma.pipeline.projects import to_ask

ASKS = ["sh", "-c", "sudo true; echo changed > a.txt"]
"""Policy wants a person to be asked about this. In an overlay, and without a network, it only changes a file."""
ASKS_EVERYWHERE = PolicyConfig(decisions={"privilege.raise": Decision.PROMPT})
"""In a cell `sudo` can do no harm, so by itself policy asks nobody there: somebody has to have decided so."""


@pytest.fixture
def settings(config: Config, tmp_path: Path) -> Config:
    return msgspec.structs.replace(config, state=tmp_path / "state", policy=ASKS_EVERYWHERE)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    place = tmp_path / "project"
    place.mkdir()
    (place / "a.txt").write_text("as it was\n")
    return place


def answer(ask: Ask, decision: Any) -> Approval:
    return ask.answer(decision, approver="ana", reason="looked at it", at=datetime.now(UTC))


def kinds(settings: Config) -> list[str]:
    return [record.kind for record in AuditLog(settings.audit.directory).records()]


def test_an_effect_is_shown_applied_and_undone_and_all_of_it_is_on_record(settings: Config, project: Path) -> None:
    with Executor(settings) as executor:
        result = executor.run("echo new > b.txt; rm a.txt", "bash", workspace="overlay", project=project)
        assert result.status is Status.OK
        assert result.effect is not None
        assert [(change.path, change.kind) for change in result.effect.changes] == [
            ("a.txt", "deleted"),
            ("b.txt", "added"),
        ]
        assert os.listdir(project) == ["a.txt"]
        assert executor.apply(result.id).state == "applied"
        assert os.listdir(project) == ["b.txt"]
        executor.undo(result.id)
        assert (project / "a.txt").read_text() == "as it was\n"
        assert os.listdir(project) == ["a.txt"]
        with pytest.raises(WorkspaceError, match="undone"):
            executor.apply(result.id)
    assert kinds(settings)[:2] == ["intent", "outcome"]
    assert kinds(settings)[2:6] == ["apply", "applied", "undo", "undone"]


def test_what_changed_since_is_a_conflict_and_nothing_is_applied(settings: Config, project: Path) -> None:
    with Executor(settings) as executor:
        result = executor.run("echo x > a.txt; echo x > c.txt", "bash", workspace="overlay", project=project)
        (project / "a.txt").write_text("by somebody else")
        with pytest.raises(Conflict, match=r"a\.txt"):
            executor.apply(result.id)
    assert sorted(os.listdir(project)) == ["a.txt"]
    assert (project / "a.txt").read_text() == "by somebody else"
    assert kinds(settings)[-1] == "apply.refused"


def test_what_asks_runs_in_an_overlay_unasked_and_is_asked_about_its_effect(settings: Config, project: Path) -> None:
    asked: list[Ask] = []

    def decide(ask: Ask) -> Approval:
        asked.append(ask)
        return answer(ask, "approved" if len(asked) > 1 else "denied")

    with Executor(settings, approver=Callback(decide)) as executor:
        result = executor.command(ASKS, workspace="overlay", project=project)
        assert (result.status.ending, asked, result.level) == ("ran", [], "L4")
        with pytest.raises(ApprovalError, match="not applied"):
            executor.apply(result.id)
        assert (project / "a.txt").read_text() == "as it was\n"
        assert executor.apply(result.id).state == "applied"
    assert (project / "a.txt").read_text() == "changed\n"
    assert asked[0].effect == result.effect
    applied = next(record for record in AuditLog(settings.audit.directory).records() if record.kind == "apply")
    assert applied.data["approver"] == "ana"


def test_without_an_approver_an_effect_that_asks_is_applied_by_hand_only(settings: Config, project: Path) -> None:
    with Executor(settings) as executor:
        result = executor.command(ASKS, workspace="overlay", project=project)
        with pytest.raises(ApprovalError):
            executor.apply(result.id)
        executor.apply(result.id, by_hand=True)
    assert (project / "a.txt").read_text() == "changed\n"


def test_what_policy_allowed_then_and_forbids_by_now_is_not_applied(settings: Config, project: Path) -> None:
    with Executor(settings) as executor:
        result = executor.run("echo x > a.txt", "bash", workspace="overlay", project=project)
    rule = Rule(id="own.echo", decision=Decision.FORBID, reason="no", suggestion="none", command=("echo",))
    later = msgspec.structs.replace(settings, policy=PolicyConfig(rules=(rule,)))
    with Executor(later) as executor:
        for by_hand in (False, True):
            with pytest.raises(ApprovalError, match="not applied"):
                executor.apply(result.id, by_hand=by_hand)
    assert kinds(settings)[-1] == "apply.refused"
    assert (project / "a.txt").read_text() == "as it was\n"


def test_what_holds_a_secret_is_kept_and_applied_by_hand_only(settings: Config, project: Path) -> None:
    with Executor(settings) as executor:
        code, secret = "echo s3cr3t-value > a.txt", {"TOKEN": "s3cr3t-value"}
        result = executor.run(code, "bash", workspace="overlay", project=project, secrets=secret)
        assert result.effect is not None
        with pytest.raises(ApprovalError, match="holds a secret"):
            executor.apply(result.id)
        executor.apply(result.id, by_hand=True)
    assert (project / "a.txt").read_text() == "s3cr3t-value\n"


def test_another_directory_at_the_path_of_the_project_gets_nothing(settings: Config, project: Path) -> None:
    victim = project.parent / "victim"
    victim.mkdir()
    (victim / "a.txt").write_text("somebody else's\n")
    (project / "go").touch()
    # It lasts until the directory is another one; or for 20 s, where a run does not see what is written meanwhile.
    code = "echo here; for _ in {1..400}; do [ -s go ] && break; sleep 0.05; done; echo x > a.txt"
    with Executor(settings) as executor:
        with executor.stream(code, "bash", workspace="overlay", project=project, timeout=60) as run:
            for _ in run:
                moved = project.rename(project.parent / "moved")
                project.symlink_to(victim)
                (moved / "go").write_text("on")
        assert run.result.status is Status.FAILED
        assert "another directory" in (run.result.error or "")
        with pytest.raises(WorkspaceError):
            executor.apply(run.result.id)
    assert (victim / "a.txt").read_text() == "somebody else's\n"


def test_a_stage_that_a_killed_redoma_has_left_goes_with_the_next_run(settings: Config, project: Path) -> None:
    left = (settings.state or Path()) / "stage-left"
    left.mkdir(parents=True)
    (left / "1").write_text("unredacted")
    with Executor(settings) as executor:
        executor.run("true", "bash", workspace="overlay", project=project)
    assert not left.exists()


def test_where_they_have_to_be_two_a_hand_is_not_enough(settings: Config, project: Path) -> None:
    two = msgspec.structs.replace(settings, approval=ApprovalConfig(separate=True))
    with Executor(two) as executor:
        result = executor.command(ASKS, workspace="overlay", project=project)
        with pytest.raises(ApprovalError):
            executor.apply(result.id, by_hand=True)
    assert (project / "a.txt").read_text() == "as it was\n"


def test_an_approval_of_an_effect_is_none_of_its_protected_paths(settings: Config, project: Path) -> None:
    command = ["sh", "-c", "sudo true; mkdir -p .git/hooks; echo evil > .git/hooks/pre-commit; echo x > a.txt"]
    queued = msgspec.structs.replace(settings, approval=ApprovalConfig(approver="queue"))
    with Executor(queued) as executor:
        result = executor.command(command, workspace="overlay", project=project)
        with pytest.raises(ApprovalError):
            executor.apply(result.id, wait=False)
        ledger = Ledger(open_store(settings.state or Path()), lambda kind, run, data: None)
        (entry,) = ledger.entries("open")
        ledger.answer(answer(entry.ask, "approved"))
        with pytest.raises(ApprovalError):
            executor.apply(result.id, named=[".git/hooks/*"], wait=False)
        assert executor.apply(result.id, wait=False).state == "partly"
    assert (project / "a.txt").read_text() == "x\n"
    assert not (project / ".git" / "hooks" / "pre-commit").exists()


def test_a_policy_that_forbids_it_by_now_is_heard_when_it_is_applied(settings: Config, project: Path) -> None:
    with Executor(settings) as executor:
        result = executor.command(ASKS, workspace="overlay", project=project)
    stricter = PolicyConfig(decisions={result.evaluation.findings[0].rule: Decision.FORBID})
    later = msgspec.structs.replace(settings, policy=stricter)
    with Executor(later, approver=Callback(lambda ask: answer(ask, "approved"))) as executor:
        with pytest.raises(ApprovalError, match="not applied"):
            executor.apply(result.id)
    assert (project / "a.txt").read_text() == "as it was\n"


def test_a_run_that_is_approved_runs_and_one_that_is_denied_does_not(settings: Config, project: Path) -> None:
    answers: Iterator[Any] = iter(["approved", "denied"])
    with Executor(settings, approver=Callback(lambda ask: answer(ask, next(answers)))) as executor:
        approved = executor.run("sudo true; echo ran", "bash")
        denied = executor.run("sudo true; echo ran", "bash")
    assert "ran\n" in approved.stdout
    assert approved.approval is not None
    assert (approved.approval.approver, approved.approval.decision) == ("ana", "approved")
    assert (denied.status, denied.stdout) == (Status.DENIED, "")
    assert "ana" in (denied.error or "")


def test_what_waits_is_resumed_once_by_another_process_s_executor(settings: Config) -> None:
    queued = msgspec.structs.replace(settings, approval=ApprovalConfig(approver="queue"))
    with Executor(queued) as executor:
        waiting = executor.run("sudo true; echo $TOKEN", "bash", wait=False, secrets={"TOKEN": "s3cr3t-value"})
        assert waiting.status is Status.PENDING
        assert waiting.shell_exit == 75
        still = executor.resume(waiting.approval_id, secrets={"TOKEN": "s3cr3t-value"})
        assert still.status is Status.PENDING
    state = settings.state or Path()
    ledger = Ledger(open_store(state), lambda kind, run, data: None)
    entry = ledger.load(waiting.approval_id)
    ledger.answer(entry.ask.answer("approved", approver="ana", reason="looked at it", at=ledger.now()))
    with Executor(queued) as executor:
        with pytest.raises(ApprovalError, match="TOKEN"):
            executor.resume(waiting.approval_id)
        other = executor.resume(waiting.approval_id, secrets={"TOKEN": "another-value"})
        assert other.status is Status.DENIED
        ran = executor.resume(waiting.approval_id, secrets={"TOKEN": "s3cr3t-value"})
        assert ran.stdout == "[redacted:known-secret]\n"
        again = executor.resume(waiting.approval_id, secrets={"TOKEN": "s3cr3t-value"})
        assert (again.status, again.stdout) == (Status.DENIED, "")


def test_secrets_that_it_writes_are_not_in_what_is_shown(settings: Config, project: Path) -> None:
    with Executor(settings) as executor:
        secret = {"TOKEN": "s3cr3t-value"}
        result = executor.run('echo "$TOKEN" > a.txt', "bash", workspace="overlay", project=project, secrets=secret)
        assert result.effect is not None
        assert "s3cr3t-value" not in repr(result)
        assert "s3cr3t-value" not in repr(executor.core.projects.changes.get(result.id))
        executor.apply(result.id)
    assert (project / "a.txt").read_text() == "s3cr3t-value\n"


@pytest.mark.parametrize("path", ["/", "/usr", "/etc", "~"])
def test_what_is_no_project_is_refused(settings: Config, path: str) -> None:
    with Executor(settings) as executor:
        result = executor.run("ls", "bash", workspace="overlay", project=os.path.expanduser(path))
    assert result.status is Status.FAILED
    assert "project" in (result.error or "")


def test_without_a_state_directory_there_is_no_overlay(config: Config, project: Path) -> None:
    with Executor(config) as executor:
        result = executor.run("ls", "bash", workspace="overlay", project=project)
    assert result.status is Status.FAILED
    assert "state" in (result.error or "")


@pytest.mark.parametrize(
    "options",
    [
        {"project": "/tmp"},
        {"workspace": "overlay", "files": {"a": b""}},
        {"workspace": "overlay", "outputs": ["*"]},
        {"workspace": "overlay", "cwd": "/usr"},
        {"workspace": "somewhere"},
    ],
)
def test_what_makes_no_sense_is_told(settings: Config, options: dict[str, Any]) -> None:
    with Executor(settings) as executor, pytest.raises(InvalidRequest):
        executor.run("ls", "bash", **options)


def test_a_backend_without_overlays_is_not_asked_for_one(settings: Config, project: Path) -> None:
    with Executor(settings) as executor:
        for backend in ("native", "docker", "monty"):
            result = executor.run("1", workspace="overlay", project=project, backend=backend)
            assert result.status is Status.FAILED, backend


async def test_a_run_that_is_cancelled_leaves_no_stage(settings: Config, project: Path) -> None:
    async with AsyncExecutor(settings) as executor:
        await executor.run("1", workspace="overlay", project=project)
        task = asyncio.create_task(executor.run("sleep 60", "bash", workspace="overlay", project=project))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert [name for name in os.listdir(settings.state or "") if name.startswith("stage-")] == []


def test_a_pinned_label_whose_script_has_changed_is_an_alarm(settings: Config) -> None:
    queued = msgspec.structs.replace(settings, approval=ApprovalConfig(approver="queue"))
    with Executor(queued) as executor:
        waiting = executor.run("sudo true", "bash", wait=False, label="nightly")
        ledger = Ledger(open_store(settings.state or Path()), lambda kind, run, data: None)
        ask = ledger.load(waiting.approval_id).ask
        later = ledger.now().replace(year=ledger.now().year + 1)
        ledger.answer(
            ask.answer("approved", approver="ana", reason="each night", at=ledger.now(), expires=later, pinned=True)
        )
        for _ in range(2):
            assert executor.run("sudo true", "bash", label="nightly").status.ending == "ran"
        changed = executor.run("echo something else", "bash", label="nightly")
    assert changed.status is Status.DENIED
    assert "ALARM" in (changed.error or "")
    assert "alarm" in kinds(settings)


def test_errors_of_changes_are_redomas(settings: Config) -> None:
    with Executor(settings) as executor:
        for work in (executor.apply, executor.discard, executor.undo):
            with pytest.raises(RedomaError, match="nothing is kept"):
                work("0123456789ab")


def test_a_pinned_command_over_a_project_whose_script_has_changed_is_an_alarm(settings: Config, project: Path) -> None:
    """In an overlay the effect is what is approved; but what is pinned has to be what made it."""
    script = project / "x.sh"
    script.write_text("#!/bin/sh\nsudo true\necho changed >> a.txt\n")
    script.chmod(0o755)
    asked: list[Ask] = []

    def pin(ask: Ask) -> Approval:
        asked.append(ask)
        until = datetime.now(UTC).replace(year=datetime.now(UTC).year + 1)
        return msgspec.structs.replace(answer(ask, "approved"), pinned=bool(ask.label), expires=until)

    options: dict[str, Any] = {"workspace": "overlay", "project": project, "cwd": str(project), "label": "nightly"}
    words = ["sh", "-c", "sudo true; ./x.sh"]
    with Executor(settings, approver=Callback(pin)) as executor:
        first = executor.command(words, **options)
        assert first.status is Status.OK
        assert executor.apply(first.id).state == "applied"
        assert list(asked[0].scripts) == [str(script)]
        assert executor.command(words, **options).status is Status.OK
        script.write_text("#!/bin/sh\necho evil >> a.txt\n")
        result = executor.command(words, **options)
        assert (result.status, (result.error or "")[:5], result.effect) == (Status.DENIED, "ALARM", None)
        # Read-only there is no effect, so the script is all that somebody can say yes to.
        seen = executor.command(words, **{**options, "workspace": "read-only", "label": ""})
        assert (seen.status, len(asked)) == (Status.ERROR, 2)
        assert list(asked[1].scripts) == [str(script)]
    assert kinds(settings).count("alarm") == 1


@pytest.mark.parametrize("workspace", ["read-only", "overlay"])
def test_python_imports_the_modules_of_its_project(settings: Config, project: Path, workspace: WorkspaceKind) -> None:
    (project / "helper.py").write_text("found = 41\n")
    (project / "inner").mkdir()
    (project / "inner" / "deeper.py").write_text("found = 42\n")
    (project / "random.py").write_text("(")  # of no use to Redoma's own code there
    with Executor(settings) as executor:
        over: dict[str, Any] = {"workspace": workspace, "project": project}
        at_top = executor.run("import helper; helper.found", **over)
        below = executor.run("import deeper; deeper.found", cwd=str(project / "inner"), **over)
        with executor.session(**over) as session:
            assert session.run("import helper; helper.found + 2").value == 43
    assert (at_top.value, below.value) == (41, 42), (at_top.stderr, below.stderr)
    assert at_top.effect is None or not at_top.effect.changes  # no compiled files of modules


def test_pinned_python_whose_module_in_the_project_has_changed_is_an_alarm(settings: Config, project: Path) -> None:
    helper = project / "helper.py"
    helper.write_text("text = 'changed'\n")
    code = "import helper, subprocess\nsubprocess.run('sudo true || true', shell=True)\n"
    code += "open('a.txt', 'a').write(helper.text)"
    asked: list[Ask] = []

    def pin(ask: Ask) -> Approval:
        asked.append(ask)
        until = datetime.now(UTC).replace(year=datetime.now(UTC).year + 1)
        return msgspec.structs.replace(answer(ask, "approved"), pinned=True, expires=until)

    options: dict[str, Any] = {"workspace": "overlay", "project": project, "label": "nightly"}
    with Executor(settings, approver=Callback(pin)) as executor:
        first = executor.run(code, **options)
        assert first.status is Status.OK, first.error
        assert executor.apply(first.id).state == "applied"
        assert list(asked[0].scripts) == [str(helper)]
        assert executor.run(code, **options).status is Status.OK
        helper.write_text("text = 'evil'\n")
        result = executor.run(code, **options)
    assert (result.status, (result.error or "")[:5]) == (Status.DENIED, "ALARM")


def test_input_that_nobody_has_read_is_asked_about_when_its_effect_is_applied_too(
    settings: Config, project: Path
) -> None:
    """What was judged with it must not be judged without it later: `psql` alone asks nobody."""
    with Executor(settings) as executor:
        request = Request(argv=("psql",), language="command", workspace="overlay", project=str(project))
        for live in (False, True):
            case = Judged(
                submission=Submission(request, unread_input=live, entry="app:db"),
                evaluation=executor.core.check(request, live_input=live),
            )
            kept = decode(to_ask(case))
            effect = Effect(project=str(project))
            again = executor.core.projects._judged(kept, effect, paths=None, named=(), exact=False)
            assert again.evaluation.decision is (Decision.PROMPT if live else Decision.ALLOW)
            assert (again.submission.live_input, again.submission.entry) == (live, "app:db")


def test_secrets_in_names_of_files_are_not_shown(settings: Config, project: Path) -> None:
    code = (
        'touch "is-$WORD" "$WORD.2" ana@exemplo.com.br; ln -s "$WORD" link; rm -f a.txt; echo x > ghp_' + "aB3dE6" * 6
    )
    with Executor(settings) as executor:
        kept = executor.run(
            code, "bash", workspace="overlay", project=project, secrets={"WORD": "Tr0ub4dor"}, writes=["nothing"]
        )
        assert kept.effect is not None
        text = repr((kept.effect, kept.unexpected))
        assert "Tr0ub4dor" not in text
        assert "aB3dE6" not in text
        assert "is-[redacted:known-secret]" in [change.path for change in kept.effect.changes]
        assert "ana@exemplo.com.br" in kept.unexpected
        executor.apply(kept.id, by_hand=True)  # as it was, names and all
    assert (project / "is-Tr0ub4dor").exists()


def test_a_backend_that_declares_no_way_to_run_over_a_project_runs_nothing_there(
    settings: Config, project: Path
) -> None:
    class Claiming(FakeBackend):
        def capabilities(self) -> Capabilities:
            workspaces = frozenset[WorkspaceKind]({"scratch", "overlay"})
            return msgspec.structs.replace(super().capabilities(), workspaces=workspaces)

    backend = Claiming()
    with Executor(settings, backends=[backend]) as executor:
        result = executor.run("1", backend="fake", workspace="overlay", project=project)
    assert (result.status, backend.requests) == (Status.FAILED, [])
    assert "doesn't offer the workspace 'overlay'" in (result.error or "")
