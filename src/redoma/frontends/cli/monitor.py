"""monitor: check this machine with rules that run in a sandbox, once or repeatedly."""

from __future__ import annotations

import logging
import math
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from redoma.lib.errors import RedomaError

from .config import ask_for_trust, emit_trusted
from .emit import emit, json_option, note, one_line, print_json, table, table_lines, wants_json
from .options import Moment
from .state import State

if TYPE_CHECKING:
    from datetime import datetime

    from rich.console import RenderableType

    from redoma.monitor.history import History
    from redoma.monitor.model import CheckResult, Plan, Round

COLOURS = {"ok": "green", "warning": "yellow", "critical": "red", "unknown": "magenta"}
_BLOCKS = "▁▂▃▄▅▆▇█"
_SPARK_WIDTH = 40
_RECENT = 3600.0  # seconds that the live view covers
_MAX_PLOTS = 8
file_option = click.option(
    "--file", type=click.Path(path_type=Path), metavar="FILE", help="Use this monitor.yaml; it is trusted."
)
verbose_option = click.option(
    "-v", "--verbose", is_flag=True, help="Say which sandbox evaluated which rule, and for how long."
)
report_option = click.option(
    "--report",
    "reports",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write a report, as .html, .md or .json; may be given several times.",
)


@click.group("monitor")
def monitor() -> None:
    """Check this machine by rules that run in a sandbox.

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
@click.option("--only", multiple=True, metavar="NAME", help="Make only this check; may be given several times.")
@report_option
@click.option("--dry", is_flag=True, help="Only look: remember nothing, notify nobody, run no remedy.")
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
) -> int:
    """Make every check once. Exit 0 ok, 1 warning, 2 critical, 3 unknown."""
    from redoma.monitor.history import settle
    from redoma.monitor.report import kind_of
    from redoma.monitor.service import Monitor
    from redoma.pipeline.sync import Executor

    for path in reports:
        kind_of(path)  # before anything is done
    plan = plan_of(state, file)
    start_logging(state, verbose)
    remembered = history_of(state, plan)
    with Executor(state.config) as executor:
        found = executor.wait(Monitor(plan, executor.core, None if dry else remembered, only=only).round())
    if dry and remembered:
        found, _ = settle(found, remembered.stored_states(), plan.checks)

    def tell() -> None:
        with reader_may_leave():
            emit(found, round_lines, shape=lambda found: found.to_dict())

    if not wants_json():  # people see it even if a report can't be written; in JSON that would be two documents
        tell()
    write_reports(reports, found, remembered, plan)
    if wants_json():
        tell()
    return int(found.state)


@monitor.command("facts")
@file_option
@click.pass_obj
def facts(state: State, file: Path | None) -> None:
    """Collect everything once and print it as JSON: what rules can be about."""
    from redoma.monitor.collect import BoundedCalls, collect
    from redoma.pipeline.sync import Executor

    plan = plan_of(state, file)
    with Executor(state.config) as executor:
        found, problems = executor.wait(collect(plan.collect, executor.core, BoundedCalls()))
    print_json(found)
    for name, why in problems.items():
        click.echo(f"{click.style('missing', fg='magenta')}: {name}: {why}", err=True)


@monitor.command("list")
@file_option
@json_option
@click.pass_obj
def show(state: State, file: Path | None) -> None:
    """List every check with its rule, without making any."""

    def lines(plan: Plan) -> Iterator[str]:
        yield f"from {plan.source or 'the ready-made checks'}"
        for each in plan.checks:
            yield f"\n{click.style(each.name, bold=True)}" + (f": {each.about}" if each.about else "")
            yield textwrap.indent(each.rule.strip("\n"), "    ")

    emit(plan_of(state, file), lines)


@monitor.command("trust")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--yes", is_flag=True, help="Trust it without asking.")
@json_option
@click.pass_obj
def trust(state: State, file: Path | None, yes: bool) -> None:
    """Let the monitor.yaml of a directory reach beyond the sandbox, as long as its content stays exactly this."""
    from redoma.monitor.file import FILE, reaches
    from redoma.monitor.file import trust as record

    source, changes = reaches(file or Path(FILE), state.config)
    none = "have its checks share your history, and reach nothing beyond the sandbox"
    ask_for_trust(source, changes, none, yes)
    record(source)
    emit_trusted(source, {"reaches": changes})


# --- watching ---


@monitor.command("watch")
@file_option
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 86400),
    metavar="SECONDS",
    help="Wait so long between rounds, instead of what the file says.",
)
@click.option("--rounds", type=click.IntRange(1), metavar="N", help="End after so many rounds.")
@click.option("--plain", is_flag=True, help="Print a line for each change, also on a terminal.")
@click.option(
    "--metrics",
    is_flag=False,
    flag_value="",
    metavar="HOST:PORT",
    help="Answer Prometheus there; without an address at 127.0.0.1:9464.",
)
@report_option
@verbose_option
@click.pass_obj
def watch(
    state: State,
    file: Path | None,
    interval: float | None,
    rounds: int | None,
    plain: bool,
    metrics: str | None,
    reports: tuple[Path, ...],
    verbose: bool,
) -> int:
    """Check again and again, notify of changes, and run remedies. Ctrl-C ends it.

    On a terminal it is a live view; else, and with --plain, a line for each change. With --rounds the exit status is
    that of the last one: 0 ok, 1 warning, 2 critical, 3 unknown.
    """
    from redoma.monitor.report import kind_of
    from redoma.monitor.service import Monitor
    from redoma.pipeline.sync import Executor

    for path in reports:
        kind_of(path)  # before anything is done
    plan = plan_of(state, file)
    start_logging(state, verbose)
    history = history_of(state, plan)
    every = interval or plan.interval
    live = not plain and not verbose and sys.stdout.isatty()
    found: Round | None = None
    ended = False
    try:
        with _served(metrics), Executor(state.config) as executor, _screen(live) as draw:
            monitor = Monitor(plan, executor.core, history)
            for _ in _ticks(every, rounds):
                before, found = found, executor.wait(monitor.round())
                try:
                    write_reports(reports, found, history, plan)
                except RedomaError as error:
                    if before is None:  # an error in what was typed; later ones, such as a full disk, must not end it
                        raise
                    found = msgspec.structs.replace(found, problems={**found.problems, "report": str(error)})
                if live:
                    draw(view(found, history, every))
                else:
                    for line in _changes(before, found):
                        click.echo(line)
                    sys.stdout.flush()
    except (KeyboardInterrupt, SystemExit):  # the normal way to end it: by Ctrl-C, or by a supervisor
        ended = True
    if live and found:
        emit(found, round_lines)
    return 0 if ended or found is None else int(found.state)


@contextmanager
def _served(address: str | None) -> Iterator[None]:
    """Serve metrics for Prometheus at `address` while the block runs; not if it is None."""
    if address is None:
        yield
        return
    from redoma.telemetry.metrics import DEFAULT_ADDRESS, serve

    with serve(address or DEFAULT_ADDRESS) as server:
        click.echo(f"metrics at {server.url}", err=True)
        yield


def _ticks(interval: float, rounds: int | None) -> Iterator[None]:
    """Yield at the beginning of each interval, counted from the first: rounds neither drift nor overlap. A round that
    takes longer skips the intervals that it has missed.
    """
    start, number, done = time.monotonic(), 0, 0
    while True:
        yield
        done += 1
        if done == rounds:
            return
        number = max(number + 1, math.ceil((time.monotonic() - start) / interval))
        time.sleep(max(0.0, start + number * interval - time.monotonic()))


def _changes(before: Round | None, found: Round) -> Iterator[str]:
    """Yield what is new in a round, each line with its time."""
    from redoma.monitor.report import utc_time

    stood = {verdict.check: verdict.state for verdict in before.verdicts} if before else {}
    when = utc_time(found.time, "%Y-%m-%dT%H:%M:%SZ")
    if before is None:
        counts = f"{len(found.verdicts)} checks, {found.state.word}"
        yield f"{when} {one_line(found.host)}: {counts}"
    for verdict in found.verdicts:
        if verdict.state is not stood.get(verdict.check, type(verdict.state)(0)):
            word = click.style(verdict.state.word, fg=COLOURS[verdict.state.word])
            yield f"{when} {verdict.check} {word} {one_line(verdict.message)}".rstrip()
    for action in found.actions:
        yield one_line(f"{when} {action.kind} {action.check}, {action.name}: {action.text}")
    for name, why in found.problems.items():
        if before is None or before.problems.get(name) != why:
            yield one_line(f"{when} missing {name}: {why}")


@contextmanager
def _screen(live: bool) -> Iterator[Callable[[RenderableType], None]]:
    """Use the terminal's alternate screen, so that its content is restored. Yields the function that draws there."""
    if not live:
        yield lambda view: None
        return
    from rich.live import Live

    with Live(screen=True, auto_refresh=False, vertical_overflow="crop") as screen:
        yield lambda view: screen.update(view, refresh=True)


