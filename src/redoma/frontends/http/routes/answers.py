"""What all routes share: how to describe a route, who may use it, and how to answer."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response
from litestar.openapi.datastructures import ResponseSpec
from litestar.types import Receive, Send
from litestar.types import Scope as AsgiScope

from ..access import any_key, needs
from ..bodies import encode
from ..keys import Key, Scope

KeyedRequest = Request[Key, Any, Any]
"""A request whose key was checked; `user` is the key."""


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
    """Return the arguments of a route's decorator other than its path.

    Args:
        tag: The route's tag in the OpenAPI document.
        summary: What the route does.
        kind: The type of the answer.
        about: What the answer means.
        scope: The scope that a key needs. By default any key may use the route, and the route decides what it sees.
        status: The status of the answer.
        media_type: The media type of the answer.
        also: Other answers that are not errors, by status.
    """
    answers = {status: (kind, about), **(also or {})}
    return {
        "before_request": any_key if scope is None else needs(scope),
        "status_code": status,
        "tags": [tag],
        "summary": summary,
        "responses": {
            number: ResponseSpec(kind, generate_examples=False, description=about, media_type=media_type)
            for number, (kind, about) in answers.items()
        },
    }


class _Json(Response[bytes]):
    """JSON that is encoded already. It is sent as it is: litestar's own way of rendering content takes longer."""

    def __init__(self, content: bytes, status: int, location: str) -> None:
        self.content, self.status_code = content, status
        self._headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
        if location:
            self._headers.append((b"location", location.encode()))

    def to_asgi_response(self, app: Any, request: Any, **defaults: Any) -> Any:
        """Return the response as an ASGI application, for litestar."""
        return self

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code or 200, "headers": self._headers})
        await send({"type": "http.response.body", "body": self.content, "more_body": False})


def reply(content: Any, status: int = 200, *, location: str = "") -> Response[bytes]:
    """Return a JSON response. `content` is a struct, or bytes that are JSON already."""
    return _Json(content if isinstance(content, bytes) else encode(content), status, location)
