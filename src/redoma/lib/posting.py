"""Posting JSON to a URL that the configuration names, and to no other."""

from __future__ import annotations

import urllib.error
import urllib.parse
import urllib.request
from http.client import HTTPException
from typing import Any, NamedTuple


def is_web(url: str) -> bool:
    """Whether a URL can be posted to: `http` or `https`. (urllib would open files, too.)"""
    try:
        return urllib.parse.urlsplit(url).scheme in ("http", "https")
    except ValueError:
        return False


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Redirects are not followed: whoever answers doesn't decide where it is posted."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Failed(NamedTuple):
    """Why it could not be posted."""

    kind: str
    """The name of the error."""
    status: int | None
    """The HTTP status, if there was an answer."""
    why: str
    """A message, which may have words of whoever answered."""


def post(url: str, body: bytes, seconds: float) -> Failed | None:
    """Post JSON to a URL. Returns None if it was accepted, else why not; never raises for what the other side does.

    `seconds` is for each step of the exchange: one who answers a byte at a time can take longer, so call it in a thread
    that nobody has to wait for.
    """
    headers = {"Content-Type": "application/json", "User-Agent": "redoma"}
    # No proxy of the environment: what is posted goes where the configuration says and nowhere else.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)
    try:
        request = urllib.request.Request(url, body, headers, method="POST")  # noqa: S310 - see `is_web`
        with opener.open(request, timeout=seconds):
            return None
    except urllib.error.HTTPError as error:
        with error:
            return Failed(type(error).__name__, error.code, str(error))
    except (OSError, HTTPException, ValueError) as error:
        kind = type(error.reason if type(error) is urllib.error.URLError else error).__name__
        return Failed(kind, None, str(error) or kind)
