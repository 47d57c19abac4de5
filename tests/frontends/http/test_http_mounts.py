"""Other interfaces below an address of the service."""

from __future__ import annotations

import asyncio
import sys
import types
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from redoma.config import AuditConfig, Config
from redoma.frontends.http import mounts
from redoma.frontends.http.app import build
from redoma.frontends.http.service import Service


def test_a_mounted_application_answers_and_lives_with_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        happened.append(scope["path"])
        await send({"type": "http.response.start", "status": 203, "headers": []})
        await send({"type": "http.response.body", "body": b"mounted"})

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        happened.append("begins")
        yield
        happened.append("ends")

    module = types.ModuleType("extra_mount")
    module.mount = lambda service: mounts.Mount("/extra", app, lifespan)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "extra_mount", module)
    monkeypatch.setattr(mounts, "MOUNTS", ("extra_mount", "not_installed_here.mount"))
    config = Config(audit=AuditConfig(directory=tmp_path / "audit"), state=tmp_path / "state")

    async def ask() -> list[Any]:
        made, said = build(Service(config)), []

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            said.append(message)

        scope = {"type": "http", "method": "GET", "path": "/extra/below", "raw_path": b"/extra/below", "root_path": ""}
        async with made.lifespan():
            await made({**scope, "query_string": b"", "headers": []}, receive, send)  # type: ignore[arg-type]
        return said

    said = asyncio.run(ask())
    assert said[0]["status"] == 203
    assert (b"x-content-type-options", b"nosniff") in said[0]["headers"]
    assert happened[0] == "begins"
    assert happened[1].strip("/").endswith("below")
    assert happened[2] == "ends"
