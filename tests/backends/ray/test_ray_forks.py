"""Copies of sessions on a node: made there, independent of each other, and ended with the node."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from local_cluster import LocalCluster, LocalNode

from redoma import AsyncExecutor, AsyncSession, BackendError, Config, Unsupported
from redoma.backends.image import MemoryImage
from redoma.backends.jail import JailBackend
from redoma.backends.ray import protocol
from redoma.config import AuditConfig
from redoma.pipeline.installed import session_cells


def node(cluster: LocalCluster, name: str = "one", capacity: int = 4) -> LocalNode:
    """A node with real cells, and others for sessions."""
    sessions = {"jail": session_cells(Config(audit=AuditConfig(directory=Path())), capacity)}
    return cluster.add(name, {"jail": JailBackend(minimum=0)}, sessions=sessions, capacity=capacity)


def images(one: LocalNode) -> int:
    return sum(len(link.images) for link in one.node._links.values())


def runs(one: LocalNode) -> int:
    return sum(len(link.runs) for link in one.node._links.values())


async def values(sessions: list[AsyncSession], code: str) -> list[Any]:
    return [(await session.run(code)).value for session in sessions]


async def test_copies_have_everything_and_go_their_own_ways(
    cluster: LocalCluster, cluster_executor: AsyncExecutor
) -> None:
    nodes = [node(cluster, "one"), node(cluster, "two")]
    session = cluster_executor.session(backend="ray")
    async with session:
        await session.run("import json\nx = [1]\ndef f():\n    return json.dumps(x)")
        await session.files.write("a.txt", "first")
        one, other = await session.fork(2)
        assert (await one.run("x.append(2); open('a.txt', 'a').write('!'); print('said'); f()")).stdout == "said\n"
        (grandchild,) = await one.fork()
        assert await values([session, one, other, grandchild], "f(), open('a.txt').read()") == [
            ("[1]", "first"),
            ("[1, 2]", "first!"),
            ("[1]", "first"),
            ("[1, 2]", "first!"),
        ]
        assert sorted(map(runs, nodes)) == [0, 4]
        assert list(map(images, nodes)) == [0, 0]
        assert (await other.command(["cat", "a.txt"])).stdout == "first"
        for copy in (one, other, grandchild):
            assert copy.isolation.layers == session.isolation.layers
            await copy.aclose()
        assert (await session.run("x")).value == [1]


async def test_copies_end_with_their_node(cluster: LocalCluster, cluster_executor: AsyncExecutor) -> None:
    nodes = [node(cluster, "one"), node(cluster, "two")]
    session = cluster_executor.session(backend="ray")
    await session.run("x = 1")
    copies = await session.fork(2)
    while len(cluster_executor.backends["ray"]._connected().links) < 2:  # type: ignore[attr-defined]  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    next(each for each in nodes if runs(each)).kill()
    results = [await each.run("x") for each in (session, *copies)]
    assert [each.status.value for each in results] == ["failed"] * 3
    assert all("lost" in (each.error or "") or "ended" in (each.error or "") for each in results)
    with pytest.raises(BackendError, match="ended"):
        await session.fork()
    await session.restart()  # a new one, elsewhere
    assert (await session.run("'x' in globals()")).value is False
    for each in (session, *copies):
        await each.aclose()


async def test_a_node_without_a_place_says_so_at_once_and_keeps_no_copy(
    cluster: LocalCluster, cluster_executor: AsyncExecutor
) -> None:
    only = node(cluster, capacity=3)
    node(cluster, "other", capacity=1)
    async with cluster_executor.session(backend="ray") as session:
        await session.run("x = 1")
        busy = only if runs(only) else cluster.members["other"]
        too_many = 3 if busy is only else 1
        with pytest.raises(BackendError, match="places, and all are taken"):
            await session.fork(too_many)
        async with asyncio.timeout(30):  # the node is told to let go of the image, and does so in its own time
            while images(busy):  # noqa: ASYNC110 - the node is not on this loop
                await asyncio.sleep(0.01)
        assert runs(busy) == 1
        cluster.on_node(lambda: busy.node._answer(protocol.NO_LINK, protocol.Ask(drain=True)))
        with pytest.raises(BackendError, match="is draining"):
            await session.fork()
        assert (await session.run("x")).value == 1


async def test_what_a_session_holds_that_can_t_be_copied_is_told(
    cluster: LocalCluster, cluster_executor: AsyncExecutor
) -> None:
    only = node(cluster)
    async with cluster_executor.session(backend="ray") as session:
        await session.run("import os\nr, w = os.pipe()")
        with pytest.raises(BackendError, match="a socket, a pipe or the like"):
            await session.fork()
        await session.run("os.close(r); os.close(w)")
        (copy,) = await session.fork()
        await copy.aclose()
    assert images(only) == 0


async def test_a_node_without_such_cells_still_has_sessions(
    cluster: LocalCluster, cluster_executor: AsyncExecutor
) -> None:
    cluster.add("one", {"jail": JailBackend(minimum=0)})
    async with cluster_executor.session(backend="ray") as session:
        assert (await session.run("x = 6; x * 7")).value == 42
        with pytest.raises(Unsupported, match="no way to copy"):
            await session.fork()


# Keeps the file that the session is written to, hides it from the check for descriptors, and tries to change it.
_STASH = """
import gc, os, socket
stashed, receive = [], socket.recv_fds
def stashing(*args):
    got = receive(*args)
    stashed.extend(os.dup(number) for number in got[1])
    return got
socket.recv_fds = stashing
worker = next(each for each in gc.get_objects() if type(each).__name__ == 'Worker')
checks = type(worker)._save.__globals__['copying']
checks.check = lambda known: []
"""
_CHANGE = """
try:
    changed = os.pwrite(stashed[0], b'CHANGED', 0) > 0
except PermissionError:
    changed = False
changed
"""


@pytest.mark.parametrize("sealed", [True, False], ids=["sealed", "control"])
async def test_a_session_can_t_change_its_image_on_the_node_once_it_has_copies(
    cluster: LocalCluster, cluster_executor: AsyncExecutor, monkeypatch: pytest.MonkeyPatch, sealed: bool
) -> None:
    if not sealed:
        monkeypatch.setattr(MemoryImage, "seal", lambda _: None)
    node(cluster)
    async with cluster_executor.session(backend="ray") as session:
        assert (await session.run(_STASH)).ok
        (copy,) = await session.fork()
        assert (await session.run(_CHANGE)).value is not sealed
        await copy.aclose()
