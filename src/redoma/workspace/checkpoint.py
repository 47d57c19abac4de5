"""Checkpoints: the state of a project before a run that works in it directly, to roll back to if the run fails.

    <directory>/locks/KEY        held while a checkpoint is in use; KEY is a hash of the project's path
    <directory>/KEY/contents     the contents of the files
    <directory>/KEY/manifest     the list of paths (see `snapshot`). Written last and removed first: without it, the
                                 rest is garbage of a checkpoint that was never finished or is no longer needed
    <directory>/KEY/spare        reserved disk space for the journal, because the run may have filled the disk
    <directory>/KEY/journal      what a restore is about to do (see `restore`), while it does

Every difference from the checkpoint counts as done by the run: there is no way to tell who wrote a file. So while a run
works in a project, no other run may work in it, in a directory above it or in one below it. If Redoma is killed during
a run, nothing is rolled back automatically: the checkpoint waits for a person's decision, because people may have gone
on working. If Redoma is killed during a restore, `recover` finishes that restore.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from ..backends import linux
from ..backends.base import uncancellable
from ..lib import files
from ..lib.errors import BackendError, InvalidRequest
from ..lib.files import remove_tree
from ..models import Effect
from ..telemetry import WARNING, tell
from . import journal
from .restore import Restored, RestorePlan, Restorer, WritableTree, make_plan
from .snapshot import Bounds, Comparison, Contents, ProjectTree, Snapshot, record
from .tree import Tree

S = TypeVar("S", bound=msgspec.Struct)

_SPARE = 1024 * 1024
"""Bytes reserved for the journal of a restore, in addition to the size of the manifest."""


class Checkpoint:
    """A checkpoint in use. It excludes other checkpoints of this project, and of any directory above or below it.

    End it with `clear`, or with `close`, which keeps it on disk.
    """

    def __init__(self, directory: Path, project: str) -> None:
        """Use `take` or `load` instead."""
        self.project = project
        self._place = directory / _key(project)
        self._root = -1
        self._locks = _lock_project(directory, project)
        try:
            self._above, self._name = _parent(project)
        except BaseException:
            self._above = -1
            self.close()
            raise

    @classmethod
    def take(
        cls,
        tree: Tree,
        directory: Path,
        bounds: Bounds | None = None,
        *,
        paths: Iterable[str] = (),
        exclude: Iterable[str | os.PathLike[str]] = (),
    ) -> Checkpoint:
        """Take a checkpoint of a whole project, or of the `paths` in it that a run may write.

        `directory` is where checkpoints are stored, a private one in the state directory. If it or one of the
        directories in `exclude` is in the project, it is left out: Redoma's own records change during a run. Raises
        `Busy`, `TooLarge`, and `BackendError` if there is an earlier checkpoint with changes, or if the checkpoint
        can't be written.
        """
        scope, skipped = _scope(paths), _paths_inside(tree.path, [directory, *exclude])
        with _reporting(f"there is no checkpoint of {tree.path}"):
            os.close(files.open_own_directory(directory, holds="checkpoints", error=BackendError))
            (directory / "locks").mkdir(0o700, exist_ok=True)
            checkpoint = cls(directory, tree.path)
            try:
                checkpoint._require_no_earlier_one()
                checkpoint._record(tree, bounds or Bounds(), scope, skipped)
            except BaseException:
                checkpoint.close()
                raise
        return checkpoint

    @classmethod
    def load(cls, directory: Path, project: str) -> Checkpoint | None:
        """Return the checkpoint that was kept of a project; None if there is none. Raises `Busy` and `BackendError`."""
        with _reporting(f"the checkpoint of {project} can't be used"):
            if not (directory / _key(project) / "manifest").exists():
                return None
            checkpoint = cls(directory, project)
            try:
                checkpoint._read_files()
            except BaseException:
                checkpoint.close()
                raise
            return checkpoint

    @property
    def left(self) -> dict[str, str]:
        """Path → why it can't be restored if the run changes it. For a directory, that includes its content."""
        return {item.path: item.unkept for item in self.snapshot.items if item.unkept}

    @property
    def taken(self) -> float:
        """When it was taken, in seconds since the epoch."""
        return self.snapshot.taken / 1e9

    def effect(self) -> Effect:
        """Return the differences between the project and the checkpoint; what can't be read is `refused`. Changes
        nothing.
        """
        with _reporting(f"{self.project} can't be compared with its checkpoint"):
            descriptor = self._open_project()
            if descriptor is None:  # the project is gone, or its path is no longer a directory
                descriptor = os.open(self._place / "empty", files.OPEN_DIRECTORY)
            with ProjectTree(self.project, descriptor) as tree:
                return Comparison(tree, self.snapshot, self._contents).effect()

    def restore(self) -> Restored:
        """Restore everything that differs. If that fails for one path, the others are still restored."""
        with _reporting(f"{self.project} can't be put back"):
            paths: set[str] = set()
            for _ in range(2):  # a directory that was not empty can be removed once its content was moved back
                descriptor = self._open_project() or self._make_root()
                if isinstance(descriptor, str):
                    return Restored(failed={".": descriptor})
                with WritableTree(self.project, descriptor, self.snapshot) as tree:
                    comparison = Comparison(tree, self.snapshot, self._contents)
                    plan, so_far = make_plan(comparison)
                    (self._place / "spare").unlink(missing_ok=True)
                    journal.save(self._place / journal.NAME, plan)
                    journal.crash_point("journal restoring")
                    restored = self._carry_out(comparison, plan, so_far)
                paths.update(restored.paths)
                if not restored.failed:
                    break
            return msgspec.structs.replace(restored, paths=tuple(sorted(paths - restored.failed.keys())))

    def _carry_out(self, comparison: Comparison, plan: RestorePlan, so_far: Restored) -> Restored:
        if isinstance(comparison.tree, WritableTree):
            comparison.tree.rights = 0o700
        restored = Restorer(comparison, plan, so_far).run()
        journal.remove(self._place)
        return restored

    def resume(self) -> Restored | None:
        """Finish an interrupted restore, except for paths that have changed since. Returns None if there was none."""
        with _reporting(f"the restore of {self.project} can't be finished"):
            try:
                plan = _load(self._place / journal.NAME, RestorePlan)
            except FileNotFoundError:
                return None
            descriptor = self._open_project()
            if descriptor is None or os.fstat(descriptor).st_ino != plan.root:
                if descriptor is not None:
                    os.close(descriptor)
                return Restored(failed={".": "another directory is in the place of the project now"})
            with WritableTree(self.project, descriptor, self.snapshot) as tree:
                return self._carry_out(Comparison(tree, self.snapshot, self._contents), plan, Restored())

    def clear(self) -> None:
        """Remove the checkpoint."""
        with _reporting(f"the checkpoint of {self.project} can't be removed"):
            (self._place / "manifest").unlink(missing_ok=True)
            remove_tree(self._place)
        self.close()

    def close(self) -> None:
        """Release the project, and keep the checkpoint."""
        if hasattr(self, "_contents"):
            os.close(self._contents.fd)
            del self._contents
        for descriptor in (self._above, self._root):
            if descriptor >= 0:
                os.close(descriptor)
        self._above = self._root = -1
        self._locks.close()

    def _require_no_earlier_one(self) -> None:
        if not (self._place / "manifest").exists():
            return
        self._read_files()
        if (self._place / journal.NAME).exists() or self.effect() != Effect(project=self.project):
            raise BackendError(
                f"there is an earlier checkpoint of {self.project}",
                why="a run that was to be rolled back was cut short, or could not be rolled back completely",
                next="look at what it changed, then `redoma checkpoints restore` or `redoma checkpoints drop` it",
            )
        os.close(self._contents.fd)
        del self._contents

    def _record(self, tree: Tree, bounds: Bounds, scope: tuple[str, ...], skipped: tuple[str, ...]) -> None:
        remove_tree(self._place)
        self._place.mkdir(mode=0o700)
        (self._place / "empty").mkdir(mode=0o700)
        self._contents = Contents(os.open(self._place / "contents", files.NEW_FILE, 0o600))
        self._root = os.dup(tree.fd)
        try:
            with ProjectTree(tree.path, os.dup(tree.fd)) as project:
                self.snapshot = record(project, self._contents, bounds, scope, skipped)
            os.fsync(self._contents.fd)
            manifest = journal.encode(self.snapshot)
            _reserve(self._place / "spare", _SPARE + len(manifest))
            files.replace(self._place / "manifest", manifest)
        except BaseException:
            remove_tree(self._place)
            raise

    def _read_files(self) -> None:
        self.snapshot = _load(self._place / "manifest", Snapshot)
        if self.snapshot.project != self.project:
            raise BackendError(f"{self._place} is damaged", why="it is of another project", next="remove it")
        self._contents = Contents(files.open_regular(self._place / "contents"))

    def _stat_project(self) -> os.stat_result | None:
        """Return the stat of the project's path; None if nothing is there."""
        if not self._name:
            return os.fstat(self._above)
        try:
            return os.stat(self._name, dir_fd=self._above, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def _open_project(self) -> int | None:
        """Return a descriptor of the directory that is the project now: the original one, or one that the run created
        in its place. None if there is neither.
        """
        now = self._stat_project()
        if now is None or not stat.S_ISDIR(now.st_mode):
            return None
        # Use the open descriptor, because its mode may forbid opening it now.
        if self._root >= 0 and os.path.samestat(os.fstat(self._root), now):
            return os.dup(self._root)
        if now.st_ino != self.snapshot.items[0].inode and self._is_older():
            return None
        return os.open(self._name or ".", files.OPEN_DIRECTORY, dir_fd=self._above)

    def _is_older(self) -> bool:
        """Return whether what is at the project's path is older than the checkpoint, so the run didn't create it."""
        born = linux.born(self._above, self._name)
        return born is not None and born < self.snapshot.taken

    def _make_root(self) -> int | str:
        """Create the project's directory again and open it; or return why that can't be done."""
        now = self._stat_project()
        if now is not None:
            if stat.S_ISDIR(now.st_mode) or self._is_older():
                return "the run has moved something from elsewhere to the place of the project; move it away first"
            os.unlink(self._name, dir_fd=self._above)
        os.mkdir(self._name, 0o700, dir_fd=self._above)
        return os.open(self._name, files.OPEN_DIRECTORY, dir_fd=self._above)


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """What `recover` found for one project."""

    project: str
    """The project; if its checkpoint can't be read, the path of the checkpoint."""
    state: Literal["restored", "incomplete", "waiting", "unusable"]
    """`restored`: a restore was finished. `incomplete`: it could not be finished. `waiting`: a run was interrupted, and
    a person must decide whether its changes stay (`Checkpoint.load`, then `clear`) or go (`restore`, `clear`).
    `unusable`: the checkpoint can't be used.
    """
    taken: float = 0.0
    restored: Restored = Restored()
    why: str = ""


def recover(directory: Path) -> tuple[Recovered, ...]:
    """Finish restores that a crash has interrupted, and return what was found. Checkpoints in use are left alone; those
    without changes are removed.
    """
    projects: list[Recovered] = []
    if not directory.is_dir():
        return ()
    for place in sorted(directory.iterdir()):
        if place.name == "locks":
            continue
        project = str(place)
        try:
            project = _load(place / "manifest", Snapshot).project
            checkpoint = Checkpoint.load(directory, project)
            if checkpoint is not None and (recovered := _recover(checkpoint)) is not None:
                projects.append(recovered)
        except FileNotFoundError:
            with suppress(Busy), _lock(directory, place.name):  # an unfinished checkpoint
                remove_tree(place)
        except Busy:
            continue
        except BackendError as error:  # continue with the others
            projects.append(Recovered(project=project, state="unusable", why=str(error)))
    for one in projects:
        tell(WARNING, "checkpoint.found", project=one.project, state=one.state)
    return tuple(projects)


def _recover(checkpoint: Checkpoint) -> Recovered | None:
    """Finish the interrupted restore of a checkpoint. Returns None, and removes it, if there is nothing to restore."""
    about: dict[str, Any] = {"project": checkpoint.project, "taken": checkpoint.taken}
    with contextlib.closing(checkpoint):
        restored = checkpoint.resume()
        if restored is None and checkpoint.effect() != Effect(project=checkpoint.project):
            return Recovered(**about, state="waiting")
        if restored is not None and restored.failed:
            return Recovered(**about, state="incomplete", restored=restored)
        checkpoint.clear()
        return None if restored is None else Recovered(**about, state="restored", restored=restored)


class Guard:
    """What `guarded` yields. The block sets `succeeded`; `effect` and `restored` are set when the block has ended."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.succeeded = False
        """Set by the block. If it isn't set, the block has failed, however it ended, and the project is rolled back."""
        self.effect: Effect | None = None
        """What was done to the project, whether it stayed or was rolled back."""
        self.restored: Restored | None = None
        """The result of rolling back, if that was done."""

    def _end(self) -> None:
        try:
            self.effect = self.checkpoint.effect()
            if not self.succeeded:
                self.restored = self.checkpoint.restore()
            if self.restored is None or not self.restored.failed:
                self.checkpoint.clear()
        finally:
            self.checkpoint.close()  # keep the checkpoint: it may have the only copy of what could not be restored


@asynccontextmanager
async def guarded(
    tree: Tree, directory: Path, *, exclude: Iterable[str | os.PathLike[str]] = ()
) -> AsyncIterator[Guard]:
    """Hold a checkpoint of a whole project for the length of a block. Unless the block sets `succeeded`, the project is
    rolled back at its end. After an exception or a cancellation it is rolled back first, and then the exception is
    raised.
    """
    taking = asyncio.create_task(asyncio.to_thread(Checkpoint.take, tree, directory, exclude=exclude))
    try:
        await uncancellable(taking)
    except asyncio.CancelledError:
        if taking.exception() is None:
            await uncancellable(asyncio.to_thread(taking.result().clear))
        raise
    guard = Guard(taking.result())
    try:
        yield guard
    finally:
        await uncancellable(asyncio.to_thread(guard._end))


class Busy(BackendError):
    """Another run with a checkpoint works in the project, above it or below it."""


def _key(project: str) -> str:
    return hashlib.sha256(os.fsencode(project)).hexdigest()[:32]


def _parent(project: str) -> tuple[int, str]:
    """Open the directory above a project, so that changes of its path no longer matter. Returns the descriptor and the
    project's name. Raises `BackendError` if the path leads through a link.
    """
    above, name = os.path.split(project)
    if os.path.realpath(above) != above:
        raise BackendError(
            f"{project} is not where it was", why=f"{above} leads elsewhere by now", next="put that back first"
        )
    return os.open(above, files.OPEN_DIRECTORY), name


@contextmanager
def _lock(directory: Path, key: str, *, shared: bool = False) -> Iterator[None]:
    """Hold the lock of a project, named by its key, for the length of the block. Raises `Busy` if another process has
    it.
    """
    lock = files.open_regular(directory / "locks" / key, os.O_RDWR | os.O_CREAT)
    with files.closing(lock), files.locked(lock, shared=shared) as is_ours:
        if not is_ours:
            raise Busy(
                "the project is in use",
                why="another run with a checkpoint works in it, in a directory above it or in one below it",
                next="wait for that to end, or run this in an overlay",
            )
        yield


def _lock_project(directory: Path, project: str) -> ExitStack:
    """Hold the exclusive lock of a project, and shared locks of all directories above it. The caller closes the
    result.
    """
    with ExitStack() as locks:
        for path in (*map(str, reversed(Path(project).parents)), project):
            locks.enter_context(_lock(directory, _key(path), shared=path != project))
        return locks.pop_all()


def _scope(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the paths, without those below others; one empty path if there are none. Raises `InvalidRequest`."""
    named = sorted({path.rstrip("/") for path in paths})
    for path in named:
        if not path or "\0" in path or {"", ".", ".."} & set(path.split("/")):
            raise InvalidRequest(
                f"{path!r} can't be checkpointed", why="it does not lead down from the project", next="use a/path/in/it"
            )
    return tuple(path for path in named if not any(path.startswith(f"{other}/") for other in named)) or ("",)


def _paths_inside(project: str, own: Iterable[str | os.PathLike[str]]) -> tuple[str, ...]:
    """Return those of our own directories that are in the project, as paths relative to it."""
    real = (os.path.realpath(path) for path in own)
    within = os.path.join(project, "")
    return tuple(sorted({path.removeprefix(within) for path in real if path.startswith(within)}))


def _reserve(file: Path, size: int) -> None:
    """Create a file with allocated blocks. It is removed before a restore, to free space if the disk is full."""
    number = os.open(file, files.NEW_FILE, 0o600)
    with open(number, "wb") as stream:
        try:
            os.posix_fallocate(number, 0, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
            stream.write(bytes(size))  # this file system can't reserve blocks


def _load(file: Path, kind: type[S]) -> S:
    try:
        return journal.load(file, kind)
    except ValueError as error:
        raise BackendError(
            f"the checkpoint {file.parent} is damaged", why=str(error), next="remove it, if it isn't needed"
        ) from error


@contextmanager
def _reporting(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = f"{error.filename or ''} {files.reason(error)}".strip()
        raise BackendError(what, why=why, next=files.advice(error)) from error
