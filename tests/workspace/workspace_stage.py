"""Helpers for the tests of workspaces: projects as plain directories, runs that are simulated by changing a copy, and
what an overlay would contain after such a run.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from redoma.backends.base import OverlayEntry
from redoma.models import Effect
from redoma.workspace.effects import effect_of
from redoma.workspace.kept import Changes, Kept
from redoma.workspace.tree import Tree

NOBODY = 65433


@contextlib.contextmanager
def fast_directory() -> Iterator[Path]:
    """Yield a directory, in memory if possible: the disk is not what is tested."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="redoma-test-workspace-", dir=place) as directory:
        yield Path(directory)


@contextlib.contextmanager
def opened(path: str | Path) -> Iterator[None]:
    """Make a path accessible to its owner for the length of the block."""
    about = os.lstat(path)
    mode = stat.S_IMODE(about.st_mode)
    needed = {stat.S_IFDIR: 0o500, stat.S_IFREG: 0o400}.get(stat.S_IFMT(about.st_mode), 0)
    shut = os.geteuid() != 0 and mode & needed != needed
    if shut:
        os.chmod(path, mode | 0o700)
    try:
        yield
    finally:
        if shut:
            os.chmod(path, mode)


def snapshot(top: Path) -> dict[str, tuple[Any, ...]]:
    """Return everything below a directory, byte for byte, with modes."""
    found: dict[str, tuple[Any, ...]] = {}
    with opened(top):
        _look(str(top), "", found)
    return found


def _look(top: str, place: str, found: dict[str, tuple[Any, ...]]) -> None:
    with os.scandir(f"{top}/{place}") as entries:
        for entry in entries:
            path = f"{place}{entry.name}"
            mode = stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode)
            if entry.is_symlink():
                found[path] = ("symlink", os.readlink(entry.path))
            elif entry.is_dir():
                found[path] = ("directory", mode)
                with opened(entry.path):
                    _look(top, f"{path}/", found)
            elif entry.is_file():
                with opened(entry.path), open(entry.path, "rb") as file:
                    found[path] = ("file", mode, file.read())
            else:
                found[path] = ("odd", mode)


def copy_of(project: Path, to: Path) -> Path:
    """Copy with modes and times, including what is inaccessible to its owner."""
    about = project.lstat()
    with opened(project):
        if project.is_symlink():
            to.symlink_to(os.readlink(project))
            return to
        if project.is_dir():
            to.mkdir()
            for name in os.listdir(project):
                copy_of(project / name, to / name)
        else:
            to.write_bytes(project.read_bytes())
    os.utime(to, ns=(about.st_atime_ns, about.st_mtime_ns))
    to.chmod(stat.S_IMODE(about.st_mode))
    return to


