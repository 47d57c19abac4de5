"""A cluster in this process, without Ray: real nodes, links and hub, and ways to break what is between them.

The fixtures `cluster` and `cluster_executor` are made of it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ray.exceptions import ActorDiedError, ActorUnavailableError

from pace import SLOW
from redoma import Answer, AsyncExecutor, Backend, FakeBackend, Isolation, Request, Result, __version__
from redoma.backends.base import Control, Outcome, Sink
from redoma.backends.ray.backend import RayBackend
from redoma.backends.ray.node import Node
from redoma.models.reach import NOTHING

KEY = b"k" * 32
CELL = Isolation(layers={"pid": "its own", "seccomp": "a filter"})
LONG = Answer(when="long", stdout="begun\n", delay=600)
SHORT = Answer(when="short", stdout="done\n", delay=0.02)


class LocalNode:
    """A node on the cluster's thread. `call.remote` is what a client has of it."""

    def __init__(
        self, name: str, backends: Mapping[str, Backend], loop: asyncio.AbstractEventLoop, **options: Any
    ) -> None:
        self.id, self._loop = name, loop
        self.node = Node(
            backends,
            id=name,
            **{
                "key": KEY,
                "offer": tuple(backends),
                "capacity": 4,
                "versions": {"redoma": __version__},
                **options,
            },
        )
        self.alive = True
        self.lose_answers = 0
        """So many answers get lost on the way, after the call was obeyed."""
        self.cut = False
        self.seen: list[bytes] = []
        """What went over the network, in both directions."""

    @property
    def call(self) -> LocalNode:
        return self

    def remote(self, data: bytes) -> Awaitable[bytes]:
        return self._through(data)

    async def _through(self, data: bytes) -> bytes:
        self.seen.append(data)
        if self.cut:
            raise ActorUnavailableError("the link is cut", None)
        self._must_live()
        answer = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.node.call(data), self._loop))
        self._must_live()
        if self.lose_answers > 0:
            self.lose_answers -= 1
            raise ActorUnavailableError("the answer was lost", None)
        self.seen.append(answer)
        return answer

    def _must_live(self) -> None:
        if not self.alive:
            raise ActorDiedError()

    def kill(self) -> None:
        """End it without a word, as SIGKILL does."""
        self.alive = False
        asyncio.run_coroutine_threadsafe(self.node.aclose(), self._loop).result(60)


class LocalCluster:
    key = KEY

    def __init__(self) -> None:
        self.members: dict[str, LocalNode] = {}
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def add(self, name: str, backends: Mapping[str, Backend], **options: Any) -> LocalNode:
        self.members[name] = LocalNode(name, backends, self.loop, **options)
        return self.members[name]

    def backend(self, **options: Any) -> RayBackend:
        return RayBackend(lambda: self, **options)

    def connect(self) -> None:
        pass

    def disconnect(self) -> None:
        pass

    def nodes(self) -> set[str]:
        return {name for name, node in self.members.items() if node.alive}

    def actor(self, node: str) -> LocalNode:
        return self.members[node]

    def on_node(self, work: Callable[[], Awaitable[Any]]) -> Any:
        async def call() -> Any:
            return await work()

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(60)

    def close(self) -> None:
        for node in self.members.values():
            if node.alive:
                node.kill()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class Cells(FakeBackend):
    """A fake jail that counts how often each request was begun, and how it ended."""

    def __init__(self, *answers: Answer, isolation: Isolation = CELL) -> None:
        super().__init__(*answers, Answer(), name="jail", isolation=isolation, reach=NOTHING)
        self.begun: Counter[str] = Counter()
        self.cancelled: list[str] = []

    async def run(self, request: Request, sink: Sink, control: Control | None = None) -> Outcome:
        self.begun[request.id] += 1
        try:
            return await super().run(request, sink, control)
        except asyncio.CancelledError:
            self.cancelled.append(request.code)
            raise


def run(executor: AsyncExecutor, code: str, **options: Any) -> asyncio.Task[Result]:
    options = {"policy": "none", "backend": "ray", "limits": {"time": 1000}, **options}
    return asyncio.create_task(executor.run(code, **options))


async def until(fact: Callable[[], object]) -> None:
    """Wait until `fact` returns something true."""
    deadline = time.monotonic() + 60 * SLOW
    while not fact():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


def total(*cells: Cells) -> int:
    """How many requests these cells have begun."""
    return sum(sum(each.begun.values()) for each in cells) - len(cells)  # each node tried itself once
