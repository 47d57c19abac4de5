"""A run shapes the project that is then put back by somebody with more rights: nothing outside is touched."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from checkpoint_stage import everything, in_a_fork, stage, take

from redoma.backends import linux
from redoma.lib.errors import BackendError
from redoma.workspace.checkpoint import Checkpoint, recover
from redoma.workspace.tree import Tree


@pytest.fixture
def place() -> Iterator[Path]:
    """A project, and next to it a victim with the same names in it."""
    with stage() as directory:
        for root in (directory / "project", directory / "victim"):
            (root / "folder" / "deep").mkdir(parents=True)
            for path in ("file", "folder/file", "folder/deep/file"):
                (root / path).write_text(f"{root.name} {path}")
        yield directory


def to_victim(project: Path, path: str) -> Path:
    return project.parent / "victim" / path


def link_folder(project: Path) -> None:
    shutil.rmtree(project / "folder")
    (project / "folder").symlink_to(to_victim(project, "folder"))


def link_deep_relative(project: Path) -> None:
    shutil.rmtree(project / "folder" / "deep")
    (project / "folder" / "deep").symlink_to("../../victim/folder/deep")


def link_file(project: Path) -> None:
    (project / "file").unlink()
    (project / "file").symlink_to(to_victim(project, "file"))


def hard_link_file(project: Path) -> None:
    (project / "file").unlink()
    os.link(to_victim(project, "file"), project / "file")


def hard_link_with_the_same_content(project: Path) -> None:
    victim = to_victim(project, "file")
    victim.write_text((project / "file").read_text())
    victim.chmod(0o640)
    hard_link_file(project)


def new_links(project: Path) -> None:
    for name in ("new", "-rf", "..x", "new\nline", os.fsdecode(b"\xff")):
        (project / name).symlink_to(to_victim(project, "folder"))


def new_directory_of_links(project: Path) -> None:
    (project / "new" / "more").mkdir(parents=True)
    (project / "new" / "more" / "link").symlink_to(to_victim(project, "folder"))
    os.link(to_victim(project, "file"), project / "new" / "hard")


def link_project(project: Path) -> None:
    shutil.rmtree(project)
    project.symlink_to(to_victim(project, ""))


def pipes(project: Path) -> None:
    (project / "file").unlink()
    os.mkfifo(project / "file")
    os.mkfifo(project / "folder" / "pipe")
    shutil.rmtree(project / "folder" / "deep")
    os.mkfifo(project / "folder" / "deep")


ATTACKS = [
    *(link_folder, link_deep_relative, link_file, hard_link_file, hard_link_with_the_same_content, new_links),
    *(new_directory_of_links, link_project, pipes),
]


@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_outside_is_written_removed_or_given_another_mode(place: Path, attack: Callable[[Path], None]) -> None:
    project = place / "project"
    before = everything(project)
    checkpoint = take(project, place / "state")
    attack(project)
    victim = everything(place / "victim")
    checkpoint.effect()
    restored = checkpoint.restore()
    assert everything(place / "victim") == victim
    assert (everything(project), restored.failed, restored.left) == (before, {}, {})
    checkpoint.clear()


@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_outside_is_shown_as_a_change(place: Path, attack: Callable[[Path], None]) -> None:
    """What a change shows of a file is what is in the project: never what a link leads to."""
    checkpoint = take(place / "project", place / "state")
    attack(place / "project")
    for change in checkpoint.effect().changes:
        assert not (place / "project" / change.path).is_symlink() or (
            change.after is None or (change.after.kind, change.after.sha256) == ("symlink", "")
        )
    checkpoint.restore()
    checkpoint.clear()


def test_a_file_that_got_another_name_outside_is_no_longer_shared_with_it(place: Path) -> None:
    """Whoever has that name could go on writing to the project."""
    project = place / "project"
    checkpoint = take(project, place / "state")
    os.link(project / "file", place / "kept")
    checkpoint.restore()
    (place / "kept").write_text("changed later")
    assert (project / "file").read_text() == "project file"
    checkpoint.clear()


def test_directories_that_become_links_while_they_are_put_back_lead_nowhere(place: Path) -> None:
    project, ended = place / "project", threading.Event()
    for number in range(10):
        (project / "folder" / f"file {number}").write_text("as it was")
    checkpoint = take(project, place / "state")
    victim = everything(place / "victim")

    def swap() -> None:
        while not ended.is_set():
            with suppress(OSError):
                os.rename(project / "folder", project / "aside")
            with suppress(OSError):
                (project / "folder").symlink_to(place / "victim" / "folder")
            with suppress(OSError):
                (project / "folder").unlink()
            with suppress(OSError):
                os.rename(project / "aside", project / "folder")

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(25):
            with suppress(OSError), Tree(project) as tree, tree.parent("folder/file 3") as (directory, name):
                os.rename(name, f"{name} of it", src_dir_fd=directory, dst_dir_fd=directory)
            with suppress(BackendError):
                checkpoint.restore()
            with suppress(BackendError):
                checkpoint.effect()
    finally:
        ended.set()
        thread.join()
    assert everything(place / "victim") == victim
    assert not checkpoint.restore().failed
    assert (project / "folder" / "file 3").read_text() == "as it was"
    checkpoint.clear()


@pytest.mark.parametrize("over", ["folder", "new"])
def test_what_is_mounted_in_a_project_is_not_emptied(place: Path, over: str) -> None:
    """As a build that failed before it could unmount /home. On the same file system, so that only the kernel knows."""
    if os.geteuid():
        pytest.skip("only root can mount")
    project = place / "project"

    def mounted() -> list[object]:
        linux.unshare(linux.CLONE_NEWNS)
        linux.mount("none", "/", "", linux.MS_REC | linux.MS_PRIVATE)
        victim = everything(place / "victim")
        checkpoint = take(project, place / "state")
        (project / over).mkdir(exist_ok=True)
        linux.mount(str(place / "victim"), str(project / over), "", linux.MS_BIND)
        (project / "file").write_text("changed")
        restored = checkpoint.restore()
        checkpoint.close()
        return [everything(place / "victim") == victim, sorted(restored.failed), (project / "file").read_text()]

    assert in_a_fork(mounted) == [True, [over], "project file"]


@pytest.mark.parametrize("path", ["../victim/file", "folder/../../victim/file", "/nonexistent/here", "..", "."])
def test_a_forged_list_can_not_lead_out_of_the_project(place: Path, path: str) -> None:
    """The run may have the same user as we, and so reach the state directory."""
    project, state = place / "project", place / "state"
    take(project, state).close()
    (manifest,) = state.glob("*/manifest")
    manifest.write_text(manifest.read_text().replace('"folder/file"', f'"{path}"'))
    victim = everything(place / "victim")
    checkpoint = Checkpoint.load(state, str(project))
    assert checkpoint is not None
    with suppress(BackendError):
        checkpoint.restore()
    checkpoint.close()
    assert everything(place / "victim") == victim
    assert not os.path.lexists("/nonexistent/here")


@pytest.mark.parametrize("damage", ["", "{", "[]", "null", '{"id": 1}'])
def test_a_damaged_list_is_said_to_be_one(place: Path, damage: str) -> None:
    project, state = place / "project", place / "state"
    take(project, state).close()
    (manifest,) = state.glob("*/manifest")
    manifest.write_text(damage)
    with pytest.raises(BackendError, match="damaged"):
        Checkpoint.load(state, str(project))
    with pytest.raises(BackendError, match="damaged"):
        take(project, state)
    (found,) = recover(state)
    assert (found.state, "damaged" in found.why) == ("unusable", True)


def test_a_project_that_was_swapped_for_an_older_directory_is_not_emptied(place: Path) -> None:
    project = place / "project"
    checkpoint = take(project, place / "state")
    victim = {path.removeprefix(str(place / "victim")): about for path, about in everything(place / "victim").items()}
    project.rename(place / "aside")
    (place / "victim").rename(project)
    restored = checkpoint.restore()
    assert list(restored.failed) == ["."]
    assert {path.removeprefix(str(project)): about[:3] for path, about in everything(project).items()} == {
        path: about[:3] for path, about in victim.items()
    }
    checkpoint.close()
