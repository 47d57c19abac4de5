"""Reads `monitor.yaml` into a frozen `Plan`; every mistake is reported with line and column.

It is trusted like a `redoma.yaml`: a file that the user named, or has in their own configuration, may do everything. A
file that was only found in the current directory may add checks, which run in the sandbox, and gets a history of its
own. If it goes beyond that, for example by reading a file or running a command, it has no effect until the user has
trusted exactly that content.
"""

from __future__ import annotations

import functools
import keyword
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, assert_never

import msgspec
import yaml
from msgspec import inspect

from ..config import Config, InvalidFile, home, printable
from ..config import trusted as trust_list
from ..config.document import parse
from ..config.places import Source, read, require_own, user_file
from ..config.reader import Reader
from ..lib.text import compile_re2, suggest
from ..lib.units import is_url
from .collect import MAX_MEMORY
from .machine import ALWAYS
from .model import (
    NAME,
    Check,
    CommandProbe,
    FileProbe,
    HttpProbe,
    Notifier,
    Plan,
    Probe,
    Seconds,
    TcpProbe,
    WebhookNotifier,
)
from .rules import MAX_RULE

FILE = "monitor.yaml"
_MAX_ITEMS = 200  # of checks, and of collectors
_MAX_PATTERN = 1000
_MAX_SHOWN, _MAX_SHOWN_LENGTH = 5, 200  # an untrusted file may have a long list, so that nobody reads it to the end


class _File(msgspec.Struct):
    version: Literal["1"]
    interval: float
    history: Seconds
    defaults: bool
    collect: dict[str, Probe]
    checks: tuple[Any, ...]
    notify: dict[str, Notifier]


@functools.cache
def ready_made_checks() -> tuple[Check, ...]:
    """Return the checks of `checks.yaml`, which every plan begins with unless it says `defaults: false`."""
    text = Path(__file__).with_name("checks.yaml").read_text(encoding="utf-8")
    return msgspec.convert(yaml.safe_load(text), tuple[Check, ...])


