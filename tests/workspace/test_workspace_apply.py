"""Applying and undoing: exactly what was kept, all or nothing, and not over what others did."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
from pathlib import Path

import pytest
from workspace_stage import NOBODY, Layer, Stage, as_an_ordinary_user, in_a_child, snapshot

from redoma.backends import linux
from redoma.backends.base import OverlayEntry
from redoma.lib.errors import WorkspaceError
from redoma.workspace import journal


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_everything_is_on_the_disk_before_the_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(tmp_path)
    stage.write("old", "x")

    def run(ran: Path) -> None:
        (ran / "old").write_text("y")
        (ran / "d").mkdir()
        (ran / "d/new").write_text("z")

    stage.kept(run, "it")
    synced: list[str] = []
    real = os.fsync

    def fsync(number: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{number}"))
        real(number)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(journal, "crash_point", lambda point: synced.append(point))
    stage.changes.apply("it")
    ready = synced[: synced.index("journal committed")]
    own = stage.project / ".redoma-it"
    assert {str(own / "0"), str(own / "1"), str(own / "2"), str(own), str(stage.project)} <= set(ready)
    assert any(name.endswith("/old/2") for name in ready)
    moved = synced[synced.index("journal committed") : synced.index("journal done")]
    assert {str(stage.project), str(stage.project / "d")} <= set(moved)
    assert snapshot(stage.project)["d/new"] == ("file", 0o644, b"z")
    stage.changes.undo("it")
    assert snapshot(stage.project) == {"old": ("file", 0o644, b"x")}


def test_names_that_are_no_utf8_and_deep_trees(stage: Stage) -> None:
    deep = "/".join(["d"] * 200)
    stage.write("na\udcffme", "x")

    def run(ran: Path) -> None:
        (ran / deep).mkdir(parents=True)
        (ran / deep / "\udcfe").write_text("bottom")
        (ran / "na\udcffme").write_text("y")
        (ran / "to").symlink_to("\udcfd")

    stage.kept(run, "it")
    assert stage.changes.apply("it").state == "applied"
    assert (stage.project / deep / "\udcfe").read_text() == "bottom"
    assert os.readlink(os.fsencode(stage.project / "to")) == b"\xfd"
    assert len(stage.changes.get("it").applied) == 203
    stage.changes.undo("it")
    assert snapshot(stage.project) == {"na\udcffme": ("file", 0o644, b"x")}


def test_a_tree_too_deep_for_one_path_is_refused_and_stays(stage: Stage) -> None:
    at = os.open(stage.project, os.O_RDONLY)
    for _ in range(60):
        os.mkdir("n" * 100, dir_fd=at)
        below = os.open("n" * 100, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    effect = stage.effect_of([OverlayEntry(path="n" * 100, kind="removed")], stage.new_stage())
    assert effect.changes == ()
    assert "File name too long" in effect.refused["n" * 100]
    subprocess.run(["rm", "-rf", str(stage.project)], check=True)


def test_holes_stay_holes(stage: Stage) -> None:
    size = 8 << 20
    with open(stage.project / "sparse", "wb") as file:
        file.truncate(size)
        file.seek(1 << 20)
        file.write(b"island")

    def run(ran: Path) -> None:
        with open(ran / "sparse", "r+b") as file:
            file.seek(4 << 20)
            file.write(b"another")
        with open(ran / "nothing", "wb") as file:
            file.truncate(3 << 20)

    place, ran = stage.new_stage(), stage.top / "ran"
    ran.mkdir()
    subprocess.run(["cp", "--sparse=always", str(stage.project / "sparse"), str(ran)], check=True)
    run(ran)
    entries = Layer(stage.project, ran, place).entries
    for entry in entries:
        subprocess.run(["fallocate", "--dig-holes", str(place / entry.blob)], check=True)
    stage.changes.keep("it", stage.effect_of(entries, place), place, {})
    stage.changes.apply("it")
    assert (stage.project / "sparse").read_bytes() == (ran / "sparse").read_bytes()
    assert (stage.project / "nothing").stat().st_size == 3 << 20
    assert sum(path.stat().st_blocks * 512 for path in stage.project.iterdir()) < 1 << 20
    assert sum(path.stat().st_blocks * 512 for path in (stage.changes.directory / "it/old").iterdir()) < 1 << 20
    stage.changes.undo("it")
    about = (stage.project / "sparse").stat()
    assert (about.st_size, about.st_blocks * 512 < 1 << 20) == (size, True)


def test_a_file_keeps_its_attributes_and_gets_its_time_back(stage: Stage) -> None:
    file = stage.write("file", "x")
    try:
        os.setxattr(file, "user.note", b"mine")
    except OSError:
        pytest.skip("the file system of the tests has no user attributes")
    os.utime(file, ns=(10**18, 10**18 + 7))
    other = stage.write("gone", "y")
    os.setxattr(other, "user.note", b"too")
    moved = stage.write("moved", "z")
    os.setxattr(moved, "user.note", b"three")

    def run(ran: Path) -> None:
        (ran / "file").write_text("new")
        (ran / "gone").unlink()
        (ran / "moved").rename(ran / "there")

    stage.kept(run, "it")
    stage.changes.apply("it")
    assert os.getxattr(file, "user.note") == b"mine"
    assert os.getxattr(stage.project / "there", "user.note") == b"three"
    assert file.stat().st_mtime_ns > 10**18 + 7
    stage.changes.undo("it")
    assert [os.getxattr(path, "user.note") for path in (file, other, moved)] == [b"mine", b"too", b"three"]
    assert file.stat().st_mtime_ns == 10**18 + 7


def test_root_leaves_the_owners_as_they_should_be(stage: Stage) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to give files away")
    (stage.project / "d").mkdir()
    for path, user in (("file", 1001), ("gone", 1002), ("d/x", 1003)):
        os.chown(stage.write(path, path), user, user)
    os.chown(stage.project, NOBODY, NOBODY)
    os.chown(stage.project / "d", 1004, 1005)

    def run(ran: Path) -> None:
        (ran / "file").write_text("new")
        (ran / "gone").unlink()
        (ran / "d/x").rename(ran / "d/y")
        (ran / "d/e").mkdir()
        (ran / "d/e/new").write_text("new")
        (ran / "link").symlink_to("x")

    stage.kept(run, "it")
    stage.changes.apply("it")

    def owners() -> dict[str, int]:
        return {path: (stage.project / path).lstat().st_uid for path in snapshot(stage.project)}

    assert owners() == {"file": 1001, "d": 1004, "d/y": 1003, "d/e": 1004, "d/e/new": 1004, "link": NOBODY}
    assert (stage.project / "d/e/new").stat().st_gid == 1005
    stage.changes.undo("it")
    assert owners() == {"file": 1001, "gone": 1002, "d": 1004, "d/x": 1003}


def test_a_file_of_somebody_else_is_not_made_ours() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to have a file of somebody else")

    def work(place: Path) -> None:
        stage = Stage(place)
        os.link(place / "theirs", stage.project / "file")
        stage.kept(lambda ran: (ran / "file").write_text("mine"), "it")
        with pytest.raises(WorkspaceError, match="can't be replaced by this user"):
            stage.changes.apply("it")
        assert os.listdir(stage.project) == ["file"]

    def theirs(place: Path) -> None:
        (place / "theirs").write_text("theirs")
        (place / "theirs").chmod(0o666)  # so that others may link to it

    as_an_ordinary_user(work, before=theirs)


def test_a_hard_link_of_the_project_is_replaced_under_one_name_alone(stage: Stage) -> None:
    stage.write("a", "x")
    os.link(stage.project / "a", stage.project / "b")
    stage.kept(lambda ran: (ran / "a").write_text("y"), "it")
    stage.changes.apply("it")
    assert (stage.project / "b").read_text() == "x"


# --- parts ---


def test_parts_can_be_applied_and_the_rest_stays(stage: Stage) -> None:
    stage.write("x/old", "o")

    def run(ran: Path) -> None:
        (ran / "a/b").mkdir(parents=True)
        (ran / "a/b/1").write_text("1")
        (ran / "a/b/2").write_text("2")
        (ran / "other").write_text("3")
        (ran / "x/old").rename(ran / "y")
        (ran / "x").rmdir()

    stage.kept(run, "it")
    kept = stage.changes.apply("it", paths=["a/b/1"])
    assert set(snapshot(stage.project)) == {"a", "a/b", "a/b/1", "x", "x/old"}
    assert kept.state == "partly"
    assert set(kept.left) == {"a/b/2", "other", "x", "y"}
    assert set(kept.left.values()) == {"it was not chosen"}
    kept = stage.changes.apply("it", paths=["x"])  # what has to go with it comes along
    assert set(kept.applied) == {"a", "a/b", "a/b/1", "x", "y"}
    for unknown in ("a/b/1", "nowhere"):
        with pytest.raises(WorkspaceError, match="nothing that waits"):
            stage.changes.apply("it", paths=[unknown])
    stage.changes.undo("it")
    assert set(snapshot(stage.project)) == {"x", "x/old"}


def test_of_exact_paths_nothing_that_was_declined_is_applied(stage: Stage) -> None:
    for name in ("gone/declined", "gone/chosen", "there/x"):
        stage.write(name, name)
    (stage.project / "there").chmod(0o755)

    def run(ran: Path) -> None:
        shutil.rmtree(ran / "gone")
        (ran / "new/deep").mkdir(parents=True)
        for name in ("new/declined", "new/deep/chosen", "there/x"):
            (ran / name).write_text("changed")
        (ran / "there").chmod(0o700)

    stage.kept(run, "it")
    with pytest.raises(WorkspaceError, match="nothing that waits"):
        stage.changes.apply("it", paths=["nowhere"], exact=True)
    kept = stage.changes.apply("it", paths=["gone", "gone/chosen", "new/deep/chosen", "there/x"], exact=True)
    assert set(kept.applied) == {"gone/chosen", "new", "new/deep", "new/deep/chosen", "there/x"}
    assert kept.left == {
        "gone": "gone/declined is left, which was in it",
        "gone/declined": "it was not chosen",
        "new/declined": "it was not chosen",
        "there": "it was not chosen",
    }
    assert (stage.project / "gone/declined").read_text() == "gone/declined"
    assert not (stage.project / "new/declined").exists()
    assert stage.project.joinpath("there").stat().st_mode & 0o777 == 0o755


def test_the_rest_can_be_discarded_and_the_part_undone(stage: Stage) -> None:
    stage.kept(lambda ran: [(ran / name).write_text(name) for name in "ab"], "it")
    stage.changes.apply("it", paths=["a"])
    assert stage.changes.discard("it").state == "applied"
    with pytest.raises(WorkspaceError, match="can't be applied"):
        stage.changes.apply("it")
    stage.changes.undo("it")
    assert os.listdir(stage.project) == []


def test_what_was_never_applied_still_waits_after_the_part_is_undone(stage: Stage) -> None:
    stage.write("a", "old")
    before = snapshot(stage.project)
    stage.kept(lambda ran: [(ran / name).write_text(name) for name in "ab"], "it")
    for _ in range(2):
        assert stage.changes.apply("it", paths=["a"]).state == "partly"
        undone = stage.changes.undo("it")
        assert (undone.state, undone.applied, undone.left) == ("kept", (), {})
        assert snapshot(stage.project) == before
    stage.changes.apply("it", paths=["b"])
    assert stage.changes.apply("it").state == "applied"
    assert {name: (stage.project / name).read_text() for name in "ab"} == {"a": "a", "b": "b"}
    assert stage.changes.undo("it").state == "undone"
    assert snapshot(stage.project) == before


@pytest.mark.parametrize("point", ["manifest written", "journal removed"])
def test_a_crash_at_the_end_of_undoing_a_part_loses_nothing_of_the_rest(stage: Stage, point: str) -> None:
    stage.write("a", "old")
    stage.kept(lambda ran: [(ran / name).write_text(name) for name in "ab"], "it")
    stage.changes.apply("it", paths=["a"])

    def die() -> None:
        journal.crash_point = lambda reached: os.kill(os.getpid(), signal.SIGKILL) if reached == point else None
        stage.changes.undo("it")

    assert in_a_child(die) == -signal.SIGKILL
    assert stage.changes.get("it").state == "kept"
    assert stage.changes.apply("it").state == "applied"
    assert {name: (stage.project / name).read_text() for name in "ab"} == {"a": "a", "b": "b"}


# --- what goes wrong ---


def test_a_content_that_was_tampered_with_is_not_applied(stage: Stage) -> None:
    stage.write("old", "x")
    kept = stage.kept(lambda ran: [(ran / name).write_text("good") for name in ("old", "new")], "it")
    after = kept.effect.changes[0].after
    assert after
    (stage.changes.directory / "it/new" / after.sha256).write_text("evil")
    before = snapshot(stage.project)
    with pytest.raises(WorkspaceError, match="is damaged"):
        stage.changes.apply("it")
    assert snapshot(stage.project) == before


@pytest.mark.parametrize("where", ["project", "state"])
def test_a_full_disk_changes_nothing(tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    points: list[str] = []
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small file system")
    (tmp_path / where).mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k,mode=700", "none", str(tmp_path / where)], check=True)
    try:
        stage = Stage(tmp_path)
        stage.write("big", os.urandom(200 << 10))
        stage.kept(lambda ran: (ran / "big").write_bytes(b"x" if where == "state" else os.urandom(300 << 10)), "it")
        (tmp_path / where / "filler").write_bytes(bytes(190 << 10 if where == "state" else 60 << 10))
        before = snapshot(stage.project)
        monkeypatch.setattr(journal, "crash_point", points.append)
        with pytest.raises(WorkspaceError, match="No space left on device"):
            stage.changes.apply("it")
        assert "stage made" not in points  # it was known before
        assert snapshot(stage.project) == before
        (tmp_path / where / "filler").unlink()
    finally:
        subprocess.run(["umount", str(tmp_path / where)], check=True)


def test_a_limit_on_file_sizes_changes_nothing(stage: Stage) -> None:
    import resource

    stage.write("old", "x")
    stage.kept(lambda ran: ((ran / "old").write_text("y"), (ran / "big").write_bytes(bytes(range(256)) * 4000)), "it")
    before = snapshot(stage.project)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(WorkspaceError, match="File too large"):
            stage.changes.apply("it")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert snapshot(stage.project) == before
    assert stage.changes.apply("it").state == "applied"


def test_a_file_system_that_cant_exchange_is_refused(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.write("old", "x")
    stage.kept(lambda ran: (ran / "old").write_text("y"), "it")

    def renameat2(*_: object) -> None:
        raise OSError(22, "Invalid argument")

    with monkeypatch.context() as patch:
        patch.setattr(linux, "renameat2", renameat2)
        with pytest.raises(WorkspaceError, match="can't exchange two files"):
            stage.changes.apply("it")
    assert os.listdir(stage.project) == ["old"]


def test_a_directory_that_was_shut_is_shut_again() -> None:
    def work(place: Path) -> None:
        stage = Stage(place)
        stage.write("a/b/file", "x")
        ran = place / "ran"
        shutil.copytree(stage.project, ran)
        (ran / "a/b/new").write_text("y")
        contents = stage.new_stage()
        effect = stage.effect_of(Layer(stage.project, ran, contents).entries, contents)
        stage.changes.keep("it", effect, contents, {})
        (stage.project / "a/b").chmod(0o500)
        (stage.project / "a").chmod(0o500)
        stage.project.chmod(0o500)
        shut = snapshot(stage.project)
        stage.changes.apply("it")
        applied = snapshot(stage.project)
        assert applied.pop("a/b/new")[2] == b"y"
        assert (applied, stat.S_IMODE(stage.project.stat().st_mode)) == (shut, 0o500)
        stage.changes.undo("it")
        assert snapshot(stage.project) == shut
        for path in (stage.project, stage.project / "a", stage.project / "a/b"):
            path.chmod(0o700)

    as_an_ordinary_user(work)
