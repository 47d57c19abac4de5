"""Helpers for the tests of containers: a run with its output, and access to the engine without our own code."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from redoma.backends.base import Control, Outcome
from redoma.backends.docker import DockerBackend
from redoma.models import Limits, Request


class Ran:
    """An outcome, and what was printed."""

    def __init__(self, outcome: Outcome, stdout: bytes, stderr: bytes) -> None:
        self.outcome, self.stdout, self.stderr = outcome, stdout.decode(), stderr.decode()

    @property
    def ending(self) -> tuple[str, int | None]:
        return self.outcome.status.value, self.outcome.exit_code


class EndedBefore(AssertionError):
    """A run has ended before it printed what was waited for."""


Meanwhile = Callable[[Control, Callable[[str], Any]], Any]


async def run(backend: DockerBackend, code: str = "", *, meanwhile: Meanwhile | None = None, **given: Any) -> Ran:
    """Run a request. `meanwhile` gets the control, and a function that waits until a text was printed."""
    if isinstance(given.get("limits"), dict):
        given["limits"] = Limits(**{"time": 60.0, **given["limits"]})
    if given.get("argv"):
        given["language"] = "command"
    out = {"stdout": bytearray(), "stderr": bytearray()}
    more = asyncio.Event()
    most: int = given.get("limits", Limits()).output_total

    def sink(stream: str, data: bytes) -> bool:
        out[stream] += data
        more.set()
        return sum(map(len, out.values())) <= most

    async def printed(text: str) -> None:
        while text.encode() not in out["stdout"]:
            if task.done():
                raise EndedBefore(f"it has ended without printing {text!r}: {task}")
            more.clear()
            news = asyncio.create_task(more.wait())
            await asyncio.wait([task, news], return_when=asyncio.FIRST_COMPLETED)
            news.cancel()

    request = Request(code=code, **{"limits": Limits(time=60.0), **given})
    control = Control()
    task = asyncio.create_task(backend.run(request, sink, control if meanwhile else None))
    if meanwhile:
        try:
            await meanwhile(control, printed)
        except EndedBefore:
            await task
            raise
    return Ran(await task, bytes(out["stdout"]), bytes(out["stderr"]))


def docker(*arguments: str, given: bytes = b"") -> str:
    """Run a command as a person would type it. DOCKER_HOST names the engine."""
    done = subprocess.run(["docker", *arguments], input=given, capture_output=True, check=True, timeout=300)
    return done.stdout.decode()


def ours(pid: int | None = None) -> list[str]:
    """Return the names of a process's containers, according to the engine."""
    form, mine = "{{.Names}}", f"label=redoma.pid={pid or os.getpid()}"
    return docker("ps", "--all", "--filter", mine, "--format", form).split()


def inspect(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(docker("inspect", name))[0]
    return found


async def until(true: Callable[[], Any], seconds: float = 120.0) -> Any:
    """Wait for something that another process does. Returns what it gave, or its last answer if it never came true."""

    def look() -> Any:
        try:
            return true()
        except subprocess.CalledProcessError:  # a listed container is gone
            return None

    deadline = time.monotonic() + seconds
    while not (answer := await asyncio.to_thread(look)) and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    return answer


class Line:
    """A connection between us and the engine that can be cut: what was sent before has arrived. It can also swallow
    requests, so that there is no answer.
    """

    def __init__(self, engine: str, path: Path) -> None:
        self._engine, self._path, self.host = engine.removeprefix("unix://"), path, f"unix://{path}"
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self.swallows: Callable[[str], bool] = lambda request: False

    async def lay(self) -> str:
        self._server = await asyncio.start_unix_server(self._connect, self._path)
        return self.host

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        request = await reader.readline()
        if self.swallows(request.decode()):
            while await reader.read(1 << 16):
                continue
            writer.close()
            return
        far_reader, far_writer = await asyncio.open_unix_connection(self._engine)
        self._writers.append(far_writer)
        far_writer.write(request)
        await asyncio.gather(self._pass(reader, far_writer), self._pass(far_reader, writer))
        for end in (writer, far_writer):
            end.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
            writer.write_eof()
        except OSError:
            return

    async def cut(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()
        self._path.unlink(missing_ok=True)
        await asyncio.sleep(0)
