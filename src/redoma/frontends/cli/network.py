"""network: which hosts a command would need."""

from __future__ import annotations

from typing import Any

import click

from redoma.lib.errors import InvalidRequest
from redoma.models import HostRule, NetworkRequest, Result

from .changes import name
from .emit import emit, note, wants_json
from .options import TakesCommand, given_command, limits_of_a_run, run_options
from .programs import as_found, explain_program
from .result import follow, show
from .state import State


@click.group("network")
def network() -> None:
    """Find out which hosts a command needs."""


@network.command("learn", cls=TakesCommand, options_metavar="[OPTIONS] -- COMMAND...")
@limits_of_a_run
@click.pass_obj
def learn(state: State, /, **given: Any) -> int:
    """Run a command, record every request that it makes, and propose the narrowest rules that permit them.

    Only hosts that --allow-host names are reached, so a program may stop at the first other one: run it again with the
    proposed rules, until nothing is missing.

    Exit status: 0 if there are rules to propose, else that of the command.

    \b
    Examples:
      redoma network learn -- pip download requests
      redoma network learn --allow-host example.org -- curl https://example.org/list
    """
    import msgspec

    from redoma.network.learn import NOTHING, learned
    from redoma.pipeline.sync import Executor

    command = given_command()
    if not command:
        raise InvalidRequest(
            "there is no command",
            why="it stands behind --",
            next="write it like: redoma network learn -- pip download x",
        )
    config = state.attended
    quiet = msgspec.structs.replace(config.network, allow=(*config.network.allow, NOTHING))  # it prompts for nothing
    options = run_options(given)
    options["network"] = (*(options["network"] or ()), NOTHING)
    with Executor(msgspec.structs.replace(config, network=quiet)) as executor:
        result = follow(executor.stream_command(as_found(command, None), **options))
    if result.status.ending != "ran":
        return show(result)
    rules = learned(result.network)
    emit((result, rules), _render, shape=_shape)
    if not result.ok and not wants_json():
        explain_program(result, command, None)
    return 0 if rules else result.shell_exit  # one that could not reach its hosts may well fail


def _render(found: tuple[Result, tuple[HostRule, ...]]) -> None:
    result, rules = found
    for one in result.network:
        note(name(_shown(one)), "network", "green" if one.decision == "allowed" else "yellow")
    if not result.ok:
        ended = f"exit status {result.exit_code}" if result.exit_code is not None else str(result.status)
        what = name(result.error) if result.error and result.error not in result.stderr else "the command failed"
        seen = "perhaps because its hosts were not reached" if rules else "it made no request to any host"
        note(f"{what} ({ended}); {seen}", "failed", "red")
    if not rules:
        if result.ok:
            click.echo("It made no request to any host.", err=True)
        return
    click.echo("network:\n  allow:")
    for rule in rules:
        for text in _texts(rule):
            click.echo(f'    - "{name(text)}"')


def _shown(one: NetworkRequest) -> str:
    return one.words if one.decision == "allowed" else f"{one.method or 'CONNECT'} {one.host}{one.path}: not reached"


def _texts(rule: HostRule) -> list[str]:
    """Return a rule as texts with one path each."""
    import msgspec

    return [str(msgspec.structs.replace(rule, paths=(path,))) for path in rule.paths] or [str(rule)]


def _shape(found: tuple[Result, tuple[HostRule, ...]]) -> dict[str, Any]:
    import msgspec

    result, rules = found
    return {
        "status": str(result.status),
        "exit_code": result.exit_code,
        "error": result.error,
        "requests": msgspec.to_builtins(result.network),
        "allow": [text for rule in rules for text in _texts(rule)],
    }
