"""Search and verify the audit log."""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from datetime import UTC, datetime, timedelta
from typing import Annotated

from litestar import Response, get
from litestar.params import QueryParameter

from ....history.search import Query, RunSummary, search
from ..access import service_of
from ..bodies import AuditRun, AuditRuns, AuditStatus
from ..problems import without_paths
from ..service import Service
from .answers import KeyedRequest, described, reply

_Word = Annotated[str, QueryParameter(max_length=200)]
_MAX_TEXT = 4000


def found(service: Service, query: Query, *, days: float, limit: int) -> tuple[AuditRun, ...]:
    """Return the newest `limit` runs of the last `days` in the audit log that match, newest first."""
    since = datetime.now(UTC) - timedelta(days=days)
    records = service.executor.audit.records(since, kinds={"intent", "outcome"})
    return tuple(_row(run) for run in reversed(deque(search(records, query), maxlen=limit)))


def _row(run: RunSummary) -> AuditRun:
    fields = {name: getattr(run, name) for name in AuditRun.__struct_fields__}
    return AuditRun(**fields | {"text": run.text[:_MAX_TEXT], "error": run.error[:_MAX_TEXT]})


def verified(service: Service, expected: str | None = None) -> AuditStatus:
    """Verify the chain of records; with `expected`, also against a hash that was kept elsewhere."""
    found = service.executor.audit.verify(expected)
    problem = f"{found.problem.kind}: {found.problem.message}" if found.problem else ""
    return AuditStatus(ok=found.ok, records=found.records, head=found.head, problem=without_paths(problem))


@get(
    "/v1/audit/runs",
    **described("audit", "Search the record, newest first", AuditRuns, "Runs on record.", scope="audit"),
)
async def audit_runs(
    request: KeyedRequest,
    text: Annotated[
        str, QueryParameter(max_length=200, description="In the code, label, reason, error or result.")
    ] = "",
    regex: Annotated[str, QueryParameter(max_length=200, description="RE2, in the same places.")] = "",
    status: _Word = "",
    rule: Annotated[str, QueryParameter(max_length=200, description="A glob, such as `network.*`.")] = "",
    requester: _Word = "",
    decision: _Word = "",
    days: Annotated[float, QueryParameter(ge=0.001, le=3650)] = 30.0,
    limit: Annotated[int, QueryParameter(ge=1, le=500)] = 100,
) -> Response[bytes]:
    def one(word: str) -> tuple[str, ...]:
        return (word,) if word else ()

    query = Query(
        text=text,
        regex=regex,
        statuses=one(status),
        rules=one(rule),
        requesters=one(requester),
        decisions=one(decision),
    )
    look = functools.partial(found, service_of(request), query, days=days, limit=limit)
    return reply(AuditRuns(runs=await asyncio.to_thread(look)))


@get(
    "/v1/audit/verify",
    **described("audit", "Verify the chain of records", AuditStatus, "Whether it is whole.", scope="audit"),
)
async def audit_verify(
    request: KeyedRequest,
    head: Annotated[
        str, QueryParameter(pattern="^([0-9a-f]{64})?$", description="A hash that was kept elsewhere.")
    ] = "",
) -> Response[bytes]:
    return reply(await asyncio.to_thread(verified, service_of(request), head or None))


HANDLERS = (audit_runs, audit_verify)
