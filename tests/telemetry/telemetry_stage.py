"""A log handler that keeps all records, and a request full of a word that must not appear in any of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from redoma import Answer, FakeBackend, Outcome, Rule, Status
from redoma.approval import Ask
from redoma.models import Approval, Decision, Request

WORD, SECRET = "xyzzy-4711", "plugh-0815"
"""The first is in everything that a request can hold, and in what its code prints. The second is redacted from
results.
"""
ASKING = Rule(id="team.ask", decision=Decision.PROMPT, reason="ask first", command=("deploy",))


class Heard(logging.Handler):
    """Keeps every record. `events` are their names, `said` their fields."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def said(self) -> list[dict[str, Any]]:
        return [record.__dict__["redoma"] for record in self.records]

    @property
    def events(self) -> list[str]:
        return [said["event"] for said in self.said]

    def of(self, event: str) -> dict[str, Any]:
        (said,) = [said for said in self.said if said["event"] == event]
        return said


@contextmanager
def listening(level: int = logging.DEBUG) -> Iterator[Heard]:
    logger, heard = logging.getLogger("redoma"), Heard()
    before = logger.level
    logger.addHandler(heard)
    logger.setLevel(level)
    try:
        yield heard
    finally:
        logger.removeHandler(heard)
        logger.setLevel(before)


class Broken(FakeBackend):
    """A backend with a bug, whose message quotes what it was running."""

    def __init__(self) -> None:
        super().__init__(name="broken")

    async def run(self, request: Request, sink: Any, control: Any = None) -> Outcome:
        raise RuntimeError(f"can't cope with {request.text}")


_BOTH = f"{WORD} {SECRET}"
TALKATIVE = FakeBackend(
    Answer(stdout=_BOTH, stderr=_BOTH, value=_BOTH, exception=WORD, error=_BOTH, status=Status.ERROR), name="talkative"
)


def tells(text: str) -> bool:
    return WORD in text or SECRET in text


def full_of(word: str) -> dict[str, Any]:
    """Return options that contain it wherever an option can."""
    return {
        "env": {"NAME": word},
        "secrets": {"TOKEN": SECRET},
        "stdin": word,
        "files": {word: word},
        "outputs": [word],
        "reason": word,
        "requester": word,
        "label": word,
    }


def answer(ask: Ask, decision: Any = "approved") -> Approval:
    return ask.answer(decision, approver=WORD, reason=WORD, at=datetime.now(UTC))
