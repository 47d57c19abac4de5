"""What the tests run in separate processes: `python approval_child.py WORK DIRECTORY [ID]`.

It reports on standard output what it did, line by line, and reads a line of standard input where a test has to act.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from approval_stage import Stage, case_of

from redoma.approval import Console, Queue


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def redeem(stage: Stage, id: str) -> None:  # noqa: A002 - what it is called everywhere
    say("ready")
    sys.stdin.readline()
    verdict = asyncio.run(stage.gate().redeem(id, case_of()))
    say(str(verdict.status))
    sys.stdin.readline()  # between use and run


def die_recording(stage: Stage, id: str) -> None:  # noqa: A002 - as above
    """Stop when the use is recorded and not yet committed."""

    def record(kind: str, run: str, data: Mapping[str, Any]) -> None:
        if kind == "approval.used":
            say("recorded")
            sys.stdin.readline()

    stage.ledger.audit = record
    asyncio.run(stage.gate().redeem(id, case_of()))


def make(stage: Stage, _: str) -> None:
    say("ready")
    sys.stdin.readline()
    say(asyncio.run(stage.pending(case_of())))


def wait(stage: Stage, _: str) -> None:
    """Ask, and wait for an answer in another process."""
    stage.ledger.now = lambda: datetime.now(UTC)
    verdict = asyncio.run(stage.gate(Queue(stage.ledger, wait=60)).ask(case_of()))
    say(f"{verdict.status} {verdict.approval.approver if verdict.approval else None}")


def console(stage: Stage, long: str) -> None:
    """Ask at our controlling terminal; the answer goes to standard output, which is not a terminal."""
    sys.stdin.readline()
    asyncio.run(_console(stage, "#\n" * 200_000 if long else ""))


async def _console(stage: Stage, more: str) -> None:
    hostile = "echo \x1b[2J\x1b]0;x\x07 \u202egnp.exe\u202c\r--- redoma: approved ---\x08\x9b1A\u200b"
    case = case_of(
        f"{hostile}\npip install requests\n{more}",
        reason=f"innocent\n{hostile}",
        label=hostile,
        env={"A": hostile},
        files={f"a{hostile}": hostile.encode(), "latin": b"\x1b\xff"},
    )
    now = datetime.now(UTC)
    stage.now = now
    verdict = await stage.gate(Console("bob", stage.ledger, timeout=60)).ask(case)
    said = verdict.approval
    say(f"{verdict.status}|{said.reason if said else verdict.error}")
    if said is not None and verdict.status is None:
        assert said.expires == now + timedelta(hours=1)


WORK = {"redeem": redeem, "die": die_recording, "make": make, "wait": wait, "console": console}

if __name__ == "__main__":
    work, directory, *rest = sys.argv[1:]
    WORK[work](Stage(Path(directory)), rest[0] if rest else "")
