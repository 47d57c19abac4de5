"""Restores a project to a snapshot, and finishes that after a crash.

First everything is compared and a journal is written: what to remove, what to create again, and what was seen at each
of these paths. Then the steps are carried out. Each step looks again: if the path has changed since, another program or
a person is working there, and it is left alone. So a journal can be carried out again after a crash, even if a person
has gone on working: steps that the first attempt finished are recognised, and other changes are not touched.

This is not a `transaction`, which is all or nothing and stages everything first. A restore must do as much as it can:
if one path can't be restored, the others are. It must work on a disk that the run has filled, where new files must be
removed before there is room for the old ones; in a project whose top directory we can't write to; and on file systems
that can't exchange files.

New files and directories are removed, with one exception: what is older than the checkpoint was not made by the run but
moved here from elsewhere, and may be the only copy. It stays, and is reported.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from ..backends import linux
from ..lib import files
from ..lib.files import closing, reason
from . import journal
from .copying import attributes, copy_range
from .journal import Identity, Step, identity
from .snapshot import Comparison, Difference, Item, ProjectTree, Snapshot
from .tree import depth, kind_of, parents

T = TypeVar("T")

_PATH_MAX = 4096
_CHANGED_SINCE = "somebody has changed it since; it is left as it is"


class RestorePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a restore is about to do: the content of its journal."""

    root: int
    """The inode of the project itself."""
    removals: tuple[Step, ...] = ()
    """Paths that are new or in the way; the contents of a directory before the directory."""
    repairs: tuple[Step, ...] = ()
    """Paths that are gone or changed; a directory before its contents."""
    returns: tuple[Step, ...] = ()
    """Paths that the run has moved and that the checkpoint has no copy of: they are moved back."""
    directories: tuple[str, ...] = ()
    """Directories whose modes and times are set at the end."""
    different: tuple[str, ...] = ()
    """All paths that will be restored, for the report."""


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a restore. Bytes of names that are not UTF-8 are lone surrogates."""

    paths: tuple[str, ...] = ()
    """The paths that were different and are restored."""
    failed: dict[str, str] = {}
    """Path → why it could not be restored. Once the cause is removed, it can be tried again."""
    left: dict[str, str] = {}
    """Path → why it stays different: it was not kept, or the run moved it here from elsewhere."""


class WritableTree(ProjectTree):
    """A project whose directories are made accessible when they are used: if we own one but lack rights, we add them.
    The old modes are set again at the end (see `RestorePlan.directories`).

    Directories that were inaccessible when the snapshot was made stay so, because their content isn't known.
    """

    def __init__(self, path: str, descriptor: int, snapshot: Snapshot) -> None:
        super().__init__(path, descriptor)
        self.rights = 0o500
        """The rights that are needed: to read while comparing, to write while restoring."""
        self._closed = {item.path for item in snapshot.items if item.unkept and item.kind == "directory"}

    def directory(self, path: str) -> int:
        if os.geteuid() and path not in self._closed:
            for place in ("", *parents(path), path) if path not in ("", ".") else ("",):
                self._open_up(place)
        return super().directory(path)

    def _open_up(self, path: str) -> None:
        flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
        pin = linux.openat2(self.fd, path, flags, resolve=self.resolve) if path else os.dup(self.fd)
        with closing(pin):
            about = os.fstat(pin)
            if about.st_uid == os.geteuid() and about.st_mode & self.rights != self.rights:
                # Through the descriptor, because something else may have this name by now.
                os.chmod(f"/proc/self/fd/{pin}", stat.S_IMODE(about.st_mode) | 0o700)


def make_plan(comparison: Comparison) -> tuple[RestorePlan, Restored]:
    """Return the plan, and a `Restored` that names what can't be restored."""
    different = comparison.differences()
    failed: dict[str, str] = {}
    left: dict[str, str] = {}
    for path, error in different.closed.items():
        # A tree that was too deep to be recorded can still be removed.
        if error.errno != errno.ENAMETOOLONG or path in comparison.then:
            failed[path] = reason(error)
    planner = _Planner(comparison, left)
    for difference in different.found:
        planner.add(difference)
    return planner.plan(), Restored(failed=failed, left=left)


