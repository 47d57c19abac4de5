"""The audit log after a crash, and across days."""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from audit_helpers import INTENT, exit_code, fork, log_on, mode, run_days

from redoma.audit import AuditLog
from redoma.lib.errors import AuditError


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "state" / "audit"


# --- Crashes ---


def test_kill_9_at_any_moment_leaves_a_log_that_verifies_after_recovery(directory: Path) -> None:
    log = AuditLog(directory)
    acknowledged = torn = 0
    chance = random.Random(7)

    def append_for_ever(pipe: int) -> None:
        while True:
            record = log.append("intent", "x", {"code": "x" * random.choice([10, 5_000, 500_000])})
            os.write(pipe, record.seq.to_bytes(8))

    for number in itertools.count(1):
        ours, theirs = os.pipe()
        pid = fork(functools.partial(append_for_ever, theirs))
        os.close(theirs)
        time.sleep(chance.uniform(0.002, 0.015))
        os.kill(pid, signal.SIGKILL)
        assert exit_code(pid) == -signal.SIGKILL
        with open(ours, "rb") as pipe:
            while seq := pipe.read(8):
                acknowledged = int.from_bytes(seq)
        found = log.verify()
        assert found.ok or (found.problem is not None and found.problem.kind == "torn")
        assert found.records >= acknowledged
        torn += not found.ok
        log.append("intent", "after", INTENT)
        assert log.verify().ok
        if number >= 30 and acknowledged > 30:  # more often on a busy machine, where some are killed before they begin
            break
        assert number < 300
    assert [record.kind for record in log.records()].count("recovered") == torn


def tear(directory: Path, fragment: bytes) -> None:
    """What a writer leaves that is killed half-way through its line."""
    with open(directory / "audit-2026-01-01.jsonl", "ab") as file:
        file.write(fragment)


