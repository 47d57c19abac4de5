"""What telemetry adds to a request: nobody listens, a log is kept, an SDK is set up.

    python benchmarks/telemetry.py

The whole path of a request on a backend that runs nothing, so that nothing hides the difference. The same executor
takes turns with the decorators of `redoma.telemetry` and without; numbers are processor time.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from redoma import AsyncExecutor, Config, FakeBackend
from redoma.config import AuditConfig
from redoma.pipeline.projects import Projects
from redoma.telemetry import logs

STAGES: list[tuple[type, str]] = [
    *((AsyncExecutor, name) for name in ("submit", "judge", "_decide")),
    (Projects, "run"),
]
DECORATED: dict[tuple[type, str], Any] = {stage: getattr(*stage) for stage in STAGES}
EXPORTER = InMemorySpanExporter()


def undecorated() -> None:
    for (owner, name), function in DECORATED.items():
        setattr(owner, name, function.__wrapped__)


def decorated() -> None:
    for (owner, name), function in DECORATED.items():
        setattr(owner, name, function)


def set_up(provider: TracerProvider | None) -> None:
    trace._TRACER_PROVIDER = provider  # the API's own setter works once, and never back


async def main() -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(EXPORTER))
    with tempfile.TemporaryDirectory() as place:
        log = Path(place) / "log"
        ways: dict[str, Callable[[], object]] = {
            "undecorated": undecorated,
            "decorated, nobody listens": lambda: None,
            "with a log, JSON to a file": lambda: logs.write("info", "json", log),
            "with an SDK, to memory": lambda: set_up(provider),
        }
        config = Config(audit=AuditConfig(directory=Path(place) / "audit", enabled=False))
        taken: dict[str, list[float]] = {name: [] for name in ways}
        async with AsyncExecutor(config, backends=[FakeBackend()]) as executor:
            for turn in range(31):
                for name, prepare in ways.items():
                    decorated()
                    prepare()
                    seconds = await _burst(executor)
                    logs.write("off")
                    set_up(None)
                    EXPORTER.clear()
                    if turn:  # the first is to warm up
                        taken[name].append(seconds)
    base = statistics.median(taken["undecorated"])
    for name, times in taken.items():
        median = statistics.median(times)
        print(f"{name:28} min {min(times) * 1e6:4.0f} µs  median {median * 1e6:4.0f} µs  {median / base:.2f} times")


async def _burst(executor: AsyncExecutor, count: int = 100) -> float:
    began = time.process_time()
    for _ in range(count):
        await executor.run("print(1)", backend="fake")
    return (time.process_time() - began) / count


if __name__ == "__main__":
    asyncio.run(main())
