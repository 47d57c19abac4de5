"""Acts on a round: stores it, sends notices, and runs remedies.

Notices. Whether a notifier gets a notice depends only on what it was last sent. Only an accepted notice counts as sent:
a failed one is shown as failed, and tried again in the next round. A notice is recorded after it was accepted, so one
that was interrupted by a kill is sent again, with the same `id`.

Remedies. Policy and, if policy prompts, a person must allow the command. The round doesn't wait for a person: the
question is put on the list of `redoma approvals`, under the label `monitor:<check>`; once it is approved, the next try
runs the command. A pinned approval lets it run unattended from then on, and a command that differs from the pinned one
is an alarm.

A full disk is something that a monitor must report. So if nothing can be stored, the round still counts, and notices
are sent according to what this process remembers. Only remedies wait, because the time of a try can't be recorded.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

import msgspec

from ..lib import posting
from ..lib.errors import AuditError, RedomaError, StoreError
from ..models import Decision, Result, Status
from ..pipeline.executor import AsyncExecutor
from ..redaction import Redactor, clean
from .collect import BoundedCalls, TimedOut
from .history import History, settle
from .model import Check, CheckResult, Deed, Held, Notifier, Plan, Remedy, Round, State, WebhookNotifier

_log = logging.getLogger("redoma.monitor")
Heard = Mapping[tuple[str, str], tuple[State, float]]
"""By notifier and check: the state it was last told, and when."""
_MAX_TEXT = 4000
NOTICE_SECONDS = 5.0
_RETRY_SECONDS = 300.0
"""Seconds after which a remedy that was refused, or waits for a person, is tried again."""


class Actions:
    """Acts on the rounds of one plan. Remembers what it last read from the history, for when that can't be read."""

    def __init__(self, plan: Plan, executor: AsyncExecutor, history: History) -> None:
        self._checks = {check.name: check for check in plan.checks}
        self._notifiers, self._executor, self._history = plan.notify, executor, history
        self._calls = BoundedCalls()
        self._held: dict[str, Held] = {}
        self._heard: dict[tuple[str, str], tuple[State, float]] = {}

    async def follow(self, found: Round) -> Round:
        """Store a round and act on it. Returns it with the states that count, and with what was done."""
        checks = self._checks.values()
        try:
            seen = self._history.add(found, checks)
            self._held = self._history.held()
        except StoreError as error:
            verdicts, self._held = settle(found.verdicts, self._held, checks, found.time)
            seen = msgspec.structs.replace(found, verdicts=tuple(verdicts))
            return await self._without_memory(seen, error)
        try:
            with self._history.alone() as alone:
                if not alone:  # a `watch` and a `check` at the same time: the other one acts
                    return seen
                self._heard.update(self._history.told())
                return msgspec.structs.replace(seen, deeds=(*await self._tell(seen), *await self._mend(seen)))
        except (StoreError, AuditError) as error:
            return await self._without_memory(seen, error)

    async def _without_memory(self, seen: Round, error: StoreError | AuditError) -> Round:
        _log.error("the history can't be kept: %s", error)
        problems = {**seen.problems, "history": str(error)}
        deeds = (*seen.deeds, *await self._tell(seen, remembering=False))
        return msgspec.structs.replace(seen, problems=problems, deeds=deeds)

    async def _tell(self, seen: Round, *, remembering: bool = True) -> list[Deed]:
        items = notices_due(seen, self._checks.values(), self._notifiers, self._heard)
        deeds = []
        async for item, failure in send(items, self._notifiers, seen, self._executor, self._calls):
            deed = _deed_of(item, seen.time, failure)
            if deed.ok:
                self._heard[item.notifier, deed.check] = deed.state, seen.time
                if remembering:
                    self._history.tell(item.notifier, deed.check, deed.state, seen.time)
            if item.event == "silent":
                continue
            _noted(deed)
            deeds.append(deed)
            if remembering:
                self._history.note(deed)
        return deeds

    async def _mend(self, seen: Round) -> list[Deed]:
        deeds = []
        for verdict, cure in remedies_due(seen, self._checks, self._held, self._history):
            deed = await attempt(verdict, cure, seen.time, self._executor, self._history)
            _noted(deed)
            deeds.append(deed)
        return deeds


def _noted(deed: Deed) -> None:
    """Log a notice or a remedy."""
    told = {"event": deed.kind, "check": deed.check, "state": deed.state.word, "run": deed.run, "why": deed.text}
    level = logging.INFO if deed.ok else logging.WARNING
    _log.log(level, "%s of %s, %s: %s", deed.kind, deed.check, deed.name, deed.text, extra=told)


# --- notices ---


class Due(NamedTuple):
    """A notice that is due."""

    notifier: str
    verdict: CheckResult
    event: Literal["problem", "change", "repeat", "recovery", "silent"]
    """`silent`: it is ok again, and the notifier does not want recoveries."""
    was: State
    told: float


