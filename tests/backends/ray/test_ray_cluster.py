"""Three real Ray nodes on this machine: runs, a node that is killed, one that is drained, and what is left."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import ray

from pace import SLOW
from ray_nodes import Nodes, left_of
from redoma import AsyncExecutor, Config, Status
from redoma.audit import AuditLog
from redoma.backends.ray.engine import Surveyed
from redoma.pipeline import cluster
from redoma.pipeline.installed import Installed

SETTINGS = [
    "cluster: {capacity: 4}\n",
    "cluster: {capacity: 2}\n",
    "cluster: {capacity: 4}\njail: {minimum: 1}\n",
]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    made = Nodes(SETTINGS)
    yield made
    made.close()


@pytest.fixture(scope="module")
def visitors(nodes: Nodes) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Programs that try to use the cluster, with the token and with another one. Ray tries for 20 s to be admitted."""
    address = nodes.head.node.address  # type: ignore[union-attr]
    look = f"import ray; ray.init(address={address!r}); print(len(ray.nodes()))"
    (nodes.place / "wrong").write_text("0" * 64)
    tokens = {"right": nodes.head.state / "cluster" / "token", "wrong": nodes.place / "wrong"}
    started = {
        name: subprocess.Popen(
            [sys.executable, "-c", look],
            env={"PATH": os.environ["PATH"], "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name, token in tokens.items()
    }
    yield started
    for process in started.values():
        process.kill()
        process.communicate()


async def until(fact: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120 * SLOW
    while not fact():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


def survey(nodes: Nodes) -> list[Surveyed]:
    """What every node says of itself."""
    return cluster.cluster(nodes.head.config).survey()


def connected(config: Config) -> tuple[AsyncExecutor, Any]:
    installed = Installed(config)
    return AsyncExecutor(config, backends=installed), installed["ray"]


async def test_status_shows_what_each_node_really_offers(nodes: Nodes, visitors: object) -> None:
    shown = json.loads(nodes.head.redoma("cluster", "status", "--json"))
    assert len(shown) == 3
    for node in shown:
        assert node["alive"]
        about = node["about"]
        assert {"redoma", "ray", "python", "kernel"} <= set(about["versions"])
        (jail, *_) = about["backends"]
        assert {"pid", "net", "seccomp"} <= set(jail["isolation"]["layers"])
    assert sorted(node["about"]["load"]["capacity"] for node in shown) == [2, 4, 4]


async def test_answers_of_a_node_are_not_pickled(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray unpickles nothing that comes from our actors: neither outcomes nor what their calls raise."""
    executor, _ = connected(nodes.head.config)
    async with executor:
        assert (await executor.run("1", backend="ray")).ok  # connected, and the actors are known
        context = ray._private.worker.global_worker.get_serialization_context()
        seen: list[Any] = []
        true = type(context)._deserialize_pickle5_data

        def watched(*given: Any) -> Any:
            seen.append(given)
            return true(*given)

        monkeypatch.setattr(type(context), "_deserialize_pickle5_data", watched)
        result = await executor.run("import os\nprint('x')\n{'a': os.getpid}", backend="ray")
        assert result.stdout == "x\n"
        assert seen == []
        ray.get(ray.put({1, 2}))
        assert seen  # the control: other values of Ray are
        monkeypatch.undo()


async def test_ray_refuses_whoever_has_no_token(visitors: dict[str, subprocess.Popen[str]]) -> None:
    assert visitors["right"].communicate(timeout=300 * SLOW)[0] == "3\n"  # the control
    _, said = visitors["wrong"].communicate(timeout=300 * SLOW)
    assert visitors["wrong"].returncode != 0
    assert "InvalidAuthToken" in said


async def test_sessions_stay_on_their_node(nodes: Nodes) -> None:
    executor, _ = connected(nodes.head.config)
    async with executor, executor.session(backend="ray") as session:
        assert (await session.run("x = 41")).ok
        assert (await session.run("x + 1")).value == 42
        assert "pid" in session.isolation.layers


async def test_mixed_runs_are_each_accounted_for_once(nodes: Nodes) -> None:
    """One node of three is killed in the middle, another one drained."""
    executor, backend = connected(nodes.head.config)
    async with executor:
        assert (await executor.run("1", backend="ray")).ok
        await until(lambda: len(backend._connected().links) == 3)
        programs = [
            ("print(6 * 7)", "python", Status.OK),
            ("import time; time.sleep(0.2); print('late')", "python", Status.OK),
            ("exit 3", "bash", Status.ERROR),
            ("seq 2000", "bash", Status.OK),
            ("while :; do :; done", "bash", Status.TIMEOUT),
        ]
        count = 120
        submitted = [programs[number % (4 if number % 10 else 5)] for number in range(count)]

        def run(code: str, language: str, status: Status) -> asyncio.Task[Any]:
            limits = {"time": 2.0 if status is Status.TIMEOUT else 120.0 * SLOW}
            return asyncio.create_task(executor.run(code, language, backend="ray", policy="none", limits=limits))

        tasks = [run(*each) for each in submitted[: count // 2]]
        victim = nodes.machines[2].node
        assert victim is not None
        await until(lambda: sum(task.done() for task in tasks) > count // 6)
        os.kill(victim.pid, signal.SIGKILL)  # Ray's processes die with it
        hub = backend._connected()
        drained = next(node for node, link in hub.links.items() if link.load.capacity == 2)
        await asyncio.to_thread(nodes.head.redoma, "cluster", "drain", drained[:12])
        await until(lambda: len(hub.links) == 2 and hub.links[drained].load.draining)
        tasks += [run(*each) for each in submitted[count // 2 :]]
        results = await asyncio.gather(*tasks)
        assert [each.status for each in results] == [status for _, _, status in submitted]
        assert len({each.id for each in results}) == count
    for _ in range(60):  # a node may learn a moment later than we that a run has ended
        loads = [each.about.load for each in await asyncio.to_thread(survey, nodes) if each.about is not None]
        if [load.running + load.queued for load in loads] == [0, 0]:
            break
        await asyncio.sleep(0.5)
    assert [load.running + load.queued for load in loads] == [0, 0]
    await until(lambda: left_of(victim) == [])
    log = AuditLog(nodes.head.config.audit.directory)
    assert log.verify().ok
    records = Counter(record.kind for record in log.records())
    assert records["intent"] == records["outcome"] >= count
