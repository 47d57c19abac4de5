"""doctor and completion: about this host and this shell."""

from __future__ import annotations

import platform
from typing import Any

import click

import redoma

from .common import State, columns, json_option, print_json

_NOTHING_ISOLATES = 1


@click.command("doctor")
@json_option
@click.pass_obj
def doctor(state: State, as_json: bool) -> int:
    """What this host offers, what is missing, and what would fix it.

    Exit status 1 if no backend here isolates.
    """
    from redoma.executor import AUTO, AsyncExecutor

    executor = AsyncExecutor(state.config)
    backends = [_examine(backend) for backend in executor.backends.values()]
    chosen = next(
        (entry["name"] for name in AUTO for entry in backends if entry["name"] == name and entry["works"]), None
    )
    report = {
        "redoma": redoma.__version__,
        "python": platform.python_version(),
        "kernel": f"{platform.system()} {platform.release()}",
        "auto": chosen,
        "backends": backends,
        "audit": _audit(state),
    }
    if as_json:
        print_json(report)
    else:
        _print(report)
    return 0 if chosen else _NOTHING_ISOLATES


def _examine(backend: Any) -> dict[str, Any]:
    from redoma.errors import BackendUnavailable

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


def _audit(state: State) -> dict[str, Any]:
    from redoma.audit import AuditLog

    settings = state.config.audit
    if not settings.enabled:
        return {"directory": str(settings.directory), "state": "switched off"}
    problem = AuditLog(settings.directory).verify().problem
    return {"directory": str(settings.directory), "state": problem.message if problem else "intact"}


def _print(report: dict[str, Any]) -> None:
    columns((key, str(report[key])) for key in ("redoma", "python", "kernel"))
    for entry in report["backends"]:
        mark = click.style("✓", fg="green") if entry["works"] else click.style("✗", fg="red")
        click.echo(f"\n{mark} {click.style(entry['name'], bold=True)}")
        if not entry["works"]:
            click.echo(f"    {entry['why']}\n    → {entry['next']}")
            continue
        columns(
            [
                ("    runs", ", ".join(entry["languages"])),
                *((f"    {layer}", what) for layer, what in entry["layers"].items()),
                ("    missing", ", ".join(entry["missing"]) or "nothing"),
            ]
        )
    click.echo(f"\nauto    {report['auto'] or 'nothing here isolates'}")
    click.echo(f"audit   {report['audit']['state']}  ({report['audit']['directory']})")


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a SHELL.

    \b
    Example:
      redoma completion bash >> ~/.bashrc
    """
    from click.shell_completion import get_completion_class

    from .app import cli

    found = get_completion_class(shell)
    if found is not None:
        click.echo(found(cli, {}, "redoma", "_REDOMA_COMPLETE").source())
