"""Where tool calls run: an executor, the sessions that clients have opened, and who calls."""

from __future__ import annotations

import asyncio
import re
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Literal, NamedTuple, TypeVar

import anyio
import msgspec
from mcp.server.mcpserver import Context

from ...approval import Ask, describe
from ...approval.ledger import utc_now
from ...lib.errors import InvalidRequest
from ...lib.sanitise import sanitise
from ...models import Language, Result, Stream, Submission, WorkspaceKind
from ...pipeline.executor import AsyncExecutor
from ...pipeline.intake import user
from ...sessions import AsyncSession
from ...workspace.kept import Kept

_MAX_QUESTION = 20_000
"""Characters of a question that a client's form can be expected to show."""
_PAUSE = 0.25
"""Seconds between notices of progress."""
_NOT_IN_A_NAME = re.compile(r"[^a-z0-9._-]+")
_MAX_NAME = 40

T = TypeVar("T")


class Caller(NamedTuple):
    """Who calls a tool."""

    requester: str
    """Its name in requests, approvals and the audit log."""
    owner: str = ""
    """Whose sessions it can use."""
    key: Any = None
    """The key of the service, over HTTP."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool call wants run."""

    language: Language
    code: str = ""
    argv: tuple[str, ...] = ()
    stdin: str = ""
    files: dict[str, str] = {}
    outputs: tuple[str, ...] = ()
    network: tuple[str, ...] = ()
    timeout: float | None = None
    reason: str = ""
    workspace: WorkspaceKind = "scratch"
    project: str = ""

    @property
    def limits(self) -> dict[str, float]:
        return {} if self.timeout is None else {"time": self.timeout}


