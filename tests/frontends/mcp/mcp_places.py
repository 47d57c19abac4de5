"""A real server, started as a client starts it, and the SDK's own client."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, Implementation

from pace import SLOW
from redoma.audit.read import records
from serving import Serving

ERAS = ("legacy", "2026-07-28")
VERSIONS = {"legacy": "2025-11-25", "2026-07-28": "2026-07-28"}
PROGRAM = str(Path(sys.executable).with_name("redoma"))


class Local:
    """`redoma mcp` over stdio, with a home, a state directory and a project of its own."""

    def __init__(self, home: Path, settings: str = "") -> None:
        self.project, self.state = home / "project", home / "state"
        self.project.mkdir(parents=True)
        (self.project / "notes.txt").write_text("one\n")
        (home / "redoma.yaml").write_text(settings)
        self.env = {"HOME": str(home), "REDOMA_STATE_DIR": str(self.state)}
        args = ["--config", str(home / "redoma.yaml"), "mcp", "--project", str(self.project)]
        self.parameters = StdioServerParameters(command=PROGRAM, args=args, env=self.env)

    @asynccontextmanager
    async def client(self, era: str, **options: Any) -> AsyncIterator[Client]:
        info = Implementation(name="Test Client", version="1")
        client = Client(
            self.parameters, mode=era, client_info=info, read_timeout_seconds=60 * SLOW, cache=None, **options
        )
        async with client:
            yield client

    def outcomes(self) -> list[dict[str, Any]]:
        return [dict(record.data) for record in records(self.state / "audit", kinds={"outcome"})]

    def requesters(self) -> set[str]:
        return {record.data["requester"] for record in records(self.state / "audit", kinds={"intent"})}


@asynccontextmanager
async def over_http(server: Serving, era: str, key: str = "agent", **options: Any) -> AsyncIterator[Client]:
    """A client of /mcp of a service."""
    headers = {"Authorization": f"Bearer {server.made.get(key, key)}"}
    async with httpx2.AsyncClient(headers=headers, timeout=60 * SLOW) as http:
        transport = streamable_http_client(f"{server.url}/mcp", http_client=http)
        async with Client(transport, mode=era, read_timeout_seconds=60 * SLOW, cache=None, **options) as client:
            yield client


def text(result: CallToolResult) -> str:
    return "\n".join(block.text for block in result.content if block.type == "text")


def environment(local: Local) -> dict[str, str]:
    return {**os.environ, **local.env}
