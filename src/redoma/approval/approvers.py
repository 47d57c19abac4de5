"""Approvers: ways to ask a person. Each must answer exactly the question it was given; the gate checks that."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from ..lib.errors import Absent, ApprovalError
from ..models import Approval
from .ask import Ask
from .ledger import Ledger

_FIRST_LOOK, _MAX_PAUSE = 0.05, 1.0  # seconds between looks into the ledger, doubled each time


NOBODY = "a person has to approve this, and no approver is configured"


class Approver(Protocol):
    """Asks a person, or decides in another way."""

    async def decide(self, ask: Ask) -> Approval | None:
        """Return the answer, made with `ask.answer(…)`; None if there was none in time. Raises `Absent` if no person
        can be asked here.
        """
        ...


class Deny:
    """Refuses everything. This is the default."""

    async def decide(self, ask: Ask) -> Approval | None:
        raise Absent(NOBODY)


class Callback:
    """Calls a function of yours, which may be asynchronous; another one is called in a thread. An exception means no;
    after `timeout` seconds there is no answer.
    """

    def __init__(
        self, function: Callable[[Ask], Approval | Awaitable[Approval | None] | None], *, timeout: float = 300.0
    ) -> None:
        import inspect

        self._function, self._timeout = function, timeout
        self._is_awaitable = inspect.isawaitable
        self._waits = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)

    async def decide(self, ask: Ask) -> Approval | None:
        try:
            async with asyncio.timeout(self._timeout):
                call = self._function
                answer = call(ask) if self._waits else await asyncio.to_thread(call, ask)
                return await answer if self._is_awaitable(answer) else answer
        except TimeoutError:
            return None


class Queue:
    """Waits at most `wait` seconds for an answer by `redoma approvals`, in this or another process."""

    def __init__(self, ledger: Ledger, *, wait: float = 300.0) -> None:
        self._ledger, self._wait = ledger, wait

    async def decide(self, ask: Ask) -> Approval | None:
        loop, pause = asyncio.get_running_loop(), _FIRST_LOOK
        deadline = loop.time() + self._wait
        while await asyncio.to_thread(self._ledger.is_open, ask.id) and (left := deadline - loop.time()) > 0:
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, _MAX_PAUSE)
        entry = await asyncio.to_thread(self._ledger.load, ask.id)
        return entry.approval if entry.state in ("approved", "denied") else None


class Chain:
    """Asks several approvers in turn until one answers. If one is absent or gives no answer, the next is asked."""

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
