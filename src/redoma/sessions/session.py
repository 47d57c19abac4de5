"""The public session classes.

    with redoma.Session() as session:
        session.run("x = 41")
        session.run("x + 1").value      # 42
        session.command("ls -la").stdout

`AsyncSession` is the implementation; `Session` drives it from ordinary code.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, TypedDict, Unpack, cast

import msgspec

from ..backends.base import uncancellable
from ..backends.jail import JailBackend
from ..exec import Process, ProcessControl
from ..lib.errors import BackendError, InvalidRequest, RedomaError
from ..lib.types import resolved
from ..models import Effect, Isolation, Language, Limits, PolicyView, Request, Result, Submission
from ..models.request import new_id
from ..output.live import Live
from ..pipeline import intake
from ..pipeline.executor import AsyncExecutor
from ..pipeline.intake import Files, Options
from ..pipeline.sync import Driven, Executor, default, driven, driven_end, on_loop, wrapped
from ..redaction import Redactor
from ..telemetry import INFO, tell
from ..workspace.kept import Kept
from .alarm import Alarm
from .channel import Channel
from .folder import AsyncFiles, FilesOfSession
from .image import SessionImage
from .overlay import Overlay
from .place import Places, boot
from .runs import (
    CALLBACKS,
    AsyncSessionProcess,
    AsyncSessionRun,
    Event,
    Followed,
    ProcessOptions,
    RunOptions,
    deliver,
    must_have_no_callbacks,
    terminal_size,
)
from .turn import ProcessTurn, Turn
from .worker import MAIN

_OF_A_RUN = frozenset({"time", "output_lines", "output_bytes", "output_total"})
"""Limits that apply to each run; the others apply to the session as a whole."""
_MAX_OPENING = 8  # copies that are opened at a time


class SessionOptions(TypedDict, total=False):
    """Options of a session. Those that `redoma.run` also has apply to all runs of the session together."""

    backend: str
    """`"jail"`, `"docker"`, or `"auto"`: the first of them that works here."""
    policy: str | None
    limits: Limits | Mapping[str, Any] | None
    timeout: float | None
    """The default time-out of a run, in seconds."""
    memory: int | str | None
    env: Mapping[str, str]
    secrets: Mapping[str, str]
    environment: str | None
    packages: Iterable[str] | None
    """Only packages that are installed already."""
    files: Files
    require: Iterable[str]
    workspace: Any
    project: Any
    reason: str
    requester: str
    label: str
    idle: float
    """End the session after this many seconds without use; by default as configured."""
    lifetime: float
    """End the session after this many seconds in any case; by default as configured."""


class SessionUsage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a session uses. The numbers come from inside the session, so its code can fake them."""

    cpu_ms: Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
    """Milliseconds of processor time used so far."""
    memory: Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
    """Bytes of memory that all its processes use."""
    disk: Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
    """Bytes that its files take."""
    disk_total: Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
    """Bytes that its files may take."""


