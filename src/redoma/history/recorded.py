"""From records back to what was asked for, and what came of it.

One pass, a run at a time: what is held is only what has begun and not ended. Records from before a field was recorded
are read as well; what they don't tell is among `missing`.
"""

from __future__ import annotations

import functools
import shlex
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from ..audit import Record
from ..audit.inputs import Inputs
from ..lib.errors import AuditError, InvalidRequest
from ..models import Decision, Finding, Language, Limits, Request, Seed, WorkspaceKind
from ..models.reach import HOST, Reach
from ..pipeline.submission import UNWANTED

NOT_KEPT = "redoma: the secret {name} was not kept"
"""What stands for the value of a secret: where it is printed, it is taken out as the value was."""
_GONE = "it was kept, and is gone"
_BEFORE = "the record is from before this was recorded"


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """One run on record."""

    id: str
    time: str
    """Of its intent: ISO 8601, UTC."""
    request: Request
    """As it ran, with its own id. What is `missing` is empty in it, or as the record shows it."""
    judged: Request
    """As policy looked at it: for most, the same."""
    pack: str | None
    """The policy that was asked for; None for the configured one."""
    digest: str
    """Of the policy that judged it."""
    decision: Decision
    reach: Reach
    """What it could touch where it was to run."""
    level: str
    rules: tuple[str, ...]
    """The ids of what was found, in order."""
    objections: tuple[Finding, ...] = ()
    """What spoke against it whatever the policy said: of an executor with a list of commands."""
    entry: str = ""
    live_input: bool = False
    unread_input: bool = False
    writes: tuple[str, ...] | None = None
    expects: str = ""
    """What it was expected to print, in words."""
    approver: str = ""
    """Who has approved it, where a person had to."""
    outcome: dict[str, Any] | None = None
    """The record of its end; None if there is none: it still runs, or was cut short."""
    missing: tuple[str, ...] = ()
    """What could not be rebuilt, each as `what: why`."""
    beside: frozenset[str] = frozenset()
    """What of that policy did not look at either: the variables of a configured executor, the facts of a monitor."""

    @property
    def status(self) -> str:
        return str(self.outcome.get("status", "")) if self.outcome else ""

    @property
    def approved(self) -> bool:
        return bool(self.approver)


class _Begun(msgspec.Struct):
    """What an intent must be like. Somebody's hand, or another version, may have written anything."""

    policy_digest: str
    language: Language
    code: str
    requester: str
    reason: str
    backend: str
    env: dict[str, str]
    secrets: list[str]
    files: dict[str, int]
    outputs: list[str]
    require: list[str]
    reach: Reach = HOST
    argv: list[str] = []
    cwd: str | None = None
    workspace: WorkspaceKind = "scratch"
    project: str | None = None
    label: str = ""
    pack: str | None = None
    level: str = ""
    objections: int = 0
    entry: str = ""
    live_input: bool = False
    unread_input: bool = False
    writes: list[str] | None = None
    expect: str = ""
    approval: dict[str, Any] | None = None


class _Stream(msgspec.Struct):
    size: int
    sha256: str = ""
    text: str | None = None


class _File(msgspec.Struct):
    name: str
    size: int


class _Effect(msgspec.Struct):
    changes: int
    digest: str
    paths: list[tuple[str, str, str]] | None = None


class _Ended(msgspec.Struct):
    """What is read of the record of an end."""

    status: str
    backend: str = ""
    seed: Seed | None = None
    stdout: _Stream | None = None
    stderr: _Stream | None = None
    artifacts: dict[str, _Stream] = {}
    files: list[_File] = []
    effect: _Effect | None = None

    def __post_init__(self) -> None:
        if (self.stdout is None) is not (self.stderr is None):
            raise ValueError("it has one of the two streams")


def found_by(data: dict[str, Any]) -> tuple[str, ...]:
    """The rules that an intent names, in order, whatever else may be there."""
    findings = data.get("findings")
    listed = findings if isinstance(findings, list) else ()
    return tuple([str(each.get("rule")) for each in listed if isinstance(each, dict)])


def is_kept(intent: Record) -> bool:
    """Whether nothing of it was left out on purpose: what a rule of the monitor is given is other facts each time."""
    missing = intent.data.get("missing")
    return not (isinstance(missing, dict) and UNWANTED in missing.values())


def recorded(records: Iterable[Record], inputs: Inputs | None = None) -> Iterator[Recorded]:
    """Each run, when its end comes by; at last those that have none. Without `inputs` no contents are looked for."""
    for intent, outcome in pairs(records):
        yield rebuilt(intent, outcome.data if outcome else None, inputs)


def pairs(records: Iterable[Record]) -> Iterator[tuple[Record, Record | None]]:
    """The beginning of each run with its end, in the order of the ends; at last those that have none."""
    begun: dict[str, Record] = {}
    for record in records:
        if record.kind == "intent":
            if (before := begun.pop(record.id, None)) is not None:  # asked for anew, after it was cut short
                yield before, None
            begun[record.id] = record
        elif record.kind == "outcome" and (intent := begun.pop(record.id, None)) is not None:
            yield intent, record
    for intent in begun.values():
        yield intent, None


