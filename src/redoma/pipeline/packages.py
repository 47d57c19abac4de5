"""Installing packages: a run of its own on the same path, with a record, in a cell that reaches the index alone.

The person has decided already: by the command that was typed, or by the approval of the request that needs them. What
the cell leaves becomes an environment only if it ended well (see `environments`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ..backends.base import Capabilities, Control, Outcome, OverlayEntry, Sink
from ..backends.jail import JailBackend
from ..environments import Environment, Package, Store, this_python
from ..environments import install as installing
from ..environments.index import Index, configured_index
from ..environments.interpreters import Described, describe
from ..environments.store import New, check_name, name_of
from ..lib import files
from ..lib.errors import BackendUnavailable, EnvironmentProblem, InvalidRequest
from ..models import EnvironmentUse, Request, Status, Submission
from ..models.reach import NOTHING
from ..telemetry import INFO, tell

if TYPE_CHECKING:
    from ..config import Config
    from .executor import AsyncExecutor

Progress = Callable[[str], None]
"""Told what pip prints, as it does, and at the end an empty text."""

_EMPTY = "0" * 64
"""In place of a digest: the packages that an install cell has, which is pip or none."""


def store_of(config: Config) -> Store:
    """The environments of a configuration. Raises `InvalidRequest` if it names no state directory."""
    if config.state is None:
        raise InvalidRequest(
            "there are no environments", why="the configuration names no state directory", next="give one"
        )
    return Store(config.state / "environments")


def wanted(config: Config, name: str | None, packages: Iterable[str]) -> EnvironmentUse | None:
    """What a request says of its environment. Raises `InvalidRequest` for one that there is not."""
    if name is None and not packages:
        return None
    if name is not None and packages:
        raise InvalidRequest(
            "an environment and packages were given",
            why="an environment has its own packages",
            next="leave one of them out",
        )
    if name is not None:
        return store_of(config).find(name).use
    from ..environments.requirements import requirements

    return store_of(config).of_packages(requirements(packages))


class Installer:
    """Makes environments of an executor."""

    def __init__(self, executor: AsyncExecutor, *, progress: Progress | None = None) -> None:
        self._executor, self._progress = executor, progress
        self.store = store_of(executor.config)

    async def create(
        self,
        name: str,
        requirements: tuple[str, ...],
        *,
        hosts: Iterable[str] = (),
        preload: tuple[str, ...] = (),
        python: str | None = None,
        reason: str = "",
    ) -> Environment:
        """Install packages, and have a name stand for them.

        Args:
            name: What to call it.
            requirements: As `environments.requirements` gives them.
            hosts: Further hosts that the index has its files on.
            preload: Modules that are imported ahead of time, outside of cells: the caller trusts them.
            python: Another interpreter that runs with these packages have, as a path or the name of a program.
            reason: For the record.

        Raises:
            InvalidRequest: The name stands for other packages, or cells can't run on the interpreter.
            EnvironmentProblem: They can't be installed. Whatever the name stood for before, it still does.
        """
        check_name(name)
        other = await _described(python)
        async with self._changing(name):
            found = self.store.get(name)
            if found is not None:
                same = set(found.requirements) == set(requirements) and found.preload == preload
                if same and found.fits and found.interpreter == (other.interpreter if other else None):
                    return found
                raise InvalidRequest(
                    f"there is an environment {name} already",
                    why=f"it has {', '.join(found.requirements[:10])}, for {found.python}",
                    next=f"redoma env remove {name}, or choose another name",
                )
            return await self._made(name, requirements, tuple(hosts), preload, other, reason)

    async def update(self, name: str, *, hosts: Iterable[str] = (), reason: str = "") -> Environment:
        """Install the packages of an environment again. Raises what `create` does."""
        check_name(name)
        async with self._changing(name):
            found = self.store.get(name) or self.store.find(name)
            other = await _described(found.interpreter.path if found.interpreter is not None else None)
            return await self._made(name, found.requirements, tuple(hosts), found.preload, other, reason)

    async def ensure(self, use: EnvironmentUse, reason: str = "") -> EnvironmentUse:
        """A list of packages, installed if it was not. Raises `EnvironmentProblem`."""
        return (await self.create(name_of(use.packages), use.packages, reason=reason)).use

    @contextlib.asynccontextmanager
    async def _changing(self, name: str) -> AsyncIterator[None]:
        holding = self.store.changing(name)
        await asyncio.to_thread(holding.__enter__)
        try:
            yield
        finally:
            holding.__exit__(None, None, None)

    async def _made(
        self,
        name: str,
        requirements: tuple[str, ...],
        hosts: tuple[str, ...],
        preload: tuple[str, ...],
        other: Described | None,
        reason: str,
    ) -> Environment:
        index = await asyncio.to_thread(configured_index, hosts)
        with self.store.new() as new:
            entries = await self._installed(requirements, index, new, reason or f"install packages for {name}", other)
            packages = await asyncio.to_thread(_taken, entries, new)
            made = Environment(
                name=name,
                requirements=requirements,
                python=other.tag if other else this_python(),
                digest=await asyncio.to_thread(new.keep),
                packages=packages,
                files=new.count,
                size=new.size,
                hosts=index.hosts,
                preload=preload,
                interpreter=other.interpreter if other else None,
                created=datetime.now(UTC).replace(microsecond=0),
            )
            await asyncio.to_thread(self.store.put, made)
        tell(INFO, "environment.made", digest=made.digest, files=made.files)
        return made

    async def _installed(
        self, requirements: tuple[str, ...], index: Index, new: New, reason: str, other: Described | None
    ) -> tuple[OverlayEntry, ...]:
        """Run pip. On a disk rather than in memory, where there is one that can hold the changes of a cell."""
        for on_disk in (True, False):
            cell = _InstallCell(new.stage, other, on_disk=on_disk)
            try:
                submission = Submission(
                    request=Request(
                        code=installing.CODE,
                        stdin=installing.order(requirements, index),
                        limits=installing.LIMITS,
                        network=index.rules,
                        secrets={name: secret.value for name, secret in index.secrets.items()},
                        held={name: secret.use for name, secret in index.secrets.items()},
                        uses=EnvironmentUse(digest=_EMPTY, interpreter=other.interpreter if other else None),
                        requester=self._executor.user,
                        reason=reason,
                    ),
                    policy="none",  # whoever wants the packages has been asked
                    own_backend=cell,
                )
                async with self._executor.follow(submission, whole=True) as run:
                    async for _, text in run:
                        if self._progress is not None:
                            self._progress(text)
                result = run.result
            finally:
                await cell.aclose()
                if self._progress is not None:
                    self._progress("")
            if result.status is Status.FAILED and cell.lacks_a_disk and on_disk:
                continue
            if result.status is Status.FAILED:
                raise EnvironmentProblem("the packages can't be installed", why=result.error or "it failed")
            if result.status is not Status.OK or cell.entries is None:
                raise installing.problem(result, index)
            return cell.entries
        raise AssertionError


async def _described(python: str | None) -> Described | None:
    """What is known of another interpreter; None for Redoma's own. Raises `InvalidRequest`."""
    return await asyncio.to_thread(describe, python) if python is not None else None


