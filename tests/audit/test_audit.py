"""The audit log as a writer and a reader see it."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import resource
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from audit_helpers import INTENT, exit_code, fork, log_on, mode, on, opened_in, run_days
from hypothesis import given, settings
from hypothesis import strategies as st

from redoma.audit import AuditLog, files
from redoma.lib.errors import AuditError

NOBODY = 65534


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "state" / "audit"


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """One that other users can reach, which pytest's own are not."""
    path = Path(tempfile.mkdtemp(dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


# --- Records ---


def test_a_record_is_one_line_that_names_the_hash_of_the_one_before(directory: Path) -> None:
    log = log_on(directory, 0)
    first, second = log.append("intent", "a1", INTENT), log.append("outcome", "a1", {"status": "ok"})
    lines = (directory / "audit-2026-01-01.jsonl").read_bytes().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"seq": 1, "time": "2026-01-01T12:00:00.000000+00:00", "kind": "intent", "id": "a1", "data": INTENT}
        | {"prev": "0" * 64, "hash": first.hash},
        {"seq": 2, "time": "2026-01-01T12:00:00.000000+00:00", "kind": "outcome", "id": "a1", "data": {"status": "ok"}}
        | {"prev": first.hash, "hash": second.hash},
    ]
    unhashed = lines[1].replace(f',"hash":"{second.hash}"'.encode(), b"")
    assert hashlib.sha256(unhashed).hexdigest() == second.hash


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.text(), JSON, max_size=3), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_any_plain_data_reads_back_as_it_was_and_verifies(payloads: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        log = AuditLog(Path(scratch) / "audit")
        written = [log.append("intent", "x", data) for data in payloads]
        assert list(log.records()) == written
        assert [record.data for record in log.records()] == payloads
        assert log.verify().ok


@pytest.mark.parametrize(
    ("kind", "run", "data"),
    [
        ("intent", "x", {"value": object()}),
        ("intent", "x", {"text": "\ud800"}),
        ("intent", "x", {"text": "x" * (17 * 1024 * 1024)}),
        ("intent", 'x","seq":9', {}),
        ("intent", "x" * 129, {}),
        ("Intent", "x", {}),
        ("retention", "", {"removed": []}),
        ("recovered", "", {}),
    ],
)
def test_what_a_record_cant_hold_is_refused_and_leaves_no_trace(
    directory: Path, kind: str, run: str, data: dict[str, Any]
) -> None:
    log = AuditLog(directory)
    log.append("intent", "before", INTENT)
    with pytest.raises(AuditError):
        log.append(kind, run, data)
    assert log.append("intent", "after", INTENT).seq == 2
    assert log.verify().ok


def test_data_nested_deeper_than_json_can_go_is_refused(directory: Path) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(AuditError, match="can't be written as JSON"):
        AuditLog(directory).append("intent", "x", {"value": deep})


# --- Who may read and write ---


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o377])
def test_files_are_0600_and_the_directory_0700_whatever_the_umask(directory: Path, umask: int) -> None:
    if umask == 0o377:  # takes even our own rights away: the directory has to be there
        directory.mkdir(parents=True, mode=0o700)
    before = os.umask(umask)
    try:
        AuditLog(directory).append("intent", "x", INTENT)
    finally:
        os.umask(before)
    assert mode(directory) == mode(directory.parent) & 0o700 == 0o700
    assert mode(directory.parent) & 0o022 == 0
    assert {path.name.split("-")[0]: mode(path) for path in directory.iterdir()} == {
        "audit": 0o600,
        "head": 0o600,
        "lock": 0o600,
    }


def test_nothing_is_made_before_the_first_record(directory: Path) -> None:
    log = AuditLog(directory)
    assert log.verify().ok
    assert log.verify().records == 0
    assert log.tail(5) == list(log.records()) == []
    assert not directory.exists()


