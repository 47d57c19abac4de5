"""Runs on a cluster: where they go, what becomes of them if a node is lost, and what can be read on the way."""

from __future__ import annotations

import asyncio
import datetime
import functools
import pickle
from collections import Counter
from typing import Any

import msgspec
import pytest
from local_cluster import CELL, KEY, LONG, SHORT, Cells, LocalCluster, LocalNode, run, total, until

from redoma import Answer, AsyncExecutor, Backend, Config, FakeBackend, Isolation, Request, Status
from redoma.backends.base import Outcome, Repr
from redoma.backends.ray import protocol
from redoma.models.reach import HOST


async def test_a_run_is_carried_to_a_node_and_back(cluster: LocalCluster, cluster_executor: AsyncExecutor) -> None:
    value = {"a": (1, 2.5, b"x"), frozenset({3}): datetime.date(2026, 1, 2), "big": 2**100}
    answer = Answer(stdout="out\n", stderr="err\n", value=value, files={"a.bin": bytes(range(256))})
    cluster.add("one", {"jail": Cells(answer)})
    result = await run(cluster_executor, "1", outputs=["**"])
    assert (result.status, result.stdout, result.stderr, result.backend) == (Status.OK, "out\n", "err\n", "ray")
    assert result.value == value
    assert result.files == {"a.bin": bytes(range(256))}
    assert result.isolation == CELL


async def test_work_goes_to_the_node_with_the_least_to_do(
    cluster: LocalCluster, cluster_executor: AsyncExecutor
) -> None:
    cells = [Cells(LONG), Cells(LONG)]
    for number, each in enumerate(cells):
        cluster.add(f"node{number}", {"jail": each}, capacity=3)
    await until(lambda: len(cluster_executor.backends["ray"]._connected().links) == 2)  # type: ignore[attr-defined]
    tasks = [run(cluster_executor, "long") for _ in range(6)]
    await until(lambda: total(*cells) == 6)
    assert [sum(each.begun.values()) - 1 for each in cells] == [3, 3]
    for task in tasks:
        task.cancel()
    assert [type(each) for each in await asyncio.gather(*tasks, return_exceptions=True)] == [asyncio.CancelledError] * 6
    assert [each.cancelled for each in cells] == [["long"] * 3] * 2  # when the cancelled tasks ended, so had the runs


async def test_no_more_runs_are_sent_than_nodes_take(cluster: LocalCluster, config: Config) -> None:
    cells = Cells(LONG, SHORT)
    node = cluster.add("one", {"jail": cells}, capacity=2)
    async with AsyncExecutor(config, backends=[cluster.backend(queue=3)]) as executor:
        tasks = [run(executor, "long") for _ in range(8)]  # 2 run, 2 wait there, 3 wait here, one is too many
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        (refused,) = done
        assert "the cluster is busy" in (refused.result().error or "")
        # They may still be on their way there when the last is refused here.
        await until(
            lambda: cluster.on_node(lambda: _about(node)).load == protocol.Load(capacity=2, running=2, queued=2)
        )
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert (await run(executor, "short")).status is Status.OK


async def _about(node: LocalNode) -> protocol.About:
    return await node.node._about()


async def test_a_node_that_offers_less_than_required_gets_no_work(
    cluster: LocalCluster, cluster_executor: AsyncExecutor
) -> None:
    weak, strong = Cells(isolation=Isolation(layers={"pid": "its own"})), Cells()
    cluster.add("weak", {"jail": weak}, capacity=100)
    cluster.add("strong", {"jail": strong}, capacity=1)
    await until(lambda: len(cluster_executor.backends["ray"]._connected().links) == 2)  # type: ignore[attr-defined]
    results = await asyncio.gather(*(run(cluster_executor, "1", require=["seccomp"]) for _ in range(10)))
    assert {each.status for each in results} == {Status.OK}
    assert (total(weak), total(strong)) == (0, 10)
    refused = await run(cluster_executor, "1", require=["moon-dust"])
    assert refused.status is Status.FAILED
    assert "moon-dust" in (refused.error or "")


async def test_a_backend_without_a_boundary_is_not_offered(
    cluster: LocalCluster, cluster_executor: AsyncExecutor
) -> None:
    cluster.add("one", {"jail": FakeBackend(name="jail", reach=HOST)})
    result = await run(cluster_executor, "1")
    assert result.status is Status.FAILED
    assert "files of the host" in (result.error or "")


