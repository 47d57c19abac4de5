"""A sandbox provider for inspect_ai: `inspect eval task.py --sandbox redoma`.

inspect_ai finds it by its entry point. Each sample has a session of its own: a cell (or container) with its files, in
which every `exec` is a process that goes on beside the others. Raises what inspect_ai's `SandboxEnvironment` says.
"""

from __future__ import annotations

import asyncio
import errno
import os
from typing import Any, Literal, overload

import msgspec
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from pydantic import BaseModel, ConfigDict
from typing_extensions import override

from ..config import load
from ..lib.errors import BackendError, InvalidRequest, RedomaError
from ..models import Result, Status
from ..pipeline.executor import AsyncExecutor
from ..sessions.session import AsyncSession

_LIFETIME = 7 * 86400.0
_MAX_SANDBOXES = 10_000
_USERS = ("guest", "1000")
"""Who code in a cell is, by name and by number."""
_START = 'cd -- "$0" && exec "$@"'
"""Run by a shell that is named by its path: the program itself is looked for by the PATH of the sandbox."""
_NOT_EXECUTABLE = 126


class RedomaSandboxConfig(BaseModel):
    """What a task can say of its sandboxes: `sandbox=SandboxEnvironmentSpec("redoma", RedomaSandboxConfig(…))`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    backend: str = "auto"
    """`jail` or `docker`."""
    memory: str | int | None = None
    """Maximum memory of a sandbox, such as `"2GiB"`; by default as configured."""
    disk: str | int | None = None
    """Maximum size of all files of a sandbox."""
    processes: int = 1000
    env: dict[str, str] = {}
    policy: str = "none"
    """Which pack judges the commands. By default none does: an evaluation looks at what a model does, and the sandbox
    contains that."""


class _Shared:
    """The executor of all sandboxes on one event loop, while there are any."""

    def __init__(self) -> None:
        config = load()
        sessions = msgspec.structs.replace(
            config.sessions, maximum=_MAX_SANDBOXES, idle=_LIFETIME, lifetime=_LIFETIME, grace=2.0
        )
        self.executor = AsyncExecutor(msgspec.structs.replace(config, sessions=sessions))
        self.users = 0


_shared: dict[asyncio.AbstractEventLoop, _Shared] = {}


@sandboxenv(name="redoma")
class RedomaSandboxEnvironment(SandboxEnvironment):
    """One sandbox: `sample_init` makes it, `sample_cleanup` ends it."""

    def __init__(self, session: AsyncSession, policy: str) -> None:
        super().__init__()
        self._session, self._policy = session, policy

    # --- its life ---

    @override
    @classmethod
    async def sample_init(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        asked = _config(config)
        loop = asyncio.get_running_loop()
        if loop not in _shared:
            _shared[loop] = _Shared()
        shared = _shared[loop]
        shared.users += 1
        try:
            limits: dict[str, Any] = {
                "time": _LIFETIME,
                "processes": asked.processes,
                "output_lines": 10_000_000,
                "output_bytes": SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE,
                "output_total": 1 << 30,
            }
            limits |= {name: size for name in ("memory", "disk") if (size := getattr(asked, name)) is not None}
            session = AsyncSession(
                shared.executor,
                backend=asked.backend,
                limits=limits,
                env=asked.env,
                policy=asked.policy,
                label=task_name,
            )
            await session.open()
        except BaseException:
            await _leave(loop)
            raise
        return {"default": cls(session, asked.policy)}

    @override
    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        for environment in environments.values():
            try:
                await environment.as_type(RedomaSandboxEnvironment)._session.aclose()
            finally:
                await _leave(asyncio.get_running_loop())

    @override
    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        return RedomaSandboxConfig(**config)

    # --- what it is for ---

    @override
    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        if user is not None and user not in _USERS:
            raise SandboxUserUnsupportedError(
                f"a sandbox of Redoma has no user {user!r}: all of its code runs as {_USERS[0]!r}, and none as root"
            )
        words = ["/bin/sh", "-c", _START, cwd or ".", *cmd]
        try:
            process = await self._session.start(words, env=env, timeout=timeout, policy=self._policy)
        except BackendError as error:
            raise _unavailable(error) from error
        try:
            if input:
                await process.write_stdin(input)
            process.close_stdin()
            await process.wait()
            return _answer(cmd, process.result, timeout)
        except BackendError as error:
            raise _unavailable(error) from error
        finally:
            await process.close()

    @override
    async def write_file(self, file: str, contents: str | bytes) -> None:
        try:
            about = await self._session.files.stat(file)
            if about.kind == "file" and not about.mode & 0o200:  # a new file would take its place all the same
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), file)
        except (FileNotFoundError, NotADirectoryError):
            pass  # it is new
        try:
            await self._session.files.write(file, contents)
        except OSError as error:
            if error.errno == errno.EROFS:
                raise PermissionError(errno.EACCES, "the file system can only be read", file) from error
            raise

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    @override
    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        try:
            content = await self._session.files.read(file, max_bytes=limit)
        except InvalidRequest as error:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None) from error
        except NotADirectoryError as error:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), file) from error
        return content.decode() if text else content

    @override
    def default_polling_interval(self) -> float:
        return 0.2


async def _leave(loop: asyncio.AbstractEventLoop) -> None:
    shared = _shared[loop]
    shared.users -= 1
    if not shared.users:
        del _shared[loop]
        await shared.executor.aclose()


def _config(given: SandboxEnvironmentConfigType | None) -> RedomaSandboxConfig:
    if given is None:
        return RedomaSandboxConfig()
    if not isinstance(given, RedomaSandboxConfig):
        raise InvalidRequest(
            f"a sandbox of Redoma can't be configured by {given!r}",
            why="it takes no file",
            next='write sandbox=SandboxEnvironmentSpec("redoma", RedomaSandboxConfig(memory="2GiB"))',
        )
    return given


def _answer(cmd: list[str], result: Result, timeout: int | None) -> ExecResult[str]:
    """What inspect_ai gets for a command that has ended, or the error that it knows for that."""
    if result.status is Status.TIMEOUT and timeout is not None:
        raise TimeoutError(f"{cmd[0]} did not end within {timeout} s")
    if result.status is Status.OUTPUT or result.omitted:
        raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, result.stdout)
    code = result.shell_exit
    if code == _NOT_EXECUTABLE and "Permission denied" in result.stderr:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), cmd[0])
    return ExecResult(success=code == 0, returncode=code, stdout=result.stdout, stderr=result.stderr)


def _unavailable(error: RedomaError) -> Exception:
    from inspect_ai.util import SandboxUnavailableError

    return SandboxUnavailableError(str(error))
