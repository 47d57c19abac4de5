"""One container, from its creation to its removal."""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ...lib.errors import BackendError
from ...models import Stream
from ..base import uncancellable
from .engine import CannotRemove, Engine, NoImage, labels, readable_errors
from .stub import READY

if TYPE_CHECKING:
    from aiodocker.containers import DockerContainer
    from aiodocker.stream import Stream as Attached

_STREAMS: dict[int, Stream] = {1: "stdout", 2: "stderr"}
_GONE, _CONFLICT, _UNREACHABLE = 404, 409, 900  # the last is aiodocker's own code
_TRIES, _PAUSE = 6, 0.25
_NEWS = 5.0  # seconds within which the engine must have heard from its runtime that a container ended
_REMOVAL = 60.0
_PATIENCE = 60.0  # seconds that a stub has to start; long, because an engine under load is slow


class Container:
    """One container. Call create, attach, start, wait and remove in this order; always call `remove`, also after
    errors.

    `hosts` is our file that is mounted as /etc/hosts in it, if any: it may be gone, and that is an error of its own.
    """

    def __init__(self, engine: Engine, settings: dict[str, Any], *, pull: bool = False, hosts: str = "") -> None:
        self._engine, self._settings, self._pull, self._hosts = engine, settings, pull, hosts
        # Chosen here and known before the engine answers, so a container that the engine made while we were cancelled
        # can still be removed.
        self.name = f"redoma-{secrets.token_hex(8)}"
        self._asked_for = False
        self._container: DockerContainer | None = None
        self._stream: Attached | None = None
        self.inspected: dict[str, Any] = {}
        """The engine's own description of the container, from before anything ran in it."""
        self.begun: float | None = None
        """When it was started, by the clock of the engine's events."""
        self.ended = False
        """Whether the engine has confirmed that no process of it is alive."""
        self.frozen = False
        self._end: asyncio.Task[dict[str, Any]] | None = None

    @property
    def _about(self) -> dict[str, str]:
        host = self._settings["HostConfig"]
        facts = {
            "image": self._settings["Image"],
            "runtime": host.get("Runtime", ""),
            "user": self._settings["User"],
            "program": self._settings["Cmd"][0],
            "hosts": self._hosts,
            "init": "docker-init" if host.get("Init") else "",
        }
        return {name: str(value) for name, value in facts.items()}

    async def create(self) -> None:
        """Create the container; pull a missing image first if that is allowed. Raises `BackendError`."""
        await self._engine.client()
        await self._engine.remove_leftovers()
        settings = {**self._settings, "Labels": labels()}
        try:
            await uncancellable(self._ask_for(settings))
        except NoImage:
            if not self._pull:
                raise
            await self._engine.pull(settings["Image"])
            await uncancellable(self._ask_for(settings))

    async def _ask_for(self, settings: dict[str, Any]) -> None:
        """Create it. Must not be interrupted: the engine would finish the creation after we had tried the removal."""
        async with self._engine.requests(**self._about) as client:
            self._asked_for = True
            self._engine.names.add(self.name)
            self._container = await client.containers.create(settings, name=self.name)

    async def attach(self) -> None:
        """Connect to its streams. Must come before `start`, or early output would be lost."""
        container = self._made()
        async with self._engine.requests(**self._about):
            self._stream = container.attach(stdin=True, stdout=True, stderr=True)
            await self._stream._init()
        self.inspected = container._container  # filled in by attaching

    async def start(self) -> None:
        """Start its command."""
        container = self._made()
        if self._settings["HostConfig"].get("AutoRemove"):
            # An auto-removed container takes its exit code with it, so wait for it from the start.
            self._end = asyncio.create_task(container.wait(condition="removed"))
            await asyncio.sleep(0)
        self.begun = time.time()
        async with self._engine.requests(**self._about):
            await container.start()

    async def wait_until_ready(self) -> None:
        """Wait until the stub reports that it is ready. Raises `BackendError` if it doesn't."""
        said: dict[Stream, bytes] = {"stdout": b"", "stderr": b""}
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                while said["stdout"] != READY:
                    piece = await self.read()
                    if piece is None or len(said["stdout"]) > len(READY):
                        break
                    said[piece[0]] += piece[1][:4096]
        if said["stdout"] != READY:
            raise BackendError(
                f"the image {self._about['image']!r} can't be used",
                why=f"{self._about['program']} does not start in it: "
                + (said["stderr"] or said["stdout"]).decode("utf-8", "replace").strip()[-500:],
                next="try it with `docker run`, or use another image",
            )

    async def pid(self) -> int:
        """Return the pid of its first process on the engine's machine. Raises `BackendError` if the container has
        ended.
        """
        async with self._engine.requests():
            state = (await self._made().show())["State"]
        if not state.get("Running") or not state.get("Pid"):
            raise BackendError("the container was lost", why="it has ended", next="run it again")
        return int(state["Pid"])

    def _made(self) -> DockerContainer:
        if self._container is None:
            raise BackendError("the container is not there", why="it was never made", next="report it")
        return self._container

    async def mode_of(self, path: str) -> int | None:
        """Return the mode of a file in it, with the bits of Go's `FileMode`; None if there is no such file."""
        import aiodocker

        async with self._engine.requests() as client:
            try:
                async with client._query(f"containers/{self._made().id}/archive", params={"path": path}) as response:
                    about = json.loads(base64.b64decode(response.headers["X-Docker-Container-Path-Stat"]))
                    response.close()  # only the header is needed
                    return int(about["mode"])
            except aiodocker.DockerError as error:
                if error.status == _UNREACHABLE:
                    raise
                return None  # also if a part of the path is not a directory, which engines report in different words

    # --- while it runs ---

    async def read(self) -> tuple[Stream, bytes] | None:
        """Return the next piece of output; None at the end."""
        if self._stream is None:
            return None
        with readable_errors():
            message = await self._stream.read_out()
        return None if message is None else (_STREAMS.get(message.stream, "stdout"), message.data)

    async def write(self, data: bytes) -> bool:
        """Write to its input. Returns False once the input is no longer read."""
        if self._stream is None or self._transport() is None:
            return False
        try:
            await self._stream.write_in(data)
        except (ConnectionError, RuntimeError, AssertionError):
            return False  # it ended or closed its input before reading everything, which is not an error
        return True

    def end_input(self) -> None:
        """Close its input; output can still be read."""
        transport = self._transport()
        if transport is not None and not transport.is_closing() and transport.can_write_eof():
            transport.write_eof()

    def _transport(self) -> Any:
        # Bypasses aiodocker, which can only close both directions at once.
        response = self._stream._resp if self._stream is not None else None
        connection = response.connection if response is not None else None
        return connection.transport if connection is not None else None

    async def signal(self, number: int) -> None:
        """Send a signal to its pid 1. Does nothing if the container has ended."""
        await self._try(lambda container: container.kill(signal=str(number)))

    async def freeze(self, frozen: bool) -> None:
        """Pause all its processes, or let them continue."""
        self.frozen = frozen
        await self._try(lambda container: container.pause() if frozen else container.unpause())

    async def _try(self, ask: Callable[[DockerContainer], Awaitable[Any]]) -> Any:
        import aiodocker

        async with self._engine.requests_while_closing():
            try:
                return await ask(self._made())
            except aiodocker.DockerError as error:
                # It may have ended meanwhile. The runtime knows that before the engine and reports it in its own words,
                # so ask the engine whether it ended.
                if error.status not in (_GONE, _CONFLICT) and not await self._has_ended(_NEWS):
                    raise

    async def _has_ended(self, patience: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                return await self.exited()
        return False

    async def stats(self) -> dict[str, Any]:
        """Return the engine's statistics for it; empty if it has ended."""
        asked: dict[str, str | int] = {"stream": 0, "one-shot": 1}
        answer = await self._try(
            lambda container: container.docker._query_json(f"containers/{container.id}/stats", params=asked)
        )
        return answer if isinstance(answer, dict) else {}

    # --- the end ---

    async def exited(self) -> bool:
        """Wait until it has ended. Returns False if the engine can't tell. Cancelling this doesn't cancel the request
        to the engine: `wait` uses it.
        """
        if self._end is None:
            self._end = asyncio.create_task(self._made().wait())
        await asyncio.wait([self._end])
        error = self._end.exception()
        return error is None or getattr(error, "status", None) == _GONE

    async def wait(self) -> int:
        """Wait until it has ended, and return its exit code. Raises `BackendError` if the engine lost it."""
        import aiodocker

        with readable_errors():
            try:
                ending = await (self._end or self._made().wait())
            except aiodocker.DockerError as error:
                if error.status != _GONE:
                    raise
                ending = {"StatusCode": 128 + signal.SIGKILL}  # it was removed while it ran, which kills it first
        if ending.get("Error"):
            raise BackendError("the container was lost", why=str(ending["Error"]), next="run it again")
        self.ended = True
        return int(ending["StatusCode"])

    async def ran_out_of_memory(self) -> bool:
        """Return whether the engine knows by now that the kernel's OOM killer killed one of its processes."""
        import aiodocker

        async with self._engine.requests():
            try:
                return bool((await self._made().show())["State"].get("OOMKilled"))
            except aiodocker.DockerError as error:
                if error.status != _GONE:
                    raise
        return await self.events("oom") > 0  # it was auto-removed

    async def events(self, kind: str) -> int:
        """Return the number of events of this kind since it was started; also works after its removal."""
        filters = {"container": [self._made().id], "event": [kind]}
        async with self._engine.requests() as client:
            async with client._query(
                "events",
                params={
                    "since": f"{self.begun or 0:.6f}",
                    "until": f"{time.time():.6f}",
                    "filters": json.dumps(filters),
                },
            ) as response:
                return len((await response.read()).splitlines())

    async def let_go(self) -> None:
        """Close our connection to it; the container itself stays."""
        if self._end is not None:
            self._end.cancel()
            await asyncio.gather(self._end, return_exceptions=True)
        if (transport := self._transport()) is not None:
            transport.abort()  # a close would wait until the input still in the buffer is read
        stream, self._stream = self._stream, None
        if stream is not None and stream._resp is not None:
            # the engine closed the connection, which aiodocker's `close` doesn't expect
            if stream._resp.connection is None:
                stream._closed = True
                stream._resp.close()
            else:
                await stream.close()

    async def remove(self) -> None:
        """Kill and remove it, with its anonymous volumes. A cancellation doesn't interrupt this; calling it twice is
        safe.

        Raises `CannotRemove` if it may still be alive.
        """
        await uncancellable(self._remove())

    async def _remove(self) -> None:
        await self.let_go()
        if not self._asked_for:
            return
        why = "its removal has not come to an end"
        for number in range(_TRIES):
            try:
                async with asyncio.timeout(_REMOVAL):
                    if await self._delete():
                        self._engine.names.discard(self.name)
                        return
            except (BackendError, TimeoutError) as error:
                why = str(error) or why
            await asyncio.sleep(_PAUSE * (number + 1))
        self._engine.to_remove.add(self.name)
        if not self.ended:  # otherwise nothing of it is alive, and it can be removed later
            raise CannotRemove(f"the container {self.name} can't be removed", why=why, next=f"docker rm -f {self.name}")

    async def _delete(self) -> bool:
        """Ask the engine once to remove it. Returns whether it is gone."""
        import aiodocker

        async with self._engine.requests_while_closing() as client:
            container = client.containers.container(self.name)
            if self.frozen:  # gVisor can't be killed while paused, and the engine takes ten seconds to notice
                self.frozen = False
                with suppress(aiodocker.DockerError):  # the pause had failed, or the container has ended
                    await container.unpause()
            try:
                await container.delete(force=True, v=True)
            except aiodocker.DockerError as error:
                if error.status == _GONE:
                    return True
                if error.status == _CONFLICT:
                    return False  # its removal is in progress: the caller asks again until it is gone
                raise
        return True
