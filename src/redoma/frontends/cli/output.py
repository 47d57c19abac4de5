"""output: the whole output of a run whose result had only the beginning and the end."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from redoma.lib.errors import InvalidRequest
from redoma.models import Stream

from .completion import outputs
from .emit import emit, emit_list, json_option, local_time
from .state import State

if TYPE_CHECKING:
    from redoma.output.artifacts import Store, StoredArtifact

_RANGE = re.compile(r"([0-9]{1,15})-([0-9]{0,15})\Z")
_PIECE = 1 << 20


@click.command("output")
@click.argument("id", required=False, shell_complete=outputs)
@click.option("--stream", type=click.Choice(["stdout", "stderr"]), default="stdout", show_default=True)
@click.option("--from", "first", type=click.IntRange(min=1), help="Begin with this line; the first of all is 1.")
@click.option("--lines", "count", type=click.IntRange(min=0), help="Print so many lines.")
@click.option("--bytes", "span", metavar="A-B", help="Print bytes A to B, both included, from 0; `A-` is to the end.")
@click.option("--grep", metavar="RE", help="Print only lines that match (RE2), with their numbers.")
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
) -> int:
    """Print what a run with a long output printed; the beginning of its ID is enough. Without an ID, list them.

    Secrets and control characters are removed, as everywhere. With --json, describe it instead.

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
        _list(store)
        return 0

    def render(kept: StoredArtifact) -> Iterable[str] | None:
        if grep is not None:
            return (f"{number}:{line}" for number, line in kept.matching(grep))
        if by_line:
            return kept.lines(first or 1, kept.line_count if count is None else count)
        _print(kept, *_span(span, kept.size))
        return None

    emit(store.find(id, stream), render)
    return 0


def _store(state: State) -> Store:
    from redoma.output.artifacts import Store

    directory = state.config.state and state.config.state / "artifacts"
    if directory is None:
        raise InvalidRequest("no output is kept", why="there is no directory for it", next="set REDOMA_STATE_DIR")
    return Store(directory)


def _span(span: str | None, size: int) -> tuple[int, int]:
    """Return the first byte to print, and the one to stop before."""
    if span is None:
        return 0, size
    match = _RANGE.match(span)
    if not match or (match[2] and int(match[2]) < int(match[1])):
        raise InvalidRequest(f"{span!r} is not a range of bytes", why="it is written A-B or A-", next="such as 0-1023")
    return int(match[1]), min(size, int(match[2]) + 1) if match[2] else size


def _print(kept: StoredArtifact, start: int, stop: int) -> None:
    """Print bytes `start` to `stop`, piece by piece. A character that the range cuts in half becomes U+FFFD."""
    import codecs

    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while start < stop:
        data = kept.read(start, min(_PIECE, stop - start))
        start += len(data)
        click.echo(decoder.decode(data, final=start >= stop or not data), nl=False)
        if not data:
            break


def _list(store: Store) -> None:
    emit_list(
        store.list(),
        lambda one: (local_time(one.time), one.run, one.stream, f"{one.size:,} bytes"),
        empty="nothing is kept: only what is too long for a result is, for some days",
        shape=lambda one: {"id": one.run, "stream": one.stream, "size": one.size, "time": one.time},
    )
