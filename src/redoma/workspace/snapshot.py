"""What a project was: a list of everything in it, and the contents of its files, in two files of the state directory.

The list has what the kernel tells of each path. A file whose size, times, inode and mode are the same later has not
been written to: nobody can set a file's `ctime`, short of changing the clock. That is relied on only where it is true
(see `Snapshot.is_telling`), and else contents are compared.

The contents are one file, since making ten thousand is most of the cost of copying them. Each begins at a multiple of a
block's size, at the offset that the list gives, holes and all; so a file system that can share blocks between files
(Btrfs, XFS) copies nothing. They are never hard links to the originals: writing to one would change the other.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import secrets
import stat
import struct
import time
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, Self

import msgspec

from ..backends import linux
from ..lib.errors import BackendError
from ..models import MiB
from .atomic import attributes
from .tree import BENEATH, Tree

_BLOCK = 4096
_FICLONERANGE = 0x4020940D
_CHUNK = 1 << 20
_RACY = 2 * 10**9  # ns: the coarsest times that file systems keep
_CLOCK_REALTIME_COARSE = 5  # what the kernel dates files by; it goes on every 1 to 10 ms
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_KINDS: dict[int, Literal["file", "directory", "symlink"]] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symlink",
}
_ODD = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """How much a checkpoint may keep. What a file system can share instead of copying it is free."""

    files: int = 100_000
    """Files, directories and links. A project with more is refused."""
    copied: int = 1024 * MiB
    """Bytes of all contents. A project with more is refused."""
    largest: int = 256 * MiB
    """Bytes of one file. A larger one is not kept, and the checkpoint says so."""


class Item(msgspec.Struct, frozen=True, array_like=True):
    """One path of a project, as it was."""

    path: str
    kind: Literal["file", "directory", "symlink", "odd"]
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
    """Where its content begins."""
    target: str = ""
    attributes: dict[str, bytes] = {}
    unkept: str = ""
    """Why it can't be put back; of a directory, why nothing is known of what is in it."""

    def is_as(self, about: os.stat_result) -> bool:
        """Whether the kernel says the same of it now."""
        return (self.mode, self.user, self.group, self.size, self.modified, self.changed, self.inode) == (
            *(stat.S_IMODE(about.st_mode), about.st_uid, about.st_gid, about.st_size),
            *(about.st_mtime_ns, about.st_ctime_ns, about.st_ino),
        )


def item_of(path: str, about: os.stat_result) -> Item:
    form = stat.S_IFMT(about.st_mode)
    return Item(
        path=path,
        kind=_KINDS.get(form, "odd"),
        mode=stat.S_IMODE(about.st_mode),
        user=about.st_uid,
        group=about.st_gid,
        size=about.st_size,
        modified=about.st_mtime_ns,
        changed=about.st_ctime_ns,
        inode=about.st_ino,
        links=about.st_nlink,
        unkept=f"it is {_ODD[form]}" if form in _ODD else "",
    )


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The list."""

    id: str
    project: str
    begun: int
    taken: int
    """When, in ns since the epoch, by the clock that files are dated by. What was there before is older than `taken`,
    and what a run makes is not."""
    scope: tuple[str, ...]
    """The paths that it is about; one empty path for everything."""
    skipped: tuple[str, ...]
    """Paths that it is not about: ours, in the project."""
    bounds: Bounds
    telling: bool
    """Whether the times of this file system say that a file was written to."""
    items: tuple[Item, ...]

    def is_telling(self, item: Item) -> bool:
        """Whether an unchanged `ctime` means an unchanged file.

        Not on tmpfs, where writing through a mapping that was read first leaves no trace, and not on file systems that
        we don't know. And not if it was changed just before we looked: a change within the same tick has the same time.
        """
        return self.telling and item.changed < self.begun - _RACY

    @property
    def by_path(self) -> dict[str, Item]:
        return {item.path: item for item in self.items}


def encode(data: msgspec.Struct) -> bytes:
    """For a file. By `json`, since that also writes names that are no UTF-8, and reads them as they were."""
    return json.dumps(msgspec.to_builtins(data)).encode()


class Ground(Tree):
    """A project, and nothing that is mounted in it: whose files those are, no checkpoint can know."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path, self.fd = path, descriptor

    def __enter__(self) -> Self:
        return self

    def directory(self, path: str) -> int:
        flags = os.O_RDONLY | os.O_DIRECTORY
        return linux.openat2(self.fd, path or ".", flags, resolve=BENEATH | linux.RESOLVE_NO_XDEV)

    def regular(self, path: str) -> int:
        """A descriptor of a regular file, to read. `OSError` for everything else."""
        with self.parent(path) as (directory, name):
            return _open_regular(name, directory)


