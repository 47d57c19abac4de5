"""What is different in a project from what it was: read, compared, and left as it is."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

import msgspec

from ..models import Change, Effect, MiB, Version
from .atomic import attributes
from .snapshot import Contents, Ground, Item, Snapshot, above, item_of, walk, why
from .tree import digest_of

_MOST_READ = 4 * 1024 * MiB
"""Bytes of the largest file whose content is compared. One that is larger, mostly of holes, may take hours to read: it
counts as changed if the kernel says anything else of it."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One path where the project is not what it was."""

    path: str
    before: Item | None = None
    after: os.stat_result | None = None
    shown: bool = True
    """Whether that is more than its times or its inode."""


class Differences(msgspec.Struct, frozen=True, kw_only=True):
    found: tuple[Difference, ...]
    """A directory before what is in it."""
    closed: dict[str, OSError]
    """Directories that could be looked into then and can't be now. Nothing is said of what is in them."""


class Comparison:
    """A snapshot and the project it was made of."""

    def __init__(self, ground: Ground, snapshot: Snapshot, contents: Contents) -> None:
        self.ground, self.snapshot, self.contents = ground, snapshot, contents
        self.then = snapshot.by_path

    def differences(self) -> Differences:
        closed: dict[str, OSError] = {}
        now = {"": os.fstat(self.ground.fd)}
        snapshot = self.snapshot
        now.update(walk(self.ground, snapshot.scope, snapshot.skipped, closed.__setitem__))
        ways = {way for path in snapshot.skipped for way in above(path)}
        found = []
        for path in sorted({*now, *self.then} - (ways - set(self.then)), key=lambda path: path.split("/")):
            if closed and any(way in closed for way in ("", *above(path))):
                continue
            if (difference := self._difference(path, now.get(path))) is not None:
                found.append(difference)
        known = {path for path, item in self.then.items() if item.unkept}
        return Differences(found=tuple(found), closed={path: closed[path] for path in closed if path not in known})

    def _difference(self, path: str, after: os.stat_result | None) -> Difference | None:
        before = self.then.get(path)
        if before is None or after is None or item_of(path, after).kind != before.kind:
            return Difference(path=path, before=before, after=after)
        if before.is_as(after) and (before.unkept or self.snapshot.is_telling(before)):
            return None
        rights = (before.mode, before.user, before.group) == (stat.S_IMODE(after.st_mode), after.st_uid, after.st_gid)
        if before.kind == "directory":
            same = rights and (bool(before.unkept) or self._attributes_are_kept(before))
            unchanged = same and (bool(before.unkept) or before.modified == after.st_mtime_ns)
        else:
            same = not before.unkept and self.holds(before, after)
            unchanged = same and before.is_as(after)
        return None if unchanged else Difference(path=path, before=before, after=after, shown=not (same and rights))

    def _attributes_are_kept(self, directory: Item) -> bool:
        try:
            number = self.ground.directory(directory.path)
        except OSError:
            return False
        try:
            return attributes(number) == directory.attributes
        finally:
            os.close(number)

    def holds(self, item: Item, about: os.stat_result) -> bool:
        """Whether what is there now has the content, or the target, that it had."""
        try:
            if item.kind == "symlink":
                return stat.S_ISLNK(about.st_mode) and self._target(item.path) == item.target
            if not stat.S_ISREG(about.st_mode) or about.st_size != item.size:
                return False
            if item.size > _MOST_READ:
                return False
            number = self.ground.regular(item.path)
        except OSError:
            return False
        try:
            return digest_of(number) == self.contents.digest(item)
        finally:
            os.close(number)

    def _target(self, path: str) -> str:
        with self.ground.parent(path) as (directory, name):
            return os.readlink(name, dir_fd=directory)

    def effect(self) -> Effect:
        """The differences as everybody else knows them."""
        different = self.differences()
        refused = {path: why(error) for path, error in different.closed.items()}
        for difference in different.found:
            if difference.after is not None and (odd := item_of(difference.path, difference.after).unkept):
                refused[difference.path] = odd
        changes = tuple(sorted(self._changes(different.found), key=lambda change: change.path))
        return Effect(project=self.snapshot.project, changes=changes, refused=refused)

    def _changes(self, found: tuple[Difference, ...]) -> Iterator[Change]:
        for difference in found:
            if difference.shown and difference.path:
                change = Change(
                    path=difference.path, before=self._before(difference.before), after=self._after(difference)
                )
                if change.before or change.after:  # else it is a pipe or the like
                    yield change

    def _before(self, item: Item | None) -> Version | None:
        if item is None or item.kind == "odd":
            return None
        if item.kind == "symlink":
            return Version(kind="symlink", target=item.target)
        if item.kind == "directory":
            return Version(kind="directory", mode=item.mode)
        known = not item.unkept and item.size <= _MOST_READ
        return Version(kind="file", mode=item.mode, size=item.size, sha256=self.contents.digest(item) if known else "")

    def _after(self, difference: Difference) -> Version | None:
        about, path = difference.after, difference.path
        if about is None:
            return None
        try:
            if stat.S_ISREG(about.st_mode) and about.st_size > _MOST_READ:
                return Version(kind="file", mode=stat.S_IMODE(about.st_mode), size=about.st_size)
            if stat.S_ISDIR(about.st_mode):
                return Version(kind="directory", mode=stat.S_IMODE(about.st_mode))
            if stat.S_ISLNK(about.st_mode):
                return Version(kind="symlink", target=self._target(path))
            if not stat.S_ISREG(about.st_mode):
                return None
            number = self.ground.regular(path)
        except OSError:  # it can't be read, or is gone by now
            return Version(kind="file", mode=stat.S_IMODE(about.st_mode), size=about.st_size)
        try:
            return Version(kind="file", mode=stat.S_IMODE(about.st_mode), size=about.st_size, sha256=digest_of(number))
        finally:
            os.close(number)
