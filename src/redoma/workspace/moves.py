"""Making changes happen to a project, all or nothing, whatever happens meanwhile.

First everything is looked at, and nothing is touched if one path is not as it has to be. Then all that comes is written
into a directory of ours inside the project, `.redoma-…`, and what goes is copied to where changes are kept; both are on
the disk before the journal says `committed`. From there on there are only renames between that directory and the places
of the files: what comes is moved out of it, what goes is moved into it, and one that replaces another changes places
with it. So no file is ever half written or missing; whether a step was done can be seen from what lies in our
directory; and the way back is the same renames the other way round, which puts back the very files that were there.

What a rename has brought in is compared with what had been looked at: whoever changed a file at the last moment finds
it again, and the application goes back. Paths are resolved by the kernel, beneath the project and without links, for
every single step; so a directory that is exchanged for a link meanwhile makes the step fail, not write elsewhere.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any, Self

import msgspec

from ..backends import linux
from ..lib.errors import Conflict, WorkspaceError
from . import journal, private
from .diffs import shown
from .journal import Journal, Thing, thing
from .plan import Step, is_directory
from .tree import BENEATH, Tree

RUN_AGAIN = "look at what is there now, and run it again"
NO_WAY = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""What the kernel says where a directory on the way is gone, or is none."""


def open_project(path: str) -> Tree:
    """The directory itself under exactly this path: a link that stands in its place now leads elsewhere."""
    tree = Tree(path)
    if tree.path != path or os.readlink(f"/proc/self/fd/{tree.fd}") != path:
        tree.close()
        raise WorkspaceError(
            f"the project {path} is not where it was", why="its path leads through a link now", next="put it back there"
        )
    return tree


def depth(path: str) -> int:
    return -1 if path == "." else path.count("/")


