"""Telling somebody of a change: who is to be told what is decided purely, from what they were told last.

What counts as told is what was taken: a notice that nobody took is tried again in the next round, and is shown as
failed. It is noted after it was taken, so one that was cut short by a kill is told again, with the `id` it had.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

import msgspec

from ..lib import posting
from ..lib.errors import RedomaError
from ..models import Decision, Status
from ..output.capture import clean
from ..pipeline.executor import AsyncExecutor
from ..redaction import Redactor
from .aside import Aside, Late
from .model import Check, Deed, Notifier, Round, State, Verdict, WebhookNotifier

Heard = Mapping[tuple[str, str], tuple[State, float]]
"""By notifier and check: what it was told last, and when."""
_LONGEST = 4000
_SECONDS = 5.0


class Due(NamedTuple):
    """Something to tell somebody."""

    notifier: str
    verdict: Verdict
    event: Literal["problem", "change", "repeat", "recovery", "silent"]
    """`silent`: it is ok again, and they don't want to hear of it."""
    was: State
    told: float


def due(seen: Round, checks: Iterable[Check], notifiers: Mapping[str, Notifier], heard: Heard) -> list[Due]:
    """Whom to tell what."""
    wanted = {check.name: check.notify for check in checks}
    found = []
    for verdict in seen.verdicts:
        names = wanted.get(verdict.check)
        for name, notifier in notifiers.items():
            was, at = heard.get((name, verdict.check), (State.OK, 0.0))
            event: Any = None
            if verdict.state is not was:
                event = "problem" if was is State.OK else "change"
                if verdict.state is State.OK:
                    event = "recovery" if notifier.recovery else "silent"
            elif verdict.state is not State.OK and notifier.repeat and abs(seen.time - at) >= notifier.repeat:
                event = "repeat"
            if event and (names is None or name in names):
                found.append(Due(name, verdict, event, was, at))
    return found


def notice(host: str, now: float, item: Due) -> bytes:
    """As JSON. What a rule said is bounded, harmless to a terminal, and without secrets."""
    verdict, redactor = item.verdict, Redactor()
    same = [host, verdict.check, verdict.state.word, item.was.word, verdict.since, item.event, item.told]
    return msgspec.json.encode(
        {
            "id": hashlib.sha256(repr(same).encode("utf-8", "backslashreplace")).hexdigest()[:32],
            "event": item.event,
            "host": clean(host, redactor)[0][:_LONGEST],
            "check": verdict.check,
            "state": verdict.state.word,
            "was": item.was.word,
            "message": clean(verdict.message, redactor)[0][:_LONGEST],
            "since": _time(verdict.since),
            "time": _time(now),
            "run": verdict.run,
        }
    )


async def send(
    items: list[Due], notifiers: Mapping[str, Notifier], seen: Round, executor: AsyncExecutor, aside: Aside
) -> AsyncIterator[tuple[Due, str]]:
    """Tell all of them; each as soon as it is known, with why it could not be told, or nothing. They are told at one
    time: who hangs holds up nobody for longer than its own time."""

    async def one(item: Due) -> tuple[Due, str]:
        notifier, body = notifiers[item.notifier], notice(seen.host, seen.time, item)
        if item.event == "silent":
            return item, ""
        if isinstance(notifier, WebhookNotifier):
            return item, await _post(f"{item.notifier} {item.verdict.check}", notifier.url, body, aside)
        return item, await _run(executor, notifier.run, notifier.command, body)

    for answer in asyncio.as_completed([one(item) for item in items]):
        yield await answer


async def _post(name: str, url: str, body: bytes, aside: Aside) -> str:
    """Why it could not be posted; empty if it was. One who answers a byte at a time must not hold up our exit, nor get
    another connection each round."""
    try:
        failed = await aside.run(name, lambda: posting.post(url, body, _SECONDS), _SECONDS)
    except Late as late:
        return str(late)
    return failed.why if failed else ""


async def _run(executor: AsyncExecutor, address: str, command: str, body: bytes) -> str:
    """Why it could not be told by a command; empty if it was."""
    try:
        submission = executor.prepare(command, address, {"stdin": body, "reason": "a notice of the monitor"})
        if executor.config.entries[address].command_whitelist is None:
            return f"{address} has no command_whitelist: a notice is only given to a command on one"
        if executor.judge(submission).evaluation.decision is Decision.PROMPT:
            return "policy wants a person to approve this command, and nobody can for every notice: choose another"
        result = await executor.submit(submission)
    except RedomaError as error:
        return str(error)
    if result.status is Status.OK:
        return ""
    return result.error or f"{result.status.value}: {result.stderr.strip()[-200:]}"


def deed_of(item: Due, now: float, failure: str) -> Deed:
    what = {"repeat": f"still {item.verdict.state.word}", "recovery": "ok again"}.get(
        item.event, item.verdict.state.word
    )
    return Deed(
        time=now,
        kind="notice",
        check=item.verdict.check,
        name=item.notifier,
        state=item.verdict.state,
        ok=not failure,
        text=f"told: {what}" if not failure else f"could not be told: {failure[:500]}",
    )


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