def rebuilt(intent: Record, outcome: dict[str, Any] | None, inputs: Inputs | None = None) -> Recorded:
    """One run, from its two records. Raises `AuditError` for one of them that is none of ours."""
    data = intent.data
    try:
        begun = msgspec.convert(data, _Begun)
        missing = {str(what): str(why) for what, why in data.get("missing", {}).items()}
        if outcome is not None:
            msgspec.convert(outcome, _Ended)
        request = Request(**_fields(data, inputs, missing), id=intent.id)
        judged, beside = request, frozenset[str]()
        if (less := data.get("judged")) is not None:
            limits = msgspec.structs.replace(request.limits, time=less["time"])
            env = {name: request.env[name] for name in less["env"] if name in request.env}
            judged = msgspec.structs.replace(request, env=env, limits=limits, code=less.get("code", request.code))
            if "stdin" in less:
                judged = msgspec.structs.replace(judged, stdin=b"")
            beside = frozenset(what for what in missing if _is_beside(what, less))
        findings = data.get("findings", ())
        return Recorded(
            id=intent.id,
            time=intent.time,
            request=request,
            judged=judged,
            pack=begun.pack,
            digest=begun.policy_digest,
            decision=Decision(data["decision"]),
            reach=begun.reach,
            level=begun.level,
            rules=tuple([finding["rule"] for finding in findings]),
            objections=msgspec.convert(tuple(findings[: begun.objections]), tuple[Finding, ...]),
            entry=begun.entry,
            live_input=begun.live_input,
            unread_input=begun.unread_input,
            writes=None if begun.writes is None else tuple(begun.writes),
            expects=begun.expect,
            approver=_approver(begun.approval or {}),
            outcome=outcome,
            missing=tuple([f"{what}: {why}" for what, why in missing.items()]),
            beside=beside,
        )
    except (AttributeError, InvalidRequest, KeyError, TypeError, ValueError) as error:
        raise AuditError(
            f"run {intent.id} can't be rebuilt", why=f"its record is not understood ({error})", next="see `audit show`"
        ) from error


def _is_beside(what: str, less: dict[str, Any]) -> bool:
    """A name that held a secret is not the same in both places."""
    name = what.removeprefix("variable ")
    return "stdin" in less if what == "stdin" else name != what and name not in less["env"] and "[redacted" not in name


def _approver(approval: dict[str, Any]) -> str:
    """Who said yes: somebody may also have said no, or their yes may have expired."""
    return str(approval["approver"]) if approval.get("decision") == "approved" else ""


def _fields(data: dict[str, Any], inputs: Inputs | None, missing: dict[str, str]) -> dict[str, Any]:
    language = data["language"]
    if "workspace" not in data:
        missing |= {"workspace": _BEFORE, **_taken_out(data)}
    fields: dict[str, Any] = {
        "language": language,
        "backend": data["backend"],
        "limits": _limits(tuple(data["limits"].items())),
        "reason": data["reason"],
        "requester": data["requester"],
    }
    if language == "command":
        fields["argv"] = tuple(data["argv"] if "argv" in data else shlex.split(data["code"]))
    else:
        fields["code"] = data["code"]
        if "argv" in data:
            fields["argv"] = tuple(data["argv"])
    for name in ("outputs", "require"):
        if data[name]:
            fields[name] = tuple(data[name])
    if data["cwd"]:
        fields["cwd"] = data["cwd"]
    if data["env"]:
        fields["env"] = {name: value for name, value in data["env"].items() if f"variable {name}" not in missing}
    if data["secrets"]:
        fields["secrets"] = {name: NOT_KEPT.format(name=name) for name in data["secrets"]}
        missing.setdefault("secrets", _BEFORE)
    if data.get("workspace", "scratch") != "scratch":
        fields |= {"workspace": data["workspace"], "project": data["project"]}
    if data.get("label"):
        fields["label"] = data["label"]
    if "checkpoint" in data:
        fields["checkpoint"] = data["checkpoint"]
    if data["stdin"] or data["files"]:
        _contents(fields, data, inputs, missing)
    return fields


def _taken_out(data: dict[str, Any]) -> dict[str, str]:
    """Of a record from before it said so itself: what a secret was taken out of, by what stands in its place."""
    texts = {"argv" if data["language"] == "command" else "code": data["code"]}
    texts |= {f"variable {name}": value for name, value in data["env"].items()}
    return {what: "something sensitive was taken out of it" for what, text in texts.items() if "[redacted:" in text}


def _contents(fields: dict[str, Any], data: dict[str, Any], inputs: Inputs | None, missing: dict[str, str]) -> None:
    """Input and files, as far as they were kept."""
    names = data.get("inputs", {})

    def content(what: str, name: str) -> bytes:
        found = inputs.get(name) if inputs is not None and name else None
        if found is None:
            missing.setdefault(what, _GONE if name else _BEFORE)
        return found or b""

    if data["stdin"]:
        fields["stdin"] = content("stdin", names.get("stdin", ""))
    if data["files"]:
        kept = names.get("files") or [""] * len(data["files"])
        fields["files"] = {file: content(f"file {file}", name) for file, name in zip(data["files"], kept, strict=False)}


@functools.lru_cache(256)
def _limits(items: tuple[tuple[str, float], ...]) -> Limits:
    """Of most runs the same, and checked each time they are made. One that this version doesn't know is left out."""
    return Limits(**{name: value for name, value in items if name in Limits.__struct_fields__})  # type: ignore[arg-type]
