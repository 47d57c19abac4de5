"""Who a request is from, and whether they may do it. Decided before anything of its body is read."""

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
    service: Service = connection.app.state["service"]
    return service


def needs(scope: Scope) -> Callable[[Connection, BaseRouteHandler], None]:
    """A guard: only a key with this scope gets past it, and only as often as it may."""

    def guard(connection: Connection, handler: BaseRouteHandler) -> None:
        key = _bearer(connection)
        if not key.may(scope):
            raise not_allowed(scope)
        service_of(connection).take_rate(key)
        connection.scope["user"] = key

    return guard


def any_key(connection: Connection, handler: BaseRouteHandler) -> None:
    """A guard for what every key may do; what it may see is decided by the route."""
    key = _bearer(connection)
    service_of(connection).take_rate(key)
    connection.scope["user"] = key


def _bearer(connection: Connection) -> Key:
    given = connection.headers.getall("authorization", [])
    kind, _, text = given[0].partition(" ") if len(given) == 1 else ("", "", "")
    key = service_of(connection).keys.authenticate(text.strip()) if kind.lower() == "bearer" else None
    if key is None:
        raise no_key()
    return key
