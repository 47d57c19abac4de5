"""Work that may hang: each on a thread of its own, waited for as long as it may take and no longer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


class Late(Exception):
    """It has not come to its end in time."""


class Aside:
    """Nothing can interrupt a system call on a file system whose server is gone. So the thread that made it is left
    alone: a daemon, which holds up nobody's exit. As long as it hangs no second one is started for the same thing."""

    def __init__(self) -> None:
        self._hanging: dict[str, threading.Thread] = {}

    async def run(
        self, name: str, work: Callable[[], T], seconds: float, *, stop: Callable[[], None] | None = None
    ) -> T:
        """What `work` returns or raises, or `Late`. `stop` is called when nobody waits for it any more."""
        if (hanging := self._hanging.get(name)) is not None:
            if hanging.is_alive():
                raise Late("it still hangs from an earlier round")
            del self._hanging[name]
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def settle(failure: BaseException | None, value: Any) -> None:
            if not done.done():
                done.set_exception(failure) if failure is not None else done.set_result(value)

        def body() -> None:
            failure, value = None, None
            try:
                value = work()
            except Exception as error:
                failure = error
            with suppress(RuntimeError):  # nobody waits any more, and the loop is closed
                loop.call_soon_threadsafe(settle, failure, value)

        thread = threading.Thread(target=body, name=f"redoma-monitor-{name}", daemon=True)
        thread.start()
        try:
            async with asyncio.timeout(seconds):
                return await done
        except TimeoutError:
            if not done.cancelled():  # it raised that itself, or came to its end in the very moment
                return done.result()
            self._hanging[name] = thread
            raise Late(f"it has not answered within {seconds:g} s") from None
        finally:
            if stop is not None and thread.is_alive():
                stop()