def _open_regular(name: str, directory: int) -> int:
    number = os.open(name, _READ, dir_fd=directory)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "it is no regular file any more", name)
    return number


class Seen(NamedTuple):
    path: str
    about: os.stat_result


Trouble = Callable[[str, OSError], None]


def walk(ground: Ground, scope: tuple[str, ...], skipped: tuple[str, ...], trouble: Trouble) -> Iterator[Seen]:
    """Everything that is there, a directory before what is in it; `trouble` is told what can't be looked at.

    Where the scope is a part, also the directories on the way there, without what else is in them.
    """
    device = os.fstat(ground.fd).st_dev
    seen: set[str] = set()
    pending: list[str] = []
    for top in scope:
        for path in (*above(top), top) if top else ():
            about = None if path in seen else ground.stat(path)
            if about is not None:
                seen.add(path)
                yield Seen(path, about)
        about = ground.stat(top) if top else os.fstat(ground.fd)
        if about is not None and stat.S_ISDIR(about.st_mode):
            pending.append(top)
    while pending:
        folder = pending.pop()
        try:
            found = _list(ground, folder)
        except OSError as error:
            trouble(folder, error)
            continue
        for path, about in found:
            if path in skipped:
                continue
            yield Seen(path, about)
            if about.st_dev != device:
                trouble(path, OSError(errno.EXDEV, "another file system is mounted there", path))
            elif stat.S_ISDIR(about.st_mode):
                pending.append(path)


def above(path: str) -> list[str]:
    """The directories on the way to a path, from the top."""
    names = path.split("/")
    return ["/".join(names[:count]) for count in range(1, len(names))]


def _list(ground: Ground, folder: str) -> list[Seen]:
    directory = ground.directory(folder)
    try:
        found = []
        for name in sorted(os.listdir(directory)):
            try:
                about = os.stat(name, dir_fd=directory, follow_symlinks=False)
            except FileNotFoundError:
                continue  # gone since it was listed
            found.append(Seen(f"{folder}/{name}" if folder else name, about))
        return found
    finally:
        os.close(directory)