async def test_a_drained_node_takes_no_more_and_ends_what_it_has(
    cluster: LocalCluster, cluster_executor: AsyncExecutor
) -> None:
    first, second = Cells(LONG, SHORT), Cells(LONG, SHORT)
    one = cluster.add("one", {"jail": first}, capacity=10)
    long = run(cluster_executor, "long")
    await until(lambda: total(first) == 1)
    cluster.add("two", {"jail": second}, capacity=1)
    cluster.on_node(lambda: one.node._answer(protocol.NO_LINK, protocol.Ask(drain=True)))
    results = await asyncio.gather(*(run(cluster_executor, "short") for _ in range(10)))
    assert {each.status for each in results} == {Status.OK}
    assert (total(first), total(second)) == (1, 10)
    assert not long.done()
    long.cancel()
    await asyncio.wait([long])


async def test_runs_without_effects_are_tried_on_another_node_once(
    cluster: LocalCluster, cluster_executor: AsyncExecutor
) -> None:
    first, second = Cells(LONG), Cells(Answer(when="long", stdout="begun\nended\n"))
    one = cluster.add("one", {"jail": first})
    task = run(cluster_executor, "long")
    await until(lambda: total(first) == 1)
    cluster.add("two", {"jail": second})
    one.kill()
    result = await task
    assert (result.status, result.stdout) == (Status.OK, "begun\nended\n")  # what came twice is there once
    assert total(second) == 1


async def test_a_run_is_not_tried_a_third_time(cluster: LocalCluster, cluster_executor: AsyncExecutor) -> None:
    cells = [Cells(LONG) for _ in range(3)]
    nodes = [cluster.add("node0", {"jail": cells[0]})]
    task = run(cluster_executor, "long")
    for number in range(2):
        await until(lambda number=number: total(cells[number]) == 1)  # type: ignore[misc]
        nodes.append(cluster.add(f"node{number + 1}", {"jail": cells[number + 1]}))
        nodes[number].kill()
    result = await task
    assert result.status is Status.FAILED
    assert "the node that ran it was lost" in (result.error or "")
    assert total(cells[2]) <= 0  # at most not even tried


async def test_output_that_differs_on_the_second_node_is_not_passed_off_as_one(
    cluster: LocalCluster, cluster_executor: AsyncExecutor
) -> None:
    first = Cells(LONG)
    one = cluster.add("one", {"jail": first})
    arrived: list[str] = []
    task = run(cluster_executor, "long", on_output=lambda _, text: arrived.append(text))
    await until(lambda: "".join(arrived) == "begun\n")
    cluster.add("two", {"jail": Cells(Answer(stdout="something else\n"))})
    one.kill()
    result = await task
    assert result.status is Status.FAILED
    assert (result.stdout, "printed something else" in (result.error or "")) == ("begun\n", True)


class Reaching(Cells):
    def capabilities(self) -> Any:
        return msgspec.structs.replace(super().capabilities(), network=True)


async def test_a_run_that_may_have_had_an_effect_is_not_repeated(
    cluster: LocalCluster, cluster_executor: AsyncExecutor
) -> None:
    first, second = Reaching(LONG), Reaching(LONG)
    one = cluster.add("one", {"jail": first})
    task = run(cluster_executor, "long", network=["api.example.org"])
    await until(lambda: total(first) == 1)
    cluster.add("two", {"jail": second})
    one.kill()
    result = await task
    assert result.status is Status.FAILED
    assert "may have reached other hosts" in (result.error or "")
    assert not second.requests or total(second) == 0


async def test_a_lost_answer_repeats_no_run(cluster: LocalCluster, cluster_executor: AsyncExecutor) -> None:
    cells = Cells(SHORT)
    node = cluster.add("one", {"jail": cells})
    assert (await run(cluster_executor, "short")).status is Status.OK
    node.lose_answers = 4
    results = await asyncio.gather(*(run(cluster_executor, "short") for _ in range(5)))
    assert {(each.status, each.stdout) for each in results} == {(Status.OK, "done\n")}
    assert max(cells.begun.values()) == 1
    assert total(cells) == 6


async def test_a_short_cut_of_the_link_loses_nothing(cluster: LocalCluster, cluster_executor: AsyncExecutor) -> None:
    cells = Cells(Answer(when="slow", stdout="done\n", delay=0.3), SHORT)
    node = cluster.add("one", {"jail": cells})
    assert (await run(cluster_executor, "short")).status is Status.OK
    task = run(cluster_executor, "slow")
    await until(lambda: total(cells) == 2)
    node.cut = True
    await asyncio.sleep(0.6)
    node.cut = False
    assert (await task).status is Status.OK
    assert total(cells) == 2


