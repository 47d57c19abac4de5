"""audit search, export and stats: the runs on record, looked through, taken elsewhere, and counted."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from redoma.lib.errors import InvalidRequest

from .common import Moment, State, audit_log, columns, json_option, new_file, print_json, shown, since_option

if TYPE_CHECKING:
    from redoma.audit import Record
    from redoma.history.export import Format
    from redoma.history.search import Query, Run
    from redoma.history.stats import Overview

F = TypeVar("F", bound="Callable[..., Any]")

_COLOURS = {"ok": "green", "error": "red", "failed": "red", "forbidden": "yellow", "denied": "yellow"}

_FILTERS = (
    since_option,
    click.option("--until", type=Moment(), metavar="WHEN", help="Before then."),
    click.option("--status", "statuses", multiple=True, help="ok, error, timeout, denied …; interrupted."),
    click.option("--rule", "rules", multiple=True, metavar="GLOB", help="A rule that found something: network.*"),
    click.option("--requester", "requesters", multiple=True, help="Who asked."),
    click.option("--backend", "backends", multiple=True, help="What ran it."),
    click.option("--level", "levels", multiple=True, type=click.Choice(["L1", "L2", "L3", "L4"])),
    click.option("--decision", "decisions", multiple=True, type=click.Choice(["allow", "prompt", "forbid"])),
    click.option("--regex", default="", metavar="RE2", help="In text, label, reason, error or result."),
)


def _filters(command: F) -> F:
    for option in reversed(_FILTERS):
        command = option(command)
    return command


@click.command("search")
@click.argument("text", default="")
@_filters
@click.option("--kind", default="", metavar="GLOB", help="Records of this kind instead of runs: approval.*, alarm.")
@click.option("-n", "count", type=click.IntRange(1, 100_000), default=50, show_default=True, help="The newest so many.")
@click.option("--csv", "table", metavar="FILE", help="Write all that fit as CSV; `-` is standard output.")
@json_option
@click.pass_obj
def search(state: State, /, kind: str, count: int, table: str | None, as_json: bool, **given: Any) -> None:
    """Find runs by time, status, rule, requester or TEXT, newest last.

    \b
    Examples:
      redoma audit search --since 2h --status error
      redoma audit search --rule 'network.*' --requester ann
      redoma audit search 'git push' --since 30d --csv pushes.csv
      redoma audit search --kind 'approval.*' --since 7d
    """
    query, since = _query(given), given["since"]
    if kind:
        _search_records(state, kind, query, since, count, as_json)
        return
    found = _found(state, query, since)
    if table is not None:
        _write(found, table, "csv", force=False)
        return
    newest = sorted(deque(found, maxlen=count), key=lambda run: run.time)
    if as_json:
        print_json(newest)
    elif not newest:
        click.echo("no run on record fits", err=True)
    else:
        _print_runs(newest)


@click.command("export")
@click.argument("text", default="")
@_filters
@click.option("--format", "form", type=click.Choice(["csv", "json", "jsonl"]), default="csv", show_default=True)
@click.option("-o", "--output", default="-", metavar="FILE", help="Where to.  [default: standard output]")
@click.option("--force", is_flag=True, help="Write over a file that is there.")
@click.pass_obj
def export(state: State, /, form: Format, output: str, force: bool, **given: Any) -> None:
    """Write runs as CSV or JSON: one row a run, in the order they ended.

    CSV is for spreadsheets: a text that one would take for a formula gets an apostrophe. JSON has each text as it is on
    record.

    \b
    Examples:
      redoma audit export --since 30d -o runs.csv
      redoma audit export --format jsonl --status error | jq .error
    """
    _write(_found(state, _query(given), given["since"]), output, form, force=force)


@click.command("stats")
@since_option
@json_option
@click.pass_obj
def stats(state: State, since: datetime | None, as_json: bool) -> None:
    """Runs over time, by status, backend, requester and rule, and how long they took."""
    from redoma.history.stats import EDGES, overview

    counted = overview(audit_log(state).records(since))
    if as_json:
        shape: dict[str, Any] = msgspec.to_builtins(counted)
        durations = [
            {"up_to": edge, "runs": runs} for edge, runs in zip([*EDGES, None], counted.durations, strict=True)
        ]
        print_json({**shape.pop("stats"), **shape, "durations": durations})
        return
    for line in _plotted(counted):
        click.echo(line)


# --- looking ---


def _query(given: dict[str, Any]) -> Query:
    from redoma.history.search import Query, expression

    until = given["until"]
    fields = {name: tuple(value) for name, value in given.items() if isinstance(value, tuple)}
    if given["regex"]:
        expression(given["regex"])  # a mistake in it is told before anything is read
    return Query(
        **fields,
        until=until.astimezone(UTC).isoformat(timespec="microseconds") if until else "",
        text=given["text"],
        regex=given["regex"],
    )


def _found(state: State, query: Query, since: datetime | None) -> Iterator[Run]:
    from redoma.history.search import search as found

    return found(audit_log(state).records(since), query)


def _search_records(state: State, kind: str, query: Query, since: datetime | None, count: int, as_json: bool) -> None:
    from fnmatch import fnmatchcase

    of_runs = {"--status": query.statuses, "--rule": query.rules, "--backend": query.backends}
    of_runs |= {"--level": query.levels, "--decision": query.decisions}
    if given := [option for option, values in of_runs.items() if values]:
        raise InvalidRequest(f"{given[0]} was given with --kind", why="only runs have it", next="leave one of them out")

    def fits(record: Record) -> bool:
        if not fnmatchcase(record.kind, kind) or (query.until and record.time >= query.until):
            return False
        if query.requesters and record.data.get("requester") not in query.requesters:
            return False
        return query.fits_text([msgspec.json.encode(record.data).decode()])

    newest = deque(filter(fits, audit_log(state).records(since)), maxlen=count)
    if as_json:
        print_json(list(newest))
    elif not newest:
        click.echo("no record fits", err=True)
    else:
        columns(
            (each.time[:19], each.id[:12], each.kind, shown(msgspec.json.encode(each.data).decode())) for each in newest
        )


def _print_runs(runs: list[Run]) -> None:
    from .plots import width

    rows = [
        (
            run.time[:19].replace("T", " "),
            run.id[:12],
            run.status or "interrupted",
            run.level or "-",
            shown(run.backend, 8),
            shown(run.requester, 16),
            "-" if run.duration is None else seconds(run.duration),
            f"{run.text} [{', '.join(run.rules)}]" if run.rules else run.text,
        )
        for run in runs
    ]
    widths = [max(map(len, column)) for column in zip(*(row[:-1] for row in rows), strict=True)]
    room = max(20, width() - sum(widths) - 2 * len(widths))
    for row in rows:
        cells = [cell.ljust(wide) for cell, wide in zip(row, widths, strict=False)]
        cells[2] = click.style(cells[2], fg=_COLOURS.get(row[2], "magenta"))
        click.echo("  ".join([*cells, shown(row[-1], room)]).rstrip())


def seconds(value: float) -> str:
    return f"{value * 1000:.3g} ms" if value < 0.9995 else f"{value:.3g} s" if value < 1000 else f"{value:,.0f} s"


# --- writing ---


def _write(runs: Iterable[Run], output: str, form: Format, *, force: bool) -> None:
    from redoma.history.export import write

    if output == "-":
        write(runs, sys.stdout, form)
        return
    with new_file(Path(output), force=force) as file:
        count = write(runs, file, form)
    click.echo(f"{shown(output)}: {count:,} run{'' if count == 1 else 's'}", err=True)


# --- counting ---


def _plotted(counted: Overview) -> Iterator[str]:
    from redoma.history.stats import EDGES

    from . import plots

    stats = counted.stats
    if not stats.runs:
        yield "nothing is on record" if stats.first is None else "no run is on record"
        return
    first, last = (stats.first or "")[:16].replace("T", " "), (stats.last or "")[:16].replace("T", " ")
    yield f"{click.style(f'{stats.runs:,} runs', bold=True)}  {first} to {last} UTC"
    if stats.interrupted:
        yield f"{stats.interrupted:,} have no end on record: they still run, or were cut short"
    yield ""
    yield click.style(f"Runs {'an' if counted.per == 'hour' else 'a'} {counted.per}", bold=True)
    yield from plots.columns_over_time(counted.over_time)
    for title, counts in (
        ("Status", stats.by_status),
        ("Backend", stats.by_backend),
        ("Requester", stats.by_requester),
        ("Decision", counted.by_decision),
        ("Level", counted.by_level),
        ("Rule", counted.by_rule),
    ):
        if counts:
            yield ""
            yield click.style(title, bold=True)
            yield from plots.bars(counts)
    if stats.duration_p50 is not None and stats.duration_p95 is not None:
        yield ""
        half, most = seconds(stats.duration_p50), seconds(stats.duration_p95)
        yield f"{click.style('Duration', bold=True)}  p50 {half}, p95 {most}"
        yield from plots.bars(_histogram(counted.durations, EDGES), most=len(EDGES) + 1, colour="magenta")


def _histogram(durations: list[int], edges: tuple[float, ...]) -> list[tuple[str, int]]:
    """From the first bar that is not empty to the last."""
    names = [*(f"≤ {seconds(edge)}" for edge in edges), f"> {seconds(edges[-1])}"]
    taken = [at for at, count in enumerate(durations) if count]
    return list(islice(zip(names, durations, strict=True), taken[0], taken[-1] + 1)) if taken else []
