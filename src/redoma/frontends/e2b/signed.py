"""Signed file URLs at /files: the SDK drops the /e2b prefix when it builds them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..http.mounts import Mount
from .mount import endpoint

if TYPE_CHECKING:
    from ..http.service import Service


def mount(service: Service) -> Mount:
    """Return the mount for signed file URLs at /files."""
    found = endpoint(service)

    async def files(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await found({**scope, "path": "/files"}, receive, send)

    return Mount("/files", files)
