"""audit: reading the record, and checking that nobody changed it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from .common import State, columns, json_option, print_json
from .replays import replay

if TYPE_CHECKING:
    from redoma.audit import AuditLog, Record

_TAMPERED = 1


@click.group("audit")
def audit() -> None:
    """What ran, for whom, and what came of it: a hash-chained record.

    \b
    Examples:
      redoma audit tail -n 5
      redoma audit show 3f2a
      redoma audit replay 3f2a
      redoma audit verify
    """


def _log(state: State) -> AuditLog:
    from redoma.audit import AuditLog

    settings = state.config.audit
    return AuditLog(settings.directory, retention_days=settings.retention_days)


@audit.command("tail")
@click.option("-n", "count", type=click.IntRange(1, 100_000), default=20, show_default=True, help="How many records.")
@json_option
@click.pass_obj
def tail(state: State, count: int, as_json: bool) -> None:
    """The newest records, oldest of them first."""
    found = _log(state).tail(count)
    if as_json:
        print_json(found)
    elif not found:
        click.echo("nothing is on record yet", err=True)
    else:
        columns((record.time[:19], record.id[:12], record.kind, _gist(record)) for record in found)


@audit.command("show")
@click.argument("id")
@json_option
@click.pass_obj
def show(state: State, id: str, as_json: bool) -> None:  # noqa: A002 - the argument's name on the command line
    """Everything on record of one run; the beginning of its ID will do."""
    found = _log(state).show(id)
    if as_json:
        print_json(found)
        return
    for record in found:
        click.echo(click.style(f"{record.kind}  {record.time}  #{record.seq}  {record.id}", bold=True))
        for key, value in record.data.items():
            click.echo(f"  {key}: {_text(value)}")


@audit.command("verify")
@click.option("--head", metavar="HASH", help="A head you kept elsewhere; it must still be in the log.")
@json_option
@click.pass_obj
def verify(state: State, head: str | None, as_json: bool) -> int:
    """Check every record; names the first that was altered, removed or reordered. Exit 1 if one was."""
    report = _log(state).verify(expected_head=head)
    torn = report.problem is not None and report.problem.kind == "torn"  # by a crash: the next record mends it
    if as_json:
        print_json({"ok": report.ok, **msgspec.to_builtins(report)})
    elif report.problem is None:
        click.echo(f"{click.style('intact', fg='green')}: {report.records} records, head {report.head}")
    else:
        problem = report.problem
        where = f"{problem.file}:{problem.line}" if problem.file else "the log"
        click.echo(f"{click.style(problem.kind, fg='yellow' if torn else 'red')}: {where}: {problem.message}")
        click.echo(f"  {report.records} records before it are intact")
    return 0 if report.ok or torn else _TAMPERED


@audit.command("stats")
@json_option
@click.pass_obj
def stats(state: State, as_json: bool) -> None:
    """Runs by status, backend and requester, and how long they took."""
    counted = _log(state).stats()
    if as_json:
        print_json(counted)
        return
    rows = [("runs", str(counted.runs)), ("interrupted", str(counted.interrupted))]
    for title, counts in (
        ("status", counted.by_status),
        ("backend", counted.by_backend),
        ("requester", counted.by_requester),
    ):
        rows += [(f"{title} {name}", str(number)) for name, number in sorted(counts.items())]
    for title, seconds in (("p50", counted.duration_p50), ("p95", counted.duration_p95)):
        rows.append((f"duration {title}", "-" if seconds is None else f"{seconds * 1000:.1f} ms"))
    rows += [("first", counted.first or "-"), ("last", counted.last or "-")]
    columns(rows)


audit.add_command(replay)


def _gist(record: Record) -> str:
    data = record.data
    if record.kind == "intent":
        return f"{data.get('decision', '')}  {data.get('language', '')}  {_text(data.get('code', ''))[:60]}"
    if record.kind == "outcome":
        return f"{data.get('status', '')}  {_text(data.get('error') or data.get('result') or '')[:60]}"
    return _text(data)[:80]


def _text(value: Any) -> str:
    """On one line and harmless for a terminal, whatever was recorded."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")