async def test_a_client_that_is_gone_leaves_no_run(cluster: LocalCluster, config: Config) -> None:
    cells = Cells(LONG)
    node = cluster.add("one", {"jail": cells}, lease=0.3)
    executor = AsyncExecutor(config, backends=[cluster.backend()])
    task = run(executor, "long")
    await until(lambda: total(cells) >= 1)
    # On a busy machine the client may have seemed to be gone before.
    begun, ended = total(cells), len(cells.cancelled)
    node.cut = True  # as if the client had been killed
    await until(lambda: len(cells.cancelled) > ended)
    node.cut = False
    await until(lambda: total(cells) > begun)  # it is there again after all: the run is begun once more
    task.cancel()
    await asyncio.wait([task])
    await executor.aclose()
    assert cells.cancelled == ["long"] * total(cells)


async def test_large_files_travel_once(cluster: LocalCluster, cluster_executor: AsyncExecutor) -> None:
    cells = Cells()
    node = cluster.add("one", {"jail": cells})
    large = bytes(range(256)) * 4096
    await run(cluster_executor, "1", files={"a": large})
    first = sum(map(len, node.seen))
    for _ in range(3):
        await run(cluster_executor, "1", files={"b": large, "small": b"x"})
    assert cells.requests[-1].files == {"b": large, "small": b"x"}
    assert sum(map(len, node.seen)) - first < len(large)
    node.node._blobs.clear()  # the node has forgotten it: it is asked for again
    assert (await run(cluster_executor, "1", files={"a": large})).status is Status.OK


SECRET = "s3cret-of-the-customer"


async def test_nothing_of_a_run_can_be_read_on_the_way(cluster: LocalCluster, cluster_executor: AsyncExecutor) -> None:
    node = cluster.add("one", {"jail": Cells(Answer(stdout="the-output\n"))})
    await run(cluster_executor, "the-code", secrets={"TOKEN": SECRET}, files={"f": b"the-file"})
    sent = b"".join(node.seen)
    words = (SECRET.encode(), b"the-code", b"the-file", b"the-output")
    assert [word for word in words if word in sent] == []
    start = protocol.Start(request=Request(code="the-code", secrets={"TOKEN": SECRET}), backends=("jail",))
    plain = protocol._encoder.encode(protocol.Send(number=1, orders=(start,)))
    assert SECRET.encode() in plain  # what would be on the way without the seal


async def test_calls_that_were_not_sealed_for_a_node_are_not_obeyed(cluster: LocalCluster) -> None:
    cells = Cells()
    node = cluster.add("one", {"jail": cells})
    other = cluster.add("two", {"jail": Cells()})
    seal, forger = protocol.Seal(KEY), protocol.Seal(b"x" * 32)

    def call(target: LocalNode, data: bytes) -> bytes:
        answer: bytes = cluster.on_node(lambda: target.node.call(data))
        return answer

    hello = seal.call("one", protocol.NO_LINK, protocol.Hello())
    welcome = seal.open_answer("one", hello, call(node, hello))
    assert isinstance(welcome, protocol.Welcome)
    start = protocol.Start(request=Request(code="1"), backends=("jail",))
    send = seal.call("one", welcome.link, protocol.Send(number=1, orders=(start,)))
    forged = forger.call("one", welcome.link, protocol.Send(number=1, orders=(start,)))
    assert call(node, forged) == b""  # another key
    assert call(other, send) == b""  # meant for another node
    assert call(node, protocol.NO_LINK + send[protocol.LINK_BYTES :]) == b""  # moved to another link
    assert call(node, b"\x80\x04" + pickle.dumps("x")) == b""
    assert total(cells) == 0
    taken = call(node, send)
    assert isinstance(seal.open_answer("one", send, taken), protocol.Taken)
    await until(lambda: total(cells) == 1)  # the control: the genuine one is obeyed
    assert isinstance(seal.open_answer("one", send, call(node, send)), protocol.Taken)  # sent again: not obeyed again
    with pytest.raises(protocol.NotOurs):
        seal.open_answer("one", hello, taken)  # an answer to another call
    bye = seal.call("one", welcome.link, protocol.Bye())
    call(node, bye)
    assert isinstance(seal.open_answer("one", send, call(node, send)), protocol.Unknown)  # the link is gone
    assert total(cells) == 1


async def test_a_run_that_is_cancelled_before_it_began_is_told_too(cluster: LocalCluster) -> None:
    cells = Cells(LONG)
    node = cluster.add("one", {"jail": cells}).node
    start = protocol.Start(request=Request(code="long"), backends=("jail",))
    orders = (start, protocol.Cancel(id=start.request.id))

    async def talk() -> protocol.Answer:
        welcome = await node._answer(protocol.NO_LINK, protocol.Hello())
        assert isinstance(welcome, protocol.Welcome)
        await node._answer(welcome.link, protocol.Send(number=1, orders=orders))
        return await node._answer(welcome.link, protocol.Receive(seen=0))

    news = cluster.on_node(talk)
    assert news.items == (protocol.Failed(id=start.request.id, kind="cancelled"),)
    assert (total(cells), cluster.on_node(node._about).load) == (0, protocol.Load(capacity=4))


