"""Environments on disk: records by name, and files by content.

    environments/
      names/data.json       a record: what was wanted, what came of it, and the digest of its files
      names/data.lock       held while it is made, changed or removed
      content/<digest>/     the files, read-only, with `bin` and `lib`; shared by all names with the same content
      new-…/                being made; becomes a content by one rename, or is swept

A zygote holds a shared lock on the content that its cells see. What no name stands for is removed as soon as nobody
holds it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from ..lib import files
from ..lib.errors import EnvironmentProblem, InvalidRequest, UnknownEnvironment
from ..lib.text import did_you_mean
from ..lib.types import resolved
from ..models import EnvironmentUse, Interpreter
from .interpreters import identity

OF_PACKAGES = "packages-"
"""The beginning of names that stand for a list of packages of a request."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_NEW = "new-"
_TIME = 315532800  # 1980: of all files, as zip archives have it at the earliest
_PATIENCE = 3600.0  # seconds that another process may take to install the same
_REMOVAL = 60.0  # seconds that it may take to remove one


class Package(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A package that was installed, as pip told it in the install cell."""

    name: str
    version: str
    sha256: str = ""
    """Of the file that it came from."""


class Environment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Packages for an interpreter, under a name."""

    name: str
    requirements: tuple[str, ...]
    """What was wanted."""
    python: str
    """The kind of interpreter that it is for: see `this_python`."""
    digest: str
    """SHA-256 of its files: their paths, contents, and whether they can be executed."""
    packages: tuple[Package, ...] = ()
    files: int = 0
    size: int = 0
    """Bytes of its files."""
    hosts: tuple[str, ...] = ()
    """Where it came from."""
    preload: tuple[str, ...] = ()
    interpreter: Interpreter | None = None
    """The interpreter that its runs have; None for the one that Redoma runs on."""
    created: datetime = datetime.fromtimestamp(0, UTC)

    @property
    def fits(self) -> bool:
        """Whether the interpreter that it was made for is still the same."""
        if self.interpreter is not None:
            return identity(self.interpreter.executable) == self.interpreter.identity
        return self.python == this_python()

    @property
    def use(self) -> EnvironmentUse:
        """How a request names it."""
        own = not self.name.startswith(OF_PACKAGES)
        return EnvironmentUse(
            name=self.name if own else "",
            packages=() if own else self.requirements,
            digest=self.digest,
            preload=self.preload,
            interpreter=self.interpreter,
        )


def this_python() -> str:
    """This interpreter and platform, as far as packages depend on them: `cpython-311-linux-x86_64`."""
    return f"{sys.implementation.cache_tag}-{sysconfig.get_platform()}"


def name_of(requirements: Iterable[str]) -> str:
    """Return the name of the environment for a list of packages."""
    whole = "\n".join([*sorted(requirements), this_python()])
    return OF_PACKAGES + hashlib.sha256(whole.encode()).hexdigest()[:16]


def check_name(name: str) -> None:
    """Raise `InvalidRequest` for what can't be the name of an environment."""
    if not isinstance(name, str) or not _NAME.match(name) or name.endswith((".lock", ".json")):
        raise InvalidRequest(
            f"an environment can't be called {name!r}",
            why="names are letters, digits, dots, - and _, 64 at most",
            next="choose one such as data",
        )


class Store:
    """The environments in a directory, which is made when something is put there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._names, self.content = directory / "names", directory / "content"

    # --- reading ---

    def all(self) -> list[Environment]:
        """Every environment, by name. Raises `EnvironmentProblem` for a record that can't be read."""
        try:
            found = sorted(path.stem for path in self._names.iterdir() if path.suffix == ".json")
        except FileNotFoundError:
            return []
        return [each for name in found if (each := self.get(name)) is not None]

    def get(self, name: str) -> Environment | None:
        """The environment of that name, if there is one and its files are there."""
        try:
            with (
                files.closing(files.open_regular(self._names / f"{name}.json")) as fd,
                open(fd, "rb", closefd=False) as f,
            ):
                found = msgspec.json.decode(f.read(1 << 24), type=resolved(Environment))
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise EnvironmentProblem(
                f"the environment {name} can't be read", why=str(error), next=f"redoma env remove {name}"
            ) from error
        if found.name != name or not _DIGEST.match(found.digest):
            raise EnvironmentProblem(
                f"the environment {name} can't be read", why="its record is another's", next=f"redoma env remove {name}"
            )
        return found if self.path(found.digest).is_dir() else None

    def find(self, name: str) -> Environment:
        """The environment of that name, with the interpreter that it was made for. Raises `InvalidRequest`."""
        check_name(name)
        found = self.get(name)
        if found is None:
            known = [each.name for each in self.all()]
            raise UnknownEnvironment(
                f"there is no environment {name!r}",
                why=f"known: {', '.join(known) or 'none'}",
                next=did_you_mean(name, known, f"redoma env create {name} PACKAGE..."),
            )
        if not found.fits:
            raise InvalidRequest(
                f"the environment {name} can't be used",
                why=f"it was made for {found.python}, and this is {this_python()}"
                if found.interpreter is None
                else f"its interpreter, {found.interpreter.executable}, has changed or is gone",
                next=f"redoma env update {name}",
            )
        return found

    def of_packages(self, requirements: tuple[str, ...]) -> EnvironmentUse:
        """Return how a request refers to a list of packages: with a digest if they are installed."""
        found = self.get(name_of(requirements))
        return found.use if found is not None else EnvironmentUse(packages=requirements)

    def path(self, digest: str) -> Path:
        """Where the files with that digest are."""
        return self.content / digest

    # --- writing ---

    @contextlib.contextmanager
    def changing(self, name: str, *, wait: bool = True) -> Iterator[None]:
        """Lock this name against other threads and processes during the block. Slow if another one is installing it.
        Raises `EnvironmentProblem`."""
        try:
            for directory in (self.directory, self._names, self.content):
                os.close(files.open_own_directory(directory, holds="packages", error=EnvironmentProblem))
            fd = files.open_regular(self._names / f"{name}.lock", os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise _unwritable(error) from error
        with files.closing(fd), files.locked(fd, seconds=_PATIENCE if wait else 0.0, pause=0.05) as held:
            if not held:
                raise EnvironmentProblem(
                    f"the environment {name} is being changed", why="by another process", next="wait for it to end"
                )
            yield

    @contextlib.contextmanager
    def new(self) -> Iterator[New]:
        """A directory for packages that are being installed. Whatever `keep` has not taken is removed at the end."""
        try:
            files.sweep(self.directory, _NEW)  # a process that was killed meanwhile left its own
            with files.temporary_directory(self.directory, _NEW) as directory:
                new = New(self, directory)
                try:
                    yield new
                finally:
                    new.let_go()
                    files.remove_tree(directory)
        except OSError as error:
            raise _unwritable(error) from error

    def put(self, environment: Environment) -> None:
        """Write the record of an environment under its name. Call it within `changing`."""
        try:
            files.replace(self._names / f"{environment.name}.json", msgspec.json.encode(environment))
        except OSError as error:
            raise _unwritable(error) from error
        self.tidy()

    def remove(self, name: str) -> bool:
        """Forget a name, and its files unless another name stands for them. Returns False if a run has them: they are
        removed later. Raises `UnknownEnvironment`."""
        check_name(name)
        if not (self._names / f"{name}.json").exists():
            self.find(name)  # raises
        with self.changing(name, wait=False):
            (self._names / f"{name}.json").unlink(missing_ok=True)
        return self.tidy()

    def tidy(self) -> bool:
        """Remove files that no name stands for, and what killed processes left. Returns False if some are in use."""
        with contextlib.suppress(OSError):
            files.sweep(self.directory, _NEW)
        wanted = {each.digest for each in self._readable()}
        left = False
        for path in self.content.iterdir():
            if path.name in wanted:
                continue
            with files.claimed(path) as free:
                if free:
                    files.remove_tree(path)
                else:
                    left = True
        return not left

    def _readable(self) -> Iterator[Environment]:
        for path in self._names.glob("*.json"):
            with contextlib.suppress(EnvironmentProblem):
                if (found := self.get(path.stem)) is not None:
                    yield found


class New:
    """A directory for packages that are being installed: files are put into it by their paths, then it is kept."""

    def __init__(self, store: Store, directory: Path) -> None:
        self._store, self.stage, self._root = store, directory / "stage", directory / "root"
        self._hashed: list[tuple[str, str, bool]] = []
        self._held: list[int] = []
        self.size = 0
        self.stage.mkdir(0o700)
        self._root.mkdir(0o700)

    @property
    def count(self) -> int:
        return len(self._hashed)

    def directory(self, path: str) -> None:
        """Make a directory below the root."""
        (self._root / path).mkdir(0o755, parents=True, exist_ok=True)

    def file(self, path: str, blob: str, sha256: str, size: int, *, executable: bool) -> None:
        """Take a file of the stage. There are no links below the root: only this and `directory` write there."""
        target = self._root / path
        target.parent.mkdir(0o755, parents=True, exist_ok=True)
        os.rename(self.stage / blob, target)
        os.chmod(target, 0o555 if executable else 0o444)
        os.utime(target, (_TIME, _TIME))
        self._hashed.append((path, sha256, executable))
        self.size += size

    def keep(self) -> str:
        """Make it a content of the store, by one rename. Returns its digest."""
        lines = (
            f"{'x' if executable else '-'} {sha256} {path!r}\n" for path, sha256, executable in sorted(self._hashed)
        )
        digest = hashlib.sha256("".join(lines).encode()).hexdigest()
        for directory, _, _ in os.walk(self._root, topdown=False):
            os.chmod(directory, 0o555)  # noqa: S103 - as above
        os.chmod(self._root, 0o755)  # noqa: S103 - a directory that is renamed must be writable
        self._hold(self._root)  # before it has its name: another process removes what no record has and nobody holds
        try:
            os.rename(self._root, self._store.path(digest))
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            self._hold(self._store.path(digest))  # the same is there already
            if not self._store.path(digest).is_dir():  # and was removed before we held it
                os.rename(self._root, self._store.path(digest))
        return digest

    def _hold(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(path, files.OPEN_DIRECTORY)
            self._held.append(fd)
            files.lock(fd, shared=True, seconds=_REMOVAL)

    def let_go(self) -> None:
        """Release the lock on what was kept, once a record names it."""
        while self._held:
            fd = self._held.pop()
            files.unlock(fd)
            os.close(fd)


def _unwritable(error: OSError) -> EnvironmentProblem:
    return EnvironmentProblem("the environment can't be written", why=files.reason(error), next=files.advice(error))
