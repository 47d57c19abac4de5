"""Changes that runs in overlays would make to a project. A key can show and discard the changes of its own runs; only
another key, with the scope approve, can apply or undo them."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated

import msgspec
from litestar import Response, get, post
from litestar.openapi.spec import Example
from litestar.params import Body, PathParameter

from ....lib.errors import WorkspaceError
from ....workspace.kept import Kept
from ..access import service_of
from ..bodies import ApplyBody, ChangesList, ChangesView, moment
from ..keys import Key
from ..problems import Answered, not_found
from ..service import Service
from .answers import KeyedRequest, described, reply

_ID = re.compile(r"[0-9a-f]{32}\Z")
_Id = Annotated[str, PathParameter(description="The id of the run.", max_length=64)]
_Which = Annotated[
    ApplyBody, Body(examples=[Example(summary="All", value={}), Example(summary="Some", value={"paths": ["src"]})])
]


def view(service: Service, kept: Kept, *, whole: bool = False) -> ChangesView:
    """Return kept changes as callers see them; with `whole`, include the effect."""
    effect = msgspec.structs.replace(kept.effect, project=service.boundary.project_name(kept.effect.project))
    return ChangesView(
        id=kept.id,
        state=kept.state,
        project=effect.project,
        command=str(kept.about.get("command", "")),
        time=moment(kept.time),
        since=moment(kept.since),
        applied=kept.applied,
        left=kept.left,
        effect=effect if whole else None,
        count=len(kept.effect.changes),
    )


async def load(service: Service, key: Key, id: str) -> tuple[Kept, bool]:
    """Return kept changes that a key may see, and whether its own run made them. Raises `Answered` (404)."""
    if not _ID.match(id):
        raise not_found("change")
    try:
        kept = await asyncio.to_thread(service.executor.projects.changes.get, id)
    except WorkspaceError:
        raise not_found("change") from None
    own = is_own(key, kept)
    if not (own or key.may("approve") or key.may("audit")):
        raise not_found("change")
    return kept, own


def is_own(key: Key, kept: Kept) -> bool:
    """Return whether a run or session of this key made these changes, through any interface."""
    return key.owns(str(kept.about.get("requester", "")))


async def visible(service: Service, key: Key) -> list[Kept]:
    """Return the kept changes that a key may see, newest first."""
    found = await asyncio.to_thread(service.executor.projects.changes.list)
    if not (key.may("approve") or key.may("audit")):
        found = tuple(kept for kept in found if is_own(key, kept))
    return list(reversed(found))


async def apply_as(service: Service, key: Key, id: str, body: ApplyBody) -> Kept:
    """Apply changes of another key's run. Raises `Answered` if it is the key's own, `ApprovalError` if policy requires
    an approval first."""
    kept, own = await load(service, key, id)
    if own:
        raise _needs_another_key()
    return await service.executor.apply(kept.id, paths=body.paths, named=body.named, wait=False)


async def undo_as(service: Service, key: Key, id: str) -> Kept:
    """Undo applied changes of another key's run. Raises `Answered` if it is the key's own."""
    kept, own = await load(service, key, id)
    if own:
        raise _needs_another_key()
    return await service.executor.undo(kept.id)


async def discard_as(service: Service, key: Key, id: str) -> Kept:
    """Discard changes of the key's own run, or with the scope approve of any run. Raises `Answered` (404)."""
    kept, own = await load(service, key, id)
    if not own and not key.may("approve"):
        raise not_found("change")
    return await service.executor.discard(kept.id)


def _needs_another_key() -> Answered:
    return Answered(403, "this key has made these changes", why="two have to agree", next="have another key decide")


@get("/v1/changes", **described("changes", "List what is kept, newest first", ChangesList, "Changes."))
async def changes(request: KeyedRequest) -> Response[bytes]:
    service = service_of(request)
    found = await visible(service, request.user)
    return reply(ChangesList(changes=tuple(view(service, kept) for kept in found)))


@get(
    "/v1/changes/{run_id:str}",
    **described("changes", "Show the changes of a run, with their diffs", ChangesView, "The changes."),
)
async def changes_show(request: KeyedRequest, run_id: _Id) -> Response[bytes]:
    service = service_of(request)
    kept, _ = await load(service, request.user, run_id)
    return reply(view(service, kept, whole=True))


@post(
    "/v1/changes/{run_id:str}/apply",
    **described(
        "changes",
        "Write exactly these changes to the project, all or nothing",
        ChangesView,
        "The changes.",
        scope="approve",
    ),
)
async def changes_apply(request: KeyedRequest, run_id: _Id, data: _Which) -> Response[bytes]:
    service = service_of(request)
    return reply(view(service, await apply_as(service, request.user, run_id, data), whole=True))


@post(
    "/v1/changes/{run_id:str}/discard",
    **described("changes", "Drop changes; the project was never touched", ChangesView, "The changes."),
)
async def changes_discard(request: KeyedRequest, run_id: _Id) -> Response[bytes]:
    service = service_of(request)
    return reply(view(service, await discard_as(service, request.user, run_id), whole=True))


@post(
    "/v1/changes/{run_id:str}/undo",
    **described(
        "changes",
        "Put exactly the paths that were applied back as they were",
        ChangesView,
        "The changes.",
        scope="approve",
    ),
)
async def changes_undo(request: KeyedRequest, run_id: _Id) -> Response[bytes]:
    service = service_of(request)
    return reply(view(service, await undo_as(service, request.user, run_id), whole=True))


HANDLERS = (changes, changes_show, changes_apply, changes_discard, changes_undo)
