"""What a run would do to a project, from what it left in the layer above."""

from __future__ import annotations

import difflib
import os
import random
import shutil
import socket
import stat
import time
from pathlib import Path

import pytest
from workspace_stage import Layer, Stage, as_an_ordinary_user, snapshot

from redoma.backends.base import OverlayEntry
from redoma.lib.errors import Conflict, WorkspaceError
from redoma.models import Change, Effect, Version
from redoma.workspace import diffs


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def kinds(effect: Effect) -> dict[str, str]:
    return {change.path: change.kind for change in effect.changes}


def one(effect: Effect) -> Change:
    [change] = effect.changes
    return change


def test_each_kind_of_change_is_named(stage: Stage) -> None:
    for name in ("modified", "deleted", "old", "mode", "link"):
        stage.write(name, f"{name}\n")

    def run(ran: Path) -> None:
        (ran / "modified").write_text("other\n")
        (ran / "deleted").unlink()
        (ran / "old").rename(ran / "new")
        (ran / "mode").chmod(0o755)
        (ran / "link").unlink()
        (ran / "link").symlink_to("mode")
        (ran / "directory").mkdir()
        (ran / "added").write_text("a")

    effect, _, _ = stage.effect(run)
    assert kinds(effect) == {
        "added": "added",
        "deleted": "deleted",
        "directory": "added",
        "link": "symlink",
        "mode": "mode",
        "modified": "modified",
        "new": "renamed",
    }
    assert [change.old_path for change in effect.changes if change.old_path] == ["old"]
    assert effect.project == str(stage.project)
    assert list(kinds(effect)) == sorted(kinds(effect))


def test_what_was_only_touched_is_no_change(stage: Stage) -> None:
    stage.write("d/file", "same")
    (stage.project / "link").symlink_to("d")
    place = stage.new_stage()
    layer = Layer(stage.project, stage.project, place)
    entries = [
        OverlayEntry(path="d", kind="directory", mode=stat.S_IMODE((stage.project / "d").stat().st_mode)),
        layer.file("d/file", b"same"),
        OverlayEntry(path="link", kind="symlink", target="d"),
        OverlayEntry(path="was never there", kind="removed"),
    ]
    assert stage.effect_of(entries, place).changes == ()


def test_a_directory_that_only_holds_changes_is_none_itself(stage: Stage) -> None:
    stage.write("d/e/file", "before")
    effect, _, _ = stage.effect(lambda ran: (ran / "d/e/file").write_text("after"))
    assert kinds(effect) == {"d/e/file": "modified"}


def test_an_opaque_directory_hides_all_that_it_does_not_have_itself(stage: Stage) -> None:
    for name in ("d/gone", "d/kept", "d/sub/deep", "d/again/old"):
        stage.write(name, name)
    place = stage.new_stage()
    layer = Layer(stage.project, stage.project, place)
    entries = [
        OverlayEntry(path="d", kind="directory", mode=0o755, opaque=True),
        OverlayEntry(path="d/again", kind="directory", mode=0o755),  # in an opaque one, nothing shows through anywhere
        layer.file("d/again/new", b"x"),
        layer.file("d/kept", b"d/kept"),
    ]
    (stage.project / "d").chmod(0o755)
    (stage.project / "d/again").chmod(0o755)
    assert kinds(stage.effect_of(entries, place)) == {
        "d/again/new": "added",
        "d/again/old": "deleted",
        "d/gone": "deleted",
        "d/sub": "deleted",
        "d/sub/deep": "deleted",
    }


def test_a_removed_tree_is_told_path_by_path(stage: Stage) -> None:
    stage.write("d/1", "1")
    stage.write("d/e/2", "2")
    (stage.project / "d/empty").mkdir()
    (stage.project / "d/link").symlink_to("/nonexistent")
    effect, _, _ = stage.effect(lambda ran: shutil.rmtree(ran / "d"))
    assert set(kinds(effect)) == {"d", "d/1", "d/e", "d/e/2", "d/empty", "d/link"}
    assert set(kinds(effect).values()) == {"deleted"}


def test_a_directory_for_a_file_and_back(stage: Stage) -> None:
    stage.write("d/x", "1")
    stage.write("f", "2")

    def run(ran: Path) -> None:
        shutil.rmtree(ran / "d")
        (ran / "d").write_text("file")
        (ran / "f").unlink()
        (ran / "f").mkdir()
        (ran / "f/y").write_text("3")

    effect, _, _ = stage.effect(run)
    assert kinds(effect) == {"d": "modified", "d/x": "deleted", "f": "modified", "f/y": "added"}


