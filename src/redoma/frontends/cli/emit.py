"""Prints what a command found: as JSON with --json, else for people. `emit` is the one place that decides.

Click is loaded only if it is needed: see `plain`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import click

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
_JSON = "redoma.json"


def json_option(command: F) -> F:
    """Give a command the option --json, which `emit` obeys."""

    def remember(context: click.Context, parameter: click.Parameter, value: bool) -> None:
        context.meta[_JSON] = value

    import click

    option = click.option("--json", "as_json", is_flag=True, expose_value=False, callback=remember, help="Print JSON.")
    return option(command)


def wants_json(context: click.Context | None = None) -> bool:
    """Return whether the running command, or the one of a context, was given --json."""
    if "click" not in sys.modules:
        return False
    import click

    context = context or click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(_JSON))


def echo(text: str = "", *, nl: bool = True, err: bool = False) -> None:
    """Print text, without its colours if they are not wanted."""
    if "\x1b" in text or "click" in sys.modules:
        import click

        click.echo(text, nl=nl, err=err)
        return
    stream = sys.stderr if err else sys.stdout
    stream.write(text + "\n" if nl else text)
    stream.flush()


def show_progress(text: str) -> None:
    """Show the last line of something that takes long in place of the one before it, on standard error, a terminal.
    An empty text takes it away."""
    import shutil

    from redoma.lib.sanitise import sanitise

    last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
    sys.stderr.write(f"\r\x1b[K{sanitise(last)[: shutil.get_terminal_size().columns - 1]}")
    sys.stderr.flush()


def emit(data: T, render: Callable[[T], Iterable[str] | None], *, shape: Callable[[T], Any] | None = None) -> None:
    """Print `data`: with --json as JSON, after applying `shape` if given; else by `render`, which prints by itself, or
    returns lines to print.
    """
    if wants_json():
        print_json(shape(data) if shape else data)
        return
    for line in render(data) or ():
        echo(line)


def emit_list(
    items: Sequence[T],
    row: Callable[[T], Sequence[str]],
    *,
    empty: str,
    shape: Callable[[T], Any] | None = None,
) -> None:
    """Print `items`: as a JSON array, or as a table with one `row` for each. `empty` is printed if there are none."""

    def render(items: Sequence[T]) -> None:
        if items:
            table(map(row, items))
        else:
            echo(empty, err=True)

    emit(items, render, shape=lambda items: [shape(item) if shape else item for item in items])


def print_json(data: Any) -> None:
    """Print plain data, structs and paths as indented JSON."""
    import json

    import msgspec

    # Not msgspec's encoder: a path that is not UTF-8 becomes JSON escapes.
    echo(json.dumps(msgspec.to_builtins(data, enc_hook=str), indent=2, ensure_ascii=False))


def table(rows: Iterable[Sequence[str]]) -> None:
    """Print rows with every column but the last padded to one width.

    On a terminal that is too narrow for them, cells are wrapped in their columns.
    """
    import shutil

    for line in table_lines(rows, shutil.get_terminal_size().columns if sys.stdout.isatty() else None):
        echo(line)


def table_lines(rows: Iterable[Sequence[str]], max_width: int | None) -> Iterator[str]:
    """Yield the lines of such a table; cells are wrapped if it is wider than `max_width`."""
    import click

    cells = [list(row) for row in rows]
    widths = [max(len(click.unstyle(cell)) for cell in column) for column in zip(*cells, strict=True)]
    if max_width is not None and sum(widths) + 2 * len(widths) - 2 > max_width:
        yield from _wrapped(cells, widths, max_width)
        return
    for row in cells:
        padded = [cell + " " * (width - len(click.unstyle(cell))) for cell, width in zip(row, widths, strict=True)]
        yield "  ".join([*padded[:-1], row[-1]]).rstrip()


def _wrapped(cells: list[list[str]], widths: list[int], max_width: int) -> list[str]:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for width in widths:
        drawn.add_column(overflow="fold", no_wrap=width <= 20)  # names and times stay whole; long cells are wrapped
    for row in cells:
        drawn.add_row(*map(Text.from_ansi, row))
    console = Console(width=max_width, force_terminal=True, highlight=False)
    with console.capture() as captured:
        console.print(drawn)
    return captured.get().splitlines()


@contextmanager
def progress(label: str, total: int, *, hidden: bool = False) -> Iterator[Callable[[int], None]]:
    """Show a bar on standard error, if that is a terminal. Yields a function that advances it by a count."""
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
    """Return text on one line, bounded, and harmless for a terminal, whatever it contains."""
    from redoma.lib.sanitise import visible

    line = visible(text[: 4 * max_length]).replace("\n", "\\n").replace("\t", "\\t")
    return line if len(line) <= max_length and len(text) <= 4 * max_length else line[: max_length - 1] + "…"


def one_line(text: str) -> str:
    """Return the whole text on one line, harmless for a terminal."""
    from redoma.lib.sanitise import visible

    return " ".join(visible(text).split())


def counted(count: int, noun: str) -> str:
    """Return `1 change`, `2 changes`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def local_time(seconds: float) -> str:
    """Return a Unix time in local notation."""
    from datetime import datetime

    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def is_interactive() -> bool:
    """Return whether a person is there who sees our messages and can answer."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str, *, otherwise: str) -> bool:
    """Ask a person a question whose default is no, and return the answer. Text that was typed before is no answer.

    Raises `InvalidRequest` with the advice `otherwise` if there is nobody to answer.
    """
    import click

    from redoma.lib.errors import InvalidRequest

    drop_typed_input()
    try:
        return click.confirm(question, err=True)
    except click.Abort as aborted:
        if not isinstance(aborted.__context__, EOFError):  # it was Ctrl-C
            raise
        click.echo(err=True)
        raise InvalidRequest(
            "nobody answered the question, and nothing was changed", why="standard input has ended", next=otherwise
        ) from None


def drop_typed_input() -> None:
    """Discard what was typed or pasted before a question was shown: it is not an answer."""
    if sys.stdin is not None and sys.stdin.isatty():
        import termios

        termios.tcflush(sys.stdin, termios.TCIFLUSH)


def note(text: str, label: str = "note", colour: str = "yellow") -> None:
    """Tell the person something besides the output: `redoma: note: …` on standard error."""
    import click

    click.echo(f"{click.style(f'redoma: {label}:', fg=colour)} {text}", err=True)
