"""What a Redoma leaves in an engine, or finds there: whose it is, and that it goes, whatever else doesn't."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from docker_bench import Line, docker, ours, run, until

from redoma.backends.docker import Box, DockerBackend
from redoma.backends.docker import container as containers
from redoma.backends.docker import engine as engines
from redoma.backends.docker.engine import Engine, labels
from redoma.lib.errors import BackendUnavailable
from redoma.models import Request

_JUDGE = """
import json, os, sys
from redoma.backends.docker.engine import orphaned
os.setgroups([]); os.setgid(65534); os.setuid(65534)
assert not os.path.exists(f"/proc/{os.getppid()}/stat"), "it is not hidden"
print([orphaned(each) for each in json.load(sys.stdin)])
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a /proc that hides processes")
def test_a_process_that_proc_hides_is_alive_all_the_same() -> None:
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    alive = labels()
    dead = {**alive, "redoma.pid": str(gone.pid)}
    hidden = 'mount -t proc -o hidepid=2 proc /proc && exec "$@"'
    told = subprocess.run(
        ["unshare", "--mount", "sh", "-c", hidden, "sh", sys.executable, "-c", _JUDGE],
        input=json.dumps([alive, dead, {**dead, "redoma.pid": "9" * 30}]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (told.stdout, told.stderr) == ("[False, True, True]\n", "")


@pytest.fixture
async def line(engine: str, tmp_path: Path) -> AsyncIterator[Line]:
    laid = Line(engine, tmp_path / "line.sock")
    await laid.lay()
    yield laid
    await laid.cut()


class _Stuck:
    """Swallows what would remove a container: the one of this name, or the first."""

    def __init__(self, name: str = "") -> None:
        self.name, self.asked = name, 0

    def __call__(self, request: str) -> bool:
        if not request.startswith("DELETE") or "/containers/" not in request:
            return False
        name = request.split("/containers/")[1].split("?")[0]
        self.name = self.name or name
        self.asked += name == self.name
        return name == self.name


@pytest.fixture
async def unlucky(line: Line, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[DockerBackend]:
    """One whose first container can't be removed."""
    monkeypatch.setattr(containers, "_REMOVAL", 0.3)
    monkeypatch.setattr(containers, "_TRIES", 1)
    backend = DockerBackend(Box(network_mode="bridge"), host=line.host)  # with no other container, for a file of hosts
    line.swallows = stuck = _Stuck()
    async with asyncio.timeout(180):
        assert (await run(backend, "print(1)")).stdout == "1\n"
    assert ours() == [stuck.name]
    monkeypatch.setattr(containers, "_REMOVAL", 60.0)  # the others can be removed, however slow the engine is
    monkeypatch.setattr(containers, "_TRIES", 6)
    yield backend
    line.swallows = lambda request: False
    for each in backend._connections.values():
        each.engine._stuck.clear()  # as if the time were over
    await backend.aclose()
    assert ours() == []


async def test_one_that_cannot_be_removed_keeps_a_run_waiting_for_a_while_and_the_next_not_at_all(
    unlucky: DockerBackend, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "_REMOVAL_WAIT", 0.5)
    line.swallows = stuck = _Stuck(*ours())
    for _ in range(2):
        async with asyncio.timeout(180):
            assert (await run(unlucky, "print(2)")).stdout == "2\n"
        assert stuck.asked == 1


async def test_who_waits_for_the_removal_of_another_can_be_cancelled(
    unlucky: DockerBackend, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "_REMOVAL_WAIT", 600.0)
    line.swallows = stuck = _Stuck(*ours())
    task = asyncio.create_task(run(unlucky, "print(2)"))
    assert await until(lambda: stuck.asked)
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=60)
    assert done


async def test_what_a_dead_redoma_has_left_and_cannot_be_removed_does_not_stop_the_living(
    engine: str, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "_REMOVAL_WAIT", 0.5)
    # Dead to us alone: other tests, at the same time, would sweep it as well.
    monkeypatch.setattr(engines, "orphaned", lambda labelled: "redoma.dead" in labelled)
    told = [f"--label={name}={value}" for name, value in {**labels(), "redoma.dead": ""}.items()]
    name = docker("create", *told, "bash:5.2-alpine").strip()
    line.swallows = stuck = _Stuck(name)
    backend = DockerBackend(host=line.host)
    try:
        async with asyncio.timeout(180):
            assert (await run(backend, "print(1)")).stdout == "1\n"
        assert stuck.asked == 1
        line.swallows = lambda request: False
        for each in backend._connections.values():
            each.engine._stuck.clear()  # as if the time were over
        assert (await run(backend, "print(1)")).stdout == "1\n"
        assert name not in docker("ps", "--all", "--quiet", "--no-trunc")
    finally:
        await backend.aclose()


async def test_a_pull_that_is_cancelled_ends(line: Line) -> None:
    pulling = asyncio.Event()

    def swallow(request: str) -> bool:
        if "/images/create" in request:
            pulling.set()
        return "/images/create" in request

    line.swallows = swallow
    backend = DockerBackend(Box(python="redoma-test/no-such-image:1", pull=True), host=line.host)
    try:
        task = asyncio.create_task(backend.run(Request(code="1"), lambda *_: True))
        await asyncio.wait_for(pulling.wait(), 120)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=60)
        assert done
    finally:
        await backend.aclose()


def _volumes() -> set[str]:
    """Of this process."""
    return set(docker("volume", "ls", "-q", "--filter", f"label=redoma.pid={os.getpid()}").split())


async def test_a_volume_that_could_not_be_filled_goes(engine: str) -> None:
    backend = DockerBackend(Box(python="redoma-test/no-such-image:1"), host=engine)
    for _ in range(3):
        with pytest.raises(BackendUnavailable):
            await run(backend, "1")
    await backend.aclose()
    assert _volumes() == set()


async def test_a_file_that_somebody_removed_is_made_anew_once(engine: str) -> None:
    """However many runs have missed it: it must not be taken from those that have the new one."""
    connected = Engine(engine)
    try:
        first = await connected.hosts("python:3.11-slim")
        assert first is not None
        docker("volume", "rm", *_volumes())
        await connected.forget_hosts(first)
        second = await connected.hosts("python:3.11-slim")
        await connected.forget_hosts(first)
        assert second != first
        assert await connected.hosts("python:3.11-slim") == second
        assert len(_volumes()) == 1
    finally:
        await connected.aclose()
    assert _volumes() == set()


async def test_eight_runs_that_miss_it_leave_no_volume(engine: str) -> None:
    every = set(docker("volume", "ls", "-q").split())
    backend = DockerBackend(host=engine, maximum=8)
    try:
        await run(backend, "1")
        docker("volume", "rm", *_volumes())
        ran = await asyncio.gather(*(run(backend, "print(1)") for _ in range(8)))
        assert [one.stdout for one in ran] == ["1\n"] * 8
    finally:
        await backend.aclose()
    # Without a label nobody knows whose it is; those of other tests have one.
    listed = [line.split(" ", 1) for line in docker("volume", "ls", "--format", "{{.Name}} {{.Labels}}").splitlines()]
    assert {name for name, labelled in listed if name.startswith("redoma-") and not labelled.strip()} <= every
    assert _volumes() == set()


async def test_every_container_goes_with_the_volumes_that_its_image_has_made(line: Line) -> None:
    asked: list[str] = []

    def listen(request: str) -> bool:
        if request.startswith("DELETE") and "/containers/" in request:
            asked.append(request)
        return False

    line.swallows = listen
    backend = DockerBackend(host=line.host)
    await run(backend, "1")
    await backend.aclose()
    assert len(asked) == 2, "that of the run, and the one through which the file of hosts was written"
    assert all("v=" in request for request in asked)
