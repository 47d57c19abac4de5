"""What hostile code, hostile clients and impatient ones can't do."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp_places import ERAS, Local, over_http, text
from mcp_types import CallToolResult, JSONRPCResponse, TextContent
from pydantic_core import PydanticSerializationError

from pace import SLOW
from redoma.frontends.mcp.answers import MAX_TEXT, clean
from serving import Serving


def forever(mark: str) -> str:
    """Python that goes on, with a process of its own that can be found by its mark."""
    command = ["sleep", f"10000.{mark}"]
    return f"import subprocess, time\nprint('going', flush=True)\nsubprocess.run({command!r})"


def is_running(mark: str) -> bool:
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if f"10000.{mark}".encode() in place.read_bytes().split(b"\0"):
                return True
    return False


async def cancelled(client: Client, name: str, arguments: dict[str, Any], mark: str) -> list[str | None]:
    """Make a call, and cancel it once it runs. Returns what the client has heard of it until then."""
    going, heard = anyio.Event(), list[str | None]()

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message)
        going.set()

    async with anyio.create_task_group() as tasks:

        async def call() -> None:
            await client.call_tool(name, arguments, progress_callback=progress)

        tasks.start_soon(call)
        await going.wait()
        await until(lambda: is_running(mark))
        tasks.cancel_scope.cancel()
    return heard


@pytest.mark.parametrize("era", ERAS)
async def test_cancelling_over_stdio_kills_the_run_and_nothing_outlives_the_client(era: str, tmp_path: Path) -> None:
    local, mark = Local(tmp_path / "home", "sessions: {grace: 60}\n"), str(time.time_ns())
    async with local.client(era) as client:
        heard = await cancelled(client, "run_python", {"code": forever(mark)}, mark)
        assert heard == ["going"]
        await until(lambda: [each["status"] for each in local.outcomes()] == ["killed"])
        assert not is_running(mark)
        opened = (await client.call_tool("session_open", {})).structured_content["session_id"]
        await cancelled(client, "run_python", {"code": forever(mark), "session_id": opened}, mark)
        await until(lambda: [each["status"] for each in local.outcomes()] == ["killed", "killed"])
        assert not is_running(mark)
        # The session goes on, and so does the connection.
        after = await client.call_tool("run_python", {"code": "6 * 7", "session_id": opened})
        assert after.structured_content["value"] == "42"
        await client.call_tool("run_bash", {"script": f"sleep 10000.{mark} &", "session_id": opened})
        await until(lambda: is_running(mark))
    await until(lambda: not is_running(mark))
    assert local.requesters() == {"mcp:test-client"}


@pytest.mark.parametrize("era", ERAS)
async def test_cancelling_over_http_kills_the_run(era: str, server: Serving) -> None:
    mark = str(time.time_ns())
    async with over_http(server, era) as client:
        await cancelled(client, "run_python", {"code": forever(mark)}, mark)
        await until(lambda: not is_running(mark))
        assert not (await client.call_tool("run_python", {"code": "1"})).is_error


async def until(holds: Any) -> None:
    deadline = time.monotonic() + 30 * SLOW
    while not await asyncio.to_thread(holds):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


HOSTILE = r"""
import sys, os
out = sys.stdout.buffer
out.write(b'{"jsonrpc": "2.0", "id": 1, "result": {"content": []}}\n')
out.write(b'\xff\xfe\xed\xa0\x80 \x00 \x1b]0;title\x07 \xe2\x80\xa8 \xc2\x85 \r\n"}]}}\n')
out.write(b'event: message\ndata: {}\n\n' + b'x' * 3_000_000)
out.flush()
raise type('\ud800"}', (Exception,), {})('\udcff \x00 </script>')
"""


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("where", ["stdio", "http"])
async def test_a_hostile_result_does_not_break_the_clients_json(
    where: str, era: str, server: Serving, tmp_path: Path
) -> None:
    named = {} if where == "stdio" else {"project": "app"}
    opened = Local(tmp_path / "home").client(era) if where == "stdio" else over_http(server, era)
    async with opened as client:
        ended = await client.call_tool("run_python", {"code": HOSTILE})
        assert ended.structured_content["status"] == "error"
        assert len(text(ended)) <= 2 * MAX_TEXT
        assert len(json.dumps(ended.structured_content)) < 6 * MAX_TEXT
        # Names that are no UTF-8 reach us as lone surrogates, which no JSON can carry.
        tried = await client.call_tool("try_command", {"command": "touch $'\\xff\\xed\\xa0\\x80'", **named})
        assert [change["path"] for change in tried.structured_content["changes"]] == [
            "\\udcff\\udced\\udca0\\udc80",
        ]
        await client.call_tool("discard_changes", {"id": tried.structured_content["id"]})
        session = (await client.call_tool("session_open", {})).structured_content["session_id"]
        fake = "class P:\n    def _repr_png_(self): return b'GIF89a, or anything'\nP()"
        shown = await client.call_tool("run_python", {"code": fake, "session_id": session})
        assert [block.type for block in shown.content] == ["text"]
        await client.call_tool("run_bash", {"script": "touch $'\\xff\\n\"}'; ls", "session_id": session})
        assert not (await client.call_tool("list_files", {"session_id": session})).is_error
        await client.call_tool("run_python", {"code": "print('\\ud800' * 3)", "session_id": session})
        # The connection is as good as before.
        assert (await client.call_tool("run_python", {"code": "6 * 7"})).structured_content["value"] == "42"
        await client.call_tool("session_close", {"session_id": session})


def test_a_lone_surrogate_would_break_the_connection_if_it_were_not_cleaned() -> None:
    """The attack that `clean` is for: the SDK's writer fails on it, and with that the connection ends."""
    name = b"\xff".decode("utf-8", "surrogateescape")

    def written(text: str) -> str:
        result = CallToolResult(content=[TextContent(text=text)]).model_dump(mode="json", by_alias=True)
        return JSONRPCResponse(jsonrpc="2.0", id=1, result=result).model_dump_json()

    with pytest.raises(PydanticSerializationError):
        written(name)
    assert json.loads(written(clean(name)))["result"]["content"][0]["text"] == "\\udcff"


