"""Docker as a backend: creates the containers that requests need, and declares what they guarantee."""

from __future__ import annotations

import asyncio
import errno
import os
import posixpath
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from ...lib.errors import BackendError, Unsupported
from ...models import OTHER, Isolation, Limits, Request, Status
from ...telemetry import metrics
from ..base import COMMON_LIMITS, MAX_RUNS, Capabilities, Control, Fact, Outcome, Sink, check_files_fit, uncancellable
from ..hosts import ProxyProcess, run_with_hosts
from . import box as boxes
from . import inspection
from .box import Box, ContainerSpec
from .container import Container
from .engine import CannotRemove, CannotStart, Engine, NoHosts, NoInit, address, check_engine, closed
from .pool import ContainerPool
from .run import NotTaken, Run

_LANGUAGES = frozenset({"python", "bash", "javascript", "command", OTHER})
_ENFORCED_HERE = frozenset({"time", "output_lines", "output_bytes", "output_total"})
"""Limits that Redoma enforces from outside, so they hold in any container."""
_MAX_TRIES = 3  # attempts with a warm container: it may have died unnoticed while it waited
_KILL_AGAIN = 0.25  # seconds between kills while closing: a container may not have been started yet at the first
# the engine's default, for images that set none
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_DIRECTORY, _LINK = 1 << 31, 1 << 27  # bits of Go's FileMode


class DockerBackend:
    """Runs requests in containers described by `box`.

    Keeps `minimum` containers warm for each kind in use, runs at most `maximum` at a time, queues at most `queue` more,
    and trims after `idle` seconds. With `minimum=0` no container is made ahead. `host` is the engine's address, such as
    unix:///run/docker.sock; by default it is looked up as docker's own client does.
    """

    name = "docker"

    def __init__(
        self,
        box: Box = Box(),  # noqa: B008 - frozen
        *,
        host: str | None = None,
        minimum: int = 0,
        maximum: int | None = None,
        queue: int = 1000,
        idle: float = 30.0,
    ) -> None:
        self.box, self.reach, self._host = box, box.reach, host
        self._minimum, self._queue, self._idle = minimum, queue, idle
        self._maximum = maximum or MAX_RUNS
        self._connections: dict[asyncio.AbstractEventLoop, _Connection] = {}

    @classmethod
    def configured(
        cls, *, host: str | None, minimum: int, maximum: int | None, queue: int, idle: float, **box: Any
    ) -> DockerBackend:
        """Return the hardened backend for the `docker` section of a configuration."""
        return cls(Box(**box), host=host, minimum=minimum, maximum=maximum, queue=queue, idle=idle)

    def capabilities(self) -> Capabilities:
        check_engine(self._host)
        direct = self.box.direct
        return Capabilities(
            languages=frozenset({"command"}) if direct else _LANGUAGES,
            isolation=_promised(self.box),
            limits=_ENFORCED_HERE if direct else _enforced(self.box.runtime),
            arguments=True,
            stdin=True,
            env=True,
            files=not direct,
            outputs=not direct,
            cwd=direct,
            control=True,
            network=not direct and self.box.network_mode == "none" and _is_here(self._host),
        )

    def facts(self) -> tuple[Fact, ...]:
        """Return what the engine offers, for `redoma doctor`."""
        return inspection.facts(self.box, self._host)

    async def run(self, request: Request, sink: Sink, control: Control | None = None) -> Outcome:
        connection = self._connection()
        try:
            with connection.used():
                return await connection.run(request, sink, control)
        finally:
            if control is not None:
                control.close()

    @property
    def kept(self) -> tuple[str, ...]:
        """The names of ended containers that were not to be removed automatically; `aclose` removes them."""
        return tuple(container.name for each in list(self._connections.values()) for container in each.kept)

    def _connection(self) -> _Connection:
        """Return the connection of this process and event loop: connections can't be shared between them."""
        loop = asyncio.get_running_loop()
        # a copy, because other threads add to the dictionary
        if any(each.pid != os.getpid() for each in list(self._connections.values())):
            self._connections = {}  # after a fork they belong to the parent, which still uses them
        if (connection := self._connections.get(loop)) is not None:
            return connection
        connection = self._connections[loop] = _Connection(
            self.box, self._host, minimum=self._minimum, maximum=self._maximum, queue=self._queue, idle=self._idle
        )
        metrics.watch(self.name, connection.pool)
        for dead in [other for other in list(self._connections) if other.is_closed()]:
            if (left := self._connections.pop(dead, None)) is not None:
                connection.engine.take_over(left.engine)
        return connection

    async def aclose(self) -> None:
        """Kill running containers, remove all containers, and disconnect from the engine, on every event loop that used
        it.
        """
        connections, self._connections = self._connections, {}
        for loop, connection in connections.items():
            if connection.pid == os.getpid():
                await uncancellable(self._close(loop, connection))

    async def let_go(self) -> None:
        """Do the same as `aclose` for this event loop only, and only if nothing runs on it."""
        connection = self._connections.get(asyncio.get_running_loop())
        if connection is not None and connection.pid == os.getpid() and not connection.runs:
            del self._connections[asyncio.get_running_loop()]
            await uncancellable(connection.aclose())

    async def _close(self, loop: asyncio.AbstractEventLoop, connection: _Connection) -> None:
        if loop is asyncio.get_running_loop():
            await connection.aclose()
        elif not await _closed_on_its_loop(loop, connection):
            engine = Engine(self._host)
            engine.take_over(connection.engine)
            await engine.aclose()


