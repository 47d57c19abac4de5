"""Random projects, random work in them, and everything that can be observed of a tree."""

from __future__ import annotations

import os
import random
import shutil
import signal
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "backends" / "jail"))

from cgroup_helpers import NOBODY as NOBODY
from cgroup_helpers import in_a_fork as in_a_fork

from redoma.workspace.checkpoint import Checkpoint
from redoma.workspace.snapshot import Bounds
from redoma.workspace.tree import Tree

NAMES = ["a", "b", "c", "d", "-rf", "sp ace", "new\nline", os.fsdecode(b"\xff\xfe"), ".git", ".hidden", "..x", "*"]
MODES = [0o644, 0o600, 0o755, 0o444, 0o640, 0o4755]
DIRECTORY_MODES = [0o755, 0o700, 0o555, 0o750, 0o1777]


@contextmanager
def stage() -> Iterator[Path]:
    """Yield a directory in memory: a disk's fsync takes milliseconds, and there are thousands."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    directory = Path(tempfile.mkdtemp(prefix="redoma-test-checkpoint-", dir=place))
    try:
        yield directory
    finally:
        os.chmod(directory, 0o700)
        for folder, names, _ in os.walk(directory):
            for name in names:
                if not os.path.islink(os.path.join(folder, name)):
                    os.chmod(os.path.join(folder, name), 0o700)
        shutil.rmtree(directory)


def take(project: Path, state: Path, bounds: Bounds | None = None, **options: Any) -> Checkpoint:
    with Tree(project) as tree:
        return Checkpoint.take(tree, state, bounds, **options)


def everything(project: Path) -> dict[str, tuple[Any, ...]]:
    """Return path → kind, mode, owner, content or target, mtime and which other names are the same file."""
    found: dict[str, tuple[Any, ...]] = {}
    names: dict[int, str] = {}
    todo = [project]
    while todo:
        path = todo.pop()
        about = path.lstat()
        kind = stat.S_IFMT(about.st_mode)
        content: Any = None
        if kind == stat.S_IFREG:
            content = (path.read_bytes(), names.setdefault(about.st_ino, str(path)))
        elif kind == stat.S_IFLNK:
            content = os.readlink(path)
        elif kind == stat.S_IFDIR:
            todo.extend(sorted(path.iterdir()))
        found[str(path)] = (oct(about.st_mode), about.st_uid, about.st_gid, content, about.st_mtime_ns)
    return found


class Project:
    """A random tree, and random operations on it, as a program does them: by path, including errors.

    Links are followed, and root may write anywhere: so they lead to nothing that exists, or into the project.
    """

    def __init__(self, root: Path, dice: random.Random) -> None:
        self.root, self.dice = root, dice

    def fill(self) -> None:
        self.root.mkdir()
        for _ in range(self.dice.randrange(1, 14)):
            with suppress(OSError):
                self.dice.choice([self.create, self.create, self.mkdir, self.mkdir, self.symlink, self.link])()
        if self.dice.random() < 0.3:
            with suppress(OSError):
                self.chmod()

    def work(self) -> list[str]:
        done = []
        for _ in range(self.dice.randrange(1, 9)):
            act = self.dice.choice(ACTS)
            with suppress(OSError):
                act(self)
                done.append(act.__name__)
        return done

    def path(self) -> Path:
        """Return a path that may or may not exist."""
        folder = self.dice.choice([self.root, *self.existing(directories=True)])
        return folder / self.dice.choice(NAMES)

    def existing(self, *, directories: bool = False) -> list[Path]:
        found, todo = [], [self.root]
        while todo:
            with suppress(PermissionError):
                for entry in sorted(os.scandir(todo.pop()), key=lambda entry: os.fsencode(entry.name)):
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(Path(entry.path))
                    if not directories or entry.is_dir(follow_symlinks=False):
                        found.append(Path(entry.path))
        return found

    def any(self) -> Path:
        """Return an existing path, but not a pipe: opening one would block forever."""
        return self.dice.choice([path for path in self.existing() if not path.is_fifo()] or [self.root / "nothing"])

    def content(self) -> bytes:
        return self.dice.randbytes(self.dice.choice([0, 1, 5, 5, 4096, 9000]))

    def create(self) -> None:
        path = self.path()
        if not path.is_fifo():
            path.write_bytes(self.content())

    def write(self) -> None:
        """Write in place, without making it longer: neither size nor inode change."""
        with open(self.any(), "r+b") as file:
            file.write(b"X")

    def append(self) -> None:
        with open(self.any(), "ab") as file:
            file.write(self.content())

    def truncate(self) -> None:
        os.truncate(self.any(), self.dice.choice([0, 3, 100_000]))

    def rename(self) -> None:
        os.rename(self.any(), self.path())

    def unlink(self) -> None:
        os.unlink(self.any())

    def rmdir(self) -> None:
        os.rmdir(self.any())

    def rmtree(self) -> None:
        shutil.rmtree(self.any(), ignore_errors=True)

    def mkdir(self) -> None:
        path = self.path()
        path.mkdir()
        if self.dice.random() < 0.5:
            (path / self.dice.choice(NAMES)).write_bytes(self.content())

    def symlink(self) -> None:
        self.path().symlink_to(self.dice.choice(["a", "..", "/nonexistent/passwd", "nowhere", os.fsdecode(b"\xfd")]))

    def link(self) -> None:
        os.link(self.any(), self.path(), follow_symlinks=False)

    def chmod(self) -> None:
        path = self.any()
        if not path.is_symlink():
            os.chmod(path, self.dice.choice(DIRECTORY_MODES if path.is_dir() else MODES))

    def close_up(self) -> None:
        """Remove all rights, possibly of the whole project."""
        path = self.dice.choice([self.root, self.any()])
        if not path.is_symlink():
            os.chmod(path, self.dice.choice([0, 0o111, 0o400]))

    def touch(self) -> None:
        os.utime(self.any(), ns=(1, 1), follow_symlinks=False)

    def replace(self) -> None:
        """Replace a directory by a file, or the reverse, or by a link."""
        path = self.any()
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
            if self.dice.random() < 0.5:
                path.write_bytes(b"file")
            else:
                path.symlink_to("/nonexistent")
        else:
            path.unlink()
            path.mkdir()
            (path / "in it").write_bytes(b"x")

    def pipe(self) -> None:
        os.mkfifo(self.path())

    def copy_over(self) -> None:
        """Replace a file as editors do: by another file with the same content."""
        path = self.any()
        copy = path.with_name("copy~")
        shutil.copy2(path, copy, follow_symlinks=False)
        os.replace(copy, path)


ACTS = [
    *(Project.create, Project.write, Project.append, Project.truncate, Project.rename, Project.unlink, Project.rmdir),
    *(Project.rmtree, Project.mkdir, Project.symlink, Project.link, Project.chmod, Project.close_up, Project.touch),
    *(Project.replace, Project.pipe, Project.copy_over),
]


CALLS = (
    *("open", "write", "fsync", "rename", "replace", "unlink", "mkdir", "rmdir", "symlink", "link", "chmod", "fchmod"),
    *("fchown", "chown", "utime", "copy_file_range", "ftruncate", "setxattr", "removexattr"),
)
"""The calls that change something."""


def killed_before(call: int, work: Callable[[], object]) -> bool:
    """Do something in a child that is killed before its nth system call that changes anything. Returns whether it was
    killed.
    """
    child = os.fork()
    if child == 0:
        try:
            left = call

            def counted(real: Callable[..., Any]) -> Callable[..., Any]:
                def instead(*arguments: Any, **options: Any) -> Any:
                    nonlocal left
                    left -= 1
                    if left < 0:
                        os.kill(os.getpid(), signal.SIGKILL)
                    return real(*arguments, **options)

                return instead

            listed = os.listdir
            # The same order on every file system.
            setattr(os, "listdir", lambda *where: sorted(listed(*where)))  # noqa: B010 - not with these types
            for name in CALLS:
                setattr(os, name, counted(getattr(os, name)))
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), "it failed by itself"
    return status != 0
