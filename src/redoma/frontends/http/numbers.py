"""Measurements of this server over the last hour, for the dashboard: cells and memory."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from pathlib import Path
from typing import NamedTuple

from ...telemetry import metrics

_EVERY = 10.0
_KEPT = 360
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Sample(NamedTuple):
    """Cells and memory at one moment."""

    time: float
    ready: int
    """Prepared cells and containers that wait for a run."""
    used: int
    """Cells and containers that execute a run."""
    memory: int
    """Resident bytes of the server process."""
    cells: int
    """Resident bytes of its descendant processes, without shared pages."""


class Numbers:
    """Take a sample every ten seconds and keep those of the last hour."""

    def __init__(self) -> None:
        self.samples: deque[Sample] = deque(maxlen=_KEPT)

    async def collect(self) -> None:
        """Take samples until cancelled."""
        while True:
            self.samples.append(await asyncio.to_thread(sample))
            await asyncio.sleep(_EVERY)


def sample() -> Sample:
    """Take one sample."""
    counts = metrics.pool_counts()

    def total(*states: str) -> int:
        return sum(count for (_, state), count in counts.items() if state in states)

    own, below = _memory()
    return Sample(time.time(), total("armed", "ready"), total("running"), own, below)


def _memory() -> tuple[int, int]:
    """Return the resident bytes of this process, and those of its descendants without shared pages."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                parents[int(entry)] = int(Path(f"/proc/{entry}/stat").read_bytes().rpartition(b")")[2].split()[1])
            except OSError:  # it has ended
                continue
    mine, below = os.getpid(), 0
    for process in parents:
        above, steps = parents[process], 0
        while above in parents and above != mine and steps < 20:
            above, steps = parents[above], steps + 1
        if above == mine and process != mine:
            resident, shared = _pages(process)
            below += resident - shared
    return _pages(mine)[0] * _PAGE, below * _PAGE


def _pages(process: int) -> tuple[int, int]:
    try:
        fields = Path(f"/proc/{process}/statm").read_text().split()
    except OSError:
        return 0, 0
    return int(fields[1]), int(fields[2])
