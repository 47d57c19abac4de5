"""audit: read the record of runs, search, count and replay them, and verify that it was not changed."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from redoma.lib.errors import AuditError, InvalidRequest
from redoma.lib.sanitise import visible

from .completion import runs
from .emit import counted, emit, emit_list, json_option, progress, shown, table, wants_json
from .options import Moment, audit_log, since_option, with_options
from .source import new_file
from .state import FAILED, State

if TYPE_CHECKING:
    from redoma.audit import AuditLog, Record
    from redoma.audit.verify import Verification
    from redoma.history.export import Format
    from redoma.history.replay import ReplayResult
    from redoma.history.search import Query, RunSummary
    from redoma.history.stats import Overview


_TAMPERED = 1
_COLOURS = {"ok": "green", "error": "red", "failed": "red", "forbidden": "yellow", "denied": "yellow"}
_filters = with_options(
    since_option,
    click.option("--until", type=Moment(), metavar="WHEN", help="Take only what is older."),
    click.option(
        "--status", "statuses", multiple=True, help="Match a status: ok, error, timeout, denied …; interrupted."
    ),
    click.option("--rule", "rules", multiple=True, metavar="GLOB", help="Match a rule that found something: network.*"),
    click.option("--requester", "requesters", multiple=True, help="Match who asked."),
    click.option("--backend", "backends", multiple=True, help="Match what ran it."),
    click.option(
        "--level", "levels", multiple=True, type=click.Choice(["L1", "L2", "L3", "L4"]), help="Match a level."
    ),
    click.option(
        "--decision",
        "decisions",
        multiple=True,
        type=click.Choice(["allow", "prompt", "forbid"]),
        help="Match a decision.",
    ),
    click.option("--regex", default="", metavar="RE2", help="Search in text, label, reason, error and result."),
)


@click.group("audit")
def audit() -> None:
    """Read, search and verify the record of what ran, for whom, and how it ended.

    \b
    Examples:
      redoma audit tail -n 5
      redoma audit show 3f2a
      redoma audit search 'git push' --since 30d
      redoma audit export --since 30d -o runs.csv
      redoma audit replay 3f2a
      redoma audit verify
    """


# --- records ---


@audit.command("tail")
@click.option(
    "-n", "count", type=click.IntRange(1, 100_000), default=20, show_default=True, help="Show so many records."
)
@click.option("--all", "everything", is_flag=True, help="Include each evaluation of a rule of `redoma monitor`.")
@json_option
@click.pass_obj
def tail(state: State, count: int, everything: bool) -> None:
    """Show the newest records, the oldest of them first."""
    log = audit_log(state)
    found = log.tail(count) if everything else _without_rules(log, count)
    only_rules = not found and not everything and bool(log.tail(1))
    emit_list(
        found,
        lambda record: (record.time[:19], record.id[:12], record.kind, _gist(record)),
        empty="only rules of the monitor; --all shows them" if only_rules else "nothing is on record yet",
    )


@audit.command("show")
@click.argument("id", shell_complete=runs)
@json_option
@click.pass_obj
def show(state: State, id: str) -> None:  # noqa: A002 - the argument's name on the command line
    """Show everything recorded about one run; a prefix of its ID is enough."""

    def lines(found: list[Record]) -> Iterator[str]:
        for record in found:
            yield click.style(f"{record.kind}  {record.time}  #{record.seq}  {record.id}", bold=True)
            yield from (f"  {key}: {_text(value)}" for key, value in record.data.items())

    emit(audit_log(state).show(id), lines)


@audit.command("verify")
@click.option("--head", metavar="HASH", help="Require this head, which you kept elsewhere, in the log.")
@json_option
@click.pass_obj
def verify(state: State, head: str | None) -> int:
    """Check every record and name the first that was altered, removed or reordered. Exit 1 if one was."""
    report = audit_log(state).verify(expected_head=head)
    torn = report.problem is not None and report.problem.kind == "torn"  # torn by a crash: the next record repairs it

    def lines(report: Verification) -> Iterator[str]:
        if (problem := report.problem) is None:
            yield f"{click.style('intact', fg='green')}: {report.records} records, head {report.head}"
            return
        where = f"{problem.file}:{problem.line}" if problem.file else "the log"
        yield f"{click.style(problem.kind, fg='yellow' if torn else 'red')}: {where}: {problem.message}"
        yield f"  {report.records} records before it are intact"

    emit(report, lines, shape=lambda report: {"ok": report.ok, **msgspec.to_builtins(report)})
    return 0 if report.ok or torn else _TAMPERED


def _without_rules(log: AuditLog, count: int) -> list[Record]:
    """Return the newest records without the rules of the monitor, which would fill every page."""
    size = 2 * count
    while True:
        found = log.tail(size)
        is_all = len(found) < size
        rules = {record.id for record in found if _is_rule(record)}
        begun = {record.id for record in found if record.kind == "intent"}
        # If a run's outcome comes first, its intent is further back: it may be a rule's.
        known = [
            record
            for record in found
            if record.id not in rules and (is_all or record.kind != "outcome" or record.id in begun)
        ]
        if is_all or len(known) >= count:
            return known[-count:]
        size *= 4


def _is_rule(record: Record) -> bool:
    """Return whether it is a rule of the monitor. Any requester can choose such a label; only for the monitor, policy
    sees other code than runs, outside an entry.
    """
    data = record.data
    named = str(data.get("label", "")).startswith("monitor:rule:")
    return record.kind == "intent" and named and "view" in data and not data.get("entry")


def _gist(record: Record) -> str:
    data = record.data
    if record.kind == "intent":
        return f"{data.get('decision', '')}  {data.get('language', '')}  {_text(data.get('code', ''))[:60]}"
    if record.kind == "outcome":
        return f"{data.get('status', '')}  {_text(data.get('error') or data.get('result') or '')[:60]}"
    return _text(data)[:80]


def _text(value: Any) -> str:
    """Return a recorded value on one line, harmless for a terminal."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


