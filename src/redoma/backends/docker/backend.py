"""Docker as a backend: which containers it needs, and what it promises of them."""

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
from ...models import Isolation, Limits, Request, Status
from ...telemetry import metrics
from ..base import Capabilities, Control, Fact, Outcome, Sink, uncancellable
from . import box as boxes
from . import engine as engines
from . import inspection
from .box import Box, Spec
from .container import Container
from .engine import CannotRemove, CannotStart, Engine, closed
from .pool import Pool
from .run import NotTaken, Run

_OUTSIDE = frozenset({"time", "output_lines", "output_bytes", "output_total"})
"""What is enforced on this side, whatever the container is like."""
_TRIES = 3  # with containers that waited, and of which one may have died unnoticed
_NO_INIT = "docker-init"
_ROUND = 0.25  # seconds after which what is to end, and was perhaps only about to begin, is killed once more
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # the engine's own, where the image has none
_DIRECTORY, _LINK = 1 << 31, 1 << 27  # in a mode of Go's


class DockerBackend:
    """Runs in containers like `box`. Keeps `minimum` of the kinds in use warm, runs `maximum` at a time, lets `queue`
    more wait, and trims after `idle` seconds. With a minimum of none, none is made ahead.

    `host` is where the engine is, such as unix:///run/docker.sock; by default where docker's own client would look.
    """

    def __init__(
        self,
        box: Box = Box(),  # noqa: B008 - frozen
        *,
        name: str = "docker",
        host: str | None = None,
        minimum: int = 0,
        maximum: int | None = None,
        queue: int = 1000,
        idle: float = 30.0,
    ) -> None:
        self.name, self.box, self.reach, self._host = name, box, box.reach, host
        self._minimum, self._queue, self._idle = minimum, queue, idle
        self._maximum = maximum or max(16, 4 * (os.cpu_count() or 1))
        self._heres: dict[asyncio.AbstractEventLoop, _Here] = {}

    @classmethod
    def configured(
        cls, *, host: str | None, minimum: int, maximum: int | None, queue: int, idle: float, **box: Any
    ) -> DockerBackend:
        """The hardened one, from the section `docker` of a configuration."""
        return cls(Box(**box), host=host, minimum=minimum, maximum=maximum, queue=queue, idle=idle)

    def capabilities(self) -> Capabilities:
        engines.must_be_there(self._host)
        direct = self.box.direct
        return Capabilities(
            languages=frozenset({"command"}) if direct else frozenset({"python", "bash", "command"}),
            isolation=_promise(self.box),
            limits=_OUTSIDE if direct else _limits(self.box.runtime),
            arguments=True,
            stdin=True,
            env=True,
            files=not direct,
            outputs=not direct,
            cwd=direct,
            control=True,
        )

    def facts(self) -> tuple[Fact, ...]:
        """What the engine has for us: for `redoma doctor`."""
        return inspection.facts(self.box, self._host)

    async def run(self, request: Request, sink: Sink, control: Control | None = None) -> Outcome:
        here = self._ready()
        try:
            with here.used():
                return await self._run(here, request, sink, control)
        finally:
            if control is not None:
                control.close()

    async def _run(self, here: _Here, request: Request, sink: Sink, control: Control | None) -> Outcome:
        if self.box.direct:
            return await self._direct(here, request, sink, control)
        _must_fit(request)
        for _ in range(_TRIES):
            with suppress(NotTaken):
                return await self._waiting(here, request, sink, control)
        return await self._waiting(here, request, sink, control)

    async def _waiting(self, here: _Here, request: Request, sink: Sink, control: Control | None) -> Outcome:
        container = await here.pool.take(boxes.spec(self.box, request.language, request.limits))
        try:
            _must_hold(request.limits, container.seen["HostConfig"].get("Runtime"))
            isolation = self._isolation(container.seen, here.engine.about, request.require)
            return await Run(request, sink, container, isolation, control).waiting()
        finally:
            await uncancellable(here.pool.give_back(container))

    async def _direct(self, here: _Here, request: Request, sink: Sink, control: Control | None) -> Outcome:
        await here.engine.client()  # an engine that doesn't answer keeps nobody who is cancelled: nothing is made yet
        try:
            return await self._once(here, request, sink, control, init=not here.engine.without_init)
        except BackendError as error:
            if _NO_INIT not in error.why or here.engine.without_init:
                raise
            here.engine.without_init = True
            return await self._once(here, request, sink, control, init=False)

    async def _once(self, here: _Here, request: Request, sink: Sink, control: Control | None, init: bool) -> Outcome:
        settings = boxes.direct(self.box, request.argv, request.environment, request.cwd, init)
        container = Container(here.engine, settings, pull=self.box.pull)
        isolation, ended = Isolation(), False
        try:
            await container.create()
            await container.attach()
            isolation = self._isolation(container.seen, here.engine.about, request.require)
            outcome = await Run(request, sink, container, isolation, control).direct()
            ended = True
            if init and outcome.status is Status.ERROR and outcome.exit_code in (126, 127):
                return await self._explained(here.engine, settings, container.seen, outcome)
            return outcome
        except CannotStart:
            error = f"could not start {request.argv[0]}: {os.strerror(errno.ENOENT)}"
            return Outcome(status=Status.ERROR, exit_code=127, error=error, isolation=isolation)
        finally:
            if ended and container.ended and not self.box.auto_remove:  # one whose end was not seen may be alive
                await uncancellable(container.let_go())
                here.kept.append(container)
            else:
                await container.remove()

    async def _explained(
        self, engine: Engine, settings: dict[str, Any], seen: Mapping[str, Any], outcome: Outcome
    ) -> Outcome:
        """With these codes the engine's small pid 1 says that the program could not be started, and so does many a
        program about another. So it is looked for, in a container of the same kind which is never started."""
        program, env = settings["Cmd"][0], dict(pair.split("=", 1) for pair in seen["Config"]["Env"] if "=" in pair)
        there = seen["Config"].get("WorkingDir") or "/"  # the image's own, where none was asked for
        places = [""] if "/" in program else env.get("PATH", _PATH).split(":")
        empty = Container(engine, settings)
        try:
            await empty.create()
            modes = [await empty.mode_of(posixpath.join(there, place, program)) for place in places]
        finally:
            await empty.remove()
        found = [mode for mode in modes if mode is not None]
        if any(mode & _LINK or (mode & 0o111 and not mode & _DIRECTORY) for mode in found):
            return outcome
        why = os.strerror(errno.EACCES if found else errno.ENOENT)
        return msgspec.structs.replace(outcome, error=f"could not start {program}: {why}")

    @property
    def kept(self) -> tuple[str, ...]:
        """Names of the containers that have ended and were not to be removed; `aclose` removes them."""
        return tuple(container.name for here in list(self._heres.values()) for container in here.kept)

    def _ready(self) -> _Here:
        """What belongs to this process and this event loop: connections can't be shared between them."""
        loop = asyncio.get_running_loop()
        if any(here.pid != os.getpid() for here in list(self._heres.values())):  # other threads add to it
            self._heres = {}  # the parent's, who is alive and uses them
        if (here := self._heres.get(loop)) is not None:
            return here
        engine = Engine(self._host)
        pool = Pool(
            lambda wanted: self._make(engine, wanted),
            minimum=self._minimum,
            maximum=self._maximum,
            queue=self._queue,
            idle=self._idle,
        )
        metrics.watch(self.name, pool)
        here = self._heres[loop] = _Here(engine, pool)
        for dead in [other for other in list(self._heres) if other.is_closed()]:
            if (left := self._heres.pop(dead, None)) is not None:
                engine.take_over(left.engine)
        return here

    async def _make(self, engine: Engine, wanted: Spec) -> Container:
        """One in which a stub waits."""
        await engine.client()
        hosts = await engine.hosts(wanted.image) if self.box.network_mode == "none" else None
        try:
            return await self._begin(engine, wanted, hosts)
        except BackendError as error:
            if hosts is None or hosts not in error.why:
                raise
            await engine.forget_hosts(hosts)  # somebody has tidied up the volumes of the engine
            return await self._begin(engine, wanted, await engine.hosts(wanted.image))

    async def _begin(self, engine: Engine, wanted: Spec, hosts: str | None) -> Container:
        gvisor = inspection.is_gvisor(self.box.runtime or engine.about.get("DefaultRuntime"))
        settings = boxes.waiting(self.box, wanted, gvisor=gvisor, hosts=hosts)
        container = Container(engine, settings, pull=self.box.pull)
        try:
            await container.create()
            await container.attach()
            await container.start()
            await container.armed()
        except BaseException:
            await container.remove()
            raise
        return container

    def _isolation(self, seen: Mapping[str, Any], about: Mapping[str, Any], required: tuple[str, ...]) -> Isolation:
        """What the engine says of this very container. A layer that is missing and was not waived is our failure."""
        found = inspection.isolation(seen, about, direct=self.box.direct)
        needed = required or tuple(_promise(self.box).layers)
        if lacking := found.lacking(needed):
            raise BackendError(
                f"the isolation layer {lacking[0]!r} can't be had from this engine",
                why="it is not in what the engine says of the container",
                next=f"see `docker info`, or name the layers you need without {lacking[0]!r} in `require`",
            )
        return found

    async def aclose(self) -> None:
        """End what runs, remove what is there, and let go of the engine; on every event loop that has used it."""
        heres, self._heres = self._heres, {}
        for loop, here in heres.items():
            if here.pid == os.getpid():
                await uncancellable(self._close(loop, here))

    async def let_go(self) -> None:
        """The same, of what this event loop has, if nothing runs on it."""
        here = self._heres.get(asyncio.get_running_loop())
        if here is not None and here.pid == os.getpid() and not here.runs:
            del self._heres[asyncio.get_running_loop()]
            await uncancellable(here.aclose())

    async def _close(self, loop: asyncio.AbstractEventLoop, here: _Here) -> None:
        if loop is asyncio.get_running_loop():
            await here.aclose()
        elif not await _on_another(loop, here):
            engine = Engine(self._host)
            engine.take_over(here.engine)
            await engine.aclose()


