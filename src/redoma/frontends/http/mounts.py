"""Further interfaces of the service beside its own routes: ASGI applications, each below a path.

`MOUNTS` names the modules. Each has a function `mount(service) -> Mount`, which is called once, before the service is
started. The application has to check itself who may do what: `service.keys.authenticate(text)` finds the key that was
sent, and `service.quotas.take_rate(key)` counts the request.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from litestar.handlers import ASGIRouteHandler

    from .service import Service

MOUNTS: tuple[str, ...] = ("redoma.frontends.mcp.http", "redoma.frontends.e2b.mount", "redoma.frontends.e2b.signed")
"""Modules, each with a function `mount`. A module is skipped if a package that it needs is not installed."""


class Mount(NamedTuple):
    """An application and its path."""

    path: str
    """Such as `/mcp`. The application gets all requests below it."""
    app: Callable[[Any, Any, Any], Any]
    """Called with scope, receive and send."""
    lifespan: Callable[[], AbstractAsyncContextManager[Any]] | None = None
    """Entered after the service was started, and left before it is stopped."""


def mounted(service: Service) -> Iterator[Mount]:
    """Yield the mounts of this service."""
    for name in MOUNTS:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] == "redoma":
                raise
            continue
        yield module.mount(service)


def handler(mount: Mount) -> ASGIRouteHandler:
    """Return litestar's handler for a mount."""
    from litestar import asgi

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await mount.app(scope, receive, send)

    return asgi(mount.path, is_mount=True, copy_scope=True)(answer)
