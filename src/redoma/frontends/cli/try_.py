"""try: a command in an overlay of the current project; its changes are shown, and applied only if you agree."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from redoma.lib.errors import ApprovalError, InvalidRequest, RedomaError, WorkspaceError
from redoma.models import Effect, Result

from .changes import name, report_applied, request_lines, show_diffs, summary, tree
from .emit import drop_typed_input, is_interactive, wants_json
from .options import EndsInCommand, given_command, limits_of_a_run, project_directory, run_options
from .programs import as_found, explain_program
from .result import follow, show
from .state import State

if TYPE_CHECKING:
    from redoma.pipeline.sync import Executor
    from redoma.workspace.kept import Kept

INTERRUPTED, REFUSED = 130, 126
_MARKS = (".git", ".hg", ".svn", "redoma.yaml", "pyproject.toml", "package.json", "Cargo.toml", "go.mod", "Makefile")
"""Entries that mark the top directory of a project. The nearest directory upwards with one of the first three wins."""


@click.command("try", cls=EndsInCommand, options_metavar="[OPTIONS] COMMAND...")
@limits_of_a_run
@click.option("--project", metavar="DIR", help="Let it see and change this.  [default: the current project]")
@click.option(
    "--allow", "named", multiple=True, metavar="PATH", help="Also apply what it did to this protected path or glob."
)
@click.option("--writes", multiple=True, metavar="GLOB", help="Mark what it changes elsewhere.")
@click.option("--keep", is_flag=True, help="Don't ask: keep its changes for `redoma changes`.")
@click.option("--apply-if-ok", is_flag=True, help="Don't ask: apply its changes if it ended well.")
@click.pass_obj
def attempt(
    state: State,
    /,
    project: str | None,
    named: tuple[str, ...],
    writes: tuple[str, ...],
    keep: bool,
    apply_if_ok: bool,
    **given: Any,
) -> int:
    """See what a command would do to the current project, then let it, or not.

    The command runs in the jail, with your project at its own path, and everything that it writes goes into a layer
    of its own. Afterwards you see every file it added, changed or removed, and decide.

    \b
    Examples:
      redoma try make clean
      redoma try sh -c 'sed -i s/colour/color/ src/*.py'
      redoma try --apply-if-ok ruff format .
    """
    from redoma.pipeline.sync import Executor

    command = given_command()
    if not command:
        raise InvalidRequest(
            "there is no command", why="it comes after our options", next="write it like: redoma try make clean"
        )
    if keep and apply_if_ok:
        raise InvalidRequest("--keep was given with --apply-if-ok", why="it is one or the other", next="choose one")
    project = project_directory(project)
    top = Path(project) if project is not None else current_project(Path.cwd())
    with Executor(state.attended) as executor:
        options = {**run_options(given), "workspace": "overlay", "project": top, "writes": writes or None}
        live = executor.stream_command(as_found(command, top), **options)
        result = follow(live)
        effect = result.effect
        if effect is None or not effect.changes:
            status = show(result)
            if not wants_json():
                explain_program(result, command, top)
                _say_no_changes(result)
            return status
        applied, refusal = _apply(executor, result, named) if apply_if_ok and result.ok else (None, None)
        status = show(result)
        if wants_json():
            return REFUSED if refusal else status
        explain_program(result, command, top)
        _present(effect, result.unexpected)
        if applied is not None:
            report_applied(applied, err=True)
        elif refusal is not None:
            click.echo(f"{click.style('not applied:', fg='red')} {refusal}", err=True)
            _say_kept(result)
            return REFUSED
        elif keep or apply_if_ok or not is_interactive():
            _say_kept(result)
        else:
            try:
                _ask(executor, result, effect, named)
            except click.Abort:  # Ctrl-C or Ctrl-D: the answer that loses nothing, and applies nothing
                click.echo(err=True)
                _say_kept(result)
                return INTERRUPTED
        return status


def _apply(executor: Executor, result: Result, named: Iterable[str]) -> tuple[Kept | None, RedomaError | None]:
    """Apply without asking. An error is returned, so that the changes can still be shown."""
    try:
        return executor.apply(result.id, named=named), None
    except (ApprovalError, WorkspaceError) as error:
        return None, error


def current_project(here: Path) -> Path:
    """Return the top of the repository around `here`, else the nearest directory with a build file, else `here`."""
    places = (here, *here.parents)
    for marks in (_MARKS[:3], _MARKS):
        for place in places:
            if any((place / mark).exists() for mark in marks) and place != Path(place.anchor) and place != Path.home():
                return place
    return here


def _present(effect: Effect, unexpected: Iterable[str]) -> None:
    click.echo(err=True)
    for line in tree(effect):
        click.echo(line, err=True)
    _say_requests(effect)
    _say_refused(effect)
    for path in unexpected:
        click.echo(f"{click.style('unexpected', fg='red')}  {name(path)}: it was not to write there", err=True)
    click.echo(f"\n{summary(effect)}", err=True)


def _say_no_changes(result: Result) -> None:
    effect = result.effect
    if effect is not None:
        _say_requests(effect)
        _say_refused(effect)
        click.echo("Nothing of it can be applied." if effect.refused else "It changed nothing.", err=True)
    elif result.status.ending == "ran":
        click.echo("What it changed was lost with it. Your project is as it was.", err=True)


def _say_requests(effect: Effect) -> None:
    for line in request_lines(effect):
        click.echo(line, err=True)


def _say_refused(effect: Effect) -> None:
    for path, why in effect.refused.items():
        click.echo(f"{click.style('refused', fg='yellow')}  {name(path)}: {why}", err=True)


def _ask(executor: Executor, result: Result, effect: Effect, named: Iterable[str]) -> None:
    show_diffs(effect)
    while True:
        drop_typed_input()
        answer = click.prompt(
            "[a]pply, [c]hoose files, [s]how diff, [d]iscard or [k]eep for later?",
            type=_WordChoice(["apply", "choose", "show", "discard", "keep"]),
            default="keep",
            show_choices=False,  # the question lists them
            err=True,
        )
        if answer == "show":
            show_diffs(effect)
            continue
        if answer == "apply":
            report_applied(executor.apply(result.id, named=named, by_hand=True), err=True)
        elif answer == "choose":
            paths = [change.path for change in effect.changes if _is_chosen(change.path)]
            if not paths:
                continue
            applied = executor.apply(result.id, paths=paths, named=named, by_hand=True, exact=True)
            report_applied(applied, err=True)
        elif answer == "discard":
            executor.discard(result.id)
            click.echo("Discarded. Your project is as it was.", err=True)
        else:
            _say_kept(result)
        return


def _is_chosen(path: str) -> bool:
    drop_typed_input()
    return click.confirm(f"  {name(path)}?", err=True)


class _WordChoice(click.Choice[str]):
    """One of the words, or the beginning of it. Each has a first letter of its own."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        typed = "show" if value.lower() == "diff" else value.lower()
        return super().convert(next((word for word in self.choices if word.startswith(typed)), value), param, ctx)


def _say_kept(result: Result) -> None:
    short = result.id[:12]
    click.echo(f"Kept as {short}. Next: redoma changes show {short}, then apply or discard it.", err=True)
