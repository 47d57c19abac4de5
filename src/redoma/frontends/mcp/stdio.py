"""The server over standard input and output, for one client, which has started it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
from mcp.server.mcpserver import Context

from ...config import Config
from ...lib.errors import InvalidRequest
from ...models import Submission
from ...pipeline.executor import AsyncExecutor
from ...pipeline.intake import Options
from ...workspace.kept import Kept
from .tool_host import Caller, ToolHost, Wanted, client_name
from .tools import build


def serve(config: Config, project: Path) -> None:
    """Serve until the client closes our input. What runs then is ended; so are the sessions."""
    asyncio.run(_serve(config, project))


async def _serve(config: Config, project: Path) -> None:
    async with LocalToolHost(config, project) as host:
        await build(host).run_stdio_async()


class LocalToolHost(ToolHost):
    """Runs on this machine, for the user who started the server with `redoma mcp`."""

    def __init__(self, config: Config, project: Path) -> None:
        super().__init__()
        approval = config.approval
        self._asks_here = approval.approver in ("auto", "console")
        """With `queue`, people decide only with `redoma approvals`; with `deny`, nobody does."""
        queued = msgspec.structs.replace(approval, approver="queue" if self._asks_here else approval.approver)
        self._project = str(project)
        self.executor = AsyncExecutor(msgspec.structs.replace(config, approval=queued))

    def caller(self, ctx: Context[Any, Any]) -> Caller:
        return Caller(f"mcp:{client_name(ctx)}")

    def may_answer(self, caller: Caller) -> bool:
        return self._asks_here

    def project_name(self, path: str) -> str:
        return path

    def must_be_within(self, limits: dict[str, Any]) -> None:
        """Accept all limits: it is the user's own machine, and policy prompts for long runs."""

    def prepare(self, caller: Caller, wanted: Wanted) -> Submission:
        options: Options = {
            "limits": wanted.limits,
            "stdin": wanted.stdin,
            "files": dict(wanted.files),
            "outputs": wanted.outputs,
            "network": wanted.network or None,
            "reason": wanted.reason,
            "requester": caller.requester,
            "wait": False,
        }
        if wanted.workspace != "scratch":
            if wanted.project:
                raise InvalidRequest(
                    "a project was named", why=f"this server works in {self._project}", next="leave it out"
                )
            options |= {"workspace": wanted.workspace, "project": self._project, "cwd": self._project}
        if wanted.language == "command":
            return self.executor.prepare(list(wanted.argv), None, options)
        return self.executor.prepare_code(wanted.code, wanted.language, {**options, "args": wanted.argv})

    async def apply(self, caller: Caller, id: str, paths: tuple[str, ...] | None, named: tuple[str, ...]) -> Kept:
        return await self.executor.apply(id, paths=paths, named=named, wait=False)

    async def discard(self, caller: Caller, id: str) -> Kept:
        return await self.executor.discard(id)

    async def undo(self, caller: Caller, id: str) -> Kept:
        return await self.executor.undo(id)

    async def aclose(self) -> None:
        await super().aclose()
        await self.executor.aclose()

    async def __aenter__(self) -> LocalToolHost:
        self.executor.warm()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()