def view(found: Round, history: History | None, interval: float) -> RenderableType:
    """Return a round for the live view: verdicts, recent curves, and the time of the next round."""
    from rich.text import Text

    from redoma.monitor.report import utc_time

    size = shutil.get_terminal_size()
    sparks = ["", *_sparks(found, history, size.columns)]
    lines = [*round_lines(found), *sparks]
    foot = click.style(f"{utc_time(found.time)}, every {interval:g} s. Ctrl-C ends it.", dim=True)
    room = max(1, size.lines - 2)
    if len(lines) > room:
        lines = [*round_lines(found, brief=True), *sparks]
    if len(lines) > room:
        lines = [*lines[: room - 1], "…"]
    return Text.from_ansi("\n".join([*lines, foot]))


def _sparks(found: Round, history: History | None, width: int) -> Iterator[str]:
    from redoma.lib.errors import StoreError
    from redoma.monitor.report import amount, gather

    try:
        curves = gather(found, history, (), _RECENT).curves[:_MAX_PLOTS]
    except StoreError:
        return  # the table reports it
    titles = [one_line(plot.title)[:30] for plot, _ in curves]
    wide = max(map(len, titles), default=0)
    for title, (plot, points) in zip(titles, curves, strict=True):
        values = [value for _, value in points][-min(_SPARK_WIDTH, max(1, width - wide - 14)) :]
        line = click.style(spark(values, plot.top).ljust(_SPARK_WIDTH), fg="blue")
        yield f"{title.ljust(wide)}  {line}  {amount(values[-1], plot.unit)}"


