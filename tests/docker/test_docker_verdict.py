"""How a run ended is told as it was, also where the engine is late, the container is gone or the code is ambiguous."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from docker_bench import ours, until

from redoma.backends.docker import Box, box
from redoma.backends.docker.container import Container
from redoma.backends.docker.engine import Engine


@pytest.fixture
async def directly(engine: str) -> AsyncIterator[Engine]:
    """The engine, without a backend around it."""
    connected = Engine(engine)
    yield connected
    await connected.aclose()


async def test_a_look_at_one_that_has_ended_and_gone_tells_nothing(directly: Engine) -> None:
    """It ends between two looks, and its output may be read for a while yet."""
    plain = Box.plain("bash:5.2-alpine", network_mode="none", auto_remove=True)
    container = Container(directly, box.direct(plain, ("true",), {}, None, init=False))
    try:
        await container.create()
        await container.attach()
        await container.start()
        await container.exited()
        assert await until(lambda: ours() == [])
        assert await container.stats() == {}
    finally:
        await container.remove()
