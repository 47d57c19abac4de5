"""Who is asked. Each answers for what it was shown and nothing else; the gate checks that it did."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Protocol

from ..lib.errors import Absent, ApprovalError
from ..models import Approval
from .ask import Ask
from .book import Book

_FIRST_LOOK, _LONGEST_PAUSE = 0.05, 1.0  # seconds between looks into the book, doubled each time


NOBODY = "a person has to approve this, and no approver is configured"


class Approver(Protocol):
    async def decide(self, ask: Ask) -> Approval | None:
        """What somebody said, as `ask.answer(…)` makes it; None if nobody has, in the time there was. `Absent` if
        nobody can be asked here."""
        ...


class Deny:
    """Nobody: the default. No approver means no."""

    async def decide(self, ask: Ask) -> Approval | None:
        raise Absent(NOBODY)


class Callback:
    """A function of yours, ordinary (it is called in a thread) or asynchronous. To raise means no."""

    def __init__(
        self, function: Callable[[Ask], Approval | Awaitable[Approval | None] | None], *, timeout: float = 300.0
    ) -> None:
        self._function, self._timeout = function, timeout
        self._waits = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)

    async def decide(self, ask: Ask) -> Approval | None:
        try:
            async with asyncio.timeout(self._timeout):
                call = self._function
                answer = call(ask) if self._waits else await asyncio.to_thread(call, ask)
                return await answer if inspect.isawaitable(answer) else answer
        except TimeoutError:
            return None


class Queue:
    """Whoever uses `redoma approvals`, there or in another process: waits for what they write into the book."""

    def __init__(self, book: Book, *, wait: float = 300.0) -> None:
        self._book, self._wait = book, wait

    async def decide(self, ask: Ask) -> Approval | None:
        loop, pause = asyncio.get_running_loop(), _FIRST_LOOK
        deadline = loop.time() + self._wait
        while await asyncio.to_thread(self._book.is_open, ask.id) and (left := deadline - loop.time()) > 0:
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)
        entry = await asyncio.to_thread(self._book.load, ask.id)
        return entry.approval if entry.state in ("approved", "denied") else None


class Chain:
    """The first who answers. One who can't be asked, or has not answered in their time, leaves it to the next."""

    def __init__(self, *approvers: Approver) -> None:
        if not approvers:
            raise ApprovalError("a chain of approvers is empty", why="somebody has to decide", next="use Deny()")
        self._approvers = approvers

    async def decide(self, ask: Ask) -> Approval | None:
        absent: Absent | None = None
        for approver in self._approvers:
            try:
                if (answer := await approver.decide(ask)) is not None:
                    return answer
                absent = None
            except Absent as error:
                absent = error
        if absent is not None:
            raise absent
        return None