class Contents:
    """The file that all contents are in."""

    def __init__(self, descriptor: int) -> None:
        self.fd, self._end, self._shares = descriptor, 0, True

    def share(self, source: int, size: int) -> int | None:
        """Have the file system use the blocks of an open file twice; where it begins, or None if it can't."""
        if self._shares and size:
            try:
                fcntl.ioctl(self.fd, _FICLONERANGE, struct.pack("qQQQ", source, 0, 0, self._end))
            except OSError:  # another file system, or one that can't: then none of the next can be shared either
                self._shares = False
        return self._extend(size) if self._shares or not size else None

    def copy(self, source: int, size: int) -> int:
        """Take in an open file; where it begins."""
        transfer(source, 0, self.fd, self._end, size)
        return self._extend(size)

    def _extend(self, size: int) -> int:
        begin, end = self._end, -(-(self._end + size) // _BLOCK) * _BLOCK
        os.ftruncate(self.fd, end)  # what was taken in may end in a hole
        self._end = end
        return begin

    def digest(self, item: Item) -> str:
        """SHA-256 of the content that was kept."""
        digest, done = hashlib.sha256(), 0
        while done < item.size:
            data = os.pread(self.fd, min(_CHUNK, item.size - done), item.at + done)
            if not data:
                raise OSError(errno.EIO, "the checkpoint has been cut short")
            digest.update(data)
            done += len(data)
        return digest.hexdigest()


def transfer(source: int, begin: int, target: int, at: int, size: int) -> None:
    """Copy a part of a file into another; what is a hole stays one."""
    done = 0
    while done < size:
        try:
            data = os.lseek(source, begin + done, os.SEEK_DATA) - begin
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                return
            raise
        end = min(os.lseek(source, begin + data, os.SEEK_HOLE) - begin, size)
        done = data
        while done < end:
            count = _copy(source, begin + done, target, at + done, min(end - done, 64 * _CHUNK))
            if not count:
                return  # cut shorter meanwhile: its times tell
            done += count


def _copy(source: int, begin: int, target: int, at: int, count: int) -> int:
    try:
        return os.copy_file_range(source, target, count, begin, at)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
    return os.pwrite(target, os.pread(source, min(count, _CHUNK), begin), at)


def record(
    ground: Ground, contents: Contents, bounds: Bounds, scope: tuple[str, ...], skipped: tuple[str, ...]
) -> Snapshot:
    """Look at everything, then take in all contents."""
    begun = _tick()
    closed: dict[str, str] = {}
    items = [item_of("", os.fstat(ground.fd))]
    weights: dict[int, int] = {}
    for path, about in walk(ground, scope, skipped, lambda path, error: closed.update({path: why(error)})):
        items.append(item_of(path, about))
        if items[-1].kind == "file" and (weight := _weight(about)) <= bounds.largest:
            weights[about.st_ino] = weight
        if len(items) > bounds.files:
            raise _too_large(ground, f"more than {bounds.files} files")
    taker = _Taker(ground, contents, bounds, sum(weights.values()))
    complete = tuple(
        msgspec.structs.replace(item, unkept=closed[item.path]) if item.path in closed else taker.complete(item)
        for item in items
    )
    ended = time.time_ns()  # newer kernels also date by this clock, but never later than it is
    while begun <= (taken := _tick()) <= ended:  # before it began: somebody has set the clock back
        time.sleep(0.001)
    return Snapshot(
        id=secrets.token_hex(8),
        project=ground.path,
        begun=begun,
        taken=taken,
        scope=scope,
        skipped=skipped,
        bounds=bounds,
        telling=linux.file_system(ground.fd) in (linux.EXT, linux.XFS, linux.BTRFS),
        items=complete,
    )


def _tick() -> int:
    return time.clock_gettime_ns(_CLOCK_REALTIME_COARSE)


def why(error: OSError) -> str:
    return error.strerror or str(error)


def _weight(about: os.stat_result) -> int:
    """The bytes that are more than holes."""
    return min(about.st_size, about.st_blocks * 512)


class TooLarge(BackendError):
    """It can't be kept within the bounds."""


def _too_large(ground: Ground, amount: str) -> TooLarge:
    return TooLarge(
        f"{ground.path} is too large to checkpoint: {amount}",
        why="a copy of all of it would have to be made before the run",
        next="run it in an overlay, name the paths that it may write, or raise the bounds of checkpoints",
    )


class _Taker:
    """Adds to an item what has to be read."""

    def __init__(self, ground: Ground, contents: Contents, bounds: Bounds, to_copy: int) -> None:
        self._ground, self._contents, self._bounds, self._to_copy = ground, contents, bounds, to_copy
        self._known: dict[int, Item] = {}

    def complete(self, item: Item) -> Item:
        try:
            match item.kind:
                case "symlink":
                    with self._ground.parent(item.path) as (directory, name):
                        return msgspec.structs.replace(item, target=os.readlink(name, dir_fd=directory))
                case "directory":
                    directory = self._ground.directory(item.path)
                    try:
                        return msgspec.structs.replace(item, attributes=attributes(directory))
                    finally:
                        os.close(directory)
                case "file":
                    return self._file(item)
                case _:
                    return item
        except OSError as error:
            huge = error.errno == errno.EFBIG and item.size > self._bounds.largest  # mostly holes
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) and not huge:
                raise BackendError(
                    f"there is no checkpoint of {self._ground.path}",
                    why=f"its files can't be copied: {why(error)}",
                    next="free some space for the state directory, or name the paths that it may write",
                ) from error
            return msgspec.structs.replace(item, unkept=why(error))

    def _file(self, item: Item) -> Item:
        twin = self._known.get(item.inode) if item.links > 1 else None
        if twin is not None:
            return msgspec.structs.replace(item, at=twin.at, attributes=twin.attributes, unkept=twin.unkept)
        number = self._ground.regular(item.path)
        try:
            item = self._take(number, item)
        finally:
            os.close(number)
        self._known[item.inode] = item
        return item

    def _take(self, number: int, item: Item) -> Item:
        at = self._contents.share(number, item.size)
        if at is None:
            if self._to_copy > self._bounds.copied:
                raise _too_large(self._ground, f"{self._to_copy} bytes")
            if _weight(os.fstat(number)) > self._bounds.largest:
                return msgspec.structs.replace(item, unkept=f"it is larger than {self._bounds.largest} bytes")
            at = self._contents.copy(number, item.size)
        item = msgspec.structs.replace(item, at=at, attributes=attributes(number))
        if not item.is_as(os.fstat(number)):
            return msgspec.structs.replace(item, unkept="somebody wrote to it while the checkpoint was taken")
        return item
