"""Applying changes: everything is looked at, and made ready, before anything is touched. What follows is in `moves`."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import msgspec

from ..backends import linux
from ..lib.errors import Conflict, WorkspaceError
from ..models import Version
from . import journal, private, staging
from .diffs import shown
from .journal import Journal, Mark, Thing, thing
from .moves import NO_WAY, RUN_AGAIN, Moves, depth
from .plan import Step, is_directory
from .tree import BENEATH, Odd, above

_ACTIONS = {"apply": "applied", "undo": "undone"}


class Application(Moves):
    """Changes on their way into a project, or out of it again: all that comes before the renames."""

    def __init__(self, directory: Path, plan: Journal, *, durable: bool) -> None:
        super().__init__(directory, plan, durable=durable)
        self._whose: dict[str, os.stat_result] = {}  # what the project has
        self._made: dict[str, os.stat_result] = {}  # what it will have

    def run(self) -> None:
        """Do it, or leave everything as it was and raise."""
        try:
            self._prepare()
            self._carry_out()
        except BaseException as error:
            self._give_up(error)
        self._clean()

    def _give_up(self, error: BaseException) -> NoReturn:
        done = _ACTIONS[self.journal.action]
        try:
            self._take_back()
        except OSError as second:
            raise private.failure(
                f"the changes are {done} in part, and could not be taken back yet; whatever uses them next tries again",
                second,
            ) from error
        if self.problems:
            raise WorkspaceError(
                f"the changes could not be {done}, and not all is as it was",
                why="; ".join(self.problems),
                next=f"look there, and remove {self.journal.stage} when you have what you need of it",
            ) from error
        if isinstance(error, OSError):
            raise private.failure(f"the changes could not be {done}, so nothing was changed", error) from error
        raise error

    # --- before anything is touched ---

    def _prepare(self) -> None:
        self._note(phase="preparing")
        self._open_what_is_shut()
        marks = self._check()
        self._require_room()
        self._make_stage()
        for number, step in enumerate(self.journal.steps):
            if step.backup:
                self._back_up(step, marks[number])
            if step.after is not None and step.kind != "mode":
                staged = self._stage_one(str(number), step, step.after)
                marks[number] = msgspec.structs.replace(marks[number], staged=staged)
        private.sync(self._stage, durable=self._durable)
        private.sync(self._tree.fd, durable=self._durable)
        private.sync_path(self._directory / "old", durable=self._durable)
        owners = {path: (about.st_uid, about.st_gid) for path, about in self._whose.items()}
        inode = os.fstat(self._stage).st_ino
        self._note(phase="committed", marks=tuple(marks), owners=owners, stage_inode=inode)

    def _open_what_is_shut(self) -> None:
        """A directory of our own that we may not enter, or a file that we may not read, would keep us from looking.

        The run could do the same: it is the owner. Root needs none of it.
        """
        if os.geteuid() == 0:
            return
        paths = sorted({place for step in self.journal.steps for place in above(step.path)}, key=depth)
        while shut := self._shut([".", *paths]):  # one that is opened may show others
            self._note(opened={**self.journal.opened, **shut})
            for path, mode in shut.items():
                self._chmod(path, mode | 0o700)
            journal.at("opened")

    def _shut(self, paths: Sequence[str]) -> dict[str, int]:
        shut = {}
        for path in paths:
            about = os.fstat(self._tree.fd) if path == "." else self._stat(path)
            if about is None or about.st_uid != os.geteuid() or path in self.journal.opened:
                continue
            needed = {stat.S_IFDIR: 0o700, stat.S_IFREG: 0o400}.get(stat.S_IFMT(about.st_mode), 0)
            if about.st_mode & needed != needed:
                shut[path] = stat.S_IMODE(about.st_mode)
        return shut

    def _check(self) -> list[Mark]:
        """Whether each path is what it has to be; all that are not are told at once."""
        conflicts: dict[str, str] = {}
        marks = []
        for step in self.journal.steps:
            before = self._stat(step.path)
            if why := self._differs(step, conflicts):
                conflicts[step.path] = why
            elif before and step.before:
                after = self._stat(step.path)
                if after is None or (before.st_ino, before.st_ctime_ns) != (after.st_ino, after.st_ctime_ns):
                    conflicts[step.path] = "it is being changed"
                self._whose[step.path] = before
            marks.append(Mark(thing(before)) if before else Mark())
        if conflicts:
            raise Conflict("nothing was changed, as the project is not as it was", conflicts, next=RUN_AGAIN)
        return marks

    def _stat(self, path: str) -> os.stat_result | None:
        try:
            return self._tree.stat(path)
        except OSError:  # what keeps us from it is found, and told, by `_differs`
            return None

    def _differs(self, step: Step, conflicts: dict[str, str]) -> str:
        """Why a path is not what it was; also adds what is new in a directory that goes."""
        try:
            self._check_directory(step.path.rpartition("/")[0])
            version = self._tree.version(step.path)
            if version and step.path in self.journal.opened:
                version = msgspec.structs.replace(version, mode=self.journal.opened[step.path])
            if version == step.before and step.empties:
                conflicts.update(self._unexpected(step.path))
        except Odd:
            return "there is a device, a pipe or a socket now"
        except OSError as error:
            if error.errno == errno.EXDEV:
                return "it is on another file system"
            if error.errno in NO_WAY:
                return "its directory is gone, or is no directory any more"
            return f"it can't be read: {error.strerror}"
        return _difference(step.before, version)

    def _check_directory(self, path: str) -> None:
        """That it is a directory, without links on the way, and on the same mount: else a rename could not work."""
        holder = self._by_path.get(path)
        if holder is None or is_directory(holder.before):
            os.close(
                linux.openat2(
                    self._tree.fd, path or ".", os.O_PATH | os.O_DIRECTORY, resolve=BENEATH | linux.RESOLVE_NO_XDEV
                )
            )

    def _unexpected(self, path: str) -> dict[str, str]:
        number = self._tree.directory(path)
        try:
            names = os.listdir(number)
        finally:
            os.close(number)
        below = [f"{path}/{name}" for name in names]
        return {new: "it is new in a directory that goes" for new in below if new not in self._by_path}

    def _require_room(self) -> None:
        here = there = 0
        for step in self.journal.steps:
            if step.source:
                with _closing(self._kept(step.source)) as source:
                    here += os.fstat(source).st_blocks * 512  # without its holes
            if step.backup:
                there += self._whose[step.path].st_blocks * 512
        for number, needed in ((self._tree.fd, here), (self._directory, there)):
            disk = os.statvfs(number)
            if needed > disk.f_bavail * disk.f_frsize:
                where = self._tree.path if number == self._tree.fd else self._directory
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(where))

    # --- what comes, and copies of what goes ---

    def _make_stage(self) -> None:
        os.mkdir(self.journal.stage, 0o700, dir_fd=self._tree.fd)
        self._find_stage()
        os.fchmod(self._stage, 0o700)  # without a set-group-id that it has from the project
        journal.at("stage made")
        os.symlink("1", "1", dir_fd=self._stage)
        os.symlink("2", "2", dir_fd=self._stage)
        try:
            linux.renameat2("1", "2", self._stage, self._stage, linux.RENAME_EXCHANGE)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOSYS):
                raise
            raise WorkspaceError(
                f"changes can't be applied in {self._tree.path}",
                why="its file system can't exchange two files, so a crash could leave a file missing",
                next="keep the project on a local file system, such as ext4, xfs, btrfs or tmpfs",
            ) from error
        finally:
            os.unlink("1", dir_fd=self._stage)
            os.unlink("2", dir_fd=self._stage)

    def _kept(self, name: str) -> int:
        return os.open(self._directory / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)

    def _back_up(self, step: Step, mark: Mark) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with _closing(self._tree.file(step.path)) as source:
            with _closing(os.open(self._directory / step.backup, flags, 0o600)) as target:
                digest = staging.copy(source, target)
                if step.before is None or digest != step.before.sha256 or thing(os.fstat(source)) != mark.there:
                    raise Conflict("nothing was changed", {step.path: "it is being changed"}, next=RUN_AGAIN)
                staging.copy_attributes(source, target)
                staging.copy_times(source, target)
                private.sync(target, durable=self._durable)
        journal.at("backed up")

    def _stage_one(self, name: str, step: Step, after: Version) -> Thing:
        """Make what comes."""
        if after.kind == "symlink":
            os.symlink(after.target, name, dir_fd=self._stage)
            self._give_owner(name, step)
        elif after.kind == "directory":
            os.mkdir(name, 0o700, dir_fd=self._stage)
            with _closing(
                os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._stage)
            ) as made:
                # Open to us until there is nothing more to put in.
                self._finish(made, name, step, after.mode | 0o700)
        else:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with _closing(os.open(name, flags, 0o600, dir_fd=self._stage)) as made:
                self._fill(made, step, after)
                self._finish(made, name, step, after.mode)
        journal.at("staged")
        about = os.stat(name, dir_fd=self._stage, follow_symlinks=False)
        self._made[step.path] = about
        return thing(about)

    def _fill(self, made: int, step: Step, after: Version) -> None:
        with _closing(self._kept(step.source)) as source:
            if staging.copy(source, made) != after.sha256:
                raise WorkspaceError(
                    f"the content of {shown(step.path)} is damaged",
                    why=f"{self._directory / step.source} is not what was kept",
                    next="discard these changes and run it again",
                )
            if self.journal.action == "undo":
                staging.copy_attributes(source, made)
                staging.copy_times(source, made)
        replaced = step.like or (step.path if step.before and step.before.kind == "file" else "")
        if replaced and self.journal.action == "apply":
            with _closing(self._tree.file(replaced)) as model:
                staging.copy_attributes(model, made)

    def _finish(self, made: int, name: str, step: Step, mode: int) -> None:
        self._give_owner(name, step)
        os.fchmod(made, mode)  # after the owner: a new one takes bits away
        private.sync(made, durable=self._durable)

    def _give_owner(self, name: str, step: Step) -> None:
        about = os.stat(name, dir_fd=self._stage, follow_symlinks=False)
        user, group = step.owner or (-1, -1)
        if step.owner is None and (known := self._whose.get(step.like or step.path)):
            user, group = known.st_uid, known.st_gid
        elif step.owner is None:
            holder = self._holder(step.path)
            if os.geteuid() == 0:
                user, group = holder.st_uid, holder.st_gid
            elif holder.st_mode & stat.S_ISGID:
                group = holder.st_gid
        wanted = user if user >= 0 else about.st_uid, group if group >= 0 else about.st_gid
        if wanted == (about.st_uid, about.st_gid):
            return
        try:
            os.chown(name, *wanted, dir_fd=self._stage, follow_symlinks=False)
        except PermissionError as error:
            raise WorkspaceError(
                f"{shown(step.path)} can't be replaced by this user",
                why=f"it belongs to user {wanted[0]} and group {wanted[1]}, and the new file could not",
                next="leave it out, or apply the changes as its owner",
            ) from error

    def _holder(self, path: str) -> os.stat_result:
        """About the directory that a path is in, or will be."""
        place = path.rpartition("/")[0]
        if not place:
            return os.fstat(self._tree.fd)
        about = self._made.get(place) or self._tree.stat(place)
        if about is None:
            raise Conflict("nothing was changed", {path: "its directory is gone"}, next=RUN_AGAIN)
        return about


@contextmanager
def _closing(number: int) -> Iterator[int]:
    try:
        yield number
    finally:
        os.close(number)


def _difference(before: Version | None, now: Version | None) -> str:
    """What has become of a path, in words; nothing if it is what it was."""
    if before == now:
        return ""
    if before is None:
        return "it is new"
    if now is None:
        return "it is gone"
    if before.kind != now.kind:
        return f"it is a {now.kind} now"
    if msgspec.structs.replace(before, mode=now.mode) == now:
        return f"its mode is {now.mode:04o} now"
    return "it leads elsewhere now" if now.kind == "symlink" else "its content is another now"
