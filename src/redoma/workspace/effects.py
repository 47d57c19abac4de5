"""Turns what a run left in the overlay above a project into its effect on that project.

Only the stage is changed here: its files are renamed to the hashes of their contents. Things in a project that are not
a file, directory or link, or that can't be read, could not be restored by an undo. So they are never changed or
removed, and a change that would need that is refused as a whole.

Decisions: hard links that the run made become separate files with the same content and mode. A file of the project with
several names is replaced only under the name that the run wrote to; the others keep the old content, as in an overlay.
Set-id bits are never taken over from a run.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from ..backends.base import EVERYTHING, OverlayEntry
from ..backends.collect import Patterns, wanted
from ..lib.errors import WorkspaceError
from ..lib.files import NotRegular, open_regular
from ..models import Change, Effect, Version
from . import diffs
from .diffs import shown
from .names import Names
from .protected import protected, repositories
from .tree import Tree, odd_name, with_parents

OWN = ".redoma-"
"""The prefix of our own directories in a project. They exist while changes are applied."""

_SET_ID = stat.S_ISUID | stat.S_ISGID


def effect_of(
    tree: Tree, entries: Sequence[OverlayEntry], stage: Path, began: float, applied: Mapping[str, float] | None = None
) -> Effect:
    """Return the effect that these entries, found above the project after a run, would have on it as it is now.

    `began` is the wall-clock time at which the run began; `applied` has the paths that we have changed ourselves since,
    each with the time. Afterwards the content of each new or changed file is in the stage under its SHA-256.
    """
    if whole := next((entry for entry in entries if entry.path == EVERYTHING and entry.kind == "refused"), None):
        return Effect(project=tree.path, refused={whole.path: whole.why})  # unknown parts of the rest are missing
    overlay = _Overlay(tree, began, applied or {})
    overlay.take(entries)
    overlay.leave_what_cant_be_touched()
    overlay.strip_set_id()
    changes = _with_renames(overlay.changes())
    _name_by_content(stage, entries, changes)
    touched = {path for change in changes for path in (change.path, change.old_path)}
    differ = _Diffs(tree, stage)
    # Only if needed, because it scans the whole project.
    protection = _Protection(overlay, changes).of if changes else None
    return Effect(
        project=tree.path,
        changes=tuple(
            msgspec.structs.replace(change, diff=differ.of(change), protected=protection(change) if protection else "")
            for change in changes
        ),
        refused=overlay.refused,
        conflicts={path: why for path, why in overlay.conflicts.items() if path in touched},
    )


class _Overlay:
    """For each path that a run has touched: what the project has there, and what it would have."""

    def __init__(self, tree: Tree, began: float, applied: Mapping[str, float]) -> None:
        self.tree, self.began, self.applied = tree, began, applied
        self.before: dict[str, Version | None] = {}
        self.after: dict[str, Version | None] = {}
        self.refused: dict[str, str] = {}
        self.conflicts: dict[str, str] = {}
        self._barred: dict[str, str] = {}  # path → why we can't back up and restore what the project has there

    def take(self, entries: Sequence[OverlayEntry]) -> None:
        """Record what each path is now and what it would be."""
        files = {entry.path: entry for entry in entries if entry.kind == "file"}
        hiding = []
        for entry in entries:
            if why := _unfit(entry, files):
                self.refused[entry.path] = why
                continue
            before = self._look(entry.path)
            self.after[entry.path] = _version(entry, files)
            if before and before.kind == "directory" and (entry.kind != "directory" or entry.opaque):
                hiding.append(entry.path)
        for path in hiding:
            self._hide_below(path)

    def _look(self, path: str) -> Version | None:
        try:
            version = self.tree.version(path)
            about = self.tree.stat(path)
        except NotRegular:
            what = odd_name(self.tree.stat(path)) or "something odd"
            self._barred[path] = f"the project has {what} there, which is never touched"
            version = None
        except OSError as error:
            self._barred[path] = f"what the project has there can't be read ({error.strerror})"
            version = None
        else:
            if about and not stat.S_ISDIR(about.st_mode) and about.st_ctime > self.applied.get(path, self.began):
                self.conflicts[path] = "it was changed in the project while the run went on"
        self.before[path] = version
        return version

    def _hide_below(self, path: str) -> None:
        """Mark everything in the project below this directory as removed, except for what the run put there itself."""
        todo = [path]
        while todo:
            directory = todo.pop()
            try:
                names = self.tree.list(directory)
            except OSError as error:
                self._barred[directory] = f"the project's directory can't be read ({error.strerror})"
                continue
            for name in names:
                below = f"{directory}/{name}"
                if below in self.refused:  # nothing can replace it, so it stays
                    continue
                before = self.before[below] if below in self.before else self._look(below)
                self.after.setdefault(below, None)
                if before and before.kind == "directory":
                    todo.append(below)

    def leave_what_cant_be_touched(self) -> None:
        """Refuse changes that would remove or replace something that we can't restore, with everything below them."""
        tops = set()
        for path, why in {**self.refused, **self._barred}.items():
            top = next((place for place in with_parents(path) if place in self._barred or self._goes(place)), path)
            tops |= {path, top}
            self.refused[path] = why
            if top != path:
                self.refused[top] = f"it holds {shown(path)}: {why}"
        if tops:
            gone = [path for path in self.after if not tops.isdisjoint(with_parents(path))]
            for path in gone:
                del self.after[path]
                if path in self.conflicts:
                    del self.conflicts[path]

    def _goes(self, path: str) -> bool:
        """Return whether the changes remove this path, or put something other than a directory there."""
        if path not in self.after:
            return False
        version = self.after[path]
        return version is None or version.kind != "directory"

    def strip_set_id(self) -> None:
        """Remove set-id bits from the changes: a set-id program would let a run act as another user.

        On a directory, set-group-id only determines the group of new files, so it is kept where it is or was inherited.
        """
        for path in sorted(self.after):  # directories before their content
            before, after = self.before.get(path), self.after[path]
            if after is None or not after.mode & _SET_ID:
                continue
            allowed = 0
            if before and msgspec.structs.replace(before, mode=after.mode) == after:
                allowed = before.mode & _SET_ID
            if after.kind == "directory":
                allowed |= self._mode_above(path) & stat.S_ISGID
            if dropped := after.mode & _SET_ID & ~allowed:
                self.after[path] = msgspec.structs.replace(after, mode=after.mode & ~dropped)
                self.refused[path] = "its set-user-id or set-group-id bit is not carried over; the rest is"

    def _mode_above(self, path: str) -> int:
        place = path.rpartition("/")[0]
        if place in self.after:
            version = self.after[place]
            return version.mode if version else 0
        about = self.tree.stat(place) if place else os.fstat(self.tree.fd)
        return about.st_mode if about else 0

    def exists(self, path: str) -> bool:
        """Return whether a path exists after the changes."""
        if path in self.after:
            return self.after[path] is not None
        return self.tree.stat(path) is not None

    def changes(self) -> list[Change]:
        return [
            Change(path=path, before=self.before[path], after=self.after[path])
            for path in sorted(self.after)
            if self.before[path] != self.after[path]
        ]