class Moves:
    """The renames of one application or undo, forward and back. All that they need is on the disk."""

    def __init__(self, directory: Path, plan: Journal, *, durable: bool) -> None:
        """`directory` is where the changes are kept, and the journal."""
        self.journal = plan
        self._directory, self._durable = directory, durable
        self._by_path = {step.path: step for step in plan.steps}
        self._stage = -1
        self.problems = list(plan.problems)
        """What could not be left as it should be, because somebody else was there."""
        self._tree = open_project(plan.project)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._stage >= 0:
            os.close(self._stage)
        self._tree.close()

    def resume(self) -> None:
        """Go on, or back, from where a crash has left it. Afterwards the phase says which."""
        self._open_top()
        self._find_stage()
        if self.journal.phase == "committed":
            try:
                self._reopen()
                self._carry_out()
            except (Conflict, OSError):  # somebody was there first: then it has not happened
                self._take_back()
                return
        if self.journal.phase in ("done", "returned"):
            self._clean()
        else:
            self._take_back()

    def _note(self, **news: Any) -> None:
        new = msgspec.structs.replace(self.journal, **news)
        journal.write(self._directory, new, durable=self._durable)
        self.journal = new

    def _find_stage(self) -> None:
        try:
            number = linux.openat2(
                self._tree.fd,
                self.journal.stage,
                os.O_RDONLY | os.O_DIRECTORY,
                resolve=BENEATH | linux.RESOLVE_NO_XDEV,
            )
        except OSError as error:
            # Where we had not even let ourselves in, we have made nothing either.
            outside = error.errno == errno.EACCES and self.journal.phase == "preparing" and not self.journal.opened
            if (error.errno not in NO_WAY and not outside) or self.journal.phase == "committed":
                raise
            return  # it was not made yet, or it is gone already
        about = os.fstat(number)
        if about.st_uid != os.geteuid() or self.journal.stage_inode not in (0, about.st_ino):
            os.close(number)
            raise WorkspaceError(
                f"{self.journal.stage} in {self._tree.path} is not the directory that Redoma made",
                why="somebody has put another one there",
                next="find the first one and put it back",
            )
        self._stage = number

    # --- the renames ---

    def _carry_out(self) -> None:
        for number, step in enumerate(self.journal.steps):
            if step.kind != "mode" and not self._is_done(number):
                self._move(number, step)
                journal.at(f"step {step.kind}")
        self._sync_directories()
        self._set_modes(self._modes())
        self._note(phase="done")

    def _is_done(self, number: int) -> bool:
        about = self._staged(number)
        match self.journal.steps[number].kind:
            case "add":
                return about is None
            case "remove":
                return about is not None
        return about is not None and thing(about) != self.journal.marks[number].staged

    def _staged(self, number: int) -> os.stat_result | None:
        try:
            return os.stat(str(number), dir_fd=self._stage, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def _move(self, number: int, step: Step) -> None:
        mark, own = self.journal.marks[number], str(number)
        try:
            with self._tree.parent(step.path) as (directory, name):
                if step.before is not None:
                    self._require(step, mark.there, os.stat(name, dir_fd=directory, follow_symlinks=False))
                if step.kind == "add":
                    linux.renameat2(own, name, self._stage, directory, linux.RENAME_NOREPLACE)
                elif step.kind == "remove":
                    linux.renameat2(name, own, directory, self._stage, linux.RENAME_NOREPLACE)
                else:
                    linux.renameat2(own, name, self._stage, directory, linux.RENAME_EXCHANGE)
        except OSError as error:
            if error.errno in (*NO_WAY, errno.EEXIST, errno.EXDEV):
                raise self._in_the_way(step.path) from error
            raise
        if step.before is not None:  # what we have brought in may be another one than a moment ago
            about = os.stat(own, dir_fd=self._stage, follow_symlinks=False)
            self._require(step, mark.there, about)
            if stat.S_ISDIR(about.st_mode) and not _is_empty(own, self._stage):
                raise self._in_the_way(step.path)

    def _require(self, step: Step, expected: Thing | None, about: os.stat_result) -> None:
        if thing(about) != expected:
            raise self._in_the_way(step.path)

    def _in_the_way(self, path: str) -> Conflict:
        return Conflict("nothing was changed", {path: "somebody changed it at this moment"}, next=RUN_AGAIN)

    def _sync_directories(self) -> None:
        if not self._durable:
            return
        os.fsync(self._stage)
        for path in {step.path.rpartition("/")[0] for step in self.journal.steps}:
            try:
                number = self._tree.directory(path or ".")
            except OSError as error:
                if error.errno not in NO_WAY:
                    raise
                continue  # it is gone as well
            os.fsync(number)
            os.close(number)

    # --- modes: last, since they may shut a directory ---

    def _modes(self) -> dict[str, tuple[int, Thing | None]]:
        """What is to be set in the end, and of what (None for whatever it is): modes that change, and those of what was
        opened, or made open, for the time."""
        modes = self._modes_of_opened()
        for path in self._by_path:
            modes.pop(path, None)
        for step, mark in zip(self.journal.steps, self.journal.marks, strict=True):
            if step.after is None or step.after.kind == "symlink":
                continue
            if step.kind == "mode":
                modes[step.path] = (step.after.mode, mark.there)
            elif is_directory(step.after) and step.after.mode & 0o700 != 0o700:
                modes[step.path] = (step.after.mode, mark.staged)
        return modes

    def _set_modes(self, modes: dict[str, tuple[int, Thing | None]]) -> None:
        for path in sorted(modes, key=depth, reverse=True):
            self._chmod(path, *modes[path])
            journal.at("mode set")

    def _chmod(self, path: str, mode: int, expected: Thing | None = None) -> None:
        """Of what is there, never of what a link leads to."""
        if path == ".":  # which is open, and may be shut to everything but this
            os.fchmod(self._tree.fd, mode)
            return
        try:
            pin = linux.openat2(self._tree.fd, path, os.O_PATH | os.O_NOFOLLOW, resolve=BENEATH)
        except OSError as error:
            if error.errno not in NO_WAY:
                raise
            if expected:
                raise self._in_the_way(path) from error
            return  # what isn't there any more needs none
        try:
            about = os.fstat(pin)
            if expected and thing(about) != expected:
                raise self._in_the_way(path)
            if not stat.S_ISLNK(about.st_mode) and stat.S_IMODE(about.st_mode) != mode:
                os.chmod(f"/proc/self/fd/{pin}", mode)
        finally:
            os.close(pin)

    def _modes_of_opened(self) -> dict[str, tuple[int, Thing | None]]:
        """But for the project itself: our own directory has yet to be removed from it."""
        return {path: (mode, None) for path, mode in self.journal.opened.items() if path != "."}

    def _open_top(self) -> None:
        if "." in self.journal.opened:
            self._chmod(".", self.journal.opened["."] | 0o700)

    def _reopen(self) -> None:
        """What was open before the crash may be shut again, for those who aren't root."""
        if os.geteuid() == 0:
            return
        modes = self._modes() if self.journal.marks else {}
        for path in sorted({*self.journal.opened, *modes}, key=depth):
            about = os.fstat(self._tree.fd) if path == "." else self._tree.stat(path)
            if about and stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid():
                self._chmod(path, stat.S_IMODE(about.st_mode) | 0o700)

    # --- the way back ---

    def _take_back(self) -> None:
        """Put back exactly what was there, but for where somebody else is now."""
        moved = self.journal.phase != "preparing"
        if moved:
            self._note(phase="returning")
        self._reopen()
        staying = []
        if moved and self._stage >= 0:
            for number, step in reversed(list(enumerate(self.journal.steps))):
                if step.kind != "mode" and self._is_done(number) and (why := self._move_back(number, step)):
                    self.problems.append(why)
                    staying += [str(number)] if step.before else []
                journal.at("step back")
            self._sync_directories()
        self._set_modes({**(self._modes_back() if moved else {}), **self._modes_of_opened()})
        for step in self.journal.steps:
            if step.backup:
                (self._directory / step.backup).unlink(missing_ok=True)
        if moved:
            self._note(phase="returned", staying=tuple(staying), problems=tuple(self.problems))
        self._clean()

    def _modes_back(self) -> dict[str, tuple[int, Thing | None]]:
        modes: dict[str, tuple[int, Thing | None]] = {}
        for number, step in enumerate(self.journal.steps):
            if step.kind == "mode" and step.before and step.after:
                about = self._tree.stat(step.path)
                ours = (step.after.mode, step.after.mode | 0o700)
                # Neither of another file that stands there now, nor what somebody has set since.
                if about and thing(about) == self.journal.marks[number].there and stat.S_IMODE(about.st_mode) in ours:
                    modes[step.path] = (step.before.mode, None)
        return modes

    def _move_back(self, number: int, step: Step) -> str:
        mark, own = self.journal.marks[number], str(number)
        try:
            with self._tree.parent(step.path) as (directory, name):
                try:
                    about = os.stat(name, dir_fd=directory, follow_symlinks=False)
                except FileNotFoundError:
                    about = None
                if about is None and step.before is None:
                    return ""  # somebody has removed what was new: that is where we are going
                if about is not None and thing(about) != mark.staged:
                    return self._left(step, own, "something else is there now")
                if step.before is None:
                    if about and stat.S_ISDIR(about.st_mode) and not _is_empty(name, directory):
                        return self._left(step, own, "somebody has put something in it")
                    linux.renameat2(name, own, directory, self._stage, linux.RENAME_NOREPLACE)
                elif about is None:
                    linux.renameat2(own, name, self._stage, directory, linux.RENAME_NOREPLACE)
                else:
                    linux.renameat2(own, name, self._stage, directory, linux.RENAME_EXCHANGE)
        except OSError as error:
            if error.errno not in (*NO_WAY, errno.EEXIST, errno.EXDEV):
                raise
            return self._left(step, own, "its directory is gone, or somebody has changed it") if step.before else ""
        return ""

    def _left(self, step: Step, own: str, why: str) -> str:
        place = f"; what it was is {self.journal.stage}/{own}" if step.before else ""
        return f"{shown(step.path)} is not as it was: {why}{place}"

    def _clean(self) -> None:
        """Remove our directory, with what was moved into it. All in it is flat: directories came in empty."""
        if self._stage >= 0:
            self._clear_stage()
        if "." in self.journal.opened:
            self._chmod(".", self.journal.opened["."])

    def _clear_stage(self) -> None:
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
            journal.at("cleaned")
        if not staying:
            os.rmdir(self.journal.stage, dir_fd=self._tree.fd)
            private.sync(self._tree.fd, durable=self._durable)
            journal.at("stage removed")


def _is_empty(name: str, directory: int) -> bool:
    number = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        return not os.listdir(number)
    finally:
        os.close(number)
