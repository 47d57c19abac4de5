"""Whatever is done to the files of a log, `verify` says so, and names the first record concerned."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from audit_helpers import INTENT, log_on, run_days
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from redoma.audit import AuditLog
from redoma.audit.verify import Problem
from redoma.lib.errors import AuditError

FIRST, SECOND, THIRD = "audit-2026-01-01.jsonl", "audit-2026-01-02.jsonl", "audit-2026-01-03.jsonl"
LATER = "audit-2026-01-04.jsonl"


@pytest.fixture(scope="module")
def pristine() -> Iterator[Path]:
    """Records 1 to 4, 5 and 6, 7 to 10, in three files."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch) / "audit"
        run_days(directory, 0, 0, 1, 2, 2)
        yield directory


@pytest.fixture
def directory(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "audit"))


def lines_of(file: Path) -> list[bytes]:
    return file.read_bytes().splitlines(keepends=True)


def rehash(line: bytes) -> bytes:
    """A line given the hash that its content asks for, as a careful forger would."""
    body = line[: line.rindex(b',"hash":"')]
    return body + b',"hash":"%b"}\n' % hashlib.sha256(body + b"}").hexdigest().encode()


def problem(directory: Path, expected_head: str | None = None) -> Problem:
    found = AuditLog(directory).verify(expected_head)
    assert not found.ok
    assert found.problem is not None
    return found.problem


def place(found: Problem) -> tuple[str, str, int, int]:
    return found.kind, found.file, found.line, found.seq


def test_an_untouched_log_verifies(directory: Path) -> None:
    found = AuditLog(directory).verify()
    assert found.ok
    assert found.records == 10
    assert found.head == AuditLog(directory).tail(1)[0].hash


def test_every_single_byte_of_every_file_is_covered(directory: Path) -> None:
    log = AuditLog(directory)
    for name in (FIRST, SECOND, THIRD):
        with open(directory / name, "r+b", buffering=0) as file:
            for position, byte in enumerate(file.read()):
                os.pwrite(file.fileno(), bytes([byte ^ (0x20 if position % 2 else 0x01)]), position)
                found = log.verify()
                assert found.problem is not None, f"{name} byte {position}"
                assert found.problem.kind != "torn", f"{name} byte {position}"
                os.pwrite(file.fileno(), bytes([byte]), position)
    assert log.verify().ok


@given(name=st.sampled_from([FIRST, SECOND, THIRD]), data=st.data())
@settings(max_examples=150, deadline=None)
def test_any_stretch_replaced_by_any_other_is_caught(pristine: Path, name: str, data: st.DataObject) -> None:
    original = (pristine / name).read_bytes()
    start = data.draw(st.integers(0, len(original)))
    end = data.draw(st.integers(start, len(original)))
    changed = original[:start] + data.draw(st.binary(max_size=30) | st.just(original[:start])) + original[end:]
    assume(changed != original)
    (pristine / name).write_bytes(changed)
    try:
        assert not AuditLog(pristine).verify().ok
    finally:
        (pristine / name).write_bytes(original)


def edit(directory: Path, name: str, change: Callable[[list[bytes]], list[bytes]]) -> None:
    (directory / name).write_bytes(b"".join(change(lines_of(directory / name))))


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        (FIRST, lambda old: [old[0], old[1].replace(b'"ok"', b'"no"'), *old[2:]], ("altered", FIRST, 2, 2)),
        (FIRST, lambda old: [old[0], old[2], old[3]], ("removed", FIRST, 2, 2)),
        (FIRST, lambda old: [old[0], old[3]], ("removed", FIRST, 2, 2)),
        (FIRST, lambda old: old[1:], ("removed", FIRST, 1, 1)),
        (FIRST, lambda old: old[:3], ("removed", SECOND, 1, 4)),
        (FIRST, lambda old: [old[0], old[2], old[1], old[3]], ("reordered", FIRST, 2, 2)),
        (FIRST, lambda old: [old[1], old[0], *old[2:]], ("reordered", FIRST, 2, 1)),
        (FIRST, lambda old: [*old[:3], old[1], old[3]], ("inserted", FIRST, 4, 2)),
        (FIRST, lambda old: [*old, old[3]], ("inserted", FIRST, 5, 4)),
        (FIRST, lambda old: [old[0], b"note to self\n", *old[1:]], ("altered", FIRST, 2, 2)),
        (FIRST, lambda old: [old[0], b"\n", *old[1:]], ("altered", FIRST, 2, 2)),
        (FIRST, lambda old: [*old[:3], old[3][:-40]], ("truncated", FIRST, 4, 4)),
        (THIRD, lambda old: old[:-1], ("truncated", THIRD, 4, 10)),
        (THIRD, lambda old: old[:1], ("truncated", THIRD, 2, 8)),
        (THIRD, lambda old: [*old[:3], old[3][:-40]], ("truncated", THIRD, 4, 10)),
        (THIRD, lambda old: [*old[:3], old[3][:-1]], ("truncated", THIRD, 4, 10)),
        (THIRD, lambda old: [*old[:2], old[2][:-40]], ("truncated", THIRD, 3, 9)),
        (THIRD, lambda old: [], ("truncated", SECOND, 3, 7)),
    ],
    ids=[
        "an edited record",
        "a deleted line",
        "two deleted lines",
        "a deleted first line",
        "a deleted last line of an older file",
        "two swapped lines",
        "the first two lines swapped",
        "a repeated line",
        "a repeated last line of an older file",
        "a foreign line",
        "an empty line",
        "an older file cut in mid-line",
        "the newest file cut between two lines",
        "the newest file cut by several lines",
        "the newest file cut in mid-line",
        "the newest file without its last newline",
        "the newest file cut in mid-line, further back",
        "the newest file emptied",
    ],
)
def test_verify_names_the_first_record_concerned(
    directory: Path,
    name: str,
    change: Callable[[list[bytes]], list[bytes]],
    expected: tuple[str, str, int, int],
) -> None:
    edit(directory, name, change)
    assert place(problem(directory)) == expected