def _unfit(entry: OverlayEntry, files: dict[str, OverlayEntry]) -> str:
    """Return why an entry can't be applied to any project; empty if it can."""
    if entry.kind == "refused":
        return entry.why or "it can't be carried over"
    names = entry.path.split("/")
    if {"", ".", ".."} & set(names) or "\0" in entry.path:
        return "its path does not lead down"
    if names[0].startswith(OWN):
        return "it is Redoma's own, of changes that are being applied"
    if entry.kind == "file" and not _content(entry, files).sha256:
        return "its content is missing"
    return ""


def _content(entry: OverlayEntry, files: dict[str, OverlayEntry]) -> OverlayEntry:
    """Return the entry that has the content: this one, or the one that it is a hard link of."""
    return entry if entry.sha256 or not entry.link_of else files.get(entry.link_of, entry)


def _version(entry: OverlayEntry, files: dict[str, OverlayEntry]) -> Version | None:
    match entry.kind:
        case "file":
            source = _content(entry, files)
            return Version(kind="file", mode=stat.S_IMODE(source.mode), size=source.size, sha256=source.sha256)
        case "directory":
            return Version(kind="directory", mode=stat.S_IMODE(entry.mode))
        case "symlink":
            return Version(kind="symlink", target=entry.target)
    return None


def _with_renames(changes: list[Change]) -> list[Change]:
    """Merge a removed and an added file into one move if their content is the same and there is only one of each."""
    gone: dict[Version, list[Change]] = {}
    come: dict[Version, list[Change]] = {}
    for change in changes:
        if change.after is None and change.before and change.before.size:
            gone.setdefault(change.before, []).append(change)
        elif change.before is None and change.after and change.after.size:
            come.setdefault(change.after, []).append(change)
    moved = {
        olds[0].path: come[version][0].path
        for version, olds in gone.items()
        if len(olds) == 1 and len(come.get(version, ())) == 1
    }
    origin = {new: old for old, new in moved.items()}
    return [
        msgspec.structs.replace(change, before=change.after, old_path=origin[change.path])
        if change.path in origin
        else change
        for change in changes
        if change.path not in moved
    ]


