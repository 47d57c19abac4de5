"""Runs hear of their cells by one descriptor of the event loop, whichever loop it is and however they end."""

from __future__ import annotations

import asyncio
import gc
import os
from pathlib import Path

from jail_insides import jail, run

from redoma.backends.jail.readiness import Readiness, Readinesses


def epolls() -> int:
    """How many epoll instances this process has."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{name}") == "anon_inode:[eventpoll]"
        except FileNotFoundError:
            continue
    return found


async def test_each_is_called_and_none_after_it_has_left() -> None:
    loop, called = asyncio.get_running_loop(), list[str]()
    readiness = Readiness(loop)
    first, second = os.pipe(), os.pipe()

    def one() -> None:
        called.append("first")
        readiness.leave(first[0])
        readiness.leave(second[0])

    def other() -> None:
        called.append("second")
        readiness.leave(first[0])
        readiness.leave(second[0])

    readiness.follow(first[0], one)
    readiness.follow(second[0], other)
    assert not readiness.close(loop), "two still wait"
    os.write(first[1], b"x")
    os.write(second[1], b"x")
    await asyncio.sleep(0.05)
    assert len(called) == 1, "the other was ready at the same time, but had left"
    assert readiness.close(loop)
    for number in (*first, *second):
        os.close(number)


async def test_there_is_one_for_a_loop_and_closing_leaves_nothing() -> None:
    loop, before = asyncio.get_running_loop(), epolls()
    all_of_them = Readinesses()
    assert all_of_them.here(loop) is all_of_them.here(loop)
    assert epolls() == before + 1
    all_of_them.close(loop)
    all_of_them.close(loop)
    assert epolls() == before


def test_one_executor_on_loop_after_loop_leaves_nothing_of_them(tmp_path: Path) -> None:
    executor, _ = jail(tmp_path, minimum=1)

    async def use() -> None:
        results = await asyncio.gather(*(run(executor, f"print({n})") for n in range(4)))
        assert [result.stdout for result in results] == [f"{n}\n" for n in range(4)]

    asyncio.run(use())
    gc.collect()
    before = epolls()
    for _ in range(20):
        asyncio.run(use())
    gc.collect()
    after = epolls()  # some are of cells that were made meanwhile
    asyncio.run(executor.aclose())
    assert after < before + 15


async def test_closing_while_runs_go_on_ends_each_of_them(tmp_path: Path) -> None:
    executor, _ = jail(tmp_path, minimum=1)
    runs = [asyncio.create_task(run(executor, "import time; time.sleep(60)")) for _ in range(3)]
    await asyncio.sleep(1)
    await executor.aclose()
    results = await asyncio.wait_for(asyncio.gather(*runs), 30)
    assert not any(result.ok for result in results)
