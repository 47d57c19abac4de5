"""monitor: how this machine does, judged by rules that run in a sandbox."""

from __future__ import annotations

import logging
import shutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .common import State, json_option, print_json

if TYPE_CHECKING:
    from redoma.monitor.model import Plan, Round, Verdict

_COLOURS = {"ok": "green", "warning": "yellow", "critical": "red", "unknown": "magenta"}
_NARROWEST = 30

_file = click.option(
    "--file", type=click.Path(path_type=Path), metavar="FILE", help="Use this monitor.yaml; it is trusted."
)


@click.group("monitor")
def monitor() -> None:
    """How this machine does, judged by rules that run in a sandbox.

    \b
    Examples:
      redoma monitor check                  the ready-made checks, or those of monitor.yaml
      redoma monitor check --only memory --only load
      redoma monitor facts                  what rules can be about
      redoma monitor list                   every check, its rule, and where it is from

    Of `check` the exit status is 0 ok, 1 warning, 2 critical, 3 unknown.
    """


def plan_of(state: State, file: Path | None) -> Plan:
    """The plan in force; what the user should know of it is said."""
    from redoma.config import InvalidFile
    from redoma.monitor.file import load

    try:
        plan = load(file, state.config)
    except InvalidFile as error:
        for problem in error.problems[1:]:
            click.echo(f"{problem.where}: {problem.message}\n  next: {problem.hint}", err=True)
        raise
    for notice in plan.notices:
        click.echo(click.style("redoma: note: ", fg="yellow") + notice, err=True)
    return plan


def start_logging(state: State, verbose: bool) -> None:
    """To `logs/monitor.log` in the state directory, and with `-v` to standard error, too."""
    from redoma.monitor.service import LogFile, log

    log.setLevel(logging.INFO)
    log.propagate = False
    if state.config.state is not None:
        log.addHandler(LogFile(state.config.state))
    if verbose:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        log.addHandler(handler)


@monitor.command("check")
@_file
@click.option("--only", multiple=True, metavar="NAME", help="Only this check; may be given several times.")
@click.option("-v", "--verbose", is_flag=True, help="Say which sandbox evaluated which rule, and for how long.")
@json_option
@click.pass_obj
def check(state: State, file: Path | None, only: tuple[str, ...], verbose: bool, as_json: bool) -> int:
    """Look at everything once and say how it stands. Exit 0 ok, 1 warning, 2 critical, 3 unknown."""
    from redoma.monitor.service import Monitor
    from redoma.sync import Executor

    plan = plan_of(state, file)
    start_logging(state, verbose)
    with Executor(state.config) as executor:
        found = executor.wait(Monitor(plan, executor.core, only=only).round())
    if as_json:
        print_json(found.told)
    else:
        table(found)
    return int(found.state)


def table(found: Round) -> None:
    """Every verdict, the most urgent first."""
    rows = sorted(found.verdicts, key=lambda verdict: -verdict.state.urgency)
    head = ("STATE", "CHECK", "SANDBOX", "TIME", "MESSAGE")
    cells = [head, *map(_cells, rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(4)]
    before = sum(widths) + 2 * len(widths)
    room = max(_NARROWEST, shutil.get_terminal_size((100, 24)).columns - before)
    for row, verdict in zip(cells, [None, *rows], strict=True):
        padded = [cell.ljust(width) for cell, width in zip(row[:4], widths, strict=True)]
        if verdict is not None:
            padded[0] = click.style(padded[0], fg=_COLOURS[verdict.state.word], bold=True)
        first, *more = textwrap.wrap(row[4], room) or [""]
        click.echo("  ".join([*padded, first]).rstrip())
        for line in more:
            click.echo(" " * before + line)
    for name, why in found.problems.items():
        click.echo(f"{click.style('missing', fg='magenta')}: {name}: {why}")
    counts = [f"{number} {word}" for word in _COLOURS if (number := _count(found, word))]
    shown = click.style(found.state.word, fg=_COLOURS[found.state.word], bold=True)
    click.echo(f"{found.host} is {shown}: {', '.join(counts) or 'nothing was checked'}")


def _cells(verdict: Verdict) -> tuple[str, ...]:
    return verdict.state.word, verdict.check, verdict.sandbox or "none", f"{verdict.seconds:.2f} s", verdict.message


def _count(found: Round, word: str) -> int:
    return sum(verdict.state.word == word for verdict in found.verdicts)


@monitor.command("facts")
@_file
@click.pass_obj
def facts(state: State, file: Path | None) -> None:
    """Collect everything once and print it as JSON: what rules can be about."""
    from redoma.monitor.aside import Aside
    from redoma.monitor.collect import collect
    from redoma.sync import Executor

    plan = plan_of(state, file)
    with Executor(state.config) as executor:
        found, problems = executor.wait(collect(plan.collect, executor.core, Aside()))
    print_json(found)
    for name, why in problems.items():
        click.echo(f"{click.style('missing', fg='magenta')}: {name}: {why}", err=True)


@monitor.command("list")
@_file
@json_option
@click.pass_obj
def show(state: State, file: Path | None, as_json: bool) -> None:
    """Every check with its rule, without making any."""
    plan = plan_of(state, file)
    if as_json:
        print_json(plan)
        return
    click.echo(f"from {plan.source or 'the ready-made checks'}")
    for each in plan.checks:
        click.echo(f"\n{click.style(each.name, bold=True)}" + (f": {each.about}" if each.about else ""))
        click.echo(textwrap.indent(each.rule.strip("\n"), "    "))


@monitor.command("trust")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--yes", is_flag=True, help="Don't ask.")
@json_option
@click.pass_obj
def trust(state: State, file: Path | None, yes: bool, as_json: bool) -> None:
    """Let the monitor.yaml of a directory reach beyond the sandbox, as long as its content stays exactly this."""
    from redoma.monitor.file import FILE, reaches
    from redoma.monitor.file import trust as record

    from .configs import show_before_trust

    source, changes = reaches(file or Path(FILE), state.config)
    shown = show_before_trust(source, changes, "only add checks: it has effect without being trusted", yes, as_json)
    record(source)
    if as_json:
        print_json({"file": str(source.path), "digest": source.digest, "reaches": changes})
    else:
        click.echo(f"{click.style('trusted', fg='green')}: {shown}")
