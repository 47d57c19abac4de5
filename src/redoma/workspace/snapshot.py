"""Records the state of a project, and compares the project with it later.

The state is kept in two files: a list of everything in the project, and the contents of its files. The list has the
stat data of each path. A file whose size, times, inode and mode are the same later has not been written to, because its
`ctime` can't be set without changing the clock. Where that isn't certain (see `Snapshot.trusts_times`), contents are
compared.

All contents are in one file, because copying ten thousand files takes most of its time to create them. Each content
begins at a multiple of the block size and keeps its holes, so that a file system that can share blocks between files
(Btrfs, XFS) copies nothing. Hard links to the originals would not do: writing to one name would change the copy.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import stat
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import msgspec

from ..backends import linux
from ..lib.errors import BackendError
from ..lib.files import closing, reason
from ..models import Change, Effect, MiB, Version
from .copying import CHUNK, attributes, copy_range, digest_of
from .tree import BENEATH, Kind, Tree, kind_of, odd_name, parents

_BLOCK = 4096
_FICLONERANGE = 0x4020940D
RACY = 2 * 10**9  # ns; the coarsest resolution of timestamps among file systems
_CLOCK_REALTIME_COARSE = 5  # the clock for file timestamps; it advances every 1 to 10 ms
_MAX_COMPARED = 4 * 1024 * MiB
"""Maximum size in bytes of a file whose content is compared. A larger one, mostly holes, may take hours to read, so its
content counts as changed unless its times show that it isn't.
"""


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """How much a checkpoint may keep. Contents that the file system shares instead of copying don't count as bytes."""

    max_files: int = 100_000
    """Maximum number of files, directories and links. A project with more is refused."""
    max_copied: int = 1024 * MiB
    """Maximum number of bytes of all contents. A project with more is refused."""
    max_file: int = 256 * MiB
    """Maximum number of bytes of one file. The content of a larger one is not kept, and `Checkpoint.left` says so."""


class Item(msgspec.Struct, frozen=True, array_like=True):
    """One path of a project, as it was."""

    path: str
    kind: Kind
    mode: int
    user: int
    group: int
    size: int
    modified: int
    changed: int
    """`mtime` and `ctime`, in ns."""
    inode: int
    links: int
    at: int = -1
    """The offset of its content in the file of contents; -1 if it has none there."""
    target: str = ""
    attributes: dict[str, bytes] = {}
    unkept: str = ""
    """Why it can't be restored; for a directory, why its content is unknown."""

    def matches(self, about: os.stat_result) -> bool:
        """Return whether size, times, mode, owner and inode are the same now."""
        was = (self.mode, self.user, self.group, self.size, self.modified, self.changed, self.inode)
        rights = (stat.S_IMODE(about.st_mode), about.st_uid, about.st_gid)
        return was == (*rights, about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino)


def item_of(path: str, about: os.stat_result) -> Item:
    """Return the item for a path's stat data."""
    return Item(
        path=path,
        kind=kind_of(about),
        mode=stat.S_IMODE(about.st_mode),
        user=about.st_uid,
        group=about.st_gid,
        size=about.st_size,
        modified=about.st_mtime_ns,
        changed=about.st_ctime_ns,
        inode=about.st_ino,
        links=about.st_nlink,
        unkept=f"it is {odd}" if (odd := odd_name(about)) else "",
    )


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The list of everything in a project, and the settings it was made with."""

    id: str
    project: str
    begun: int
    taken: int
    """When taking it began and ended, in ns since the epoch, by the clock for file timestamps. Files that existed
    before are older than `taken`, and those that a run creates are not.
    """
    scope: tuple[str, ...]
    """The paths that it covers; one empty path for everything."""
    skipped: tuple[str, ...]
    """Paths that it leaves out: our own, in the project."""
    reliable_times: bool
    """Whether this file system's timestamps show that a file was written to."""
    items: tuple[Item, ...]

    def trusts_times(self, item: Item) -> bool:
        """Return whether an unchanged `ctime` means an unchanged file.

        It doesn't on tmpfs, where writing through a mapping that was read first leaves the times unchanged, and may not
        on unknown file systems. Nor does it if the file was changed just before the snapshot: another change within the
        same tick has the same time.
        """
        return self.reliable_times and item.changed < self.begun - RACY

    @property
    def by_path(self) -> dict[str, Item]:
        return {item.path: item for item in self.items}