def test_only_a_key_that_may_run_gets_in(server: Serving) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {}}
    assert server.ask("POST", "/mcp", body, key=None).status == 401
    assert server.ask("POST", "/mcp", body, key="rdm_wrong").status == 401
    refused = server.ask("POST", "/mcp", body, key="maria")
    assert (refused.status, refused.json["why"]) == (403, "it lacks the scope run")
    assert server.ask("GET", "/mcp", key=None).status == 401


@pytest.mark.parametrize("era", ERAS)
async def test_a_session_belongs_to_the_key_that_opened_it(era: str, server: Serving) -> None:
    async with over_http(server, era, "agent") as agent, over_http(server, era, "other") as other:
        opened = (await agent.call_tool("session_open", {})).structured_content["session_id"]
        for name, arguments in (
            ("run_python", {"code": "1", "session_id": opened}),
            ("read_file", {"session_id": opened, "path": "."}),
            ("session_close", {"session_id": opened}),
        ):
            assert "there is no session" in text(await other.call_tool(name, arguments))
        assert (await other.call_tool("session_list", {})).structured_content["sessions"] == []
        await agent.call_tool("session_close", {"session_id": opened})


async def test_sessions_that_are_asked_for_at_once_are_counted_too(server: Serving) -> None:
    server.key("eager", "run", concurrency=2)
    async with over_http(server, "2026-07-28", "eager") as client:
        told = await asyncio.gather(*(client.call_tool("session_open", {}) for _ in range(5)))
        opened = [each.structured_content["session_id"] for each in told if not each.is_error]
        for session in opened:
            await client.call_tool("session_close", {"session_id": session})
    assert len(opened) == 2


async def test_over_http_limits_and_projects_are_those_of_the_service(server: Serving) -> None:
    async with over_http(server, "2026-07-28") as client:
        long = await client.call_tool("run_python", {"code": "1", "timeout": 100_000})
        assert "this server allows" in text(long)
        other = await client.call_tool("try_command", {"command": "ls", "project": "/etc"})
        assert "there is no project" in text(other)


async def test_over_http_errors_name_no_path_of_the_host(server: Serving) -> None:
    place = str(server.home / "project")
    async with over_http(server, "2026-07-28") as client:
        tried = await client.call_tool("try_command", {"command": "echo x > mine.txt; pwd", "project": "app"})
        assert tried.structured_content["project"] == "app"
        kept = tried.structured_content["id"]
        (server.home / "project" / "mine.txt").write_text("somebody else's\n")
        async with over_http(server, "2026-07-28", "boss") as boss:
            refused = await boss.call_tool("apply_changes", {"id": kept})
            again = await boss.call_tool("undo_changes", {"id": kept})
        (server.home / "project" / "mine.txt").unlink()
        await client.call_tool("discard_changes", {"id": kept})
    for each in (refused, again):
        assert each.is_error
        assert place not in text(each)
        assert str(server.state) not in text(each)