def spark(values: list[float], top: float | None) -> str:
    """Return values as a row of blocks."""
    top = top or max(values, default=0.0) or 1.0
    return "".join(_BLOCKS[min(max(int(value / top * len(_BLOCKS)), 0), len(_BLOCKS) - 1)] for value in values)


# --- history ---


@monitor.command("history")
@click.argument("check", required=False)
@file_option
@click.option("--since", type=Moment(), default="24h", show_default=True, metavar="WHEN", help="Look so far back.")
@json_option
@click.pass_obj
def history(state: State, check: str | None, file: Path | None, since: datetime) -> None:
    """Show how checks stood, and what was done: of all of them, or of one CHECK."""
    from redoma.monitor.model import to_dict
    from redoma.monitor.report import duration, utc_time

    remembered = history_of(state, plan_of(state, file))
    spells = remembered.spells(since.timestamp(), check) if remembered else []
    actions = remembered.actions(since.timestamp(), check) if remembered else []

    def render(_: object) -> None:
        rows = [(one.since, one.state.word, one.check, duration(one.until - one.since), one.message) for one in spells]
        rows += [(one.time, one.kind, one.check, one.name, one.text) for one in actions]
        if rows:
            table((utc_time(at), *map(one_line, cells)) for at, *cells in sorted(rows))
        else:
            click.echo("nothing is remembered" + (f" of {check!a}" if check else "") + " for that time", err=True)

    emit({"spells": list(map(to_dict, spells)), "actions": list(map(to_dict, actions))}, render)


