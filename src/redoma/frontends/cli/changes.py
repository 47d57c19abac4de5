"""changes: the changes of runs in overlays that need a decision; and how an effect is printed."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from redoma.models import Change, Effect, Version

from .completion import files, kept_changes
from .emit import (
    confirm,
    counted,
    emit,
    emit_list,
    is_interactive,
    json_option,
    local_time,
    shown,
    wants_json,
)
from .state import State

if TYPE_CHECKING:
    from redoma.workspace.kept import Changes, Kept

_LOOKS = {
    "added": ("+", "green"),
    "modified": ("~", "yellow"),
    "deleted": ("-", "red"),
    "renamed": (">", "cyan"),
    "mode": ("*", "blue"),
    "symlink": ("@", "cyan"),
}


def name(path: str) -> str:
    """Return a path for a terminal, whatever bytes it has."""
    from redoma.lib.sanitise import visible
    from redoma.workspace.diffs import shown

    return visible(shown(path))


def tree(effect: Effect) -> Iterator[str]:
    """Yield the changes as a tree: one per line, below their directories."""
    above: list[str] = []
    for change in sorted(effect.changes, key=lambda change: change.path.split("/")):
        *directories, last = change.path.split("/")
        common = 0
        while common < min(len(above), len(directories)) and above[common] == directories[common]:
            common += 1
        for depth in range(common, len(directories)):
            yield f"{'  ' * depth}  {name(directories[depth])}/"
        above = directories
        is_directory = (change.after or change.before or Version(kind="file")).kind == "directory"
        if is_directory:
            above = [*directories, last]
        yield _line(change, len(directories), name(last) + ("/" if is_directory else ""))


def _line(change: Change, depth: int, last: str) -> str:
    mark, colour = _LOOKS[change.kind]
    mark = click.style(mark, fg=colour)
    told = _about(change)
    note = click.style(f"  protected: {change.protected}", fg="magenta") if change.protected else ""
    return f"{'  ' * depth}{mark} {last}{f'  ({told})' if told else ''}{note}"


def _about(change: Change) -> str:
    before, after = change.before, change.after
    if change.old_path:
        return f"was {name(change.old_path)}"
    if after is not None and after.kind == "symlink":
        return f"link to {name(after.target)}"
    if before is not None and after is not None and before.mode != after.mode and before.kind == after.kind:
        return f"mode {before.mode:04o} to {after.mode:04o}"
    if before is not None and after is not None and before.kind != after.kind:
        return f"was a {before.kind}"
    sizes = [version.size for version in (before, after) if version is not None and version.kind == "file"]
    return " to ".join(f"{size:,} bytes" for size in sizes)


def request_lines(effect: Effect) -> Iterator[str]:
    """Yield the requests that the run made to hosts, one per line; they have already happened."""
    for one in effect.network:
        colour = "green" if one.decision == "allowed" else "red"
        size = f"  ({one.sent:,} bytes sent, {one.received:,} received)" if one.decision == "allowed" else ""
        yield f"{click.style('network', fg=colour)}  {name(one.words)}{size}"


def summary(effect: Effect) -> str:
    counts = Counter(change.kind for change in effect.changes)
    told = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    protected = sum(1 for change in effect.changes if change.protected)
    return told + (f"; {protected} protected, not applied unless named with --allow" if protected else "")


def diff_lines(effect: Effect) -> Iterator[str]:
    from redoma.lib.sanitise import visible

    for change in effect.changes:
        if not change.diff:
            yield _line(change, 0, name(change.path)) + "\n"
        # Nothing is left out, and only a newline ends a line: what is shown is what will be applied.
        for line in change.diff.removesuffix("\n").split("\n") if change.diff else ():
            colour = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])
            yield (click.style(visible(line), fg=colour) if colour else visible(line)) + "\n"


def show_diffs(effect: Effect) -> None:
    """Print all diffs; through the user's pager if they don't fit on the terminal."""
    lines = list(diff_lines(effect))
    if len(lines) > shutil.get_terminal_size().lines - 4:
        click.echo_via_pager(lines)
    else:
        click.echo("".join(lines))


@click.group("changes")
def changes() -> None:
    """Apply, discard or undo what runs in overlays did to a project."""


@changes.command("list")
@json_option
@click.pass_obj
def list_changes(state: State) -> int:
    """List what is kept, newest first."""
    emit_list(_kept(state).list()[::-1], _row, empty="Nothing is kept. Next: redoma try COMMAND")
    return 0


@changes.command("show")
@click.argument("id", shell_complete=kept_changes)
@json_option
@click.pass_obj
def show_changes(state: State, id: str) -> int:  # noqa: A002 - what a person types
    """Show the tree of changes, and their diffs."""
    emit(_kept(state).get(id), _show)
    return 0


def _show(kept: Kept) -> None:
    click.echo(f"{kept.id}  {kept.state}  {local_time(kept.since)}  {name(kept.effect.project)}")
    if command := kept.about.get("command"):
        click.echo(f"$ {shown(command, 1000)}")
    for line in tree(kept.effect):
        click.echo(line)
    for line in request_lines(kept.effect):
        click.echo(line)
    for path, why in kept.effect.refused.items():
        click.echo(f"{click.style('refused', fg='yellow')}  {name(path)}: {why}")
    click.echo()
    show_diffs(kept.effect)


@changes.command("apply")
@click.argument("id", shell_complete=kept_changes)
@click.argument("paths", nargs=-1, shell_complete=files)
@click.option("--allow", "named", multiple=True, metavar="PATH", help="Include this protected path.")
@json_option
@click.pass_obj
def apply_changes(state: State, id: str, paths: tuple[str, ...], named: tuple[str, ...]) -> int:  # noqa: A002
    """Write exactly these changes to the project, all or nothing. PATHS: only those."""
    by_hand = is_interactive() and not wants_json()
    if by_hand:  # a person must see what they approve
        _show(_kept(state).get(id))
        if not confirm("Apply these changes?", otherwise="answer y or n"):
            click.echo("Nothing was applied.", err=True)
            return 1
    with state.executor() as executor:
        applied = executor.apply(id, paths=list(paths) or None, named=named, by_hand=by_hand)
    emit(applied, report_applied)
    return 0


def report_applied(applied: Kept, *, err: bool = False) -> None:
    """Print how many changes were applied, which were not, and how to undo it."""
    for path, why in applied.left.items():
        click.echo(f"{click.style('not applied', fg='yellow')}  {name(path)}: {why}", err=True)
    undo = f" To take it back: redoma changes undo {applied.id[:12]}" if applied.applied else ""
    click.echo(f"Applied {counted(len(applied.applied), 'change')}.{undo}", err=err)


@changes.command("discard")
@click.argument("id", shell_complete=kept_changes)
@click.pass_obj
def discard_changes(state: State, id: str) -> None:  # noqa: A002 - what a person types
    """Drop changes. The project was never touched."""
    with state.executor() as executor:
        executor.discard(id)
    click.echo("Discarded.")


@changes.command("undo")
@click.argument("id", shell_complete=kept_changes)
@click.pass_obj
def undo_changes(state: State, id: str) -> None:  # noqa: A002 - what a person types
    """Put exactly the paths that were applied back as they were; refused if they have changed since."""
    with state.executor() as executor:
        executor.undo(id)
    click.echo("Undone. The project is as it was before.")


def _kept(state: State) -> Changes:
    from redoma.pipeline.projects import changes_in

    return changes_in(state.config.state)


def _row(kept: Kept) -> tuple[str, ...]:
    command = shown(kept.about.get("command", ""), 40)
    return kept.id[:12], kept.state, local_time(kept.since), command, name(kept.effect.project), summary(kept.effect)
