"""A log that keeps its descriptors from one append to the next writes where one that opens its files anew does."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from audit_helpers import INTENT, exit_code, fork, log_on, mode, opened_in

from redoma.audit import AuditLog, files
from redoma.lib.errors import AuditError

LOG = "audit-2026-01-01.jsonl"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "audit"


@pytest.fixture
def log(directory: Path) -> AuditLog:
    """It has written, and keeps its descriptors; the directory has not changed for a while."""
    log = log_on(directory, 0)
    log.append("intent", "a", INTENT)
    time.sleep(0.15)
    log.append("intent", "b", INTENT)
    return log


def _again(log: AuditLog) -> AuditLog:
    """The same log, with no descriptor open."""
    return log_on(log.directory, 0)


@pytest.mark.parametrize("name", ["lock", "head", LOG])
def test_a_file_that_was_replaced_by_a_copy_is_the_one_written_to(log: AuditLog, directory: Path, name: str) -> None:
    shutil.copy2(directory / name, directory / "copy")
    os.rename(directory / "copy", directory / name)
    record = log.append("intent", "c", INTENT)
    assert record.seq == 3
    assert [each.id for each in _again(log).records()] == ["a", "b", "c"]
    assert _again(log).verify().ok


@pytest.mark.parametrize(
    "harm",
    [
        lambda directory: (directory / LOG).unlink(),
        lambda directory: (directory / "head").unlink(),
        lambda directory: (directory / "head").write_bytes(b"{}"),
        lambda directory: os.truncate(directory / LOG, 10),
        lambda directory: (directory / LOG).write_bytes((directory / LOG).read_bytes() + b"more\nthan a line\n"),
        lambda directory: (directory / "head").chmod(0o622),
        lambda directory: directory.chmod(0o777),
        lambda directory: (directory / "head").rename(directory / "elsewhere"),
        lambda directory: (directory / "audit-2026-01-09.jsonl").write_bytes(b"forged\ntwice\n"),
    ],
)
def test_what_a_fresh_log_refuses_a_kept_one_refuses(
    log: AuditLog, directory: Path, harm: Callable[[Path], object]
) -> None:
    harm(directory)
    with pytest.raises(AuditError) as kept:
        log.append("intent", "c", INTENT)
    with pytest.raises(AuditError) as fresh:
        _again(log).append("intent", "c", INTENT)
    assert str(kept.value) == str(fresh.value)


def test_a_file_that_appears_right_after_another_change_is_seen(log: AuditLog, directory: Path) -> None:
    (directory / "note").touch()
    log.append("intent", "c", INTENT)
    (directory / "audit-2026-01-09.jsonl").write_bytes(b"forged\ntwice\n")
    with pytest.raises(AuditError):
        log.append("intent", "d", INTENT)


@pytest.mark.parametrize(
    "harm",
    [
        lambda directory: (directory / LOG).rename(directory.with_name("elsewhere")),
        lambda directory: (directory / "audit-2026-01-09.jsonl").write_bytes(b"forged\ntwice\n"),
    ],
)
def test_what_changes_while_an_append_waits_for_the_lock_is_seen(
    log: AuditLog, directory: Path, harm: Callable[[Path], object]
) -> None:
    with ThreadPoolExecutor(1) as other, open(directory / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        appended = other.submit(log.append, "intent", "c", INTENT)
        time.sleep(0.3)
        harm(directory)
        fcntl.flock(lock, fcntl.LOCK_UN)
        with pytest.raises(AuditError):
            appended.result()


def test_a_directory_that_was_moved_away_is_not_written_to(log: AuditLog, directory: Path) -> None:
    directory.rename(directory.with_name("evidence"))
    assert log.append("intent", "c", INTENT).seq == 1
    assert AuditLog(directory.with_name("evidence")).verify().records == 2


def test_a_log_that_others_may_read_is_private_again(log: AuditLog, directory: Path) -> None:
    (directory / LOG).chmod(0o644)
    log.append("intent", "c", INTENT)
    assert mode(directory / LOG) == 0o600


def test_parent_and_forked_children_write_one_chain(log: AuditLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LOCK_SECONDS", 60.0)  # whoever has it may get no processor for a while
    children = [fork(lambda: [log.append("intent", "x", INTENT) for _ in range(50)]) for _ in range(3)]
    for _ in range(50):
        log.append("intent", "x", INTENT)
    assert [exit_code(child) for child in children] == [0, 0, 0]
    assert _again(log).verify().records == 202


def test_threads_write_one_chain(log: AuditLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LOCK_SECONDS", 60.0)  # as above
    threads = [
        threading.Thread(target=lambda: [log.append("intent", "x", INTENT) for _ in range(50)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert _again(log).verify().records == 202


def test_a_new_day_leaves_no_descriptor_of_the_old_one(directory: Path) -> None:
    day = 0
    log = AuditLog(directory, now=lambda: log_on(directory, day)._now())
    log.append("intent", "x", INTENT)
    before = opened_in(directory)
    for day in range(1, 8):  # noqa: B007 - the log's clock reads it
        log.append("intent", "x", INTENT)
        log.append("intent", "x", INTENT)
    assert opened_in(directory) == before > 0
    assert log.verify().ok