class _Connection:
    """The engine as used by one event loop of one process: the client, the warm containers and the running requests."""

    def __init__(self, box: Box, host: str | None, *, minimum: int, maximum: int, queue: int, idle: float) -> None:
        self._box, self.engine, self.pid = box, Engine(host), os.getpid()
        self.pool = ContainerPool(self._make, minimum=minimum, maximum=maximum, queue=queue, idle=idle)
        self.kept: list[Container] = []
        """Containers that have ended and were not to be removed."""
        self.runs = 0
        self._idle = asyncio.Event()
        self._proxies = ProxyProcess()

    @contextmanager
    def used(self) -> Iterator[None]:
        """Count one run. If the backend is closed during the run, raise that as the error, whatever error the run
        itself saw.
        """
        self.runs += 1
        try:
            yield
        except CannotRemove:
            raise
        except BackendError as error:
            if not self.engine.closing.is_set():
                raise
            raise closed() from error
        finally:
            self.runs -= 1
            self._idle.set()

    async def aclose(self) -> None:
        """Kill the running containers, wait until their runs have removed them, then close the connection."""
        self.engine.closing.set()
        self.pool.close()
        while self.runs:
            self._idle.clear()
            await self.engine.kill_all()
            with suppress(TimeoutError):
                async with asyncio.timeout(_KILL_AGAIN):
                    await self._idle.wait()
        await self.pool.aclose()
        self._proxies.close()
        for container in self.kept:
            await container.remove()
        await self.engine.aclose()

    # --- one run ---

    async def run(self, request: Request, sink: Sink, control: Control | None) -> Outcome:
        if self._box.direct:
            return await self._run_directly(request, sink, control)
        check_files_fit(request, "a container")
        for _ in range(_MAX_TRIES):
            with suppress(NotTaken):
                return await self._run_in_waiting(request, sink, control)
        return await self._run_in_waiting(request, sink, control)

    async def _run_in_waiting(self, request: Request, sink: Sink, control: Control | None) -> Outcome:
        """Run in a container whose stub waits for its order."""
        container = await self.pool.take(boxes.spec(self._box, request.language, request.limits))
        try:
            _check_limits(request.limits, container.inspected["HostConfig"].get("Runtime"))
            isolation = self._isolation(container, request.require)
            if not request.network:
                return await Run(request, sink, container, isolation, control).waiting()
            return await self._run_with_hosts(request, sink, container, isolation, control)
        finally:
            await uncancellable(self.pool.give_back(container))

    async def _run_with_hosts(
        self, request: Request, sink: Sink, container: Container, isolation: Isolation, control: Control | None
    ) -> Outcome:
        from .listener import listen

        async def run(isolation: Isolation, env: dict[str, str], files: dict[str, bytes]) -> Outcome:
            return await Run(request, sink, container, isolation, control, env=env, files=files).waiting()

        gvisor = inspection.is_gvisor(container.inspected["HostConfig"].get("Runtime"))
        listener = await listen(container, gvisor=gvisor)
        return await run_with_hosts(request, isolation, listener, self._proxies, run, place="/run/redoma")

    async def _run_directly(self, request: Request, sink: Sink, control: Control | None) -> Outcome:
        """Run in a container whose command is the program, behind the engine's own init if the engine has one."""
        engine = self.engine
        # nothing is created yet, so a cancelled caller need not wait for an engine that doesn't answer
        await engine.client()
        if not engine.without_init:
            try:
                return await self._run_in_new(request, sink, control, init=True)
            except NoInit:
                engine.without_init = True
        return await self._run_in_new(request, sink, control, init=False)

    async def _run_in_new(self, request: Request, sink: Sink, control: Control | None, *, init: bool) -> Outcome:
        settings = boxes.direct(self._box, request.argv, request.environment, request.cwd, init)
        container = Container(self.engine, settings, pull=self._box.pull)
        isolation, ended = Isolation(), False
        try:
            await container.create()
            await container.attach()
            isolation = self._isolation(container, request.require)
            outcome = await Run(request, sink, container, isolation, control).direct()
            ended = True
            if init and outcome.status is Status.ERROR and outcome.exit_code in (126, 127):
                why = await self._why_not_started(settings, container.inspected["Config"])
                return msgspec.structs.replace(outcome, error=why)
            return outcome
        except CannotStart:
            error = f"could not start {request.argv[0]}: {os.strerror(errno.ENOENT)}"
            return Outcome(status=Status.ERROR, exit_code=127, error=error, isolation=isolation)
        finally:
            # if its end was not seen, it may still be alive
            if ended and container.ended and not self._box.auto_remove:
                await uncancellable(container.let_go())
                self.kept.append(container)
            else:
                await container.remove()

    async def _why_not_started(self, settings: dict[str, Any], config: Mapping[str, Any]) -> str | None:
        """Return why the program could not be started; None if it could.

        The engine's init exits with 126 or 127 in that case, but many programs use these codes for their own purposes.
        So look for the program in a container of the same kind that is never started.
        """
        program, env = settings["Cmd"][0], dict(pair.split("=", 1) for pair in config["Env"] if "=" in pair)
        directory = config.get("WorkingDir") or "/"  # the image's, if the request set none
        places = [""] if "/" in program else env.get("PATH", _DEFAULT_PATH).split(":")
        empty = Container(self.engine, settings)
        try:
            await empty.create()
            modes = [await empty.mode_of(posixpath.join(directory, place, program)) for place in places]
        finally:
            await empty.remove()
        found = [mode for mode in modes if mode is not None]
        if any(mode & _LINK or (mode & 0o111 and not mode & _DIRECTORY) for mode in found):
            return None
        return f"could not start {program}: {os.strerror(errno.EACCES if found else errno.ENOENT)}"

    # --- its container ---

    async def _make(self, wanted: ContainerSpec) -> Container:
        """Return a container in which a stub waits."""
        engine = self.engine
        await engine.client()
        hosts = await engine.hosts(wanted.image) if self._box.network_mode == "none" else None
        try:
            return await self._start(wanted, hosts)
        except NoHosts:
            await engine.forget_hosts(hosts)  # the volumes of the engine were pruned
            return await self._start(wanted, await engine.hosts(wanted.image))

    async def _start(self, wanted: ContainerSpec, hosts: str | None) -> Container:
        gvisor = inspection.is_gvisor(self._box.runtime or self.engine.info.get("DefaultRuntime"))
        settings = boxes.waiting(self._box, wanted, gvisor=gvisor, hosts=hosts)
        container = Container(self.engine, settings, pull=self._box.pull, hosts=hosts or "")
        try:
            await container.create()
            await container.attach()
            await container.start()
            await container.wait_until_ready()
        except BaseException:
            await container.remove()
            raise
        return container

    def _isolation(self, container: Container, required: tuple[str, ...]) -> Isolation:
        """Return the layers that the engine reports for this container. Raises `BackendError` if a required layer is
        missing.
        """
        found = inspection.isolation(container.inspected, self.engine.info, direct=self._box.direct)
        needed = required or tuple(_promised(self._box).layers)
        if lacking := found.lacking(needed):
            raise BackendError(
                f"the isolation layer {lacking[0]!r} is not available from this engine",
                why="it is not in what the engine says of the container",
                next=f"see `docker info`, or name the layers you need without {lacking[0]!r} in `require`",
            )
        return found


