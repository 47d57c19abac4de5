"""What comes at the wrong moment, or without end: signals, and `close` and `release` while something else goes on."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

from process_stage import configured

import redoma
from redoma import AsyncExecutor, Status
from redoma.backends.base import Control
from redoma.backends.native import _Run
from redoma.models import Request


async def test_signals_without_end_do_not_switch_the_limits_off(tmp_path: Path) -> None:
    entry = "name: shell, kind: exec.native, limits: {processes: 1, time: 10}"
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
        answer = asyncio.create_task(run._answer())
        loop = asyncio.get_running_loop()
        run._far_end.setblocking(False)
        assert json.loads(await loop.sock_recv(run._far_end, 1 << 16))["argv"] == ["true"]
        report = {"status": 0, "cause": "", "cpu": 0.0, "memory": 0}
        run._far_end.send(b"4194305\n" + json.dumps(report).encode() + b"\n")  # the number of no process
        control.signal(signal.SIGTERM)
        while not run._group:
            await asyncio.sleep(0)
        run._far_end.close()
        assert await answer == report
