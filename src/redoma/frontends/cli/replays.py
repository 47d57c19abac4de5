"""audit replay: recorded runs, run again; and how the two compare."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter, deque
from typing import TYPE_CHECKING

import click

from redoma.lib.errors import AuditError, InvalidRequest
from redoma.output.capture import visible

from .common import FAILED, State, audit_log, columns, json_option, print_json
from .complete import runs

if TYPE_CHECKING:
    from redoma.audit import Record
    from redoma.history.replay import Replayed

_LOOKS = {
    "same": ("=", "green"),
    "different": ("≠", "red"),
    "unknown": ("?", "yellow"),
    "measured": ("·", "white"),
    "identical": ("=", "green"),
    "impossible": ("?", "yellow"),
}
_WIDEST = 160
_DIFF = {"+": "green", "-": "red", "@": "cyan"}


@click.command("replay")
@click.argument("ids", nargs=-1, metavar="[ID]...", shell_complete=runs)
@click.option(
    "--last",
    type=click.IntRange(1, 100_000),
    metavar="N",
    help="The newest N runs whose input was kept: rules of the monitor are not among them.",
)
@json_option
@click.pass_obj
def replay(state: State, ids: tuple[str, ...], last: int | None, as_json: bool) -> int:
    """Run what is on record again, without effects, and show what differs.

    Whatever it did, it is done in a cell or in an overlay that is dropped. Exit 0 if all came out the same, 1 if one
    did not, 125 if one could not be replayed.

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
    replayed = asyncio.run(_replay(state, ids, last, quiet=as_json))
    if as_json:
        print_json(replayed if last is not None or len(ids) > 1 else replayed[0])
    elif last is None and len(replayed) == 1:
        _show(replayed[0])
    else:
        _summary(replayed)
    verdicts = {each.verdict for each in replayed}
    return 1 if "different" in verdicts else FAILED if "impossible" in verdicts else 0


async def _replay(state: State, ids: tuple[str, ...], last: int | None, *, quiet: bool) -> list[Replayed]:
    from redoma.audit.inputs import Inputs
    from redoma.history.recorded import rebuilt
    from redoma.history.replay import Replayed, Replayer

    found, inputs = _found(state, ids, last), Inputs.within(state.config.state)
    hidden = quiet or len(found) == 1 or not sys.stderr.isatty()
    done: list[Replayed] = []
    async with Replayer(state.config, inputs) as replayer:
        with click.progressbar(found, label="replaying", file=sys.stderr, hidden=hidden) as bar:
            for intent, outcome in bar:
                try:
                    run = rebuilt(intent, outcome, inputs)
                except AuditError as error:
                    done.append(Replayed(id=intent.id, verdict="impossible", why=str(error)))
                else:
                    done.append(await replayer.replay(run))
    return done


def _found(state: State, ids: tuple[str, ...], last: int | None) -> list[tuple[Record, Record | None]]:
    """All of them before anything runs, so that a mistake in one of several ids costs nothing."""
    from redoma.history.recorded import is_kept, pairs

    log = audit_log(state)
    if last is not None:
        found = list(deque((pair for pair in pairs(log.records()) if is_kept(pair[0])), maxlen=last))
    else:
        found = [pair for each in ids for pair in pairs(log.show(each))]
    if not found:
        raise InvalidRequest("there is nothing to replay", why="no run is on record", next="see `redoma audit tail`")
    return found


def _show(done: Replayed) -> None:
    where = f" on {done.backend}" if done.backend else ""
    looks = _LOOKS[done.verdict][1]
    click.echo(f"{click.style(done.verdict, fg=looks, bold=True)}  {done.id}{where}")
    if done.why:
        click.echo(f"  {visible(done.why)}")
    if done.fields:
        rows = [(_mark(field.state), field.name, visible(field.before), visible(field.after)) for field in done.fields]
        columns([(click.style(" ", fg="white"), "", "recorded", "replayed"), *rows])
    for field in done.fields:
        for line in field.diff.splitlines():
            click.echo(click.style(f"  {visible(line)}", fg=_DIFF.get(line[:1])))
    for title, lines in (("because", done.reasons), ("note", done.notes if not done.reasons else ())):
        for line in lines:
            click.echo(f"{click.style(title, bold=True)}: {visible(line)}")


def _mark(state: str) -> str:
    sign, colour = _LOOKS[state]
    return click.style(sign, fg=colour)


def _summary(replayed: list[Replayed]) -> None:
    columns((each.id[:12], each.verdict, each.backend or "-", visible(_gist(each))) for each in replayed)
    counts = Counter(each.verdict for each in replayed)
    click.echo(", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())))


def _gist(done: Replayed) -> str:
    if done.verdict == "identical":
        return ""
    differing = f"{', '.join(done.differing)}: " if done.differing else ""
    return (differing + (done.why or "; ".join(done.reasons)))[:_WIDEST]
