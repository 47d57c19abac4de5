"""The script executor: a Python or Bash script is validated, then run in its own container.

Validation comes first, and nothing runs if it fails (see `validation`). A valid script goes through the same pipeline
as everything else: its intent and its outcome are recorded, its output is bounded and redacted.

`backend="docker"` runs it in `python:3.11-slim` or `bash:5.2-alpine`: no network, 512 MB, one processor, 100 processes,
user nobody, a read-only root, removed afterwards. `backend="jail"` needs no engine and no images: the interpreters are
those of the host, the user is uid 1000 of the cell's own namespace, and "one processor" is a budget of processor time:
as much as one processor could give the script in its time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Literal

from .. import config as configuration
from ..backends.base import uncancellable
from ..config import Config, DockerConfig, JailConfig
from ..lib.errors import InvalidRequest
from ..models import Limits, MiB, PolicyView, Result, Status, Submission
from ..pipeline import intake
from ..pipeline.executor import AsyncExecutor
from .bash_syntax import Bash
from .patterns import PACK
from .validation import ScriptValidator, ValidationResult, malformed, verdict

if TYPE_CHECKING:
    from ..backends.docker import DockerBackend
    from ..backends.jail import JailBackend

_MAX_WARM = 1000  # as in the configuration
# More output is kept than for other runs: scripts are promised no limit on lines.
_OUTPUT_LINES, _OUTPUT_BYTES = 100_000, 8 * MiB
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
# A time-out returns the output so far, so nothing of it may wait in the interpreter's buffer.
_ENV = {"PYTHONUNBUFFERED": "1"}
CPU_GRACE = 5.0  # seconds: a script that keeps one processor busy reaches its time limit first, and that is reported


@dataclass(frozen=True)
class ExecutionResult:
    """How a script ended.

    `exit_code` is the script's own; 128 + n if signal n ended it; -1 if it ran out of time, or could not run because
    there is no engine or image; None if it was refused. A message of ours is in `error` and at the end of `stderr`; if
    a signal ended the script, only in `error`.
    """

    success: bool
    stdout: str
    stderr: str
    exit_code: int | None
    timeout: bool = False
    validation_failed: bool = False
    error: str | None = None
    """Why there is no exit code of the script's own, or what ended it; None if it ended by itself."""


class ScriptExecutor:
    """Runs scripts, any number at a time.

        result = await ScriptExecutor().execute("print(6 * 7)", "python")

    Used like this, everything is released after each run. To run many scripts, keep the connection to the engine (and
    `warm` containers of each kind, made ahead; each is used once) for the length of a block:

        async with ScriptExecutor(warm=2) as scripts:
            results = await asyncio.gather(*(scripts.execute(text, "bash") for text in texts))
    """

    IMAGES: ClassVar = MappingProxyType({"python": "python:3.11-slim", "bash": "bash:5.2-alpine"})
    MEMORY_LIMIT: ClassVar = "512m"
    """In Docker's notation."""
    CPU_LIMIT: ClassVar = 1.0
    """Processors."""
    PID_LIMIT: ClassVar = 100
    """Processes of the container, including ours."""
    DEFAULT_TIMEOUT: ClassVar = 60
    """Seconds."""
    MAX_TIMEOUT: ClassVar = 300
    """Seconds. A higher value is reduced to this."""

    def __init__(
        self,
        backend: Literal["docker", "jail"] = "docker",
        *,
        config: Config | None = None,
        host: str | None = None,
        pull: bool = False,
        warm: int = 0,
    ) -> None:
        """`host` (the engine's address) and `pull` (whether to pull a missing image) are for containers only; by
        default they are as configured. The images are fixed, because scripts may rely on them.
        """
        if backend not in ("docker", "jail"):
            raise InvalidRequest(
                f"scripts can't run on {backend!r}", why="they are promised a boundary", next="use 'docker' or 'jail'"
            )
        if backend == "jail" and (host is not None or pull):
            raise InvalidRequest("host or pull was given to the jail", why="it has no engine", next="leave them out")
        if not isinstance(warm, int) or isinstance(warm, bool) or not 0 <= warm <= _MAX_WARM:
            why = f"it is a number from 0 to {_MAX_WARM}"
            raise InvalidRequest(f"warm is {warm!r}", why=why, next="leave it out, or use a small number such as 2")
        config = config or configuration.load()
        jail = _jail(config.jail, warm) if backend == "jail" else None
        self._backend = jail or self._docker(config.docker, host, pull, warm)
        self._executor = AsyncExecutor(config, backends=(self._backend,))
        self._bash = Bash(jail)
        self._validator = ScriptValidator(executor=self._executor, bash=self._bash)
        self._kept = False
        self._closings = 0

    def _docker(self, config: DockerConfig, host: str | None, pull: bool, warm: int) -> DockerBackend:
        from ..backends.docker import Box, DockerBackend

        box = Box(
            python=self.IMAGES["python"],
            bash=self.IMAGES["bash"],
            network_mode="none",
            user="nobody",
            cpu_quota=int(self.CPU_LIMIT * 100_000),
            # One process of the container is ours. Set here and not in `limits`, which gVisor would refuse: it bounds
            # processes only by the threads that its kernel needs for them.
            pids_limit=self.PID_LIMIT - 1,
            read_only_rootfs=True,
            auto_remove=True,
            seccomp=config.seccomp,
            runtime=config.runtime,
            pull=pull or config.pull,
        )
        return DockerBackend(
            box,
            host=host or config.host,
            minimum=warm,
            maximum=config.maximum,
            queue=config.queue,
            idle=config.idle,
        )

    async def execute(self, script_content: str, script_type: str, timeout: float | None = None) -> ExecutionResult:  # noqa: ASYNC109 - part of the interface
        """Validate a script and run it if it is valid.

        `script_type` is `python` or `bash`; `timeout` is in seconds, 60 by default and 300 at most. Returns the result.
        Raises nothing for what the script is or did, nor for a missing engine or image: the result says so.
        """
        if (problem := malformed(script_content, script_type) or _bad_timeout(timeout)) is not None:
            return _invalid(problem.error)
        seconds = float(min(self.DEFAULT_TIMEOUT if timeout is None else timeout, self.MAX_TIMEOUT))
        request = intake.build(
            self._executor.config,
            [self._backend.name],
            {"backend": self._backend.name, "limits": self._within(seconds), "env": _ENV, "network": ()},
            code=self._validator.judged(script_content),
            language=script_type,
        )
        closings = self._closings
        try:
            objections = await self._validator.objections(request)
            if closings != self._closings:  # closed while Bash was checking
                why = f"{self._backend.name} is closed: its executor was. Next: run it again"
                return ExecutionResult(False, "", why, -1, error=why)
            submission = Submission(request, PACK, objections=objections, view=_ANY_LIMITS)
            return _answer(await self._executor.submit(submission), request.limits)
        finally:
            if not self._kept:
                await uncancellable(self._let_go())

    async def _let_go(self) -> None:
        """Release warm containers and cells that are not in use."""
        await self._backend.let_go()
        await self._bash.let_go()

    def _within(self, seconds: float) -> Limits:
        # A container's processors are limited by a quota, a cell's by the processor time they could give it.
        budget = seconds if self._backend.name == "jail" else self.MAX_TIMEOUT
        return Limits(
            time=seconds,
            cpu=budget * self.CPU_LIMIT + CPU_GRACE,
            memory=_bytes(self.MEMORY_LIMIT),
            processes=self.PID_LIMIT,
            output_lines=_OUTPUT_LINES,
            output_bytes=_OUTPUT_BYTES,
        )

    async def aclose(self) -> None:
        """Release what is kept warm. Running scripts are ended, and their results say so. It can be used again
        afterwards.
        """
        self._kept = False
        self._closings += 1
        await uncancellable(self._close())

    async def _close(self) -> None:
        await self._executor.aclose()
        await self._bash.aclose()

    async def __aenter__(self) -> ScriptExecutor:
        self._kept = True
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()


