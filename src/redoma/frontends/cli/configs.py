"""config: what is in force, whether a file is right, and which project files are trusted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from redoma.lib.errors import ConfigError

from .common import CommandGroup, State, columns, forget_what_was_typed, json_option, print_json

if TYPE_CHECKING:
    from redoma.config.places import Source

_INVALID = 1

_file = click.argument("file", required=False, type=click.Path(path_type=Path))


@click.group("config", cls=CommandGroup)
def config() -> None:
    """The configuration in force, and the files it comes from.

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
def check(file: Path | None, as_json: bool) -> int:
    """Report everything that is wrong with a FILE (default: the project's). Exit 1 if something is."""
    from redoma.config import check as problems_of
    from redoma.config import printable

    path = _project_file(file)
    problems = problems_of(path)
    if as_json:
        print_json([{**msgspec.structs.asdict(problem), "file": str(problem.file)} for problem in problems])
    elif not problems:
        click.echo(f"{click.style('ok', fg='green')}: {printable(path)}")
    for problem in [] if as_json else problems:
        click.echo(f"{problem.where}: {click.style(problem.message, fg='red')}")
        if problem.hint:
            click.echo(f"    → {problem.hint}")
    return _INVALID if problems else 0


@config.command("show")
@json_option
@click.pass_obj
def show(state: State, as_json: bool) -> None:
    """Every value in force and where it came from."""
    from redoma.config import describe, printable

    rows = describe(state.config)
    if as_json:
        print_json([{"key": key, "value": value, "origin": origin} for key, value, origin in rows])
    else:
        columns(
            (key, printable(value) if isinstance(value, str) else repr(value), origin) for key, value, origin in rows
        )


@config.command("trust")
@_file
@click.option("--yes", is_flag=True, help="Don't ask.")
@json_option
def trust(file: Path | None, yes: bool, as_json: bool) -> None:
    """Let a project file loosen rules and define executors, as long as its content stays exactly this."""
    from redoma.config import loosenings, not_ours
    from redoma.config import trust as record

    path = _project_file(file)
    source, changes = loosenings(path)
    why = not_ours(path)
    none = f"only tighten; it has no effect yet, because {why}" if why else "only tighten: it has effect already"
    shown = show_before_trust(source, changes, none, yes, as_json)
    # The question may have waited for long, and whoever writes to the project knows when: only what was shown counts.
    record(source.path, digest=source.digest)
    if as_json:
        print_json({"file": str(source.path), "digest": source.digest, "loosens": changes})
    else:
        click.echo(f"{click.style('trusted', fg='green')}: {shown}")


def show_before_trust(source: Source, changes: list[str], none: str, yes: bool, as_json: bool) -> str:
    """Say what a file would do, and ask. The file's name, as it can be shown."""
    from redoma.config import printable

    shown = printable(source.path)
    click.echo(f"{shown} (sha256 {source.digest}) would:", err=as_json)
    for change in changes or [none]:
        click.echo(f"  - {change}", err=as_json)
    if not yes:
        forget_what_was_typed()
        click.confirm("Trust exactly this content?", abort=True, err=True)
    return shown


@config.command("untrust")
@_file
@json_option
def untrust(file: Path | None, as_json: bool) -> int:
    """Take the trust in a project file back. Exit 1 if it was not trusted."""
    from redoma.config import printable
    from redoma.config import untrust as forget

    path = _project_file(file)
    was_trusted = forget(path)
    if as_json:
        print_json({"file": str(path), "was_trusted": was_trusted})
    else:
        click.echo(f"{printable(path)}: {'no longer trusted' if was_trusted else 'was not trusted'}")
    return 0 if was_trusted else 1