def test_a_directory_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "audit").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(AuditError, match="link"):
        AuditLog(tmp_path / "audit").append("intent", "x", INTENT)
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("name", ["lock", "head", "audit-2026-01-01.jsonl"])
def test_a_file_that_is_a_link_is_refused_and_its_target_untouched(directory: Path, tmp_path: Path, name: str) -> None:
    directory.mkdir(parents=True, mode=0o700)
    (tmp_path / "victim").write_text("precious")
    (directory / name).symlink_to(tmp_path / "victim")
    with pytest.raises(AuditError):
        log_on(directory, 0).append("intent", "x", INTENT)
    assert (tmp_path / "victim").read_text() == "precious"


def test_a_fifo_in_place_of_the_lock_is_refused_without_hanging(directory: Path) -> None:
    directory.mkdir(parents=True, mode=0o700)
    os.mkfifo(directory / "lock", 0o600)
    with pytest.raises(AuditError, match="not a regular file"):
        AuditLog(directory).append("intent", "x", INTENT)


@pytest.mark.parametrize("target", [".", "head", "audit-2026-01-01.jsonl"])
def test_what_others_may_write_is_refused(directory: Path, target: str) -> None:
    log = log_on(directory, 0)
    log.append("intent", "x", INTENT)
    (directory / target).chmod(0o722)
    with pytest.raises(AuditError, match="others may write"):
        log.append("intent", "y", INTENT)


def test_a_file_that_others_could_read_is_closed_to_them_again(directory: Path) -> None:
    log = log_on(directory, 0)
    log.append("intent", "x", INTENT)
    os.chmod(directory / "audit-2026-01-01.jsonl", 0o644)
    log.append("intent", "y", INTENT)
    assert mode(directory / "audit-2026-01-01.jsonl") == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become two users")
def test_a_directory_of_another_user_is_refused(directory: Path) -> None:
    directory.mkdir(parents=True, mode=0o700)
    os.chown(directory, NOBODY, NOBODY)
    with pytest.raises(AuditError, match=f"belongs to user {NOBODY}"):
        AuditLog(directory).append("intent", "x", INTENT)


def test_a_directory_without_write_permission_is_an_audit_error(open_directory: Path) -> None:
    directory = open_directory / "audit"
    directory.mkdir(mode=0o500)

    def attempt() -> None:
        if os.geteuid() == 0:
            os.chown(directory, NOBODY, NOBODY)
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        advice = "give this user write permission there, or choose another directory: set REDOMA_STATE_DIR"
        with pytest.raises(AuditError, match=rf"Permission denied.*Next: {advice}"):
            AuditLog(directory).append("intent", "x", INTENT)

    assert exit_code(fork(attempt)) == 0


# --- Full disks ---


def test_a_record_that_does_not_fit_on_the_disk_leaves_nothing_behind(directory: Path) -> None:
    log = log_on(directory, 0)
    for _ in range(3):
        log.append("intent", "x", INTENT)
    file = directory / "audit-2026-01-01.jsonl"
    before = file.read_bytes()

    def attempt() -> None:
        # The kernel writes what fits and reports the error only with the next write, as on a full disk.
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, resource.RLIM_INFINITY))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        with pytest.raises(AuditError, match="File too large"):
            log.append("intent", "y", INTENT)

    assert exit_code(fork(attempt)) == 0
    assert file.read_bytes() == before
    assert log.append("intent", "z", INTENT).seq == 4
    assert log.verify().ok