_ANY_LIMITS = PolicyView(limits=Limits())
"""`MAX_TIMEOUT` decides how long a script may take, so policy doesn't."""


def _jail(config: JailConfig, warm: int) -> JailBackend:
    from ..backends.jail import JailBackend

    return JailBackend(**config.options() | {"minimum": warm})


def _bad_timeout(timeout: object) -> ValidationResult | None:
    if timeout is None:
        return None
    if isinstance(timeout, (int, float)) and not isinstance(timeout, bool) and timeout > 0:  # false for NaN
        return None
    return ValidationResult(False, f"Invalid timeout {repr(timeout)[:80]}: it must be a number of seconds above 0")


def _bytes(size: str) -> int:
    """Return the bytes of a size in Docker's notation: `512m` is 512 MiB."""
    if (found := re.fullmatch(r"([0-9]{1,9})([kmg])", size)) is None:
        raise InvalidRequest(f"MEMORY_LIMIT is {size!r}", why="it is not a size", next="write it as 512m or 1g")
    return int(found[1]) * _UNITS[found[2]]


def _invalid(error: str | None) -> ExecutionResult:
    return ExecutionResult(False, "", error or "", None, validation_failed=True, error=error)


def _answer(result: Result, limits: Limits) -> ExecutionResult:
    """Return the result in the form of this interface."""
    if result.status.ending == "refused":
        return _invalid(verdict(result.evaluation.findings).error or result.error)
    match result.status:
        case Status.OK | Status.ERROR:  # it ended by itself: its output and exit code say everything
            code, error = result.shell_exit, None
        case Status.TIMEOUT if result.denial is not None and result.denial.rule == "limits.time":
            return _failed(result, f"Script execution timed out after {limits.time:g}s")
        case Status.TIMEOUT:  # earlier, by the processor time of all its processes together
            return _failed(result, f"Script execution timed out: {result.error}")
        case Status.FAILED:
            needed = 'without an engine, use ScriptExecutor("jail")' if result.backend in ("", "docker") else ""
            return _failed(result, "; ".join(filter(None, (result.error or "it could not be run", needed))))
        case _:
            code, error = result.shell_exit, result.error
    return ExecutionResult(result.ok, result.stdout, result.stderr, code, error=error)


def _failed(result: Result, message: str) -> ExecutionResult:
    """Return a failed execution: the output so far, followed by the message."""
    printed = result.stderr if not result.stderr or result.stderr.endswith("\n") else f"{result.stderr}\n"
    return ExecutionResult(
        False, result.stdout, printed + message, -1, timeout=result.status is Status.TIMEOUT, error=message
    )
