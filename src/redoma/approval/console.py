"""Asks the person at the terminal."""

from __future__ import annotations

import asyncio
import os
import select
import termios
import threading
from collections.abc import Callable
from typing import Literal

from ..lib.errors import Absent
from ..models import Approval
from .ask import Ask
from .ledger import Ledger
from .show import describe

TERMINAL = "/dev/tty"
one_at_a_time = threading.Lock()  # with two questions at once, a yes could be taken for an answer to the other one
_PAUSE = 0.1  # seconds between checks whether a waiting question is still needed


def _is_ours_in_foreground(terminal: int) -> bool:
    return os.tcgetpgrp(terminal) == os.getpgrp()


_terminal: str | None = None
"""The terminal to ask at, if it is not our own."""
_is_in_foreground: Callable[[int], bool] = _is_ours_in_foreground


def use_terminal(path: str, is_in_foreground: Callable[[int], bool]) -> None:
    """From now on, ask at the terminal of another process, on whose behalf this one works. An empty path means that it
    has none. `is_in_foreground` takes the opened terminal and says whether that process is in its foreground.
    """
    global _terminal, _is_in_foreground
    _terminal, _is_in_foreground = path, is_in_foreground


class Console:
    """Shows the whole question, and lets it run only after a `yes` typed in full. Anything else means no.

    It uses the controlling terminal, not standard input and output: these may be pipes, and what comes through a pipe
    was not typed by a person. If there is no terminal, or we are in its background, no person can be asked.
    """

    def __init__(self, approver: str, ledger: Ledger, *, timeout: float = 300.0) -> None:
        """`approver` is the name of the person. `timeout`: for how many seconds each question waits."""
        self._approver, self._ledger, self._timeout = approver, ledger, timeout

    async def decide(self, ask: Ask) -> Approval | None:
        stop, stopped = os.pipe()
        try:
            asking = asyncio.ensure_future(asyncio.to_thread(self._ask, ask, stop))
            try:
                return await asyncio.shield(asking)
            except asyncio.CancelledError:
                os.write(stopped, b"x")  # a thread can't be cancelled, but this one polls the pipe
                await asyncio.wait([asking])
                raise
        finally:
            os.close(stop)
            os.close(stopped)

    def _ask(self, ask: Ask, stop: int) -> Approval | None:
        while not one_at_a_time.acquire(timeout=_PAUSE):
            if select.select([stop], [], [], 0)[0]:  # the answer is not needed any more
                return None
        try:
            return self._at_terminal(ask, stop)
        finally:
            one_at_a_time.release()

    def _at_terminal(self, ask: Ask, stop: int) -> Approval | None:
        with _Terminal(stop, self._timeout) as terminal:
            shown = describe(ask)
            terminal.write(f"\n--- redoma: a person has to approve this ---\n{shown.text}\n\n")
            if not shown.whole:
                return self._say(ask, False, "not all of it can be shown at a prompt")
            typed = terminal.line("Type yes to let exactly this run; anything else is no: ")
            if typed is None:
                return None
            if typed != "yes":
                return self._say(ask, False, f"typed {typed[:40]!a}")
            why = terminal.line("Why, for the record: ")
            return None if why is None else self._say(ask, True, why.strip() or "typed yes at the terminal")

    def _say(self, ask: Ask, approved: bool, reason: str) -> Approval:
        decision: Literal["approved", "denied"] = "approved" if approved else "denied"
        return self._ledger.reply(ask, decision, approver=self._approver, reason=reason[:1000])


class _Terminal:
    """The terminal, open while one question is asked."""

    def __init__(self, stop: int, timeout: float) -> None:
        self._stop, self._timeout = stop, timeout
        try:
            self._fd = os.open(TERMINAL if _terminal is None else _terminal, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError as error:
            raise _absent("there is no terminal") from error
        try:
            if not os.isatty(self._fd) or not _is_in_foreground(self._fd):
                raise _absent("Redoma runs in the background of this terminal")
        except BaseException:
            os.close(self._fd)
            raise

    def write(self, text: str) -> None:
        data = text.encode("utf-8", "backslashreplace")
        while data:
            data = data[os.write(self._fd, data) :]

    def line(self, question: str) -> str | None:
        """Return what is typed after the question is shown; None if that takes too long."""
        termios.tcflush(self._fd, termios.TCIFLUSH)  # discard what was typed or pasted before
        self.write(question)
        ready, _, _ = select.select([self._fd, self._stop], [], [], self._timeout)
        if self._fd not in ready or self._stop in ready:
            self.write("\n(nobody has answered)\n")
            return None
        try:
            typed = os.read(self._fd, 4096)
        except OSError:  # the terminal was hung up
            return None
        return typed.decode("utf-8", "replace").removesuffix("\n") if typed.endswith(b"\n") else ""

    def __enter__(self) -> _Terminal:
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._fd)


def _absent(why: str) -> Absent:
    return Absent(
        "a person has to approve this, and nobody can be asked here",
        why=why,
        next="run it at a terminal, or set approval.approver to queue",
    )
