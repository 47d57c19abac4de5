"""The control plane: create, find, list, extend and kill sandboxes. Needs an API key."""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Any
from urllib.parse import parse_qsl, unquote

import msgspec

from ..http.keys import Key
from .sandboxes import DEFAULT_SECONDS, ENVD_VERSION, TEMPLATES, Sandbox, Sandboxes, processors
from .wire import E2bRequest, Problem, decoded, moment

_MAX_PAGE = 100
_IDEMPOTENCY = re.compile(r"[a-z0-9-]{1,255}\Z")
_Text = Annotated[str, msgspec.Meta(max_length=4096)]
_Pairs = Annotated[dict[_Text, _Text], msgspec.Meta(max_length=200)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=604800)]


class NewSandbox(msgspec.Struct, rename="camel"):
    """The body of a request to create a sandbox."""

    template_id: Annotated[str, msgspec.Meta(max_length=200)] = msgspec.field(name="templateID", default="base")
    timeout: _Seconds = DEFAULT_SECONDS
    metadata: _Pairs = {}
    env_vars: _Pairs = {}
    auto_pause: bool = False
    auto_resume: Any = None
    allow_internet_access: bool | None = msgspec.field(name="allow_internet_access", default=None)
    network: dict[str, Any] | None = None
    mcp: Any = None
    iam: Any = None
    volume_mounts: list[Any] = []


class Timeout(msgspec.Struct):
    """The body of requests that set the timeout of a sandbox."""

    timeout: _Seconds = DEFAULT_SECONDS
    duration: _Seconds | None = None
    """The name of the field in `/refreshes`."""


def _refuse_what_is_not_here(body: NewSandbox) -> None:
    """Raise `Problem` if the request asks for a feature that this server lacks."""
    template = body.template_id.partition(":")[0]
    if template not in TEMPLATES:
        why = f"there is no template {template!r}: this server has {' and '.join(TEMPLATES)}"
        raise Problem("not_found", why)
    resumes = isinstance(body.auto_resume, dict) and body.auto_resume.get("enabled")
    network = body.network or {}
    reaches = body.allow_internet_access or any(network.get(name) for name in ("allowOut", "rules", "egressProxy"))
    for wanted, what in (
        (body.auto_pause or resumes, "pausing: the memory of a sandbox can't be kept, and it ends at its timeout"),
        (reaches, "the Internet: a sandbox has no network"),
        (body.mcp, "the MCP gateway"),
        (body.iam, "workload identity"),
        (body.volume_mounts, "volumes"),
    ):
        if wanted:
            raise Problem("invalid_argument", f"this server does not have {what}")


async def create(request: E2bRequest, sandboxes: Sandboxes, key: Key) -> None:
    """Create a sandbox and answer its id and tokens. An idempotency key makes repeated requests return the same one."""
    raw = await request.body()
    body = decoded(raw or b"{}", NewSandbox)
    _refuse_what_is_not_here(body)

    async def make() -> Sandbox:
        return await sandboxes.create(
            key, template=body.template_id, metadata=body.metadata, env=body.env_vars, seconds=body.timeout
        )

    word = request.header("idempotency-key")
    if word and not _IDEMPOTENCY.match(word):
        raise Problem("invalid_argument", "an idempotency key has 1 to 255 lower-case letters, digits and hyphens")
    sandbox = await (sandboxes.create_once(key, word, hashlib.sha256(raw).digest(), make) if word else make())
    await request.answer(_created(sandbox), status=201)


async def connect(request: E2bRequest, sandboxes: Sandboxes, key: Key, sandbox: Sandbox) -> None:
    """Answer the tokens of a sandbox. Its timeout is extended if the new one is longer."""
    seconds = _seconds(sandboxes, (await request.json(Timeout)).timeout)
    if seconds > sandbox.left:
        sandboxes.end_in(sandbox, seconds)
    await request.answer(_created(sandbox), status=200)


async def set_timeout(request: E2bRequest, sandboxes: Sandboxes, key: Key, sandbox: Sandbox) -> None:
    """Set the seconds from now after which a sandbox is killed."""
    body = await request.json(Timeout)
    sandboxes.end_in(sandbox, _seconds(sandboxes, body.timeout if body.duration is None else body.duration))
    await request.answer(status=204)


def _seconds(sandboxes: Sandboxes, seconds: float) -> float:
    if seconds > sandboxes.max_seconds:
        raise Problem("invalid_argument", f"a sandbox lives for {sandboxes.max_seconds:g} s at most")
    return seconds