def test_what_cant_be_carried_over_is_refused_and_leaves_the_project_alone(stage: Stage) -> None:
    stage.write("d/file", "mine")
    stage.write("d/other", "mine")
    place = stage.new_stage()
    entries = [
        OverlayEntry(path="d", kind="directory", mode=0o755, opaque=True),
        OverlayEntry(path="d/file", kind="refused", why="it is a socket"),
        OverlayEntry(path="../etc/passwd", kind="removed"),
        OverlayEntry(path="d/./x", kind="symlink", target="y"),
        OverlayEntry(path=".redoma-abc/0", kind="removed"),
        OverlayEntry(path="big", kind="refused", why="it is too large"),
        OverlayEntry(path="big/below", kind="directory", mode=0o755),
        OverlayEntry(path="empty", kind="file", mode=0o644),
    ]
    (stage.project / "d").chmod(0o755)
    effect = stage.effect_of(entries, place)
    assert kinds(effect) == {"d/other": "deleted"}
    assert effect.refused == {
        "d/file": "it is a socket",
        "../etc/passwd": "its path does not lead down",
        "d/./x": "its path does not lead down",
        ".redoma-abc/0": "it is Redoma's own, of changes that are being applied",
        "big": "it is too large",
        "empty": "its content is missing",
    }


def test_a_pipe_or_socket_of_the_project_is_never_touched_nor_what_holds_it(stage: Stage) -> None:
    stage.write("d/e/file", "x")
    stage.write("d/file", "x")
    stage.write("other/file", "y")
    os.mkfifo(stage.project / "d/e/pipe")
    with socket.socket(socket.AF_UNIX) as server:
        directory = os.open(stage.project, os.O_RDONLY)
        server.bind(f"/proc/self/fd/{directory}/socket")
        os.close(directory)
    os.mkfifo(stage.project / "pipe")
    place = stage.new_stage()
    layer = Layer(stage.project, stage.project, place)
    entries = [
        OverlayEntry(path="d", kind="removed"),
        OverlayEntry(path="other", kind="removed"),
        OverlayEntry(path="pipe", kind="directory", mode=0o755, opaque=True),
        layer.file("pipe/x", b"x"),
        layer.file("socket", b"x"),
    ]
    effect = stage.effect_of(entries, place)
    assert kinds(effect) == {"other": "deleted", "other/file": "deleted"}
    assert set(effect.refused) == {"d", "d/e/pipe", "pipe", "socket"}
    assert effect.refused["d"] == "it holds d/e/pipe: the project has a pipe there, which is never touched"
    assert "a socket" in effect.refused["socket"]


