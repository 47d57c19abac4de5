"""Merges the layers into one `Config`: defaults, the user's file, the project's file, the one named with `--config`.

A cloned repository must not be able to switch the protection off. So a project file that was only *found* may tighten;
if anything in it loosens what is in force below it, the whole file has no effect until the user has trusted exactly
that content. The same holds for a file that another user has written, or could have.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..lib.text import suggest
from ..models import Decision
from . import places, trusted
from .model import (
    SECTIONS,
    AuditConfig,
    Config,
    DockerEntry,
    InvalidFile,
    JailEntry,
    MontyEntry,
    NativeEntry,
    PolicyConfig,
    Problem,
    printable,
    refuse,
)
from .places import Source

if TYPE_CHECKING:
    from .schema import Layer

_REACH = {
    NativeEntry: "runs on this host",
    DockerEntry: "uses the container engine of this host",
    # Neither reaches the host. But it may replace one of the user's, with other limits and no whitelist.
    JailEntry: "runs what it is given in cells on this host",
    MontyEntry: "runs what it is given on this host's Monty",
}


def _is_lower(before: Any, value: Any) -> bool:
    return bool(value < before)


def _is_higher(before: Any, value: Any) -> bool:
    return bool(value > before)


def _is_part(before: Any, value: Any) -> bool:
    return set(value) <= set(before)


_TIGHTER: dict[str, Callable[[Any, Any], bool]] = {
    "audit.enabled": _is_higher,
    "audit.retention_days": _is_higher,
    "audit.fsync": _is_higher,
    "audit.inputs": _is_higher,
    "approval.approver": lambda before, value: value == "deny",  # nobody is asked
    "approval.timeout": _is_lower,
    "approval.expires": _is_lower,
    "approval.separate": _is_higher,  # two people have to agree
    "network.hosts": _is_part,
    "network.allow": _is_part,
}
"""The keys of which some change only tightens, each with a function that says of the value before and the new one
whether it does. Any change of another key loosens: so does that of a key that is added and not listed here.
"""


def load(explicit: Path | None = None, *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Config:
    """Return the configuration in force in a directory. `explicit` is a file the user named, and is therefore trusted.

    Raises `ConfigError` for a file that can't be used. If there is no file, no YAML library is loaded.
    """
    env = os.environ if env is None else env
    named = places.read(explicit) if explicit else None
    config = _with_user_file(_defaults(env), named, env)
    for found in places.project_files(cwd, env):
        if _same(found, named):
            break
        source = trusted.read_found(found, env)
        if isinstance(source, Source):
            config = _with_project_file(config, source, env)
            break
        # Search on: otherwise any user with write access to a directory could disable the file above it.
        shown = printable(found)
        config = _noticed(
            config,
            f"The project file {shown} has no effect, because {source}. If you want what it says, read it, then run "
            f"`redoma config trust {shlex.quote(shown)}`.",
        )
    if named:
        config = _merge(config, _layer(named, "--config", env))
    return with_log(config, places.log_variable(env), f"the environment, {places.LOG_VARIABLE}")


def with_log(config: Config, said: Mapping[str, Any], origin: str) -> Config:
    """Return the configuration with log settings from an option or a variable. A file or format alone turns the log
    on.
    """
    if not said:
        return config
    log = msgspec.structs.replace(config.log, **said)
    if log.level == "off" and "level" not in said:
        log, said = msgspec.structs.replace(log, level="info"), {**said, "level": "info"}
    origins = {**config.origins, **{f"log.{name}": origin for name in said}}
    return msgspec.structs.replace(config, log=log, origins=origins)


def check(path: Path, *, env: Mapping[str, str] | None = None) -> list[Problem]:
    """Return everything that is wrong with a file on top of the user's own; empty if it can be used."""
    env = os.environ if env is None else env
    try:
        source = places.read(path)
        layer = _layer(source, "file", env)
        _merge(_with_user_file(_defaults(env), source, env), layer)
    except InvalidFile as error:
        return list(error.problems)
    return []


def proposed(path: Path, on: Config | None = None) -> Config:
    """Return the configuration if a file were the project's and trusted, or, with `on`, on top of that configuration.
    The file may also consist of the content of `policy` alone. Raises `ConfigError`.
    """
    source = places.read(path)
    layer = _layer(source, "file", os.environ, bare=True)
    return _merge(on or _with_user_file(_defaults(os.environ), source, os.environ), layer)


