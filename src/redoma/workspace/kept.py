"""Changes that wait to be applied, and those that were, each in its own directory under the state directory.

    changes/<id>/manifest    the record and its state
    changes/<id>/new/        contents that the run left, by their SHA-256
    changes/<id>/old/        contents from before the application, by the number of the change
    changes/<id>/journal     while it is being applied or undone
    changes/.new-<id>.…/     while it is being written; the writer holds its lock (flock)

Every operation but `keep` first finishes, or takes back, work that a crash has interrupted. Those that only read don't
do that while another process holds the lock.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from ..lib import files
from ..lib.errors import Conflict, RedomaError, UnknownChanges, WorkspaceError
from ..lib.patterns import lazy_pattern
from ..models import Effect
from ..telemetry import ERROR, WARNING, tell
from . import copying, journal
from .diffs import shown
from .effects import OWN
from .journal import Step
from .plan import choose, steps
from .transaction import RUN_AGAIN, Journal, Transaction, failure

ChangesState = Literal["kept", "partly", "applied", "undone", "discarded", "broken"]

_MANIFEST = "manifest"
_ID = lazy_pattern(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z")
_UNFINISHED = ".new-"
_DAY = 86400.0
DONE_DAYS, WAITING_DAYS = 7, 90
"""How long changes are kept, in days: discarded or undone ones, and all others."""
_MAX_CHECKED = 20
"""How many kept changes are checked for their age whenever new ones are kept."""
_LIST = "see `redoma changes list`"
LOCK_SECONDS = 30.0
"""How long to wait for another process that applies changes."""


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What a run would change, or has changed, and its state."""

    id: str
    effect: Effect
    about: dict[str, Any]
    """Anything that the caller wants to store with it."""
    time: float
    """When it was kept."""
    since: float
    """Since when it is in this state."""
    state: ChangesState = "kept"
    """`partly`: some changes are applied. `broken`: another program interfered; `notes` lists what is not as it should
    be.
    """
    applied: tuple[str, ...] = ()
    """The paths of the changes that are applied."""
    left: dict[str, str] = {}
    """Path → why it was not applied with the others."""
    notes: tuple[str, ...] = ()
    owners: dict[str, tuple[int, int]] = {}
    """User and group of what the project had, for an undo."""
    digest: str = ""
    """The digest of the effect, to detect a damaged record."""


