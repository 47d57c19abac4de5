"""Turn errors into answers: what happened, why, what to do next.

Only errors about the caller's own request are described in full. Errors of this host (its storage, its sandbox, a bug)
are described in general words, because callers must not learn details of the host; the log has them in full.
"""

from __future__ import annotations

import functools
import os
import re
import traceback
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, InternalServerException, ValidationException

from ...lib.errors import (
    ApprovalError,
    AuditError,
    BackendError,
    BackendUnavailable,
    Conflict,
    InvalidRequest,
    RedomaError,
    StoreError,
    WorkspaceError,
)
from ...lib.sanitise import sanitise
from ...telemetry import ERROR, tell
from .bodies import Problem

_MAX_TEXT = 1000
_PATH = re.compile(r"(?<![\w.:/])/(?:[\w.@+-]+/)+[\w.@+-]*")


class Answered(RedomaError):
    """An error with an HTTP status, which is sent to the caller as it is."""

    def __init__(
        self, status: int, what: str, *, why: str = "", next: str = "", retry: int = 0, code: str = ""
    ) -> None:
        super().__init__(what, why=why, next=next)
        self.status, self.retry, self.code = status, retry, code


def no_key(*, sent: bool = True) -> Answered:
    """Return the error for a request without a valid key (401). `sent`: whether it had one at all."""
    if sent:
        return Answered(
            401,
            "this key is not accepted",
            why="it is unknown here, revoked or expired",
            next="check that it is whole; `redoma keys list`, where the service runs, shows which there are",
        )
    return Answered(
        401,
        "this needs a key",
        why="none was sent",
        next="send `Authorization: Bearer KEY`; `redoma keys create` makes one",
    )


def not_allowed(scope: str) -> Answered:
    """Return the error for a key that lacks a scope (403)."""
    return Answered(403, "this key may not do that", why=f"it lacks the scope {scope}", next="use a key that has it")


def not_found(what: str) -> Answered:
    """Return the error for something that does not exist or that the key may not see (404)."""
    return Answered(404, f"there is no such {what}", next="check the id; a key finds only what it may see")


def too_many(why: str, retry: int = 1) -> Answered:
    """Return the error for too many requests (429). `retry`: seconds after which to try again."""
    return Answered(429, "too many requests", why=why, next="try again later", retry=max(1, retry))


def stopping() -> Answered:
    """Return the error for what the server no longer begins because it is stopping (503)."""
    return Answered(503, "the server is stopping", next="try again later", retry=5)


def problem_of(error: Exception) -> tuple[int, Problem, int]:
    """Return the status, the answer, and the seconds after which to try again (0: none given)."""
    match error:
        case Answered():
            said = Problem(error=error.what, why=error.why, next=error.next, code=error.code)
            return error.status, said, error.retry
        case InvalidRequest():
            return 422, _told(error), 0
        case Conflict() | ApprovalError() | WorkspaceError():
            return 409, _told(error), 0
        case BackendUnavailable():  # what this host lacks; results of runs name it too
            return 503, _told(error), 60
        case StoreError() | AuditError() | BackendError():
            tell(
                ERROR,
                "service.failed",
                error=type(error).__name__,
                why=" ".join(sanitise(str(error)).split())[:_MAX_TEXT],
            )
            words = Problem(
                error="the server can't do this now",
                why="its own storage or its sandbox failed",
                next="try again later; its log says more",
            )
            return 503, words, 5
        case ValidationException():
            return 400, Problem(error="the request can't be read", why=_validation(error)), 0
        case InternalServerException():  # litestar raises it if a client disconnects while it sends its request
            return 400, Problem(error="the request ended early"), 0
        case HTTPException() if error.status_code < 500:
            return error.status_code, Problem(error=_STATUS.get(error.status_code, "the request can't be answered")), 0
        case RedomaError():
            return 409, _told(error), 0
    tell(ERROR, "service.bug", error=type(error).__name__, where=_where(error))
    return 500, Problem(error="the server failed", why="this is a bug in Redoma", next="please report it"), 0


_STATUS = {
    400: "the request can't be read",
    404: "there is nothing at this address",
    405: "this address does not take that method",
    413: "the request is too large",
    415: "this address takes JSON",
}


def answer(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Return the response to an error; litestar's exception handler."""
    status, problem, retry = problem_of(error)
    if isinstance(error, ValidationException):
        problem = Problem(error="the request can't be read", why=_validation(error, _choices(request)))
    headers = {"Retry-After": str(retry)} if retry else {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, HTTPException) and status == 405 and error.headers:
        headers.update({name: value for name, value in error.headers.items() if name.lower() == "allow"})
    return Response(msgspec.json.encode(problem), media_type="application/json", status_code=status, headers=headers)


def _where(error: Exception) -> str:
    """Return the file name and line where the error was raised, for the log."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""


def _told(error: RedomaError) -> Problem:
    return Problem(error=without_paths(error.what), why=without_paths(error.why), next=without_paths(error.next))


@functools.lru_cache(maxsize=500)  # most texts repeat: the isolation layers of cells
def without_paths(text: str) -> str:
    """Return the text, sanitised, with absolute paths replaced, and cut if it is long."""
    text = _PATH.sub("[path]", sanitise(text))
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"


def _validation(error: ValidationException, choices: Mapping[str, str] | None = None) -> str:
    """Return what is invalid. `choices`: field → what it may be, for those that take one of a few words."""
    extra = error.extra
    said = []
    for entry in extra if isinstance(extra, list) else []:
        if not isinstance(entry, dict):
            continue
        key, message = str(entry.get("key", "")), str(entry.get("message", ""))
        if message.startswith(_NOT_A_CHOICE) and (valid := (choices or {}).get(key)):
            message = f"{message.removeprefix(_NOT_A_CHOICE)} is not offered; choose {valid}"
        said.append(f"{key}: {message}" if key else message)
    return without_paths("; ".join(said) or error.detail)


_NOT_A_CHOICE = "Invalid enum value "  # msgspec's words, which don't say what is valid


def _choices(request: Request[Any, Any, Any]) -> dict[str, str]:
    """Return the fields of the body that this address takes which are one of a few words, with these."""
    handler = request.scope.get("route_handler")
    body = getattr(getattr(handler, "parsed_data_field", None), "annotation", None)
    if not isinstance(body, type) or not issubclass(body, msgspec.Struct):
        return {}
    words = {name: get_args(kind) for name, kind in get_type_hints(body).items() if get_origin(kind) is Literal}
    return {name: f"{', '.join(valid[:-1])} or {valid[-1]}" for name, valid in words.items() if len(valid) > 1}
