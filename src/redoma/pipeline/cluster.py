"""A cluster, as the configuration has it: the backend for clients, and the actor for nodes."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from .. import __version__
from .. import config as configuration
from ..backends.base import MAX_RUNS
from ..backends.ray.node import Arrival, Node
from ..config import Config
from ..environments import Store, this_python
from ..lib.errors import BackendUnavailable
from .installed import Installed, environments, session_cells

if TYPE_CHECKING:
    from ..backends.ray.backend import RayBackend
    from ..backends.ray.engine import RayCluster


def directory(config: Config) -> Path:
    """Return the directory with this machine's part of a cluster. Raises `BackendUnavailable` if there is no place."""
    if config.cluster.directory is not None:
        return config.cluster.directory
    if config.state is None:
        raise BackendUnavailable(
            "there is no cluster to use",
            why="the configuration names no state directory",
            next="name one, or `cluster.directory`",
        )
    return config.state / "cluster"


def cluster(config: Config) -> RayCluster:
    """Return the cluster that this machine is part of. Raises `BackendUnavailable` if it is in none."""
    from ..backends.ray.engine import RayCluster
    from ..backends.ray.processes import read_invitation, token_file

    place = directory(config)
    return RayCluster(read_invitation(place), str(token_file(place)), lambda: NodeActor)


def backend(config: Config) -> RayBackend:
    """Return the backend for a configuration. It connects when it is first used."""
    from ..backends.ray.backend import RayBackend

    ours = config.cluster
    return RayBackend(
        functools.partial(cluster, config),
        backends=ours.backends,
        require=ours.require,
        queue=ours.queue,
        packed=functools.partial(_packed, config),
        python=this_python(),
    )


def _packed(config: Config, digest: str) -> Callable[[], Iterator[bytes]] | None:
    if config.state is None or not (store := Store(config.state / "environments")).path(digest).is_dir():
        return None
    from ..environments.transfer import packed

    return functools.partial(packed, store, digest)


def _receive(config: Config) -> Callable[[str], Arrival] | None:
    """Return what begins to receive an environment on a node; None if it has no place for them."""
    if config.state is None:
        return None
    from ..environments.transfer import Arrival

    return functools.partial(Arrival, Store(config.state / "environments"))


class NodeActor:
    """What Ray runs on each node, in a process of its own: a `Node` with the configuration of that machine."""

    def __init__(self, node: str) -> None:
        import ray

        from ..backends.ray.processes import read_invitation

        config = configuration.load()
        found = environments(config)
        capacity = config.cluster.capacity or MAX_RUNS
        self._node = Node(
            Installed(config),
            id=node,
            key=bytes.fromhex(read_invitation(directory(config)).key),
            offer=config.cluster.offer,
            capacity=capacity,
            sessions={"jail": session_cells(config, capacity)},
            versions={"redoma": __version__, "ray": ray.__version__},
            environments=lambda: _digests(found),
            receive=_receive(config),
            python=this_python(),
            address=ray.util.get_node_ip_address(),
        )

    async def call(self, data: bytes) -> bytes:
        """Answer a sealed call: see `Node.call`."""
        return await self._node.call(data)


def _digests(place: Path | None) -> frozenset[str]:
    try:
        return frozenset(os.listdir(place)) if place is not None else frozenset()
    except FileNotFoundError:
        return frozenset()