class Changes:
    """The kept changes in one directory. Holds nothing open: any number of threads and processes may share it.

    Every method raises `WorkspaceError` if the directory or the changes can't be used.
    """

    def __init__(self, directory: Path, *, now: Callable[[], float] = time.time) -> None:
        self.directory = directory
        self._now = now

    def keep(self, id: str, effect: Effect, stage: Path, about: dict[str, Any]) -> Kept:  # noqa: A002 - the run's own word
        """Keep an effect under the id of its run, with the contents that `effect_of` has left in the stage.

        It doesn't sync to disk, because every run in an overlay does this, and it should be fast. A power cut may
        damage recent changes; their digests reveal that when they are used, and the project was not touched. Nor does
        it wait for a process that applies changes: that may take long, and a failure would lose the run's work.
        """
        if not _ID.match(id):
            raise WorkspaceError(
                f"{id!r} can't name changes", why="a name has letters, digits, - and _", next="use the id of the run"
            )
        kept = Kept(id=id, effect=effect, about=about, time=self._now(), since=self._now(), digest=effect.digest)
        with self._open_directory(), files.temporary_directory(self.directory, f"{_UNFINISHED}{id}.") as new:
            (new / "new").mkdir(0o700)
            (new / "old").mkdir(0o700)
            versions = (change.after for change in effect.changes)
            for name in {version.sha256 for version in versions if version and version.kind == "file"}:
                self._move_content(stage / name, new / "new" / name)
            journal.save(new / _MANIFEST, kept, durable=False)
            try:
                os.rename(new, self.directory / id)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
                raise WorkspaceError(f"changes {id} are kept already", why="a run ends once", next=_LIST) from error
        self._remove_some_old()
        return kept

    def get(self, id: str) -> Kept:  # noqa: A002
        """Return the changes of one run, named by its id or a prefix of it."""
        with self._locked(wait=False):
            return self._load(self._find(id))

    def list(self) -> tuple[Kept, ...]:
        """Return all kept changes, oldest first. One whose record is damaged is `broken`."""
        with self._locked(wait=False):
            every = []
            for name in self._ids():
                try:
                    every.append(self._load(name))
                except WorkspaceError as error:
                    nothing, notes = Effect(project=""), (str(error),)
                    every.append(Kept(id=name, effect=nothing, about={}, time=0, since=0, state="broken", notes=notes))
            return tuple(sorted(every, key=lambda kept: (kept.time, kept.id)))

    def discard(self, id: str) -> Kept:  # noqa: A002
        """Discard what is not applied. Applied changes stay, and can be undone."""
        with self._locked() as stuck:
            kept = self._load(self._find(id), stuck)
            self._require(kept, "discarded", "kept", "partly", "broken")
            state: ChangesState = "applied" if kept.state == "partly" else "discarded"
            kept = self._save(kept, state=state)
            files.remove_tree(self.directory / kept.id / "new")
            return kept

    def apply(
        self,
        id: str,  # noqa: A002
        paths: Iterable[str] | None = None,
        named: Sequence[str] = (),
        *,
        exact: bool = False,
    ) -> Kept:
        """Apply changes to their project, all of them or none.

        With `paths`, apply only the changes at or below these paths, and the directories that they need; if `exact`,
        only the changes at these paths. Protected paths are left out unless a pattern in `named` matches them. `left`
        and `state` of the returned value say what was left out. Raises `Conflict`, with every path that has changed,
        before anything is touched.
        """
        with self._locked() as stuck:
            kept = self._load(self._find(id), stuck)
            self._require(kept, "applied", "kept", "partly")
            wanted = None if paths is None else tuple(paths)
            numbers, left = choose(kept.effect.changes, kept.applied, wanted, named, exact=exact)
            chosen = [(number, kept.effect.changes[number]) for number in numbers]
            if left and not chosen:
                some = ", ".join(f"{shown(path)} ({why})" for path, why in sorted(left.items())[:20])
                raise WorkspaceError(
                    "there is nothing to apply", why=some, next="name what is to be applied all the same"
                )
            touched = {path for _, change in chosen for path in (change.path, change.old_path)}
            if during := {path: why for path, why in kept.effect.conflicts.items() if path in touched}:
                raise Conflict("nothing was applied, as others worked there, too", during, next=RUN_AGAIN)
            plan = steps(chosen, back=False, owners={})
            return self._transact(kept, "apply", [change.path for _, change in chosen], plan, left)

    def undo(self, id: str) -> Kept:  # noqa: A002
        """Restore exactly the paths that were applied. Raises `Conflict` if one of them has changed since.

        Changes that were applied only in part are all `kept` again: the rest still waits.
        """
        with self._locked() as stuck:
            kept = self._load(self._find(id), stuck)
            self._require(kept, "undone", "partly", "applied")
            changes = [(n, change) for n, change in enumerate(kept.effect.changes) if change.path in set(kept.applied)]
            plan = steps(changes, back=True, owners=kept.owners)
            kept = self._transact(kept, "undo", kept.applied, plan, {})
            if kept.state == "kept":
                for backup in (self.directory / kept.id / "old").iterdir():
                    backup.unlink()
                return kept
            for name in ("new", "old"):
                files.remove_tree(self.directory / kept.id / name)
            return kept

    def recover(self) -> dict[str, str]:
        """Finish, or take back, what a crash has left. Returns id → why that can't be done."""
        with self._locked(recover=False):
            return self._recover()

    def _remove_some_old(self) -> None:
        """Remove old changes. Checks only a few random ones: that is fast however many there are, and each is checked
        eventually. Does nothing if another process holds the lock.
        """
        # A failure to remove old changes is not a failure of the run, whose changes are already kept.
        with contextlib.suppress(OSError, WorkspaceError), self._open_directory() as directory:
            with _lock(directory, wait=False) as held:
                names = self._ids() if held else ()
                for name in random.sample(names, min(_MAX_CHECKED, len(names))):
                    if self._is_old(name):
                        self._remove(name)

    def _is_old(self, name: str) -> bool:
        place = self.directory / name
        try:
            written = (place / _MANIFEST).stat().st_mtime
        except FileNotFoundError:
            written = place.stat().st_mtime
        # Check the file's time first: most are recent, and a record with many diffs is slow to read.
        if written > self._now() - DONE_DAYS * _DAY or (place / journal.NAME).exists():
            return False
        try:
            kept = self._load(name)
        except WorkspaceError:  # damaged and useless, but kept for a while so that a person can look at it
            return written < self._now() - WAITING_DAYS * _DAY
        days = DONE_DAYS if kept.state in ("discarded", "undone") else WAITING_DAYS
        return kept.since < self._now() - days * _DAY

    def _remove(self, name: str) -> None:
        """Remove changes. Renames them first, so that the next sweep removes what a crash leaves."""
        gone = self.directory / f"{_UNFINISHED}{name}.{secrets.token_hex(8)}"
        os.rename(self.directory / name, gone)
        files.remove_tree(gone)

    # --- shared ---

    @contextlib.contextmanager
    def _locked(self, *, wait: bool = True, recover: bool = True) -> Iterator[dict[str, str]]:
        """Hold the lock, and recover from a crash. Yields what can't be recovered, like `recover`. Without `wait`, for
        callers that only read, neither is done while another process holds the lock.
        """
        with self._open_directory() as directory, _lock(directory, wait=wait) as held:
            yield self._recover() if held and recover else {}

    @contextlib.contextmanager
    def _open_directory(self) -> Iterator[int]:
        try:
            directory = files.open_own_directory(self.directory, holds="changes to keep", error=WorkspaceError)
        except OSError as error:
            raise failure(f"changes can't be kept in {self.directory}", error) from error
        try:
            yield directory
        except OSError as error:
            raise failure(f"the changes kept in {self.directory} can't be used", error) from error
        finally:
            os.close(directory)

    def _recover(self) -> dict[str, str]:
        files.sweep(self.directory, _UNFINISHED)
        stuck = {}
        for name in self._ids():
            try:
                self._recover_one(name)
            except (RedomaError, OSError, ValueError) as error:
                tell(ERROR, "effect.broken", run=name, error=type(error).__name__)
                stuck[name] = f"it can't be finished nor taken back: {error}"
        return stuck

    def _recover_one(self, name: str) -> None:
        try:
            plan = journal.load(self.directory / name / journal.NAME, Journal)
        except FileNotFoundError:
            return  # no operation was in progress
        with Transaction(self.directory / name, plan) as work:
            work.resume()
            self._finish(self._load(name), work)
        tell(WARNING, "effect.recovered", run=name, action=plan.action, phase=work.journal.phase)

    def _transact(
        self,
        kept: Kept,
        action: Literal["apply", "undo"],
        paths: Iterable[str],
        plan: tuple[Step, ...],
        left: dict[str, str],
    ) -> Kept:
        new = Journal(
            action=action,
            project=kept.effect.project,
            stage=f"{OWN}{kept.id}",
            paths=tuple(paths),
            steps=plan,
            left=left,
        )
        with Transaction(self.directory / kept.id, new) as work:
            try:
                work.run()
            except BaseException:
                if work.journal.phase in ("preparing", "returned"):
                    self._finish(kept, work)
                raise
            return self._finish(kept, work)

    def _finish(self, kept: Kept, work: Transaction) -> Kept:
        """Write the new state of the changes to their record, then remove the journal."""
        plan, notes = work.journal, (*kept.notes, *work.problems)
        if plan.phase != "done":
            if work.problems:
                kept = self._save(kept, state="broken", notes=notes)
        elif plan.action == "undo":
            # It is `kept` if a crash came after this was written.
            state: ChangesState = "kept" if kept.state in ("partly", "kept") else "undone"
            kept = self._save(kept, state=state, notes=notes, applied=(), left={})
        else:
            applied = tuple(sorted({*kept.applied, *plan.paths}))
            state = "applied" if len(applied) == len(kept.effect.changes) else "partly"
            owners = {**kept.owners, **plan.owners}
            kept = self._save(kept, state=state, notes=notes, applied=applied, owners=owners, left=plan.left)
        journal.crash_point("manifest written")
        journal.remove(self.directory / kept.id)
        return kept

    def _save(self, kept: Kept, **fields: Any) -> Kept:
        kept = msgspec.structs.replace(kept, since=self._now(), **fields)
        journal.save(self.directory / kept.id / _MANIFEST, kept)
        return kept

    def _move_content(self, source: Path, target: Path) -> None:
        """Move a content from the stage. It is copied instead if others might still write to the file, or if it is on
        another file system.
        """
        try:
            number = files.open_regular(source)
        except FileNotFoundError as error:
            raise WorkspaceError(
                "the changes can't be kept", why=f"the content {source.name} is not in the stage", next="run it again"
            ) from error
        with files.closing(number):
            about = os.fstat(number)
            ours = about.st_uid == os.geteuid() and about.st_nlink == 1
            if ours and about.st_dev == os.stat(target.parent).st_dev:
                os.fchmod(number, 0o600)
                os.rename(source, target)
                return
            with files.closing(os.open(target, files.NEW_FILE, 0o600)) as new:
                copying.copy(number, new)

    def _ids(self) -> tuple[str, ...]:
        return tuple(name for name in os.listdir(self.directory) if _ID.match(name) and name != "lock")

    def _find(self, id: str) -> str:  # noqa: A002
        matching = [name for name in self._ids() if id and name.startswith(id)]
        if id in matching:
            return id
        if len(matching) != 1:
            why = "several begin like that" if matching else "nothing is kept under that name"
            raise UnknownChanges(f"there are no changes {id!r}", why=why, next=_LIST)
        return matching[0]

    def _load(self, name: str, stuck: dict[str, str] | None = None) -> Kept:
        if stuck and name in stuck:
            raise WorkspaceError(
                f"the changes {name} were interrupted",
                why=stuck[name],
                next="fix that; whatever uses the changes next tries again",
            )
        try:
            kept = journal.load(self.directory / name / _MANIFEST, Kept)
            if kept.id != name or kept.digest != kept.effect.digest:
                raise ValueError("it is not what was written")
        except (OSError, ValueError) as error:
            raise WorkspaceError(
                f"the record of the changes {name} is damaged",
                why=str(error),
                next=f"what is left of them is in {self.directory / name}",
            ) from error
        return kept

    def _require(self, kept: Kept, done: str, *states: ChangesState) -> None:
        """Raise `WorkspaceError` unless the changes are in one of these states."""
        if kept.state not in states:
            since = time.strftime("%F %T", time.localtime(kept.since))
            why = {"kept": "they were not applied", "partly": "a part of them is applied"}.get(
                kept.state, f"they are {kept.state} since {since}"
            )
            why += f" ({'; '.join(kept.notes)})" if kept.notes else ""
            raise WorkspaceError(f"the changes {kept.id} can't be {done}", why=why, next=_LIST)


@contextlib.contextmanager
def _lock(directory: int, *, wait: bool) -> Iterator[bool]:
    """Hold the lock of the kept changes; yield whether it is held. With `wait`, raises a `WorkspaceError` that names
    the holder if it takes too long.
    """
    number = os.open("lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=directory)
    with files.closing(number), files.locked(number, seconds=LOCK_SECONDS if wait else 0.0) as held:
        if held:
            os.pwrite(number, f"{os.getpid():<31}\n".encode(), 0)
        elif wait:
            holder = os.pread(number, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise WorkspaceError(
                "the kept changes are locked",
                why=f"process {holder} has held them for more than {LOCK_SECONDS:.0f} s",
                next="wait for it, or look whether it is stopped (ps, state T) and continue or end it",
            )
        yield held
