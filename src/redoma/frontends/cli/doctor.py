"""doctor: what this host offers, and what is missing."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import redoma

from .emit import emit, json_option, table
from .state import State

if TYPE_CHECKING:
    from redoma.backends.base import Backend
    from redoma.config import Config
    from redoma.lib.errors import ConfigError

_UNUSABLE = 1
_EXTRAS = {
    "network": ("h11 cryptography idna", "runs that reach named hosts; packages for runs"),
    "server": ("litestar uvicorn httptools jinja2", "redoma serve, and its dashboard"),
    "mcp": ("mcp", "redoma mcp: tools for agents"),
    "docker": ("aiodocker", "runs in containers"),
    "lua": ("lupa", "redoma lua"),
    "monitor": ("psutil jinja2", "redoma monitor"),
    "schema": ("jsonschema", "results checked against a JSON schema"),
    "metrics": ("prometheus_client", "metrics for Prometheus"),
    "telemetry": ("opentelemetry", "spans for OpenTelemetry"),
    "jupyter": ("ipykernel jupyter_client", "a kernel for notebooks"),
    "ray": ("ray cryptography", "runs on several machines"),
    "inspect": ("inspect_ai", "a sandbox for inspect_ai"),
}
"""The optional parts: the modules that each needs, and what it is for."""
_MARKS = {"ok": ("✓", "green"), "degraded": ("!", "yellow"), "missing": ("✗", "red")}


@click.command("doctor")
@json_option
@click.pass_obj
def doctor(state: State) -> int:
    """Show what this host offers, what is missing, and what would fix it.

    Exit status 1 if no backend here isolates, or the configuration can't be used.
    """
    from redoma.backends.monty.backend import MontyBackend
    from redoma.pipeline.executor import AUTO, auto
    from redoma.pipeline.installed import Installed

    config, problem = _configuration(state)
    everything = Installed(config)
    # `redoma cluster status` shows what other machines offer.
    installed: dict[str, Backend] = {name: everything[name] for name in everything if name != "ray"}
    facts = {name: _facts(backend) for name, backend in installed.items()}
    if any(fact["state"] == "missing" for fact in facts["jail"]):
        installed["monty"] = MontyBackend(cells=False)  # its workers have no cells here
    backends = [
        {**_examine(backend, facts[name]), "isolates": name in (*AUTO, "lean")}  # never one without a boundary
        for name, backend in installed.items()
    ]
    chosen = next(
        (entry["name"] for name in auto(config) for entry in backends if entry["name"] == name and entry["works"]),
        None,
    )
    works = {entry["name"] for entry in backends if entry["works"]}
    advice = "" if "jail" in works or chosen in ("docker", "lean") else _advice()
    report = {
        "redoma": redoma.__version__,
        "python": platform.python_version(),
        "kernel": f"{platform.system()} {platform.release()}",
        "auto": chosen,
        "backends": backends,
        "host": [fact for found in facts.values() for fact in found],
        "extras": _extras(),
        "configuration": {
            "state": problem.what if problem else "valid",
            "why": problem.why if problem else "",
            "next": problem.next if problem else "",
        },
        "audit": _audit(config),
        "advice": advice,
    }
    emit(report, _print)
    return 0 if chosen and problem is None else _UNUSABLE


def _configuration(state: State) -> tuple[Config, ConfigError | None]:
    """Return the configuration, and what is wrong with it. If it can't be used, return the one without the project's
    file or, if the user's own is at fault, without any.
    """
    from redoma.config import load
    from redoma.lib.errors import ConfigError

    try:
        return state.config, None
    except ConfigError as error:
        top = Path("/")
        try:
            return load(cwd=top), error
        except ConfigError:
            return load(cwd=top, env={**os.environ, "XDG_CONFIG_HOME": os.devnull}), error


def _advice() -> str:
    from redoma.backends.jail.lean import advice

    return advice()


def _extras() -> list[dict[str, Any]]:
    """Return the optional parts that are not installed, with how to install them."""
    from importlib.util import find_spec

    from redoma.lib.extras import pip_install

    return [
        {"name": name, "for": purpose, "next": pip_install(f"redoma[{name}]")}
        for name, (modules, purpose) in _EXTRAS.items()
        if any(find_spec(module) is None for module in modules.split())
    ]


def _examine(backend: Any, facts: list[dict[str, str]]) -> dict[str, Any]:
    from redoma.lib.errors import BackendUnavailable

    if lacking := [fact["name"] for fact in facts if fact["state"] == "missing"]:
        why = f"it needs what is missing here: {', '.join(lacking)}"
        return {"name": backend.name, "works": False, "why": why, "next": "see the commands below, under this host"}
    try:
        can = backend.capabilities()
    except BackendUnavailable as error:
        return {"name": backend.name, "works": False, "why": error.why, "next": error.next}
    return {
        "name": backend.name,
        "works": True,
        "languages": sorted(can.languages),
        "layers": dict(can.isolation.layers),
        "missing": list(can.isolation.missing),
    }


def _facts(backend: Any) -> list[dict[str, str]]:
    """Return what a backend reports about the host; empty for one that reports nothing. The jail needs many kernel
    features.
    """
    import msgspec

    return [msgspec.to_builtins(fact) for fact in backend.facts()] if hasattr(backend, "facts") else []


def _audit(config: Config) -> dict[str, Any]:
    from redoma.audit import AuditLog
    from redoma.lib.errors import AuditError

    settings = config.audit
    if not settings.enabled:
        return {"directory": str(settings.directory), "state": "switched off"}
    try:
        problem = AuditLog(settings.directory).verify().problem
    except AuditError as error:  # a finding: still report the others
        return {"directory": str(settings.directory), "state": str(error)}
    return {"directory": str(settings.directory), "state": problem.message if problem else "intact"}


def _print(report: dict[str, Any]) -> None:
    table((key, str(report[key])) for key in ("redoma", "python", "kernel"))
    for entry in report["backends"]:
        standing = "missing" if not entry["works"] else "ok" if entry["isolates"] else "degraded"
        click.echo(f"\n{_mark(standing)} {click.style(entry['name'], bold=True)}")
        if not entry["works"]:
            click.echo(f"    {entry['why']}\n    → {entry['next']}")
            continue
        table(
            [
                ("    runs", ", ".join(entry["languages"])),
                *((f"    {layer}", what) for layer, what in entry["layers"].items()),
                ("    missing", ", ".join(entry["missing"]) or "nothing"),
            ]
        )
    _print_host(report["host"])
    if report["extras"]:
        click.secho("\noptional parts that are not installed", bold=True)
        table([(f"    {extra['name']}", extra["for"], extra["next"]) for extra in report["extras"]])
    click.echo(f"\nauto    {report['auto'] or 'nothing here isolates'}")
    wrong = report["configuration"]
    if wrong["state"] != "valid":
        click.echo(f"config  {_mark('missing')} {wrong['state']}: {wrong['why']}\n        → {wrong['next']}")
        click.echo("        nothing runs with it; the rest of this report is about the configuration without it")
    click.echo(f"audit   {report['audit']['state']}  ({report['audit']['directory']})")
    if report["advice"]:
        click.echo(f"\n{report['advice']}")


def _print_host(facts: list[dict[str, str]]) -> None:
    if not facts:
        return
    click.secho("\nthis host", bold=True)
    width = max(len(fact["name"]) for fact in facts)
    for fact in facts:
        click.echo(f"{_mark(fact['state'])} {fact['name'].ljust(width)}  {fact['what']}")
        if fact["costs"]:
            click.echo(f"    costs: {fact['costs']}")
        if fact["fix"]:
            click.echo("    fix:")
        for line in fact["fix"].splitlines():
            click.echo(f"        {line}")


def _mark(state: str) -> str:
    sign, colour = _MARKS[state]
    return click.style(sign, fg=colour)