def test_a_record_altered_with_its_hash_made_to_match_is_named(directory: Path) -> None:
    edit(directory, FIRST, lambda old: [old[0], rehash(old[1].replace(b'"ok"', b'"no"')), *old[2:]])
    assert place(problem(directory)) == ("altered", FIRST, 2, 2)


def test_a_first_record_that_does_not_begin_the_chain_is_named(directory: Path) -> None:
    edit(directory, FIRST, lambda old: [rehash(old[0].replace(b'"prev":"00', b'"prev":"01')), *old[1:]])
    assert place(problem(directory)) == ("altered", FIRST, 1, 1)


def test_a_last_record_altered_with_its_hash_made_to_match_is_named(directory: Path) -> None:
    edit(directory, THIRD, lambda old: [*old[:3], rehash(old[3].replace(b'"ok"', b'"no"'))])
    assert place(problem(directory)) == ("altered", THIRD, 4, 10)


def test_a_forged_record_put_between_two_is_named(directory: Path) -> None:
    forged = AuditLog(directory).tail(10)[1]
    line = b'{"seq":3,"time":"%b","kind":"outcome","id":"x","data":{},"prev":"%b","hash":""}\n'
    made = rehash(line % (forged.time.encode(), forged.hash.encode()))
    edit(directory, FIRST, lambda old: [*old[:2], made, *old[2:]])
    assert place(problem(directory)) == ("inserted", FIRST, 4, 3)


@pytest.mark.parametrize(
    ("name", "expected"),
    [(FIRST, ("removed", SECOND, 1, 1)), (SECOND, ("removed", THIRD, 1, 5)), (THIRD, ("truncated", SECOND, 3, 7))],
)
def test_a_deleted_file_is_named(directory: Path, name: str, expected: tuple[str, str, int, int]) -> None:
    (directory / name).unlink()
    assert place(problem(directory)) == expected


def test_two_files_with_their_names_exchanged_are_reordered(directory: Path) -> None:
    for source, target in ((FIRST, "spare"), (SECOND, FIRST), ("spare", SECOND)):
        os.rename(directory / source, directory / target)
    assert place(problem(directory)) == ("reordered", SECOND, 1, 1)


# --- The head ---


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"{}",
        b"\xff\0",
        b"[" * 4096,
        b'{"seq":-1,"hash":"","file":"","offset":0}',
        b'{"seq":0,"hash":"%b","file":"%b","offset":5}' % (b"0" * 64, THIRD.encode()),
    ],
)
def test_a_head_deleted_or_unreadable_is_reported_and_stops_the_log(directory: Path, content: bytes | None) -> None:
    (directory / "head").unlink() if content is None else (directory / "head").write_bytes(content)
    assert problem(directory).kind == "head"
    with pytest.raises(AuditError, match=r"head is missing or unreadable.*Next: see `redoma audit verify`"):
        log_on(directory, 2).append("intent", "x", INTENT)


