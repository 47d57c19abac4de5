"""The server itself: whether it answers, whether it accepts runs, and its metrics."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from litestar import Request, Response, get
from litestar.openapi.datastructures import ResponseSpec

from .... import __version__
from ....telemetry import metrics as numbers
from ..access import needs, service_of
from ..bodies import Health


@get(
    "/health",
    tags=["service"],
    summary="Whether the process answers",
    responses={200: ResponseSpec(Health, generate_examples=False, description="It does.")},
    sync_to_thread=False,
)
def health() -> Health:
    return Health(status="ok", version=__version__)


@get(
    "/ready",
    tags=["service"],
    summary="Whether it takes runs",
    responses={
        200: ResponseSpec(Health, generate_examples=False, description="It does."),
        503: ResponseSpec(Health, generate_examples=False, description="It is stopping, or can't store runs."),
    },
)
async def ready(request: Request[Any, Any, Any]) -> Response[Health]:
    service = service_of(request)
    status: Literal["ok", "stopping", "failing"] = "ok" if service.can_store else "failing"
    if service.draining:
        status = "stopping"
    now = Health(status=status, queued=service.quotas.waiting, running=service.busy)
    return Response(now, status_code=200 if status == "ok" else 503)


@get(
    "/metrics",
    before_request=needs("audit"),
    tags=["service"],
    summary="Numbers for Prometheus",
    media_type="text/plain",
    responses={
        200: ResponseSpec(str, generate_examples=False, media_type="text/plain", description="In its text format.")
    },
)
async def metrics(request: Request[Any, Any, Any]) -> str:
    service = service_of(request)
    own = (
        ("redoma_service_queued", "Runs that wait for their turn.", service.quotas.waiting),
        ("redoma_service_running", "Runs under way.", service.busy),
        ("redoma_service_slots", "Runs that may be under way at one time.", service.quotas.running),
    )
    lines = "".join(f"# HELP {name} {about}\n# TYPE {name} gauge\n{name} {value}\n" for name, about, value in own)
    return await asyncio.to_thread(numbers.text) + lines


HANDLERS = (health, ready, metrics)