# --- shared by these commands ---


def plan_of(state: State, file: Path | None) -> Plan:
    """Load the plan in force and print its notices."""
    from redoma.config import InvalidFile
    from redoma.monitor.file import load

    try:
        plan = load(file, state.config)
    except InvalidFile as error:
        for problem in error.problems[1:]:
            click.echo(f"{problem.where}: {problem.message}\n  next: {problem.hint}", err=True)
        raise
    for notice in plan.notices:
        note(notice)
    return plan


def start_logging(state: State, verbose: bool) -> None:
    """Log to `logs/monitor.log` in the state directory, and if `verbose` to standard error, too."""
    from redoma.monitor.service import LogFile, log

    log.setLevel(logging.INFO)
    log.propagate = False
    if state.config.state is not None:
        log.addHandler(LogFile(state.config.state))
    if verbose:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        log.addHandler(handler)


def history_of(state: State, plan: Plan) -> History | None:
    """Return the history of earlier rounds; None if there is no state directory."""
    from redoma.monitor.history import History, place

    directory = state.config.state
    return None if directory is None else History(place(directory, plan), plan.history)


def write_reports(reports: Sequence[Path], found: Round, history: History | None, plan: Plan) -> None:
    from redoma.lib.errors import StoreError
    from redoma.monitor.report import kind_of, render
    from redoma.workspace.atomic import atomic_write

    for path in reports:
        try:
            text = render(found, history, kind_of(path), plan.checks)
        except StoreError:  # the round itself reports it
            text = render(found, None, kind_of(path), plan.checks)
        atomic_write(path, text)


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """Continue after the reader has closed the pipe, as in `check | head -n 1`: the exit status counts, and 1 would be
    a warning.
    """
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for output that is still buffered


def round_lines(found: Round, *, brief: bool = False) -> Iterator[str]:
    """Yield a round as lines: every verdict, the most urgent first, and what was done. With `brief`, those that are ok
    are only named.
    """
    rows = sorted(found.verdicts, key=lambda verdict: -verdict.state.urgency)
    fine = [verdict.check for verdict in rows if brief and not verdict.state]
    rows = [verdict for verdict in rows if verdict.check not in fine]
    width = shutil.get_terminal_size((100, 24)).columns
    yield from table_lines([("STATE", "CHECK", "SANDBOX", "TIME", "MESSAGE"), *map(_cells, rows)], width)
    if fine:
        yield from table_lines([(_styled("ok"), ", ".join(fine))], width)
    for name, why in found.problems.items():
        yield f"{click.style('missing', fg='magenta')}: {one_line(f'{name}: {why}')}"
    for action in found.actions:
        kind = click.style(action.kind, fg="cyan" if action.ok else "red")
        yield f"{kind}: {one_line(f'{action.check}, {action.name}: {action.text}')}"
    counts = [f"{number} {word}" for word in COLOURS if (number := _count(found, word))]
    yield f"{one_line(found.host)} is {_styled(found.state.word)}: {', '.join(counts) or 'nothing was checked'}"


def _styled(word: str) -> str:
    return click.style(word, fg=COLOURS[word], bold=True)


def _cells(verdict: CheckResult) -> tuple[str, ...]:
    message = one_line(verdict.message)
    if verdict.found is not verdict.state and verdict.found.value:
        message = f"{verdict.found.word} if it lasts" + (f": {message}" if message else "")
    return _styled(verdict.state.word), verdict.check, verdict.sandbox or "none", f"{verdict.seconds:.2f} s", message


def _count(found: Round, word: str) -> int:
    return sum(verdict.state.word == word for verdict in found.verdicts)