def _seen(about: os.stat_result | None) -> Identity | None:
    return identity(about) if about else None


class _Planner:
    """Turns differences into steps. Paths that stay different go to `left`, with the reason."""

    def __init__(self, comparison: Comparison, left: dict[str, str]) -> None:
        self._comparison, self._left = comparison, left
        self._removals: dict[str, Step] = {}
        self._repairs: dict[str, Step] = {}
        self._returns: list[Step] = []
        self._directories: set[str] = set()
        self._spared: set[str] = set()
        self._different: set[str] = set()
        self._unkept = {item.inode: item.path for item in comparison.snapshot.items if item.unkept}
        self._inodes = {item.inode for item in comparison.snapshot.items}
        self._names: dict[int, list[Item]] = names_of_files(comparison.snapshot)

    def add(self, difference: Difference) -> None:
        path, before, after = difference.path, difference.before, difference.after
        if difference.shown:
            self._different.add(path)
        if before is None:
            self._extra(path, after)
        elif before.unkept:
            self._left[path] = before.unkept
        elif before.kind == "directory" and after is not None and stat.S_ISDIR(after.st_mode):
            self._directories.add(path)
        else:
            if after is not None and kind_of(after) != before.kind:
                self._removals[path] = Step(path=path, seen=_seen(after))
                after = None
            self._repairs[path] = Step(path=path, seen=_seen(after))
            for twin in self._names.get(before.inode, ()) if before.kind == "file" else ():
                if twin.path not in self._repairs:
                    self._repairs[twin.path] = Step(path=twin.path, seen=_seen(self._comparison.tree.stat(twin.path)))

    def _extra(self, path: str, after: os.stat_result | None) -> None:
        if after is None or any(place in self._spared for place in parents(path)):
            return
        older = self._is_older(path)
        if older and after.st_ino in self._unkept:
            self._spared.add(path)
            self._returns.append(Step(path=path, seen=identity(after), to=self._unkept[after.st_ino]))
        elif older and after.st_ino not in self._inodes and (stat.S_ISDIR(after.st_mode) or after.st_nlink == 1):
            self._spared.add(path)
            self._left[path] = "it is older than the checkpoint: the run has brought it from elsewhere"
            for place in parents(path):  # the directories above it must stay too
                if place in self._removals and place not in self._comparison.then:
                    del self._removals[place]
                    self._left[place] = f"{path} is in it"
        else:
            self._removals[path] = Step(path=path, seen=_seen(after))

    def _is_older(self, path: str) -> bool:
        try:
            with self._comparison.tree.parent(path) as (directory, name):
                born = linux.born(directory, name)
        except OSError:  # it is gone by now
            return False
        return born is not None and born < self._comparison.snapshot.taken

    def plan(self) -> RestorePlan:
        then = self._comparison.then
        for moved in self._returns:
            if moved.seen and moved.seen.kind == stat.S_IFREG and moved.seen.time == then[moved.to].modified:
                self._left.pop(moved.to, None)  # it is complete, and only has to be moved back
        steps = [*self._removals.values(), *self._repairs.values(), *self._returns]
        touched = self._directories | {path for step in steps for path in (step.path, step.to) if path}
        # Include all parent directories, since they may have to be made accessible. They are in the plan so that a
        # crash doesn't leave them with changed modes.
        touched |= {place for path in touched for place in ("", *parents(path))}
        items = [then[path] for path in touched if path in then]
        finished = [item.path for item in items if item.kind == "directory" and not item.unkept]
        return RestorePlan(
            root=os.fstat(self._comparison.tree.fd).st_ino,
            removals=tuple(sorted(self._removals.values(), key=lambda step: depth(step.path), reverse=True)),
            repairs=tuple(sorted(self._repairs.values(), key=lambda step: step.path.split("/"))),
            returns=tuple(self._returns),
            directories=tuple(sorted(finished, key=lambda path: path.split("/"), reverse=True)),
            different=tuple(sorted(self._different - set(self._left) - {""})),
        )


