"""`logs/core.log`: its fields, its days and its writers."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import signal
import stat
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from redoma.facades.core import CoreLog
from redoma.lib.errors import AuditError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "core.log"


def write(log: CoreLog, code: str = "print(1)") -> None:
    log.write(code=code, result="1\n", error=None, duration=0.25, memory_used=None)


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def day(ago: int) -> str:
    return f"{datetime.now(UTC) - timedelta(days=ago):%Y-%m-%d}"


def age(path: Path, days: int) -> None:
    """Make a file one that was last written so many days ago."""
    then = (datetime.now(UTC) - timedelta(days=days)).timestamp()
    os.utime(path, (then, then))


def in_children(count: int, function: Callable[[], None]) -> list[int]:
    pids = []
    for _ in range(count):
        if (pid := os.fork()) == 0:
            code = 1
            try:
                function()
                code = 0
            finally:
                os._exit(code)
        pids.append(pid)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def test_a_record_has_the_fields_of_the_source_system(path: Path) -> None:
    before = datetime.now(UTC)
    CoreLog(path).write(code="print('Olá, A³X!')", result="Olá, A³X!", error="", duration=0.25, memory_used=1024)
    (record,) = records(path)
    assert list(record) == ["timestamp", "code", "result", "error", "duration", "memory_used"]
    assert before <= datetime.fromisoformat(record.pop("timestamp")) <= datetime.now(UTC)
    expected = {"code": "print('Olá, A³X!')", "result": "Olá, A³X!", "error": "", "duration": 0.25, "memory_used": 1024}
    assert record == expected


def test_code_of_several_lines_stays_one_record(path: Path) -> None:
    write(CoreLog(path), 'x = 1\nprint("{}")\n\0')
    assert [record["code"] for record in records(path)] == ['x = 1\nprint("{}")\n\0']


def test_the_file_is_0600_whatever_the_umask(path: Path) -> None:
    before = os.umask(0)
    try:
        write(CoreLog(path))
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_link_in_its_place_is_refused(path: Path, tmp_path: Path) -> None:
    path.parent.mkdir()
    path.symlink_to(tmp_path / "victim")
    with pytest.raises(AuditError, match="symbolic link"):
        write(CoreLog(path))
    assert not (tmp_path / "victim").exists()


def test_a_new_day_begins_a_new_file_and_keeps_the_old(path: Path) -> None:
    log = CoreLog(path)
    write(log, "yesterday")
    age(path, 1)
    write(log, "today")
    assert [record["code"] for record in records(path)] == ["today"]
    assert [record["code"] for record in records(path.with_name(f"core.log.{day(1)}"))] == ["yesterday"]


def test_files_older_than_thirty_days_go_and_nothing_else(path: Path) -> None:
    log = CoreLog(path)
    write(log)
    age(path, 1)
    others = ["core.log.txt", "core.log.2020-01-01.gz", "other.log.2020-01-01"]
    for name in (f"core.log.{day(30)}", f"core.log.{day(31)}", "core.log.2020-01-01", *others):
        path.with_name(name).touch()
    write(log)
    kept = {file.name for file in path.parent.iterdir()}
    assert kept == {"core.log", f"core.log.{day(1)}", f"core.log.{day(30)}", *others}


def test_a_clock_set_back_overwrites_no_earlier_file(path: Path) -> None:
    log = CoreLog(path)
    write(log, "second")
    age(path, 1)
    taken = path.with_name(f"core.log.{day(1)}")
    taken.write_text("first")
    write(log, "third")
    assert taken.read_text() == "first"
    assert [record["code"] for record in records(path)] == ["second", "third"]


def test_several_processes_lose_nothing_at_the_turn_of_a_day(path: Path) -> None:
    log = CoreLog(path)
    write(log, "old")
    age(path, 1)

    def work() -> None:
        for _ in range(100):
            write(log, "new")

    assert in_children(4, work) == [0] * 4
    assert [record["code"] for record in records(path)] == ["new"] * 400
    assert [record["code"] for record in records(path.with_name(f"core.log.{day(1)}"))] == ["old"]


def test_a_writer_that_waited_while_the_file_was_renamed_writes_to_the_new_one(path: Path) -> None:
    log = CoreLog(path)
    write(log, "old")
    with open(path) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        waiting = threading.Thread(target=write, args=(log, "new"))
        waiting.start()
        time.sleep(0.02)
        path.rename(path.with_name(f"core.log.{day(1)}"))
    waiting.join()
    assert [record["code"] for record in records(path)] == ["new"]


def test_half_a_line_left_by_a_crash_does_not_swallow_the_next_record(path: Path) -> None:
    log = CoreLog(path)
    write(log)
    with open(path, "a") as file:
        file.write('{"timestamp":"20')
    write(log, "after")
    lines = path.read_text().splitlines()
    assert len(lines) == 3
    assert json.loads(lines[2])["code"] == "after"


def test_a_record_that_does_not_fit_on_the_disk_is_taken_back(path: Path) -> None:
    log = CoreLog(path)
    write(log)
    before = path.read_bytes()

    def attempt() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, resource.RLIM_INFINITY))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        with pytest.raises(AuditError, match="File too large"):
            write(log)

    assert in_children(1, attempt) == [0]
    assert path.read_bytes() == before


def test_text_that_is_no_unicode_is_an_audit_error(path: Path) -> None:
    with pytest.raises(AuditError, match="can't be written as JSON"):
        write(CoreLog(path), "\ud800")
