"""What the commands of the monitor share: their options, the plan in force, and a round as a table."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .common import State

if TYPE_CHECKING:
    from redoma.monitor.history import History
    from redoma.monitor.model import Plan, Round, Verdict

COLOURS = {"ok": "green", "warning": "yellow", "critical": "red", "unknown": "magenta"}
_NARROWEST = 30

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


def history_of(state: State, plan: Plan) -> History | None:
    """What is remembered of earlier rounds; None where there is no place for it."""
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
        except StoreError:  # the round says so itself
            text = render(found, None, kind_of(path), plan.checks)
        atomic_write(path, text)


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """As in `check | head -n 1`. The exit status counts all the same: the 1 of a broken pipe would be a warning."""
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what is still unwritten


def table(found: Round, *, brief: bool = False) -> Iterator[str]:
    """Every verdict, the most urgent first, and what was done; `brief`: of those that are ok only the names."""
    rows = sorted(found.verdicts, key=lambda verdict: -verdict.state.urgency)
    fine = [verdict.check for verdict in rows if brief and not verdict.state]
    rows = [verdict for verdict in rows if verdict.check not in fine]
    head = ("STATE", "CHECK", "SANDBOX", "TIME", "MESSAGE")
    cells = [head, *map(_cells, rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(4)]
    before = sum(widths) + 2 * len(widths)
    room = max(_NARROWEST, shutil.get_terminal_size((100, 24)).columns - before)
    for row, verdict in zip(cells, [None, *rows], strict=True):
        padded = [cell.ljust(width) for cell, width in zip(row[:4], widths, strict=True)]
        if verdict is not None:
            padded[0] = click.style(padded[0], fg=COLOURS[verdict.state.word], bold=True)
        first, *more = textwrap.wrap(row[4], room) or [""]
        yield "  ".join([*padded, first]).rstrip()
        yield from (" " * before + line for line in more)
    if fine:
        words = textwrap.wrap(", ".join(fine), before + room - 4)
        yield from (
            f"{click.style('ok', fg=COLOURS['ok'], bold=True)}  {words[0]}",
            *(f"    {line}" for line in words[1:]),
        )
    for name, why in found.problems.items():
        yield f"{click.style('missing', fg='magenta')}: {one_line(f'{name}: {why}')}"
    for deed in found.deeds:
        kind = click.style(deed.kind, fg="cyan" if deed.ok else "red")
        yield f"{kind}: {one_line(f'{deed.check}, {deed.name}: {deed.text}')}"
    counts = [f"{number} {word}" for word in COLOURS if (number := _count(found, word))]
    shown = click.style(found.state.word, fg=COLOURS[found.state.word], bold=True)
    yield f"{one_line(found.host)} is {shown}: {', '.join(counts) or 'nothing was checked'}"


def one_line(text: str) -> str:
    """Whatever it is, harmless to a terminal."""
    from redoma.lib.sanitise import visible

    return " ".join(visible(text).split())


def _cells(verdict: Verdict) -> tuple[str, ...]:
    message = one_line(verdict.message)
    if verdict.found is not verdict.state and verdict.found.value:
        message = f"{verdict.found.word} if it lasts" + (f": {message}" if message else "")
    return verdict.state.word, verdict.check, verdict.sandbox or "none", f"{verdict.seconds:.2f} s", message


def _count(found: Round, word: str) -> int:
    return sum(verdict.state.word == word for verdict in found.verdicts)
