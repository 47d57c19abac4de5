"""checkpoints: projects in which a run on the host was interrupted, and what to do with them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from redoma.lib.errors import InvalidRequest

from .changes import name
from .emit import emit_list, json_option, local_time
from .state import State

if TYPE_CHECKING:
    from redoma.workspace.checkpoint import Checkpoint


@click.group("checkpoints")
def checkpoints() -> None:
    """Settle projects in which a run on the host was cut short.

    A run with a checkpoint that fails is rolled back at once. If Redoma itself was killed meanwhile, the checkpoint
    waits until you say whether the project goes back or stays as it is.
    """


@checkpoints.command("list")
@json_option
@click.pass_obj
def list_checkpoints(state: State) -> int:
    """List the checkpoints that wait. An interrupted rollback is finished first."""
    from redoma.workspace.checkpoint import recover

    emit_list(
        recover(_place(state)),
        lambda one: (one.state, local_time(one.taken) if one.taken else "-", name(one.project), one.why),
        empty="No checkpoint waits.",
    )
    return 0


@checkpoints.command("restore")
@click.argument("project", default=".")
@click.pass_obj
def restore(state: State, project: str) -> int:
    """Put PROJECT back as it was before the run."""
    kept = _load(state, project)
    try:
        back = kept.restore()
        for path, why in {**back.left, **back.failed}.items():
            click.echo(f"{click.style('not put back', fg='red')}  {name(path)}: {why}", err=True)
        if not back.failed:
            kept.clear()
    finally:
        kept.close()
    click.echo(f"Put back {len(back.paths)} paths.")
    return 1 if back.failed else 0


@checkpoints.command("drop")
@click.argument("project", default=".")
@click.pass_obj
def drop(state: State, project: str) -> int:
    """Leave PROJECT as it is now, and remove the checkpoint."""
    kept = _load(state, project)
    try:
        kept.clear()
    finally:
        kept.close()
    click.echo("Dropped. The project stays as it is.")
    return 0


def _place(state: State) -> Path:
    from redoma.pipeline.projects import changes_in

    return changes_in(state.config.state).directory.parent / "checkpoints"


def _load(state: State, project: str) -> Checkpoint:
    from redoma.workspace.checkpoint import Checkpoint

    top = str(Path(project).resolve())
    kept = Checkpoint.load(_place(state), top)
    if kept is None:
        why = "no run was cut short there, or it was settled"
        raise InvalidRequest(f"there is no checkpoint of {top}", why=why, next="see `redoma checkpoints list`")
    return kept
