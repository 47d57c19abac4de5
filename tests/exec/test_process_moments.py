"""What comes at the wrong moment, or without end: signals, and `close` and `release` while something else goes on."""

from __future__ import annotations

import asyncio
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from process_stage import KINDS, configured

import redoma
from redoma import AsyncExecutor, Executor, InvalidRequest, Status
from redoma.backends.base import Control
from redoma.backends.native.backend import _REPORT, _Report, _Run
from redoma.models import Request


async def test_signals_without_end_do_not_switch_the_limits_off(tmp_path: Path) -> None:
    entry = "name: shell, kind: exec.native, limits: {processes: 1, time: 60}"
    async with AsyncExecutor(configured(tmp_path, entry)) as executor:
        process = redoma.exec.aget("app:shell", executor).exec(["sh", "-c", "sleep 60 & sleep 60"])
        await process.start()
        waiting = asyncio.create_task(process.wait())
        while not waiting.done():
            try:
                process.signal(signal.SIGURG)  # nothing minds it
            except redoma.InvalidRequest:
                break  # it has ended
            await asyncio.sleep(0)
        assert await waiting == 137
        assert process.result.status is Status.KILLED
        assert "more than 1 processes" in (process.result.error or "")


async def test_a_signal_that_meets_the_end_takes_nothing_from_the_report() -> None:
    """The supervisor's side of the leash is closed with a signal unread: after the report we read a reset."""
    request, control = Request(argv=("true",), language="command"), Control()
    run = _Run(request, lambda *_: True, control, "/")
    run._leash.setblocking(False)
    with run._leash, run._far_end:
        run._far_end.sendall(_REPORT.pack(0, 4194305, 0, 0, 0, 0))  # started: the number of no process
        assert run._receive()
        control.signal(signal.SIGTERM)
        run._far_end.sendall(_REPORT.pack(1, 0, 0, 0, 500, 4096))
        run._far_end.close()
        while run._receive():
            continue
        assert run._report() == _Report(cpu=0.0005, memory=4096)


@pytest.mark.parametrize("kind", ["jail", "native"])
@pytest.mark.parametrize("turns", [0, 1, 2, 4])
async def test_closing_while_it_starts_is_told_to_whoever_starts_it(tmp_path: Path, kind: str, turns: int) -> None:
    async with AsyncExecutor(configured(tmp_path, f"name: shell, {KINDS[kind]}")) as executor:
        shell = redoma.exec.aget("app:shell", executor)
        for ending in ("close", "release"):
            process = shell.exec("sleep 60")
            starting = asyncio.create_task(process.start())
            for _ in range(turns + 1):  # the first is the one in which it begins
                await asyncio.sleep(0)
            await (process.close() if ending == "close" else shell.release())
            with pytest.raises(InvalidRequest, match="can't be started: it was closed"):
                await asyncio.wait_for(starting, 20)


def test_closing_in_one_thread_while_another_starts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Executor(configured(tmp_path, "name: shell, kind: exec.native")) as executor, ThreadPoolExecutor(1) as threads:
        process = redoma.exec.get("app:shell", executor).exec("sleep 60")
        task_made, go_on = threading.Event(), threading.Event()
        follow = executor.core.follow

        def held(asked: Any, **options: Any) -> Any:
            task_made.set()
            assert go_on.wait(20)
            return follow(asked, **options)

        monkeypatch.setattr(executor.core, "follow", held)
        starting = threads.submit(process.start)
        assert task_made.wait(20)
        closing = executor.start(process.core.close())  # it has its turn as soon as `start` waits
        go_on.set()
        closing.result(20)
        with pytest.raises(InvalidRequest, match="can't be started: it was closed"):
            starting.result(20)


def test_what_is_made_while_the_executor_is_released_is_not_left_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Executor(configured(tmp_path, "name: shell, kind: exec.native")) as executor, ThreadPoolExecutor(1) as threads:
        shell = redoma.exec.get("app:shell", executor)
        asked, go_on = threading.Event(), threading.Event()
        ask = executor.core.prepare

        def held(*arguments: Any) -> Any:
            asked.set()
            assert go_on.wait(20)
            return ask(*arguments)

        monkeypatch.setattr(executor.core, "prepare", held)
        making = threads.submit(shell.exec, "true")
        assert asked.wait(20)
        shell.release()
        go_on.set()
        with pytest.raises(InvalidRequest, match="was released"):
            making.result(20)
