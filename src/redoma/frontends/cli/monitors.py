"""monitor: how this machine does, judged by rules that run in a sandbox."""

from __future__ import annotations

import textwrap
from pathlib import Path

import click
import msgspec

from .common import CommandGroup, State, json_option, print_json
from .rounds import (
    file_option,
    history_of,
    plan_of,
    reader_may_leave,
    report_option,
    start_logging,
    table,
    verbose_option,
    write_reports,
)
from .watching import history, watch


@click.group("monitor", cls=CommandGroup)
def monitor() -> None:
    """How this machine does, judged by rules that run in a sandbox.

    \b
    Examples:
      redoma monitor check                  the ready-made checks, or those of monitor.yaml
      redoma monitor check --only memory --only load
      redoma monitor check --report report.html
      redoma monitor watch                  again and again, with a live view
      redoma monitor history --since 7d     how checks stood, and what was done
      redoma monitor facts                  what rules can be about
      redoma monitor list                   every check, its rule, and where it is from

    Of `check` the exit status is 0 ok, 1 warning, 2 critical, 3 unknown.
    """


@monitor.command("check")
@file_option
@click.option("--only", multiple=True, metavar="NAME", help="Only this check; may be given several times.")
@report_option
@click.option("--dry", is_flag=True, help="Only look: remember nothing, tell nobody, mend nothing.")
@verbose_option
@json_option
@click.pass_obj
def check(
    state: State,
    file: Path | None,
    only: tuple[str, ...],
    reports: tuple[Path, ...],
    dry: bool,
    verbose: bool,
    as_json: bool,
) -> int:
    """Look at everything once and say how it stands. Exit 0 ok, 1 warning, 2 critical, 3 unknown."""
    from redoma.monitor.report import kind_of
    from redoma.monitor.service import Monitor
    from redoma.monitor.states import settle
    from redoma.pipeline.sync import Executor

    for path in reports:
        kind_of(path)  # before anything is done
    plan = plan_of(state, file)
    start_logging(state, verbose)
    remembered = history_of(state, plan)
    with Executor(state.config) as executor:
        found = executor.wait(Monitor(plan, executor.core, None if dry else remembered, only=only).round())
    if dry and remembered:
        verdicts, _ = settle(found.verdicts, remembered.held(), plan.checks, found.time)
        found = msgspec.structs.replace(found, verdicts=tuple(verdicts))
    with reader_may_leave():
        if not as_json:
            for line in table(found):  # before the reports: if one can't be written this is still told
                click.echo(line)
    write_reports(reports, found, remembered, plan)
    with reader_may_leave():
        if as_json:
            print_json(found.told)
    return int(found.state)


@monitor.command("facts")
@file_option
@click.pass_obj
def facts(state: State, file: Path | None) -> None:
    """Collect everything once and print it as JSON: what rules can be about."""
    from redoma.monitor.aside import Aside
    from redoma.monitor.collect import collect
    from redoma.pipeline.sync import Executor

    plan = plan_of(state, file)
    with Executor(state.config) as executor:
        found, problems = executor.wait(collect(plan.collect, executor.core, Aside()))
    print_json(found)
    for name, why in problems.items():
        click.echo(f"{click.style('missing', fg='magenta')}: {name}: {why}", err=True)


@monitor.command("list")
@file_option
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
    none = "have its checks share your history, and reach nothing beyond the sandbox"
    shown = show_before_trust(source, changes, none, yes, as_json)
    record(source)
    if as_json:
        print_json({"file": str(source.path), "digest": source.digest, "reaches": changes})
    else:
        click.echo(f"{click.style('trusted', fg='green')}: {shown}")


monitor.add_command(watch)
monitor.add_command(history)
