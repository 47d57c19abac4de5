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
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal, NamedTuple

import msgspec

from ..lib import posting
from ..lib.errors import AuditError, RedomaError, StoreError
from ..models import Decision, Result, Status
from ..pipeline.executor import AsyncExecutor
from ..redaction import Redactor, clean
from .collect import BoundedCalls, TimedOut
from .history import History, settle
from .model import Action, Check, CheckResult, Notifier, Plan, Remedy, Round, State, StoredState, WebhookNotifier

_log = logging.getLogger("redoma.monitor")
LastNotices = dict[tuple[str, str], tuple[State, float]]
"""By notifier and check: the last state that it knows, and since when: it was sent a notice, or wants none of it."""
Event = Literal["problem", "change", "repeat", "recovery", "silent"]
"""Why a notice is due. `silent`: it is ok again, and the notifier does not want recoveries, so none is sent."""
_MAX_TEXT = 4000
NOTICE_SECONDS = 5.0
_RETRY_SECONDS = 300.0
"""Seconds after which a remedy that was refused, or waits for a person, is tried again."""


class Responder:
    """Acts on the rounds of one plan. Remembers what it last read from the history, for when that can't be read."""

    def __init__(self, plan: Plan, executor: AsyncExecutor, history: History) -> None:
        self._checks = {check.name: check for check in plan.checks}
        self._notifiers, self._executor, self._history = plan.notify, executor, history
        self._calls = BoundedCalls()
        self._stored: dict[str, StoredState] = {}
        self._last_notices: LastNotices = {}

    async def respond(self, latest: Round) -> Round:
        """Store a round and act on it. Returns it with the states that count, and with what was done."""
        checks = self._checks.values()
        try:
            latest = self._history.add(latest, checks)
            self._stored = self._history.stored_states()
        except StoreError as error:
            latest, self._stored = settle(latest, self._stored, checks)
            return await self._respond_without_history(latest, error)
        actions: list[Action] = []  # those that were done before the history failed are in it, too
        try:
            with self._history.alone() as alone:
                if not alone:  # a `watch` and a `check` at the same time: the other one acts
                    return latest
                self._read_last_notices()
                await self._send_notices(latest, actions)
                await self._try_remedies(latest, actions)
                return msgspec.structs.replace(latest, actions=tuple(actions))
        except (StoreError, AuditError) as error:
            return await self._respond_without_history(latest, error, actions)

    async def _respond_without_history(
        self, latest: Round, error: StoreError | AuditError, actions: Sequence[Action] = ()
    ) -> Round:
        _log.error("the history can't be kept: %s", error)
        problems, done = {**latest.problems, "history": str(error)}, [*actions]
        await self._send_notices(latest, done, store=False)
        return msgspec.structs.replace(latest, problems=problems, actions=tuple(done))

    def _read_last_notices(self) -> None:
        """Take over what another process has sent. What we sent while the history failed is newer than what it has."""
        for key, (state, sent) in self._history.last_notices().items():
            if key not in self._last_notices or sent >= self._last_notices[key][1]:
                self._last_notices[key] = state, sent

    async def _send_notices(self, latest: Round, actions: list[Action], *, store: bool = True) -> None:
        """Send the notices that are due, and add them to `actions`. Raises `StoreError` after all were sent."""
        due = notices_due(latest, self._checks.values(), self._notifiers, self._last_notices)
        broken: StoreError | None = None
        async for notice, failure in send(due, self._notifiers, latest, self._executor, self._calls):
            name, check, state = notice.notifier, notice.verdict.check, notice.verdict.state
            action = None if notice.event == "silent" else _notice_action(notice, latest.time, failure)
            if not failure:
                self._last_notices[name, check] = state, latest.time
            if action is not None:
                _log_action(action)
                actions.append(action)
            if not store or broken is not None:
                continue
            try:
                if not failure:
                    self._history.record_notice(name, check, state, latest.time)
                if action is not None:
                    self._history.add_action(action)
            except StoreError as error:
                broken = error
        if broken is not None:
            raise broken

    async def _try_remedies(self, latest: Round, actions: list[Action]) -> None:
        for verdict, remedy in remedies_due(latest, self._checks, self._stored, self._history):
            action = await try_remedy(verdict, remedy, latest.time, self._executor, self._history)
            _log_action(action)
            actions.append(action)


def _log_action(action: Action) -> None:
    fields = {
        "event": action.kind,
        "check": action.check,
        "state": action.state.word,
        "run": action.run,
        "why": action.text,
    }
    level = logging.INFO if action.ok else logging.WARNING
    _log.log(level, "%s of %s, %s: %s", action.kind, action.check, action.name, action.text, extra=fields)


# --- notices ---


class Notice(NamedTuple):
    """A notice that is due."""

    notifier: str
    verdict: CheckResult
    event: Event
    last_state: State
    """The state in the last notice."""
    last_sent: float
    """When that was sent."""


