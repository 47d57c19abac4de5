"""What may be in a `redoma.yaml`: reads one file into a `Layer`, and checks what types can't express."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType, inspect

from ..lib.errors import InvalidRequest, PolicyError
from ..lib.text import suggest
from ..lib.units import ENGINES, engine_problem, format_size, is_url
from ..models import LANGUAGES, OTHER, Decision, Limits, MiB, Request, host_rule
from .document import Mapping, Node, Scalar, Sequence, parse
from .model import (
    SECTIONS,
    ApprovalConfig,
    AuditConfig,
    ClusterConfig,
    DockerConfig,
    DockerEntry,
    Entry,
    InvalidFile,
    JailConfig,
    JailEntry,
    LanguageConfig,
    LogConfig,
    MontyEntry,
    Name,
    NetworkConfig,
    Problem,
    ServerConfig,
    SessionsConfig,
)
from .places import Source
from .reader import Reader

if TYPE_CHECKING:
    from ..policy import Permit, Rule


_NAMESPACE = "app"
"""The namespace of entries in a file that is only a list of them."""
_CAPABILITIES = """
ALL AUDIT_CONTROL AUDIT_READ AUDIT_WRITE BLOCK_SUSPEND BPF CHECKPOINT_RESTORE CHOWN DAC_OVERRIDE
DAC_READ_SEARCH FOWNER FSETID IPC_LOCK IPC_OWNER KILL LEASE LINUX_IMMUTABLE MAC_ADMIN MAC_OVERRIDE
MKNOD NET_ADMIN NET_BIND_SERVICE NET_BROADCAST NET_RAW PERFMON SETFCAP SETGID SETPCAP SETUID SYSLOG
SYS_ADMIN SYS_BOOT SYS_CHROOT SYS_MODULE SYS_NICE SYS_PACCT SYS_PTRACE SYS_RAWIO SYS_RESOURCE
SYS_TIME SYS_TTY_CONFIG WAKE_ALARM"""
_MIN_QUOTA = 1000  # of 100000: the kernel's minimum is a millisecond
_MIN_MEMORY = 6 * MiB  # Docker's minimum


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """What one file says: only the keys that are in it."""

    label: str
    """The role of the file: "user file", "project file", "--config"."""
    path: Path
    pack: str | None = None
    rules: tuple[Rule, ...] = ()
    decisions: dict[str, Decision] = {}
    permits: tuple[Permit, ...] = ()
    sections: dict[str, dict[str, Any]]
    """Each of `SECTIONS` → the keys that are written there and their values."""
    languages: dict[str, LanguageConfig] = {}
    entries: dict[str, Entry] = {}
    marks: dict[str, tuple[int, int]] = {}
    """Dotted key → line and column."""

    def problem(self, key: str, message: str, hint: str) -> Problem:
        """Return a problem at the position of a key."""
        line, column = self.marks[key]
        return Problem(file=self.path, line=line, column=column, key=key, message=message, hint=hint)


class _Policy(msgspec.Struct):
    """The keys of the section `policy`."""

    pack: str
    rules: tuple[Any, ...]  # parsed later, as `Rule`: most files have none, and then the policy engine is not loaded
    decisions: dict[str, Decision]
    permits: tuple[Any, ...]  # the same, as `Permit`


class _File(msgspec.Struct):
    """The keys of a file; the types of the fields are the schema."""

    version: Literal["1.0"]
    namespace: Name
    entries: tuple[Entry, ...]
    policy: _Policy
    limits: Limits
    audit: AuditConfig
    approval: ApprovalConfig
    network: NetworkConfig
    jail: JailConfig
    docker: DockerConfig
    sessions: SessionsConfig
    log: LogConfig
    server: ServerConfig
    cluster: ClusterConfig
    languages: dict[str, LanguageConfig]


def read_layer(source: Source, label: str, home: Path | None, *, bare: bool = False) -> Layer:
    """Read a file. A file that is a list contains entries. Raises `InvalidFile` with all its errors.

    `label` is the role of the file; `~` stands for `home`; `bare`: also accept the content of `policy` alone.
    """
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
        sections={name: values.get(name, {}) for name in SECTIONS},
        languages=_languages(reader, values.get("languages", {})),
        entries=_entries(reader, values),
        marks=reader.marks,
    )
    _check_sections(reader, layer.sections)
    if reader.problems:
        raise InvalidFile(tuple(reader.problems))
    return layer


def _pack(reader: Reader, policy: dict[str, Any]) -> str | None:
    pack: str | None = policy.get("pack")
    if pack is None:
        return None
    from ..policy import PACKS

    if pack not in PACKS:
        reader.report_at("policy.pack", f"there is no pack {pack!r}", suggest(pack, PACKS))
    return pack


def _rules(reader: Reader, nodes: tuple[Node, ...]) -> tuple[Rule, ...]:
    if not nodes:
        return ()
    from ..policy import PACKS, Rule, load

    rules: dict[str, Rule] = {}
    for path, values in reader.items(nodes, inspect.type_info(Rule), "policy.rules"):
        # They are shown on a terminal, and a project may add rules without being trusted.
        shown = {field: values.get(field, "").replace("\n", " ") for field in ("id", "reason", "suggestion")}
        unseen = [field for field, text in shown.items() if not text.isprintable()]
        for field in unseen:
            reader.report_at(f"{path}.{field}", "it holds characters that can't be seen", "write it in plain text")
        if unseen:
            continue
        try:
            rule = Rule(**values)
            load(PACKS[-1], (rule,))  # the last pack has every built-in rule, so this finds a duplicate id too
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

    permits: list[Permit] = []
    for path, values in reader.items(nodes, inspect.type_info(Permit), "policy.permits"):
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


def _check_sections(reader: Reader, sections: dict[str, dict[str, Any]]) -> None:
    _check_limits(reader, "limits", sections["limits"])
    url = sections["approval"].get("webhook")
    if url is not None and not is_url(url):
        hint = "write an http or https URL, without a name or password in it"
        reader.report_at("approval.webhook", "nothing can be posted there", hint)
    _check_engine(reader, "docker.host", sections["docker"].get("host"))
    for key, rules in sections["network"].items():
        for number, rule in enumerate(rules):
            try:
                host_rule(rule)
            except InvalidRequest as error:
                reader.report_at(f"network.{key}[{number}]", f"{error.what}: {error.why}", error.next)


def _check_limits(reader: Reader, path: str, limits: dict[str, Any]) -> None:
    for name, value in limits.items():
        try:
            Limits(**{name: value})
        except InvalidRequest as error:
            reader.report_at(f"{path}.{name}", f"{error.what}: {error.why}", error.next)


def _languages(reader: Reader, given: dict[str, dict[str, Any]]) -> dict[str, LanguageConfig]:
    languages: dict[str, LanguageConfig] = {}
    for name, fields in given.items():
        path = f"languages.{name}"
        taken = name in (*LANGUAGES, OTHER) and name != "javascript"
        if taken or not re.fullmatch(r"[a-z][a-z0-9_+.-]{0,39}", name):
            why = "is built in" if taken else "can't be the name of a language"
            reader.report_at(path, f"{name!r} {why}", "use a name of its own, of lower-case letters and digits")
        elif not fields.get("argv") or UNSET in fields["argv"]:
            reader.report_at(path, "it has no program", f"add `argv: [{name}, -]`")
        else:
            languages[name] = LanguageConfig(**fields)
    return languages


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
        entries[address] = _checked_entry(reader, path, entry)
        reader.marks[f"entries.{address}"] = reader.marks[path]
    return entries


def _checked_entry(reader: Reader, path: str, entry: Entry) -> Entry:
    """Check what types can't express, so that errors are found now and not when the executor is used. Returns the entry
    with absolute host paths.
    """
    _check_variables(reader, path, entry)
    _check_commands(reader, path, entry)
    _check_limits(reader, f"{path}.limits", entry.limits)
    if isinstance(entry, (DockerEntry, JailEntry)) and entry.default_work_dir is not None:
        _check_inside(reader, f"{path}.default_work_dir", entry.default_work_dir)
    return _checked_container(reader, path, entry) if isinstance(entry, DockerEntry) else entry


def _check_engine(reader: Reader, place: str, host: str | None) -> None:
    if host is not None and (problem := engine_problem(host)) is not None:
        reader.report_at(place, f"{host!r} is not an engine: {problem}", f"write it with one of {', '.join(ENGINES)}")


def _check_variables(reader: Reader, path: str, entry: Entry) -> None:
    named = [(f"default_env.{name}", name, value) for name, value in entry.default_env.items()]
    named += [(f"caller_env[{number}]", name, "") for number, name in enumerate(entry.caller_env)]
    for place, name, value in named:
        try:
            Request(env={name: value})
        except InvalidRequest as error:
            reader.report_at(f"{path}.{place}", f"{error.what}: {error.why}", error.next)


def _check_commands(reader: Reader, path: str, entry: Entry) -> None:
    for number, command in enumerate(entry.command_whitelist or ()):
        place = f"{path}.command_whitelist[{number}]"
        try:
            if not (command.split() if isinstance(entry, MontyEntry) else shlex.split(command)):
                reader.report_at(place, "it holds no command", "write a command, or remove it")
        except ValueError as error:
            message = f"it can't be split into words ({error})"
            reader.report_at(place, message, "close every quote, and put a character after every backslash")


def _check_inside(reader: Reader, place: str, path: str) -> bool:
    """Return whether it is a path inside a cell or container; report it if not."""
    if path.startswith("/") and ".." not in path.split("/"):
        return True
    reader.report_at(place, f"{path!r} is not a path inside", "write an absolute path, such as /workspace")
    return False


def _checked_container(reader: Reader, path: str, entry: DockerEntry) -> DockerEntry:
    _check_engine(reader, f"{path}.host", entry.host)
    if 0 < entry.cpu_quota < _MIN_QUOTA:
        reader.report_at(f"{path}.cpu_quota", "it is too little for anything to run", "100000 is one processor")
    for field, size in (("memory_limit", entry.memory_limit), ("limits.memory", entry.limits.get("memory", 0))):
        if 0 < size < _MIN_MEMORY:
            least = format_size(_MIN_MEMORY)
            message = f"{size} bytes are too little memory: Docker takes no less than {least}"
            reader.report_at(f"{path}.{field}", message, f"write {least} or more, such as 256MiB, or leave it out")
    for inside in entry.tmpfs:
        _check_inside(reader, f"{path}.tmpfs.{inside}", inside)
    capabilities = _CAPABILITIES.split()
    for field in ("cap_drop", "cap_add"):
        for number, name in enumerate(getattr(entry, field)):
            known = name.upper().removeprefix("CAP_")
            if known not in capabilities:
                message = f"there is no capability {name!r}"
                reader.report_at(f"{path}.{field}[{number}]", message, suggest(known, capabilities))
    return msgspec.structs.replace(entry, volumes=tuple(_volumes(reader, path, entry)))


def _volumes(reader: Reader, path: str, entry: DockerEntry) -> Iterator[str]:
    """Yield the valid volumes with absolute host paths; report the others."""
    for number, volume in enumerate(entry.volumes):
        place = f"{path}.volumes[{number}]"
        host, inside, *mode = [*volume.split(":"), ""][: max(3, volume.count(":") + 1)]
        if not host or mode not in ([""], ["ro"]):
            reader.report_at(place, f"{volume!r} is not a volume", "write it as host:container or host:container:ro")
        elif _check_inside(reader, place, inside):
            resolved = reader.resolved(host)
            if resolved is None or os.sep not in host:
                hint = "write an absolute path, one below `~/`, or one that begins with `./`"
                reader.report_at(place, f"{host!r} is not a path on the host", hint)
            else:
                yield ":".join([str(resolved), inside, *filter(None, mode)])