def client_name(ctx: Context[Any, Any]) -> str:
    """Return the name that the client gives itself, as a short plain word. It is not verified."""
    params = ctx.session.client_params
    name = params.client_info.name if params else ""
    return _NOT_IN_A_NAME.sub("-", name.lower()).strip("-.")[:_MAX_NAME] or "unknown"


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Await work in its own task. If we are cancelled, cancel the task once and wait for its end.

    The SDK cancels every further `await`, too, also those that end a run and write its record.
    """
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([task])
        raise


class Progress:
    """Reports the progress of a run to the client: its last line, and how many characters it has printed."""

    def __init__(self, ctx: Context[Any, Any]) -> None:
        self._ctx, self._count, self._told = ctx, 0, 0.0
        meta = ctx.request_context.meta
        self.wanted = meta is not None and "progress_token" in meta

    async def __call__(self, stream: Stream, text: str) -> None:
        self._count += len(text)
        if (now := time.monotonic()) - self._told < _PAUSE:
            return
        self._told = now
        last = sanitise(text).strip().rpartition("\n")[2][-200:]
        await self._ctx.report_progress(self._count, message=last)

    async def stdout(self, text: str) -> None:
        await self("stdout", text)

    async def stderr(self, text: str) -> None:
        await self("stderr", text)


class ToolHost(ABC):
    """Where tool calls run. Subclasses determine who calls, and what a caller may request."""

    executor: AsyncExecutor

    def __init__(self) -> None:
        self._sessions: dict[str, tuple[str, AsyncSession]] = {}
        self._opening = Counter[str]()

    @abstractmethod
    def caller(self, ctx: Context[Any, Any]) -> Caller:
        """Return who makes this call."""

    @abstractmethod
    def prepare(self, caller: Caller, wanted: Wanted) -> Submission:
        """Return a submission that does not wait for a person. Raises `RedomaError` if it may not be requested."""

    @abstractmethod
    def may_answer(self, caller: Caller) -> bool:
        """Return whether the person at the client may approve requests of the client."""

    @abstractmethod
    def project_name(self, path: str) -> str:
        """Return the caller's name of a project."""

    def max_sessions(self, caller: Caller) -> int:
        """Return how many sessions a caller may have. The executor limits their total."""
        return self.executor.config.sessions.maximum

    @abstractmethod
    def must_be_within(self, limits: dict[str, Any]) -> None:
        """Raise `InvalidRequest` for limits that the caller may not request."""

    @abstractmethod
    async def apply(self, caller: Caller, id: str, paths: tuple[str, ...] | None, named: tuple[str, ...]) -> Kept:
        """Apply kept changes, without waiting for a person. Raises as `AsyncExecutor.apply` does."""

    @abstractmethod
    async def discard(self, caller: Caller, id: str) -> Kept:
        """Drop kept changes."""

    @abstractmethod
    async def undo(self, caller: Caller, id: str) -> Kept:
        """Take back what was applied."""

    def words(self, text: str) -> str:
        """Return a message as the caller may see it."""
        return text

    def result(self, result: Result) -> Result:
        """Return a result as the caller may see it."""
        return result

    @asynccontextmanager
    async def turn(self, caller: Caller) -> AsyncIterator[None]:
        """Context manager around each run of a caller, for quotas."""
        yield

    # --- runs ---

    async def run(self, ctx: Context[Any, Any], wanted: Wanted) -> Result:
        """Run it in a new cell. If a person must approve it, the result is `pending`."""
        caller = self.caller(ctx)
        submission, progress = self.prepare(caller, wanted), Progress(ctx)

        async def work() -> Result:
            async with self.turn(caller):
                if not progress.wanted:
                    return await self.executor.submit(submission)
                async with self.executor.follow(submission) as live:
                    return await live.deliver(progress)

        return self.result(await to_its_end(work()))

    async def run_in(self, ctx: Context[Any, Any], session_id: str, wanted: Wanted) -> Result:
        """Run it in a session. If a person must approve it, the result is `pending`."""
        caller = self.caller(ctx)
        session, progress = self.session(caller, session_id), Progress(ctx)
        for name in ("files", "outputs", "network"):
            if getattr(wanted, name):
                raise InvalidRequest(
                    f"{name} was given with a session",
                    why="a session has its own",
                    next="leave it, or session_id, out" if name == "network" else "use write_file and read_file",
                )
        self.must_be_within(wanted.limits)
        options: dict[str, Any] = {
            "timeout": wanted.timeout,
            "stdin": wanted.stdin,
            "reason": wanted.reason,
            "requester": caller.requester,
            "wait": False,
        }
        if progress.wanted:
            options |= {"on_stdout": progress.stdout, "on_stderr": progress.stderr}

        async def work() -> Result:
            async with self.turn(caller):
                if wanted.language == "command":
                    return await session.command(list(wanted.argv), **options)
                return await session.run(wanted.code, wanted.language, args=wanted.argv, **options)

        return self.result(await to_its_end(work()))

    # --- sessions ---

    async def open_session(self, ctx: Context[Any, Any], seconds: float | None) -> AsyncSession:
        """Open a session in which each run may take this many seconds; None for the configured limit."""
        caller = self.caller(ctx)
        self.must_be_within({} if seconds is None else {"time": seconds})
        self._forget_ended()
        alive = [each for each in self.sessions(caller) if each.alive]
        if len(alive) + self._opening[caller.owner] >= self.max_sessions(caller):
            raise InvalidRequest(
                "no more sessions can be opened", why="you have as many as you may", next="close some: session_close"
            )
        session = self.executor.session(requester=caller.requester, timeout=seconds)
        self._opening[caller.owner] += 1  # others may ask for one while this one opens
        try:
            await to_its_end(session.open())
        finally:
            self._opening[caller.owner] -= 1
        self._sessions[session.id] = caller.owner, session
        return session

    def _forget_ended(self) -> None:
        ended = [name for name, (_, session) in self._sessions.items() if not session.alive]
        for name in ended[:-20]:  # the last ones still say why they have ended
            del self._sessions[name]

    def sessions(self, caller: Caller) -> list[AsyncSession]:
        return [session for owner, session in self._sessions.values() if owner == caller.owner]

    def session(self, caller: Caller, session_id: str) -> AsyncSession:
        """Return a session of this caller. Raises `InvalidRequest` if there is none with this id."""
        owner, session = self._sessions.get(session_id, ("", None))
        if session is None or owner != caller.owner:
            raise InvalidRequest(
                f"there is no session {session_id[:64]!r}", why="none was opened under this id", next="use session_open"
            )
        return session

    async def close_session(self, caller: Caller, session_id: str) -> None:
        session = self.session(caller, session_id)
        self._sessions.pop(session_id, None)
        await to_its_end(session.aclose())

    async def aclose(self) -> None:
        """End all sessions."""
        for _, session in list(self._sessions.values()):
            await session.aclose()
        self._sessions.clear()

    # --- a person ---

    async def question(self, caller: Caller, approval: str) -> Ask | None:
        """Return the question for the person at the client; None if it can't be shown as a whole, or they may not
        answer.
        """
        ledger = self.executor.ledger
        if ledger is None or not self.may_answer(caller):
            return None
        entry = await asyncio.to_thread(ledger.load, approval)
        shown = describe(entry.ask)
        return entry.ask if entry.state == "open" and shown.whole and len(shown.text) <= _MAX_QUESTION else None

    async def decide(self, caller: Caller, approval: str, decision: Literal["approved", "denied"], reason: str) -> None:
        """Record the answer of the person at the client. Raises `ApprovalError` if it comes too late."""
        ledger = self.executor.ledger
        if ledger is None or not self.may_answer(caller):
            raise InvalidRequest("this can't be answered here", why="the caller may not", next="use `redoma approvals`")
        entry = await asyncio.to_thread(ledger.load, approval)
        reason = f"{reason.strip()[:1000] or decision} (in the client, {caller.requester})"
        given = entry.ask.answer(decision, approver=user(), reason=reason, at=utc_now())
        await asyncio.to_thread(ledger.answer, given)
