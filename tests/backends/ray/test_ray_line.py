"""Direct connections between a client and a node: what they carry, and what happens without them."""

from __future__ import annotations

import asyncio
import os
import struct
from typing import Any

import pytest
from local_cluster import KEY, SHORT, Cells, LocalCluster, LocalNode, run, total, until

from redoma import Answer, AsyncExecutor, Request
from redoma.backends.ray import line as lines
from redoma.backends.ray import link as links
from redoma.backends.ray import protocol

HERE = "127.0.0.1"
HELD = Answer(when="held", stdout="done\n", delay=1.0)


def port_of(cluster: LocalCluster, node: LocalNode) -> int:
    port: int = cluster.on_node(node.node._about).port
    return port


def connections(node: LocalNode) -> set[asyncio.Task[None]]:
    return node.node._listener._connections


def cut(cluster: LocalCluster, node: LocalNode) -> None:
    """End all direct connections of a node, without a word to its clients."""

    async def end() -> None:
        for task in list(connections(node)):
            task.cancel()

    cluster.on_node(end)


async def test_runs_are_carried_directly_and_sealed(cluster: LocalCluster, cluster_executor: AsyncExecutor) -> None:
    node = cluster.add("one", {"jail": Cells(SHORT)}, address=HERE, capacity=16)
    results = await asyncio.gather(*(run(cluster_executor, "short") for _ in range(30)))
    assert [result.stdout for result in results] == ["done\n"] * 30
    assert len(node.seen) == 2  # only the call that opened the link went through Ray, and its answer


async def test_a_connection_that_ends_costs_no_run_and_is_made_again(
    cluster: LocalCluster, cluster_executor: AsyncExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "_RECONNECT", 0.2)
    cells = Cells(SHORT, HELD)
    node = cluster.add("one", {"jail": cells}, address=HERE, capacity=16)
    assert (await run(cluster_executor, "short")).ok
    pending = [run(cluster_executor, "held") for _ in range(5)]
    await until(lambda: total(cells) == 6)
    cut(cluster, node)
    assert [(await each).stdout for each in pending] == ["done\n"] * 5
    assert total(cells) == 6  # none ran twice
    assert len(node.seen) > 2  # Ray carried what there was to say meanwhile
    await until(lambda: connections(node))
    through_ray = len(node.seen)
    await until(lambda: _waits(node))
    assert (await run(cluster_executor, "short")).ok
    assert len(node.seen) <= through_ray + 2  # but for a call that was under way


def _waits(node: LocalNode) -> bool:
    return any(link.receiving for link in node.node._links.values())


async def test_without_a_way_to_the_port_ray_carries_everything(
    cluster: LocalCluster, cluster_executor: AsyncExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: Any) -> lines.NodeLine:
        raise OSError("no route to host")

    monkeypatch.setattr(lines.NodeLine, "connect", refused)
    node = cluster.add("one", {"jail": Cells(SHORT)}, address=HERE)
    assert (await run(cluster_executor, "short")).stdout == "done\n"
    assert len(node.seen) > 2


async def test_a_node_whose_address_is_not_its_own_still_works(
    cluster: LocalCluster, cluster_executor: AsyncExecutor
) -> None:
    node = cluster.add("one", {"jail": Cells(SHORT)}, address="192.0.2.1")
    assert (await run(cluster_executor, "short")).ok
    assert port_of(cluster, node) == 0


async def test_a_node_that_is_killed_is_noticed_and_the_run_made_elsewhere(
    cluster: LocalCluster, cluster_executor: AsyncExecutor
) -> None:
    cells = {name: Cells(HELD) for name in ("one", "two")}
    nodes = {name: cluster.add(name, {"jail": cells[name]}, address=HERE) for name in cells}
    pending = run(cluster_executor, "held")
    await until(lambda: total(*cells.values()) == 1)
    first = next(name for name in cells if total(cells[name]) == 1)
    await asyncio.to_thread(nodes[first].kill)
    assert (await pending).stdout == "done\n"
    assert total(*cells.values()) == 2


# --- strangers ---