def test_a_head_that_cant_be_written_takes_the_record_back(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = AuditLog(directory)
    log.append("intent", "x", INTENT)

    def no_space(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", no_space)
        with pytest.raises(AuditError, match=r"No space left on device\. Next: free some space"):
            log.append("intent", "lost", INTENT)
    assert [record.id for record in log.records()] == ["x"]
    assert log.append("intent", "y", INTENT).seq == 2
    assert log.verify().ok


# --- Several writers ---


def test_four_processes_of_five_hundred_records_make_one_chain(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LOCK_SECONDS", 60.0)  # whoever has it may get no processor for a while
    log = AuditLog(directory)
    log.append("intent", "before", INTENT)  # a log used before the fork, as a server that forks workers has

    def work() -> None:
        for count in range(500):
            log.append("intent", f"{os.getpid()}-{count}", INTENT)

    pids = [fork(work) for _ in range(4)]
    assert [exit_code(pid) for pid in pids] == [0] * 4
    assert log.verify().ok
    assert log.verify().records == 2001
    for pid in pids:
        mine = [record.id for record in log.records() if record.id.startswith(f"{pid}-")]
        assert mine == [f"{pid}-{count}" for count in range(500)]


def test_threads_that_share_a_log_make_one_chain(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LOCK_SECONDS", 60.0)  # as above
    log = AuditLog(directory)
    threads = [
        threading.Thread(target=lambda: [log.append("intent", "x", INTENT) for _ in range(100)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log.verify().ok
    assert log.verify().records == 400


def test_descriptors_are_kept_for_the_next_append_and_none_is_left_open(directory: Path) -> None:
    log = AuditLog(directory)
    for _ in range(5):
        log.append("intent", "x", INTENT)
    assert opened_in(directory) == 4  # directory, lock, head, log
    other = AuditLog(directory)
    other.append("intent", "x", INTENT)
    del other
    assert opened_in(directory) == 4
    assert log.verify().ok
    log.tail(1)
    with pytest.raises(AuditError):
        log.append("intent", "bad id", INTENT)
    (directory / "head").chmod(0o622)
    with pytest.raises(AuditError):
        log.append("intent", "y", INTENT)
    assert opened_in(directory) == 0


def test_a_child_forked_while_the_lock_is_held_does_not_keep_it(tmp_path: Path) -> None:
    with open(tmp_path / "lock", "w") as lock:
        with files.locked(lock.fileno()):
            pid = fork(signal.pause)
    try:
        with open(tmp_path / "lock") as again:
            fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.kill(pid, signal.SIGKILL)
        exit_code(pid)


def test_a_lock_that_is_never_let_go_is_an_error_not_a_hang(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = AuditLog(directory)
    log.append("intent", "x", INTENT)
    monkeypatch.setattr(files, "LOCK_SECONDS", 0.05)
    with open(directory / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(AuditError, match="locked"):
            log.append("intent", "y", INTENT)
        with pytest.raises(AuditError, match="locked"):
            log.verify()  # or it would take a line half-way through being written for a torn one
    assert log.append("intent", "y", INTENT).seq == 2


# --- Reading ---


def test_tail_gives_the_newest_across_files(directory: Path) -> None:
    log = run_days(directory, 0, 1, 2)
    assert [record.seq for record in log.tail(3)] == [4, 5, 6]
    assert [record.seq for record in log.tail(99)] == [1, 2, 3, 4, 5, 6]
    assert log.tail(0) == []


def test_records_since_a_moment_start_there(directory: Path) -> None:
    log = run_days(directory, 0, 1, 2)
    assert [record.id for record in log.records(since=on(1))] == ["run1"] * 2 + ["run2"] * 2
    assert [record.id for record in log.records(since=on(1, hour=13))] == ["run2"] * 2


def test_show_finds_a_run_by_the_beginning_of_its_id(directory: Path) -> None:
    log = AuditLog(directory)
    for run in ("abc1", "abd2", "abc1", "abd", "zz"):
        log.append("intent", run, {})
    assert [record.seq for record in log.show("abc")] == [1, 3]
    assert [record.seq for record in log.show("abd")] == [4]  # the whole id wins over a longer one
    with pytest.raises(AuditError, match="3 runs have an id that starts with 'ab': abc1, abd2, abd"):
        log.show("ab")
    for nothing in ("q", ""):
        with pytest.raises(AuditError, match="no run on record"):
            log.show(nothing)


def test_a_reader_names_the_line_that_it_cant_read(directory: Path) -> None:
    log = run_days(directory, 0)
    file = directory / "audit-2026-01-01.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"ok"', b'"no"'))
    with pytest.raises(AuditError, match=r"line 2 of audit-2026-01-01\.jsonl can't be read"):
        list(log.records())
