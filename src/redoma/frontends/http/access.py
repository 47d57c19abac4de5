"""Find the key of a request and check its scope and rate before the body is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from litestar import Request
from litestar.connection import ASGIConnection

from .keys import Key, Scope
from .problems import no_key, not_allowed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .service import Service

Connection = ASGIConnection[Any, Any, Any, Any]
Asking = Request[Any, Any, Any]


def service_of(connection: Connection) -> Service:
    """Return the service that handles a connection."""
    service: Service = connection.app.state["service"]
    return service


def needs(scope: Scope) -> Callable[[Asking], Awaitable[None]]:
    """Return a check that admits only keys with this scope, within their rate.

    It goes before a route as its `before_request`: litestar copies the whole route for each call of a guard. It raises
    `Answered` (401, 403, 429).
    """

    async def check(request: Asking) -> None:
        key = await _bearer(request)
        if not key.may(scope):
            raise not_allowed(scope)
        _take(request, key)

    return check


async def any_key(request: Asking) -> None:
    """Admit any valid key, within its rate; the route decides what the key sees. Raises `Answered` (401, 429)."""
    _take(request, await _bearer(request))


def _take(request: Asking, key: Key) -> None:
    service_of(request).quotas.take_rate(key)
    request.scope["user"] = key


async def _bearer(request: Asking) -> Key:
    given = request.headers.getall("authorization", [])
    kind, _, text = given[0].partition(" ") if len(given) == 1 else ("", "", "")
    key = await service_of(request).keys.authenticate_soon(text.strip()) if kind.lower() == "bearer" else None
    if key is None:
        raise no_key(sent=bool(given))
    return key
