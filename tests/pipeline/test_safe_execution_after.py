"""The safe-execution policy after a run and around it, and who said yes. The rest is in test_safe_execution.py."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

import redoma
from redoma import Config, Executor, NotWritten, Status
from redoma.approval import Ask, Callback, describe
from redoma.audit import AuditLog
from redoma.models import Approval


@pytest.fixture
def settings(config: Config, tmp_path: Path) -> Config:
    return msgspec.structs.replace(config, state=tmp_path / "state")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    place = tmp_path / "project"
    (place / "build").mkdir(parents=True)
    (place / "a.txt").write_text("as it was\n")
    return place


def test_output_is_checked_against_the_expected_format(settings: Config) -> None:
    with Executor(settings) as executor:
        good = executor.run("print('{\"n\": 1}')", expect="json")
        bad = executor.run("print('{\"n\": }')", expect="json")
    assert (good.status, good.data) == (Status.OK, {"n": 1})
    assert (bad.status, bad.data) == (Status.ERROR, None)
    assert bad.mismatch


def test_error_patterns_are_recognised(settings: Config) -> None:
    with Executor(settings) as executor:
        result = executor.run("def f():\n    raise KeyError('x')\nf()")
    diagnosis = result.diagnoses[0]
    assert (diagnosis.exception, diagnosis.line, diagnosis.kind) == ("KeyError", 2, "python.exception")


def test_unexpected_side_effects_are_reported(settings: Config, project: Path) -> None:
    with Executor(settings) as executor:
        script = "echo 1 > build/made; echo 2 > elsewhere"
        result = executor.run(script, "bash", workspace="overlay", project=project, writes=["build/**"])
    assert result.unexpected == ("elsewhere",)


def test_results_are_parsed_and_sanitised_and_never_raw(settings: Config) -> None:
    with Executor(settings) as executor:
        result = executor.run(r"print('\x1b]0;title\x07{\"key\": \"AKIAIOSFODNN7EXAMPLE\"}')", expect="json")
    assert "\x1b" not in result.stdout
    assert "AKIA" not in repr(result)
    assert list(result.data) == ["key"]


def test_what_was_cut_is_read_by_range(settings: Config) -> None:
    with Executor(settings) as executor:
        result = executor.run("for n in range(5000): print('line', n)", limits={"output_lines": 100})
        assert result.omitted["stdout"] > 0
        assert result.artifacts["stdout"].lines(2500, 2) == ["line 2499", "line 2500"]


def test_a_risky_run_that_fails_is_rolled_back_and_one_that_succeeds_is_not(settings: Config, project: Path) -> None:
    subprocess.run(["git", "init", "-q", str(project / "nested")], check=True)
    (project / ".gitignore").write_text("ignored\n")
    (project / "ignored").write_text("but kept\n")
    script = "rm -r ignored build nested; echo x > a.txt; echo new > new; exit {}"
    with Executor(settings) as executor:
        options: Any = {"backend": "native", "workspace": "direct", "project": project, "policy": "none"}
        failed = executor.run(script.format(1), "bash", **options)
        assert (failed.status, failed.rollback) == (Status.ERROR, {})
        assert (project / "a.txt").read_text() == "as it was\n"
        assert (project / "ignored").read_text() == "but kept\n"
        assert (project / "build").is_dir()
        assert (project / "nested" / ".git" / "HEAD").exists()
        assert not (project / "new").exists()
        done = executor.run(script.format(0), "bash", **options)
    assert (done.status, done.rollback) == (Status.OK, None)
    assert (project / "a.txt").read_text() == "x\n"
    checkpoints = (settings.state or Path()) / "checkpoints"
    assert [place.name for place in checkpoints.iterdir() if place.name != "locks"] == []


def test_writes_are_atomic_and_validated(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    redoma.atomic_write(path, '{"a": 1}')
    with pytest.raises(NotWritten):
        redoma.atomic_write(path, "{", validate=lambda new: json.loads(new.read_text()) is not None)
    assert path.read_text() == '{"a": 1}'
    assert [entry.name for entry in tmp_path.iterdir()] == ["settings.json"]


def test_command_reasoning_and_risks_are_shown_and_the_approver_is_on_record(settings: Config) -> None:
    shown: list[str] = []

    def decide(ask: Ask) -> Approval:
        shown.append(describe(ask).text)
        return ask.answer("approved", approver="ana", reason="needed", at=datetime.now(UTC))

    with Executor(settings, approver=Callback(decide)) as executor:
        result = executor.run("sudo true", "bash", reason="to see it work", backend="native")
    assert result.approval is not None
    assert result.status.ending == "ran"
    (text,) = shown
    assert "sudo true" in text
    assert "to see it work" in text
    assert "privilege" in text
    records = list(AuditLog(settings.audit.directory).records())
    kinds = [record.kind for record in records]
    assert kinds == ["approval.asked", "approval.given", "approval.used", "intent", "outcome"]
    assert "ana" in json.dumps(records[1].data)


def test_without_an_explicit_yes_nothing_runs(settings: Config) -> None:
    with Executor(settings) as executor:
        result = executor.run("sudo true; echo ran", "bash", backend="native")
    assert (result.status, result.stdout) == (Status.DENIED, "")
