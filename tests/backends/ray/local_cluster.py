"""A cluster in this process, without Ray: real nodes, links and hub, and ways to break what is between them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ray.exceptions import ActorDiedError, ActorUnavailableError

from redoma import Backend, __version__
from redoma.backends.ray.backend import RayBackend
from redoma.backends.ray.node import Node

KEY = b"k" * 32


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
