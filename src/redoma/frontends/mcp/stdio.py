"""The server over standard input and output, for one client, which has started it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ...config import Config
from .bench import LocalBench
from .tools import build


def serve(config: Config, project: Path) -> None:
    """Serve until the client closes our input. What runs then is ended; so are the sessions."""
    asyncio.run(_serve(config, project))


async def _serve(config: Config, project: Path) -> None:
    async with LocalBench(config, project) as bench:
        await build(bench).run_stdio_async()
