"""What all routes share: how one is described, who may use it, and how it answers."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response
from litestar.openapi.datastructures import ResponseSpec

from ..access import any_key, needs
from ..keys import Key, Scope
from ..service import encode

Asked = Request[Key, Any, Any]
"""A request whose key is known: `user`."""


def described(
    tag: str,
    summary: str,
    kind: Any,
    about: str,
    *,
    scope: Scope | None = None,
    status: int = 200,
    media_type: str = "application/json",
    also: dict[int, tuple[Any, str]] | None = None,
) -> dict[str, Any]:
    """Return what a route's decorator takes beside its path.

    Args:
        tag: The part of the OpenAPI document that it is in.
        summary: What it does.
        kind: What it answers with.
        about: What that answer means.
        scope: What a key must have to use it. Any key may by default, and the route decides what it sees.
        status: The status of that answer.
        media_type: The type of that answer.
        also: Other answers that are no errors, by status.
    """
    answers = {status: (kind, about), **(also or {})}
    return {
        "guards": [any_key if scope is None else needs(scope)],
        "status_code": status,
        "tags": [tag],
        "summary": summary,
        "responses": {
            number: ResponseSpec(kind, generate_examples=False, description=about, media_type=media_type)
            for number, (kind, about) in answers.items()
        },
    }


def reply(content: Any, status: int = 200, *, location: str = "") -> Response[bytes]:
    """Answer with JSON: a struct, or bytes that are JSON already."""
    data = content if isinstance(content, bytes) else encode(content)
    headers = {"Location": location} if location else {}
    return Response(data, media_type="application/json", status_code=status, headers=headers)
