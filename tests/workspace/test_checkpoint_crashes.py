"""Killed at any point, a checkpoint is there or isn't, and a restore that was begun can be finished."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoint_stage import NOBODY, everything, in_a_fork, killed_before, stage, take
from workspace_stage import in_a_child

from redoma.lib.errors import BackendError
from redoma.workspace import journal
from redoma.workspace.checkpoint import Checkpoint, recover


@pytest.fixture
def place() -> Iterator[Path]:
    with stage() as directory:
        yield directory


def make(project: Path) -> None:
    """One of everything, and what a run then does to it, in `ruin`."""
    for folder in ("kept", "replaced", "removed/deep", "closed", ".git/hooks"):
        (project / folder).mkdir(parents=True)
    for file in (
        "changed",
        "kept/moved",
        "replaced/in it",
        "removed/deep/file",
        "closed/file",
        ".git/hooks/x",
        "first",
    ):
        (project / file).write_text(f"{file} as it was\n" * 50)
    os.link(project / "first", project / "kept" / "second")
    (project / "link").symlink_to("changed")
    (project / "closed").chmod(0o555)


def ruin(project: Path) -> None:
    (project / "closed").chmod(0o755)
    (project / "changed").write_text("changed")
    (project / "kept" / "moved").rename(project / "moved")
    (project / "replaced" / "in it").unlink()
    (project / "replaced").rmdir()
    (project / "replaced").symlink_to("/nonexistent")
    (project / "removed" / "deep" / "file").unlink()
    (project / "removed" / "deep").rmdir()
    (project / "closed" / "file").write_text("changed")
    (project / "closed").chmod(0)
    (project / "new" / "deep").mkdir(parents=True)
    (project / "new" / "deep" / "file").write_text("new")
    (project / "kept" / "second").unlink()
    (project / "first").write_text("changed")
    (project / "link").unlink()
    (project / "link").mkdir()
    (project / "appeared").write_text("new")
    (project / ".git" / "hooks" / "x").write_text("changed")


def every_point(place: Path) -> int:
    """Kill a restore at each point, go on as the next start does, and compare. How many points there were."""
    call = 0
    while True:
        project, state = place / f"project-{call}", place / f"state-{call}"
        project.mkdir()
        make(project)
        before = everything(project)
        take(project, state).close()
        ruin(project)

        def restore(project: Path = project, state: Path = state) -> None:
            checkpoint = Checkpoint.load(state, str(project))
            assert checkpoint is not None
            assert not checkpoint.restore().failed
            checkpoint.clear()

        killed = killed_before(call, restore)
        for found in recover(state):
            assert not found.restored.failed
            if found.state == "waiting":  # killed before it had a plan, or after it was done with it
                restore()
        assert everything(project) == before, f"killed before call {call}"
        assert os.listdir(state) == ["locks"]
        assert recover(state) == ()
        if not killed:
            return call
        call += 1


def test_a_restore_that_is_killed_at_any_point_is_finished_by_the_next_start(place: Path) -> None:
    assert every_point(place) > 60


def test_a_restore_that_is_killed_at_any_point_is_finished_without_rights_too(place: Path) -> None:
    if os.geteuid():
        pytest.skip("the other test has no rights either")
    place.chmod(0o777)
    assert in_a_fork(lambda: every_point(place), user=NOBODY) > 60


def test_a_restore_that_is_killed_between_two_steps_is_finished_by_the_next_start(place: Path) -> None:
    """At the points of the journal, as an application is."""
    points: list[str] = []
    number = 0
    while number <= len(points):  # the first time, none is deadly
        project, state = place / f"project-{number}", place / f"state-{number}"
        project.mkdir()
        make(project)
        before = everything(project)
        take(project, state).close()
        ruin(project)

        def restore(project: Path = project, state: Path = state, deadly: int = number) -> None:
            passed: list[str] = []

            def at(point: str) -> None:
                passed.append(point)
                if len(passed) == deadly:
                    os.kill(os.getpid(), signal.SIGKILL)

            journal.crash_point = at
            try:
                checkpoint = Checkpoint.load(state, str(project))
                assert checkpoint is not None
                assert not checkpoint.restore().failed
                checkpoint.clear()
            finally:
                journal.crash_point = journal.no_crash
                points.extend(passed)

        if number == 0:
            restore()
        else:
            assert in_a_child(restore) == -signal.SIGKILL
            assert [found.state for found in recover(state)] in (["restored"], [])
        assert everything(project) == before, f"killed at point {number} of {points}"
        assert recover(state) == ()
        number += 1
    assert set(points) == {
        *("journal restoring", "restore remove", "restore repair", "restore finish", "journal removed"),
    }
    assert len(points) > 15


def test_a_plan_that_is_carried_out_again_leaves_alone_what_a_person_did_meanwhile(place: Path) -> None:
    call, spared = 0, 0
    while True:
        project, state = place / f"project-{call}", place / f"state-{call}"
        project.mkdir()
        make(project)
        take(project, state).close()
        ruin(project)

        def restore(project: Path = project, state: Path = state) -> None:
            checkpoint = Checkpoint.load(state, str(project))
            assert checkpoint is not None
            checkpoint.restore()

        killed = killed_before(call, restore)
        theirs = [project / path for path in ("changed", "appeared", ".git/hooks/x", "brand new", "kept/brand new")]
        for path in theirs:
            path.unlink(missing_ok=True)
            path.write_text("a person's work")
        recover(state)
        assert [path.read_text() for path in theirs] == ["a person's work"] * 5, f"killed before call {call}"
        assert not [*project.rglob(".redoma-*")], f"killed before call {call}"
        spared += not (project / "moved").exists()
        if not killed:
            break
        call += 1
    assert spared > 30  # the rest of the plan was carried out


def test_a_checkpoint_that_is_killed_while_it_is_taken_is_none(place: Path) -> None:
    project, state, call = place / "project", place / "state", 0
    project.mkdir()
    make(project)
    before = everything(project)
    while killed_before(call, lambda: take(project, state).close()):
        assert everything(project) == before
        assert recover(state) == ()
        assert not state.exists() or set(os.listdir(state)) <= {"locks"}
        call += 1
    assert call > 10


def test_a_clear_that_is_killed_at_any_point_leaves_no_checkpoint_to_ask_about(place: Path) -> None:
    project, state, call = place / "project", place / "state", 0
    project.mkdir()
    make(project)

    def clear() -> None:
        checkpoint = Checkpoint.load(state, str(project))
        assert checkpoint is not None
        checkpoint.clear()

    while True:
        take(project, state).close()
        killed = killed_before(call, clear)
        recover(state)
        assert set(os.listdir(state)) == {"locks"}
        if not killed:
            break
        call += 1
    assert call > 3


def touched(project: Path) -> dict[Path, tuple[int, ...]]:
    """What tells whether anything was done to it; to look at it is nothing."""
    found: dict[Path, tuple[int, ...]] = {}
    for path in project.iterdir():
        about = path.lstat()
        found[path] = (*about[: stat.ST_ATIME], about.st_mtime_ns, about.st_ctime_ns)
    return found


def test_a_run_that_was_cut_short_waits_for_a_person_and_nothing_is_rolled_back_unasked(place: Path) -> None:
    project, state = place / "project", place / "state"
    project.mkdir()
    make(project)
    before = everything(project)
    take(project, state).close()  # as the kernel closes it when we are killed
    ruin(project)
    ruined = touched(project)
    (found,) = recover(state)
    assert (found.project, found.state) == (str(project), "waiting")
    assert touched(project) == ruined
    with pytest.raises(BackendError, match="earlier checkpoint"):
        take(project, state)
    checkpoint = Checkpoint.load(state, str(project))
    assert checkpoint is not None
    assert not checkpoint.restore().failed
    checkpoint.clear()
    assert everything(project) == before
    take(project, state).clear()


def test_a_run_that_was_cut_short_before_it_changed_anything_is_forgotten(place: Path) -> None:
    project, state = place / "project", place / "state"
    project.mkdir()
    make(project)
    take(project, state).close()
    take(project, state).close()
    assert recover(state) == ()
    assert Checkpoint.load(state, str(project)) is None
