"""`atomic_write`: the old content or the new one, whatever happens."""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from checkpoint_stage import NOBODY, in_a_fork, killed_before, stage

import redoma
from redoma import NotWritten, RedomaError, atomic_write


@pytest.fixture
def place() -> Iterator[Path]:
    with stage() as directory:
        yield directory


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_is_made_or_replaced_and_nothing_else_is_left(place: Path) -> None:
    atomic_write(place / "a", b"one")
    assert (place / "a").read_bytes() == b"one"
    atomic_write(str(place / "a"), "zwölf")
    assert (place / "a").read_bytes() == "zwölf".encode()
    assert os.listdir(place) == ["a"]


def test_a_new_file_has_the_mode_that_others_would_have(place: Path) -> None:
    before = os.umask(0o027)
    try:
        atomic_write(place / "a", b"")
    finally:
        os.umask(before)
    assert mode_of(place / "a") == 0o640


def test_the_mode_of_a_file_is_kept_unless_another_is_given(place: Path) -> None:
    file = place / "a"
    file.write_bytes(b"old")
    for mode in (0o600, 0o755, 0o2711, 0o444):
        file.chmod(mode)
        atomic_write(file, b"new")
        assert mode_of(file) == mode
    atomic_write(file, b"newer", mode=0o640)
    assert mode_of(file) == 0o640


