"""config: the values in force, whether a file is valid, and which project files are trusted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from redoma.lib.errors import ConfigError

from .emit import confirm, emit, json_option, table, wants_json
from .state import State

if TYPE_CHECKING:
    from redoma.config import Problem
    from redoma.config.places import Source

_INVALID = 1

_file = click.argument("file", required=False, type=click.Path(exists=True, path_type=Path))


@click.group("config")
def config() -> None:
    """Show and check the configuration, and trust project files.

    \b
    Examples:
      redoma config show
      redoma config check redoma.yaml
      redoma config trust
    """


def _project_file(file: Path | None) -> Path:
    from redoma.config import project_file

    found = file or project_file()
    if found is None:
        raise ConfigError("there is no redoma.yaml here", why="none was found upwards", next="name the file")
    return found


@config.command("check")
@_file
@json_option
def check(file: Path | None) -> int:
    """Report everything that is wrong with a FILE (default: the project's). Exit 1 if something is."""
    from redoma.config import check as problems_of
    from redoma.config import printable

    path = _project_file(file)
    problems = problems_of(path)

    def lines(problems: Sequence[Problem]) -> Iterator[str]:
        if not problems:
            yield f"{click.style('ok', fg='green')}: {printable(path)}"
        for problem in problems:
            yield f"{problem.where}: {click.style(problem.message, fg='red')}"
            if problem.hint:
                yield f"    → {problem.hint}"

    emit(problems, lines)
    return _INVALID if problems else 0


@config.command("show")
@json_option
@click.pass_obj
def show(state: State) -> None:
    """Show every value in force and where it came from."""
    from redoma.config import describe, printable

    emit(
        describe(state.config),
        lambda rows: table(
            (key, printable(value) if isinstance(value, str) else repr(value), origin) for key, value, origin in rows
        ),
        shape=lambda rows: [{"key": key, "value": value, "origin": origin} for key, value, origin in rows],
    )


@config.command("trust")
@_file
@click.option("--yes", is_flag=True, help="Trust it without asking.")
@json_option
def trust(file: Path | None, yes: bool) -> None:
    """Let a project file loosen rules and define executors, as long as its content stays exactly this."""
    from redoma.config import loosenings, not_ours
    from redoma.config import trust as record

    path = _project_file(file)
    source, changes = loosenings(path)
    why = not_ours(path)
    none = f"only tighten; it has no effect yet, because {why}" if why else "only tighten: it has effect already"
    ask_for_trust(source, changes, none, yes)
    # A long time may pass before the answer, and a writer in the project could use it: only what was shown counts.
    record(source.path, digest=source.digest)
    emit_trusted(source, {"loosens": changes})


def ask_for_trust(source: Source, changes: list[str], none: str, yes: bool) -> None:
    """Print what a file would do (`none` if it has no `changes`), and ask unless `yes`. A no ends the command, with
    exit status 1.
    """
    from redoma.config import printable

    click.echo(f"{printable(source.path)} (sha256 {source.digest}) would:", err=wants_json())
    for change in changes or [none]:
        click.echo(f"  - {change}", err=wants_json())
    if not yes and not confirm("Trust exactly this content?", otherwise="add --yes to trust it without a question"):
        click.echo("It is not trusted; nothing was changed.", err=True)
        raise click.exceptions.Exit(1)


def emit_trusted(source: Source, more: dict[str, list[str]]) -> None:
    """Print that a file is trusted now; `more` is added to its path and digest in JSON."""
    from redoma.config import printable

    emit(
        {"file": str(source.path), "digest": source.digest, **more},
        lambda _: [f"{click.style('trusted', fg='green')}: {printable(source.path)}"],
    )


@config.command("untrust")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@json_option
def untrust(file: Path | None) -> int:
    """Stop trusting a project file. Exit 1 if it was not trusted."""
    from redoma.config import printable
    from redoma.config import untrust as forget

    path = _project_file(file)
    was_trusted = forget(path)
    emit(
        {"file": str(path), "was_trusted": was_trusted},
        lambda _: [f"{printable(path)}: {'no longer trusted' if was_trusted else 'was not trusted'}"],
    )
    return 0 if was_trusted else 1
