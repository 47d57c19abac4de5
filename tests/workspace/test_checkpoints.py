"""What a checkpoint keeps, what it says is different, and what it puts back."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from checkpoint_stage import NOBODY, everything, in_a_fork, stage, take

from redoma.backends import linux
from redoma.lib.errors import BackendError, InvalidRequest
from redoma.models import MiB
from redoma.workspace import snapshot
from redoma.workspace.checkpoint import Busy, Checkpoint
from redoma.workspace.snapshot import Bounds
from redoma.workspace.tree import Tree


@pytest.fixture
def place() -> Iterator[Path]:
    with stage() as directory:
        (directory / "project").mkdir()
        yield directory


@pytest.fixture
def project(place: Path) -> Path:
    return place / "project"


@pytest.fixture
def state(place: Path) -> Path:
    return place / "state"


# --- what is different ---


def test_changes_say_what_was_added_modified_removed_and_what_has_another_mode(project: Path, state: Path) -> None:
    for name in ("same", "modified", "removed", "mode"):
        (project / name).write_text(name)
    checkpoint = take(project, state)
    (project / "added").write_text("added")
    (project / "modified").write_text("MODIFIED")
    (project / "removed").unlink()
    (project / "mode").chmod(0o700)
    os.utime(project / "same")
    assert [(change.path, change.kind) for change in checkpoint.effect().changes] == [
        ("added", "added"),
        ("mode", "mode"),
        ("modified", "modified"),
        ("removed", "deleted"),
    ]
    with Tree(project) as tree:
        assert [change.after for change in checkpoint.effect().changes][:3] == [
            tree.version(path) for path in ("added", "mode", "modified")
        ]
    assert checkpoint.restore().paths == ("added", "mode", "modified", "removed")
    checkpoint.clear()


def test_looking_for_changes_changes_nothing(project: Path, state: Path) -> None:
    (project / "folder").mkdir()
    (project / "folder" / "file").write_text("x")
    checkpoint = take(project, state)
    (project / "folder").chmod(0)
    before = os.stat(project / "folder")
    checkpoint.effect()
    assert os.stat(project / "folder") == before
    (project / "folder").chmod(0o700)
    checkpoint.clear()


def test_a_file_is_read_again_only_where_the_kernel_says_something_else_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"  # on a disk: in memory, times say nothing
    project.mkdir()
    for name in ("a", "b"):
        (project / name).write_text("same size")
    monkeypatch.setattr(snapshot, "RACY", -(10**12))  # as if the files had been there for long
    checkpoint = take(project, tmp_path / "state")
    if not checkpoint.snapshot.reliable_times:
        checkpoint.clear()
        pytest.skip("this file system is not known to keep times that can be relied on")
    (project / "a").write_text("SAME SIZE")
    os.utime(project / "a", ns=(0, checkpoint.snapshot.by_path["a"].modified))
    read: list[str] = []
    regular = snapshot.ProjectTree.file

    def noted(tree: snapshot.ProjectTree, path: str) -> int:
        read.append(path)
        return regular(tree, path)

    monkeypatch.setattr(snapshot.ProjectTree, "file", noted)
    assert [change.path for change in checkpoint.effect().changes] == ["a"]
    assert set(read) == {"a"}
    checkpoint.clear()


def test_a_change_within_the_same_tick_of_the_clock_is_found(tmp_path: Path) -> None:
    for number in range(20):
        project = tmp_path / str(number)
        project.mkdir()
        (project / "a").write_text("same size")
        checkpoint = take(project, tmp_path / "state")
        with open(project / "a", "r+b") as file:
            file.write(b"SAME SIZE")
        assert [change.path for change in checkpoint.effect().changes] == ["a"]
        checkpoint.clear()


def test_times_are_relied_on_only_where_they_say_something(project: Path, state: Path) -> None:
    """A file that was changed just before may be changed again within the same tick, and have the same times."""
    (project / "a").touch()
    checkpoint = take(project, state)
    item, known = checkpoint.snapshot.by_path["a"], msgspec.structs.replace(checkpoint.snapshot, reliable_times=True)
    long_ago = msgspec.structs.replace(item, changed=item.changed - 10**10)
    assert (known.trusts_times(item), known.trusts_times(long_ago)) == (False, True)
    assert not msgspec.structs.replace(known, reliable_times=False).trusts_times(long_ago)
    checkpoint.clear()


def test_writing_through_a_mapping_is_found_where_it_leaves_no_trace(
    project: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On tmpfs: a page that was read first can be written without the kernel noting it in any time."""
    monkeypatch.setattr(snapshot, "RACY", -(10**12))  # as if the file had been there for long
    (project / "a").write_bytes(b"a" * 4096)
    with open(project / "a", "r+b") as file, mmap.mmap(file.fileno(), 4096) as mapping:
        assert mapping[0] == ord("a")
        checkpoint = take(project, state)
        mapping[0] = ord("X")
    assert [change.path for change in checkpoint.effect().changes] == ["a"]
    checkpoint.restore()
    assert (project / "a").read_bytes() == b"a" * 4096
    checkpoint.clear()


