"""audit: reading the record, and checking that nobody changed it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from .common import CommandGroup, State, audit_log, columns, json_option, print_json
from .complete import runs
from .replays import replay
from .searches import export, search, stats

if TYPE_CHECKING:
    from redoma.audit import AuditLog, Record

_TAMPERED = 1


@click.group("audit", cls=CommandGroup)
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
@click.option("--all", "everything", is_flag=True, help="Also each evaluation of a rule of `redoma monitor`.")
@json_option
@click.pass_obj
def tail(state: State, count: int, everything: bool, as_json: bool) -> None:
    """The newest records, oldest of them first."""
    log = audit_log(state)
    found = log.tail(count) if everything else _without_rules(log, count)
    if as_json:
        print_json(found)
    elif not found:
        rules = not everything and bool(log.tail(1))
        click.echo("only rules of the monitor; --all shows them" if rules else "nothing is on record yet", err=True)
    else:
        columns((record.time[:19], record.id[:12], record.kind, _gist(record)) for record in found)


@audit.command("show")
@click.argument("id", shell_complete=runs)
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


def _without_rules(log: AuditLog, count: int) -> list[Record]:
    """The newest records, but for the rules of the monitor, which would fill every page."""
    size = 2 * count
    while True:
        found = log.tail(size)
        is_all = len(found) < size
        rules = {record.id for record in found if _is_rule(record)}
        begun = {record.id for record in found if record.kind == "intent"}
        # The beginning of a run whose end comes first lies further back: it may be a rule's.
        known = [
            record
            for record in found
            if record.id not in rules and (is_all or record.kind != "outcome" or record.id in begun)
        ]
        if is_all or len(known) >= count:
            return known[-count:]
        size *= 4


def _is_rule(record: Record) -> bool:
    """A label is its requester's to choose; what is judged apart from what runs, outside an entry, is the monitor's."""
    data = record.data
    named = str(data.get("label", "")).startswith("monitor:rule:")
    return record.kind == "intent" and named and "judged" in data and not data.get("entry")


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
