"""Posts each new question to a URL. It only notifies: answers are not accepted from there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import msgspec

from .. import telemetry
from ..lib import posting
from ..lib.errors import ApprovalError
from ..lib.sanitise import visible
from ..lib.units import is_url
from ..redaction import Redactor, clean
from .ask import Ask

SECONDS = 5.0
_MAX_TEXT = 4000


def webhook(url: str) -> Callable[[Ask], Awaitable[None]]:
    """Return a function that posts a summary of a question to a URL, as JSON. A failure is logged, and the question
    stays open.

    Raises `ApprovalError` if it is not an http or https URL.
    """
    if not is_url(url):
        raise ApprovalError(
            "the webhook can't be used", why="it is not an http or https URL", next="correct approval.webhook"
        )

    async def tell(ask: Ask) -> None:
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def work() -> None:
            if failed := posting.post(url, body, SECONDS):
                # Without the text of the error: the server wrote some of it, and it may contain the URL, a secret.
                about = {"error": failed.kind, "status": failed.status}
                telemetry.tell(telemetry.WARNING, "approval.webhook.failed", **about)
            with suppress(RuntimeError):  # the caller has stopped waiting, and the loop is closed
                loop.call_soon_threadsafe(done.set)

        body = msgspec.json.encode(summary(ask))
        # A daemon thread: a server that answers one byte at a time must delay neither the request nor our exit.
        threading.Thread(target=work, name="redoma-webhook", daemon=True).start()
        try:
            async with asyncio.timeout(SECONDS):
                await done.wait()
        except TimeoutError:
            telemetry.tell(telemetry.WARNING, "approval.webhook.failed", error="TimeoutError", seconds=SECONDS)

    return tell


def summary(ask: Ask) -> dict[str, Any]:
    """Return a summary of the question, of bounded length and without secrets. The person who decides reads the whole
    question elsewhere.
    """
    redactor = Redactor()

    def text(value: str) -> str:
        cleaned, secrets = clean(value, redactor)  # a secret may be split by invisible characters
        shown = visible(cleaned if secrets else value)
        more = len(shown) - _MAX_TEXT
        return shown if more <= 0 else f"{shown[:_MAX_TEXT]}… ({more:,} more characters)"

    return {
        "id": ask.id,
        "digest": ask.digest,
        "requester": text(ask.requester),
        "label": text(ask.label),
        "reason": text(ask.reason),
        "level": ask.level.value,
        "language": ask.request.language,
        "text": text(ask.request.text),
        "secrets": list(ask.secrets),
        "risks": [{"rule": text(f.rule), "reason": text(f.reason)} for f in ask.evaluation.deciding],
        "changes": [{"kind": c.kind, "path": text(c.path)} for c in ask.effect.changes[:1000]] if ask.effect else None,
        "scripts": {text(path): text(held) for path, held in list(ask.scripts.items())[:1000]},
        "unbound": [text(why) for why in ask.unbound],
        "created": ask.created.isoformat(),
        "expires": ask.expires.isoformat(),
    }