def test_a_device_of_the_project_is_never_touched(stage: Stage) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to make a device")
    os.mknod(stage.project / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    effect = stage.effect_of([OverlayEntry(path="null", kind="removed")], stage.new_stage())
    assert effect.changes == ()
    assert "a device" in effect.refused["null"]


def test_what_the_project_does_not_let_us_read_is_refused() -> None:
    def work(place: Path) -> None:
        stage = Stage(place)
        stage.write("d/secret", "x", mode=0)
        stage.write("e/f/file", "x")
        stage.write("g", "x", mode=0)
        (stage.project / "e/f").chmod(0)
        contents = stage.new_stage()
        entries = [OverlayEntry(path="d", kind="removed"), OverlayEntry(path="e", kind="removed")]
        entries.append(Layer(stage.project, stage.new_stage(), contents).file("g", b"new"))
        effect = stage.effect_of(entries, contents)
        (stage.project / "e/f").chmod(0o755)
        assert effect.changes == ()
        assert set(effect.refused) == {"d", "d/secret", "e", "e/f", "g"}
        assert "can't be read (Permission denied)" in effect.refused["g"]

    as_an_ordinary_user(work)


def test_a_path_through_a_link_of_the_project_leads_nowhere(stage: Stage, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("theirs")
    (stage.project / "d").symlink_to(outside)
    place = stage.new_stage()
    layer = Layer(stage.project, stage.new_stage(), place)
    entries = [OverlayEntry(path="d", kind="directory", mode=0o755), layer.file("d/file", b"ours")]
    effect = stage.effect_of(entries, place)
    assert kinds(effect) == {"d": "modified", "d/file": "added"}
    stage.changes.keep("it", effect, place, {})
    stage.changes.apply("it")
    assert (outside / "file").read_text() == "theirs"
    assert (stage.project / "d/file").read_text() == "ours"
    stage.changes.undo("it")
    assert os.readlink(stage.project / "d") == str(outside)


def test_renames_are_told_only_where_there_is_no_doubt(stage: Stage) -> None:
    stage.write("a", "same")
    stage.write("b", "same")
    stage.write("empty")
    stage.write("x", "alone", mode=0o755)
    stage.write("d/1", "one")

    def run(ran: Path) -> None:
        (ran / "a").rename(ran / "c")
        (ran / "b").rename(ran / "e")
        (ran / "empty").rename(ran / "still empty")
        (ran / "x").rename(ran / "y")
        (ran / "y").chmod(0o644)
        (ran / "d").rename(ran / "f")

    effect, _, _ = stage.effect(run)
    assert {change.path: change.old_path for change in effect.changes if change.kind == "renamed"} == {"f/1": "d/1"}
    assert {"a", "b", "c", "e", "empty", "still empty", "x", "y", "d", "f"} <= set(kinds(effect))


def test_bits_that_lend_an_identity_never_come_from_a_run(stage: Stage) -> None:
    stage.write("own", "x", mode=0o4755)
    stage.write("grown", "x", mode=0o2755)
    (stage.project / "shared").mkdir()
    (stage.project / "shared").chmod(0o2775)
    place = stage.new_stage()
    layer = Layer(stage.project, stage.new_stage(), place)
    entries = [
        layer.file("grown", b"other", 0o2755),
        layer.file("own", b"x", 0o4711),
        OverlayEntry(path="shared", kind="directory", mode=0o2775),
        OverlayEntry(path="shared/d", kind="directory", mode=0o2775),
        layer.file("shared/d/program", b"x", 0o6755),
        OverlayEntry(path="taken", kind="directory", mode=0o6755),
    ]
    effect = stage.effect_of(entries, place)
    modes = {change.path: change.after.mode for change in effect.changes if change.after}
    assert modes == {"grown": 0o755, "own": 0o4711, "shared/d": 0o2775, "shared/d/program": 0o755, "taken": 0o755}
    assert set(effect.refused) == {"grown", "shared/d/program", "taken"}


def test_hard_links_become_files_of_their_own(stage: Stage) -> None:
    place = stage.new_stage()
    layer = Layer(stage.project, stage.new_stage(), place)
    entries = [
        layer.file("a", b"linked", 0o640),
        OverlayEntry(path="b", kind="file", link_of="a"),
        OverlayEntry(path="c", kind="file", link_of="nothing"),
    ]
    effect = stage.effect_of(entries, place)
    stage.changes.keep("it", effect, place, {})
    stage.changes.apply("it")
    assert snapshot(stage.project) == {"a": ("file", 0o640, b"linked"), "b": ("file", 0o640, b"linked")}
    assert (stage.project / "a").stat().st_nlink == 1
    assert effect.refused == {"c": "its content is missing"}


def test_what_others_did_while_the_run_went_on_is_a_conflict(stage: Stage) -> None:
    stage.write("both", "before")
    stage.write("mine", "before")
    stage.write("d/x", "before")
    began = time.time()
    place = stage.new_stage()
    ran = stage.new_stage()
    stage.write("both", "theirs")
    stage.write("d/new", "theirs")
    layer = Layer(stage.project, ran, place)
    entries = [layer.file("both", b"ours"), layer.file("mine", b"ours"), OverlayEntry(path="d", kind="removed")]
    for name in ("both", "d/new"):  # the clock of the file system may lag a little behind ours
        while (stage.project / name).stat().st_ctime <= began:
            (stage.project / name).touch()
    effect = stage.effect_of(entries, place, began)
    assert set(effect.conflicts) == {"both", "d/new"}
    stage.changes.keep("it", effect, place, {})
    before = snapshot(stage.project)
    with pytest.raises(Conflict) as caught:
        stage.changes.apply("it")
    assert set(caught.value.paths) == {"both", "d/new"}
    assert snapshot(stage.project) == before
    assert stage.changes.apply("it", paths=["mine"]).state == "partly"
    assert (stage.project / "mine").read_text() == "ours"


def test_a_content_that_is_missing_is_an_error(stage: Stage) -> None:
    place = stage.new_stage()
    entry = Layer(stage.project, stage.project, place).file("a", b"x")
    (place / entry.blob).unlink()
    with pytest.raises(WorkspaceError, match="the content of a is gone"):
        stage.effect_of([entry], place)


# --- diffs ---


def test_diffs_are_those_of_text(stage: Stage) -> None:
    stage.write("text", "one\ntwo\nthree")
    stage.write("binary", b"\0one")
    stage.write("latin", b"caf\xe9")
    stage.write("mode", "x")
    (stage.project / "link").symlink_to("one")

    def run(ran: Path) -> None:
        (ran / "text").write_text("one\n2\nthree\n")
        (ran / "binary").write_bytes(b"\0two")
        (ran / "latin").write_bytes(b"caf\xe8")
        (ran / "mode").chmod(0o600)
        (ran / "link").unlink()
        (ran / "link").symlink_to("two")
        (ran / "na\udcffme").write_text("new\n")

    effect, _, _ = stage.effect(run)
    found = {change.path: change.diff for change in effect.changes}
    assert found["text"] == (
        "--- a/text\n+++ b/text\n@@ -1,3 +1,3 @@\n one\n-two\n-three\n\\ No newline at end of file\n+2\n+three\n"
    )
    assert found["link"].endswith("-one\n\\ No newline at end of file\n+two\n\\ No newline at end of file\n")
    assert found["na\udcffme"] == '--- /dev/null\n+++ "b/na\\377me"\n@@ -0,0 +1 @@\n+new\n'
    assert {found[name] for name in ("binary", "latin", "mode")} == {""}


def test_what_is_too_long_says_so(stage: Stage) -> None:
    stage.write("bytes", "x\n")
    stage.write("lines", "x\n")

    def run(ran: Path) -> None:
        (ran / "bytes").write_text("y" * 80 + "\n" + "z" * diffs.MAX_BYTES)
        (ran / "lines").write_text("\n" * (diffs.MAX_LINES + 1))
        (ran / "zeros").write_bytes(bytes(diffs.MAX_BYTES + 1))

    effect, _, _ = stage.effect(run)
    found = {change.path: change.diff for change in effect.changes}
    assert found["bytes"] == f"--- a/bytes\n+++ b/bytes\n\\ Too long to show: {81 + diffs.MAX_BYTES} bytes\n"
    assert "Too long to show: 5001 lines" in found["lines"]
    assert found["zeros"] == ""


def test_the_diffs_of_an_effect_are_bounded_together(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diffs, "MAX_TOTAL_BYTES", 10)
    effect, _, _ = stage.effect(lambda ran: [(ran / name).write_text("1234567\n") for name in "ab"])
    assert ["Too long" in change.diff for change in effect.changes] == [False, True]


def patched(before: str, diff: str) -> str:
    """What a unified diff makes of a text: what `patch` does, without its doubts."""
    old, new, at = before.split("\n"), [], 0
    lines = diff.split("\n")[2:]
    for number, line in enumerate(lines):
        if line.startswith("@@"):
            start = int(line.split()[1].split(",")[0][1:])
            start -= 0 if line.split()[1].endswith(",0") else 1
            new += old[at:start]
            at = start
        elif line.startswith((" ", "-")):
            assert old[at] == line[1:], number
            new += [line[1:]] if line[0] == " " else []
            at += 1
        elif line.startswith("+"):
            new.append(line[1:])
    return "\n".join(new + old[at:])


def test_a_diff_leads_from_one_text_to_the_other() -> None:
    chance = random.Random(5)
    for _ in range(300):
        words = [str(number) for number in range(chance.choice([2, 5, 200]))]
        old = [chance.choice(words) for _ in range(chance.randrange(60))]
        new = old[:]
        for _ in range(chance.randrange(6)):
            place = chance.randrange(len(new) + 1)
            new[place : place + chance.randrange(4)] = chance.choices(words, k=chance.randrange(4))
        before, after = ("".join(f"{line}\n" for line in lines) for lines in (old, new))
        diff = diffs.diff_of("a", before, after)
        assert bool(diff) == (before != after)
        if diff:
            assert patched(before, diff) == after


def test_hostile_lines_cost_no_more_than_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, not timed: nothing is left to `difflib`, which takes the square and more of what it is given."""
    left: list[object] = []
    monkeypatch.setattr(difflib, "SequenceMatcher", lambda *given, **options: left.append(given))
    old, new = ["a\n", "b\n"] * 2500, ["b\n", "a\n", "a\n"] * 1600
    assert diffs.diff_of("a", "".join(old), "".join(new)).count("\n") > 9000
    assert not left


def test_names_are_shown_so_that_they_do_nothing() -> None:
    assert diffs.shown("plain/é name") == "plain/é name"
    assert diffs.shown('a"\\\x1b[31m\udcff\n') == '"a\\"\\\\\\033[31m\\377\\012"'


def test_the_digest_is_of_exactly_this_effect() -> None:
    one = Effect(project="/p", changes=(Change(path="a", after=Version(kind="file", sha256="1")),))
    other = Effect(project="/p", changes=(Change(path="a", after=Version(kind="file", sha256="2")),))
    assert one.digest != other.digest


def test_what_holds_something_refused_does_not_go_either(stage: Stage) -> None:
    stage.write("d/e/file", "x")
    stage.write("d/other", "y")
    entries = [OverlayEntry(path="d", kind="removed"), OverlayEntry(path="d/e", kind="refused", why="too deep")]
    effect = stage.effect_of(entries, stage.new_stage())
    assert effect.changes == ()
    assert effect.refused == {"d": "it holds d/e: too deep", "d/e": "too deep"}
