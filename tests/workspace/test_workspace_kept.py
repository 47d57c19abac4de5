"""Where changes are kept: private, one at a time, and clear about what can't be done with them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from workspace_stage import NOBODY, Stage, in_a_child, snapshot

from redoma.lib import files
from redoma.lib.errors import WorkspaceError
from redoma.models import Effect
from redoma.workspace import journal, kept
from redoma.workspace.kept import Changes


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def add_a_file(ran: Path) -> None:
    (ran / "new").write_text("x")


def test_what_is_kept_is_what_it_was(stage: Stage) -> None:
    kept = stage.kept(lambda ran: [(ran / name).write_text("text\n") for name in ("a", "na\udcffme")], "abc123")
    assert stage.changes.get("abc123") == kept
    assert stage.changes.get("abc") == kept
    assert stage.changes.list() == (kept,)
    assert (kept.state, kept.about) == ("kept", {"command": "make"})
    assert kept.effect.changes[1].diff


def test_only_we_can_read_it(stage: Stage) -> None:
    stage.write("old", "secret")
    before = os.umask(0)
    try:
        stage.kept(lambda ran: (ran / "old").write_text("secret, too"), "it")
        stage.changes.apply("it")
    finally:
        os.umask(before)
    for place, names, plain in os.walk(stage.changes.directory):
        assert {stat.S_IMODE(os.stat(f"{place}/{name}").st_mode) for name in names} <= {0o700}
        assert {stat.S_IMODE(os.stat(f"{place}/{name}").st_mode) for name in plain} <= {0o600}
    assert stat.S_IMODE(stage.changes.directory.stat().st_mode) == 0o700


def test_a_state_directory_that_others_could_have_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(WorkspaceError, match="a real directory"):
        Changes(tmp_path / "link").list()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(WorkspaceError, match="others may write to it"):
        Changes(tmp_path / "open").list()
    if os.geteuid() == 0:
        os.chown(tmp_path / "real", NOBODY, NOBODY)
        with pytest.raises(WorkspaceError, match=f"it belongs to user {NOBODY}"):
            Changes(tmp_path / "real").list()


def test_contents_of_somebody_else_are_copied_not_shared(stage: Stage) -> None:
    effect, contents, _ = stage.effect(add_a_file)
    [blob] = [path for path in contents.iterdir() if len(path.name) == 64]
    os.link(blob, stage.top / "another name")
    stage.changes.keep("it", effect, contents, {})
    (stage.top / "another name").write_text("changed later")
    stage.changes.apply("it")
    assert (stage.project / "new").read_text() == "x"


@pytest.mark.parametrize("bad", ["", "..", "a/b", ".hidden", "a" * 65, "lock me", "\n"])
def test_an_id_that_is_a_path_is_refused(stage: Stage, bad: str) -> None:
    with pytest.raises(WorkspaceError, match="can't name changes"):
        stage.changes.keep(bad, Effect(project=str(stage.project)), stage.top, {})
    with pytest.raises(WorkspaceError, match="there are no changes"):
        stage.changes.get(bad)


def test_unknown_and_ambiguous_names_are_told(stage: Stage) -> None:
    stage.kept(add_a_file, "aa1")
    stage.kept(add_a_file, "aa2")
    with pytest.raises(WorkspaceError, match="several begin like that"):
        stage.changes.apply("aa")
    with pytest.raises(WorkspaceError, match="nothing is kept under that name"):
        stage.changes.discard("b")
    with pytest.raises(WorkspaceError, match="kept already"):
        stage.kept(add_a_file, "aa1")


def test_each_state_allows_what_makes_sense_in_it(stage: Stage) -> None:
    stage.kept(add_a_file, "it")
    with pytest.raises(WorkspaceError, match="can't be undone: they were not applied"):
        stage.changes.undo("it")
    stage.changes.apply("it")
    for action in (stage.changes.apply, stage.changes.discard):
        with pytest.raises(WorkspaceError, match="they are applied since"):
            action("it")
    stage.changes.undo("it")
    for action in (stage.changes.apply, stage.changes.undo, stage.changes.discard):
        with pytest.raises(WorkspaceError, match="they are undone since"):
            action("it")
    stage.kept(add_a_file, "other")
    assert stage.changes.discard("other").state == "discarded"
    for action in (stage.changes.apply, stage.changes.undo, stage.changes.discard):
        with pytest.raises(WorkspaceError, match="they are discarded since"):
            action("other")
    assert not (stage.changes.directory / "other/new").exists()
    assert os.listdir(stage.project) == []


@pytest.mark.parametrize("damage", ["", "{}", "not json", '{"id": 5}', None])
def test_a_damaged_record_is_told_and_hides_no_other(stage: Stage, damage: str | None) -> None:
    stage.kept(add_a_file, "good")
    stage.kept(add_a_file, "it")
    manifest = stage.changes.directory / "it/manifest"
    text = manifest.read_text()
    manifest.write_text(text.replace('"new"', '"old"') if damage is None else damage)
    with pytest.raises(WorkspaceError, match="is damaged"):
        stage.changes.apply("it")
    assert {kept.id: kept.state for kept in stage.changes.list()} == {"good": "kept", "it": "broken"}


def test_a_damaged_journal_is_told_and_stops_nobody_else(stage: Stage) -> None:
    stage.kept(add_a_file, "good")
    stage.kept(add_a_file, "it")
    (stage.changes.directory / "it/journal").write_text("nonsense")
    assert set(stage.changes.recover()) == {"it"}
    with pytest.raises(WorkspaceError, match="were interrupted"):
        stage.changes.apply("it")
    assert stage.changes.apply("good").state == "applied"


def test_an_effect_without_changes_can_be_applied(stage: Stage) -> None:
    stage.kept(lambda ran: None, "it")
    assert stage.changes.apply("it").state == "applied"


def test_keeping_forgets_what_has_stayed_for_long(stage: Stage) -> None:
    late = [0.0]
    stage.changes = Changes(stage.changes.directory, now=lambda: time.time() + late[0] * 86400)
    everything = {"undone", "discarded", "applied", "kept", "damaged", "interrupted"}
    for name in sorted(everything):
        stage.kept(lambda ran, name=name: (ran / name).write_text("x"), name)  # type: ignore[misc]
    stage.changes.apply("undone")
    stage.changes.undo("undone")
    stage.changes.discard("discarded")
    stage.changes.apply("applied")
    (stage.changes.directory / "damaged/manifest").write_text("nonsense")
    (stage.changes.directory / "interrupted/journal").write_text("nonsense")

    def there_after(days: int) -> set[str]:
        late[0] = days + 0.1
        stage.kept(add_a_file, f"after-{days}")
        return {name for name in os.listdir(stage.changes.directory) if not name.startswith("after-")} - {"lock"}

    assert there_after(6) == everything
    assert there_after(7) == everything - {"undone", "discarded"}
    assert there_after(89) == everything - {"undone", "discarded"}
    assert there_after(90) == {"interrupted"}


def test_keeping_looks_at_a_few_only(stage: Stage) -> None:
    for number in range(30):
        stage.kept(add_a_file, f"it{number}")
    stage.changes = Changes(stage.changes.directory, now=lambda: time.time() + 100 * 86400)
    stage.kept(add_a_file, "more")  # 20 of these 31, which may be one of them, are looked at; the others are old
    assert len(stage.changes.list()) in (11, 12)


def test_two_processes_apply_one_after_the_other(stage: Stage) -> None:
    """One holds the lock, in the middle of its work, until the other is known to wait for it."""
    stage.kept(add_a_file, "one")
    stage.kept(lambda ran: (ran / "second").write_text("y"), "two")
    told, tell = os.pipe()
    go_on, let_go = os.pipe()

    def slow() -> None:
        def at(point: str) -> None:
            if point == "journal committed":
                os.write(tell, b"x")
                os.read(go_on, 1)

        journal.crash_point = at
        stage.changes.apply("one")

    pid = os.fork()
    if pid == 0:
        try:
            slow()
        finally:
            os._exit(0)
    os.read(told, 1)
    assert stage.changes.get("two").state == "kept"  # looking doesn't wait, nor take it for a crash
    assert (stage.project / ".redoma-one").exists()
    second = threading.Thread(target=stage.changes.apply, args=["two"])
    second.start()
    os.write(let_go, b"x")
    second.join()
    assert os.waitpid(pid, 0)[1] == 0
    for number in (told, tell, go_on, let_go):
        os.close(number)
    assert set(snapshot(stage.project)) == {"new", "second"}
    assert {kept.state for kept in stage.changes.list()} == {"applied"}


def test_who_holds_the_lock_for_too_long_is_named(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.kept(add_a_file, "it")
    stage.changes.list()
    monkeypatch.setattr(kept, "LOCK_SECONDS", 0.0)
    lock = os.open(stage.changes.directory / "lock", os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(WorkspaceError, match=rf"process {os.getpid()} has held them"):
            stage.changes.apply("it")
    finally:
        os.close(lock)


def test_keeping_waits_for_nobody_who_applies(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.kept(add_a_file, "it")
    stage.changes.list()
    monkeypatch.setattr(kept, "LOCK_SECONDS", 0.0)
    lock = os.open(stage.changes.directory / "lock", os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert stage.kept(add_a_file, "more").state == "kept"
    finally:
        os.close(lock)
    assert stage.changes.apply("more").state == "applied"


def test_what_is_being_kept_is_no_leftover(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others recover while a content is taken; and one that was claimed before its lock was held is made again."""
    take, claimed = Changes._move_content, files.claimed
    refused: list[Any] = []

    def slow(self: Changes, source: Path, target: Path) -> None:
        assert Changes(stage.changes.directory).recover() == {}
        take(self, source, target)

    @contextlib.contextmanager
    def late(directory: Path) -> Iterator[bool]:
        if not refused:
            refused.append(directory)
            assert Changes(stage.changes.directory).recover() == {}
            assert not directory.exists()
        with claimed(directory) as ours:
            yield ours

    monkeypatch.setattr(Changes, "_move_content", slow)
    monkeypatch.setattr(files, "claimed", late)
    stage.kept(add_a_file, "it")
    assert refused
    assert stage.changes.apply("it").state == "applied"
    assert sorted(os.listdir(stage.changes.directory)) == ["it", "lock"]


def test_an_id_is_kept_once(stage: Stage) -> None:
    first = stage.kept(add_a_file, "it")
    with pytest.raises(WorkspaceError, match="are kept already"):
        stage.kept(lambda ran: (ran / "other").write_text("y"), "it")
    assert stage.changes.list() == (first,)


def test_the_lock_of_one_that_was_killed_is_free(stage: Stage) -> None:
    stage.kept(add_a_file, "it")

    def die() -> None:
        journal.crash_point = lambda point: os.kill(os.getpid(), signal.SIGKILL)
        stage.changes.apply("it")

    assert in_a_child(die) == -signal.SIGKILL
    assert stage.changes.apply("it").state == "applied"