class ProjectTree(Tree):
    """A project without anything that is mounted in it: a checkpoint can't know who else uses those files."""

    resolve = BENEATH | linux.RESOLVE_NO_XDEV

    def __init__(self, path: str, descriptor: int) -> None:
        self.path, self.fd = path, descriptor


def walk(
    tree: ProjectTree, scope: tuple[str, ...], skipped: tuple[str, ...], on_error: Callable[[str, OSError], None]
) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the paths in `scope`, everything below them and the directories that they are in, each with its stat; a
    directory before its contents. Leaves out the paths in `skipped`. `on_error` is called for what can't be read.
    """
    device = os.fstat(tree.fd).st_dev
    seen: set[str] = set()
    pending: list[str] = []
    for top in scope:
        for path in (*parents(top), top) if top else ():
            about = None if path in seen else tree.stat(path)
            if about is not None:
                seen.add(path)
                yield path, about
        about = tree.stat(top) if top else os.fstat(tree.fd)
        if about is not None and stat.S_ISDIR(about.st_mode):
            pending.append(top)
    while pending:
        folder = pending.pop()
        try:
            entries = _list(tree, folder)
        except OSError as error:
            on_error(folder, error)
            continue
        for path, about in entries:
            if path in skipped:
                continue
            yield path, about
            if about.st_dev != device:
                on_error(path, OSError(errno.EXDEV, "another file system is mounted there", path))
            elif stat.S_ISDIR(about.st_mode):
                pending.append(path)


def _list(tree: ProjectTree, folder: str) -> list[tuple[str, os.stat_result]]:
    entries = []
    with closing(tree.directory(folder)) as directory:
        for name in sorted(os.listdir(directory)):
            with suppress(FileNotFoundError):  # gone since it was listed
                about = os.stat(name, dir_fd=directory, follow_symlinks=False)
                entries.append((f"{folder}/{name}" if folder else name, about))
    return entries


class Contents:
    """The file that holds all contents, one after the other."""

    def __init__(self, descriptor: int) -> None:
        self.fd, self._end, self._shares = descriptor, 0, True

    def share(self, source: int, size: int) -> int | None:
        """Add an open file by sharing its blocks. Returns its offset, or None if the file system can't."""
        if self._shares and size:
            try:
                fcntl.ioctl(self.fd, _FICLONERANGE, struct.pack("qQQQ", source, 0, 0, self._end))
            except OSError:  # another file system, or one that can't: don't try again
                self._shares = False
        return self._extend(size) if self._shares or not size else None

    def copy(self, source: int, size: int) -> int:
        """Add an open file by copying it. Returns its offset."""
        copy_range(source, 0, self.fd, self._end, size)
        return self._extend(size)

    def _extend(self, size: int) -> int:
        begin, end = self._end, -(-(self._end + size) // _BLOCK) * _BLOCK
        os.ftruncate(self.fd, end)  # the last content may end in a hole
        self._end = end
        return begin

    def digest(self, item: Item) -> str:
        """Return the SHA-256 of the content that was kept."""
        digest, done = hashlib.sha256(), 0
        while done < item.size:
            data = os.pread(self.fd, min(CHUNK, item.size - done), item.at + done)
            if not data:
                raise OSError(errno.EIO, "the checkpoint has been cut short")
            digest.update(data)
            done += len(data)
        return digest.hexdigest()


def record(
    tree: ProjectTree, contents: Contents, bounds: Bounds, scope: tuple[str, ...], skipped: tuple[str, ...]
) -> Snapshot:
    """Take a snapshot: list everything, then add all contents to `contents`. Raises `TooLarge`, and `BackendError` if
    the disk is full.
    """
    begun = _tick()
    closed: dict[str, str] = {}
    items = [item_of("", os.fstat(tree.fd))]
    weights: dict[int, int] = {}
    for path, about in walk(tree, scope, skipped, lambda path, error: closed.update({path: reason(error)})):
        items.append(item_of(path, about))
        if items[-1].kind == "file" and (weight := _weight(about)) <= bounds.max_file:
            weights[about.st_ino] = weight
        if len(items) > bounds.max_files:
            raise _too_large(tree, f"more than {bounds.max_files} files")
    recorder = _Recorder(tree, contents, bounds, sum(weights.values()))
    complete = tuple(
        msgspec.structs.replace(item, unkept=closed[item.path]) if item.path in closed else recorder.complete(item)
        for item in items
    )
    ended = time.time_ns()  # newer kernels may use this finer clock for timestamps, so none is later than this
    # Wait for the next tick. A time before `begun` means that the clock was set back.
    while begun <= (taken := _tick()) <= ended:
        time.sleep(0.001)
    return Snapshot(
        id=secrets.token_hex(8),
        project=tree.path,
        begun=begun,
        taken=taken,
        scope=scope,
        skipped=skipped,
        reliable_times=linux.file_system(tree.fd) in (linux.EXT, linux.XFS, linux.BTRFS),
        items=complete,
    )


def _tick() -> int:
    return time.clock_gettime_ns(_CLOCK_REALTIME_COARSE)


def _weight(about: os.stat_result) -> int:
    """Return the number of bytes that are not holes."""
    return min(about.st_size, about.st_blocks * 512)


class TooLarge(BackendError):
    """A project has more files or bytes than a checkpoint may keep."""


def _too_large(tree: ProjectTree, amount: str) -> TooLarge:
    return TooLarge(
        f"{tree.path} is too large to checkpoint: {amount}",
        why="a copy of all of it would have to be made before the run",
        next="run it in an overlay (`redoma try`, workspace='overlay'), or in a smaller directory",
    )


class _Recorder:
    """Adds to an item what must be read: content, link target, attributes."""

    def __init__(self, tree: ProjectTree, contents: Contents, bounds: Bounds, to_copy: int) -> None:
        self._tree, self._contents, self._bounds, self._to_copy = tree, contents, bounds, to_copy
        self._known: dict[int, Item] = {}

    def complete(self, item: Item) -> Item:
        try:
            match item.kind:
                case "symlink":
                    return msgspec.structs.replace(item, target=self._tree.target(item.path))
                case "directory":
                    with closing(self._tree.directory(item.path)) as directory:
                        return msgspec.structs.replace(item, attributes=attributes(directory))
                case "file":
                    return self._file(item)
                case _:
                    return item
        except OSError as error:
            huge = error.errno == errno.EFBIG and item.size > self._bounds.max_file  # mostly holes
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) and not huge:
                raise BackendError(
                    f"there is no checkpoint of {self._tree.path}",
                    why=f"its files can't be copied: {reason(error)}",
                    next="free some space for the state directory, or name the paths that it may write",
                ) from error
            return msgspec.structs.replace(item, unkept=reason(error))

    def _file(self, item: Item) -> Item:
        twin = self._known.get(item.inode) if item.links > 1 else None
        if twin is not None:
            return msgspec.structs.replace(item, at=twin.at, attributes=twin.attributes, unkept=twin.unkept)
        with closing(self._tree.file(item.path)) as number:
            item = self._take(number, item)
        self._known[item.inode] = item
        return item

    def _take(self, number: int, item: Item) -> Item:
        at = self._contents.share(number, item.size)
        if at is None:
            if self._to_copy > self._bounds.max_copied:
                raise _too_large(self._tree, f"{self._to_copy} bytes")
            if _weight(os.fstat(number)) > self._bounds.max_file:
                return msgspec.structs.replace(item, unkept=f"it is larger than {self._bounds.max_file} bytes")
            at = self._contents.copy(number, item.size)
        item = msgspec.structs.replace(item, at=at, attributes=attributes(number))
        if not item.matches(os.fstat(number)):
            return msgspec.structs.replace(item, unkept="somebody wrote to it while the checkpoint was taken")
        return item


