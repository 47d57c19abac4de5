"""Posting JSON to a URL that the configuration names, and to no other."""

from __future__ import annotations

import urllib.error
import urllib.parse
import urllib.request
from http.client import HTTPException
from typing import Any


def is_web(url: str) -> bool:
    """Whether it is a URL to post to: urllib would open files, too."""
    try:
        return urllib.parse.urlsplit(url).scheme in ("http", "https")
    except ValueError:
        return False


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Whoever answers there doesn't decide where it is posted."""

    def redirect_request(self, *_: Any) -> None:
        return None


def post(url: str, body: bytes, seconds: float) -> str:
    """Why it could not be posted; empty if it was. `seconds` is for each step of the exchange: one who answers a byte
    at a time can take longer, so call it in a thread that nobody has to wait for."""
    headers = {"Content-Type": "application/json", "User-Agent": "redoma"}
    # No proxy of the environment: what is posted goes where the configuration says and nowhere else.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)
    try:
        request = urllib.request.Request(url, body, headers, method="POST")  # noqa: S310 - see `is_web`
        with opener.open(request, timeout=seconds):
            return ""
    except urllib.error.HTTPError as error:
        with error:
            return str(error) or type(error).__name__
    except (OSError, HTTPException, ValueError) as error:
        return str(error) or type(error).__name__