class _Here:
    """What one event loop of one process has of an engine."""

    def __init__(self, engine: Engine, pool: Pool) -> None:
        self.engine, self.pool, self.pid = engine, pool, os.getpid()
        self.kept: list[Container] = []
        self.runs = 0
        self._idle = asyncio.Event()

    @contextmanager
    def used(self) -> Iterator[None]:
        """By one run. One that is ended because we are closed says so, whatever its own end looked like to it."""
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
        """What runs is killed, and has removed its containers by itself before the connection goes."""
        self.engine.closing.set()
        self.pool.close()
        while self.runs:
            self._idle.clear()
            await self.engine.kill_all()
            with suppress(TimeoutError):
                async with asyncio.timeout(_ROUND):
                    await self._idle.wait()
        await self.pool.aclose()
        for container in self.kept:
            await container.remove()
        await self.engine.aclose()


async def _on_another(loop: asyncio.AbstractEventLoop, here: _Here) -> bool:
    """Whether it could be closed on its own loop, which runs in another thread if it runs at all."""
    if not loop.is_running():
        return False

    async def close() -> None:
        await uncancellable(here.aclose())

    work = close()
    try:
        closing = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))
    except RuntimeError:  # the loop has been closed meanwhile
        work.close()
        return False
    while not closing.done() and loop.is_running():
        await asyncio.wait([closing], timeout=_ROUND)
    if not closing.done() or closing.cancelled():  # it was stopped before it came to this
        return False
    closing.result()
    return True


