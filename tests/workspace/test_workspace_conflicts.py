"""Not over what others did: everything that is not as it was is told, before anything is touched."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from workspace_stage import Stage, snapshot

from redoma.lib.errors import Conflict, WorkspaceError


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


Meddling = Callable[[Path], object]


def all_of(*acts: Meddling) -> Meddling:
    def act(project: Path) -> None:
        for one in acts:
            one(project)

    return act


def relink(name: str, target: str) -> Meddling:
    return all_of(lambda p: (p / name).unlink(), lambda p: (p / name).symlink_to(target))


CONFLICTS: dict[str, tuple[Meddling, set[str]]] = {
    "content": (lambda p: (p / "changed").write_text("theirs"), {"changed"}),
    "mode": (lambda p: (p / "changed").chmod(0o755), {"changed"}),
    "gone": (lambda p: (p / "changed").unlink(), {"changed"}),
    "removed already": (lambda p: (p / "removed").unlink(), {"removed"}),
    "new in its place": (lambda p: (p / "added").write_text("theirs"), {"added"}),
    "even if it is the same": (lambda p: (p / "added").write_text("new"), {"added"}),
    "a directory in its place": (lambda p: (p / "added").mkdir(), {"added"}),
    "a link in its place": (lambda p: (p / "added").symlink_to("/nonexistent/passwd"), {"added"}),
    "a pipe in its place": (lambda p: os.mkfifo(p / "added"), {"added"}),
    "a link for a file": (relink("changed", "removed"), {"changed"}),
    "another target": (relink("link", "theirs"), {"link"}),
    "a new file in what goes": (lambda p: (p / "tree/new").write_text("theirs"), {"tree/new"}),
    "a directory's mode": (lambda p: (p / "tree").chmod(0o700), {"tree"}),
    "no directory any more": (
        all_of(lambda p: shutil.rmtree(p / "in"), lambda p: (p / "in").write_text("")),
        {"in/added", "in/old"},
    ),
    "a link for the directory": (
        all_of(lambda p: (p / "in").rename(p / "was"), lambda p: (p / "in").symlink_to("was")),
        {"in/added", "in/old"},
    ),
    "its directory is gone": (lambda p: shutil.rmtree(p / "in"), {"in/added", "in/old"}),
    "several": (
        all_of(lambda p: (p / "changed").unlink(), lambda p: (p / "removed").write_text("x")),
        {"changed", "removed"},
    ),
}


def a_bit_of_everything(stage: Stage) -> None:
    for path in ("changed", "removed", "tree/a", "tree/b", "in/old"):
        stage.write(path, path)
    (stage.project / "link").symlink_to("changed")
    (stage.project / "tree").chmod(0o755)

    def run(ran: Path) -> None:
        (ran / "changed").write_text("new")
        (ran / "removed").unlink()
        shutil.rmtree(ran / "tree")
        (ran / "in/added").write_text("new")
        (ran / "in/old").write_text("new")
        (ran / "added").write_text("new")
        (ran / "link").unlink()
        (ran / "link").symlink_to("elsewhere")

    stage.kept(run, "it")


@pytest.mark.parametrize("name", CONFLICTS)
def test_whatever_has_changed_since_is_told_and_nothing_is_touched(stage: Stage, name: str) -> None:
    a_bit_of_everything(stage)
    meddle, paths = CONFLICTS[name]
    meddle(stage.project)
    before = snapshot(stage.project)
    with pytest.raises(Conflict) as caught:
        stage.changes.apply("it")
    assert set(caught.value.paths) == paths
    assert snapshot(stage.project) == before
    assert stage.changes.get("it").state == "kept"
    assert not (stage.changes.directory / "it/journal").exists()


UNDO_CONFLICTS: dict[str, tuple[Meddling, set[str]]] = {
    "edited": (lambda p: (p / "changed").write_text("theirs"), {"changed"}),
    "made again": (lambda p: (p / "removed").write_text("theirs"), {"removed"}),
    "deleted": (lambda p: (p / "added").unlink(), {"added"}),
    "a directory again": (lambda p: (p / "tree").mkdir(), {"tree"}),
    "link": (relink("link", "x"), {"link"}),
}


@pytest.mark.parametrize("name", UNDO_CONFLICTS)
def test_undo_refuses_what_has_changed_since(stage: Stage, name: str) -> None:
    a_bit_of_everything(stage)
    stage.changes.apply("it")
    meddle, paths = UNDO_CONFLICTS[name]
    meddle(stage.project)
    before = snapshot(stage.project)
    with pytest.raises(Conflict) as caught:
        stage.changes.undo("it")
    assert set(caught.value.paths) == paths
    assert snapshot(stage.project) == before
    assert stage.changes.get("it").state == "applied"


def test_undo_leaves_alone_what_it_did_not_apply(stage: Stage) -> None:
    a_bit_of_everything(stage)
    stage.changes.apply("it")
    stage.write("in/mine", "mine")
    stage.write("mine", "mine")
    stage.changes.undo("it")
    assert (stage.project / "in/mine").read_text() == (stage.project / "mine").read_text() == "mine"


def test_undo_refuses_to_remove_a_directory_with_something_new_in_it(stage: Stage) -> None:
    stage.kept(lambda ran: (ran / "made").mkdir(), "it")
    stage.changes.apply("it")
    stage.write("made/mine", "mine")
    with pytest.raises(Conflict) as caught:
        stage.changes.undo("it")
    assert set(caught.value.paths) == {"made/mine"}


def test_a_project_on_several_file_systems_is_refused_where_they_meet(stage: Stage) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to mount")
    stage.write("inner/x", "x")
    stage.kept(lambda ran: ((ran / "inner/new").write_text("y"), (ran / "outer").write_text("z")), "it")
    subprocess.run(["mount", "--bind", str(stage.project / "inner"), str(stage.project / "inner")], check=True)
    try:
        with pytest.raises(Conflict) as caught:
            stage.changes.apply("it")
        assert caught.value.paths == {"inner/new": "it is on another file system"}
        assert not (stage.project / "outer").exists()
    finally:
        subprocess.run(["umount", str(stage.project / "inner")], check=True)
    stage.changes.apply("it")


def test_a_project_that_is_a_link_now_is_not_followed(stage: Stage) -> None:
    stage.kept(lambda ran: (ran / "new").write_text("x"), "it")
    stage.project.rename(stage.top / "moved")
    stage.project.symlink_to(stage.top / "moved")
    with pytest.raises(WorkspaceError, match="its path leads through a link now"):
        stage.changes.apply("it")
    assert os.listdir(stage.top / "moved") == []


def test_a_socket_in_the_way_is_a_conflict(stage: Stage) -> None:
    stage.kept(lambda ran: (ran / "new").write_text("x"), "it")
    with socket.socket(socket.AF_UNIX) as server:
        directory = os.open(stage.project, os.O_RDONLY)
        server.bind(f"/proc/self/fd/{directory}/new")
        os.close(directory)
    with pytest.raises(Conflict, match="a socket now"):
        stage.changes.apply("it")
