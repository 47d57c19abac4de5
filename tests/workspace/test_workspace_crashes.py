"""`kill -9` at every point of applying and undoing: the tree is what it was, or what it is to be, and nothing else."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from workspace_stage import Stage, as_an_ordinary_user, copy_of, fast_directory, in_a_child, opened, snapshot

from redoma.lib.errors import WorkspaceError
from redoma.lib.files import remove_tree
from redoma.workspace import journal

Snapshot = dict[str, tuple[Any, ...]]


def prepare(stage: Stage) -> None:
    """One project and one run with every kind of change in it."""
    for name in ("changed", "gone", "moved", "swapped", "mode", "to-link"):
        stage.write(name, f"{name} before\n")
    for name in ("d/1", "d/e/3", "was-directory/x", "kept/y"):
        stage.write(name, name)
    (stage.project / "link").symlink_to("changed")
    (stage.project / "shut").mkdir(0o755)

    def run(ran: Path) -> None:
        (ran / "changed").write_text("after\n")
        (ran / "gone").unlink()
        (ran / "moved").rename(ran / "kept/moved")
        (ran / "swapped").unlink()
        (ran / "swapped").mkdir()
        (ran / "swapped/in").write_text("it")
        (ran / "mode").chmod(0o600)
        (ran / "to-link").unlink()
        (ran / "to-link").symlink_to("gone")
        shutil.rmtree(ran / "d")
        shutil.rmtree(ran / "was-directory")
        (ran / "was-directory").write_text("a file")
        (ran / "link").unlink()
        (ran / "link").symlink_to("elsewhere")
        (ran / "new/shut/in").mkdir(parents=True)
        (ran / "new/shut/in/file").write_text("new")
        (ran / "new/shut/in").chmod(0o000)
        (ran / "new/shut").chmod(0o000)
        (ran / "shut").chmod(0o500)

    stage.kept(run, "it")
    stage.project.chmod(0o444)  # it has to be opened, and shut again


def points_of(work: Callable[[], object]) -> list[str]:
    """Where it can be killed, in order."""
    points: list[str] = []
    journal.crash_point = points.append
    try:
        work()
    finally:
        journal.crash_point = journal.no_crash
    return points


def dying_at(number: int, work: Callable[[], object]) -> Callable[[], None]:
    """The work, and a death that nobody can catch at the n-th point of it."""

    def die() -> None:
        passed = iter(range(number))

        def at(_: str) -> None:
            if next(passed, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)

        journal.crash_point = at
        work()

    return die


class Scene:
    """The same beginning, again and again."""

    def __init__(self, top: Path, *, applied: bool) -> None:
        self._first = top / "first"
        self._first.mkdir()
        # The journal has the path of the project, so it is always at the same one.
        self.now = top / "now"
        self.now.mkdir()
        stage = Stage(self.now)
        prepare(stage)
        self.project, self.changes = stage.project, stage.changes
        unapplied = snapshot(self.project)
        if applied:
            self.changes.apply("it")
            self.before, self.after = snapshot(self.project), unapplied
        else:
            self.before = unapplied
            self.changes.apply("it")
            self.after = snapshot(self.project)
            remove_tree(self.now)
            self.now.mkdir()
            prepare(Stage(self.now))
        self._save()
        self.action = "undo" if applied else "apply"

    def _save(self) -> None:
        for name in ("project", "state"):
            copy_of(self.now / name, self._first / name)

    def again(self) -> None:
        for name in ("project", "state"):
            remove_tree(self.now / name)
            copy_of(self._first / name, self.now / name)

    def check(self, where: str) -> str:
        """Which of the two it is; and that nothing of ours is left."""
        tree = snapshot(self.project)
        assert not [path for path in tree if path.startswith(".redoma-")], where
        assert tree in (self.before, self.after), where
        assert self.project.stat().st_mode & 0o777 == 0o444, where
        assert not list((self.now / "state/changes/it").glob("journal*")), where
        happened = tree == self.after
        state = self.changes.get("it").state
        expected = {"apply": ("kept", "applied"), "undo": ("applied", "undone")}[self.action][happened]
        assert state == expected, where
        return "on" if happened else "back"

    def inodes(self) -> dict[str, int]:
        with opened(self.project):
            return {path: (self.project / path).stat().st_ino for path in ("mode", "changed")}

    def work(self) -> None:
        if self.action == "undo":
            self.changes.undo("it")
        else:
            self.changes.apply("it")


@pytest.fixture
def place() -> Iterator[Path]:
    with fast_directory() as directory:
        yield directory


def kill_everywhere(place: Path, *, applied: bool) -> None:
    scene = Scene(place, applied=applied)
    points = points_of(scene.work)
    ends = {}
    for number, point in enumerate(points):
        scene.again()
        assert in_a_child(dying_at(number, scene.work)) == -signal.SIGKILL
        left = snapshot(scene.project)
        for path, what in left.items():  # no file is ever half written
            if not path.startswith(".redoma-") and what[0] == "file":
                contents = [tree[path][-1] for tree in (scene.before, scene.after) if path in tree]
                assert what[-1] in contents, (point, path)
        assert scene.changes.recover() == {}
        ends[number] = scene.check(f"{number}: {point}")
        assert scene.changes.recover() == {}
        scene.check(f"{number}: {point}, once more")
        if ends[number] == "back":  # and it can be done after all
            scene.work()
            assert snapshot(scene.project) == scene.after
    committed = points.index("journal committed")
    assert set(list(ends.values())[:committed]) == {"back"}
    assert set(list(ends.values())[committed:]) == {"on"}
    assert {"stage made", "staged", "step add", "step remove", "step replace", "mode set", "journal done"} <= set(
        points
    )
    assert {"cleaned", "stage removed", "manifest written", "journal removed"} <= set(points)


@pytest.mark.parametrize("applied", [False, True], ids=["apply", "undo"])
def test_killed_at_any_point_it_goes_on_or_back(place: Path, applied: bool) -> None:
    kill_everywhere(place, applied=applied)


@pytest.mark.parametrize("applied", [False, True], ids=["apply", "undo"])
def test_the_same_for_an_ordinary_user(applied: bool) -> None:
    as_an_ordinary_user(lambda place: kill_everywhere(place, applied=applied))


@pytest.mark.parametrize(
    ("applied", "phase"), [(False, "staged"), (False, "step replace"), (True, "step add"), (False, "journal done")]
)
def test_a_recovery_that_is_killed_itself_is_recovered(place: Path, applied: bool, phase: str) -> None:
    scene = Scene(place, applied=applied)
    points = points_of(scene.work)
    number = len(points) - 1 - points[::-1].index(phase)

    def crash() -> None:
        scene.again()
        assert in_a_child(dying_at(number, scene.work)) == -signal.SIGKILL

    crash()
    for second, point in enumerate(points_of(scene.changes.recover)):
        crash()
        assert in_a_child(dying_at(second, scene.changes.recover)) == -signal.SIGKILL
        scene.changes.recover()
        scene.check(f"{phase}, then {second}: {point}")


def break_down(scene: Scene, where: str) -> None:
    """Fail at the last such point: everything has to come back."""
    count = points_of(scene.work).count(where)
    scene.again()
    fails = iter([*[False] * (count - 1), True])
    inodes = scene.inodes()

    def at(point: str) -> None:
        if point == where and next(fails, False):
            raise OSError(5, "Input/output error")

    journal.crash_point = at
    try:
        with pytest.raises(WorkspaceError, match=r"nothing was changed: Input/output error"):
            scene.work()
    finally:
        journal.crash_point = journal.no_crash
    assert scene.check("after an error") == "back"
    assert scene.inodes() == inodes
    scene.work()
    assert snapshot(scene.project) == scene.after


@pytest.mark.parametrize("where", ["staged", "step add", "mode set"])
@pytest.mark.parametrize("applied", [False, True], ids=["apply", "undo"])
def test_an_error_in_the_middle_puts_back_the_very_files_that_were_there(applied: bool, where: str) -> None:
    as_an_ordinary_user(lambda place: break_down(Scene(place, applied=applied), where))


def test_a_directory_in_the_place_of_ours_is_not_taken_for_it(place: Path) -> None:
    scene = Scene(place, applied=False)
    points = points_of(scene.work)
    scene.again()
    in_a_child(dying_at(points.index("journal committed"), scene.work))
    own = scene.project / ".redoma-it"
    own.rename(scene.project / "moved away")
    copy_of(scene.project / "moved away", own)
    left = snapshot(scene.project)
    assert "is not the directory that Redoma made" in scene.changes.recover()["it"]
    assert snapshot(scene.project) == left
    remove_tree(own)
    (scene.project / "moved away").rename(own)
    assert scene.changes.recover() == {}
    assert scene.check("put back") == "on"


def test_killed_on_the_way_back_it_still_goes_back(place: Path) -> None:
    scene = Scene(place, applied=False)
    points = points_of(scene.work)
    number = points.index("step replace")

    def crash_and_block() -> None:
        scene.again()
        in_a_child(dying_at(number, scene.work))
        with opened(scene.project):
            (scene.project / "new").mkdir()  # so that it can't go on

    crash_and_block()
    back = points_of(scene.changes.recover)
    assert "journal returning" in back
    for second in range(len(back)):
        crash_and_block()
        assert in_a_child(dying_at(second, scene.changes.recover)) == -signal.SIGKILL
        scene.changes.recover()
        with opened(scene.project):
            (scene.project / "new").rmdir()
        assert scene.check(f"{second}: {back[second]}") == "back"


def test_keeping_that_is_killed_leaves_nothing(place: Path) -> None:
    stage = Stage(place)
    effect, contents, _ = stage.effect(lambda ran: (ran / "new").write_text("x"))
    (stage.changes.directory / ".new-it" / "new").mkdir(parents=True, mode=0o700)
    os.chmod(stage.changes.directory, 0o700)
    stage.changes.keep("it", effect, contents, {})
    stage.changes.list()
    assert os.listdir(stage.changes.directory) in (["it", "lock"], ["lock", "it"])


def test_what_cant_be_recovered_is_told_and_stops_nobody_else(place: Path) -> None:
    scene = Scene(place, applied=False)
    points = points_of(scene.work)
    scene.again()
    in_a_child(dying_at(points.index("step add"), scene.work))
    os.rename(scene.project, f"{scene.project}-elsewhere")
    scene.project.mkdir()
    said = scene.changes.recover()
    assert "it can't be finished nor taken back" in said["it"]
    with pytest.raises(WorkspaceError, match="were interrupted"):
        scene.changes.apply("it")
    assert [kept.id for kept in scene.changes.list()] == ["it"]
    scene.project.rmdir()
    os.rename(f"{scene.project}-elsewhere", scene.project)
    assert scene.changes.recover() == {}
    assert scene.check("put back") == "on"


def test_what_somebody_put_in_the_way_after_a_crash_is_never_lost(place: Path) -> None:
    scene = Scene(place, applied=False)
    points = points_of(scene.work)
    scene.again()
    in_a_child(dying_at(len(points) - 1 - points[::-1].index("step remove"), scene.work))
    (scene.project / "gone").write_text("mine")  # where something was removed
    (scene.project / "new").write_text("mine, too")  # where something is to come
    assert scene.changes.recover() == {}
    kept = scene.changes.get("it")
    assert kept.state == "broken"
    assert "gone is not as it was" in kept.notes[0]
    with opened(scene.project):
        assert (scene.project / "gone").read_text() == "mine"
        assert (scene.project / "new").read_text() == "mine, too"
        [stage] = scene.project.glob(".redoma-*")
        assert [file.read_text() for file in stage.iterdir()] == ["gone before\n"]
    with pytest.raises(WorkspaceError, match="can't be applied"):
        scene.changes.apply("it")