def _promise(box: Box) -> Isolation:
    """What the engine will say if it does as it is told."""
    limits = Limits()
    wanted = (
        boxes.direct(box, ("true",), {}, None, True)
        if box.direct
        else boxes.waiting(box, boxes.spec(box, "python", limits))
    )
    host = {"IpcMode": "private", **wanted["HostConfig"]}
    mounts = [{**mount, "Destination": mount["Target"], "RW": not mount["ReadOnly"]} for mount in host["Mounts"]]
    return inspection.isolation({"HostConfig": host, "Config": wanted, "Mounts": mounts}, {}, direct=box.direct)


def _limits(runtime: str | None) -> frozenset[str]:
    """gVisor has no bound on files, and its processes are only bounded by the threads that it needs for them."""
    every = frozenset(Limits.__struct_fields__)
    return every - {"files", "processes"} if inspection.is_gvisor(runtime) else every


def _must_hold(limits: Limits, runtime: str | None) -> None:
    """What was promised of the runtime that was asked for, where the engine has chosen another."""
    usual = Limits()
    for name in _limits(None) - _limits(runtime):
        if getattr(limits, name) != getattr(usual, name):
            raise Unsupported(
                f"a limit on {name} can't be had",
                why=f"the engine runs containers with {runtime}, which has none",
                next=f"leave the limit on {name} as it is",
            )


def _must_fit(request: Request) -> None:
    limits, total = request.limits, sum(map(len, request.files.values()))
    if total > limits.disk or len(request.files) > limits.files:
        raise Unsupported(
            "the files don't fit into a container",
            why=f"{len(request.files)} files of {total} bytes, where {limits.files} of {limits.disk} may be",
            next="raise the limits `disk` and `files`",
        )