async def _closed_on_its_loop(loop: asyncio.AbstractEventLoop, connection: _Connection) -> bool:
    """Close the connection on its own loop, which runs in another thread if it runs at all. Return whether that was
    possible.
    """
    if not loop.is_running():
        return False

    async def close() -> None:
        await uncancellable(connection.aclose())

    work = close()
    try:
        closing = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))
    except RuntimeError:  # the loop was closed meanwhile
        work.close()
        return False
    while not closing.done() and loop.is_running():
        await asyncio.wait([closing], timeout=_KILL_AGAIN)
    if not closing.done() or closing.cancelled():  # the loop was stopped before it closed the connection
        return False
    closing.result()
    return True


def _is_here(host: str | None) -> bool:
    """Return whether the engine is on this machine, judging by its address."""
    where = address(host)
    return where is not None and where.startswith("unix:")


def _promised(box: Box) -> Isolation:
    """Return the isolation of containers of this kind, assuming the engine applies the settings."""
    if box.direct:
        wanted = boxes.direct(box, ("true",), {}, None, True)
    else:
        wanted = boxes.waiting(box, boxes.spec(box, "python", Limits()))
    host = {"IpcMode": "private", **wanted["HostConfig"]}
    mounts = [{**mount, "Destination": mount["Target"], "RW": not mount["ReadOnly"]} for mount in host["Mounts"]]
    return inspection.isolation({"HostConfig": host, "Config": wanted, "Mounts": mounts}, {}, direct=box.direct)


def _enforced(runtime: str | None) -> frozenset[str]:
    """Return the limits that this runtime enforces. gVisor has no limit on files, and bounds processes only through the
    number of threads it needs for them.
    """
    if inspection.is_gvisor(runtime):
        return COMMON_LIMITS - {"processes"} | {"disk"}
    return COMMON_LIMITS | {"disk", "files"}


def _check_limits(limits: Limits, runtime: str | None) -> None:
    """Raise `Unsupported` if the engine chose a runtime that doesn't enforce a limit the request changed."""
    usual = Limits()
    for name in _enforced(None) - _enforced(runtime):
        if getattr(limits, name) != getattr(usual, name):
            raise Unsupported(
                f"a limit on {name} is not available",
                why=f"the engine runs containers with {runtime}, which has none",
                next=f"leave the limit on {name} as it is",
            )