async def kill(request: E2bRequest, sandboxes: Sandboxes, key: Key, sandbox: Sandbox) -> None:
    """End a sandbox."""
    await sandboxes.kill(sandbox)
    await request.answer(status=204)


async def info(request: E2bRequest, sandboxes: Sandboxes, key: Key, sandbox: Sandbox) -> None:
    """Answer the details of a sandbox."""
    more = {"allowInternetAccess": False, "lifecycle": {"autoResume": False, "onTimeout": "kill"}}
    await request.answer(_listed(sandbox) | more)


async def metrics(request: E2bRequest, sandboxes: Sandboxes, key: Key, sandbox: Sandbox) -> None:
    """Take a sample, and answer it with the earlier ones."""
    await sandbox.sample()
    start, end = (request.query.get(name, "") for name in ("start", "end"))
    chosen = [
        each
        for each in sandbox.samples
        if (not start.isdigit() or each.at >= int(start)) and (not end.isdigit() or each.at < int(end) + 1)
    ]
    total = sandbox.session.limits.memory
    await request.answer(
        [
            {
                "timestamp": moment(each.at),
                "timestampUnix": int(each.at),
                "cpuCount": processors(),
                "cpuUsedPct": each.cpu_percent,
                "memUsed": min(each.used.memory, total),
                "memTotal": total,
                "memCache": 0,
                "diskUsed": each.used.disk,
                "diskTotal": each.used.disk_total,
            }
            for each in chosen
        ]
    )


async def list_all(request: E2bRequest, sandboxes: Sandboxes, key: Key) -> None:
    """Answer one page of the sandboxes that the key may see. The next page begins after the last entry of this one."""
    query = request.query
    found = [each for each in sandboxes.of(key) if _is_wanted(each, query)]
    newest = query.get("order", "desc") != "asc"
    found.sort(key=lambda each: (each.started, each.id), reverse=newest)
    if token := query.get("nextToken", ""):
        at = _position(token)
        found = [each for each in found if ((each.started, each.id) < at if newest else (each.started, each.id) > at)]
    given = query.get("limit", "")
    limit = min(max(int(given), 1), _MAX_PAGE) if given.isdigit() and len(given) < 9 else _MAX_PAGE
    page, last = found[:limit], found[limit - 1 : limit]
    headers = {"x-next-token": f"{last[0].started!r}_{last[0].id}"} if len(found) > limit else {}
    await request.answer([_listed(each) for each in page], headers=headers)


def _position(token: str) -> tuple[float, str]:
    at, _, sandbox = token.partition("_")
    try:
        return float(at), sandbox
    except ValueError:
        raise Problem("invalid_argument", "this is not a token of a next page") from None


def _is_wanted(sandbox: Sandbox, query: dict[str, str]) -> bool:
    wanted = {unquote(name): unquote(value) for name, value in parse_qsl(query.get("metadata", ""), max_num_fields=50)}
    states = [word for word in query.get("state", "").split(",") if word]
    template, after = query.get("template", ""), query.get("startedAfter", "")
    return (
        all(sandbox.metadata.get(name) == value for name, value in wanted.items())
        and (not states or "running" in states)
        and (not template or template == sandbox.template)
        and (not after or sandbox.started >= _since(after))
    )


def _since(text: str) -> float:
    from datetime import UTC, datetime

    try:
        at = datetime.fromisoformat(text.replace(" ", "+"))  # a plus sign in a query is a space
    except ValueError:
        raise Problem("invalid_argument", f"{text[:60]!r} is not a time") from None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _created(sandbox: Sandbox) -> dict[str, Any]:
    return {
        "templateID": sandbox.template,
        "sandboxID": sandbox.id,
        "clientID": "redoma",
        "envdVersion": ENVD_VERSION,
        "envdAccessToken": sandbox.token,
        "trafficAccessToken": sandbox.traffic_token,
    }


def _listed(sandbox: Sandbox) -> dict[str, Any]:
    limits = sandbox.session.limits
    return {
        "templateID": sandbox.template,
        "alias": sandbox.template,
        "sandboxID": sandbox.id,
        "clientID": "redoma",
        "startedAt": moment(sandbox.started),
        "endAt": moment(sandbox.ends),
        "cpuCount": processors(),
        "memoryMB": limits.memory >> 20,
        "diskSizeMB": limits.disk >> 20,
        "state": "running",
        "envdVersion": ENVD_VERSION,
        "metadata": sandbox.metadata,
    }
