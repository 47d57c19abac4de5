"""Containers that wait: made ahead of time, used once, and gone when nobody needs them."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest
from docker_bench import docker, inspect, ours, run, until

from redoma import BackendError
from redoma.backends.docker import DockerBackend, box
from redoma.backends.docker.box import ContainerSpec
from redoma.backends.docker.pool import ContainerPool
from redoma.models import Limits, MiB


@pytest.fixture
async def pooled(engine: str) -> AsyncIterator[DockerBackend]:
    backend = DockerBackend(host=engine, minimum=1, idle=600)
    yield backend
    await backend.aclose()
    assert ours() == []


async def _warm(count: int = 1) -> list[str]:
    """Those that wait now: all that there are, when nothing runs."""
    found = await until(lambda: len(ours()) == count and all(inspect(one)["State"]["Running"] for one in ours()))
    assert found, ours()
    return ours()


_ID = "import os\nprint(os.uname().nodename, end='')\nopen('/tmp/left', 'x')"


async def test_a_run_takes_the_one_that_waits_and_none_is_used_twice(pooled: DockerBackend) -> None:
    first = (await run(pooled, _ID)).stdout
    seen = {first}
    for _ in range(3):
        (name,) = await _warm()
        ran = await run(pooled, _ID, outputs=("nothing",))
        assert ran.ending == ("ok", 0), ran.stderr
        assert name not in ours()
        assert ran.stdout not in seen
        assert ran.outcome.isolation.missing == ()
        seen.add(ran.stdout)


async def test_one_that_has_died_is_noticed_and_replaced(pooled: DockerBackend) -> None:
    await run(pooled, "1")
    (name,) = await _warm()
    docker("kill", name)
    assert (await run(pooled, "print('well')")).stdout == "well\n"
    (other,) = await _warm()
    assert other != name


class _Plain:
    """What a pool needs of a container."""

    removed = False

    async def read(self) -> None:
        await asyncio.get_running_loop().create_future()  # it waits, so it says nothing

    async def remove(self) -> None:
        await asyncio.sleep(0)
        self.removed = True


@pytest.mark.parametrize("turns", range(9))
async def test_whoever_is_cancelled_while_taking_one_leaves_none(turns: int) -> None:
    """After any number of turns of the loop, whether it is being made or waits."""
    made: list[_Plain] = []
    another = asyncio.Event()

    async def make(spec: ContainerSpec) -> Any:
        made.append(_Plain())
        another.set()
        return made[-1]

    spec = box.spec(box.Box(), "python", Limits())
    for ready in (False, True):
        pool = ContainerPool(make, minimum=1, maximum=4, queue=0, idle=600)
        await pool.give_back(await pool.take(spec))
        another.clear()
        await another.wait()
        if ready:
            await asyncio.sleep(0.01)
        taking = asyncio.create_task(pool.take(spec))
        for _ in range(turns):
            await asyncio.sleep(0)
        taking.cancel()
        (taken,) = await asyncio.gather(taking, return_exceptions=True)
        if not isinstance(taken, BaseException):
            await pool.give_back(taken)
        assert await until(lambda: not all(one.removed for one in made), 10), "none is made in its place"
        await pool.aclose()
        assert all(one.removed for one in made)


async def test_what_needs_other_limits_is_made_to_order_and_kept_ready_when_it_is_asked_for_again(
    pooled: DockerBackend,
) -> None:
    await run(pooled, "1")
    (usual,) = await _warm()
    small = {"memory": 64 * MiB}
    assert (await run(pooled, "x = bytearray(100 << 20)", limits=small)).ending == ("memory", None)
    assert await _warm() == [usual]
    assert (await run(pooled, "x = bytearray(100 << 20)", limits=small)).ending == ("memory", None)
    assert await until(lambda: [inspect(one)["HostConfig"]["Memory"] for one in ours()] == [64 * MiB])


async def test_bash_has_one_of_its_own_and_closing_removes_all(pooled: DockerBackend) -> None:
    await asyncio.gather(run(pooled, "1"), run(pooled, "true", language="bash"))
    both = {"python:3.11-slim", "bash:5.2-alpine"}
    assert await until(lambda: {inspect(name)["Config"]["Image"] for name in ours()} == both)


async def test_more_than_the_minimum_are_let_go_when_nothing_is_asked_for(engine: str) -> None:
    backend = DockerBackend(host=engine, minimum=1, idle=1.0)
    try:
        await asyncio.gather(*(run(backend, "1") for _ in range(3)))
        assert await until(lambda: len(ours()) == 1)
        assert await until(lambda: inspect(ours()[0])["State"]["Running"])
    finally:
        await backend.aclose()
    assert ours() == []


async def test_one_too_many_is_refused_and_those_before_it_are_served(engine: str) -> None:
    backend = DockerBackend(host=engine, maximum=1, queue=1)
    try:
        first, second = (asyncio.create_task(run(backend, "print('done')")) for _ in range(2))
        await asyncio.sleep(0.05)
        with pytest.raises(BackendError, match=r"too many runs wait.*docker\.queue"):
            await run(backend, "1")
        assert [(await task).stdout for task in (first, second)] == ["done\n"] * 2
    finally:
        await backend.aclose()


# Nobody can close the connections of a loop that is closed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_a_backend_outlives_the_event_loop_that_it_was_used_on(engine: str) -> None:
    backend = DockerBackend(host=engine, minimum=1)

    async def once() -> list[str]:
        assert (await run(backend, "print('here')")).stdout == "here\n"
        return await _warm()

    (left,) = asyncio.run(once())  # whose loop is closed with one waiting

    async def again() -> None:
        assert (await run(backend, "print('here')")).stdout == "here\n"
        assert left not in ours()
        await backend.aclose()

    asyncio.run(again())
    assert docker("volume", "ls", "-q", "--filter", f"label=redoma.pid={os.getpid()}") == ""
    gc.collect()
    assert ours() == []
