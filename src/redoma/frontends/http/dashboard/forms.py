"""Logins and forms, and their protection against other sites."""

from __future__ import annotations

import hashlib
import hmac
from typing import Any
from urllib.parse import parse_qsl

from litestar import Request
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from ..access import service_of
from ..keys import Key
from ..problems import Answered

COOKIE, LANGUAGE = "redoma_login", "redoma_language"
LOGIN_SECONDS = 12 * 3600
_MAX_FIELDS = 50


class NoLogin(Exception):
    """Nobody is logged in; the login page is shown instead."""


def logged_in(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Admit only requests with a valid login (a litestar guard). Raises `NoLogin`, or `Answered` (429)."""
    token = connection.cookies.get(COOKIE, "")
    service = service_of(connection)
    key = service.keys.logged_in(token) if 20 < len(token) < 100 and token.isascii() else None
    if key is None:
        raise NoLogin
    service.quotas.take_rate(key)
    connection.scope["user"] = key
    connection.scope["auth"] = token


def csrf_of(token: str) -> str:
    """Return the value that every form of this login must contain. Another site could at most make a browser send the
    cookie; it can't read the cookie, so it can't compute this value."""
    return hmac.new(token.encode(), b"redoma form", "sha256").hexdigest()


async def form(request: Request[Key, str, Any]) -> dict[str, str]:
    """Return the fields of a form. Raises `Answered` if it comes from another site or another login."""
    fields = await read(request)
    if not hmac.compare_digest(fields.get("csrf", "").encode(), csrf_of(request.auth).encode()):
        raise Answered(403, "The form was too old. Please send it again.")
    return fields


async def read(request: Request[Any, Any, Any]) -> dict[str, str]:
    """Return the fields of a form. Raises `Answered` if the browser's headers say that another site sent it."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise Answered(403, "Not allowed")
    origin = request.headers.get("origin")
    if origin not in (None, "null") and origin.partition("//")[2] != request.headers.get("host"):
        raise Answered(403, "Not allowed")
    try:
        pairs = parse_qsl((await request.body()).decode(), keep_blank_values=True, max_num_fields=_MAX_FIELDS)
    except ValueError:
        raise Answered(400, "the form can't be read") from None
    return {name: value.replace("\r\n", "\n") for name, value in pairs}


def short(text: str) -> str:
    """Return a short hash of a file's text, for its URL."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]