def notices_due(
    latest: Round, checks: Iterable[Check], notifiers: Mapping[str, Notifier], last_notices: LastNotices
) -> list[Notice]:
    """Return the notices to send, given the last ones that each notifier was sent."""
    wanted = {check.name: check.notify for check in checks}
    due = []
    for verdict in latest.verdicts:
        names = wanted.get(verdict.check)
        for name, notifier in notifiers.items():
            if names is not None and name not in names:
                continue
            last_state, last_sent = last_notices.get((name, verdict.check), (State.OK, 0.0))
            event = _event(verdict.state, last_state, latest.time - last_sent, notifier)
            if event:
                due.append(Notice(name, verdict, event, last_state, last_sent))
    return due


def _event(state: State, last_state: State, age: float, notifier: Notifier) -> Event | None:
    """Return what to send a notifier whose last notice, `age` seconds ago, was of `last_state`; None for nothing."""
    if state is last_state:
        repeat = state is not State.OK and notifier.repeat and abs(age) >= notifier.repeat
        return "repeat" if repeat else None
    if state is State.OK:
        return "recovery" if notifier.recovery else "silent"
    return "problem" if last_state is State.OK else "change"


def notice_json(host: str, now: float, notice: Notice) -> bytes:
    """Return a notice as JSON. The rule's message is bounded in length, harmless to a terminal, and without secrets."""
    verdict, redactor = notice.verdict, Redactor()
    state, last_state = verdict.state.word, notice.last_state.word
    # Equal for a notice that is sent again after a kill.
    identity = [host, verdict.check, state, last_state, verdict.since, notice.event, notice.last_sent]
    return msgspec.json.encode(
        {
            "id": hashlib.sha256(repr(identity).encode("utf-8", "backslashreplace")).hexdigest()[:32],
            "event": notice.event,
            "host": clean(host, redactor)[0][:_MAX_TEXT],
            "check": verdict.check,
            "state": state,
            "was": last_state,
            "message": clean(verdict.message, redactor)[0][:_MAX_TEXT],
            "since": _time(verdict.since),
            "time": _time(now),
            "run": verdict.run,
        }
    )


async def send(
    notices: list[Notice],
    notifiers: Mapping[str, Notifier],
    latest: Round,
    executor: AsyncExecutor,
    calls: BoundedCalls,
) -> AsyncIterator[tuple[Notice, str]]:
    """Send all notices at once, so that one that hangs delays no other.

    Yields each notice as soon as it was sent or has failed, with the error; that is empty if it was sent.
    """

    async def send_one(notice: Notice) -> tuple[Notice, str]:
        if notice.event == "silent":
            return notice, ""
        notifier, body = notifiers[notice.notifier], notice_json(latest.host, latest.time, notice)
        if isinstance(notifier, WebhookNotifier):
            return notice, await _post(f"{notice.notifier} {notice.verdict.check}", notifier.url, body, calls)
        return notice, await _notify_by_command(executor, notifier.run, notifier.command, body)

    for answer in asyncio.as_completed(map(send_one, notices)):
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


def _notice_action(notice: Notice, now: float, failure: str) -> Action:
    verdict = notice.verdict
    word = verdict.state.word
    content = {"repeat": f"still {word}", "recovery": "ok again"}.get(notice.event, word)
    return Action(
        time=now,
        kind="notice",
        check=verdict.check,
        name=notice.notifier,
        state=verdict.state,
        ok=not failure,
        text=f"could not be sent: {failure[:500]}" if failure else f"sent: {content}",
    )


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


# --- remedies ---


def remedies_due(
    latest: Round, checks: Mapping[str, Check], stored: Mapping[str, StoredState], history: History
) -> list[tuple[CheckResult, Remedy]]:
    """Return the remedies to try now."""
    due = []
    for verdict in latest.verdicts:
        check, remedy = checks[verdict.check], checks[verdict.check].remedy
        if remedy is None or verdict.state not in (State.WARNING, State.CRITICAL):
            continue
        # `bad_since`, not `since`: a problem also lasts while it gets worse, or alternates between the two states.
        counts_since = stored[verdict.check].bad_since + check.lasting
        if latest.time >= counts_since + remedy.after and history.may_try_remedy(verdict.check, latest.time):
            due.append((verdict, remedy))
    return due


async def try_remedy(
    verdict: CheckResult, remedy: Remedy, now: float, executor: AsyncExecutor, history: History
) -> Action:
    """Try a remedy. The try is recorded first, so that after a kill in the middle it is not tried again at once."""
    action = Action(
        time=now,
        kind="remedy",
        check=verdict.check,
        name=remedy.run,
        state=verdict.state,
        ok=False,
        text="began, and nothing is known of its end",
    )
    history.record_attempt(verdict.check, now, remedy.again)
    number = history.add_action(action)
    try:
        result = await _run_remedy(executor, remedy, verdict)
    except RedomaError as error:
        ok, text, run, ran = False, f"could not be tried: {error}", "", False
    else:
        ran = result.status.ending not in ("refused", "pending")
        ok, text, run = result.status is Status.OK, _outcome(result), result.id
    if not ran:
        history.record_attempt(verdict.check, now, min(remedy.again, _RETRY_SECONDS))
    action = msgspec.structs.replace(action, ok=ok, text=text, run=run)
    history.add_action(action, replacing=number)
    return action


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