def die_at(step: int) -> None:
    """Kill this process at its nth step that changes a file; a write gets half-way first."""
    steps = itertools.count(1)

    def deadly(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **options: Any) -> Any:
            if next(steps) == step:
                if call is write:
                    write(args[0], args[1][: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **options)

        return wrapper

    write = os.write
    for name in ("mkdir", "open", "write", "pwrite", "ftruncate", "unlink", "close"):
        setattr(os, name, deadly(getattr(os, name)))


@pytest.mark.parametrize("scenario", ["first record", "next record", "torn line", "new day with retention"])
def test_a_kill_at_each_single_step_leaves_a_log_that_verifies_after_recovery(tmp_path: Path, scenario: str) -> None:
    day = 9 if scenario == "new day with retention" else 0

    def append(directory: Path, step: int) -> None:
        die_at(step)
        log_on(directory, day, retention_days=3).append("intent", "x", INTENT)

    for step in itertools.count(1):
        directory = tmp_path / str(step)
        if scenario != "first record":
            run_days(directory, *((0, 1, 2) if day else (0,)))
        if scenario == "torn line":
            tear(directory, b'{"seq":3')
        ended = exit_code(fork(functools.partial(append, directory, step)))
        found = AuditLog(directory).verify()
        assert found.problem is None or found.problem.kind == "torn", step
        log_on(directory, day, retention_days=3).append("intent", "after", INTENT)
        assert AuditLog(directory).verify().ok, step
        if ended == 0:
            assert step > 10
            break


@pytest.mark.parametrize("fragment", [b'{"seq":3,"time":"20', b"\0" * 700, b'{"seq":3,"ti\0\0\0\0}\n', b"\xff\xfe"])
def test_a_torn_last_line_is_set_aside_and_the_chain_says_so(directory: Path, fragment: bytes) -> None:
    log = run_days(directory, 0)
    tear(directory, fragment)
    problem = log.verify().problem
    assert problem is not None
    assert (problem.kind, problem.line) == ("torn", 3)
    if not fragment.endswith(b"\n"):
        assert [record.seq for record in log.tail(9)] == [1, 2]

    assert log.append("intent", "next", INTENT).seq == 4
    recovered = log.tail(2)[0]
    assert recovered.kind == "recovered"
    digest = hashlib.sha256(fragment).hexdigest()
    assert recovered.data == {"bytes": len(fragment), "sha256": digest, "file": "audit-2026-01-01.3.torn"}
    assert (directory / "audit-2026-01-01.3.torn").read_bytes() == fragment
    assert mode(directory / "audit-2026-01-01.3.torn") == 0o600
    assert log.verify().ok


def test_a_torn_last_line_is_recovered_before_a_new_day_begins(directory: Path) -> None:
    run_days(directory, 0)
    tear(directory, b'{"seq":3')
    log = run_days(directory, 1)
    assert [record.kind for record in log.records()] == ["intent", "outcome", "recovered", "intent", "outcome"]
    assert log.verify().ok


def test_records_written_by_a_writer_killed_before_its_head_are_taken_over(directory: Path) -> None:
    log = run_days(directory, 0)
    behind = (directory / "head").read_bytes()
    log.append("intent", "unacknowledged", INTENT)
    (directory / "head").write_bytes(behind)
    assert log.verify().ok
    assert log.append("outcome", "unacknowledged", {}).seq == 4
    assert log.verify().ok


def test_a_day_whose_head_was_lost_is_taken_over_whole(directory: Path) -> None:
    log = run_days(directory, 0)
    behind = (directory / "head").read_bytes()
    run_days(directory, 1)
    (directory / "head").write_bytes(behind)
    assert log.verify().ok
    assert log_on(directory, 1).append("intent", "x", INTENT).seq == 5
    assert log.verify().ok


@pytest.mark.parametrize("today", [1, 2, 3, 60])
def test_days_whose_heads_were_lost_are_taken_over_whatever_day_it_is_then(directory: Path, today: int) -> None:
    run_days(directory, 0)
    behind = (directory / "head").read_bytes()
    run_days(directory, 1, 2)
    (directory / "head").write_bytes(behind)
    assert AuditLog(directory).verify().ok
    log = run_days(directory, today)
    assert log.verify().ok
    assert [record.id for record in log.tail(2)] == [f"run{today}"] * 2


def test_an_empty_file_of_a_later_day_changes_nothing(directory: Path) -> None:
    run_days(directory, 0)
    (directory / "audit-2099-01-01.jsonl").touch(0o600)
    log = run_days(directory, 1)
    assert (directory / "audit-2026-01-02.jsonl").exists()
    assert log.verify().ok


def test_a_log_with_fsync_is_the_same_log(directory: Path) -> None:
    for day in (0, 1):
        log_on(directory, day, fsync=True).append("intent", "x", INTENT)
    assert AuditLog(directory).verify().records == 2
    assert AuditLog(directory).verify().ok


# --- Days ---


def test_each_day_has_its_file_and_the_chain_goes_on_across_them(directory: Path) -> None:
    log = run_days(directory, 0, 1, 4)
    names = sorted(path.name for path in directory.glob("*.jsonl"))
    assert names == ["audit-2026-01-01.jsonl", "audit-2026-01-02.jsonl", "audit-2026-01-05.jsonl"]
    assert [record.seq for record in log.records()] == [1, 2, 3, 4, 5, 6]
    assert log.verify().ok


def test_a_clock_set_back_keeps_the_order(directory: Path) -> None:
    log = run_days(directory, 3, 1, 2)
    assert [path.name for path in directory.glob("*.jsonl")] == ["audit-2026-01-04.jsonl"]
    assert [record.id for record in log.records()] == ["run3"] * 2 + ["run1"] * 2 + ["run2"] * 2
    assert log.verify().ok


def test_files_past_the_retention_go_and_the_chain_says_which(directory: Path) -> None:
    log = run_days(directory, 0, 1, 2, retention_days=3)
    old = log.tail(3)
    (directory / "audit-2026-01-01.9.torn").touch(0o600)
    (directory / "audit-2026-01-01.notes").touch()
    log = run_days(directory, 5, retention_days=3)
    assert sorted(path.name for path in directory.glob("audit-*")) == [
        "audit-2026-01-01.notes",
        "audit-2026-01-03.jsonl",
        "audit-2026-01-06.jsonl",
    ]
    retention = next(record for record in log.records() if record.kind == "retention")
    assert retention.data["days"] == 3
    assert [(file["file"], file["seq"]) for file in retention.data["removed"]] == [
        ("audit-2026-01-01.jsonl", 2),
        ("audit-2026-01-02.jsonl", 4),
    ]
    assert retention.data["removed"][1]["hash"] == old[0].hash
    found = log.verify()
    assert found.ok
    assert found.records == 5


def test_a_log_left_alone_for_longer_than_its_retention_starts_again_attested(directory: Path) -> None:
    run_days(directory, 0, 1)
    log = run_days(directory, 100, 101)
    assert [record.seq for record in log.records()] == [5, 6, 7, 8, 9]
    assert log.verify().ok


def test_a_kill_between_two_removals_leaves_a_chain_that_verifies(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_days(directory, 0, 1, 2, retention_days=3)
    unlink = os.unlink
    done: list[str] = []

    def once(name: str, **where: Any) -> None:
        if done:
            raise KeyboardInterrupt
        done.append(name)
        unlink(name, **where)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", once)
        with pytest.raises(KeyboardInterrupt):
            run_days(directory, 9, retention_days=3)
    assert len(list(directory.glob("*.jsonl"))) == 3
    assert AuditLog(directory).verify().ok
    assert run_days(directory, 10, retention_days=3).verify().ok
    assert len(list(directory.glob("*.jsonl"))) == 2


def test_a_retention_of_no_days_is_refused(directory: Path) -> None:
    with pytest.raises(AuditError, match="1 or more"):
        AuditLog(directory, retention_days=0)