def trust(path: Path, *, digest: str | None = None, env: Mapping[str, str] | None = None) -> Source:
    """Trust what a project file says now. `digest` is that of the content the user was shown, which must not have
    changed. Raises `ConfigError` if it has, or if the file can't be used.
    """
    env = os.environ if env is None else env
    source = places.read(path)
    if digest not in (None, source.digest):
        refuse(source.path, "it has changed since it was shown", "read it again")
    _layer(source, "project file", env)
    trusted.record(source, env)
    return source


def loosenings(path: Path, *, env: Mapping[str, str] | None = None) -> tuple[Source, list[str]]:
    """Return a project file as it is now, and what it would loosen: "line 3 raises limits.time from 30.0 to 60.0".

    Both come from one read. Pass the digest to `trust` after showing them; otherwise something else may be trusted than
    was shown.
    """
    env = os.environ if env is None else env
    source = places.read(path)
    layer = _layer(source, "project file", env)
    return source, list(_loosenings(_with_user_file(_defaults(env), None, env), layer))


def describe(config: Config) -> list[tuple[str, Any, str]]:
    """Return every key in force, its value as plain data, and its origin."""
    return [(key, msgspec.to_builtins(value, enc_hook=str), config.origins[key]) for key, value in _values(config)]


def _values(config: Config) -> Iterator[tuple[str, Any]]:
    """Yield every dotted key and its value."""
    yield "policy.pack", config.policy.pack
    yield from ((f"policy.rules.{rule.id}", rule) for rule in config.policy.rules)
    yield from ((f"policy.decisions.{name}", decision) for name, decision in config.policy.decisions.items())
    yield from ((f"policy.permits.{permit.key}", permit) for permit in config.policy.permits)
    for section in SECTIONS:
        for name, value in msgspec.structs.asdict(getattr(config, section)).items():
            yield f"{section}.{name}", value
    yield from ((f"languages.{name}", language) for name, language in config.languages.items())
    yield from ((f"entries.{address}", entry) for address, entry in config.entries.items())


def _defaults(env: Mapping[str, str]) -> Config:
    state = places.state_directory(env)
    config = Config(audit=AuditConfig(directory=state / "audit"), state=state)
    return msgspec.structs.replace(config, origins={key: "default" for key, _ in _values(config)})


def _layer(source: Source, label: str, env: Mapping[str, str], *, bare: bool = False) -> Layer:
    from .schema import read_layer

    return read_layer(source, label, places.home(env), bare=bare)


def _same(path: Path, source: Source | None) -> bool:
    return source is not None and os.path.realpath(path) == str(source.path)


def _with_user_file(config: Config, named: Source | None, env: Mapping[str, str]) -> Config:
    own = places.user_file(env)
    if not own or _same(own, named):
        return config
    source = places.read(own)
    places.require_own(source)
    return _merge(config, _layer(source, "user file", env))


def _with_project_file(config: Config, source: Source, env: Mapping[str, str]) -> Config:
    layer = _layer(source, "project file", env)
    loosened = list(_loosenings(config, layer))
    if not loosened or trusted.is_trusted(source, env):
        return _merge(config, layer)
    return _noticed(
        config,
        f"The project file {printable(source.path)} has no effect, because {'; '.join(loosened)}. A file that loosens "
        "the protection counts only once you have trusted it: read it, then run `redoma config trust`.",
    )


def _noticed(config: Config, notice: str) -> Config:
    return msgspec.structs.replace(config, notices=(*config.notices, notice))


def _merge(config: Config, layer: Layer) -> Config:
    """Put a layer on top. Raises `InvalidFile` for what is inconsistent with the layers below."""
    merged = msgspec.structs.replace(
        config,
        policy=_merged_policy(config, layer),
        languages={**config.languages, **layer.languages},
        entries={**config.entries, **layer.entries},
        **{name: msgspec.structs.replace(getattr(config, name), **given) for name, given in layer.sections.items()},
    )
    place = f"{layer.label} {printable(layer.path)}"
    changed = {key: f"{place}:{layer.marks[key][0]}" for key, _ in _values(merged) if key in layer.marks}
    return msgspec.structs.replace(merged, origins={**config.origins, **changed})


