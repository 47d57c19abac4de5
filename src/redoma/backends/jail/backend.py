"""The jail as a backend: which pool a request needs, what cells promise, and refusing to run with less."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import ClassVar

import msgspec

from ...lib.errors import BackendError, BackendUnavailable, InvalidRequest
from ...lib.files import reason
from ...models import OTHER, EnvironmentUse, Interpreter, Isolation, Limits, Request
from ...models.reach import NOTHING
from ...telemetry import INFO, metrics, tell
from .. import linux
from ..base import (
    COMMON_LIMITS,
    LAYER_ALIASES,
    MAX_RUNS,
    Capabilities,
    Control,
    Fact,
    Outcome,
    Prepared,
    Sink,
    check_files_fit,
)
from ..hosts import ProxyProcess, run_with_hosts
from ..image import MemoryImage
from . import cgroup
from .cell import Ahead, Cell, Spec
from .cgroup_place import Unavailable
from .compiled import step_names
from .configuration import LAYERS
from .kernels import CELLS, COUNTED_PROCESSES, OWN_OVERLAYS, USER_OVERLAYS, Feature
from .launch import Zygote, ZygoteOptions
from .pool import Pool
from .readiness import Readinesses
from .run import Run, start_ahead

_MAX_PROJECTS = 8  # for which cells are kept ready
_MAX_PREPARED = 32 << 10  # characters and bytes: so that the whole order fits into the socket of a cell at once
_WATCHED = "watched by the cell's init every 10 ms; what the kernel keeps in pipes and sockets is not counted"


class JailBackend:
    """Runs requests in cells. Keeps `minimum` cells armed, runs at most `maximum` at a time, lets `queue` more wait,
    and trims after `idle` seconds.

    `preload` names modules that every Python run finds already imported. `without` leaves layers out, for tests that
    must see an attack succeed; a run must then name the layers that it requires. `changes_on_disk` keeps changes to a
    project on disk, as on kernels before 6.6, where memory can't hold them.

    For another backend that runs in cells: `prelude` names a module of ours whose `arm()` every guest calls; the code
    finds the names that it returns. `programs` are files of the host to show inside, in `configuration.PROGRAMS`.
    `passes_descriptors`: whether descriptors can be sent to a run along with its input; then sessions can be copied,
    see c/image.c.

    `environments` is the directory of environments, each under its digest; None if there are none.

    `once` is for a process that makes one run and ends: nothing is loaded for later runs, and the zygote ends with the
    first.
    """

    name = "jail"
    reach = NOTHING
    aliases: ClassVar[dict[str, str]] = LAYER_ALIASES

    def __init__(
        self,
        *,
        minimum: int = 2,
        maximum: int | None = None,
        queue: int = 1000,
        idle: float = 30.0,
        preload: Iterable[str] = (),
        without: Iterable[str] = (),
        changes_on_disk: bool = False,
        prelude: str = "",
        passes_descriptors: bool = False,
        programs: Mapping[str, str] | None = None,
        environments: Path | None = None,
        once: bool = False,
    ) -> None:
        self._once, self._environments = once, environments
        self._minimum, self._queue, self._idle = minimum, queue, idle
        self._maximum = maximum or MAX_RUNS
        self._preload, self._without = tuple(preload), frozenset(without)
        self._prelude, self._programs = prelude, dict(programs or {})
        self._passes_descriptors, self._changes_on_disk = passes_descriptors, changes_on_disk
        if self._without and (unknown := self._without - {*step_names(), "memory"}):
            raise InvalidRequest(
                f"no layer is called {', '.join(sorted(unknown))}",
                why=f"known: {', '.join(step_names())}",
                next="use those",
            )
        self._owner, self._pools = os.getpid(), dict[_Key, Pool]()
        self._leaving: list[Pool] = []
        self._groups: cgroup.Cgroups | Unavailable | None = None
        self._memory = ""
        self._release = os.uname().release
        self._can: Capabilities | None = None
        self._by_rlimit: bool | None = None
        self._described: tuple[tuple[object, ...], Isolation] | None = None
        """The last answer of `_isolation`, after what it depends on."""
        self._proxies = ProxyProcess()
        self._readiness = Readinesses()

    def capabilities(self) -> Capabilities:
        """Return what cells can do on this host. Raises `BackendUnavailable`."""
        if self._can is None:  # called twice in every run, and the host doesn't change
            self._can = self._look()
        return self._can

    def _look(self) -> Capabilities:
        if sys.platform != "linux":
            raise BackendUnavailable("the jail needs Linux", why="it is made of its namespaces", next="use docker here")
        if self._lacks(CELLS):
            raise BackendUnavailable(
                f"the jail needs Linux {CELLS.version}",
                why=f"this is {self._release}",
                next="use a newer kernel, or docker",
            )
        layers = {**LAYERS, "landlock": linux.landlock_promise(linux.landlock_abi())}
        missing = self._beyond_this_kernel()
        for name in missing:
            del layers[name]
        for alias, name in LAYER_ALIASES.items():
            layers[alias] = layers[name]
        return msgspec.structs.replace(
            self._offered(Isolation(layers=layers, missing=missing)),
            descriptors=self._passes_descriptors,
            image=MemoryImage if self._passes_descriptors else None,
            network=True,
            environments=self._environments is not None,
            workspaces=frozenset({"scratch", "read-only", "overlay"}),
            run_over=self.run_over,
        )

    def _offered(self, isolation: Isolation) -> Capabilities:
        """Return what every kind of cell can do."""
        return Capabilities(
            languages=frozenset({"python", "bash", "javascript", "command", OTHER}),
            isolation=isolation,
            limits=COMMON_LIMITS | {"disk", "files"},
            arguments=True,
            stdin=True,
            env=True,
            files=True,
            value=True,
            outputs=True,
            control=True,
            prepare=self.prepare,
        )

    def _beyond_this_kernel(self) -> tuple[str, ...]:
        """Return the layers that no cell can have on this host. Results list them as missing; requests that `require`
        them fail.
        """
        landlock = () if linux.landlock_abi() else ("landlock",)
        names = ("names",) if self._lacks(USER_OVERLAYS) else ()
        locks = ("locks",) if OWN_OVERLAYS.is_missing(self._release, root=False) else ()
        return (*landlock, *names, *locks, *(("user-namespaces",) if _is_read_only("/proc/sys") else ()))

    def _lacks(self, feature: Feature) -> bool:
        return feature.is_missing(self._release, root=os.geteuid() == 0)

    def facts(self) -> tuple[Fact, ...]:
        """Return what this host offers the jail, for `redoma doctor`. It is really tried."""
        from .host import facts

        return facts()

    def warm(self) -> None:
        """Begin to start what the first run without a project will need. Returns at once."""
        limits = Limits()
        spec = Spec(disk=limits.disk, files=limits.files, workspace="scratch", project="")
        pool = self._enter_pool(spec)
        try:
            pool.warm()
        finally:
            self._leave_pool(pool)

    async def run(self, request: Request, sink: Sink, control: Control | None = None) -> Outcome:
        """Run a request in a cell: see `Backend.run`."""
        return await self.run_over(request, sink, control, None)

    async def run_over(self, request: Request, sink: Sink, control: Control | None, stage: str | None) -> Outcome:
        """Run a request above its project: see `RunOver`. Without a `stage`, nothing of the project is returned."""
        spec = self._spec(request)
        pool = self._enter_pool(spec, request)
        try:
            return await self._run(pool, spec, request, sink, control, stage)
        finally:
            self._leave_pool(pool)

    def prepare(self, request: Request) -> Prepared | None:
        """Give a request to a cell that is ready, if there is one: see `Capabilities.prepare`."""
        if request.network or request.workspace != "scratch" or _size(request) > _MAX_PREPARED:
            return None
        with ExitStack() as undo:
            spec = self._spec(request)
            pool = self._enter_pool(spec, request)
            undo.callback(self._leave_pool, pool)
            if (cell := pool.take_now(spec)) is None:
                return None
            undo.callback(pool.give_back, cell)
            run = self._run_in(cell, request, self._isolation(cell, request.require), cell.env)
            undo.callback(run.let_go)
            run.prepare()
            return _PreparedRun(run, undo.pop_all())

    def _spec(self, request: Request) -> Spec:
        """Return the kind of cell that a request needs. Raises `InvalidRequest` for what no cell can take."""
        check_files_fit(request, "a cell")
        if request.seed is not None and not 0 <= request.seed.random < 2**64:
            raise InvalidRequest(
                f"the seed {request.seed.random} can't be used",
                why="a cell takes one of 0 to 2**64 - 1",
                next="use the seed of an earlier result",
            )
        limits = request.limits
        return Spec(
            disk=limits.disk,
            files=limits.files,
            workspace=request.workspace,
            project=request.project or "",
            seed=request.seed.random if request.seed else None,
            network=bool(request.network),
            ahead=self._ahead(request),
        )

    async def _run(
        self, pool: Pool, spec: Spec, request: Request, sink: Sink, control: Control | None, stage: str | None
    ) -> Outcome:
        if request.network:
            self._proxies.warm()  # while the cell is made
        cell = await pool.take(spec)
        try:
            isolation = self._isolation(cell, request.require)

            async def execute(isolation: Isolation, env: Mapping[str, str], files: Mapping[str, bytes]) -> Outcome:
                run = self._run_in(cell, request, isolation, {**cell.env, **env}, control, stage, files)
                return await run.execute(sink)

            if not request.network:
                return await execute(isolation, {}, {})
            return await run_with_hosts(request, isolation, cell.take_listener(), self._proxies, execute)
        finally:
            pool.give_back(cell)

    def _run_in(
        self,
        cell: Cell,
        request: Request,
        isolation: Isolation,
        env: Mapping[str, str],
        control: Control | None = None,
        stage: str | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> Run:
        return Run(
            request,
            cell,
            isolation,
            self._readiness,
            env,
            control,
            stage,
            files,
            processes_by_rlimit=self._counts_processes_by_rlimit(),
            watched=cell.group is None,
        )

    def _ahead(self, request: Request) -> Ahead | None:
        """Return what a cell for such requests can start before its run."""
        if self._groups is None:  # the first run: how memory will be limited is not known yet
            return None
        by_rlimit, watched = self._counts_processes_by_rlimit(), self._usable_groups() is None
        return start_ahead(request, processes_by_rlimit=by_rlimit, watched=watched)

    def _usable_groups(self) -> cgroup.Cgroups | None:
        return self._groups if isinstance(self._groups, cgroup.Cgroups) and "memory" not in self._without else None

    def _counts_processes_by_rlimit(self) -> bool:
        if self._by_rlimit is None:
            self._by_rlimit = not self._lacks(COUNTED_PROCESSES)
        return self._by_rlimit

    def _enter_pool(self, spec: Spec, request: Request | None = None) -> Pool:
        """Return the pool for a run, which is not closed until `_leave_pool`. A forked child makes its own pools.

        A pool has one zygote, so there is one for each project (another directory under the same name is another
        project), for each environment, and for each requested seed of hashes, which an interpreter gets at its start.
        Pools with such a seed keep no cells ready. Without a request, it is the pool for ordinary ones.
        """
        hash_seed = request.seed.hashes if request is not None and request.seed else None
        uses = request.uses if request is not None else None
        packages = (uses.digest, uses.preload, uses.interpreter) if uses is not None else None
        key = (_identity(spec.project) if spec.project else None, hash_seed, packages)
        with _making:
            if self._owner != os.getpid():
                self._owner, self._pools, self._readiness = os.getpid(), {}, Readinesses()
            if key not in self._pools:
                self._forget_projects()
                usual = Limits()
                self._pools[key] = Pool(
                    minimum=self._minimum if key == _USUAL else min(self._minimum, 1) if hash_seed is None else 0,
                    maximum=self._maximum,
                    queue=self._queue,
                    idle=self._idle,
                    usual=Spec(disk=usual.disk, files=usual.files, workspace=spec.workspace, project=spec.project),
                    without=self._without,
                    start=partial(self._start, spec.project, hash_seed, uses),
                    once=self._once,
                )
                metrics.watch(self.name, self._pools[key])
            pool = self._pools[key] = self._pools.pop(key)  # moved to the end: the most recently used
            pool.runs += 1
            return pool

    def _leave_pool(self, pool: Pool) -> None:
        with _making:
            pool.runs -= 1

    def _forget_projects(self) -> None:
        """Close the least recently used pools that no run uses."""
        self._leaving = [pool for pool in self._leaving if not pool.has_ended]
        for key in [key for key in self._pools if key != _USUAL][: -_MAX_PROJECTS + 1]:
            if not self._pools[key].runs and self._pools[key].leave():
                self._leaving.append(self._pools.pop(key))

    def _start(
        self, project: str, hash_seed: int | None, uses: EnvironmentUse | None
    ) -> tuple[Zygote, cgroup.Cgroups | None]:
        """Start a zygote. Called on the pool's thread. Also returns where control groups for its cells can be made."""
        if self._groups is None:
            self._groups = cgroup.find()
            if isinstance(self._groups, cgroup.Cgroups):
                self._groups.sweep()
        groups = self._usable_groups()
        zygote = Zygote(
            ZygoteOptions(
                watched=groups is None,
                preload=self._preload if uses is None else uses.preload,
                environment=str(self._environments / uses.digest) if uses is not None and self._environments else "",
                interpreter=uses.interpreter if uses is not None else None,
                prelude=self._prelude,
                passes_descriptors=self._passes_descriptors,
                programs=self._programs,
                project=project,
                hash_seed=hash_seed,
                changes_on_disk=self._changes_on_disk,
                once=self._once,
            )
        )
        self._memory = groups.describe() if groups else _WATCHED
        tell(INFO, "jail.zygote.started", pid=zygote.pid, memory="group" if groups else "watched")
        return zygote, groups

    def _isolation(self, cell: Cell, required: tuple[str, ...]) -> Isolation:
        """Return what this cell's probe found. Raises `BackendError` if a required layer is missing."""
        if cell.found is None:
            raise BackendError("the cell was not looked over", why="it never said what it found", next="report it")
        # Nearly all cells report the same: then it is put into words once.
        depends = (cell.found, cell.beyond_this_host, cell.group is None, required, self._memory)
        if self._described is not None and self._described[0] == depends:
            same = self._described[1]
            return Isolation(layers=dict(same.layers), missing=same.missing)  # a caller may change its dictionary
        layers, missing = dict(cell.found.layers), dict(cell.found.missing)
        for alias, name in self.aliases.items():
            if name in layers:
                layers[alias] = layers[name]
        layers["memory"] = self._memory if cell.group is not None else _WATCHED
        needed = {self.aliases.get(name, name) for name in required}
        if not needed:
            needed = set(self.capabilities().isolation.layers) - set(cell.beyond_this_host)
        needed.add("workspace")  # always: the project must not be writable if that was not requested
        for name, why in missing.items():
            if name in needed:
                raise BackendError(
                    f"the isolation layer {name!r} is not available here",
                    why=cell.beyond_this_host.get(name, why),
                    next=f"see `redoma doctor`, or name the layers you need without {name!r} in `require`",
                )
        isolation = Isolation(layers=layers, missing=tuple(sorted(missing)))
        self._described = depends, Isolation(layers=dict(layers), missing=isolation.missing)
        return isolation

    async def aclose(self) -> None:
        """Close all pools: no process of ours is left."""
        await self._close(unused=False)

    async def let_go(self) -> None:
        """Close the pools unless something runs. A run that begins meanwhile makes a new pool."""
        await self._close(unused=True)

    async def _close(self, *, unused: bool) -> None:
        with _making:
            if unused and any(pool.runs for pool in self._pools.values()):
                return
            pools, self._pools, self._leaving = [*self._pools.values(), *self._leaving], {}, []
        if self._owner == os.getpid():
            for pool in pools:
                await pool.aclose()
            self._readiness.close(asyncio.get_running_loop())
        self._proxies.close()


