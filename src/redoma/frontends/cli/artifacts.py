"""output: all that a run printed, where its result had only the beginning and the end."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING

import click

from redoma.lib.errors import InvalidRequest
from redoma.models import Stream

from .common import State, columns, json_option, print_json
from .complete import outputs

if TYPE_CHECKING:
    from redoma.output.artifacts import Kept, Store

_RANGE = re.compile(r"([0-9]{1,15})-([0-9]{0,15})\Z")
_PIECE = 1 << 20


@click.command("output")
@click.argument("id", required=False, shell_complete=outputs)
@click.option("--stream", type=click.Choice(["stdout", "stderr"]), default="stdout", show_default=True)
@click.option("--from", "first", type=click.IntRange(min=1), help="The first line to show; the first of all is 1.")
@click.option("--lines", "count", type=click.IntRange(min=0), help="How many lines.")
@click.option("--bytes", "span", metavar="A-B", help="Bytes A to B, both included; the first is 0. `A-` is to the end.")
@click.option("--grep", metavar="RE", help="Only lines in which something fits (RE2), with their numbers.")
@json_option
@click.pass_obj
def output(
    state: State,
    id: str | None,  # noqa: A002 - the argument's name on the command line
    stream: Stream,
    first: int | None,
    count: int | None,
    span: str | None,
    grep: str | None,
    as_json: bool,
) -> int:
    """Print what a run with a long output printed; the beginning of its ID will do. Without an ID, list them.

    Secrets and control characters are taken out, as everywhere. With --json, describe it instead.

    \b
    Examples:
      redoma output
      redoma output 3f2a --from 5000 --lines 20
      redoma output 3f2a --stream stderr --grep 'error|warning'
      redoma output 3f2a --bytes 0-1023
    """
    by_line = first is not None or count is not None
    if sum((by_line, span is not None, grep is not None)) > 1:
        raise InvalidRequest(
            "two ways to choose were given", why="lines, bytes and --grep exclude each other", next="give one of them"
        )
    store = _store(state)
    if id is None:
        return _list(store, as_json)
    kept = store.find(id, stream)
    if as_json:
        print_json(kept)
    elif grep is not None:
        for number, line in kept.matching(grep):
            click.echo(f"{number}:{line}")
    elif by_line:
        for line in kept.lines(first or 1, kept.line_count if count is None else count):
            click.echo(line)
    else:
        _print(kept, *_span(span, kept.size))
    return 0


def _store(state: State) -> Store:
    from redoma.output.artifacts import Store

    directory = state.config.state and state.config.state / "artifacts"
    if directory is None:
        raise InvalidRequest("no output is kept", why="there is no directory for it", next="set REDOMA_STATE_DIR")
    return Store(directory)


def _span(span: str | None, size: int) -> tuple[int, int]:
    """Where to begin, and where to stop."""
    if span is None:
        return 0, size
    match = _RANGE.match(span)
    if not match or (match[2] and int(match[2]) < int(match[1])):
        raise InvalidRequest(f"{span!r} is no range of bytes", why="it is written A-B or A-", next="such as 0-1023")
    return int(match[1]), min(size, int(match[2]) + 1) if match[2] else size


def _print(kept: Kept, start: int, stop: int) -> None:
    """Piece by piece. What a range cuts in half is no character any more, and shown as a sign for one."""
    import codecs

    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while start < stop:
        data = kept.read(start, min(_PIECE, stop - start))
        start += len(data)
        click.echo(decoder.decode(data, final=start >= stop or not data), nl=False)
        if not data:
            break


def _list(store: Store, as_json: bool) -> int:
    found = store.listed()
    if as_json:
        print_json([{"id": one.run, "stream": one.stream, "size": one.size, "time": one.time} for one in found])
    elif found:
        columns(
            (datetime.fromtimestamp(one.time).strftime("%Y-%m-%d %H:%M:%S"), one.run, one.stream, f"{one.size:,} bytes")
            for one in found
        )
    else:
        click.echo("nothing is kept: only what is too long for a result is, for some days", err=True)
    return 0