def names_of_files(snapshot: Snapshot) -> dict[int, list[Item]]:
    """Return the hard links in a project: inode → its names, in the order of repairs."""
    names: dict[int, list[Item]] = defaultdict(list)
    for item in sorted(snapshot.items, key=lambda item: item.path.split("/")):
        if item.kind == "file" and item.links > 1 and not item.unkept:
            names[item.inode].append(item)
    return {inode: items for inode, items in names.items() if len(items) > 1}


class Restorer:
    """Carries out a plan. Recognises steps that an earlier attempt finished."""

    def __init__(self, comparison: Comparison, plan: RestorePlan, so_far: Restored) -> None:
        """`so_far` has the paths that are already known to fail, or to stay different."""
        self._comparison, self._plan = comparison, plan
        self._tree, self._then = comparison.tree, comparison.then
        self._names = names_of_files(comparison.snapshot)
        self._temporary = f".redoma-{comparison.snapshot.id}"
        self._failed, self._left = dict(so_far.failed), dict(so_far.left)

    def run(self) -> Restored:
        plan = self._plan
        for folder in dict.fromkeys(step.path.rpartition("/")[0] for step in plan.repairs):
            # An attempt that was killed may have left a temporary file, unless the directory doesn't exist.
            with suppress(OSError):
                self._sweep(folder)
        full = [step for step in plan.removals if not self._try(step.path, self._remove, step)]
        for step in plan.repairs:
            self._try(step.path, self._repair, step)
        for step in plan.returns:
            self._try(step.to, self._return, step)
        for step in full:  # again: the content of a directory may have been moved back by now
            if self._try(step.path, self._remove, step) and step.path not in self._then:
                del self._failed[step.path]
        for path in plan.directories:
            self._try(path, self._finish, path)
        done = tuple(path for path in plan.different if path not in self._failed and path not in self._left)
        return Restored(paths=done, failed=self._failed, left=self._left)

    def _try(self, path: str, work: Callable[[T], None], what: T) -> bool:
        try:
            work(what)
        except OSError as error:
            self._failed[path] = reason(error)
            return False
        journal.crash_point(f"restore {work.__name__.strip('_')}")
        return True

    def _sweep(self, folder: str) -> None:
        with closing(self._tree.directory(folder)) as directory:
            os.unlink(self._temporary, dir_fd=directory)

    def _remove(self, step: Step) -> None:
        now = self._tree.stat(step.path)
        if now is None or self._is_done(step.path, now):
            return
        if identity(now) != step.seen:
            raise _changed_since(step.path)
        with self._tree.parent(step.path) as (directory, name):
            if not stat.S_ISDIR(now.st_mode):
                os.unlink(name, dir_fd=directory)
                return
            try:
                os.rmdir(name, dir_fd=directory)
            except OSError as error:
                if len(os.fsencode(step.path)) < _PATH_MAX or error.errno != errno.ENOTEMPTY:
                    raise
                files.remove_tree(Path(f"/proc/self/fd/{directory}/{name}"))  # too deep to name its contents by path

    def _is_done(self, path: str, now: os.stat_result) -> bool:
        """Return whether an earlier attempt has already restored this path."""
        item = self._then.get(path)
        if item is None or item.kind != kind_of(now):
            return False
        return item.kind == "directory" or self._comparison.has_content(item, now)

    def _repair(self, step: Step) -> None:
        item = self._then[step.path]
        now = self._tree.stat(item.path)
        if item.kind == "directory":
            if now is None:
                with self._tree.parent(item.path) as (directory, name):
                    os.mkdir(name, 0o700, dir_fd=directory)
            elif not stat.S_ISDIR(now.st_mode):
                raise _changed_since(item.path)
            return
        same = now is not None and self._comparison.has_content(item, now)
        if now is not None and not same and (identity(now) != step.seen or stat.S_ISDIR(now.st_mode)):
            raise _changed_since(item.path)
        first = self._names[item.inode][0].path if item.inode in self._names else item.path
        if item.kind == "symlink":
            self._replace(item, lambda name, directory: os.symlink(item.target, name, dir_fd=directory))
        elif first != item.path:
            self._link(item, first, now)
        # If it has more links than before, one of them may be elsewhere, and could be used to write to the file.
        elif same and now is not None and now.st_ino == item.inode and now.st_nlink <= item.links:
            self._repair_metadata(item)
        else:
            self._replace(item, lambda name, directory: self._write(item, name, directory))

    def _replace(self, item: Item, make: Callable[[str, int], None]) -> None:
        with self._tree.parent(item.path) as (directory, name):
            with suppress(FileNotFoundError):
                os.unlink(self._temporary, dir_fd=directory)
            try:
                make(self._temporary, directory)
                if item.kind == "symlink":
                    _finish_link(item, self._temporary, directory)
                os.rename(self._temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
            finally:
                with suppress(FileNotFoundError):  # it still exists if it already is the file with this name
                    os.unlink(self._temporary, dir_fd=directory)

    def _link(self, item: Item, first: str, now: os.stat_result | None) -> None:
        there = self._tree.stat(first)
        if there is None or first in self._failed:
            raise OSError(errno.ENOENT, f"it is the same file as {first}, which could not be put back")
        if now is None or now.st_ino != there.st_ino:
            with self._tree.parent(first) as (source, source_name):
                self._replace(
                    item,
                    lambda name, directory: os.link(
                        source_name, name, src_dir_fd=source, dst_dir_fd=directory, follow_symlinks=False
                    ),
                )

    def _write(self, item: Item, name: str, directory: int) -> None:
        with closing(os.open(name, files.NEW_FILE, 0o600, dir_fd=directory)) as number:
            copy_range(self._comparison.contents.fd, item.at, number, 0, item.size)
            os.ftruncate(number, item.size)  # the file may end in a hole
            self._set_metadata(number, item)
            os.fsync(number)

    def _repair_metadata(self, item: Item) -> None:
        with closing(self._tree.file(item.path)) as number:
            if os.fstat(number).st_ino != item.inode:
                raise _changed_since(item.path)
            self._set_metadata(number, item)

    def _finish(self, path: str) -> None:
        with closing(self._tree.directory(path)) as number:
            self._set_metadata(number, self._then[path])
            os.fsync(number)

    def _set_metadata(self, number: int, item: Item) -> None:
        """Set owner, attributes, mode and time. The owner comes first: setting it clears mode bits."""
        now = os.fstat(number)
        if (now.st_uid, now.st_gid) != (item.user, item.group):
            try:
                os.fchown(number, item.user, item.group)
            except PermissionError:
                self._left[item.path] = f"it is restored, but we can't give it to user {item.user}, group {item.group}"
        has = attributes(number)
        for name in has.keys() - item.attributes.keys():
            os.removexattr(number, name)
        for name, value in item.attributes.items():
            if has.get(name) != value:
                os.setxattr(number, name, value)
        now = os.fstat(number)
        if stat.S_IMODE(now.st_mode) != item.mode:
            os.fchmod(number, item.mode)
        if now.st_mtime_ns != item.modified:
            with suppress(PermissionError):  # a directory that isn't ours, but in which we may write
                os.utime(number, ns=(now.st_atime_ns, item.modified))

    def _return(self, step: Step) -> None:
        if self._tree.stat(step.to) is not None:
            if self._tree.stat(step.path) is not None:
                raise _changed_since(step.to)
            return
        if _seen(self._tree.stat(step.path)) != step.seen:
            raise _changed_since(step.path)
        with self._tree.parent(step.path) as (source, name), self._tree.parent(step.to) as (target, new):
            linux.renameat2(name, new, source, target, linux.RENAME_NOREPLACE)


def _finish_link(item: Item, name: str, directory: int) -> None:
    with suppress(PermissionError):  # the owner of a link only matters for quotas
        os.chown(name, item.user, item.group, dir_fd=directory, follow_symlinks=False)
    os.utime(name, ns=(item.modified, item.modified), dir_fd=directory, follow_symlinks=False)


def _changed_since(path: str) -> OSError:
    return OSError(errno.EBUSY, _CHANGED_SINCE, path)
