"""Posts JSON to a URL that the configuration names, and to no other."""

from __future__ import annotations

import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any, NamedTuple


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Doesn't follow redirects: the server must not decide where we post."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Failed(NamedTuple):
    """Why it could not be posted."""

    kind: str
    """The name of the error."""
    status: int | None
    """The HTTP status, if there was an answer."""
    why: str
    """A message, which may contain text from the server."""


def post(url: str, body: bytes, seconds: float) -> Failed | None:
    """Post JSON to a URL. Returns None if it was accepted, else why not; never raises for what the server does.

    `seconds` applies to each step of the exchange. A server that answers a byte at a time can take longer, so call it
    in a thread that can be abandoned.
    """
    headers = {"Content-Type": "application/json", "User-Agent": "redoma"}
    # No proxy of the environment: it is posted only where the configuration says.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)
    try:
        request = urllib.request.Request(url, body, headers, method="POST")  # noqa: S310 - only what `units.is_url` accepts: urllib would open files, too
        with opener.open(request, timeout=seconds):
            return None
    except urllib.error.HTTPError as error:
        with error:
            return Failed(type(error).__name__, error.code, str(error))
    except (OSError, HTTPException, ValueError) as error:
        kind = type(error.reason if type(error) is urllib.error.URLError else error).__name__
        return Failed(kind, None, str(error) or kind)
