"""audit: reading the record, and checking that nobody changed it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from .common import State, audit_log, columns, json_option, print_json
from .replays import replay
from .searches import export, search, stats

if TYPE_CHECKING:
    from redoma.audit import Record

_TAMPERED = 1


@click.group("audit")
def audit() -> None:
    """What ran, for whom, and what came of it: a hash-chained record.

    \b
    Examples:
      redoma audit tail -n 5
      redoma audit show 3f2a
      redoma audit search 'git push' --since 30d
      redoma audit export --since 30d -o runs.csv
      redoma audit replay 3f2a
      redoma audit verify
    """


for _command in (search, export, stats, replay):
    audit.add_command(_command)


@audit.command("tail")
@click.option("-n", "count", type=click.IntRange(1, 100_000), default=20, show_default=True, help="How many records.")
@json_option
@click.pass_obj
def tail(state: State, count: int, as_json: bool) -> None:
    """The newest records, oldest of them first."""
    found = audit_log(state).tail(count)
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
    found = audit_log(state).show(id)
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
    report = audit_log(state).verify(expected_head=head)
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
