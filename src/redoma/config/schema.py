"""What may be in a `redoma.yaml`, and what one file says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType, inspect

from ..lib.errors import InvalidRequest, PolicyError
from ..models import Decision, Limits
from .document import Mapping, Node, Scalar, Sequence, parse
from .executors import check_engine, checked
from .model import ApprovalConfig, AuditConfig, DockerConfig, Entry, InvalidFile, JailConfig, LogConfig, Name, Problem
from .places import Source
from .reader import Reader, is_url, nearest

if TYPE_CHECKING:
    from ..policy import Permit, Rule


_NAMESPACE = "app"
"""Of the entries in a file that is a list of them."""


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """What one file says: only the keys that are in it."""

    label: str
    """What the file is to us: "user file", "project file", "--config"."""
    path: Path
    pack: str | None = None
    rules: tuple[Rule, ...] = ()
    decisions: dict[str, Decision] = {}
    permits: tuple[Permit, ...] = ()
    limits: dict[str, int | float] = {}
    audit: dict[str, Any] = {}
    approval: dict[str, Any] = {}
    jail: dict[str, Any] = {}
    docker: dict[str, Any] = {}
    log: dict[str, Any] = {}
    entries: dict[str, Entry] = {}
    marks: dict[str, tuple[int, int]] = {}
    """Dotted key → line and column."""

    def problem(self, key: str, message: str, hint: str) -> Problem:
        line, column = self.marks[key]
        return Problem(file=self.path, line=line, column=column, key=key, message=message, hint=hint)


class _Policy(msgspec.Struct):
    pack: str
    rules: tuple[Any, ...]  # read later, as `Rule`: most files have none, and the policy engine need not be loaded
    decisions: dict[str, Decision]
    permits: tuple[Any, ...]  # the same, as `Permit`


class _File(msgspec.Struct):
    version: Literal["1.0"]
    namespace: Name
    entries: tuple[Entry, ...]
    policy: _Policy
    limits: Limits
    audit: AuditConfig
    approval: ApprovalConfig
    jail: JailConfig
    docker: DockerConfig
    log: LogConfig


def read_layer(source: Source, label: str, home: Path | None, *, bare: bool = False) -> Layer:
    """What the file says. Raises `InvalidFile` with all that is wrong in it. A file that is a list holds entries.
    `bare`: it may also be what stands under `policy` alone."""
    reader = Reader(source.path, home)
    root = parse(source)
    if isinstance(root, Sequence):
        place = {"line": root.line, "column": root.column}
        namespace, entries = (Scalar(**place, text=key, plain=True) for key in ("namespace", "entries"))
        root = Mapping(**place, pairs=((namespace, Scalar(**place, text=_NAMESPACE, plain=True)), (entries, root)))
    elif bare and isinstance(root, Mapping) and any(key.text in _Policy.__struct_fields__ for key, _ in root.pairs):
        place = {"line": root.line, "column": root.column}
        root = Mapping(**place, pairs=((Scalar(**place, text="policy", plain=True), root),))
    values = reader.value(root, inspect.type_info(_File), "") or {}
    policy = values.get("policy", {})
    layer = Layer(
        label=label,
        path=source.path,
        pack=_pack(reader, policy),
        rules=_rules(reader, policy.get("rules", ())),
        decisions=policy.get("decisions", {}),
        permits=_permits(reader, policy.get("permits", ())),
        limits=_limits(reader, values.get("limits", {})),
        audit=values.get("audit", {}),
        approval=_approval(reader, values.get("approval", {})),
        jail=values.get("jail", {}),
        docker=_docker(reader, values.get("docker", {})),
        log=values.get("log", {}),
        entries=_entries(reader, values),
        marks=reader.marks,
    )
    if reader.problems:
        raise InvalidFile(tuple(reader.problems))
    return layer


def _pack(reader: Reader, policy: dict[str, Any]) -> str | None:
    pack: str | None = policy.get("pack")
    if pack is None:
        return None
    from ..policy import PACKS

    if pack not in PACKS:
        reader.report_at("policy.pack", f"there is no pack {pack!r}", nearest(pack, PACKS))
    return pack


def _rules(reader: Reader, nodes: tuple[Node, ...]) -> tuple[Rule, ...]:
    if not nodes:
        return ()
    from ..policy import PACKS, Rule, load

    kind, rules = inspect.type_info(Rule), {}
    for number, node in enumerate(nodes):
        path, before = f"policy.rules[{number}]", len(reader.problems)
        values = reader.value(node, kind, path, complete=True)
        for field in ("id", "reason", "suggestion"):
            # A terminal shows them, and a project may add rules without being trusted.
            if isinstance(values, dict) and not values.get(field, "").replace("\n", " ").isprintable():
                reader.report_at(f"{path}.{field}", "it holds characters that can't be seen", "write it in plain text")
        if len(reader.problems) > before:
            continue
        try:
            rule = Rule(**values)
            load(PACKS[-1], (rule,))  # the last pack has every built-in rule, so this finds a taken id too
        except PolicyError as error:
            reader.report_at(path, f"{error.what}: {error.why}", error.next)
            continue
        if rule.id in rules:
            reader.report_at(path, f"the rule {rule.id!r} is already in this file", "give it an id of its own")
            continue
        rules[rule.id] = rule
        reader.marks[f"policy.rules.{rule.id}"] = reader.marks[path]
    return tuple(rules.values())


def _permits(reader: Reader, nodes: tuple[Node, ...]) -> tuple[Permit, ...]:
    if not nodes:
        return ()
    from ..policy import Permit, verify_permit

    kind, permits = inspect.type_info(Permit), []
    for number, node in enumerate(nodes):
        path, before = f"policy.permits[{number}]", len(reader.problems)
        values = reader.value(node, kind, path, complete=True)
        if len(reader.problems) > before:
            continue
        permit = Permit(**values)
        if not permit.text.isprintable():
            reader.report_at(path, "its text holds characters that can't be seen", "use `sha256`, as a denial shows it")
            continue
        if bool(permit.text) == bool(permit.sha256):
            reader.report_at(path, "it says both or neither of `text` and `sha256`", "copy it as a denial shows it")
        if permit.sha256 and {"backend", "time"} & values.keys():
            reader.report_at(path, "`sha256` stands for all of the request", "leave `backend` and `time` out")
        if permit.up_to is Decision.ALLOW:
            reader.report_at(path, "it takes nothing back", "write `up_to: prompt`, or leave it out")
        try:
            verify_permit(permit)
        except PolicyError as error:
            reader.report_at(path, f"{error.what}: {error.why}", error.next)
        permits.append(permit)
        reader.marks[f"policy.permits.{permit.key}"] = reader.marks[path]
    return tuple(permits)


def _limits(reader: Reader, values: dict[str, Any]) -> dict[str, int | float]:
    for name, value in values.items():
        try:
            Limits(**{name: value})
        except InvalidRequest as error:
            reader.report_at(f"limits.{name}", error.what + ": " + error.why, error.next)
    return values


def _approval(reader: Reader, values: dict[str, Any]) -> dict[str, Any]:
    url = values.get("webhook")
    if url is not None and not is_url(url):
        hint = "write an http or https URL, without a name or password in it"
        reader.report_at("approval.webhook", "nothing can be posted there", hint)
    return values


def _docker(reader: Reader, values: dict[str, Any]) -> dict[str, Any]:
    check_engine(reader, "docker.host", values.get("host"))
    return values


def _entries(reader: Reader, values: dict[str, Any]) -> dict[str, Entry]:
    listed: tuple[Entry | UnsetType, ...] = values.get("entries", ())
    if listed and "namespace" not in reader.marks:
        reader.report_at("entries", "entries need a namespace", "add `namespace: app` to the file")
    entries: dict[str, Entry] = {}
    for number, entry in enumerate(listed):
        if entry is UNSET:
            continue
        path, address = f"entries[{number}]", f"{values.get('namespace')}:{entry.name}"
        if address in entries:
            reader.report_at(path, f"there is already an entry {address!r}", "give it a name of its own")
        entries[address] = checked(reader, path, entry)
        reader.marks[f"entries.{address}"] = reader.marks[path]
    return entries
