"""Find the key of a request and check its scope and rate before the body is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from .keys import Key, Scope
from .problems import no_key, not_allowed

if TYPE_CHECKING:
    from collections.abc import Callable

    from .service import Service

Connection = ASGIConnection[Any, Any, Any, Any]


def service_of(connection: Connection) -> Service:
    """Return the service that handles a connection."""
    service: Service = connection.app.state["service"]
    return service


def needs(scope: Scope) -> Callable[[Connection, BaseRouteHandler], None]:
    """Return a guard that admits only keys with this scope, within their rate. It raises `Answered` (401, 403, 429)."""

    def guard(connection: Connection, handler: BaseRouteHandler) -> None:
        key = _bearer(connection)
        if not key.may(scope):
            raise not_allowed(scope)
        _take(connection, key)

    return guard


def any_key(connection: Connection, handler: BaseRouteHandler) -> None:
    """Admit any valid key, within its rate; the route decides what the key sees. Raises `Answered` (401, 429)."""
    _take(connection, _bearer(connection))


def _take(connection: Connection, key: Key) -> None:
    service_of(connection).take_rate(key)
    connection.scope["user"] = key


def _bearer(connection: Connection) -> Key:
    given = connection.headers.getall("authorization", [])
    kind, _, text = given[0].partition(" ") if len(given) == 1 else ("", "", "")
    key = service_of(connection).keys.authenticate(text.strip()) if kind.lower() == "bearer" else None
    if key is None:
        raise no_key()
    return key
