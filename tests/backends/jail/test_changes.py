"""What a run left above a project, read by us: every limit on it refuses, and none of them deletes."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from redoma.backends.base import OverlayEntry
from redoma.backends.jail import changes
from redoma.lib.errors import BackendError
from redoma.models import Effect, Limits
from redoma.workspace.effects import effect_of
from redoma.workspace.tree import Tree


@pytest.fixture
def layer(tmp_path: Path) -> Path:
    (tmp_path / "stage").mkdir()
    (tmp_path / "project").mkdir()
    (tmp_path / "layer").mkdir()
    return tmp_path / "layer"


def come_through(layer: Path) -> dict[str, OverlayEntry]:
    number = os.open(layer, os.O_RDONLY | os.O_DIRECTORY)
    try:
        entries = changes.read_changes(number, str(layer.parent / "stage"), disk=Limits().disk)
    finally:
        os.close(number)
    return {entry.path: entry for entry in entries}


def effect(layer: Path, entries: dict[str, OverlayEntry]) -> Effect:
    with Tree(layer.parent / "project") as tree:
        return effect_of(tree, list(entries.values()), layer.parent / "stage", 0.0)


@contextmanager
def inside(place: Path) -> Iterator[None]:
    here = os.getcwd()
    os.chdir(place)
    try:
        yield
    finally:
        os.chdir(here)


def nested(place: Path, names: list[str], *files: str) -> None:
    """Deeper than one path can name."""
    with inside(place):
        for name in names:
            os.mkdir(name)
            os.chdir(name)
        for file in files:
            with open(file, "w") as new:
                new.write("unchanged")


def opaque(entries: dict[str, OverlayEntry], top: str) -> dict[str, OverlayEntry]:
    """As after a run that removed that directory and made it again: a file system may not take the mark from us."""
    import msgspec

    return entries | {top: msgspec.structs.replace(entries[top], opaque=True)}


def test_what_is_too_deep_is_refused_and_stays_in_the_project(layer: Path) -> None:
    names = ["d"] * (changes.MAX_DEPTH + 3)
    nested(layer, names, "file")
    nested(layer.parent / "project", names, "file")
    entries = come_through(layer)
    top = "/".join(["d"] * (changes.MAX_DEPTH + 1))
    assert [path for path, entry in entries.items() if entry.kind == "refused"] == [top]
    told = effect(layer, opaque(entries, "d"))
    assert told.changes == ()
    assert list(told.refused) == [top]


def test_what_has_too_long_a_path_is_refused_once_and_stays_in_the_project(layer: Path) -> None:
    names = ["n" * 250] * 15
    long = ["x" * 250, "x" * 249 + "y", "short"]
    for place in (layer, layer.parent / "project"):
        nested(place, names, *long)
    entries = come_through(layer)
    assert [path for path, entry in entries.items() if entry.kind == "refused"] == ["/".join(names)]
    told = effect(layer, opaque(entries, names[0]))
    assert told.changes == ()
    assert list(told.refused) == ["/".join(names)]


def test_too_many_entries_refuse_everything(layer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "MAX_ENTRIES", 5)
    for place in (layer, layer.parent / "project"):
        for name in "abc":
            (place / name).mkdir()
            for number in range(3):
                (place / name / str(number)).write_text("unchanged")
    told = effect(layer, opaque(come_through(layer), "a"))
    assert told.changes == ()
    assert told.refused == {".": "more than 5 files and directories were changed"}


def test_the_longest_targets_and_names_of_links_come_through_whatever_their_bytes(layer: Path) -> None:
    target = os.fsdecode(b"\xff" * 4090)
    names = [os.fsdecode(b"\xfe" * 250)] * 15
    nested(layer, names, "file")
    with inside(layer):
        for name in names:
            os.chdir(name)
        os.symlink(target, "link")
        os.link("file", "same")
    entries = come_through(layer)
    assert entries["/".join([*names, "link"])].target == target
    assert entries["/".join([*names, "same"])].link_of == "/".join([*names, "file"])


def test_holes_beyond_what_a_cell_may_send_are_refused_and_those_within_come_through(layer: Path) -> None:
    for name, size in (("a", 5 << 20), ("b", Limits().disk + changes.HOLES), ("c", 1 << 40), ("d", 4096)):
        with open(layer / name, "wb") as file:
            file.write(b"x")
            file.truncate(size)
    entries = come_through(layer)
    assert {path: entry.kind for path, entry in entries.items()} == {
        "a": "file",
        "b": "refused",
        "c": "refused",
        "d": "file",
    }
    assert entries["a"].sha256 == hashlib.sha256(b"x" + bytes((5 << 20) - 1)).hexdigest()


@pytest.mark.parametrize("odd", ["fifo", "socket", "link"])
def test_what_is_no_file_is_neither_opened_nor_followed(layer: Path, odd: str) -> None:
    (layer.parent / "secret").write_text("of the host")
    if odd == "fifo":
        os.mkfifo(layer / "odd")
    elif odd == "socket":
        with inside(layer), socket.socket(socket.AF_UNIX) as listening:
            listening.bind("odd")
    else:
        (layer / "odd").symlink_to(layer.parent / "secret")
    entry = come_through(layer)["odd"]
    assert (entry.kind, entry.blob) == ("symlink" if odd == "link" else "refused", "")
    assert list((layer.parent / "stage").iterdir()) == []


def test_a_stage_that_takes_no_more_is_our_failure_and_no_refusal(layer: Path) -> None:
    (layer / "file").write_text("new")
    (layer.parent / "stage").rmdir()
    with pytest.raises(BackendError, match="what the run changed can't be kept"):
        come_through(layer)
