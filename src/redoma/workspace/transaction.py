"""Applies changes to a project, or undoes them: all or nothing, whatever happens meanwhile.

1. Every path is compared with what the plan expects. If one differs, nothing is touched.
2. New content is written to the stage, a directory `.redoma-…` inside the project. Content that will be removed or
   replaced is copied to the store of kept changes. Both are on disk before the journal says `committed`.
3. From then on there are only renames between the stage and the project: a new file is moved out of the stage, a
   removed one into it, and a replaced one is exchanged with its replacement.

So no file is ever half written or missing. The content of the stage shows which steps were done. Going back means doing
the same renames in reverse, which puts back the original files themselves, not copies.

    preparing ──▶ committed ──▶ done
        │             └──▶ returning ──▶ returned
        └──▶ (nothing was moved)

Recovery after a crash: before `committed`, nothing in the project has changed except the modes of our own files that
had to be made accessible, so recovery goes back. After it, everything needed is in the stage, so recovery goes forward,
or back if another program has changed a path. `returning` never becomes `committed` again. `done` and `returned` are
written before the stage is cleared, because an empty stage no longer shows which steps were done.

After each rename, the file that came out of the project is compared with the one that was seen before. If another
program changed it at the last moment, that version is put back and the transaction is undone. The kernel resolves each
path beneath the project and without links; if a directory is replaced by a link, the step fails.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, NoReturn, Self

import msgspec

from ..backends import linux
from ..lib import files
from ..lib.errors import Conflict, WorkspaceError
from ..lib.files import closing
from ..models import Version
from . import copying, journal
from .diffs import shown
from .journal import Identity, Step, identity, is_directory
from .tree import BENEATH, Tree, depth, with_parents

RUN_AGAIN = "look at what is there now, and run it again"
_NO_DIRECTORY = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""The kernel's errors if a directory in the path is gone, or is not a directory."""
_CHANGED = (*_NO_DIRECTORY, errno.EEXIST, errno.EXDEV)
"""The errors of a rename if another program has changed something at the path."""
_DONE = {"apply": "applied", "undo": "undone"}

Modes = dict[str, tuple[int, Identity | None]]
"""Path → the mode to set, and the identity of what to set it on (None: whatever is there)."""


class Journal(msgspec.Struct, frozen=True, kw_only=True):
    """Changes that are being applied or undone. The phases are explained above."""

    phase: Literal["preparing", "committed", "returning", "returned", "done"] = "preparing"
    action: Literal["apply", "undo"]
    project: str
    stage: str
    """The name of the stage in the project."""
    stage_inode: int = 0
    """The inode of the stage, once it is made."""
    paths: tuple[str, ...]
    """The paths that are changed."""
    left: dict[str, str] = {}
    """Path → why it is not among them."""
    steps: tuple[Step, ...]
    opened: dict[str, int] = {}
    """Path → original mode, of our files and directories that had to be made accessible."""
    owners: dict[str, tuple[int, int]] = {}
    """Path → user and group of what the project had."""
    staying: tuple[str, ...] = ()
    """Names in the stage that could not be put back."""
    problems: tuple[str, ...] = ()
    """The reasons for that."""


def failure(what: str, error: OSError) -> WorkspaceError:
    """Return an error of the operating system as a `WorkspaceError` with advice."""
    where = f" ({ascii(error.filename)[1:-1]})" if isinstance(error.filename, str) else ""
    return WorkspaceError(what, why=files.reason(error) + where, next=files.advice(error))


