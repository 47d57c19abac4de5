"""The litestar application: all routes, error handling and response headers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
from litestar import Litestar, Request, Response, get
from litestar.datastructures import State
from litestar.types import Message, Scope

from . import mounts
from .dashboard import pages
from .openapi import document
from .problems import answer
from .routes import approvals, audit, changes, environments, files, keys, policy, processes, runs, sessions, status
from .service import Service

ROUTES = (runs, sessions, files, processes, environments, approvals, changes, policy, audit, keys, status, pages)
"""Modules with `HANDLERS`. A new kind of resource is a file in `routes/` and an entry here."""

_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_POLICY = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")
_UNCACHED = (b"cache-control", b"no-store")


@get("/v1/openapi.json", sync_to_thread=False)
def openapi(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Return the OpenAPI document, built at the first request."""
    state = request.app.state
    if "openapi" not in state:
        state["openapi"] = msgspec.json.encode(document(request.app))
    return Response(state["openapi"], media_type="application/json")


async def _with_headers(message: Message, scope: Scope) -> None:
    if message["type"] == "http.response.start":
        headers = list(message.get("headers", ()))
        present = {name.lower() for name, _ in headers}
        message["headers"] = headers + [each for each in (*_HEADERS, _POLICY, _UNCACHED) if each[0] not in present]


def build(service: Service) -> Litestar:
    """Return the application of a service. Its lifespan starts and stops the service."""

    @asynccontextmanager
    async def lifespan(app: Litestar) -> AsyncIterator[None]:
        await service.start()
        try:
            async with AsyncExitStack() as stack:
                for mount in extra:
                    if mount.lifespan is not None:
                        await stack.enter_async_context(mount.lifespan())
                yield
        finally:
            await service.stop()

    extra = tuple(mounts.mounted(service))
    return Litestar(
        [openapi, *(handler for route in ROUTES for handler in route.HANDLERS), *map(mounts.handler, extra)],
        lifespan=[lifespan],
        state=State({"service": service}),
        exception_handlers={Exception: answer},
        before_send=[_with_headers],
        request_max_body_size=service.settings.max_body,
        logging_config=None,
        openapi_config=None,
        debug=False,
    )
