"""Telling somebody elsewhere that there is a request to decide on. It tells; nobody decides through it."""

from __future__ import annotations

import asyncio
import threading
import urllib.parse
import urllib.request
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError

import msgspec

from .. import telemetry
from ..errors import ApprovalError
from ..output import clean
from ..sensitive import Redactor
from .ask import Ask

_SECONDS = 5.0
_LONGEST_TEXT = 4000


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Whoever answers there doesn't decide where it is posted."""

    def redirect_request(self, *_: Any) -> None:
        return None


def webhook(url: str) -> Callable[[Ask], Awaitable[None]]:
    """What posts a request to a URL, as JSON. That it could not be posted is logged; the request waits all the same."""
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):  # urllib would open files, too
        raise ApprovalError("the webhook can't be used", why="it is no http or https URL", next="mend approval.webhook")
    # No proxy of the environment: what is posted goes where the configuration says and nowhere else.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)

    def post(body: bytes) -> None:
        headers = {"Content-Type": "application/json", "User-Agent": "redoma"}
        try:
            request = urllib.request.Request(url, body, headers, method="POST")  # noqa: S310 - checked above
            with opener.open(request, timeout=_SECONDS):
                pass
        except (OSError, HTTPException, ValueError) as error:
            # Not its text: whoever answers there writes some of it, and the URL may be a secret.
            kind = type(error.reason if type(error) is URLError else error).__name__
            status = error.code if isinstance(error, HTTPError) else None
            telemetry.tell(telemetry.WARNING, "approval.webhook.failed", error=kind, status=status)

    async def tell(ask: Ask) -> None:
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def work() -> None:
            post(body)
            with suppress(RuntimeError):  # nobody waits any more, and the loop is closed
                loop.call_soon_threadsafe(done.set)

        body = msgspec.json.encode(summary(ask))
        # A daemon: one who answers a byte at a time must neither hold up the request nor our exit.
        threading.Thread(target=work, name="redoma-webhook", daemon=True).start()
        try:
            async with asyncio.timeout(_SECONDS):
                await done.wait()
        except TimeoutError:
            telemetry.tell(telemetry.WARNING, "approval.webhook.failed", error="TimeoutError", seconds=_SECONDS)

    return tell


def summary(ask: Ask) -> dict[str, Any]:
    """What is asked, for somebody who will look at the whole before deciding: bounded, and without secrets."""
    redactor = Redactor()

    def text(value: str) -> str:
        return clean(value, redactor)[0][:_LONGEST_TEXT]

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
        "computed": [text(why) for why in ask.computed],
        "unread": [text(why) for why in ask.unread],
        "created": ask.created.isoformat(),
        "expires": ask.expires.isoformat(),
    }