async def answer_to(port: int, *frames: bytes) -> bytes:
    """What a node sends after its challenge, until it closes the connection. Raises `TimeoutError` if it doesn't."""
    reader, writer = await asyncio.open_connection(HERE, port)
    async with asyncio.timeout(60):
        challenge = await reader.readexactly(protocol.CHALLENGE_BYTES)
        for frame in frames:
            writer.write(frame.replace(b"CHALLENGE-IS-HERE", challenge))
        said_back = await reader.read()
    writer.close()
    return said_back


def framed(data: bytes, size: int | None = None) -> bytes:
    return struct.pack(">II", len(data) if size is None else size, 7) + data


async def test_a_stranger_is_told_nothing(cluster: LocalCluster) -> None:
    cells = Cells(SHORT)
    node = cluster.add("one", {"jail": cells}, address=HERE)
    port = port_of(cluster, node)
    seal, forger = protocol.Seal(KEY), protocol.Seal(b"x" * 32)
    old = seal.call("one", protocol.NO_LINK, protocol.Prove(challenge=os.urandom(protocol.CHALLENGE_BYTES)))
    for first in (
        framed(b"GET / HTTP/1.1\r\n\r\n"),
        framed(os.urandom(200)),
        framed(forger.call("one", protocol.NO_LINK, protocol.Prove(challenge=b""))),
        framed(old),  # a proof of another connection, as one that was read on the way
        framed(seal.call("one", protocol.NO_LINK, protocol.Hello())),  # a genuine call, but no proof
        framed(b"x" * 10, 1 << 31),  # says that much will follow
        framed(b"x" * 2000),
        b"\xff" * 8,
    ):
        start = protocol.Start(request=Request(code="short"), backends=("jail",))
        order = seal.call("one", protocol.NO_LINK, protocol.Send(number=1, orders=(start,)))
        try:
            assert await answer_to(port, first, framed(order)) == b""
        except ConnectionResetError:
            continue
    assert total(cells) == 0
    line = await lines.NodeLine.connect(HERE, port, seal, "one")  # the control: who has the key is heard
    hello = seal.call("one", protocol.NO_LINK, protocol.Hello())
    assert isinstance(seal.open_answer("one", hello, await line.call(hello)), protocol.Welcome)
    line.close()


async def test_one_that_proves_nothing_is_not_waited_for(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "CONNECT", 0.2)
    node = cluster.add("one", {"jail": Cells()}, address=HERE)
    assert await answer_to(port_of(cluster, node)) == b""
    await until(lambda: not connections(node))


async def test_connections_are_bounded(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_CONNECTIONS", 2)
    node = cluster.add("one", {"jail": Cells()}, address=HERE)
    port = port_of(cluster, node)
    seal = protocol.Seal(KEY)
    held = [await lines.NodeLine.connect(HERE, port, seal, "one") for _ in range(2)]
    with pytest.raises(ConnectionError):
        await lines.NodeLine.connect(HERE, port, seal, "one")
    held.pop().close()
    await until(lambda: len(connections(node)) == 1)
    (await lines.NodeLine.connect(HERE, port, seal, "one")).close()
    held.pop().close()


async def test_something_else_at_the_address_gets_nothing_from_a_client(
    cluster: LocalCluster, cluster_executor: AsyncExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever took over the port of a node that is gone, or stands in between: it can't answer the proof."""
    got = bytearray()

    async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"c" * protocol.CHALLENGE_BYTES)
        got.extend(await reader.read(1 << 16))
        writer.write(struct.pack(">II", 40, 0) + b"x" * 40)
        got.extend(await reader.read(1 << 16))
        writer.close()

    server = await asyncio.start_server(impostor, HERE, 0)
    port = server.sockets[0].getsockname()[1]

    async def elsewhere(_: str) -> int:
        return int(port)

    node = cluster.add("one", {"jail": Cells(SHORT)}, address=HERE)
    monkeypatch.setattr(node.node._listener, "open", elsewhere)
    assert (await run(cluster_executor, "short", secrets={"TOKEN": "tell-nobody-of-this"})).stdout == "done\n"
    assert len(node.seen) > 2
    assert b"tell-nobody" not in got
    assert len(got) < 200  # the proof, and nothing else
    server.close()