def notices_due(seen: Round, checks: Iterable[Check], notifiers: Mapping[str, Notifier], heard: Heard) -> list[Due]:
    """Return the notices to send, given what each notifier was last told."""
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
    """Return a notice as JSON. The rule's message is bounded in length, harmless to a terminal, and without secrets."""
    verdict, redactor = item.verdict, Redactor()
    same = [host, verdict.check, verdict.state.word, item.was.word, verdict.since, item.event, item.told]
    return msgspec.json.encode(
        {
            "id": hashlib.sha256(repr(same).encode("utf-8", "backslashreplace")).hexdigest()[:32],
            "event": item.event,
            "host": clean(host, redactor)[0][:_MAX_TEXT],
            "check": verdict.check,
            "state": verdict.state.word,
            "was": item.was.word,
            "message": clean(verdict.message, redactor)[0][:_MAX_TEXT],
            "since": _time(verdict.since),
            "time": _time(now),
            "run": verdict.run,
        }
    )


async def send(
    items: list[Due], notifiers: Mapping[str, Notifier], seen: Round, executor: AsyncExecutor, calls: BoundedCalls
) -> AsyncIterator[tuple[Due, str]]:
    """Send all notices at once, so that one that hangs delays no other.

    Yields each notice as soon as it was sent or has failed, with the error; that is empty if it was sent.
    """

    async def one(item: Due) -> tuple[Due, str]:
        notifier, body = notifiers[item.notifier], notice(seen.host, seen.time, item)
        if item.event == "silent":
            return item, ""
        if isinstance(notifier, WebhookNotifier):
            return item, await _post(f"{item.notifier} {item.verdict.check}", notifier.url, body, calls)
        return item, await _notify_by_command(executor, notifier.run, notifier.command, body)

    for answer in asyncio.as_completed([one(item) for item in items]):
        yield await answer


async def _post(name: str, url: str, body: bytes, calls: BoundedCalls) -> str:
    """Post a notice. Returns the error, or an empty text.

    A server that answers one byte at a time must not delay our exit, nor get a new connection in each round.
    """
    try:
        failed = await calls.run(name, lambda: posting.post(url, body, NOTICE_SECONDS), NOTICE_SECONDS)
    except TimedOut as late:
        return str(late)
    return failed.why if failed else ""


async def _notify_by_command(executor: AsyncExecutor, address: str, command: str, body: bytes) -> str:
    """Pass a notice to a command. Returns the error, or an empty text."""
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


def _deed_of(item: Due, now: float, failure: str) -> Deed:
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


# --- remedies ---


def remedies_due(
    seen: Round, checks: Mapping[str, Check], held: Mapping[str, Held], history: History
) -> list[tuple[CheckResult, Remedy]]:
    """Return the remedies to try now."""
    found = []
    for verdict in seen.verdicts:
        check, remedy = checks[verdict.check], checks[verdict.check].remedy
        if remedy is None or verdict.state not in (State.WARNING, State.CRITICAL):
            continue
        # `bad_since`, not `since`: a problem also lasts while it gets worse, or alternates between the two states.
        lasted = seen.time - held[verdict.check].bad_since - check.lasting
        if lasted >= remedy.after and history.may_try(verdict.check, seen.time):
            found.append((verdict, remedy))
    return found


async def attempt(verdict: CheckResult, remedy: Remedy, now: float, executor: AsyncExecutor, history: History) -> Deed:
    """Try a remedy. The try is recorded first, so that after a kill in the middle it is not tried again at once."""
    deed = Deed(
        time=now,
        kind="remedy",
        check=verdict.check,
        name=remedy.run,
        state=verdict.state,
        ok=False,
        text="began, and nothing is known of its end",
    )
    history.tried(verdict.check, now, remedy.again)
    number = history.note(deed)
    try:
        result = await _run_remedy(executor, remedy, verdict)
    except RedomaError as error:
        ok, text, run, ran = False, f"could not be tried: {error}", "", False
    else:
        ran = result.status.ending not in ("refused", "pending")
        ok, text, run = result.status is Status.OK, _outcome(result), result.id
    if not ran:
        history.tried(verdict.check, now, min(remedy.again, _RETRY_SECONDS))
    deed = msgspec.structs.replace(deed, ok=ok, text=text, run=run)
    history.note(deed, replacing=number)
    return deed


async def _run_remedy(executor: AsyncExecutor, remedy: Remedy, verdict: CheckResult) -> Result:
    submission = executor.prepare(
        remedy.command,
        remedy.run,
        {
            "label": f"monitor:{verdict.check}",
            "reason": f"the check {verdict.check} is {verdict.state.word}: {verdict.message}"[:500],
        },
    )
    # It is not resumed later: once it is approved, it is submitted again, under the configuration at that time.
    return await executor.submit(msgspec.structs.replace(submission, wait=False))


def _outcome(result: Result) -> str:
    match result.status:
        case Status.OK:
            return f"ran, in {result.usage.wall:.1f} s"
        case Status.PENDING:
            id = result.approval_id[:12]  # noqa: A001 - as everywhere
            return (
                f"waits for a person: redoma approvals show {id}; "
                f"to let it run unattended: redoma approvals approve {id} --pin-until DATE --reason TEXT"
            )
        case Status.FORBIDDEN | Status.DENIED | Status.EXPIRED:
            return f"refused: {result.error}"
        case _:
            last = result.stderr.strip().rpartition("\n")[2]
            return f"failed: {result.error or last or result.status.value}"[:500]