# --- what is put back ---


def test_ignored_files_nested_repositories_and_empty_directories_are_put_back(project: Path, state: Path) -> None:
    for folder in (project, project / "nested"):
        subprocess.run(["git", "init", "-q", str(folder)], check=True)
        (folder / ".gitignore").write_text("*.secret\n")
        (folder / "my.secret").write_text("nowhere else")
    (project / "empty" / "too").mkdir(parents=True)
    before = everything(project)
    checkpoint = take(project, state)
    for path in (project / "nested", project / "empty", project / ".git"):
        shutil.rmtree(path)
    (project / "my.secret").unlink()
    assert not checkpoint.restore().failed
    checkpoint.clear()
    assert everything(project) == before


def test_writing_in_place_does_not_change_what_is_kept(project: Path, state: Path) -> None:
    (project / "a").write_text("as it was")
    checkpoint = take(project, state)
    with open(project / "a", "r+b") as file:
        file.write(b"AS IT IS!")
    checkpoint.restore()
    checkpoint.clear()
    assert (project / "a").read_text() == "as it was"


def test_holes_stay_holes_and_cost_nothing(project: Path, state: Path) -> None:
    size = 64 * 1024 * 1024
    with open(project / "sparse", "wb") as file:
        file.truncate(size)
        file.seek(size // 2)
        file.write(b"in the middle")
    before = everything(project)
    checkpoint = take(project, state, Bounds(max_copied=1024 * 1024, max_file=100 * 1024 * 1024))
    assert checkpoint.left == {}
    (project / "sparse").write_bytes(b"")
    checkpoint.restore()
    checkpoint.clear()
    assert everything(project) == before
    assert (project / "sparse").stat().st_blocks * 512 < 1024 * 1024


def test_access_lists_and_attributes_are_put_back(project: Path, state: Path) -> None:
    for name in ("file", "folder"):
        (project / "folder").mkdir(exist_ok=True)
        (project / "file").touch()
        try:
            os.setxattr(project / name, "user.note", b"mine")
        except OSError:
            pytest.skip("this file system has no attributes")
    checkpoint = take(project, state)
    os.removexattr(project / "file", "user.note")
    os.setxattr(project / "file", "user.other", b"theirs")
    os.setxattr(project / "folder", "user.note", b"theirs")
    checkpoint.restore()
    checkpoint.clear()
    assert [os.listxattr(project / name) for name in ("file", "folder")] == [["user.note"]] * 2
    assert os.getxattr(project / "folder", "user.note") == b"mine"


def test_owners_are_put_back(project: Path, state: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give files away")
    (project / "a").write_text("x")
    os.chown(project / "a", NOBODY, NOBODY)
    before = everything(project)
    checkpoint = take(project, state)
    os.chown(project / "a", 0, 0)
    os.chown(project, NOBODY, NOBODY)
    checkpoint.restore()
    checkpoint.clear()
    assert everything(project) == before


def test_a_project_that_was_removed_altogether_is_put_back(project: Path, state: Path) -> None:
    (project / "folder").mkdir()
    (project / "folder" / "file").write_text("x")
    before = everything(project)
    for ruin in (
        lambda: None,
        project.mkdir,
        lambda: project.write_text("a file"),
        lambda: project.symlink_to("/nonexistent"),
    ):
        checkpoint = take(project, state)
        shutil.rmtree(project)
        ruin()
        assert {change.path for change in checkpoint.effect().changes} == {"folder", "folder/file"}
        assert not checkpoint.restore().failed
        checkpoint.clear()
        assert everything(project) == before


def test_a_tree_too_deep_to_be_named_is_removed(project: Path, state: Path) -> None:
    checkpoint = take(project, state)
    at = os.open(project, os.O_RDONLY)
    for _ in range(60):
        os.mkdir("d" * 200, dir_fd=at)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    assert not checkpoint.restore().failed
    checkpoint.clear()
    assert os.listdir(project) == []


def test_only_the_named_paths_are_kept_and_put_back(project: Path, state: Path) -> None:
    (project / "src" / "deep").mkdir(parents=True)
    (project / "src" / "deep" / "a").write_text("a")
    (project / "src" / "b").write_text("b")
    (project / "other").write_text("other")
    checkpoint = take(project, state, paths=["src/deep", "build", "src/deep/a"])
    shutil.rmtree(project / "src")
    (project / "build").mkdir()
    (project / "build" / "x").write_text("x")
    (project / "other").write_text("changed")
    (project / "new").write_text("new")
    assert {change.path for change in checkpoint.effect().changes} == {
        "src",
        "src/deep",
        "src/deep/a",
        "build",
        "build/x",
    }
    assert not checkpoint.restore().failed
    checkpoint.clear()
    assert sorted(os.listdir(project)) == ["new", "other", "src"]
    assert (project / "src" / "deep" / "a").read_text() == "a"
    assert (project / "other").read_text() == "changed"
    for wrong in ("/etc", "../x", "a/../b", ""):
        with pytest.raises(InvalidRequest):
            take(project, state, paths=[wrong])


def test_our_own_records_go_on_while_something_runs(project: Path) -> None:
    state, audit = project / ".redoma" / "checkpoints", project / "log" / "audit"
    checkpoint = take(project, state, exclude=[audit])
    audit.mkdir(parents=True)
    (audit / "today").write_text("intent")
    (project / "new").write_text("x")
    restored = checkpoint.restore()
    assert (restored.paths, restored.failed, (audit / "today").read_text()) == (("new",), {}, "intent")
    checkpoint.clear()


# --- what is not ---


def test_what_is_not_kept_is_said_before_the_run_and_reported_if_it_changed(project: Path, state: Path) -> None:
    os.mkfifo(project / "pipe")
    (project / "large").write_bytes(b"x" * 5000)
    checkpoint = take(project, state, Bounds(max_file=4096))
    assert checkpoint.left == {"large": "it is larger than 4096 bytes", "pipe": "it is a pipe"}
    assert checkpoint.restore().left == {}
    (project / "pipe").unlink()
    (project / "large").write_bytes(b"y")
    restored = checkpoint.restore()
    assert (set(restored.left), restored.failed) == ({"large", "pipe"}, {})
    assert (project / "large").read_bytes() == b"y"
    checkpoint.clear()


def test_what_is_not_kept_and_was_only_moved_is_moved_back(project: Path, state: Path) -> None:
    """Removing it where it is now would lose the only copy."""
    (project / "folder").mkdir()
    (project / "folder" / "large").write_bytes(b"x" * 5000)
    checkpoint = take(project, state, Bounds(max_file=4096))
    (project / "elsewhere").mkdir()
    (project / "folder" / "large").rename(project / "elsewhere" / "large")
    (project / "folder").rmdir()
    restored = checkpoint.restore()
    assert (restored.failed, restored.left) == ({}, {})
    assert os.listdir(project) == ["folder"]
    assert (project / "folder" / "large").read_bytes() == b"x" * 5000
    checkpoint.clear()


def test_what_the_run_moved_here_from_elsewhere_is_not_removed(place: Path, project: Path, state: Path) -> None:
    """It is not a copy: removing it would be the end of something that was never in the project."""
    (place / "thesis").write_text("years of work")
    (place / "photos").mkdir()
    (place / "photos" / "one").write_text("photo")
    (place / "linked").write_text("has another name")
    checkpoint = take(project, state)
    (project / "new").mkdir()
    (place / "thesis").rename(project / "new" / "thesis")
    (place / "photos").rename(project / "photos")
    os.link(place / "linked", project / "linked")
    restored = checkpoint.restore()
    assert (sorted(restored.left), restored.failed) == (["new", "new/thesis", "photos"], {})
    assert (project / "new" / "thesis").read_text() == "years of work"
    assert (project / "photos" / "one").read_text() == "photo"
    assert not (project / "linked").exists()
    checkpoint.clear()


def test_a_project_that_is_too_large_is_refused_with_a_way_out(project: Path, state: Path) -> None:
    for number in range(10):
        (project / str(number)).write_bytes(b"x" * 1000)
    for bounds, amount in ((Bounds(max_files=9), "more than 9 files"), (Bounds(max_copied=9999), "10000 bytes")):
        with pytest.raises(BackendError, match=f"too large to checkpoint: {amount}.*overlay .*smaller directory"):
            take(project, state, bounds)
    take(project, state, Bounds(max_files=9), paths=["1", "2"]).clear()
    assert os.listdir(state) == ["locks"]


def test_a_path_that_can_not_be_put_back_is_reported_and_all_others_are(project: Path, state: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can take a directory away from its owner")
    project.parent.chmod(0o777)
    project.chmod(0o777)

    def prepare() -> None:
        (project / "theirs").mkdir()
        for path in ("theirs/a", "ours"):
            (project / path).write_text("as it was")
        take(project, state).close()
        (project / "theirs" / "a").write_text("changed")
        (project / "ours").write_text("changed")

    def restore() -> list[object]:
        checkpoint = Checkpoint.load(state, str(project))
        assert checkpoint is not None
        restored = checkpoint.restore()
        checkpoint.close()
        return [restored.paths, restored.failed]

    in_a_fork(prepare, user=NOBODY)
    os.chown(project / "theirs", 0, 0)
    paths, failed = in_a_fork(restore, user=NOBODY)
    assert (project / "ours").read_text() == "as it was"
    assert failed["theirs/a"] == "Permission denied"
    assert "ours" in paths
    assert "theirs/a" not in paths
    os.chown(project / "theirs", NOBODY, NOBODY)  # it was kept, and once the reason is gone it can be done
    assert in_a_fork(restore, user=NOBODY)[1] == {}
    assert (project / "theirs" / "a").read_text() == "as it was"


# --- one at a time ---


def test_one_run_at_a_time_in_a_project_above_it_and_below_it(project: Path, state: Path) -> None:
    (project / "one" / "deep").mkdir(parents=True)
    (project / "two").mkdir()
    held = take(project / "one", state)
    for busy in (project, project / "one", project / "one" / "deep"):
        with pytest.raises(Busy, match="another run"):
            take(busy, state)
    take(project / "two", state).clear()
    held.clear()
    take(project, state).clear()


def test_a_directory_that_others_can_write_is_not_trusted_with_checkpoints(project: Path, state: Path) -> None:
    state.mkdir()
    state.chmod(0o777)
    with pytest.raises(BackendError, match="can't be trusted"):
        take(project, state)
    state.chmod(0o700)
    take(project, state).close()
    kept = [path for path in state.rglob("*") if path.is_file()]
    assert kept
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept} == {0o600}


# --- a full disk ---


@pytest.mark.parametrize("can_reserve", [True, False])
def test_a_run_that_filled_the_disk_is_rolled_back(
    place: Path, can_reserve: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid():
        pytest.skip("only root can mount a small file system")

    def refuse(number: int, offset: int, size: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    if not can_reserve:
        monkeypatch.setattr(os, "posix_fallocate", refuse)

    def full() -> list[object]:
        linux.unshare(linux.CLONE_NEWNS)
        linux.mount("none", "/", "", linux.MS_REC | linux.MS_PRIVATE)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "none", str(place / "project")], check=True)
        project = place / "project" / "here"
        project.mkdir()
        (project / "file").write_text("before")
        (project / "removed").write_bytes(b"removed " * (MiB // 4))  # more than is reserved for the journal
        before = everything(project)
        checkpoint = take(project, place / "project" / "state")
        (project / "removed").unlink()
        (project / "file").write_text("after")
        with open(project / "large", "wb", buffering=0) as file:
            for _ in range(2048):
                with suppress(OSError):
                    file.write(bytes(4096))
        assert os.statvfs(project).f_bfree == 0
        restored = checkpoint.restore()
        checkpoint.clear()
        return [restored.failed, everything(project) == before]

    assert in_a_fork(full) == [{}, True]