def test_a_head_that_leads_out_of_the_directory_is_not_followed(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (directory / "head").write_bytes(b'{"seq":1,"hash":"%b","file":"../victim","offset":0}' % (b"a" * 64))
    assert problem(directory).kind == "head"
    with pytest.raises(AuditError):
        log_on(directory, 2).append("intent", "x", INTENT)
    assert (tmp_path / "victim").read_text() == "precious"


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        lambda path: edit(path.parent, path.name, lambda old: old[:-1]),
        lambda path: edit(path.parent, path.name, lambda old: [*old[:-1], old[-1].replace(b'"}\n', b"x}\n")]),
        lambda path: edit(path.parent, path.name, lambda old: [*old, b"two\n", b"lines\n"]),
        lambda path: edit(path.parent, path.name, lambda old: [*old, old[-1]]),
    ],
    ids=["deleted", "cut", "altered at its end", "with foreign lines", "with a line repeated"],
)
def test_no_record_is_added_to_a_newest_file_that_is_damaged(directory: Path, damage: Callable[[Path], None]) -> None:
    damage(directory / THIRD)
    before = {path: path.read_bytes() for path in directory.iterdir()}
    for day in (2, 3):
        with pytest.raises(AuditError, match="damaged"):
            log_on(directory, day).append("intent", "x", INTENT)
    assert {path: path.read_bytes() for path in directory.iterdir()} == before


def test_a_newest_file_with_another_name_is_reported(directory: Path) -> None:
    (directory / THIRD).rename(directory / "audit-2099-01-01.jsonl")
    with pytest.raises(AuditError, match="is gone"):
        log_on(directory, 2).append("intent", "x", INTENT)
    assert place(problem(directory)) == ("head", "audit-2099-01-01.jsonl", 1, 7)


@pytest.mark.parametrize("shift", [-1, 1, -10_000])
def test_a_head_that_names_another_place_than_its_record_ends_at_is_reported(directory: Path, shift: int) -> None:
    head = json.loads((directory / "head").read_bytes())
    (directory / "head").write_text(json.dumps(head | {"offset": max(head["offset"] + shift, 0)}))
    with pytest.raises(AuditError, match="damaged"):
        log_on(directory, 2).append("intent", "x", INTENT)
    assert problem(directory).kind == "head"


@given(
    seq=st.integers(0, 10),
    named=st.sampled_from([FIRST, SECOND, THIRD, LATER, "audit-2099-01-01.jsonl"]),
    ends=st.integers(0, 4),
    shift=st.sampled_from([0, 0, 0, -1, 1]),
    renamed=st.sampled_from([None, FIRST, SECOND, THIRD]),
    day=st.integers(0, 4),
)
@settings(max_examples=200, deadline=None)
def test_a_log_that_verifies_takes_the_next_record_and_still_verifies(
    pristine: Path, seq: int, named: str, ends: int, shift: int, renamed: str | None, day: int
) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(shutil.copytree(pristine, Path(scratch) / "audit"))
        lines = lines_of(directory / named) if (directory / named).exists() else []
        offset = max(len(b"".join(lines[:ends])) + shift, 0)
        digest = AuditLog(directory).tail(10)[seq - 1].hash if seq else "0" * 64
        if renamed:
            (directory / renamed).rename(directory / "audit-2099-01-01.jsonl")
        head = {"seq": seq, "hash": digest, "file": named, "offset": offset}
        (directory / "head").write_text(json.dumps(head))
        if AuditLog(directory).verify().ok:
            assert log_on(directory, day).append("intent", "x", INTENT).seq == 11
            assert AuditLog(directory).verify().records == 11
            assert AuditLog(directory).verify().ok


def test_a_head_older_than_what_is_left_of_the_log_is_reported(directory: Path) -> None:
    old = (directory / "head").read_bytes()
    run_days(directory, 40)
    (directory / "head").write_bytes(old)
    assert problem(directory).kind == "head"
    with pytest.raises(AuditError, match="is gone"):
        log_on(directory, 40).append("intent", "x", INTENT)


def test_a_line_broken_off_is_no_crash_once_the_head_names_its_record(directory: Path) -> None:
    edit(directory, THIRD, lambda old: [old[0][:-40]])
    (directory / THIRD).rename(directory / LATER)  # behind the place that the head names, where a crash would leave it
    assert place(problem(directory)) == ("truncated", LATER, 1, 7)


def test_a_line_broken_off_is_no_crash_once_a_new_day_has_begun(directory: Path) -> None:
    head = json.loads((directory / "head").read_bytes())
    (directory / "head").write_text(json.dumps(head | {"file": "audit-2026-01-04.jsonl", "offset": 0}))
    edit(directory, THIRD, lambda old: [*old, b'{"seq":11'])
    assert place(problem(directory)) == ("truncated", THIRD, 5, 11)


def test_a_log_and_head_cut_back_together_are_caught_by_a_hash_kept_elsewhere(directory: Path, pristine: Path) -> None:
    log = run_days(directory, 3)
    kept = log.verify().head
    run_days(directory, 4)
    assert log.verify(expected_head=kept).ok
    for name in ("head", "audit-2026-01-04.jsonl", "audit-2026-01-05.jsonl"):
        (directory / name).unlink()
    shutil.copy(pristine / "head", directory)
    assert log.verify().ok
    assert problem(directory, expected_head=kept).kind == "rewritten"
    shutil.rmtree(directory)
    assert problem(directory, expected_head=kept).kind == "rewritten"