class Transaction:
    """Applies changes to a project, or undoes them. Use it as a context manager: `run`, or after a crash `resume`.
    Everything that `resume` needs is on disk.
    """

    def __init__(self, directory: Path, plan: Journal) -> None:
        """`directory` is where the changes and the journal are kept."""
        self.journal = plan
        self.problems = list(plan.problems)
        """What is not as it should be, because another program changed it."""
        self._directory = directory
        self._by_path = {step.path: step for step in plan.steps}
        self._old_stats: dict[str, os.stat_result] = {}  # stat of what the project has
        self._new_stats: dict[str, os.stat_result] = {}  # stat of what it will have
        self._stage = -1
        self._tree = _open_project(plan.project)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._stage >= 0:
            os.close(self._stage)
        self._tree.close()

    def run(self) -> None:
        """Carry out the steps; or leave everything as it was, and raise."""
        try:
            self._prepare()  # 1 and 2 above
            self._carry_out()  # 3
        except BaseException as error:
            self._roll_back_and_raise(error)
        self._clean()

    def resume(self) -> None:
        """Finish the work after a crash, or take it back. Afterwards `journal.phase` says which was done."""
        if "." in self.journal.opened:
            self._chmod(".", self.journal.opened["."] | 0o700)
        self._open_stage()
        if self.journal.phase == "committed":
            try:
                self._make_accessible_again()
                self._carry_out()
            except (Conflict, OSError):  # another program was faster: take it back
                self._roll_back()
                return
        if self.journal.phase in ("done", "returned"):
            self._clean()
        else:
            self._roll_back()

    def _roll_back_and_raise(self, error: BaseException) -> NoReturn:
        done = _DONE[self.journal.action]
        try:
            self._roll_back()
        except OSError as second:
            raise failure(
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
            raise failure(f"the changes could not be {done}, so nothing was changed", error) from error
        raise error

    def _save(self, **fields: Any) -> None:
        new = msgspec.structs.replace(self.journal, **fields)
        journal.save(self._directory / journal.NAME, new)
        journal.crash_point(f"journal {new.phase}")
        self.journal = new

    # --- before anything is touched ---

    def _prepare(self) -> None:
        self._save(phase="preparing")
        self._make_accessible()
        steps = self._compare()
        self._require_room()
        self._make_stage()
        for number, step in enumerate(steps):
            if step.backup:
                self._back_up(step)
            if step.after is not None and step.kind != "mode":
                staged = self._stage_replacement(str(number), step, step.after)
                steps[number] = msgspec.structs.replace(step, staged=staged)
        for file in (self._stage, self._tree.fd, self._directory / "old"):
            files.sync(file)
        self._save(
            phase="committed",
            steps=tuple(steps),
            owners={path: (about.st_uid, about.st_gid) for path, about in self._old_stats.items()},
            stage_inode=os.fstat(self._stage).st_ino,
        )

    def _make_accessible(self) -> None:
        """Add the rights to enter our directories and read our files. Their modes are written to the journal first.

        This gives nothing away: the run could do the same, since it has the same owner. Root needs no such rights.
        """
        if os.geteuid() == 0:
            return
        paths = sorted({place for step in self.journal.steps for place in with_parents(step.path)}, key=depth)
        while modes := self._inaccessible([".", *paths]):  # one that becomes accessible may reveal others
            self._save(opened={**self.journal.opened, **modes})
            for path, mode in modes.items():
                self._chmod(path, mode | 0o700)
            journal.crash_point("opened")

    def _inaccessible(self, paths: Iterable[str]) -> dict[str, int]:
        """Return the paths that we own but can't access, with their modes."""
        modes = {}
        for path in paths:
            about = os.fstat(self._tree.fd) if path == "." else self._stat(path)
            if about is None or about.st_uid != os.geteuid() or path in self.journal.opened:
                continue
            needed = {stat.S_IFDIR: 0o700, stat.S_IFREG: 0o400}.get(stat.S_IFMT(about.st_mode), 0)
            if about.st_mode & needed != needed:
                modes[path] = stat.S_IMODE(about.st_mode)
        return modes

    def _compare(self) -> list[Step]:
        """Return the steps with what is at each path now. Raises `Conflict` with every path that is not as expected."""
        conflicts: dict[str, str] = {}
        steps = []
        for step in self.journal.steps:
            about = self._stat(step.path)
            conflicts.update(self._conflicts(step, about))
            if about and step.before:
                self._old_stats[step.path] = about
            steps.append(msgspec.structs.replace(step, seen=identity(about) if about else None))
        if conflicts:
            raise Conflict("nothing was changed, as the project is not as it was", conflicts, next=RUN_AGAIN)
        return steps

    def _stat(self, path: str) -> os.stat_result | None:
        try:
            return self._tree.stat(path)
        except OSError:  # `_conflicts` gets the same error, and reports it
            return None

    def _conflicts(self, step: Step, about: os.stat_result | None) -> dict[str, str]:
        """Return what is not as expected at a path whose stat was `about`, and new entries in a directory that the step
        removes: path → how it differs.
        """
        path = step.path
        try:
            self._check_directory(path.rpartition("/")[0])
            version = self._tree.version(path)
            if version and path in self.journal.opened:
                version = msgspec.structs.replace(version, mode=self.journal.opened[path])
            names = self._tree.list(path) if step.empties and version == step.before else []
        except files.NotRegular:
            return {path: "there is a device, a pipe or a socket now"}
        except OSError as error:
            if error.errno == errno.EXDEV:
                return {path: "it is on another file system"}
            if error.errno in _NO_DIRECTORY:
                return {path: "its directory is gone, or is no longer a directory"}
            return {path: f"it can't be read: {error.strerror}"}
        if why := _difference(step.before, version):
            return {path: why}
        below = [f"{path}/{name}" for name in names]
        conflicts = {each: "it is new in a directory that goes" for each in below if each not in self._by_path}
        if about and step.before:
            now = self._stat(path)
            if now is None or (about.st_ino, about.st_ctime_ns) != (now.st_ino, now.st_ctime_ns):
                conflicts[path] = "it is being changed"
        return conflicts

    def _check_directory(self, path: str) -> None:
        """Raise `OSError` unless this is a directory on the same mount, without links in its path: renames need that.
        A directory that the plan itself will make isn't checked.
        """
        holder = self._by_path.get(path)
        if holder is None or is_directory(holder.before):
            resolve = BENEATH | linux.RESOLVE_NO_XDEV
            os.close(linux.openat2(self._tree.fd, path or ".", os.O_PATH | os.O_DIRECTORY, resolve=resolve))

    def _require_room(self) -> None:
        here = there = 0
        for step in self.journal.steps:
            if step.source:
                with closing(files.open_regular(self._directory / step.source)) as source:
                    here += os.fstat(source).st_blocks * 512  # without its holes
            if step.backup:
                there += self._old_stats[step.path].st_blocks * 512
        for file, where, needed in (
            (self._tree.fd, self._tree.path, here),
            (self._directory, str(self._directory), there),
        ):
            disk = os.statvfs(file)
            if needed > disk.f_bavail * disk.f_frsize:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), where)

    # --- new content, and backups of old content ---

    def _make_stage(self) -> None:
        """Create the stage. Raises `WorkspaceError` if the file system can't exchange two files."""
        os.mkdir(self.journal.stage, 0o700, dir_fd=self._tree.fd)
        self._open_stage()
        os.fchmod(self._stage, 0o700)  # without a set-group-id bit inherited from the project
        journal.crash_point("stage made")
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

    def _open_stage(self) -> None:
        """Open the stage, if there is one. Raises `WorkspaceError` if it isn't the one that we made."""
        try:
            resolve = BENEATH | linux.RESOLVE_NO_XDEV
            stage = linux.openat2(self._tree.fd, self.journal.stage, os.O_RDONLY | os.O_DIRECTORY, resolve=resolve)
        except OSError as error:
            # If the project was still inaccessible, no stage was made.
            outside = error.errno == errno.EACCES and self.journal.phase == "preparing" and not self.journal.opened
            if (error.errno not in _NO_DIRECTORY and not outside) or self.journal.phase == "committed":
                raise
            return  # not made yet, or already removed
        about = os.fstat(stage)
        if about.st_uid != os.geteuid() or self.journal.stage_inode not in (0, about.st_ino):
            os.close(stage)
            raise WorkspaceError(
                f"{self.journal.stage} in {self._tree.path} is not the directory that Redoma made",
                why="somebody has put another one there",
                next="find the first one and put it back",
            )
        self._stage = stage

    def _back_up(self, step: Step) -> None:
        with (
            closing(self._tree.file(step.path)) as source,
            closing(files.open_regular(self._directory / step.backup, os.O_RDWR | os.O_CREAT | os.O_TRUNC)) as target,
        ):
            digest = copying.copy(source, target)
            if step.before is None or digest != step.before.sha256 or identity(os.fstat(source)) != step.seen:
                raise Conflict("nothing was changed", {step.path: "it is being changed"}, next=RUN_AGAIN)
            copying.copy_attributes(source, target)
            copying.copy_times(source, target)
            files.sync(target)
        journal.crash_point("backed up")

    def _stage_replacement(self, name: str, step: Step, after: Version) -> Identity:
        """Create the replacement of a path in the stage. Returns its identity."""
        if after.kind == "symlink":
            os.symlink(after.target, name, dir_fd=self._stage)
            self._set_owner(name, step)
        elif after.kind == "directory":
            os.mkdir(name, 0o700, dir_fd=self._stage)
            with closing(os.open(name, files.OPEN_DIRECTORY, dir_fd=self._stage)) as made:
                # Writable for us until its content is complete.
                self._set_owner_and_mode(made, name, step, after.mode | 0o700)
        else:
            with closing(os.open(name, files.NEW_FILE, 0o600, dir_fd=self._stage)) as made:
                self._write_content(made, step, after)
                self._set_owner_and_mode(made, name, step, after.mode)
        journal.crash_point("staged")
        about = self._new_stats[step.path] = os.stat(name, dir_fd=self._stage, follow_symlinks=False)
        return identity(about)

    def _write_content(self, made: int, step: Step, after: Version) -> None:
        with closing(files.open_regular(self._directory / step.source)) as source:
            if copying.copy(source, made) != after.sha256:
                raise WorkspaceError(
                    f"the content of {shown(step.path)} is damaged",
                    why=f"{self._directory / step.source} is not what was kept",
                    next="discard these changes and run it again",
                )
            if self.journal.action == "undo":
                copying.copy_attributes(source, made)
                copying.copy_times(source, made)
        replaced = step.like or (step.path if step.before and step.before.kind == "file" else "")
        if replaced and self.journal.action == "apply":
            with closing(self._tree.file(replaced)) as model:
                copying.copy_attributes(model, made)

    def _set_owner_and_mode(self, made: int, name: str, step: Step, mode: int) -> None:
        self._set_owner(name, step)
        os.fchmod(made, mode)  # after the owner: changing it clears mode bits
        files.sync(made)

    def _set_owner(self, name: str, step: Step) -> None:
        about = os.stat(name, dir_fd=self._stage, follow_symlinks=False)
        user, group = about.st_uid, about.st_gid
        if step.owner is not None:
            user, group = step.owner
        elif known := self._old_stats.get(step.like or step.path):
            user, group = known.st_uid, known.st_gid
        else:
            holder = self._directory_stat(step.path)
            if os.geteuid() == 0:
                user, group = holder.st_uid, holder.st_gid
            elif holder.st_mode & stat.S_ISGID:
                group = holder.st_gid
        if (user, group) == (about.st_uid, about.st_gid):
            return
        try:
            os.chown(name, user, group, dir_fd=self._stage, follow_symlinks=False)
        except PermissionError as error:
            raise WorkspaceError(
                f"{shown(step.path)} can't be replaced by this user",
                why=f"it belongs to user {user} and group {group}, and the new file could not",
                next="leave it out, or apply the changes as its owner",
            ) from error

    def _directory_stat(self, path: str) -> os.stat_result:
        """Return the stat of the directory that contains, or will contain, a path."""
        place = path.rpartition("/")[0]
        if not place:
            return os.fstat(self._tree.fd)
        about = self._new_stats.get(place) or self._tree.stat(place)
        if about is None:
            raise Conflict("nothing was changed", {path: "its directory is gone"}, next=RUN_AGAIN)
        return about

    # --- the renames ---

    def _carry_out(self) -> None:
        for number, step in enumerate(self.journal.steps):
            if step.kind != "mode" and not self._is_done(number, step):
                self._move(str(number), step)
                journal.crash_point(f"step {step.kind}")
        self._sync_directories()
        self._set_modes(self._final_modes())
        self._save(phase="done")

    def _is_done(self, number: int, step: Step) -> bool:
        """Return whether a step was done, judging by what is in the stage."""
        about = _stat(str(number), self._stage)
        match step.kind:
            case "add":
                return about is None
            case "remove":
                return about is not None
        return about is not None and identity(about) != step.staged

    def _move(self, own: str, step: Step) -> None:
        try:
            with self._tree.parent(step.path) as (directory, name):
                if step.before is not None:
                    self._require_unchanged(step, os.stat(name, dir_fd=directory, follow_symlinks=False))
                if step.kind == "add":
                    linux.renameat2(own, name, self._stage, directory, linux.RENAME_NOREPLACE)
                elif step.kind == "remove":
                    linux.renameat2(name, own, directory, self._stage, linux.RENAME_NOREPLACE)
                else:
                    linux.renameat2(own, name, self._stage, directory, linux.RENAME_EXCHANGE)
        except OSError as error:
            if error.errno in _CHANGED:
                raise self._conflict_at(step.path) from error
            raise
        if step.before is not None:  # it may have changed a moment ago
            about = os.stat(own, dir_fd=self._stage, follow_symlinks=False)
            self._require_unchanged(step, about)
            if stat.S_ISDIR(about.st_mode) and not _is_empty(own, self._stage):
                raise self._conflict_at(step.path)

    def _require_unchanged(self, step: Step, about: os.stat_result) -> None:
        if identity(about) != step.seen:
            raise self._conflict_at(step.path)

    def _conflict_at(self, path: str) -> Conflict:
        return Conflict("nothing was changed", {path: "somebody changed it at this moment"}, next=RUN_AGAIN)

    def _sync_directories(self) -> None:
        os.fsync(self._stage)
        for path in {step.path.rpartition("/")[0] for step in self.journal.steps}:
            try:
                with closing(self._tree.directory(path)) as directory:
                    os.fsync(directory)
            except OSError as error:
                if error.errno not in _NO_DIRECTORY:  # otherwise it is gone as well
                    raise

    # --- modes: last, since they may make a directory inaccessible ---

    def _final_modes(self) -> Modes:
        """Return the modes to set at the end: those that change, and those of what was made accessible meanwhile."""
        modes = {path: mode for path, mode in self._original_modes().items() if path not in self._by_path}
        for step in self.journal.steps:
            if step.after is None or step.after.kind == "symlink":
                continue
            if step.kind == "mode":
                modes[step.path] = (step.after.mode, step.seen)
            elif is_directory(step.after) and step.after.mode & 0o700 != 0o700:
                modes[step.path] = (step.after.mode, step.staged)
        return modes

    def _set_modes(self, modes: Modes) -> None:
        for path in sorted(modes, key=depth, reverse=True):
            mode, expected = modes[path]
            self._chmod(path, mode, expected)
            journal.crash_point("mode set")

    def _chmod(self, path: str, mode: int, expected: Identity | None = None) -> None:
        """Set the mode of what is at a path, never of a link's target."""
        if path == ".":  # its descriptor is open, whatever its mode
            os.fchmod(self._tree.fd, mode)
            return
        try:
            pin = linux.openat2(self._tree.fd, path, os.O_PATH | os.O_NOFOLLOW, resolve=BENEATH)
        except OSError as error:
            if error.errno not in _NO_DIRECTORY:
                raise
            if expected:
                raise self._conflict_at(path) from error
            return  # it is gone
        with closing(pin):
            about = os.fstat(pin)
            if expected and identity(about) != expected:
                raise self._conflict_at(path)
            if not stat.S_ISLNK(about.st_mode) and stat.S_IMODE(about.st_mode) != mode:
                os.chmod(f"/proc/self/fd/{pin}", mode)

    def _original_modes(self) -> Modes:
        """Return the original modes of what was made accessible, except the project itself: the stage must still be
        removed from it.
        """
        return {path: (mode, None) for path, mode in self.journal.opened.items() if path != "."}

    def _make_accessible_again(self) -> None:
        """Make accessible again what a crash may have left inaccessible. Root needs no such rights."""
        if os.geteuid() == 0:
            return
        modes = self._final_modes() if self.journal.phase != "preparing" else {}
        for path in sorted({*self.journal.opened, *modes}, key=depth):
            about = os.fstat(self._tree.fd) if path == "." else self._tree.stat(path)
            if about and stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid():
                self._chmod(path, stat.S_IMODE(about.st_mode) | 0o700)

    # --- going back ---

    def _roll_back(self) -> None:
        """Put back exactly what was there, except where another program has put something else."""
        moved = self.journal.phase != "preparing"
        if moved:
            self._save(phase="returning")
        self._make_accessible_again()
        staying = []
        if moved and self._stage >= 0:
            for number, step in reversed(list(enumerate(self.journal.steps))):
                if step.kind != "mode" and self._is_done(number, step) and (why := self._move_back(str(number), step)):
                    self.problems.append(why)
                    staying += [str(number)] if step.before else []
                journal.crash_point("step back")
            self._sync_directories()
        self._set_modes({**(self._modes_before() if moved else {}), **self._original_modes()})
        for step in self.journal.steps:
            if step.backup:
                (self._directory / step.backup).unlink(missing_ok=True)
        if moved:
            self._save(phase="returned", staying=tuple(staying), problems=tuple(self.problems))
        self._clean()

    def _modes_before(self) -> Modes:
        modes: Modes = {}
        for step in self.journal.steps:
            if step.kind == "mode" and step.before and step.after:
                about = self._tree.stat(step.path)
                ours = (step.after.mode, step.after.mode | 0o700)
                # Not if another file is there now, nor if another mode was set since.
                if about and identity(about) == step.seen and stat.S_IMODE(about.st_mode) in ours:
                    modes[step.path] = (step.before.mode, None)
        return modes

    def _move_back(self, own: str, step: Step) -> str:
        """Take one step back. Returns why that could not be done; empty if it was."""
        try:
            with self._tree.parent(step.path) as (directory, name):
                about = _stat(name, directory)
                if about is None and step.before is None:
                    return ""  # another program already removed the new file
                if about is not None and identity(about) != step.staged:
                    return self._not_restored(step, own, "something else is there now")
                if step.before is None:
                    if about and stat.S_ISDIR(about.st_mode) and not _is_empty(name, directory):
                        return self._not_restored(step, own, "somebody has put something in it")
                    linux.renameat2(name, own, directory, self._stage, linux.RENAME_NOREPLACE)
                elif about is None:
                    linux.renameat2(own, name, self._stage, directory, linux.RENAME_NOREPLACE)
                else:
                    linux.renameat2(own, name, self._stage, directory, linux.RENAME_EXCHANGE)
        except OSError as error:
            if error.errno not in _CHANGED:
                raise
            return (
                self._not_restored(step, own, "its directory is gone, or somebody has changed it")
                if step.before
                else ""
            )
        return ""

    def _not_restored(self, step: Step, own: str, why: str) -> str:
        place = f"; what it was is {self.journal.stage}/{own}" if step.before else ""
        return f"{shown(step.path)} is not as it was: {why}{place}"

    def _clean(self) -> None:
        """Remove the stage and its content. It is flat: directories are empty when they are moved there."""
        if self._stage >= 0:
            self._remove_stage()
        if "." in self.journal.opened:
            self._chmod(".", self.journal.opened["."])

    def _remove_stage(self) -> None:
        staying = set(self.journal.staying)
        for name in set(os.listdir(self._stage)) - staying:
            try:
                if stat.S_ISDIR(os.stat(name, dir_fd=self._stage, follow_symlinks=False).st_mode):
                    os.rmdir(name, dir_fd=self._stage)
                else:
                    os.unlink(name, dir_fd=self._stage)
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise
                staying.add(name)
                self.problems.append(
                    f"somebody has put something into the directory {self.journal.stage}/{name}, which goes"
                )
            journal.crash_point("cleaned")
        if not staying:
            os.rmdir(self.journal.stage, dir_fd=self._tree.fd)
            files.sync(self._tree.fd)
            journal.crash_point("stage removed")


def _open_project(path: str) -> Tree:
    """Open the project at exactly this path. A link in its place is refused, because it leads elsewhere."""
    tree = Tree(path)
    if tree.path != path or os.readlink(f"/proc/self/fd/{tree.fd}") != path:
        tree.close()
        raise WorkspaceError(
            f"the project {path} is not where it was", why="its path leads through a link now", next="put it back there"
        )
    return tree


def _stat(name: str, directory: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _is_empty(name: str, directory: int) -> bool:
    with closing(os.open(name, files.OPEN_DIRECTORY, dir_fd=directory)) as fd:
        return not os.listdir(fd)


def _difference(before: Version | None, now: Version | None) -> str:
    """Describe how a path has changed; empty if it hasn't."""
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
    return "it leads elsewhere now" if now.kind == "symlink" else "its content has changed"
