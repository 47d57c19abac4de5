"""monitor watch and monitor history: how this machine does over time."""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from redoma.lib.errors import RedomaError

from . import rounds as shared
from .common import State, columns, json_option, print_json

if TYPE_CHECKING:
    from redoma.monitor.history import History
    from redoma.monitor.model import Round

_BLOCKS = "▁▂▃▄▅▆▇█"
_SPARK = 40
_RECENT = 3600.0  # seconds that a live view looks back
_MOST_PLOTS = 8


class Ago(click.ParamType[float]):
    """A length of time, such as 90s, 5m, 1h or 7d."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from redoma.lib.units import parse_duration

        seconds = value if isinstance(value, float) else parse_duration(value)
        if seconds is None:
            self.fail(f"{value!r} is not a time; write it like 90s, 5m, 1h or 7d", param, ctx)
        return seconds


@click.command("watch")
@shared.file_option
@click.option(
    "--interval", type=click.FloatRange(0.1, 86400), metavar="SECONDS", help="Between rounds, instead of the file's."
)
@click.option("--rounds", type=click.IntRange(1), metavar="N", help="End after so many.")
@click.option("--plain", is_flag=True, help="A line for each change, also on a terminal.")
@click.option(
    "--metrics",
    is_flag=False,
    flag_value="",
    metavar="HOST:PORT",
    help="Answer Prometheus there; without an address at 127.0.0.1:9464.",
)
@shared.report_option
@shared.verbose_option
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
    """Look again and again, tell of changes, and mend what has a remedy. Ctrl-C ends it.

    On a terminal it is a live view; else, and with --plain, a line for each change. With --rounds the exit status is
    that of the last one: 0 ok, 1 warning, 2 critical, 3 unknown.
    """
    from redoma.monitor.report import kind_of
    from redoma.monitor.service import Monitor
    from redoma.pipeline.sync import Executor

    for path in reports:
        kind_of(path)  # before anything is done
    plan = shared.plan_of(state, file)
    shared.start_logging(state, verbose)
    history = shared.history_of(state, plan)
    every = interval or plan.interval
    live = not plain and not verbose and sys.stdout.isatty()
    found: Round | None = None
    try:
        with _served(metrics), Executor(state.config) as executor, _screen(live):
            monitor = Monitor(plan, executor.core, history)
            for _ in _ticks(every, rounds):
                before, found = found, executor.wait(monitor.round())
                try:
                    shared.write_reports(reports, found, history, plan)
                except RedomaError as error:
                    if before is None:  # a mistake in what was typed; later it is the disk, which is no reason to end
                        raise
                    found = msgspec.structs.replace(found, problems={**found.problems, "report": str(error)})
                if live:
                    _draw(found, history, every)
                else:
                    for line in _changes(before, found):
                        click.echo(line)
                    sys.stdout.flush()
    except (KeyboardInterrupt, SystemExit):  # how it is meant to be ended: by Ctrl-C, or by whoever supervises it
        if live and found:
            _print(found)
        return 0
    if live and found:
        _print(found)
    return int(found.state) if found else 0


@contextmanager
def _served(address: str | None) -> Iterator[None]:
    """With numbers for Prometheus, where they are wanted."""
    if address is None:
        yield
        return
    from redoma.telemetry.metrics import DEFAULT_ADDRESS, serve

    with serve(address or DEFAULT_ADDRESS) as server:
        click.echo(f"metrics at {server.url}", err=True)
        yield


def _ticks(interval: float, rounds: int | None) -> Iterator[None]:
    """At the beginning of each interval, counted from the first: rounds neither drift nor overlap. One that takes
    longer leaves those out that it has missed."""
    start, number, done = time.monotonic(), 0, 0
    while True:
        yield
        done += 1
        if done == rounds:
            return
        number = max(number + 1, math.ceil((time.monotonic() - start) / interval))
        time.sleep(max(0.0, start + number * interval - time.monotonic()))


def _changes(before: Round | None, found: Round) -> Iterator[str]:
    """What is new in a round, each line with its time."""
    from redoma.monitor.report.story import moment

    stood = {verdict.check: verdict.state for verdict in before.verdicts} if before else {}
    when = moment(found.time, "%Y-%m-%dT%H:%M:%SZ")
    if before is None:
        counts = f"{len(found.verdicts)} checks, {found.state.word}"
        yield f"{when} {shared.one_line(found.host)}: {counts}"
    for verdict in found.verdicts:
        if verdict.state is not stood.get(verdict.check, type(verdict.state)(0)):
            word = click.style(verdict.state.word, fg=shared.COLOURS[verdict.state.word])
            yield f"{when} {verdict.check} {word} {shared.one_line(verdict.message)}".rstrip()
    for deed in found.deeds:
        yield shared.one_line(f"{when} {deed.kind} {deed.check}, {deed.name}: {deed.text}")
    for name, why in found.problems.items():
        if before is None or before.problems.get(name) != why:
            yield shared.one_line(f"{when} missing {name}: {why}")


# --- the live view ---


@contextmanager
def _screen(live: bool) -> Iterator[None]:
    """The terminal's other page, so that what was on it is there again afterwards."""
    if not live:
        yield
        return
    sys.stdout.write("\x1b[?1049h\x1b[?25l\x1b[2J\x1b[H")
    sys.stdout.flush()
    try:
        yield
    finally:
        sys.stdout.write("\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()


def _draw(found: Round, history: History | None, interval: float) -> None:
    from redoma.monitor.report.story import moment

    size = shutil.get_terminal_size()
    sparks = ["", *_sparks(found, history, size.columns)]
    lines = [*shared.table(found), *sparks]
    foot = click.style(f"{moment(found.time)}, every {interval:g} s. Ctrl-C ends it.", dim=True)
    room = max(1, size.lines - 2)
    if len(lines) > room:
        lines = [*shared.table(found, brief=True), *sparks]
    if len(lines) > room:
        lines = [*lines[: room - 1], "…"]
    shown = "\x1b[K\n".join([*lines, foot])
    text = f"\x1b[H{shown}\x1b[K\x1b[J"
    click.echo(text, nl=False)
    sys.stdout.flush()


def _sparks(found: Round, history: History | None, width: int) -> Iterator[str]:
    from redoma.lib.errors import StoreError
    from redoma.monitor.report.story import amount, gather

    try:
        curves = gather(found, history, (), _RECENT).curves[:_MOST_PLOTS]
    except StoreError:
        return  # the table says so
    titles = [shared.one_line(plot.title)[:30] for plot, _ in curves]
    wide = max(map(len, titles), default=0)
    for title, (plot, points) in zip(titles, curves, strict=True):
        values = [value for _, value in points][-min(_SPARK, max(1, width - wide - 14)) :]
        line = click.style(spark(values, plot.top).ljust(_SPARK), fg="blue")
        yield f"{title.ljust(wide)}  {line}  {amount(values[-1], plot.unit)}"


def spark(values: list[float], top: float | None) -> str:
    """Values as a row of blocks."""
    top = top or max(values, default=0.0) or 1.0
    return "".join(_BLOCKS[min(max(int(value / top * len(_BLOCKS)), 0), len(_BLOCKS) - 1)] for value in values)


def _print(found: Round) -> None:
    for line in shared.table(found):
        click.echo(line)


# --- history ---


@click.command("history")
@click.argument("check", required=False)
@shared.file_option
@click.option("--since", type=Ago(), default="24h", show_default=True, metavar="TIME", help="How far to look back.")
@json_option
@click.pass_obj
def history(state: State, check: str | None, file: Path | None, since: float, as_json: bool) -> None:
    """How checks stood, and what was done: of all of them, or of one CHECK."""
    from redoma.monitor.model import worded
    from redoma.monitor.report.story import lasting, moment

    remembered = shared.history_of(state, shared.plan_of(state, file))
    begin = time.time() - since
    spells = remembered.spells(begin, check) if remembered else []
    deeds = remembered.deeds(begin, check) if remembered else []
    if as_json:
        print_json({"spells": list(map(worded, spells)), "deeds": list(map(worded, deeds))})
        return
    rows = [
        (each.since, each.state.word, each.check, lasting(each.until - each.since), each.message) for each in spells
    ]
    rows += [(each.time, each.kind, each.check, each.name, each.text) for each in deeds]
    if not rows:
        click.echo("nothing is remembered" + (f" of {check!a}" if check else "") + " for that time", err=True)
        return
    columns((moment(at), *map(shared.one_line, cells)) for at, *cells in sorted(rows))