class _PreparedRun:
    """A run whose cell has its orders, and waits for the word to start."""

    def __init__(self, run: Run, undo: ExitStack) -> None:
        self._run, self._undo = run, undo

    async def run(self, sink: Sink) -> Outcome:
        with self._undo:
            return await self._run.execute(sink)

    def discard(self) -> None:
        self._undo.close()


_Key = tuple[tuple[str, int, int] | None, int | None, tuple[str, tuple[str, ...], Interpreter | None] | None]
_USUAL: _Key = (None, None, None)
"""The key of the pool for runs without a project, a seed of hashes or an environment."""


def _size(request: Request) -> int:
    parts = (
        *request.argv,
        *request.environment,
        *request.environment.values(),
        *request.files,
        *request.files.values(),
    )
    return len(request.code) + sum(map(len, parts))


def _is_read_only(path: str) -> bool:
    """Return whether the file system there is mounted read-only, as /proc/sys is in most containers."""
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def _identity(project: str) -> tuple[str, int, int]:
    """Return the path of a directory with its device and inode. Raises `InvalidRequest` if it can't be used."""
    try:
        about = os.stat(project)
    except OSError as error:
        raise InvalidRequest(
            f"the project {project!r} can't be used", why=reason(error), next="name a directory"
        ) from error
    return project, about.st_dev, about.st_ino


_making = threading.Lock()  # two threads must not make the same pool twice
os.register_at_fork(before=_making.acquire, after_in_parent=_making.release, after_in_child=_making.release)