class AsyncSession:
    """A Python that keeps its variables, in its own cell. Use it as an asynchronous context manager, or call `aclose`.

    Without an `executor` it creates its own; pass one to share it between several sessions.
    """

    def __init__(self, executor: AsyncExecutor | None = None, **options: Unpack[SessionOptions]) -> None:
        intake.must_be_known("option", options, SessionOptions.__annotations__)
        self._owned = AsyncExecutor() if executor is None else None
        self._executor = executor = executor or cast("AsyncExecutor", self._owned)
        self._family = {self}
        """This session and its copies: the last one that is closed closes `_owned`."""
        self._options = options
        self.id = uuid.uuid4().hex
        """The id that its runs are recorded with. The id of a copy begins with its parent's."""
        self._forked = 0
        config = executor.config.sessions
        self._idle = _positive("idle", options.get("idle", config.idle))
        self._lifetime = _positive("lifetime", options.get("lifetime", config.lifetime))
        self.grace = config.grace
        self._places = executor.kept("sessions", lambda: Places(executor))
        self._backend, self._loaded = self._places.find(options.get("backend", "auto"))
        self.name = self._backend.name
        asked = self._asked_for()
        self.limits = asked.limits
        """Those of each run that has none of its own."""
        can = self._backend.capabilities()
        self._boot = {
            "recursion": asked.limits.recursion,
            "passes_descriptors": can.image is not None,
            "line": can.descriptors,
        }
        self._request = self._of_driver(asked)
        self.reach = self._backend.reach.over(self._request.workspace)
        overlay = self._request.workspace == "overlay"
        self._overlay = Overlay(executor, self._request) if overlay else None
        self.lock = asyncio.Lock()
        self.current: Turn | None = None
        self._opening = asyncio.Lock()
        self._channel: Channel | None = None
        self._end_reason = ""
        """Why we have ended it, or are about to; empty otherwise. `ended` also knows ends that are not ours."""
        self._processes: dict[asyncio.Task[Result], AsyncSessionProcess] = {}
        self._plain: dict[Language, Submission] = {}
        """A submission in each language as one without options has it, but for its code."""
        self.alarm = Alarm()
        self._idle_alarm = Alarm()
        self.files = AsyncFiles(self)
        """Its files."""

    def _asked_for(self) -> Request:
        """Return the options as a request without code. Raises `InvalidRequest` for what no session can have."""
        own = {"idle", "lifetime", "policy"}
        options = cast("Options", {name: value for name, value in self._options.items() if name not in own})
        options["backend"] = self.name
        request = intake.build(self._executor.config, self._executor.backends, options, code="", language="python")
        can_overlay = self._backend.capabilities().descriptors
        if request.workspace == "direct" or (request.workspace == "overlay" and not can_overlay):
            raise InvalidRequest(
                f"a session on {self.name} can't have the workspace {request.workspace!r}",
                why="what it changes there can't be looked at while it lives",
                next="use overlay on the jail, or scratch or read-only",
            )
        if request.uses is not None and not request.uses.digest:
            raise InvalidRequest(
                f"{', '.join(request.uses.packages)} can't be used in this session",
                why="a session installs nothing",
                next="create an environment: redoma env create NAME PACKAGE...",
            )
        return request

    def _of_driver(self, asked: Request) -> Request:
        """Return the request of the driver: to the backend, a session is one long run of it."""
        limits = msgspec.structs.replace(
            asked.limits,
            time=self._lifetime,
            # As long as it lives, unless somebody has said otherwise.
            cpu=self._lifetime if asked.limits.cpu == Limits().cpu else asked.limits.cpu,
            recursion=max(asked.limits.recursion, Limits().recursion),
        )
        return msgspec.structs.replace(asked, limits=limits, code=boot(self._boot, loaded=self._loaded))

    # --- its life ---

    async def open(self) -> None:
        """Start the session now rather than with its first run. Raises `BackendError` if it can't be started."""
        await self.opened()

    def warm(self) -> None:
        """Keep a cell ready for the next session of this executor; does nothing on docker. Raises `BackendError` if
        there can be no cell."""
        if isinstance(self._backend, JailBackend):
            self._backend.warm()

    async def opened(self) -> Channel:
        if self.alive and not self._end_reason and not self._opening.locked() and self._channel is not None:
            self._postpone()
            return self._channel
        async with self._opening:
            if self._end_reason:
                raise BackendError("the session has ended", why=self._end_reason, next="restart() it, or open another")
            if self._channel is None:
                self._channel = await self._open()
                await self._close_if_ended()
            if self._channel.ended.done():
                raise self._channel.gone()
            self._postpone()
            return self._channel

    async def _close_if_ended(self) -> None:
        """Close it again if `aclose` was called while it was being opened."""
        if self._end_reason and self._channel is not None:
            await self._channel.close()

    async def _open(self) -> Channel:
        self._places.take()
        try:
            channel = Channel(self._backend, self._request)
            await channel.open()
        except BaseException:
            self._places.give_back()
            raise
        return self._entered(channel)

    async def _open_copy(self, image: SessionImage, patch: int = -1) -> None:
        """Start as a copy of another session; `patch` contains the changes that it had made to its project."""
        self._places.take()
        try:
            code = boot({**self._boot, "copy": True}, loaded=self._loaded)
            channel = Channel(self._backend, msgspec.structs.replace(self._request, code=code, files={}))
            changes = [({"do": "patch"}, patch)] if patch >= 0 else []
            with image.to_read() as file:
                await channel.open(*changes, ({"do": "become", "size": image.size}, file))
        except BaseException:
            self._places.give_back()
            raise
        self._channel = self._entered(channel)
        await self._close_if_ended()
        self._postpone()

    def _entered(self, channel: Channel) -> Channel:
        channel.ended.add_done_callback(self._left)
        tell(INFO, "session.opened", session=self.id, backend=self.name)
        return channel

    def _left(self, _ended: object) -> None:
        self._places.give_back()
        tell(INFO, "session.ended", session=self.id)
        self.alarm.close()
        self._idle_alarm.close()

    def _postpone(self) -> None:
        """Restart the idle time."""
        self._idle_alarm.set(asyncio.get_running_loop().time() + self._idle, self._expire)

    def _expire(self) -> None:
        if self.current is not None or self.processes:
            self._postpone()
        elif self._channel is not None:
            self._end_reason = f"it was not used for {self._idle:g} s"
            self._closing = asyncio.get_running_loop().create_task(self._channel.close())

    @property
    def isolation(self) -> Isolation:
        """The isolation of its code, as probed from inside once the session is open."""
        return self._channel.isolation if self._channel is not None else self._backend.capabilities().isolation

    def __repr__(self) -> str:
        state = self.ended or ("open" if self.alive else "not opened yet")
        return f"<AsyncSession {self.id} on {self.name}: {state}>"

    @property
    def works_over_a_project(self) -> bool:
        """Whether its workspace is `overlay`, so that its changes can be examined and applied."""
        return self._overlay is not None

    @property
    def alive(self) -> bool:
        """Whether it has been opened and has not ended."""
        return self._channel is not None and not self._channel.ended.done()

    @property
    def busy(self) -> bool:
        """Whether something runs in it."""
        return self.current is not None

    @property
    def ended(self) -> str:
        """Why it has ended; empty if it has not."""
        if self._end_reason:
            return self._end_reason
        return self._channel.gone().why if self._channel is not None and self._channel.ended.done() else ""

    def interrupt(self) -> bool:
        """Interrupt the current run, as Ctrl-C does. Returns whether there was one."""
        if self.current is None:
            return False
        self.current.interrupt()
        return True

    async def complete(self, text: str, *, context: str = MAIN) -> list[str]:
        """Return the completions of `text`: names in a context, or attributes (`x.app`). Empty while something runs."""
        channel = await self.opened()
        if self.lock.locked():
            return []
        async with self.lock:
            try:
                async with asyncio.timeout(1.0):
                    _, body = await channel.ask({"do": "complete", "text": text, "context": context}, of_python=True)
                return msgspec.json.decode(body[:1_000_000], type=list[str])[:200]
            except (TimeoutError, msgspec.DecodeError):
                return []

    async def forget(self, context: str = MAIN) -> None:
        """Drop the variables of a context. Waits for the current run."""
        async with self.lock:
            channel = await self.opened()
            await channel.ask({"do": "forget", "context": context}, of_python=True)

    async def usage(self) -> SessionUsage:
        """Return what its processes and files use now. Raises `BackendError` if its answer is invalid."""
        channel = await self.opened()
        _, body = await channel.ask({"do": "usage"})
        try:
            return msgspec.json.decode(body[:4096], type=resolved(SessionUsage))
        except msgspec.DecodeError:
            raise BackendError("the session does not say what it uses", why="its answer makes no sense") from None

    async def restart(self) -> None:
        """Start a new Python, without the variables and processes of the old one. Files stay, unless the session had
        ended: then it starts from nothing."""
        if self.alive and self._channel is not None:
            await self._channel.restart()
            self._postpone()
            return
        self._end_reason, self._channel = "", None
        await self.opened()

    async def fork(self, n: int = 1) -> list[AsyncSession]:
        """Return `n` copies of the session as it is now, each in its own cell, with its variables, imports and files.

        Copies share nothing that can be changed, with the session or with each other. Each is a session like any other,
        with the same options: close it when done. Waits for the current run first.

        Raises:
            Unsupported: Its backend can't copy sessions; only the jail can, here or on the session's node.
            BackendError: It has something that can't be copied (threads, processes, sockets), uses too much memory, or
                there are too many sessions.
        """
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise InvalidRequest(f"n is {n!r}", why="it is the number of copies", next="write fork(2)")
        async with self.lock:
            channel = await self.opened()
            image, patch = SessionImage(self._backend, self._request.limits.memory), -1
            copies: list[AsyncSession] = []
            try:
                await image.take(channel)
                if self._overlay is not None:
                    patch = await self._overlay.patch(channel.read_changes)
                copies.extend(self._copy() for _ in range(n))  # those made before one fails are closed
                await _all_opened(copies, image, patch)
            except BaseException:
                await uncancellable(asyncio.gather(*(copy.aclose() for copy in copies)))
                raise
            finally:
                image.close()
                if patch >= 0:
                    os.close(patch)
        tell(INFO, "session.forked", session=self.id, copies=n)
        return copies

    def _copy(self) -> AsyncSession:
        self._forked += 1
        copy = AsyncSession(self._executor, **self._options)
        copy.id = f"{self.id}.{self._forked}"
        copy._owned, copy._family = self._owned, self._family
        self._family.add(copy)
        if copy._overlay is not None and self._overlay is not None:
            copy._overlay.close()
            copy._overlay = self._overlay.copy()
        return copy

    # --- its project ---

    async def changes(self) -> Effect:
        """Return what it has changed in its project so far (`workspace="overlay"`). The project itself is unchanged.
        Waits for the current run; changes that background processes make meanwhile may be missing."""
        async with self.lock:
            overlay, channel = await self._open_overlay()
            return await overlay.effect(channel.read_changes)

    async def keep(self) -> Kept:
        """Keep its changes so far under an id, for `redoma changes`: they can be applied after the session has ended.
        Raises `WorkspaceError` if there are none."""
        async with self.lock:
            overlay, channel = await self._open_overlay()
            return await overlay.keep(channel.read_changes, self.id)

    async def apply(
        self, *, paths: Iterable[str] | None = None, named: Iterable[str] = (), by_hand: bool = False, wait: bool = True
    ) -> Kept:
        """Apply its changes so far to its project, all or nothing; the session continues. Takes the options of
        `AsyncExecutor.apply` and raises the same. Policy judges every run that the session has made."""
        kept = await self.keep()
        overlay, _ = await self._open_overlay()
        return await overlay.apply(kept, paths=paths, named=named, by_hand=by_hand, wait=wait)

    async def discard(self) -> None:
        """Drop its changes to its project. Variables and other files stay: the session continues as a copy of itself
        in a new cell. Raises what `fork` raises; then nothing has changed."""
        async with self.lock:
            overlay, old = await self._open_overlay()
            image = SessionImage(self._backend, self._request.limits.memory)
            try:
                await image.take(old)
                await self._open_copy(image)
            finally:
                image.close()
            overlay.forget()
            await old.close("its changes were discarded")
            self._postpone()  # the end of the old one has stopped its alarm

    async def _open_overlay(self) -> tuple[Overlay, Channel]:
        """Return the overlay over its project, and its channel, which is opened if necessary. Raises `InvalidRequest`
        if it has no overlay, and what `opened` raises."""
        if self._overlay is None:
            raise InvalidRequest(
                "the session has no project to change",
                why=f"its workspace is {self._request.workspace!r}",
                next='open it with workspace="overlay"',
            )
        return self._overlay, await self.opened()

    async def aclose(self) -> None:
        """End the session: nothing of it is left when this returns. Safe to call twice."""
        self._end_reason = self._end_reason or "it was closed"
        self._idle_alarm.close()
        if self._channel is not None:
            await self._channel.close()
        if self._overlay is not None:
            self._overlay.close()
        self._family.discard(self)
        if self._owned is not None and not self._family:
            await self._owned.aclose()

    async def __aenter__(self) -> AsyncSession:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    # --- runs ---

    async def run(self, code: str, language: Language = "python", **options: Unpack[RunOptions]) -> Result:
        """Run source text and return its `Result`. Variables, imports, files and the working directory stay.

        Raises `InvalidRequest` for options that make no sense, and `CallbackError` if a callback raised.
        """
        return await self._run({"code": code, "language": language}, options)

    async def bash(self, script: str, **options: Unpack[RunOptions]) -> Result:
        """Run a Bash script. The next run starts where it ended, with the variables that it exported."""
        return await self.run(script, "bash", **options)

    async def javascript(self, code: str, **options: Unpack[RunOptions]) -> Result:
        """Run JavaScript in its own process: files stay, its variables don't."""
        return await self.run(code, "javascript", **options)

    async def command(self, command: str | Iterable[str], **options: Unpack[RunOptions]) -> Result:
        """Run a command: a string is a line of Bash, a list is a program with its arguments."""
        if isinstance(command, str):
            return await self.run(command, "bash", **options)
        argv = intake.words("argv", command)
        return await self._run({"argv": argv, "language": "command"}, options)

    async def start(self, command: str | Iterable[str], **options: Unpack[ProcessOptions]) -> AsyncSessionProcess:
        """Start a command in the background: a string is a line of Bash, a list is a program with its arguments.

        Args:
            command: What to run, in the directory where the last run ended, with the variables that were exported.
            options: Those of `ProcessOptions`: `env`, `cwd`, `pty`, `size`, `whole_output`, `timeout`, `policy`,
                `reason`, `requester`, `label`.

        Returns:
            The process, with `stdout_stream()`, `write_stdin()`, `signal()`, `wait()` and `close()`. It ends with the
            session at the latest.

        Raises:
            Refused: Policy or a person refused it.
            BackendError: The session has ended.
        """
        process = self.process(command, **options)
        await process.start()
        return process

    def process(self, command: str | Iterable[str], **options: Unpack[ProcessOptions]) -> AsyncSessionProcess:
        """Make a process for the background without starting it. Takes what `start` takes."""
        intake.must_be_known("option", options, ProcessOptions.__annotations__)
        what: dict[str, Any] = {"language": "bash", "code": command}
        if not isinstance(command, str):
            what = {"language": "command", "argv": intake.words("argv", command)}
        cwd, size = options.get("cwd", ""), options.get("size")
        if not isinstance(cwd, str) or "\0" in cwd:
            raise InvalidRequest(f"cwd is {cwd!r}", why="it is a path inside the session", next='write cwd="/tmp"')
        control = ProcessControl()
        control.lasts = True
        turn = ProcessTurn(self, pty=options.get("pty", False), size=size and terminal_size(*size), cwd=cwd)
        chosen = cast("RunOptions", {**options, "env": options.get("env") or {}})
        submission = self._submission(what, chosen, turn)
        if options.get("timeout") is None:
            submission = self._untimed(submission)
        submission = msgspec.structs.replace(submission, control=control, unread_input=True, live_input=True)
        whole = options.get("whole_output", False)
        return AsyncSessionProcess(self, self._executor, submission, control, turn, whole=whole)

    def entered(self, process: AsyncSessionProcess) -> None:
        """Keep a process that was started: it goes on also if nobody refers to it."""
        self._processes[process.started()] = process
        process.started().add_done_callback(self._processes.pop)
        self._postpone()

    @property
    def processes(self) -> list[AsyncSessionProcess]:
        """The background processes that have not ended."""
        return [process for task, process in self._processes.items() if not task.done()]

    def stream(self, code: str, language: Language = "python", **options: Unpack[RunOptions]) -> AsyncSessionRun:
        """Run source text and follow it: `async with … as run`, `async for event in run` (a `Chunk` of output or a
        `Display`), then `run.result`. If nobody asks for the next event, the code is blocked once it has printed a lot.
        """
        must_have_no_callbacks(options)
        return self._stream({"code": code, "language": language}, options)

    def stream_command(self, argv: Iterable[str], **options: Unpack[RunOptions]) -> AsyncSessionRun:
        """Run a program with its arguments and follow it as `stream` does."""
        must_have_no_callbacks(options)
        return self._stream({"argv": intake.words("argv", argv), "language": "command"}, options)

    async def _run(self, what: dict[str, Any], options: RunOptions) -> Result:
        if not any(options.get(name) for name in CALLBACKS):
            return await self._executor.submit(self._prepared(what, options)[0])
        run = self._stream(what, options)
        async with run:
            return await deliver(run, options)

    def _stream(self, what: dict[str, Any], options: RunOptions) -> AsyncSessionRun:
        submission, turn = self._prepared(what, options)
        request = submission.request
        live = Live(request.limits, Redactor(request.secrets.values()), whole=options.get("whole_output", False))
        return AsyncSessionRun(live, self._executor, submission, turn)

    def _prepared(self, what: dict[str, Any], options: RunOptions) -> tuple[Submission, Turn]:
        if not options:
            turn = Turn(self, context=MAIN)
            return self._plain_submission(what, turn), turn
        intake.must_be_known("option", options, RunOptions.__annotations__)
        turn = Turn(
            self,
            context=options.get("context", MAIN),
            directory=options.get("cwd", ""),
            traceback_apart=options.get("traceback_apart", False),
            charts=options.get("charts", False),
        )
        submission = self._submission(what, options, turn)
        return self._untimed(submission) if options.get("untimed") else submission, turn

    def _untimed(self, submission: Submission) -> Submission:
        """Return the submission with the session's lifetime as its time limit. Policy judges the original limit."""
        limits = msgspec.structs.replace(submission.request.limits, time=self._lifetime)
        request = msgspec.structs.replace(submission.request, limits=limits)
        return msgspec.structs.replace(submission, request=request, view=PolicyView.of(request, submission.request))

    def _plain_submission(self, what: dict[str, Any], turn: Turn) -> Submission:
        """Do the same as `_submission` without options. Only the code is read: to read the options of the session again
        would take as long as a short run."""
        code, language = what.get("code"), what["language"]
        if type(code) is not str or type(language) is not str:
            return self._submission(what, {}, turn)
        if (form := self._plain.get(language)) is None:
            submission = self._submission(what, {}, turn)
            request = msgspec.structs.replace(submission.request, code="")
            self._plain[language] = msgspec.structs.replace(submission, request=request, own_backend=None)
            return submission
        request = msgspec.structs.replace(form.request, code=intake.source(code), id=new_id())
        return self._noted(msgspec.structs.replace(form, request=request, own_backend=turn), turn)

    def _submission(self, what: dict[str, Any], options: RunOptions, turn: Turn | ProcessTurn) -> Submission:
        own = self._options
        given = cast(
            "Options",
            {
                "backend": self.name,
                "limits": self._limits_of(options),
                "secrets": self._request.secrets,
                "require": self._request.require,
                "policy": options.get("policy", own.get("policy")),
                "wait": options.get("wait", True),
                **{name: options[name] for name in ("args", "stdin", "env", "expect") if name in options},
                **{name: options.get(name) or own.get(name, "") for name in ("reason", "requester", "label")},
            },
        )
        request = intake.build(self._executor.config, self._executor.backends, given, **what)
        submission = intake.submission(request, given, own_backend=turn, session=self.id, keep_inputs=False)
        return self._noted(submission, turn)

    def _noted(self, submission: Submission, turn: Turn | ProcessTurn) -> Submission:
        """Have the overlay note the submission when it begins to run."""
        if self._overlay is not None:
            turn.began = partial(self._overlay.note, submission)
        return submission

    def _limits_of(self, options: RunOptions) -> Limits:
        given = intake.limits_given(options)
        asked = msgspec.structs.asdict(given) if isinstance(given, Limits) else dict(given or {})
        for name in asked.keys() - _OF_A_RUN:
            if name in Limits.__struct_fields__:
                raise InvalidRequest(
                    f"the limit {name!r} was given to a run in a session",
                    why="it holds for the session as a whole",
                    next="give it to the session",
                )
        intake.must_be_known("limit", asked, Limits.__struct_fields__)
        return msgspec.structs.replace(self.limits, **asked) if asked else self.limits