# --- search and export ---


@audit.command("search")
@click.argument("text", default="")
@_filters
@click.option(
    "--kind", default="", metavar="GLOB", help="Find records of this kind instead of runs: approval.*, alarm."
)
@click.option(
    "-n", "count", type=click.IntRange(1, 100_000), default=50, show_default=True, help="Show the newest so many."
)
@click.option("--csv", metavar="FILE", help="Write all that match as CSV; `-` is standard output.")
@json_option
@click.pass_obj
def search(state: State, /, kind: str, count: int, csv: str | None, **given: Any) -> None:
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
        _search_records(state, kind, query, since, count)
        return
    found = _found(state, query, since)
    if csv is not None:
        _write(found, csv, "csv", force=False)
        return
    emit(sorted(deque(found, maxlen=count), key=lambda run: run.time), _print_runs)


def _query(given: dict[str, Any]) -> Query:
    from redoma.history.search import Query, expression

    until = given["until"]
    fields = {name: tuple(value) for name, value in given.items() if isinstance(value, tuple)}
    if given["regex"]:
        expression(given["regex"])  # report an error in it before anything is read
    return Query(
        **fields,
        until=until.astimezone(UTC).isoformat(timespec="microseconds") if until else "",
        text=given["text"],
        regex=given["regex"],
    )


def _found(state: State, query: Query, since: datetime | None) -> Iterator[RunSummary]:
    from redoma.history.search import search as found

    return found(audit_log(state).records(since), query)


def _search_records(state: State, kind: str, query: Query, since: datetime | None, count: int) -> None:
    from fnmatch import fnmatchcase

    of_runs = {"--status": query.statuses, "--rule": query.rules, "--backend": query.backends}
    of_runs |= {"--level": query.levels, "--decision": query.decisions}
    if given := [option for option, values in of_runs.items() if values]:
        raise InvalidRequest(f"{given[0]} was given with --kind", why="only runs have it", next="leave one of them out")

    def fits(record: Record) -> bool:
        if not fnmatchcase(record.kind, kind) or (query.until and record.time >= query.until):
            return False
        if not query.fits_requester(str(record.data.get("requester", ""))):
            return False
        return query.fits_text([msgspec.json.encode(record.data).decode()])

    newest = deque(filter(fits, audit_log(state).records(since)), maxlen=count)
    emit_list(
        newest,
        lambda each: (each.time[:19], each.id[:12], each.kind, shown(msgspec.json.encode(each.data).decode())),
        empty="no record fits",
    )


def _print_runs(runs: list[RunSummary]) -> None:
    from .plots import width

    if not runs:
        click.echo("no run on record fits", err=True)
        return
    rows = [
        (
            run.time[:19].replace("T", " "),
            run.id[:12],
            click.style(run.status or "interrupted", fg=_COLOURS.get(run.status, "magenta")),
            run.level or "-",
            shown(run.backend, 8),
            shown(run.requester, 16),
            "-" if run.duration is None else seconds(run.duration),
            shown(f"{run.text} [{', '.join(run.rules)}]" if run.rules else run.text, max(20, width() - 90)),
        )
        for run in runs
    ]
    table(rows)


