"""Print what a command found: as JSON with --json, else for people. `emit` is the one place that decides."""

from __future__ import annotations

import shutil
import sys
import termios
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
_JSON = "redoma.json"


def json_option(command: F) -> F:
    """Give a command the option --json, which `emit` obeys."""

    def remember(context: click.Context, parameter: click.Parameter, value: bool) -> None:
        context.meta[_JSON] = value

    option = click.option("--json", "as_json", is_flag=True, expose_value=False, callback=remember, help="Print JSON.")
    return option(command)


def wants_json() -> bool:
    """Whether the command that runs was given --json."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(_JSON))


def emit(data: T, render: Callable[[T], Iterable[str] | None], *, shape: Callable[[T], Any] | None = None) -> None:
    """Print `data`: with --json as JSON, after `shape` if that is given; else what `render` makes of it.

    `render` prints by itself, or returns lines to print.
    """
    if wants_json():
        print_json(shape(data) if shape else data)
        return
    for line in render(data) or ():
        click.echo(line)


def emit_list(
    items: Sequence[T],
    row: Callable[[T], Sequence[str]],
    *,
    empty: str,
    shape: Callable[[T], Any] | None = None,
) -> None:
    """Print `items`: as a JSON array, or as a table with one `row` for each. `empty` is said where there are none."""

    def render(items: Sequence[T]) -> None:
        if items:
            table(map(row, items))
        else:
            click.echo(empty, err=True)

    emit(items, render, shape=lambda items: [shape(item) if shape else item for item in items])


def print_json(data: Any) -> None:
    """Print plain data, structs and paths as indented JSON."""
    import json

    import msgspec

    # The standard library's writer: a path that is no UTF-8 comes out as the escape that stands for it in JSON.
    click.echo(json.dumps(msgspec.to_builtins(data, enc_hook=str), indent=2, ensure_ascii=False))


def table(rows: Iterable[Sequence[str]]) -> None:
    """Print rows with every column but the last padded to one width.

    On a terminal that is too narrow for them, cells are wrapped in their columns.
    """
    cells = [list(row) for row in rows]
    widths = [max(len(click.unstyle(cell)) for cell in column) for column in zip(*cells, strict=True)]
    if sys.stdout.isatty() and sum(widths) + 2 * len(widths) - 2 > shutil.get_terminal_size().columns:
        _wrapped_table(cells)
        return
    for row in cells:
        padded = [cell + " " * (width - len(click.unstyle(cell))) for cell, width in zip(row, widths, strict=True)]
        click.echo("  ".join([*padded[:-1], row[-1]]).rstrip())


def _wrapped_table(cells: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for column in range(len(cells[0])):
        # Names and times stay whole; what is long is wrapped.
        drawn.add_column(overflow="fold", no_wrap=max(len(click.unstyle(row[column])) for row in cells) <= 20)
    for row in cells:
        drawn.add_row(*map(Text.from_ansi, row))
    Console(highlight=False).print(drawn)


@contextmanager
def progress(label: str, total: int, *, hidden: bool = False) -> Iterator[Callable[[int], None]]:
    """Show a bar on standard error, if that is a terminal. Yields the function that moves it on by so many."""
    if hidden or not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=total)
        yield lambda count: bar.advance(task, count)
        bar.update(task, completed=total)


def shown(text: str, max_length: int = 80) -> str:
    """Text on one line, bounded, and harmless for a terminal, whatever it holds."""
    from redoma.lib.sanitise import visible

    line = visible(text[: 4 * max_length]).replace("\n", "\\n").replace("\t", "\\t")
    return line if len(line) <= max_length and len(text) <= 4 * max_length else line[: max_length - 1] + "…"


def one_line(text: str) -> str:
    """The whole text on one line, harmless for a terminal."""
    from redoma.lib.sanitise import visible

    return " ".join(visible(text).split())


def counted(count: int, noun: str) -> str:
    """`1 change`, `2 changes`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def local_time(seconds: float) -> str:
    """A Unix time as a person here writes it."""
    from datetime import datetime

    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def is_interactive() -> bool:
    """Whether a person sits there who sees what we say and can answer."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def drop_typed_input() -> None:
    """Drop what was typed or pasted before a question was shown: it answers nothing."""
    if sys.stdin is not None and sys.stdin.isatty():
        termios.tcflush(sys.stdin, termios.TCIFLUSH)


def note(text: str, label: str = "note", colour: str = "yellow") -> None:
    """Tell the person something beside the output: `redoma: note: …` on standard error."""
    click.echo(f"{click.style(f'redoma: {label}:', fg=colour)} {text}", err=True)