def _taken(entries: tuple[OverlayEntry, ...], new: New) -> tuple[Package, ...]:
    try:
        return installing.take(entries, new)
    except OSError as error:
        raise EnvironmentProblem(
            "the packages can't be kept", why=files.reason(error), next=files.advice(error)
        ) from error


def _own_pip() -> str:
    """The directory of this interpreter's pip; empty if it has none."""
    pip = find_spec("pip")
    return os.path.dirname(pip.origin) if pip is not None and pip.origin else ""


class _InstallCell:
    """A cell over an empty directory, with no packages but the interpreter's own pip. What it leaves there is in
    `entries`, with the contents in the stage."""

    name = "jail"
    reach = NOTHING

    def __init__(self, stage: Path, other: Described | None, *, on_disk: bool) -> None:
        self._stage = stage
        self._place = tempfile.TemporaryDirectory(prefix="redoma-install-")
        contents = Path(self._place.name, "content")
        version, pip = f"python{sys.version_info[0]}.{sys.version_info[1]}", _own_pip()
        if other is not None:
            version, pip = other.interpreter.version, other.pip
        packages = contents / _EMPTY / "lib" / version / "site-packages"
        packages.mkdir(parents=True)
        if pip:
            shutil.copytree(pip, packages / "pip")
        self._project = Path(self._place.name, "project")
        self._project.mkdir()
        self._jail = JailBackend(minimum=0, once=True, changes_on_disk=on_disk, environments=contents)
        self.entries: tuple[OverlayEntry, ...] | None = None
        self.lacks_a_disk = False

    def capabilities(self) -> Capabilities:
        return self._jail.capabilities()

    async def run(self, request: Request, sink: Sink, control: Control | None = None) -> Outcome:
        over = msgspec.structs.replace(request, workspace="overlay", project=str(self._project), cwd=str(self._project))
        try:
            outcome = await self._jail.run_over(over, sink, control, str(self._stage))
        except BackendUnavailable:
            self.lacks_a_disk = True
            raise
        self.entries = outcome.entries
        return msgspec.structs.replace(outcome, entries=None)

    async def aclose(self) -> None:
        await self._jail.aclose()
        self._place.cleanup()