def seconds(value: float) -> str:
    return f"{value * 1000:.3g} ms" if value < 0.9995 else f"{value:.3g} s" if value < 1000 else f"{value:,.0f} s"


@audit.command("export")
@click.argument("text", default="")
@_filters
@click.option(
    "--format",
    "form",
    type=click.Choice(["csv", "json", "jsonl"]),
    default="csv",
    show_default=True,
    help="Write this format.",
)
@click.option("-o", "--output", default="-", metavar="FILE", help="Write to this file.  [default: standard output]")
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.pass_obj
def export(state: State, /, form: Format, output: str, force: bool, **given: Any) -> None:
    """Write runs as CSV or JSON: one row a run, in the order they ended.

    CSV is for spreadsheets: a text that would be taken for a formula gets an apostrophe. JSON has each text as
    recorded.

    \b
    Examples:
      redoma audit export --since 30d -o runs.csv
      redoma audit export --format jsonl --status error | jq .error
    """
    _write(_found(state, _query(given), given["since"]), output, form, force=force)


def _write(runs: Iterable[RunSummary], output: str, form: Format, *, force: bool) -> None:
    from redoma.history.export import write

    if output == "-":
        write(runs, sys.stdout, form)
        return
    with new_file(Path(output), force=force) as file:
        count = write(runs, file, form)
    click.echo(f"{shown(output)}: {counted(count, 'run')}", err=True)


# --- stats ---


@audit.command("stats")
@since_option
@json_option
@click.pass_obj
def stats(state: State, since: datetime | None) -> None:
    """Count runs over time, by status, backend, requester and rule, and show how long they took."""
    from redoma.history.stats import overview

    emit(overview(audit_log(state).records(since)), _plotted, shape=_overview_shape)


def _overview_shape(found: Overview) -> dict[str, Any]:
    from redoma.history.stats import EDGES

    shape: dict[str, Any] = msgspec.to_builtins(found)
    durations = [{"up_to": edge, "runs": runs} for edge, runs in zip([*EDGES, None], found.durations, strict=True)]
    return {**shape, "durations": durations}


def _plotted(found: Overview) -> Iterator[str]:
    from redoma.history.stats import EDGES

    from . import plots

    if not found.runs:
        yield "nothing is on record" if found.first is None else "no run is on record"
        return
    first, last = (found.first or "")[:16].replace("T", " "), (found.last or "")[:16].replace("T", " ")
    yield f"{click.style(f'{found.runs:,} runs', bold=True)}  {first} to {last} UTC"
    if found.interrupted:
        yield f"{found.interrupted:,} have no end on record: they still run, or were cut short"
    yield ""
    yield click.style(f"Runs {'an' if found.per == 'hour' else 'a'} {found.per}", bold=True)
    yield from plots.columns_over_time(found.over_time)
    for title, counts in (
        ("Status", found.by_status),
        ("Backend", found.by_backend),
        ("Requester", found.by_requester),
        ("Decision", found.by_decision),
        ("Level", found.by_level),
        ("Rule", found.by_rule),
    ):
        if counts:
            yield ""
            yield click.style(title, bold=True)
            yield from plots.bars(counts)
    if found.duration_p50 is not None and found.duration_p95 is not None:
        yield ""
        half, most = seconds(found.duration_p50), seconds(found.duration_p95)
        yield f"{click.style('Duration', bold=True)}  p50 {half}, p95 {most}"
        yield from plots.bars(_histogram(found.durations, EDGES), max_rows=len(EDGES) + 1, colour="magenta")


def _histogram(durations: list[int], edges: tuple[float, ...]) -> list[tuple[str, int]]:
    """Return names and counts of the bars, from the first that is not empty to the last."""
    names = [*(f"≤ {seconds(edge)}" for edge in edges), f"> {seconds(edges[-1])}"]
    taken = [at for at, count in enumerate(durations) if count]
    return list(islice(zip(names, durations, strict=True), taken[0], taken[-1] + 1)) if taken else []


# --- replay ---


