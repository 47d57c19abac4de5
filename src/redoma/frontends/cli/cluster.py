"""cluster: makes this machine a node of a Ray cluster, and shows what its nodes offer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from redoma.lib.errors import InvalidRequest, UnknownId

from .completion import files
from .emit import emit, json_option, note, shown, table
from .state import State

if TYPE_CHECKING:
    from redoma.backends.ray.engine import Surveyed
    from redoma.backends.ray.processes import NodeProcess


@click.group("cluster")
def cluster() -> None:
    """Run things on several machines, with Ray.

    \b
    Examples:
      redoma cluster start                     a new cluster, with this machine as its head
      redoma cluster join invitation.json      on another machine, with the head's file
      redoma run --backend ray 'print(6 * 7)'  on the node with the least to do
      redoma cluster status
      redoma cluster drain 3f2a                no new runs there; those that run may end
      redoma cluster stop
    """


def _directory(state: State) -> Path:
    from redoma.pipeline.cluster import directory

    return directory(state.config)


_host = click.option("--host", default="", metavar="ADDRESS", help="Use this address of the machine for the cluster.")


@cluster.command("start")
@_host
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="Listen on this port.  [default: a free one]")
@click.option("--dashboard", is_flag=True, help="Start Ray's dashboard and its job API, too: see docs/cluster.md.")
@json_option
@click.pass_obj
def start(state: State, host: str, port: int, dashboard: bool) -> None:
    """Start a cluster with this machine as its head and first node, and write the invitation for others."""
    from redoma.backends.ray.processes import start_head

    place = _directory(state)
    node = start_head(place, host=host, port=port, dashboard=dashboard)
    invitation = place / "invitation.json"

    def render(node: NodeProcess) -> list[str]:
        return [
            f"The cluster is at {node.address}.",
            f"To join it, copy {invitation} to another machine, by a safe way: who has it can run anything on all "
            "nodes.",
            "There: redoma cluster join invitation.json",
        ]

    emit(node, render, shape=lambda node: {**msgspec.to_builtins(node), "invitation": str(invitation)})


@cluster.command("join")
@click.argument("invitation", type=click.Path(exists=True, dir_okay=False, path_type=Path), shell_complete=files)
@_host
@json_option
@click.pass_obj
def join(state: State, invitation: Path, host: str) -> None:
    """Make this machine a node of a cluster. INVITATION is the file that `start` wrote on the head."""
    from redoma.backends.ray import processes

    node = processes.join(_directory(state), processes.read_invitation(invitation), host=host)
    emit(node, lambda node: [f"This machine is a node of the cluster at {node.address}."])


@cluster.command("status")
@json_option
@click.pass_obj
def status(state: State) -> int:
    """Show the nodes, what they do, and what each really offers: every backend there was tried.

    Exit status 1 if no node can take work.
    """
    nodes = _survey(state)
    emit(nodes, lambda nodes: _print(nodes, state))
    return 0 if any(_can_work(node) for node in nodes) else 1


@cluster.command("drain")
@click.argument("node")
@click.option("--undo", is_flag=True, help="Let it take work again.")
@json_option
@click.pass_obj
def drain(state: State, node: str, undo: bool) -> None:
    """Let a node take no more work; what runs there may end. NODE is its id, or the beginning of it."""
    alive = [each for each in _survey(state) if each.alive and each.id.startswith(node)]
    if len(alive) != 1:
        raise UnknownId(
            f"{len(alive)} nodes are called {node!r}", why="an id names one", next="see `redoma cluster status`"
        )
    (found,) = (each for each in _survey(state, drain={alive[0].id: not undo}) if each.id == alive[0].id)
    if found.about is None:
        raise InvalidRequest(f"node {found.id[:8]} didn't answer", why=found.why, next="see `redoma cluster status`")
    left = found.about.load.running + found.about.load.queued
    said = "takes work again" if undo else f"takes no more work; {left} runs are left there"
    emit(found, lambda found: [f"Node {found.id[:8]} {said}."])


@cluster.command("stop")
@json_option
@click.pass_obj
def stop(state: State) -> None:
    """End this machine's node, with everything that runs there. If it is the head, the cluster ends with it."""
    from redoma.backends.ray import processes

    node = processes.stop(_directory(state))
    if node is None:
        note("This machine is in no cluster.")
        return
    emit(node, lambda node: [f"Ended this machine's node of the cluster at {node.address}."])


def _survey(state: State, drain: dict[str, bool] | None = None) -> list[Surveyed]:
    from redoma.pipeline.cluster import cluster

    return cluster(state.config).survey(drain)


def _can_work(node: Surveyed) -> bool:
    about = node.about
    return about is not None and not about.load.draining and any(not each.why_not for each in about.backends)


def _print(nodes: list[Surveyed], state: State) -> None:
    rows: list[tuple[str, ...]] = []
    for node in sorted(nodes, key=lambda node: (not node.alive, node.id)):
        about = node.about
        if about is None:
            what = click.style("gone" if not node.alive else "no answer", fg="red")
            rows.append((node.id[:8], node.address, what, shown(node.why, 200)))
            continue
        load = about.load
        what = click.style("draining", fg="yellow") if load.draining else click.style("ready", fg="green")
        pool = (
            f"{load.running} of {load.capacity} running, {about.armed} armed, {load.queued} queued, "
            f"{about.rate:.1f}/s, {about.ended} done"
        )
        rows.append((node.id[:8], node.address, what if _can_work(node) or load.draining else _nothing(), pool))
        versions = ", ".join(f"{name} {version}" for name, version in sorted(about.versions.items()))
        rows.append(("", "", "", shown(versions, 200)))
        required = state.config.cluster.require
        rows.extend(("", "", "", f"{each.name}: {_offers(each, required)}") for each in about.backends)
    if rows:
        table(rows)
    else:
        note("The cluster has no nodes.")


def _nothing() -> str:
    return click.style("offers nothing", fg="red")


def _offers(each: Any, required: tuple[str, ...]) -> str:
    """Describe what was found when something was run on a backend of a node."""
    if each.why_not:
        return click.style(f"doesn't work: {shown(each.why_not, 300)}", fg="red")
    missing = f"; missing: {', '.join(each.isolation.missing)}" if each.isolation.missing else ""
    lacking = each.isolation.lacking(required)
    less = click.style(f"; gets no work from here: no {', '.join(lacking)}", fg="yellow") if lacking else ""
    return f"{', '.join(sorted(each.isolation.layers))}{missing}{less}"