def _name_by_content(stage: Path, entries: Sequence[OverlayEntry], changes: list[Change]) -> None:
    digests = {change.after.sha256 for change in changes if change.after and change.after.kind == "file"}
    for entry in entries:
        if entry.kind == "file" and entry.blob and entry.sha256 in digests:
            try:
                os.rename(stage / entry.blob, stage / entry.sha256)
            except FileNotFoundError as error:
                if not (stage / entry.sha256).is_file():  # another name of the same file already has it
                    raise WorkspaceError(
                        f"the content of {shown(entry.path)} is gone",
                        why=f"{entry.blob} is not in {stage}",
                        next="run it again",
                    ) from error


class _Diffs:
    """Makes the diffs of one effect. They share one limit on their size."""

    def __init__(self, tree: Tree, stage: Path) -> None:
        self._tree, self._stage = tree, stage
        self._room = diffs.MAX_TOTAL_BYTES

    def of(self, change: Change) -> str:
        """Return the diff of a change; empty if only the mode or the name changes, or a side is not text."""
        if change.old_path or change.kind == "mode":
            return ""
        sizes = [version.size for version in (change.before, change.after) if version and version.kind == "file"]
        if max(sizes, default=0) > diffs.MAX_BYTES or sum(sizes) > self._room:
            return self._too_long(change, f"{max(sizes)} bytes")
        self._room -= sum(sizes)
        before, after = self._contents(change, diffs.MAX_BYTES + 1)
        try:
            return diffs.diff_of(change.path, _text(change.before, before), _text(change.after, after))
        except ValueError:
            return ""

    def _too_long(self, change: Change, size: str) -> str:
        """Return a note that the diff is too long; empty if the beginning of the file is not text, because then there
        is no diff anyway.
        """
        for data in self._contents(change, 8192):
            whole = data[: data.rfind(b"\n") + 1] or data  # don't cut a character in half
            if diffs.text_of(whole) is None:
                return ""
        return diffs.too_long(change.path, size, is_new=change.before is None, is_gone=change.after is None)

    def _contents(self, change: Change, count: int) -> tuple[bytes, bytes]:
        """Return the first bytes of the file before and after; empty if there is none."""
        before = after = b""
        if change.before and change.before.kind == "file":
            try:
                with open(self._tree.file(change.path), "rb") as file:
                    before = file.read(count)
            except OSError:  # it was replaced since, which will be a conflict when it is applied
                before = b"\0"
        if change.after and change.after.kind == "file":
            with open(open_regular(self._stage / change.after.sha256), "rb") as file:
                after = file.read(count)
        return before, after


def _text(version: Version | None, data: bytes) -> str | None:
    """Return one side of a diff; None if there is no file. Raises `ValueError` if it is not text, or has changed
    since.
    """
    if version is None or version.kind == "directory":
        return None
    if version.kind == "symlink":
        return os.fsencode(version.target).decode(errors="backslashreplace")
    text = diffs.text_of(data)
    if text is None or hashlib.sha256(data).hexdigest() != version.sha256:
        raise ValueError("no text")
    return text


class _Protection:
    """Finds changes that touch something protected, under any name that it has in the project."""

    def __init__(self, overlay: _Overlay, changes: Sequence[Change]) -> None:
        links = {path: after.target for path, after in overlay.after.items() if after and after.kind == "symlink"}
        self._names = Names(overlay.tree.path, links)
        paths = {path for change in changes for path in (change.path, change.old_path) if path}
        self._known = {path: self._names.of(path) for path in paths}
        self._repositories = repositories([name for names in self._known.values() for name in names], overlay.exists)

    def of(self, change: Change) -> str:
        """Return why a change is protected, so that it is applied only if it is named; empty if it isn't."""
        kinds = {version.kind for version in (change.before, change.after) if version}
        why = self._of_path(change.path, "directory" if kinds == {"directory"} else "file")
        return why or (self._of_path(change.old_path, "file") if change.old_path else "")

    def _of_path(self, path: str, kind: Literal["file", "directory"]) -> str:
        for name in self._known[path]:
            if why := protected(name, kind) or self._repositories.get(name, "") or self._names.configured(name):
                return why if name == path else f"{shown(name)} leads to it: {why}"
        return ""


def unexpected(changes: Sequence[Change], declared: Sequence[str]) -> tuple[Change, ...]:
    """Return the changes outside the declared paths, which are patterns like those of `outputs`: `build/**`, `*.log`.

    Both paths of a move must be declared. `build/**` also declares `build` itself. A new directory is expected if
    something in it is declared. If nothing is declared, nothing is expected.
    """
    wholes = [pattern.removesuffix("/**") for pattern in declared if pattern.endswith("/**")]
    patterns = [*declared, *wholes]

    def expected(change: Change) -> bool:
        if change.before is None and change.after is not None and change.after.kind == "directory":
            rest = Patterns(patterns)
            for name in change.path.split("/"):
                rest = rest.below(name)
            if rest:
                return True
        return all(wanted(path, patterns) for path in (change.path, change.old_path) if path)

    return tuple(change for change in changes if not expected(change))