_LOOKS = {
    "same": ("=", "green"),
    "different": ("≠", "red"),
    "unknown": ("?", "yellow"),
    "measured": ("·", "white"),
    "identical": ("=", "green"),
    "impossible": ("?", "yellow"),
}
_MAX_DIFFERENCE = 160
_DIFF = {"+": "green", "-": "red", "@": "cyan"}


@audit.command("replay")
@click.argument("ids", nargs=-1, metavar="[ID]...", shell_complete=runs)
@click.option(
    "--last",
    type=click.IntRange(1, 100_000),
    metavar="N",
    help="Replay the newest N runs whose input was kept (rules of the monitor are not).",
)
@json_option
@click.pass_obj
def replay(state: State, ids: tuple[str, ...], last: int | None) -> int:
    """Run recorded runs again, without effects, and show what differs.

    It runs in a cell, or in an overlay that is discarded. Exit 0 if all results are the same, 1 if one differs, 125 if
    one could not be replayed.

    \b
    Examples:
      redoma audit replay 3f2a
      redoma audit replay --last 50
    """
    if bool(ids) == (last is not None):
        raise InvalidRequest(
            "it is not clear what to replay",
            why="it takes ids, or --last N, and not both",
            next="see `redoma audit tail`",
        )
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the one that asyncio replaces, to cancel what runs
    replayed = asyncio.run(_replay(state, ids, last))
    if len(ids) == len(replayed) == 1:
        emit(replayed[0], _comparison)
    else:
        emit(replayed, _summary)
    verdicts = {each.verdict for each in replayed}
    return 1 if "different" in verdicts else FAILED if "impossible" in verdicts else 0


async def _replay(state: State, ids: tuple[str, ...], last: int | None) -> list[ReplayResult]:
    from redoma.audit.inputs import Inputs
    from redoma.history.recorded import rebuild
    from redoma.history.replay import Replayer, ReplayResult

    found, inputs = _to_replay(state, ids, last), Inputs.within(state.config.state)
    done: list[ReplayResult] = []
    async with Replayer(state.config, inputs) as replayer:
        with progress("replaying", len(found), hidden=wants_json() or len(found) == 1) as advance:
            for intent, outcome in found:
                try:
                    run = rebuild(intent, outcome, inputs)
                except AuditError as error:
                    done.append(ReplayResult(id=intent.id, verdict="impossible", why=str(error)))
                else:
                    done.append(await replayer.replay(run))
                advance(1)
    return done


def _to_replay(state: State, ids: tuple[str, ...], last: int | None) -> list[tuple[Record, Record | None]]:
    """Find all records before anything runs, so that an error in one of several ids costs nothing."""
    from redoma.history.recorded import is_kept, pairs

    log = audit_log(state)
    if last is not None:
        found = list(deque((pair for pair in pairs(log.records()) if is_kept(pair[0])), maxlen=last))
    else:
        found = [pair for each in ids for pair in pairs(log.show(each))]
    if not found:
        raise InvalidRequest("there is nothing to replay", why="no run is on record", next="see `redoma audit tail`")
    return found


def _comparison(done: ReplayResult) -> None:
    where = f" on {done.backend}" if done.backend else ""
    looks = _LOOKS[done.verdict][1]
    click.echo(f"{click.style(done.verdict, fg=looks, bold=True)}  {done.id}{where}")
    if done.why:
        click.echo(f"  {visible(done.why)}")
    if done.fields:
        rows = [(_mark(field.state), field.name, visible(field.before), visible(field.after)) for field in done.fields]
        table([("", "", "recorded", "replayed"), *rows])
    for field in done.fields:
        for line in field.diff.splitlines():
            click.echo(click.style(f"  {visible(line)}", fg=_DIFF.get(line[:1])))
    for title, lines in (("because", done.reasons), ("note", done.notes if not done.reasons else ())):
        for line in lines:
            click.echo(f"{click.style(title, bold=True)}: {visible(line)}")


def _mark(state: str) -> str:
    sign, colour = _LOOKS[state]
    return click.style(sign, fg=colour)


def _summary(replayed: list[ReplayResult]) -> None:
    table((each.id[:12], each.verdict, each.backend or "-", visible(_difference(each))) for each in replayed)
    counts = Counter(each.verdict for each in replayed)
    click.echo(", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())))


def _difference(done: ReplayResult) -> str:
    if done.verdict == "identical":
        return ""
    differing = f"{', '.join(done.differing)}: " if done.differing else ""
    return (differing + (done.why or "; ".join(done.reasons)))[:_MAX_DIFFERENCE]
