"""env: packages for runs, by name."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from redoma.lib.errors import InvalidRequest

from .completion import environments, files
from .emit import emit, emit_list, json_option, note, show_progress
from .state import State

if TYPE_CHECKING:
    from redoma.environments import Environment, Store
    from redoma.pipeline.sync import Executor

_HOSTS = click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="HOST",
    help="Let the install reach this too, where the index has its files on another host.",
)


@click.group("env")
def env() -> None:
    """Make and manage environments: packages that runs find with --environment NAME."""


@env.command("create")
@click.argument("name")
@click.argument("packages", nargs=-1)
@click.option(
    "-r",
    "--requirements",
    "sources",
    multiple=True,
    type=click.Path(path_type=Path),
    shell_complete=files,
    help="Take the packages of a requirements file, or the dependencies of a pyproject.toml.",
)
@click.option(
    "--python",
    metavar="PATH",
    help="Run its code on this interpreter, a path or a program such as python3.12.  [default: that of Redoma]",
)
@click.option(
    "--preload",
    multiple=True,
    metavar="MODULE",
    help="Import this ahead of time, outside of cells: only for packages that you trust as you trust Redoma.",
)
@_HOSTS
@json_option
@click.pass_obj
def create(
    state: State,
    /,
    name: str,
    packages: tuple[str, ...],
    sources: tuple[Path, ...],
    python: str | None,
    preload: tuple[str, ...],
    hosts: tuple[str, ...],
) -> int:
    """Install PACKAGES, in a cell that reaches the package index alone, and call the result NAME.

    The index is that of pip's own configuration. A PACKAGE is a name or a requirement such as 'pandas>=2'; a file
    (requirements.txt, pyproject.toml) is read for what it names.

    \b
    Examples:
      redoma env create data numpy pandas matplotlib
      redoma env create app -r requirements.txt
      redoma env create new numpy --python python3.13
      redoma run --environment data 'import pandas; pandas.__version__'
    """
    from redoma.environments.requirements import from_file, requirements

    given = [*(Path(word) for word in packages if _is_file(word)), *sources]
    named = [word for word in packages if not _is_file(word)]
    wanted = requirements([*named, *(line for path in given for line in from_file(path))])
    if not wanted:
        raise InvalidRequest(
            "no packages are named", why="an environment is made of some", next=f"redoma env create {name} pandas"
        )
    with _executor(state) as executor:
        made = executor.create_environment(name, wanted, hosts=hosts, preload=preload, python=python)
    _show_made(made)
    return 0


@env.command("update")
@click.argument("name", shell_complete=environments)
@_HOSTS
@json_option
@click.pass_obj
def update(state: State, /, name: str, hosts: tuple[str, ...]) -> int:
    """Install the packages of NAME again, in the newest versions that fit. Runs that have it keep what they have."""
    found = _store(state).get(name) or _store(state).find(name)
    with _executor(state) as executor:
        made = executor.update_environment(name, hosts=hosts)
    _show_made(made, before=found)
    return 0


@env.command("list")
@json_option
@click.pass_obj
def list_(state: State, /) -> int:
    """List the environments."""
    emit_list(
        _store(state).all(),
        lambda each: (
            each.name,
            f"{len(each.packages)} packages",
            _size(each.size),
            each.created.strftime("%Y-%m-%d"),
            ", ".join(each.requirements)[:80] + ("" if each.fits else f"  (for {each.python}: update it)"),
        ),
        empty="There are no environments; `redoma env create data pandas` makes one.",
        shape=_shape,
    )
    return 0


@env.command("show")
@click.argument("name", shell_complete=environments)
@json_option
@click.pass_obj
def show(state: State, /, name: str) -> int:
    """Show what is in an environment: packages, versions, and the hashes of the files that they came from."""
    emit(_store(state).find(name), _lines, shape=_shape)
    return 0


@env.command("remove")
@click.argument("names", nargs=-1, required=True, shell_complete=environments)
@click.pass_obj
def remove(state: State, /, names: tuple[str, ...]) -> int:
    """Remove environments. Runs that have one keep its files until they end."""
    for name in names:
        if not _store(state).remove(name):
            note(f"{name}: runs still use its files; they are removed with the next change after those have ended")
    return 0


def _store(state: State) -> Store:
    from redoma.pipeline.packages import store_of

    return store_of(state.config)


def _is_file(word: str) -> bool:
    return word.endswith((".txt", ".toml", ".in")) and ("/" in word or Path(word).exists())


@contextlib.contextmanager
def _executor(state: State) -> Iterator[Executor]:
    from redoma.pipeline.sync import Executor

    with Executor(state.config) as executor:
        executor.core.on_progress = show_progress if sys.stderr.isatty() else None
        yield executor


def _show_made(made: Environment, before: Environment | None = None) -> None:
    def render(made: Environment) -> list[str]:
        old = {package.name: package.version for package in before.packages} if before else {}
        lines = [
            f"{package.name} {package.version}"
            + (f"  (was {old[package.name]})" if old.get(package.name, package.version) != package.version else "")
            for package in made.packages
        ]
        return [*lines, f"{made.name}: {made.files} files, {_size(made.size)}, sha256 {made.digest[:16]}…"]

    emit(made, render, shape=_shape)


def _size(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


def _lines(found: Environment) -> list[str]:
    return [
        f"name:      {found.name}",
        f"wanted:    {', '.join(found.requirements)}",
        f"python:    {found.python}" + (f", {found.interpreter.path}" if found.interpreter is not None else ""),
        f"from:      {', '.join(found.hosts)}",
        f"created:   {found.created.isoformat()}",
        f"files:     {found.files}, {_size(found.size)}",
        f"sha256:    {found.digest}",
        *([f"preloads:  {', '.join(found.preload)}"] if found.preload else []),
        "packages:",
        *(f"  {package.name} {package.version}  {package.sha256}".rstrip() for package in found.packages),
    ]


def _shape(found: Environment) -> dict[str, Any]:
    import msgspec

    shape: dict[str, Any] = msgspec.to_builtins(found)
    return {**shape, "fits": found.fits}
