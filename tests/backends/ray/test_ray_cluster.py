"""Four real Ray nodes, three of them in network namespaces of their own: runs, sessions, faults, and what is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import ray

from pace import SLOW
from ray_faults import SETTINGS, faults
from ray_nodes import NodesApart
from redoma import AsyncExecutor, Config
from redoma.pipeline.installed import Installed


@pytest.fixture(scope="module")
def nodes() -> Iterator[NodesApart]:
    made = NodesApart(SETTINGS)
    yield made
    made.close()


@pytest.fixture(scope="module")
def visitors(nodes: NodesApart) -> Iterator[dict[str, subprocess.Popen[str]]]:
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


def connected(config: Config) -> tuple[AsyncExecutor, Any]:
    installed = Installed(config)
    return AsyncExecutor(config, backends=installed), installed["ray"]


async def test_status_shows_what_each_node_really_offers(nodes: NodesApart, visitors: object) -> None:
    shown = json.loads(nodes.head.redoma("cluster", "status", "--json"))
    assert len(shown) == 4
    for node in shown:
        assert node["alive"]
        about = node["about"]
        assert {"redoma", "ray", "python", "kernel"} <= set(about["versions"])
        (jail, *_) = about["backends"]
        assert {"pid", "net", "seccomp"} <= set(jail["isolation"]["layers"])
    assert sorted(node["about"]["load"]["capacity"] for node in shown) == [4, 6, 8, 10]


async def test_answers_of_a_node_are_not_pickled(nodes: NodesApart, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert visitors["right"].communicate(timeout=300 * SLOW)[0] == "4\n"  # the control
    _, said = visitors["wrong"].communicate(timeout=300 * SLOW)
    assert visitors["wrong"].returncode != 0
    assert "InvalidAuthToken" in said


async def test_sessions_stay_on_their_node(nodes: NodesApart) -> None:
    executor, _ = connected(nodes.head.config)
    async with executor, executor.session(backend="ray") as session:
        assert (await session.run("x = 41")).ok
        assert (await session.run("x + 1")).value == 42
        assert "pid" in session.isolation.layers


async def test_forks_of_a_session_stay_on_its_node(nodes: NodesApart) -> None:
    executor, _ = connected(nodes.head.config)
    async with executor, executor.session(backend="ray") as session:
        await session.run("x = [1]")
        copies = await session.fork(2)
        for number, copy in enumerate(copies):
            assert (await copy.run(f"x.append({number}); x")).value == [1, number]
            await copy.aclose()
        assert (await session.run("x")).value == [1]


async def test_mixed_runs_are_each_accounted_for_once(nodes: NodesApart) -> None:
    """While a link is cut for 20 s, a node killed and one drained. The last test, since it leaves two nodes of four."""
    executor, _ = connected(nodes.head.config)
    async with executor:
        report = await faults(nodes, executor, runs=5000, cut=20.0)
    assert report.good, report