def test_an_expected_head_that_is_no_hash_is_an_error(directory: Path) -> None:
    with pytest.raises(AuditError, match="64 hexadecimal digits"):
        AuditLog(directory).verify(expected_head="abc")


# --- Retention can't be used to hide a removal ---


def test_a_log_that_retention_shortened_needs_its_attestation(directory: Path) -> None:
    kept = AuditLog(directory).tail(5)[0].hash  # record 6, the last of the second file
    log = run_days(directory, 5, retention_days=3)
    assert log.verify().ok
    assert log.verify(expected_head=kept).ok
    (directory / THIRD).unlink()
    assert place(problem(directory)) == ("removed", "audit-2026-01-06.jsonl", 1, 7)


def test_an_altered_first_line_after_retention_is_named_by_its_place(directory: Path) -> None:
    run_days(directory, 5, retention_days=3)
    edit(directory, THIRD, lambda old: [old[0].replace(b"ana", b"bob"), *old[1:]])
    assert place(problem(directory)) == ("altered", THIRD, 1, 0)


def test_files_whose_ending_cant_be_attested_are_kept_and_nothing_runs(directory: Path) -> None:
    edit(directory, SECOND, lambda old: [old[0].replace(b"ana", b"bob"), *old[1:]])
    for _ in range(2):
        with pytest.raises(AuditError, match=r"the first line of audit-2026-01-02\.jsonl is not a record"):
            run_days(directory, 5, retention_days=3)
    assert (directory / FIRST).exists()
    assert place(problem(directory)) == ("altered", SECOND, 1, 5)


# --- Hostile content ---


@pytest.mark.parametrize(
    "line",
    [
        b"x" * 10_000_000 + b"\n",
        b"x" * 40_000_000,
        b"\0" * 100 + b"\n",
        b'{"seq":2,"time":"\xff\xfe"}\n',
        b"[" * 100_000 + b"\n",
        b'{"seq":2,"seq":2}\n',
        b'{"seq":NaN}\n',
        b'{"seq":' + b"9" * 5000 + b"}\n",
        b'{"seq":1e999}\n',
        b"null\n",
    ],
    ids=["10 MB", "40 MB", "NUL", "bad UTF-8", "nested", "duplicate keys", "NaN", "huge number", "infinity", "null"],
)
def test_hostile_lines_are_a_problem_and_never_a_crash(directory: Path, line: bytes) -> None:
    edit(directory, FIRST, lambda old: [old[0], line, *old[1:]])
    assert place(problem(directory)) == ("altered", FIRST, 2, 2)
    with pytest.raises(AuditError, match="line 2"):
        list(AuditLog(directory).records())


@pytest.mark.parametrize(
    "change",
    [
        lambda line: line.replace(b'{"seq":2,', b'{"seq":2,"seq":2,'),
        lambda line: line.replace(b'{"seq":2,', b'{"seq":02,'),
        lambda line: line.replace(b'{"seq":2,', b'{"seq":2.0,'),
        lambda line: line.replace(b'"seq":2,', b'"seq": 2,'),
        lambda line: line.replace(b'{"seq":2,', b'{"seq":' + b"9" * 5000 + b","),
    ],
    ids=["duplicate key", "leading zero", "float", "space", "huge number"],
)
def test_a_forged_line_has_to_have_the_one_form_of_a_record(directory: Path, change: Callable[[bytes], bytes]) -> None:
    edit(directory, FIRST, lambda old: [old[0], rehash(change(old[1])), *old[2:]])
    assert place(problem(directory)) == ("altered", FIRST, 2, 2)


def test_a_forged_retention_record_is_a_problem_and_never_a_crash(directory: Path) -> None:
    edit(directory, FIRST, lambda old: [*old[:3], rehash(old[3].replace(b'"kind":"outcome"', b'"kind":"retention"'))])
    assert place(problem(directory)) == ("altered", FIRST, 4, 4)


def test_a_file_that_is_a_link_or_no_file_is_an_error_not_a_read(directory: Path) -> None:
    (directory / "audit-2026-01-04.jsonl").symlink_to("/etc/passwd")
    with pytest.raises(AuditError, match="symbolic link"):
        AuditLog(directory).verify()
    (directory / "audit-2026-01-04.jsonl").unlink()
    os.mkfifo(directory / "audit-2026-01-04.jsonl")
    with pytest.raises(AuditError, match="not a regular file"):
        AuditLog(directory).verify()