async def test_a_cluster_with_another_key_is_told_apart(cluster: LocalCluster, cluster_executor: AsyncExecutor) -> None:
    cluster.add("one", {"jail": Cells()}, key=b"x" * 32)
    result = await run(cluster_executor, "1")
    assert (result.status, "key of this cluster" in (result.error or "")) == (Status.FAILED, True)


@pytest.mark.parametrize("value", [None, Repr("<odd>"), {"a": {1, 2}}, [b"\x80", 1.5, -(2**70)]])
def test_values_come_through_as_they_were(value: object) -> None:
    outcome = Outcome(status=Status.OK, value=value, isolation=CELL)
    message = msgspec.msgpack.decode(msgspec.msgpack.encode(protocol.ended("x", outcome)), type=protocol.Ended)
    found = protocol.outcome_of(message).value
    assert (found, type(found)) == (value, type(value))


def test_names_that_are_not_unicode_are_left_out_and_said_to_be() -> None:
    outcome = Outcome(status=Status.OK, isolation=CELL, files={"a\udcff": b"1", "b": b"2"}, error="odd \udcff")
    message = msgspec.msgpack.decode(msgspec.msgpack.encode(protocol.ended("x", outcome)), type=protocol.Ended)
    assert message.outcome.files == {"b": b"2"}
    assert list(message.outcome.left_out) == ["a?"]


async def test_text_that_is_not_unicode_is_refused_before_it_is_sent(
    cluster: LocalCluster, cluster_executor: AsyncExecutor
) -> None:
    cluster.add("one", {"jail": Cells()})
    result = await run(cluster_executor, "1", env={"A": "\udcff"})
    assert (result.status, "not Unicode" in (result.error or "")) == (Status.FAILED, True)


async def test_a_project_of_this_machine_is_not_offered(
    cluster: LocalCluster, cluster_executor: AsyncExecutor, tmp_path: Any
) -> None:
    cluster.add("one", {"jail": Cells()})
    result = await run(cluster_executor, "1", workspace="read-only", project=str(tmp_path))
    assert (result.status, "workspace" in (result.error or "")) == (Status.FAILED, True)


async def test_mixed_runs_are_each_accounted_for_once(cluster: LocalCluster, cluster_executor: AsyncExecutor) -> None:
    """300 runs, while one node of three is killed, one drained, and answers get lost."""

    def cells() -> Cells:
        return Cells(
            Answer(when=lambda request: request.code.startswith("quick"), stdout="done\n"),
            Answer(when=lambda request: request.code.startswith("slow"), stdout="a\n", delay=0.05),
            Answer(when=lambda request: request.code.startswith("bad"), status=Status.ERROR, exit_code=3),
        )

    made = [cells() for _ in range(3)]
    nodes = [cluster.add(f"node{number}", {"jail": each}) for number, each in enumerate(made)]
    await until(lambda: len(cluster_executor.backends["ray"]._connected().links) == 3)  # type: ignore[attr-defined]
    kinds = ("quick", "slow", "bad")
    tasks = [run(cluster_executor, f"{kinds[number % 3]} {number}") for number in range(300)]
    await until(lambda: total(*made) > 60)
    nodes[0].kill()
    nodes[1].lose_answers = 10
    await until(lambda: total(*made) > 150)
    cluster.on_node(lambda: nodes[2].node._answer(protocol.NO_LINK, protocol.Ask(drain=True)))
    results = await asyncio.gather(*tasks)
    assert Counter(each.status for each in results) == {Status.OK: 200, Status.ERROR: 100}
    assert len({each.id for each in results}) == 300
    begun = sum((each.begun for each in made), Counter[str]())
    assert all(begun[each.id] in (1, 2) for each in results)
    for node in nodes[1:]:
        await until(lambda node=node: cluster.on_node(functools.partial(_about, node)).load.running == 0)  # type: ignore[misc]


_: type[Backend] = Cells


async def test_files_of_one_run_that_are_more_than_a_node_keeps_arrive(
    cluster: LocalCluster, cluster_executor: AsyncExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redoma.backends.ray.node._MAX_BLOBS", 100_000)
    cluster.add("one", {"jail": Cells()})
    files = {"a": b"a" * 70_000, "b": b"b" * 70_000}
    async with asyncio.timeout(20):
        for _ in range(2):
            assert (await run(cluster_executor, "1", files=files)).status is Status.OK