def test_the_owner_is_kept(place: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can have files of others")
    (place / "a").write_bytes(b"old")
    os.chown(place / "a", NOBODY, NOBODY + 1)
    atomic_write(place / "a", b"new")
    about = (place / "a").stat()
    assert (about.st_uid, about.st_gid, (place / "a").read_bytes()) == (NOBODY, NOBODY + 1, b"new")


def test_a_file_that_could_only_be_replaced_by_taking_it_over_is_refused(place: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can have files of others")
    (place / "a").write_bytes(b"old")
    place.chmod(0o777)

    def write() -> str:
        try:
            atomic_write(place / "a", b"new")
        except NotWritten as error:
            return str(error)
        return "written"

    assert "it belongs to user 0" in in_a_fork(write, user=NOBODY)
    assert ((place / "a").read_bytes(), os.listdir(place)) == (b"old", ["a"])


def test_without_any_rights_it_works_just_the_same(place: Path) -> None:
    place.chmod(0o777)

    def write() -> str:
        atomic_write(place / "a", b"one")
        atomic_write(place / "a", b"two", validate=lambda path: path.read_bytes() == b"two")
        return (place / "a").read_text()

    assert in_a_fork(write, user=0 if os.geteuid() else NOBODY) == "two"
    assert os.listdir(place) == ["a"]


def test_an_access_list_is_kept_so_that_the_group_gets_no_more_rights(place: Path) -> None:
    """With one, the group bits of the mode are its mask: as a mode, they would let the group in."""
    file = place / "a"
    file.write_bytes(b"old")
    entries = [(1, 6, 2**32 - 1), (2, 6, NOBODY), (4, 0, 2**32 - 1), (16, 6, 2**32 - 1), (32, 0, 2**32 - 1)]
    access = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(file, "system.posix_acl_access", access)
        os.setxattr(file, "user.note", b"mine")
    except OSError:
        pytest.skip("this file system has no access lists")
    atomic_write(file, b"new")
    assert os.getxattr(file, "system.posix_acl_access") == access
    assert os.getxattr(file, "user.note") == b"mine"


# --- validation ---


def test_what_is_validated_is_the_complete_file_under_a_name_with_the_same_suffix(place: Path) -> None:
    seen: list[tuple[str, bytes]] = []

    def validate(path: Path) -> bool:
        seen.append((path.suffix, path.read_bytes()))
        return True

    atomic_write(place / "settings.json", '{"a": 1}', validate=validate)
    assert seen == [(".json", b'{"a": 1}')]


@pytest.mark.parametrize(
    "validate",
    [lambda path: False, lambda path: None, lambda path: "", lambda path: json.loads(path.read_text())],
    ids=["False", "None", "empty", "raises"],
)
def test_what_is_not_accepted_changes_nothing(place: Path, validate: Callable[[Path], object]) -> None:
    (place / "a.json").write_text("{}")
    before = (place / "a.json").stat()
    with pytest.raises(NotWritten, match="was not accepted"):
        atomic_write(place / "a.json", "{broken", validate=validate)
    assert (place / "a.json").stat() == before
    assert os.listdir(place) == ["a.json"]


def test_a_validation_that_is_interrupted_changes_nothing(place: Path) -> None:
    def interrupted(path: Path) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        atomic_write(place / "a", b"new", validate=interrupted)
    assert os.listdir(place) == []


@pytest.mark.parametrize("swap", [False, True])
def test_what_was_changed_while_it_was_validated_is_not_used(place: Path, swap: bool) -> None:
    def meddle(path: Path) -> bool:
        if swap:
            path.unlink()
        with open(path, "ab") as file:
            file.write(b"more")
        return True

    with pytest.raises(NotWritten, match="changed while it was validated"):
        atomic_write(place / "a", b"new", validate=meddle)
    assert os.listdir(place) == []


# --- what is refused ---


def test_a_link_is_neither_followed_nor_replaced(place: Path) -> None:
    (place / "victim").write_bytes(b"old")
    for target in ("victim", "nowhere"):
        (place / "link").symlink_to(target)
        with pytest.raises(NotWritten, match=f"symbolic link to '{target}'"):
            atomic_write(place / "link", b"new")
        (place / "link").unlink()
    assert (os.listdir(place), (place / "victim").read_bytes()) == (["victim"], b"old")


def test_directories_pipes_and_sockets_are_refused(place: Path) -> None:
    (place / "directory").mkdir()
    os.mkfifo(place / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(place / "socket"))
        for name in ("directory", "pipe", "socket"):
            with pytest.raises(NotWritten):
                atomic_write(place / name, b"new")
    assert sorted(os.listdir(place)) == ["directory", "pipe", "socket"]
    with pytest.raises(NotWritten, match="it is a directory"):
        atomic_write("/", b"new")


def test_errors_say_what_to_do(place: Path) -> None:
    with pytest.raises(NotWritten, match="Next: make the directory first"):
        atomic_write(place / "no" / "a", b"new")
    assert issubclass(NotWritten, RedomaError)
    assert redoma.atomic_write is atomic_write


@pytest.mark.parametrize(
    "name", ["x" * 255, "ü" * 127, os.fsdecode(b"\xff.\xfe"), "a." + "s" * 253, "-rf", "new\nline"]
)
def test_any_name_will_do(place: Path, name: str) -> None:
    atomic_write(place / name, b"one")
    atomic_write(place / name, b"two", validate=lambda path: True)
    assert [(entry, (place / entry).read_bytes()) for entry in os.listdir(place)] == [(name, b"two")]


# --- crashes, and others ---


def test_killed_at_any_point_it_leaves_the_old_or_the_new_and_the_next_removes_the_rest(place: Path) -> None:
    file, call, stale, seen = place / "a.txt", 0, 0, set()
    while True:
        file.write_bytes(b"old" * 1000)
        killed = killed_before(call, lambda: atomic_write(file, b"new" * 5000, validate=lambda path: True, mode=0o640))
        assert file.read_bytes() in (b"old" * 1000, b"new" * 5000)
        seen.add(file.read_bytes()[:3])
        stale += len(os.listdir(place)) - 1
        atomic_write(file, b"next")
        assert os.listdir(place) == ["a.txt"]
        if not killed:
            break
        call += 1
    assert call > 5
    assert stale > 2  # it was killed while there was a temporary file
    assert seen == {b"old", b"new"}


def test_what_another_is_writing_is_not_taken_for_a_leftover(place: Path) -> None:
    def meanwhile(path: Path) -> bool:
        atomic_write(place / "a", b"second")  # looks for leftovers
        return path.exists()

    atomic_write(place / "a", b"first", validate=meanwhile)
    assert ((place / "a").read_bytes(), os.listdir(place)) == (b"first", ["a"])


def test_a_file_that_only_looks_like_a_leftover_of_another_file_is_not_touched(place: Path) -> None:
    others = [".b.redoma-0123456789abcdef", "a.redoma-0123456789abcdef", ".ab.redoma-0123456789abcdef"]
    for name in others:
        (place / name).write_bytes(b"theirs")
    atomic_write(place / "a", b"new")
    assert sorted(os.listdir(place)) == sorted([*others, "a"])


def test_many_writers_at_once_each_write_the_whole(place: Path) -> None:
    file, wrong, failures = place / "a", [], []
    atomic_write(file, b"0" * 10_000)
    ended = threading.Event()

    def write(number: int) -> None:
        try:
            for _ in range(15):
                atomic_write(file, str(number).encode() * 10_000)
        except Exception as error:
            failures.append(error)

    def read() -> None:
        while not ended.is_set():
            content = file.read_bytes()
            if len(content) != 10_000 or len(set(content)) != 1:
                wrong.append(content)

    reader = threading.Thread(target=read)
    writers = [threading.Thread(target=write, args=[number]) for number in range(6)]
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    ended.set()
    reader.join()
    assert (wrong, failures, os.listdir(place)) == ([], [], ["a"])
