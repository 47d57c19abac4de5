"""Runs Lua scripts, and does what they request: get configured executors, and start and drive processes on them.

A script names executors and processes by its own numbers, so it can't reach any other processes. Every command takes
the usual path, through the entry's whitelist, the policy and the audit log.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

import redoma.exec
from redoma.backends.lua import backend as lua
from redoma.backends.lua.backend import LuaBackend, as_bytes, as_latin, as_text
from redoma.lib.errors import InvalidRequest
from redoma.models import Submission
from redoma.pipeline import intake
from redoma.pipeline.intake import Options

if TYPE_CHECKING:
    from redoma.backends.jail import JailBackend
    from redoma.exec import AsyncProcess, AsyncProcessExecutor
    from redoma.pipeline.executor import AsyncExecutor

T = TypeVar("T")

_BACKENDS = ("auto", "jail", "native")
_MAX_EXECUTORS, _MAX_PROCESSES = 16, 64  # open at a time
_MAX_COMMANDS = 10_000  # commands of one script: each is written to the audit log
_MAX_COMMAND_BYTES, _MAX_ALL_BYTES = 128 << 10, 16 << 20  # bytes of one command, and of all, for the same reason
_PIECE = 64 << 10  # characters of output that are passed on at a time


class Scripts:
    """Runs Lua scripts on an executor. Close it before the executor."""

    def __init__(self, executor: AsyncExecutor) -> None:
        self._executor = executor
        self._cells: JailBackend | None = None

    def ask(self, source: str, argv: tuple[str, ...], options: Options) -> Submission:
        """Return a submission for a script. `argv` is its name and its arguments. Raises `InvalidRequest` for a backend
        without Lua.
        """
        executor, backend = self._executor, options.get("backend", "auto")
        if backend not in _BACKENDS:
            raise InvalidRequest(
                f"Lua can't run on {backend}", why=f"it runs on {', '.join(_BACKENDS)}", next="leave the backend out"
            )
        options = {**options, "network": options.get("network") or ()}  # only its commands reach hosts, if any
        request = intake.build(executor.config, executor.backends, options, code=source, argv=argv, language="lua")
        broker = Broker(executor, options.get("policy"))
        if backend == "native":
            on = LuaBackend(executor.backends["native"], broker, lua.on_host)
        else:
            self._cells = self._cells or lua.cells()
            on = LuaBackend(self._cells, broker, lua.in_cell)
        return Submission(msgspec.structs.replace(request, backend=on.name), options.get("policy"), own_backend=on)

    async def aclose(self) -> None:
        if self._cells is not None:
            await self._cells.aclose()


class Broker:
    """Answers the questions of one script. Its commands are judged by the policy that was chosen for the script."""

    def __init__(self, executor: AsyncExecutor, policy: str | None = None) -> None:
        self._executor, self._policy = executor, policy
        self._numbers = itertools.count(1)
        self._executors: dict[int, AsyncProcessExecutor] = {}
        self._processes: dict[int, tuple[int, AsyncProcess]] = {}
        self._started = self._asked = 0

    async def answer(self, question: lua.Question) -> lua.Answer:
        """Do what a script requests. Returns the answer. Raises `RedomaError`, which the script gets as an error."""
        match question:
            case lua.Get():
                return self._get(as_text(question.entry))
            case lua.Exec():
                return await self._exec(question)
            case lua.Release():
                return await self._release(question.executor)
            case lua.Close():
                return await self._close(question.process)
            case lua.Read() | lua.CloseStream():
                return await self._read(question)
            case _:
                return await self._drive(question)

    def _get(self, entry: str) -> int:
        if len(self._executors) >= _MAX_EXECUTORS:
            raise _too_many("executors", _MAX_EXECUTORS, "release those that are done")
        number = next(self._numbers)
        self._executors[number] = redoma.exec.aget(entry, self._executor)
        return number

    async def _exec(self, question: lua.Exec) -> int:
        executor = _find("executor", self._executors, question.executor)
        if len(self._processes) >= _MAX_PROCESSES:
            raise _too_many("processes", _MAX_PROCESSES, "close those that have ended")
        if self._started >= _MAX_COMMANDS:
            raise _too_many("commands", _MAX_COMMANDS, "run another script for the rest")
        self._count(question)
        command = question.command
        options: dict[str, Any] = {"env": {as_text(name): as_text(value) for name, value in question.env.items()}}
        if question.work_dir is not None:
            options["work_dir"] = as_text(question.work_dir)
        words = as_text(command) if isinstance(command, str) else list(map(as_text, command))
        made = executor.exec(words, options, policy=self._policy)
        number = next(self._numbers)
        self._processes[number] = question.executor, made
        return number

    def _count(self, question: lua.Exec) -> None:
        """Count a command before anything else, since it is always written to the log. Raises `InvalidRequest` for one
        too many or too long.
        """
        words = [question.command] if isinstance(question.command, str) else question.command
        size = sum(map(len, (*words, *question.env, *question.env.values(), question.work_dir or "")))
        if size > _MAX_COMMAND_BYTES:
            raise InvalidRequest(
                "the command is too long",
                why=f"it has {size} bytes, its variables included, and may have {_MAX_COMMAND_BYTES}",
                next="pass data as input, or in a file",
            )
        if self._asked + size > _MAX_ALL_BYTES:
            raise _too_many("commands", _MAX_ALL_BYTES, "run another script for the rest", " bytes of them")
        self._started += 1
        self._asked += size

    async def _release(self, number: int) -> bool:
        await _find("executor", self._executors, number).release()
        del self._executors[number]
        self._processes = {key: held for key, held in self._processes.items() if held[0] != number}
        return True

    async def _close(self, number: int) -> bool:
        await self._process(number).close()
        del self._processes[number]
        return True

    async def _read(self, question: lua.Read | lua.CloseStream) -> lua.Answer:
        process = self._process(question.process)
        stream = process.stdout_stream() if question.stream == "stdout" else process.stderr_stream()
        if isinstance(question, lua.CloseStream):
            stream.close()
            return True
        return as_latin(await stream.read(min(question.size or _PIECE, _PIECE))) or None

    async def _drive(self, question: lua.Start | lua.Write | lua.CloseStdin | lua.Signal | lua.Wait) -> lua.Answer:
        process = self._process(question.process)
        match question:
            case lua.Wait():
                return await process.wait()
            case lua.Start():
                await process.start()
            case lua.Write():
                await process.write_stdin(as_bytes(question.text))
            case lua.CloseStdin():
                process.close_stdin()
            case lua.Signal():
                process.signal(question.number)
        return True

    def _process(self, number: int) -> AsyncProcess:
        return _find("process", self._processes, number)[1]

    async def aclose(self) -> None:
        """End what the script has started."""
        while self._executors:
            _, executor = self._executors.popitem()
            await executor.release()  # it waits only for processes that are still referenced
        self._processes.clear()


def _find(kind: str, held: dict[int, T], number: int) -> T:
    if number not in held:
        raise InvalidRequest(f"this {kind} is gone", why="it was closed or released", next="get a new one")
    return held[number]


def _too_many(what: str, maximum: int, hint: str, unit: str = "") -> InvalidRequest:
    return InvalidRequest(f"there are too many {what}", why=f"a script may have {maximum}{unit}", next=hint)
