"""Mixed runs on a cluster that is damaged meanwhile: for a test, and with more runs for benchmarks/cluster_faults.py.

The head and three more nodes, each of these in a network namespace of its own and with other limits. The link of one is
cut for some seconds, one is killed, one is drained.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from pace import SLOW
from ray_nodes import NodesApart, wait_until_gone
from redoma import AsyncExecutor, Result
from redoma.audit import AuditLog
from redoma.backends.ray.engine import Surveyed
from redoma.pipeline import cluster
from redoma.pipeline.batch import as_they_end

SETTINGS = [f"cluster: {{capacity: {places}}}\njail: {{minimum: 1}}\n" for places in (4, 6, 8, 10)]
DRAINED, KILLED, CUT = 1, 2, 3
_AT_A_TIME = 48
_LARGE = bytes(range(256)) * 400  # travels by its hash
_COPIES = "open('b', 'wb').write(open('a', 'rb').read())"
_PROGRAMS: list[tuple[dict[str, Any], str]] = [
    ({"code": "print(6 * 7)"}, "ok"),
    ({"code": "import time; time.sleep(0.1); print('late')"}, "ok"),
    ({"code": "exit 3", "language": "bash"}, "error"),
    ({"code": "seq 500", "language": "bash"}, "ok"),
    ({"code": "raise ValueError('boom')"}, "error"),
    ({"code": _COPIES, "files": {"a": _LARGE}, "outputs": ["b"]}, "ok"),
]
_ENDLESS: tuple[dict[str, Any], str] = ({"code": "sleep 60", "language": "bash", "limits": {"time": 1}}, "timeout")


class Report(msgspec.Struct, kw_only=True):
    """What became of the runs."""

    runs: int
    seconds: float
    statuses: dict[str, int]
    unexpected: dict[str, int]
    """Results that are not those of their programs, and how often each came."""
    ids: int
    """How many different results there were."""
    records: dict[str, int]
    intact: bool
    after_cut: int
    """Runs that the node made which had been cut off, when it was back."""
    rates: dict[str, float]
    """Runs a second in each phase, by what was the case."""
    left_running: list[int]
    """Runs that the living nodes still have."""

    @property
    def good(self) -> bool:
        return (
            not self.unexpected
            and self.ids == self.runs == self.records.get("intent") == self.records.get("outcome")
            and self.intact
            and self.after_cut > 0
            and not any(self.left_running)
        )


async def faults(nodes: NodesApart, executor: AsyncExecutor, runs: int, cut: float) -> Report:
    """Make at least so many runs, and as many more as are made until all damage is done."""
    done: Counter[str] = Counter()
    unexpected: Counter[str] = Counter()
    ids: set[str] = set()
    rates: dict[str, float] = {}
    before = await asyncio.to_thread(_recorded, executor)
    damaging = asyncio.create_task(_damage(nodes, done, rates, runs, cut))

    def numbers() -> Iterator[int]:
        number = 0
        while number < runs or not damaging.done():
            yield number
            number += 1

    async def one(number: int) -> Result:
        given, expected = _ENDLESS if number % 50 == 49 else _PROGRAMS[number % len(_PROGRAMS)]
        limits = given.get("limits", {"time": 120 * SLOW})
        result = await executor.run(**{**given, "backend": "ray", "policy": "none", "limits": limits})
        status = result.status.value
        done[status] += 1
        ids.add(result.id)
        if status != expected or (given.get("outputs") and result.files != {"b": _LARGE}):
            unexpected[f"{status}: {result.error}"] += 1
        return result

    began = time.monotonic()
    async for _ in as_they_end(one, numbers(), _AT_A_TIME):
        pass
    after_cut = await damaging
    seconds = time.monotonic() - began
    after, intact = await asyncio.to_thread(_recorded, executor), _log(executor).verify().ok
    return Report(
        runs=done.total(),
        seconds=seconds,
        statuses=dict(done),
        unexpected=dict(unexpected),
        ids=len(ids),
        records=dict(after - before),
        intact=intact,
        after_cut=after_cut,
        rates=rates,
        left_running=await _until_idle(nodes),
    )


def _log(executor: AsyncExecutor) -> AuditLog:
    return AuditLog(executor.config.audit.directory)


def _recorded(executor: AsyncExecutor) -> Counter[str]:
    return Counter(record.kind for record in _log(executor).records())


async def _damage(nodes: NodesApart, done: Counter[str], rates: dict[str, float], runs: int, cut: float) -> int:
    """Damage the cluster step by step. Returns how many runs the node that was cut off made when it was back."""
    since, before = time.monotonic(), 0

    def ends(phase: str) -> None:
        nonlocal since, before
        now, total = time.monotonic(), done.total()
        rates[f"{phase} ({now - since:.0f} s)"] = (total - before) / (now - since)
        since, before = now, total

    async def pass_by(count: int) -> None:
        wanted = done.total() + count
        await _until(lambda: done.total() >= wanted)

    await pass_by(runs // 5)
    ends("all nodes")
    await asyncio.to_thread(nodes.set_link, CUT, up=False)
    await asyncio.sleep(cut)
    ends("a link is cut")
    await asyncio.to_thread(nodes.set_link, CUT, up=True)
    back = await _ended_by(nodes, CUT)
    await pass_by(runs // 5)
    while (made := await _ended_by(nodes, CUT) - back) <= 0:  # noqa: ASYNC110
        await asyncio.sleep(0.5)
    ends("the link is back")
    victim, processes = nodes.machines[KILLED].node, nodes.machines[KILLED].processes()
    assert victim is not None
    nodes.killed.update(processes)
    os.kill(victim.pid, signal.SIGKILL)  # Ray's processes die with it
    await asyncio.to_thread(wait_until_gone, victim, processes)
    await pass_by(runs // 5)
    ends("a node was killed")
    drained = await _node(nodes, DRAINED)
    await asyncio.to_thread(cluster.cluster(nodes.head.config).survey, {drained.id: True})
    await pass_by(runs // 5)
    ends("a node is drained")
    return made


async def _until(fact: Callable[[], object]) -> None:
    deadline = time.monotonic() + 300 * SLOW
    while not fact():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


async def _survey(nodes: NodesApart) -> list[Surveyed]:
    """What every node says of itself."""
    return await asyncio.to_thread(cluster.cluster(nodes.head.config).survey)


async def _node(nodes: NodesApart, number: int) -> Surveyed:
    address = nodes.machines[number].address
    return next(each for each in await _survey(nodes) if each.address == address and each.alive)


async def _ended_by(nodes: NodesApart, number: int) -> int:
    while (about := (await _node(nodes, number)).about) is None:  # noqa: ASYNC110 - the link has just come back
        await asyncio.sleep(0.5)
    return about.ended


async def _until_idle(nodes: NodesApart) -> list[int]:
    """Return how many runs each living node has. It may learn a moment later than we that one has ended."""
    for _ in range(20):
        loads = [each.about.load for each in await _survey(nodes) if each.about is not None]
        if not any(load.running + load.queued for load in loads):
            break
        await asyncio.sleep(0.5)
    return [load.running + load.queued for load in loads]
