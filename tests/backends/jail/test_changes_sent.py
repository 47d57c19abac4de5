"""What a run left above a project, on its way out of the cell: every limit on it refuses, and none of them deletes."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from redoma.backends.base import Entry
from redoma.backends.jail import changes_sent, protocol
from redoma.backends.jail.changes_received import ReceivedChanges
from redoma.models import Effect, Limits
from redoma.workspace.effects import effect_of
from redoma.workspace.tree import Tree


@pytest.fixture
def layer(tmp_path: Path) -> Path:
    (tmp_path / "stage").mkdir()
    (tmp_path / "project").mkdir()
    (tmp_path / "layer").mkdir()
    return tmp_path / "layer"


def come_through(layer: Path) -> dict[str, Entry]:
    frames, received = protocol.Frames(), ReceivedChanges(str(layer.parent / "stage"), Limits())

    def tell(data: bytes) -> None:
        for kind, payload in frames.feed(data):
            (received.entry if kind == protocol.ENTRY else received.data)(payload)

    number = os.open(layer, os.O_RDONLY | os.O_DIRECTORY)
    try:
        changes_sent.send(number, tell, Limits().disk)
    finally:
        os.close(number)
    received.digest()
    return {entry.path: entry for entry in received.finish()}


def effect(layer: Path, entries: dict[str, Entry]) -> Effect:
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


def opaque(entries: dict[str, Entry], top: str) -> dict[str, Entry]:
    """As after a run that removed that directory and made it again: a file system may not take the mark from us."""
    import msgspec

    return entries | {top: msgspec.structs.replace(entries[top], opaque=True)}


def test_what_is_too_deep_is_refused_and_stays_in_the_project(layer: Path) -> None:
    names = ["d"] * (changes_sent.MAX_DEPTH + 3)
    nested(layer, names, "file")
    nested(layer.parent / "project", names, "file")
    entries = come_through(layer)
    top = "/".join(["d"] * (changes_sent.MAX_DEPTH + 1))
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
    monkeypatch.setattr(changes_sent, "MAX_ENTRIES", 5)
    for place in (layer, layer.parent / "project"):
        for name in "abc":
            (place / name).mkdir()
            for number in range(3):
                (place / name / str(number)).write_text("unchanged")
    told = effect(layer, opaque(come_through(layer), "a"))
    assert told.changes == ()
    assert told.refused == {".": "more than 5 files and directories were changed"}


def test_nothing_but_a_refusal_is_about_everything(layer: Path) -> None:
    received = ReceivedChanges(str(layer.parent / "stage"), Limits())
    with pytest.raises(protocol.Malformed):
        received.entry(protocol.named(".", b'{"kind": "removed"}'))


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
    for name, size in (("a", 5 << 20), ("b", Limits().disk + changes_sent.HOLES), ("c", 1 << 40), ("d", 4096)):
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


def test_no_frame_makes_the_parent_read_holes(layer: Path) -> None:
    received = ReceivedChanges(str(layer.parent / "stage"), Limits())
    before = time.process_time()
    size = Limits().disk + changes_sent.HOLES
    received.entry(protocol.named("a", b'{"kind": "file", "size": %d}' % size))
    received.data((size - 1).to_bytes(8, "big") + b"x")
    received.entry(protocol.named("b", b'{"kind": "removed"}'))
    assert time.process_time() - before < 0.2
    with pytest.raises(protocol.Malformed):
        received.entry(protocol.named("c", b'{"kind": "file", "size": 1}'))