async def _all_opened(copies: list[AsyncSession], image: SessionImage, patch: int) -> None:
    """Open all copies, several at a time. If one fails, wait for the others and raise its error."""
    few = asyncio.Semaphore(_MAX_OPENING)

    async def open_one(copy: AsyncSession) -> None:
        async with few:
            await copy._open_copy(image, patch)

    failed = [
        each
        for each in await asyncio.gather(*map(open_one, copies), return_exceptions=True)
        if isinstance(each, BaseException)
    ]
    if failed:
        raise failed[0]


def _positive(name: str, seconds: Any) -> float:
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds <= 604800:
        raise InvalidRequest(
            f"{name} is {seconds!r}", why="it is a number of seconds, of a week at most", next=f"write {name}=600"
        )
    return float(seconds)


class SessionRun(Driven[Followed]):
    """A run that is being followed: its output and displays in order, then its `result`."""

    @property
    def result(self) -> Result:
        """The result, once the run has ended."""
        return self.core.result

    def next_event(self) -> Event | None:
        """Return the next chunk of output or display; None after the last one."""
        return self._executor.wait(self.core.next_event())

    def close(self) -> None:
        """End the run if it still goes on."""
        with suppress(RedomaError):  # the executor is closed: that has ended everything
            self._executor.wait(self.core.aclose())

    def __iter__(self) -> Iterator[Event]:
        while (event := self.next_event()) is not None:
            yield event


