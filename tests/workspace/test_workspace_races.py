"""Others at work in the project at the very moment: nothing of theirs is lost, and nothing outside is ever written.

What they do is done at the points between the looks and the renames, so that it is in time, every time; and once with a
thread that never stops.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from workspace_stage import Stage, snapshot

from redoma.backends import linux
from redoma.lib.errors import Conflict, WorkspaceError
from redoma.workspace import journal


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


@contextmanager
def meanwhile(point: str, act: Callable[[], object]) -> Iterator[None]:
    """Once, at this point."""
    todo = [act]

    def at(reached: str) -> None:
        if reached == point and todo:
            todo.pop()()

    journal.crash_point = at
    try:
        yield
    finally:
        journal.crash_point = journal.no_crash
    assert not todo, "that point was never reached"


@pytest.mark.parametrize("point", ["journal preparing", "stage made", "staged", "journal committed", "step add"])
def test_a_parent_that_becomes_a_link_leads_nothing_outside(stage: Stage, point: str) -> None:
    outside = stage.top / "outside"
    outside.mkdir()
    stage.write("d/old", "x")

    def run(ran: Path) -> None:
        (ran / "a").write_text("first")
        (ran / "d/new").write_text("y")  # nothing would keep it from being put elsewhere but the way there

    def swap() -> None:
        (stage.project / "d").rename(stage.project / "was")
        (stage.project / "d").symlink_to(outside)

    stage.kept(run, "it")
    with meanwhile(point, swap), pytest.raises(WorkspaceError):
        stage.changes.apply("it")
    assert os.listdir(outside) == []
    assert set(snapshot(stage.project)) == {"d", "was", "was/old"}
    assert (stage.project / "was/old").read_text() == "x"
    (stage.project / "d").unlink()
    (stage.project / "was").rename(stage.project / "d")
    assert stage.changes.apply("it").state == "applied"


def test_a_thread_that_swaps_a_directory_for_a_link_all_the_time(stage: Stage) -> None:
    outside = stage.top / "outside"
    outside.mkdir()
    stage.write("d/old", "theirs")
    (stage.project / "trap").symlink_to(outside)

    for number in range(60):
        stage.kept(lambda ran: (ran / "d/new").write_text("y"), f"try{number}")
    stop = threading.Event()

    def swap() -> None:
        directory = os.open(stage.project, os.O_RDONLY)
        while not stop.is_set():
            linux.renameat2("d", "trap", directory, directory, linux.RENAME_EXCHANGE)
            linux.renameat2("d", "trap", directory, directory, linux.RENAME_EXCHANGE)
        os.close(directory)

    thread = threading.Thread(target=swap)
    thread.start()
    refused = 0
    try:
        for number in range(60):
            try:
                stage.changes.apply(f"try{number}")
            except WorkspaceError:
                refused += 1
            assert os.listdir(outside) == []
            if stage.changes.get(f"try{number}").state != "kept":
                break  # it got through, or could not come back
    finally:
        stop.set()
        thread.join()
    assert os.listdir(outside) == []
    kept = stage.changes.get(f"try{number}")
    if kept.state == "applied":
        stage.changes.undo(kept.id)
    contents = [what[2] for path, what in snapshot(stage.project).items() if what[0] == "file" and "new" not in path]
    assert b"theirs" in contents  # in its place, or where the record says that it is
    assert kept.state != "kept" or refused == 60


def test_a_file_that_is_saved_at_the_last_moment_is_not_lost(stage: Stage) -> None:
    stage.write("a", "x")
    stage.write("z", "x")
    stage.kept(lambda ran: [(ran / name).write_text("run") for name in "az"], "it")

    def save() -> None:
        (stage.project / ".z.swp").write_text("edited")
        (stage.project / ".z.swp").rename(stage.project / "z")

    with meanwhile("step replace", save), pytest.raises(Conflict, match="changed it at this moment"):
        stage.changes.apply("it")
    assert {path: what[2] for path, what in snapshot(stage.project).items()} == {"a": b"x", "z": b"edited"}


def test_one_that_is_saved_between_the_last_look_and_the_rename_is_not_lost(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.write("a", "x")
    stage.write("gone", "x")
    real = linux.renameat2
    todo = ["gone", "a"]

    def renameat2(source: str, target: str, *rest: int) -> None:
        for name in (source, target):
            if name in todo:
                todo.remove(name)
                (stage.project / "new").write_text(f"edited {name}")
                (stage.project / "new").rename(stage.project / name)
        real(source, target, *rest)

    def run(ran: Path) -> None:
        (ran / "a").write_text("run")
        (ran / "gone").unlink()

    stage.kept(run, "it")
    monkeypatch.setattr(linux, "renameat2", renameat2)
    with pytest.raises(Conflict):
        stage.changes.apply("it")
    assert (stage.project / "gone").read_text() == "edited gone"
    assert todo == ["a"]
    todo.clear()
    todo.append("a")
    stage.write("gone", "x")
    stage.kept(run, "again")
    with pytest.raises(Conflict):
        stage.changes.apply("again")
    assert snapshot(stage.project) == {"a": ("file", 0o644, b"edited a"), "gone": ("file", 0o644, b"x")}


def test_one_that_is_written_in_place_while_it_is_backed_up_is_not_lost(stage: Stage) -> None:
    stage.write("a", "x")
    stage.write("b", "x")
    stage.kept(lambda ran: [(ran / name).write_text("run") for name in "ab"], "it")
    with meanwhile("backed up", lambda: (stage.project / "a").write_text("edited")), pytest.raises(Conflict):
        stage.changes.apply("it")
    assert {path: what[2] for path, what in snapshot(stage.project).items()} == {"a": b"edited", "b": b"x"}


def test_what_appears_in_a_directory_that_goes_brings_it_back(stage: Stage) -> None:
    stage.write("d/x", "x")
    stage.write("d/y", "y")
    stage.kept(lambda ran: shutil.rmtree(ran / "d"), "it")
    with meanwhile("step remove", lambda: stage.write("d/mine", "mine")), pytest.raises(Conflict):
        stage.changes.apply("it")
    assert {path: what[-1] for path, what in snapshot(stage.project).items() if what[0] == "file"} == {
        "d/x": b"x",
        "d/y": b"y",
        "d/mine": b"mine",
    }


def test_what_appears_where_something_is_to_come_stays(stage: Stage) -> None:
    stage.kept(lambda ran: [(ran / name).write_text("run") for name in "ab"], "it")
    with meanwhile("step add", lambda: stage.write("b", "mine")), pytest.raises(Conflict):
        stage.changes.apply("it")
    assert snapshot(stage.project) == {"b": ("file", 0o644, b"mine")}


def test_a_mode_is_not_set_on_another_file(stage: Stage) -> None:
    stage.write("a", "x")
    stage.write("b", "x")

    def swap() -> None:
        (stage.project / "b").unlink()
        (stage.project / "b").symlink_to(stage.top / "outside")

    (stage.top / "outside").write_text("theirs")
    (stage.top / "outside").chmod(0o640)

    def run(ran: Path) -> None:
        (ran / "a").chmod(0o600)
        (ran / "b").chmod(0o600)

    stage.kept(run, "it")
    with meanwhile("journal committed", swap), pytest.raises(Conflict):
        stage.changes.apply("it")
    assert (stage.top / "outside").stat().st_mode & 0o777 == 0o640
    assert (stage.project / "a").stat().st_mode & 0o777 == 0o644


def test_our_own_directory_is_ours_whatever_stands_under_its_name(stage: Stage) -> None:
    stage.write("a", "x")
    stage.kept(lambda ran: (ran / "a").write_text("run"), "it")
    fake = stage.project / ".redoma-it"

    def swap() -> None:
        fake.rename(stage.project / "theirs now")
        fake.mkdir()
        (fake / "0").write_text("evil")

    with meanwhile("journal committed", swap), suppress(WorkspaceError):
        stage.changes.apply("it")
    assert (stage.project / "a").read_text() in ("x", "run")
    assert (fake / "0").read_text() == "evil"
