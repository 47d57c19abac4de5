"""Mending what a check found, by a command that policy and, where that asks, a person has agreed to.

Nobody is waited for. What needs a yes is put on the list of `redoma approvals`, under the label `monitor:<check>`, and
the round goes on; once it is approved the next try runs it. A pinned approval lets it run unattended from then on, and
a command that is no longer the pinned one is an alarm.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ..lib.errors import RedomaError
from ..models import Result, Status
from ..pipeline.executor import AsyncExecutor
from .history import History
from .model import Check, Deed, Held, Remedy, Round, State, Verdict

_SOON = 300.0
"""Seconds after which what was refused, or waits for a person, is tried again."""


def due(
    seen: Round, checks: Mapping[str, Check], held: Mapping[str, Held], history: History
) -> list[tuple[Verdict, Remedy]]:
    """What to try now."""
    found = []
    for verdict in seen.verdicts:
        check, remedy = checks[verdict.check], checks[verdict.check].remedy
        if remedy is None or verdict.state not in (State.WARNING, State.CRITICAL):
            continue
        # Not since when it is this state: what gets worse, or goes to and fro between the two, has lasted as well.
        lasted = seen.time - held[verdict.check].bad_since - check.lasting
        if lasted >= remedy.after and history.may_try(verdict.check, seen.time):
            found.append((verdict, remedy))
    return found


async def attempt(verdict: Verdict, remedy: Remedy, now: float, executor: AsyncExecutor, history: History) -> Deed:
    """Try it. That it is tried is noted first: a start after a kill in the middle doesn't do it at once again."""
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
        result = await _run(executor, remedy, verdict)
    except RedomaError as error:
        ok, text, run, ran = False, f"could not be tried: {error}", "", False
    else:
        ran = result.status.ending not in ("refused", "pending")
        ok, text, run = result.status is Status.OK, _outcome(result), result.id
    if not ran:
        history.tried(verdict.check, now, min(remedy.again, _SOON))
    deed = msgspec.structs.replace(deed, ok=ok, text=text, run=run)
    history.note(deed, replacing=number)
    return deed


async def _run(executor: AsyncExecutor, remedy: Remedy, verdict: Verdict) -> Result:
    submission = executor.prepare(
        remedy.command,
        remedy.run,
        {
            "label": f"monitor:{verdict.check}",
            "reason": f"the check {verdict.check} is {verdict.state.word}: {verdict.message}"[:500],
        },
    )
    # Not to be resumed: once it is approved it is asked for again, by the configuration that is in force then.
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