def _merged_policy(config: Config, layer: Layer) -> PolicyConfig:
    problems = []
    rules = {rule.id: rule for rule in config.policy.rules}
    for rule in layer.rules:
        if rules.setdefault(rule.id, rule) != rule:
            key = f"policy.rules.{rule.id}"
            message = f"the rule {rule.id!r} is defined differently in the {config.origins[key]}"
            problems.append(layer.problem(key, message, "give it an id of its own, or use `policy.decisions`"))
    if layer.decisions or layer.permits:
        known = {*_built_in_decisions(), *rules}
        named = {f"policy.decisions.{name}": name for name in layer.decisions}
        named |= {f"policy.permits.{permit.key}": permit.rule for permit in layer.permits}
        for key, name in named.items():
            if name not in known:
                problems.append(layer.problem(key, f"there is no rule {name!r}", suggest(name, known)))
    if problems:
        raise InvalidFile(tuple(problems))
    return PolicyConfig(
        pack=layer.pack or config.policy.pack,
        rules=tuple(rules.values()),
        decisions={**config.policy.decisions, **layer.decisions},
        permits=tuple(dict.fromkeys((*config.policy.permits, *layer.permits))),
    )


def _built_in_decisions() -> dict[str, Decision]:
    """Return every built-in rule's id with its strictest decision in any pack."""
    from ..policy import PACKS
    from ..policy import load as load_policy

    strictest: dict[str, Decision] = {}
    for pack in PACKS:
        for rule in load_policy(pack).rules:
            strictest[rule.id] = max(rule.decision, strictest.get(rule.id, rule.decision))
    return strictest


def _loosenings(config: Config, layer: Layer) -> Iterator[str]:
    """Yield what in the layer is weaker than what is in force without it."""

    def at(key: str, change: str) -> str:
        return f"line {layer.marks[key][0]} {change}"

    for address, entry in layer.entries.items():
        yield at(f"entries.{address}", f"defines the executor {address!r}, which {_REACH[type(entry)]}")
    for name, language in layer.languages.items():
        if config.languages.get(name) != language:
            yield at(f"languages.{name}", f"names the program that runs {name} code")
    for section, given in layer.sections.items():
        for name, value in given.items():
            before = getattr(getattr(config, section), name)
            if value == before or _is_tighter(section, name, before, value):
                continue
            verb = "raises" if section == "limits" else "changes"
            change = f"{verb} {section}.{name} from {printable(str(before))} to {printable(str(value))}"
            yield at(f"{section}.{name}", change)
    yield from (at(key, change) for key, change in _policy_loosenings(config.policy, layer))


def _is_tighter(section: str, name: str, before: Any, value: Any) -> bool:
    """Return whether a changed value of a section increases protection; False if in doubt.

    A lower limit does; other keys only as `_TIGHTER` says. No change of the jail, the containers, sessions or the log
    counts as tighter: it may use more of this machine; preloaded modules are imported outside of any cell; another
    engine, image or runtime changes the isolation; and a log setting may make Redoma write to a file of the user's, or
    stop writing.
    """
    tighter = _is_lower if section == "limits" else _TIGHTER.get(f"{section}.{name}")
    return tighter is not None and tighter(before, value)


def _policy_loosenings(policy: PolicyConfig, layer: Layer) -> Iterator[tuple[str, str]]:
    if layer.pack:
        from ..policy import PACKS  # weakest first

        if PACKS.index(layer.pack) < PACKS.index(policy.pack):
            yield "policy.pack", f"replaces the pack {policy.pack!r} with the weaker {layer.pack!r}"
    own = {rule.id: rule for rule in policy.rules}
    for rule in layer.rules:
        if own.get(rule.id, rule) != rule:
            yield f"policy.rules.{rule.id}", f"redefines your rule {rule.id!r}"
    for permit in layer.permits:
        if permit not in policy.permits:
            yield f"policy.permits.{permit.key}", f"permits a request that the rule {permit.rule!r} is about"
    if layer.decisions:
        # The strictest of all packs, not of the one in use: a run may request a stricter pack than the configured one.
        in_force = _built_in_decisions() | {rule.id: rule.decision for rule in policy.rules} | policy.decisions
        for name, decision in layer.decisions.items():
            if decision < (before := in_force.get(name, decision)):
                yield f"policy.decisions.{name}", f"lowers the rule {name!r} from {before} to {decision}"
