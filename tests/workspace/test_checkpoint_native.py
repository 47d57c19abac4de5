"""Checkpoints of risky runs on the host: taken before, put back if the run fails, and said so if there can be none."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from checkpoint_stage import everything, in_a_fork, stage

import redoma.exec
from redoma import AsyncExecutor, Config, Executor, InvalidRequest, Result, Rule, Status
from redoma.approval import Ask, Callback, Ledger
from redoma.approval.show import describe
from redoma.approval.store import open_store
from redoma.audit import AuditLog
from redoma.backends import linux
from redoma.config import ApprovalConfig, AuditConfig, NativeEntry, PolicyConfig
from redoma.models import Approval, Decision
from redoma.workspace import checkpoint
from redoma.workspace.checkpoint import Checkpoint
from redoma.workspace.snapshot import Bounds

Command = Callable[..., subprocess.CompletedProcess[str]]
RISKY = Rule(id="own.risky", decision=Decision.PROMPT, reason="it is risky", suggestion="none", command=("sh",))
SPOIL = "rm -r ignored empty nested; echo changed > a; mkdir -p new/er; exit {}"


@pytest.fixture
def place() -> Iterator[Path]:
    with stage() as directory:
        yield directory


@pytest.fixture
def project(place: Path) -> Path:
    """With all that a copy by git would forget."""
    project = place / "project"
    for folder in ("empty", "nested/.git/refs"):
        (project / folder).mkdir(parents=True)
    for name in ("a", "ignored", "nested/.git/HEAD"):
        (project / name).write_text("as it was\n")
    (project / ".gitignore").write_text("ignored\n")
    return project


def settings(place: Path, **more: Any) -> Config:
    state = place / "state"
    audit = more.pop("audit", state / "audit")
    return Config(audit=AuditConfig(directory=audit), state=state, policy=PolicyConfig(rules=(RISKY,)), **more)


def yes(ask: Ask) -> Approval:
    return ask.answer("approved", approver="ana", reason="looked at it", at=datetime.now(UTC))


@contextmanager
def approved(place: Path, **more: Any) -> Iterator[Executor]:
    with Executor(settings(place, **more), approver=Callback(yes)) as executor:
        yield executor


def spoil(executor: Executor, project: Path, code: int = 1, **options: Any) -> Result:
    return executor.command(["sh", "-c", SPOIL.format(code)], backend="native", cwd=str(project), **options)


def kept(place: Path) -> list[str]:
    """The checkpoints that are there."""
    directory = place / "state" / "checkpoints"
    return [each.name for each in directory.iterdir() if each.name != "locks"] if directory.exists() else []


def recorded(place: Path, kind: str) -> list[dict[str, Any]]:
    return [record.data for record in AuditLog(place / "state" / "audit").records() if record.kind == kind]


def failed_and_succeeded(place: Path, project: Path) -> list[Any]:
    before = everything(project)
    with approved(place) as executor:
        failed = spoil(executor, project)
        same = everything(project) == before
        done = spoil(executor, project, 0)
    paths = sorted(change.path for change in failed.effect.changes) if failed.effect else []
    told = [failed.status, failed.rollback, failed.no_checkpoint, paths, same, done.status, done.rollback]
    return [*told, sorted(os.listdir(project)), kept(place)]


def without_rights(work: Callable[[], Any]) -> Any:
    """What it returns in a child that has no capability over the files that it owns, whoever we are. Not another user:
    nobody else may be able to run our interpreter."""

    def ordinary() -> Any:
        maps = {"uid": os.geteuid(), "gid": os.getegid()}
        while len(os.listdir("/proc/self/task")) > 1:  # what is collected after a fork may end in a thread of its own
            time.sleep(0.01)
        linux.unshare(linux.CLONE_NEWUSER)
        Path("/proc/self/setgroups").write_text("deny")
        for name, number in maps.items():
            Path(f"/proc/self/{name}_map").write_text(f"1000 {number} 1")
        version_3, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        assert ctypes.CDLL(None).capset(version_3, none) == 0
        return work()

    return in_a_fork(ordinary)


@pytest.mark.parametrize("child", [in_a_fork, without_rights], ids=["as we are", "without rights"])
def test_an_approved_run_that_fails_is_put_back_and_one_that_succeeds_is_not(
    place: Path, project: Path, child: Callable[..., Any]
) -> None:
    told = child(partial(failed_and_succeeded, place, project))
    assert isinstance(told, list), told
    assert told[:5] == [
        *("error", {}, ""),
        ["a", "empty", "ignored", "nested", "nested/.git", "nested/.git/HEAD", "nested/.git/refs", "new", "new/er"],
        True,
    ]
    assert told[5:] == ["ok", None, [".gitignore", "a", "new"], []]


@pytest.mark.parametrize(
    ("policy", "wanted", "back"),
    [("none", None, False), ("none", True, True), ("none", False, False), (None, True, True), (None, False, False)],
)
def test_what_is_asked_for_counts_and_else_whether_it_is_risky(
    place: Path, project: Path, policy: str | None, wanted: bool | None, back: bool
) -> None:
    with approved(place) as executor:
        result = spoil(executor, project, policy=policy, checkpoint=wanted)
    assert (result.status, result.rollback) == (Status.ERROR, {} if back else None)
    assert (project / "ignored").exists() is back
    assert result.no_checkpoint == ""
    assert recorded(place, "intent")[0].get("checkpoint") is wanted


def test_a_rollback_is_on_record_with_its_paths_and_no_secret(place: Path, project: Path) -> None:
    with approved(place) as executor:
        script = 'echo "$TOKEN" > "$TOKEN"; exit 1'
        options: Any = {"backend": "native", "cwd": str(project), "secrets": {"TOKEN": "s3cr3t-value"}}
        result = executor.command(["sh", "-c", script], **options)
    (told,) = recorded(place, "rollback")
    assert told == {"project": str(project), "paths": ["[redacted:known-secret]"], "left": {}}
    assert recorded(place, "outcome")[0]["rolled_back"] is True
    assert result.effect is not None
    assert "s3cr3t-value" not in result.effect.changes[0].diff


def test_a_run_out_of_time_is_put_back(place: Path, project: Path) -> None:
    with approved(place) as executor:
        script = ["sh", "-c", "rm a; exec sleep 60"]
        result = executor.command(script, backend="native", cwd=str(project), limits={"time": 0.3})
    assert (result.status, result.rollback) == (Status.TIMEOUT, {})
    assert (project / "a").read_text() == "as it was\n"


async def test_a_run_that_is_cancelled_is_put_back_and_that_is_on_record(place: Path, project: Path) -> None:
    begun = asyncio.Event()
    async with AsyncExecutor(settings(place), approver=Callback(yes)) as executor:
        options: Any = {"backend": "native", "cwd": str(project), "on_output": lambda *_: begun.set()}
        task = asyncio.create_task(executor.command(["sh", "-c", "rm a; echo; exec sleep 60"], **options))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert (project / "a").read_text() == "as it was\n"
    assert [told["paths"] for told in recorded(place, "rollback")] == [["a"]]


def no_project(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(project))


def too_large(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "Bounds", partial(Bounds, max_files=3))


@pytest.mark.parametrize(("spoilt", "why"), [(no_project, "home directory"), (too_large, "more than 3 files")])
def test_where_there_can_be_none_an_approved_run_says_so_and_one_that_needs_it_does_not_begin(
    place: Path, project: Path, monkeypatch: pytest.MonkeyPatch, spoilt: Callable[..., None], why: str
) -> None:
    spoilt(project, monkeypatch)
    with approved(place) as executor:
        refused = spoil(executor, project, checkpoint=True)
        assert (refused.status, (project / "ignored").exists()) == (Status.FAILED, True)
        assert re.match(f"there is no checkpoint, so nothing ran: .*{why}", refused.error or "")
        result = spoil(executor, project)
    assert (result.status, result.rollback, (project / "ignored").exists()) == (Status.ERROR, None, False)
    assert why in result.no_checkpoint
    assert recorded(place, "outcome")[-1]["no_checkpoint"] == result.no_checkpoint
    assert kept(place) == []


def test_an_approved_command_runs_from_the_root_directory(place: Path) -> None:
    with approved(place) as executor:
        result = executor.command(["sh", "-c", "pwd"], backend="native", cwd="/")
        gone = executor.command(["sh", "-c", "pwd"], backend="native", cwd=str(place / "nowhere"))
    assert (result.status, result.stdout) == (Status.OK, "/\n")
    assert "more than a project" in result.no_checkpoint
    assert (gone.exit_code, gone.no_checkpoint != "") == (127, True)


def test_a_checkpoint_that_was_asked_for_needs_a_state_directory(place: Path, project: Path) -> None:
    config = msgspec.structs.replace(settings(place), state=None)
    with Executor(config) as executor:
        result = spoil(executor, project, policy="none", checkpoint=True)
    assert (result.status, (project / "ignored").exists()) == (Status.FAILED, True)
    assert "state directory" in (result.error or "")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"checkpoint": True}, "on auto it works in a directory of its own"),
        ({"checkpoint": True, "backend": "jail"}, "on jail"),
        ({"checkpoint": True, "backend": "native"}, "an empty directory of its own"),
        ({"checkpoint": True, "workspace": "overlay"}, "the workspace overlay"),
        ({"checkpoint": True, "workspace": "read-only"}, "the workspace read-only"),
        ({"checkpoint": False, "workspace": "direct", "backend": "native"}, "always has one"),
        ({"checkpoint": "yes", "backend": "native", "cwd": "."}, "it takes True, False or None"),
    ],
)
def test_what_makes_no_sense_is_told_before_anybody_is_asked(place: Path, options: dict[str, Any], why: str) -> None:
    with Executor(settings(place)) as executor, pytest.raises(InvalidRequest, match=why):
        executor.run("true", "bash", **options)


def test_another_risky_run_there_or_below_does_not_begin_meanwhile(place: Path, project: Path) -> None:
    with approved(place) as executor:
        waits = ["sh", "-c", "echo; exec sleep 60"]
        with executor.stream_command(waits, backend="native", cwd=str(project)) as run:
            for _ in run:
                for directory in (project, project / "nested"):
                    other = executor.command(["sh", "-c", "touch x"], backend="native", cwd=str(directory))
                    assert (other.status, (directory / "x").exists()) == (Status.FAILED, False)
                    assert "the project is in use" in (other.error or "")
                beside = executor.command(["sh", "-c", "pwd"], backend="native", cwd=str(place))
                assert beside.no_checkpoint, "the state directory is there"
                break
        assert spoil(executor, project, 0).status is Status.OK


def test_what_we_write_ourselves_in_the_directory_meanwhile_stays(place: Path, project: Path) -> None:
    waits = ["sh", "-c", "rm a; echo; exec sleep 60"]
    with approved(place, audit=project / "log") as executor:
        with executor.stream_command(waits, backend="native", cwd=str(project)) as run:
            for _ in run:
                assert executor.command(["true"], backend="native").ok
                break  # which ends the run
        assert (project / "a").exists()
    log = AuditLog(project / "log")
    assert [record.kind for record in log.records()][-4:] == ["intent", "outcome", "rollback", "outcome"]
    assert log.verify().ok


def test_a_link_to_the_directory_means_what_it_led_to_when_that_was_kept(
    place: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, elsewhere = place / "link", place / "elsewhere"
    link.symlink_to(project)
    elsewhere.mkdir()
    take = Checkpoint.take

    def led_elsewhere(*arguments: Any, **options: Any) -> Checkpoint:
        taken = take(*arguments, **options)
        link.unlink()
        link.symlink_to(elsewhere)
        return taken

    monkeypatch.setattr(Checkpoint, "take", led_elsewhere)
    with approved(place) as executor:
        result = spoil(executor, link)
    assert (result.rollback, (project / "ignored").exists(), os.listdir(elsewhere)) == ({}, True, [])
    assert result.effect is not None
    assert result.effect.changes


def test_a_configured_executor_has_one_and_a_process_to_talk_to_only_if_asked_for(place: Path, project: Path) -> None:
    shown: list[str] = []

    def look(ask: Ask) -> Approval:
        shown.append(describe(ask).text)
        return yes(ask)

    entry = NativeEntry(name="shell", default_work_dir=project)
    with Executor(settings(place, entries={"app:shell": entry}), approver=Callback(look)) as executor:
        result = executor.command(["sh", "-c", SPOIL.format(1)], entry="app:shell")
        assert (result.rollback, (project / "ignored").exists()) == ({}, True)
        with redoma.exec.get("app:shell", executor) as shell:
            options: list[tuple[Any, bool]] = [({"checkpoint": True}, True), ({}, False)]
            for wanted, back in options:
                with shell.exec(["sh", "-c", SPOIL.format(1)], **wanted) as process:
                    process.start()
                    assert process.wait() == 1
                told = process.result
                assert [told.rollback is not None, not told.no_checkpoint] == [back, back]
                assert (project / "ignored").exists() is back
    assert ["(and not if a program started it" in text for text in shown] == [False, False, True]


def test_what_was_chosen_is_shown_to_whoever_decides_and_holds_when_it_is_resumed(place: Path, project: Path) -> None:
    queued = settings(place, approval=ApprovalConfig(approver="queue"))
    ledger = Ledger(open_store(place / "state"), lambda kind, run, data: None)
    with Executor(queued) as executor:
        for wanted, line, back in ((None, "is put back if the run fails", True), (False, "stays changed", False)):
            waiting = spoil(executor, project, checkpoint=wanted, wait=False)
            assert waiting.status is Status.PENDING
            ask = ledger.load(waiting.approval_id).ask
            assert line in describe(ask).text
            ledger.answer(yes(ask))
            result = executor.resume(waiting.approval_id)
            assert (result.status, (project / "ignored").exists()) == (Status.ERROR, back)


def test_the_command_line_says_what_was_put_back_and_why_something_was_not(
    place: Path, project: Path, redoma_command: Command
) -> None:
    run = partial(redoma_command, cwd=project)
    native = ("--backend", "native", "--policy", "none")
    told = run("exec", *native, "--checkpoint", "--", "sh", "-c", "echo x > a; touch b; exit 3")
    assert told.returncode == 3
    assert f"redoma: rolled back: 2 changes in {project}: a, b\n" in told.stderr
    assert (project / "a").read_text() == "as it was\n"
    script = ("run", "--lang", "bash", *native, "--cwd", str(project), "rm a; exit 3")
    shown = json.loads(run(*script, "--checkpoint", "--json").stdout)
    assert (shown["rollback"], shown["effect"]["changes"][0]["path"]) == ({}, "a")
    assert run(*script, "--no-checkpoint").returncode == 3
    assert not (project / "a").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "terminated"])
def test_who_ends_the_command_line_is_told_what_was_put_back(project: Path, number: signal.Signals) -> None:
    redoma = str(Path(sys.executable).with_name("redoma"))
    options = ("exec", "--backend", "native", "--policy", "none", "--checkpoint", "--", "sh", "-c")
    with subprocess.Popen(
        [redoma, *options, "rm a; touch b; echo; exec sleep 60"],
        cwd=project,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored, if we were started with `&`
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        _, told = process.communicate()
    assert process.returncode == 128 + number
    assert f"redoma: rolled back: 2 changes in {project}: a, b\n" in told
    assert (project / "a").read_text() == "as it was\n"


def test_after_a_kill_the_checkpoint_waits_and_no_other_is_taken(
    place: Path, project: Path, redoma_command: Command
) -> None:
    redoma = str(Path(sys.executable).with_name("redoma"))
    options = ("exec", "--backend", "native", "--policy", "none", "--checkpoint", "--", "sh", "-c")
    with subprocess.Popen(
        [redoma, *options, "rm a; echo; exec sleep 60"], cwd=project, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    told = redoma_command(*options, "touch b", cwd=project)
    assert (told.returncode, (project / "b").exists()) == (125, False)
    assert "redoma checkpoints restore" in told.stderr
    assert redoma_command("checkpoints", "restore", cwd=project).returncode == 0
    assert (project / "a").read_text() == "as it was\n"