def load(file: Path | None, config: Config, *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Plan:
    """Return the plan in force: from `file`, else from the current directory, else from the user's configuration, else
    the ready-made checks alone. Raises `ConfigError` for a file that can't be used.
    """
    env = os.environ if env is None else env
    if file is not None:
        return _own(read(file), config, env)
    found = (cwd or Path()) / FILE
    notices: tuple[str, ...] = ()
    if os.path.lexists(found):
        plan, why = _found(found, config, env)
        if plan is not None:
            return plan
        notices = (why,)
    own = user_file(env, FILE)
    plan = _own(read(own), config, env) if own else Plan(checks=ready_made_checks())
    return msgspec.structs.replace(plan, notices=notices)


def reaches(file: Path, config: Config, *, env: Mapping[str, str] | None = None) -> tuple[Source, list[str]]:
    """Read a file. Returns its source, and what in it goes beyond the sandbox: "line 7 reads /var/log/app.log"."""
    source = read(file)
    return source, _read(source, config, os.environ if env is None else env)[1]


def trust(source: Source, *, env: Mapping[str, str] | None = None) -> None:
    """Trust a file at its path with exactly this content, even if something else was written there since."""
    trust_list.record(source, env)


def _own(source: Source, config: Config, env: Mapping[str, str]) -> Plan:
    require_own(source)
    return _read(source, config, env)[0]


def _found(file: Path, config: Config, env: Mapping[str, str]) -> tuple[Plan | None, str]:
    shown = printable(os.path.realpath(file))
    source = trust_list.read_found(file, env)
    if isinstance(source, str):
        return None, (
            f"The file {shown} has no effect, because {source}. If you want what it says, read it, then run "
            f"`redoma monitor trust {shlex.quote(shown)}`."
        )
    plan, reach = _read(source, config, env)
    trusted = trust_list.is_trusted(source, env)
    if trusted or not reach:
        if trusted:
            return plan, ""
        apart = (
            f"The checks are those of {shown}, which was found here: what they find is remembered apart from all else. "
            "To make them yours, run `redoma monitor trust`, or name it with `--file`."
        )
        return msgspec.structs.replace(plan, trusted=False, notices=(apart,)), ""
    some = [each if len(each) <= _MAX_SHOWN_LENGTH else f"{each[:_MAX_SHOWN_LENGTH]}…" for each in reach[:_MAX_SHOWN]]
    more = f"; and {len(reach) - _MAX_SHOWN} more" if len(reach) > _MAX_SHOWN else ""
    return None, (
        f"The file {shown} has no effect, because {'; '.join(some)}{more}. One that reaches beyond the sandbox counts "
        "only once you have trusted it: read it, then run `redoma monitor trust`, or name it with `--file`."
    )


def _read(source: Source, config: Config, env: Mapping[str, str]) -> tuple[Plan, list[str]]:
    reader = Reader(source.path, home(env))
    values = reader.value(parse(source), inspect.type_info(_File), "") or {}
    probes: dict[str, Probe] = values.get("collect", {})
    notify: dict[str, Notifier] = values.get("notify", {})
    interval = values.get("interval", 60.0)
    if not 1 <= interval <= 86400:
        reader.report_at("interval", "it is not a time between two rounds", "write a number of seconds from 1 to 86400")
    history = values.get("history", Plan(checks=()).history)
    if history < 3600:
        reader.report_at("history", "it is too short", "write how long to remember, at least 1h, such as 30d")
    _check_probes(reader, probes, config)
    _check_notifiers(reader, notify, config)
    checks = _checks(reader, values.get("checks", ()), notify, config)
    if reader.problems:
        raise InvalidFile(tuple(reader.problems), lists="")
    replaced = {check.name for check in checks}
    ready = (
        [check for check in ready_made_checks() if check.name not in replaced] if values.get("defaults", True) else []
    )
    times = {"interval": interval, "history": history}
    plan = Plan(checks=(*ready, *checks), collect=probes, notify=notify, source=str(source.path), **times)
    return plan, list(_reach(reader, plan))


def _reach(reader: Reader, plan: Plan) -> Iterator[str]:
    def at(key: str, what: str) -> str:
        return f"line {reader.marks[key][0]} {what}"

    for name, probe in plan.collect.items():
        match probe:
            case FileProbe(path=path):
                what = f"reads {printable(path)}"
            case HttpProbe(url=url):
                what = f"fetches {url}"
            case TcpProbe(host=host, port=port):
                what = f"connects to {printable(host)}:{port}"
            case CommandProbe(run=run, command=command):
                what = f"runs {printable(command)!r} by {printable(run)}"
            case never:
                assert_never(never)
        yield at(f"collect.{name}", what)
    for name, notifier in plan.notify.items():
        if isinstance(notifier, WebhookNotifier):
            yield at(f"notify.{name}", f"tells {notifier.url}")
        else:
            yield at(f"notify.{name}", f"runs {printable(notifier.command)!r} by {printable(notifier.run)}")
    for check in plan.checks:
        if (remedy := check.remedy) is not None:
            yield at(f"checks.{check.name}", f"runs {printable(remedy.command)!r} by {printable(remedy.run)}")


# --- errors beyond types ---


def _check_probes(reader: Reader, probes: Mapping[str, Probe], config: Config) -> None:
    if len(probes) > _MAX_ITEMS:
        reader.report_at("collect", f"there are more than {_MAX_ITEMS} collectors", "keep those that are looked at")
    for name, probe in probes.items():
        place = f"collect.{name}"
        if not _is_name(name):
            reader.report_at(place, f"{name!r} can't be a variable in a rule", "use small letters, digits and `_`")
        elif name in ALWAYS:
            reader.report_at(place, f"{name!r} is a fact of the machine itself", "give it a name of its own")
        match probe:
            case FileProbe(pattern=str(pattern)):
                _check_pattern(reader, f"{place}.pattern", pattern)
            case HttpProbe():
                _check_url(reader, f"{place}.url", probe.url)
                if probe.expect is not None:
                    _check_pattern(reader, f"{place}.expect", probe.expect)
            case CommandProbe():
                _check_executor(reader, f"{place}.run", probe.run, config, listed=True)


def _check_notifiers(reader: Reader, notify: Mapping[str, Notifier], config: Config) -> None:
    for name, notifier in notify.items():
        if isinstance(notifier, WebhookNotifier):
            _check_url(reader, f"notify.{name}.url", notifier.url)
        else:
            _check_executor(reader, f"notify.{name}.run", notifier.run, config, listed=True)


def _checks(reader: Reader, nodes: tuple[Any, ...], notify: Mapping[str, Notifier], config: Config) -> list[Check]:
    checks: dict[str, Check] = {}
    for path, values in reader.items(nodes[:_MAX_ITEMS], inspect.type_info(Check), "checks"):
        check = msgspec.convert(values, Check)
        if check.name in checks:
            reader.report_at(f"{path}.name", f"there is already a check {check.name!r}", "give it a name of its own")
        for field, text in {"rule": check.rule, "message": check.message, "about": check.about}.items():
            if len(text) > MAX_RULE:  # it is recorded each round
                reader.report_at(f"{path}.{field}", f"it has more than {MAX_RULE} characters", "make it shorter")
        for each in check.notify or ():
            if each not in notify:
                reader.report_at(f"{path}.notify", f"nobody is called {each!r}", suggest(each, notify))
        if check.remedy is not None:
            # It need not be on a whitelist: policy and a person decide about it.
            _check_executor(reader, f"{path}.remedy.run", check.remedy.run, config, listed=False)
        checks[check.name] = check
        reader.marks[f"checks.{check.name}"] = reader.marks[path]
    if len(nodes) > _MAX_ITEMS:
        reader.report_at("checks", f"there are more than {_MAX_ITEMS} checks", "keep those that matter")
    return list(checks.values())


def _is_name(name: str) -> bool:
    return re.match(NAME, name) is not None and not keyword.iskeyword(name)


def _check_pattern(reader: Reader, place: str, pattern: str) -> None:
    try:
        if len(pattern) > _MAX_PATTERN:
            raise ValueError("it is too long")
        compile_re2(pattern, max_memory=MAX_MEMORY)
    except ValueError as error:
        reader.report_at(
            place, f"it is not a pattern ({error})", "write it as RE2 has it: no look-around, no references"
        )


def _check_url(reader: Reader, place: str, url: str) -> None:
    if not is_url(url):
        reader.report_at(place, "nothing can be asked there", "write an http or https URL, without a name or password")


def _check_executor(reader: Reader, place: str, address: str, config: Config, *, listed: bool) -> None:
    entry = config.entries.get(address)
    if entry is None:
        hint = suggest(address, config.entries) if config.entries else "write it under `entries` in redoma.yaml"
        reader.report_at(place, f"there is no executor {address!r}", hint)
    elif listed and entry.command_whitelist is None:
        hint = f"give {address} a `command_whitelist` with the command on it, in redoma.yaml"
        reader.report_at(place, "only listed commands run unattended, and this executor has no list", hint)
