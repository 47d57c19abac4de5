"""completion: what a shell offers after TAB: files, and names that only Redoma knows. Nothing if that fails."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click
from click import Context, Parameter
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from .state import State

Completes = Callable[[Context, Parameter, str], list[CompletionItem]]
_MAX_RECORDS = 500
"""Records that are searched for the ids of runs."""


def files(ctx: Context, param: Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete files; the shell does it."""
    return [CompletionItem(incomplete, type="file")]


def _names(find: Callable[[State], Iterable[str | tuple[str, str]]]) -> Completes:
    """Complete the names that `find` returns, each alone or with a help text."""

    @functools.wraps(find)
    def complete(ctx: Context, param: Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            found = [name if isinstance(name, tuple) else (name, "") for name in find(_state(ctx))]
        except Exception:  # an unreadable configuration, or another user's log: there is no place to report it
            return []
        return [CompletionItem(name, help=text or None) for name, text in found if name.startswith(incomplete)]

    return complete


def _state(ctx: Context) -> State:
    """Make the state that the group would make: during completion its function is not called."""
    from .state import State

    top = ctx.find_root()
    return State(top.params.get("config"), {})


@_names
def backends(state: State) -> Iterable[str]:
    return ("auto", "jail", "docker", "monty", "lean", "ray", "native")


@_names
def packs(state: State) -> Iterable[str]:
    from redoma.policy import PACKS

    return sorted(PACKS)


@_names
def entries(state: State) -> Iterable[str]:
    return sorted(state.config.entries)


@_names
def environments(state: State) -> Iterable[str]:
    from redoma.pipeline.packages import store_of

    return [each.name for each in store_of(state.config).all()]


@_names
def runs(state: State) -> Iterable[tuple[str, str]]:
    """Return the newest recorded runs, with their code."""
    from .emit import shown
    from .options import audit_log

    found = (record for record in audit_log(state).tail(_MAX_RECORDS) if record.kind == "intent")
    return list({record.id[:12]: shown(str(record.data.get("code", "")), 40) for record in found}.items())[::-1]


@_names
def kept_changes(state: State) -> Iterable[tuple[str, str]]:
    from redoma.pipeline.projects import changes_in

    from .emit import shown

    kept = changes_in(state.config.state).list()[::-1]
    return [(one.id[:12], shown(f"{one.state}: {one.about.get('command', '')}", 40)) for one in kept]


@_names
def outputs(state: State) -> Iterable[str]:
    from redoma.output.artifacts import Store

    return [one.run[:12] for one in Store(state.config.state / "artifacts").list()[::-1]] if state.config.state else []


def entries_or_files(ctx: Context, param: Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete executors before the command and files in it, which click takes for the omitted executor."""
    return files(ctx, param, incomplete) if ctx.meta.get("redoma.command") else entries(ctx, param, incomplete)


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a SHELL.

    \b
    Example:
      redoma completion bash >> ~/.bashrc
    """
    from click.shell_completion import get_completion_class

    from .app import cli

    found = get_completion_class(shell)
    if found is not None:
        click.echo(found(cli, {}, "redoma", "_REDOMA_COMPLETE").source())