class SessionProcess(Process):
    """A background process of a session."""

    core: AsyncSessionProcess

    @property
    def id(self) -> str:
        """The id of its run."""
        return self.core.id

    @property
    def pid(self) -> int:
        """Its process id inside the session, as the session reports it."""
        return self.core.pid

    resize = on_loop(AsyncSessionProcess.resize)

    def __repr__(self) -> str:
        return f"<SessionProcess {self.id}, pid {self.pid}>"


class Session(Driven[AsyncSession]):
    """A Python that keeps its variables, in its own cell. Use it as a context manager, or call `close` when done.

    Without an `executor` it uses the one behind `redoma.run`. Any number of threads may share a session; their runs
    take turns.
    """

    def __init__(self, executor: Executor | None = None, **options: Unpack[SessionOptions]) -> None:
        executor = executor or default()
        super().__init__(AsyncSession(executor.core, **options), executor)
        self.files = FilesOfSession(self.core.files, executor)
        """Its files."""

    open = driven(AsyncSession.open)
    run = driven(AsyncSession.run)
    bash = driven(AsyncSession.bash)
    javascript = driven(AsyncSession.javascript)
    command = driven(AsyncSession.command)
    restart = driven(AsyncSession.restart)
    complete = driven(AsyncSession.complete)
    changes = driven(AsyncSession.changes)
    keep = driven(AsyncSession.keep)
    apply = driven(AsyncSession.apply)
    discard = driven(AsyncSession.discard)
    forget = driven(AsyncSession.forget)
    usage = driven(AsyncSession.usage)
    interrupt = on_loop(AsyncSession.interrupt)
    stream = wrapped(AsyncSession.stream, SessionRun)
    stream_command = wrapped(AsyncSession.stream_command, SessionRun)
    close = driven_end(AsyncSession.aclose)

    def start(self, command: str | Iterable[str], **options: Unpack[ProcessOptions]) -> SessionProcess:
        """Start a command in the background: see `AsyncSession.start`."""
        return SessionProcess(self._executor.wait(self.core.start(command, **options)), self._executor)

    def fork(self, n: int = 1) -> list[Session]:
        """Return copies of the session as it is now: see `AsyncSession.fork`."""
        return [Session._of(core, self._executor) for core in self._executor.wait(self.core.fork(n))]

    @classmethod
    def _of(cls, core: AsyncSession, executor: Executor) -> Session:
        session = cls.__new__(cls)
        Driven.__init__(session, core, executor)
        session.files = FilesOfSession(core.files, executor)
        return session

    @property
    def processes(self) -> list[SessionProcess]:
        """The background processes that have not ended."""
        return [SessionProcess(process, self._executor) for process in self.core.processes]

    @property
    def id(self) -> str:
        return self.core.id

    @property
    def alive(self) -> bool:
        """Whether it has been opened and has not ended."""
        return self.core.alive

    @property
    def ended(self) -> str:
        """Why it has ended; empty if it has not."""
        return self.core.ended

    @property
    def busy(self) -> bool:
        """Whether something runs in it."""
        return self.core.busy

    @property
    def isolation(self) -> Isolation:
        """The isolation of its code, as probed from inside once the session is open."""
        return self.core.isolation

    def __repr__(self) -> str:
        return repr(self.core).replace("AsyncSession", "Session", 1)

    def __enter__(self) -> Session:
        self.open()
        return self