class Layer:
    """What an overlay contains above `project` after a run has turned it into `ran`; contents go to the stage.

    With a `chance`, some unchanged files are in it too, and some directories are opaque without need: as after a run
    that removed them and made them again.
    """

    def __init__(self, project: Path, ran: Path, stage: Path, chance: random.Random | None = None) -> None:
        self.project, self.ran, self.stage, self._chance = project, ran, stage, chance
        self.entries: list[OverlayEntry] = []
        self._blobs = 0
        self._walk("", merged=True)

    def _perhaps(self) -> bool:
        return self._chance is not None and self._chance.random() < 0.2

    def _walk(self, place: str, *, merged: bool) -> bool:
        """Return whether there is anything in it."""
        here = set(os.listdir(self.ran / place))
        before = set(os.listdir(self.project / place)) if merged else set()
        any_of_it = False
        for name in sorted(before - here):
            self.entries.append(OverlayEntry(path=f"{place}{name}", kind="removed"))
            any_of_it = True
        for name in sorted(here):
            any_of_it |= self._one(f"{place}{name}", merged=name in before)
        return any_of_it

    def _one(self, path: str, *, merged: bool) -> bool:
        new, old = self.ran / path, self.project / path
        about = new.lstat()
        before = old.lstat() if merged else None
        if stat.S_ISDIR(about.st_mode):
            return self._directory(path, about, before)
        if stat.S_ISLNK(about.st_mode):
            target = os.readlink(new)
            if before and stat.S_ISLNK(before.st_mode) and os.readlink(old) == target and not self._perhaps():
                return False
            self.entries.append(OverlayEntry(path=path, kind="symlink", target=target))
            return True
        if not stat.S_ISREG(about.st_mode):
            self.entries.append(OverlayEntry(path=path, kind="refused", why="it is a socket, pipe or device"))
            return True
        with opened(new):
            data = new.read_bytes()
        same = before and before.st_mode == about.st_mode and old.read_bytes() == data
        if same and not self._perhaps():
            return False
        self.entries.append(self.file(path, data, stat.S_IMODE(about.st_mode)))
        return True

    def _directory(self, path: str, about: os.stat_result, before: os.stat_result | None) -> bool:
        below = before is not None and stat.S_ISDIR(before.st_mode)
        opaque = (below and self._perhaps()) or not below
        number = len(self.entries)
        self.entries.append(OverlayEntry(path=path, kind="directory", mode=stat.S_IMODE(about.st_mode), opaque=opaque))
        with opened(self.ran / path):
            inside = self._walk(f"{path}/", merged=below and not opaque)
        changed = before is None or before.st_mode != about.st_mode
        if inside or opaque or changed or self._perhaps():
            return True
        del self.entries[number]
        return False

    def file(self, path: str, data: bytes, mode: int = 0o644) -> OverlayEntry:
        self._blobs += 1
        blob = f"blob-{self._blobs}"
        (self.stage / blob).write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        return OverlayEntry(path=path, kind="file", mode=mode, size=len(data), sha256=digest, blob=blob)


class Stage:
    """One project, and the kept changes of its runs."""

    def __init__(self, top: Path) -> None:
        self.top = Path(os.path.realpath(top))
        self.project = self.top / "project"
        self.project.mkdir(exist_ok=True)
        self.changes = Changes(self.top / "state" / "changes")
        self._number = 0

    def write(self, path: str, data: bytes | str = b"", mode: int = 0o644) -> Path:
        file = self.project / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data if isinstance(data, bytes) else data.encode())
        file.chmod(mode)
        return file

    def new_stage(self) -> Path:
        self._number += 1
        place = self.top / f"stage-{self._number}"
        place.mkdir()
        return place

    def effect(self, run: Callable[[Path], object], chance: random.Random | None = None) -> tuple[Effect, Path, Path]:
        """Return what `run` would do to the project, the stage, and the project as it would be."""
        stage = self.new_stage()
        ran = copy_of(self.project, self.top / f"ran-{self._number}")
        began = time.time()
        run(ran)
        return self.effect_of(Layer(self.project, ran, stage, chance).entries, stage, began), stage, ran

    def effect_of(self, entries: list[OverlayEntry], stage: Path, began: float | None = None) -> Effect:
        with Tree(self.project) as tree:
            return effect_of(tree, entries, stage, time.time() if began is None else began)

    def kept(self, run: Callable[[Path], object], id: str | None = None) -> Kept:  # noqa: A002
        effect, stage, _ = self.effect(run)
        return self.changes.keep(id or f"run{self._number}", effect, stage, {"command": "make"})


def in_a_child(work: Callable[[], object], *, user: int = 0) -> int:
    """Run it in a fork, and return how that ended: 0 if `work` returned, 1 if it raised, minus the signal if killed."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            if user:
                os.setgroups([])
                os.setresgid(user, user, user)
                os.setresuid(user, user, user)
            work()
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def as_an_ordinary_user(work: Callable[[Path], object], before: Callable[[Path], object] = lambda _: None) -> None:
    """Run `work` as an ordinary user in a directory of that user: ourselves or, if we are root, another user. `before`
    runs as us.
    """
    with fast_directory() as place:
        before(place)
        if os.geteuid() != 0:
            work(place)
            return
        os.chown(place, NOBODY, NOBODY)
        assert in_a_child(lambda: work(place), user=NOBODY) == 0
