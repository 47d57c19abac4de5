"""Approvals: requests that wait for a person, and the answers. A key can't answer its own request."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated, Literal

import msgspec
from litestar import Response, get, post
from litestar.openapi.spec import Example
from litestar.params import Body, PathParameter, QueryParameter

from ....approval import STATES, LedgerEntry, describe
from ....lib.errors import ApprovalError
from ..access import service_of
from ..bodies import ApprovalAnswer, Approvals, ApprovalView
from ..keys import Key
from ..problems import Answered, not_found
from ..service import Service
from .answers import KeyedRequest, described, reply

_ID = re.compile(r"[0-9a-f]{6,32}\Z")
_Id = Annotated[str, PathParameter(description="The approval's id, or the beginning of it.", max_length=64)]
_Said = Annotated[
    ApprovalAnswer, Body(examples=[Example(summary="A reason", value={"reason": "reviewed, it only reads"})])
]


def view(service: Service, key: Key, entry: LedgerEntry, *, whole: bool) -> ApprovalView:
    """Return an approval as callers see it; with `whole`, include its effect and its full text."""
    ask, given = entry.ask, entry.approval
    effect = ask.effect
    if effect is not None:
        effect = msgspec.structs.replace(effect, project=service.boundary.project_name(effect.project))
    return ApprovalView(
        id=ask.id,
        state=entry.state,
        requester=ask.requester,
        own=key.owns(ask.requester),
        reason=ask.reason,
        label=ask.label,
        level=ask.level,
        created=ask.created,
        expires=ask.expires,
        run=ask.request.id,
        language=ask.request.language,
        text=ask.request.text,
        findings=ask.evaluation.findings,
        effect=effect if whole else None,
        digest=ask.digest,
        approver=given.approver if given else "",
        answer_reason=given.reason if given else "",
        shown=service.boundary.without_roots(describe(ask).text) if whole else "",
    )


async def visible(service: Service, key: Key, *, everything: bool = False) -> list[LedgerEntry]:
    """Return the approvals that a key may see, oldest first: all with the scope approve or audit, otherwise its own.

    Only open ones, unless `everything` is set.
    """
    states = STATES if everything else ("open",)
    entries = await asyncio.to_thread(service.ledger.entries, *states)
    all_of_them = key.may("approve") or key.may("audit")
    return [entry for entry in entries if all_of_them or key.owns(entry.ask.requester)]


async def load(service: Service, key: Key, prefix: str) -> LedgerEntry:
    """Return an approval that a key may see, by its id or the beginning of it. Raises `Answered` (404)."""
    if not _ID.match(prefix):
        raise not_found("approval")
    try:
        whole = await asyncio.to_thread(service.ledger.whole_id, prefix)
        entry = await asyncio.to_thread(service.ledger.load, whole)
    except ApprovalError:
        raise not_found("approval") from None
    if not (key.may("approve") or key.may("audit") or key.owns(entry.ask.requester)):
        raise not_found("approval")
    return entry


async def decide(
    service: Service, key: Key, prefix: str, decision: Literal["approved", "denied"], said: ApprovalAnswer
) -> LedgerEntry:
    """Answer an approval and return it.

    Raises `Answered` if the key asked for it itself, if it may not see it or if the digest differs; otherwise
    `ApprovalError`.
    """
    entry = await load(service, key, prefix)
    ask = entry.ask
    if key.owns(ask.requester):
        raise Answered(
            403,
            "this key has asked for it itself",
            why="two have to agree",
            next="have somebody with another key decide",
        )
    if said.digest and said.digest != ask.digest:
        raise Answered(409, "this is not what you have read", why="it has another digest", next="read it again")
    answer = service.ledger.reply(ask, decision, approver=key.requester, reason=said.reason)
    await asyncio.to_thread(service.ledger.answer, answer)
    service.answered()
    return await asyncio.to_thread(service.ledger.load, ask.id)


@get(
    "/v1/approvals",
    **described(
        "approvals",
        "List what waits for an answer: with the scope approve or audit all, else what this key has asked",
        Approvals,
        "Oldest first.",
    ),
)
async def approvals(
    request: KeyedRequest,
    everything: Annotated[bool, QueryParameter(name="all", description="Also those that were answered.")] = False,
) -> Response[bytes]:
    service, key = service_of(request), request.user
    entries = await visible(service, key, everything=everything)
    found = tuple(view(service, key, entry, whole=False) for entry in entries)
    return reply(Approvals(approvals=found))


@get(
    "/v1/approvals/{approval_id:str}",
    **described(
        "approvals", "Show all that is asked: command, reasoning, risks and effect", ApprovalView, "The question."
    ),
)
async def approval_show(request: KeyedRequest, approval_id: _Id) -> Response[bytes]:
    service = service_of(request)
    entry = await load(service, request.user, approval_id)
    return reply(view(service, request.user, entry, whole=True))


@post(
    "/v1/approvals/{approval_id:str}/approve",
    **described("approvals", "Let exactly this run, once", ApprovalView, "The question, answered.", scope="approve"),
)
async def approve(request: KeyedRequest, approval_id: _Id, data: _Said) -> Response[bytes]:
    return await _answered(request, approval_id, "approved", data)


@post(
    "/v1/approvals/{approval_id:str}/deny",
    **described("approvals", "Refuse it", ApprovalView, "The question, answered.", scope="approve"),
)
async def deny(request: KeyedRequest, approval_id: _Id, data: _Said) -> Response[bytes]:
    return await _answered(request, approval_id, "denied", data)


async def _answered(
    request: KeyedRequest, prefix: str, decision: Literal["approved", "denied"], said: ApprovalAnswer
) -> Response[bytes]:
    service = service_of(request)
    entry = await decide(service, request.user, prefix, decision, said)
    return reply(view(service, request.user, entry, whole=True))


HANDLERS = (approvals, approval_show, approve, deny)