# --- comparing ---


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One path where the project is not what it was."""

    path: str
    before: Item | None = None
    after: os.stat_result | None = None
    shown: bool = True
    """Whether more than its times or its inode differ, so that a person should see it."""


class Differences(msgspec.Struct, frozen=True, kw_only=True):
    found: tuple[Difference, ...]
    """A directory before its contents."""
    closed: dict[str, OSError]
    """Directories that could be read before and can't be read now. Their contents are not compared."""


class Comparison:
    """Compares a snapshot with its project. Changes nothing."""

    def __init__(self, tree: ProjectTree, snapshot: Snapshot, contents: Contents) -> None:
        self.tree, self.snapshot, self.contents = tree, snapshot, contents
        self.then = snapshot.by_path

    def differences(self) -> Differences:
        closed: dict[str, OSError] = {}
        now = {"": os.fstat(self.tree.fd)}
        snapshot = self.snapshot
        now.update(walk(self.tree, snapshot.scope, snapshot.skipped, closed.__setitem__))
        above = {place for path in snapshot.skipped for place in parents(path)}
        found = []
        for path in sorted({*now, *self.then} - (above - set(self.then)), key=lambda path: path.split("/")):
            if closed and any(place in closed for place in ("", *parents(path))):
                continue
            if (difference := self._difference(path, now.get(path))) is not None:
                found.append(difference)
        known = {path for path, item in self.then.items() if item.unkept}
        return Differences(found=tuple(found), closed={path: closed[path] for path in closed if path not in known})

    def _difference(self, path: str, after: os.stat_result | None) -> Difference | None:
        before = self.then.get(path)
        if before is None or after is None or item_of(path, after).kind != before.kind:
            return Difference(path=path, before=before, after=after)
        if before.matches(after) and (before.unkept or self.snapshot.trusts_times(before)):
            return None
        rights = (before.mode, before.user, before.group) == (stat.S_IMODE(after.st_mode), after.st_uid, after.st_gid)
        if before.kind == "directory":
            same = rights and (bool(before.unkept) or self._attributes_are_kept(before))
            unchanged = same and (bool(before.unkept) or before.modified == after.st_mtime_ns)
        else:
            same = not before.unkept and self.has_content(before, after)
            unchanged = same and before.matches(after)
        return None if unchanged else Difference(path=path, before=before, after=after, shown=not (same and rights))

    def _attributes_are_kept(self, directory: Item) -> bool:
        try:
            with closing(self.tree.directory(directory.path)) as number:
                return attributes(number) == directory.attributes
        except OSError:
            return False

    def has_content(self, item: Item, about: os.stat_result) -> bool:
        """Return whether the path still has the same content or, for a link, the same target."""
        try:
            if item.kind == "symlink":
                return stat.S_ISLNK(about.st_mode) and self.tree.target(item.path) == item.target
            if not stat.S_ISREG(about.st_mode) or about.st_size != item.size or item.size > _MAX_COMPARED:
                return False
            file = self.tree.file(item.path)
        except OSError:
            return False
        with closing(file):
            return digest_of(file) == self.contents.digest(item)

    def effect(self) -> Effect:
        """Return the differences as an `Effect`: changes, and as `refused` what can't be compared."""
        different = self.differences()
        refused = {path: reason(error) for path, error in different.closed.items()}
        for difference in different.found:
            if difference.after is not None and (odd := item_of(difference.path, difference.after).unkept):
                refused[difference.path] = odd
        changes = tuple(sorted(self._changes(different.found), key=lambda change: change.path))
        return Effect(project=self.snapshot.project, changes=changes, refused=refused)

    def _changes(self, found: tuple[Difference, ...]) -> Iterator[Change]:
        for difference in found:
            if difference.shown and difference.path:
                before, after = self._before(difference.before), self._after(difference)
                if before or after:  # otherwise it is a pipe or the like
                    yield Change(path=difference.path, before=before, after=after)

    def _before(self, item: Item | None) -> Version | None:
        if item is None or item.kind == "odd":
            return None
        if item.kind == "symlink":
            return Version(kind="symlink", target=item.target)
        if item.kind == "directory":
            return Version(kind="directory", mode=item.mode)
        known = not item.unkept and item.size <= _MAX_COMPARED
        return Version(kind="file", mode=item.mode, size=item.size, sha256=self.contents.digest(item) if known else "")

    def _after(self, difference: Difference) -> Version | None:
        about = difference.after
        if about is None or kind_of(about) == "odd":
            return None
        unread = Version(kind="file", mode=stat.S_IMODE(about.st_mode), size=about.st_size)
        try:
            return unread if about.st_size > _MAX_COMPARED else self.tree.version(difference.path) or unread
        except OSError:  # it can't be read, or was replaced by something that is not a file
            return unread
