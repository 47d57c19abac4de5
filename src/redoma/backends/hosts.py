"""A run that reaches the hosts it names: what the backends that support this have in common."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from ..models import Isolation, NetworkRequest, Request
from .base import Outcome

if TYPE_CHECKING:
    from ..network.authority import Authority
    from ..network.proxy import Proxy

Run = Callable[[Isolation, dict[str, str], dict[str, bytes]], Awaitable[Outcome]]
"""Runs the request, given its isolation, variables, and files by absolute paths inside."""


async def run_with_hosts(
    request: Request,
    isolation: Isolation,
    listener: socket.socket,
    authority: Callable[[], Authority],
    run: Run,
    *,
    place: str = "/run",
) -> Outcome:
    """Run a request while its proxy serves `listener`, a socket inside. `place` is a directory inside for the files
    that programs need to use the proxy.

    Returns an outcome that includes the network requests. An error or a cancellation carries them too
    (`kept_requests`).
    """
    from ..network.serve import opened, promise

    isolation = msgspec.structs.replace(isolation, layers={**isolation.layers, "hosts": promise(request.network)})
    proxy: Proxy | None = None
    try:
        async with opened(request, listener, authority, place=place) as proxy:
            outcome = await run(isolation, proxy.environment, proxy.files)
    except BaseException as error:
        if proxy is not None:
            error.__dict__["redoma_requests"] = proxy.records
        raise
    return msgspec.structs.replace(outcome, network=proxy.records)


def kept_requests(error: BaseException | None) -> tuple[NetworkRequest, ...]:
    """Return the requests that a run made before this error or cancellation ended it."""
    found: tuple[NetworkRequest, ...] = error.__dict__.get("redoma_requests", ()) if error is not None else ()
    return found
