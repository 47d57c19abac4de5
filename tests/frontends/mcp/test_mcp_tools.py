"""Every tool, by the SDK's own client, over both transports, in both eras of the protocol."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp_places import ERAS, VERSIONS, Local, over_http, text
from mcp_types import CallToolResult, Tool

from serving import Serving

TOOLS = {
    *("run_python", "run_bash", "run_command", "check", "try_command", "apply_changes", "discard_changes"),
    *("undo_changes", "session_open", "session_list", "session_restart", "session_interrupt", "session_close"),
    *("read_file", "write_file", "list_files"),
}
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
PICTURE = f"class P:\n    def _repr_png_(self): return {PNG!r}\nP()"


@asynccontextmanager
async def place(where: str, era: str, server: Serving, home: Path) -> AsyncIterator[Client]:
    opened = Local(home).client(era) if where == "stdio" else over_http(server, era)
    async with opened as client:
        yield client


async def call(client: Client, name: str, **arguments: Any) -> CallToolResult:
    result = await client.call_tool(name, arguments)
    assert not result.is_error, text(result)
    return result


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("where", ["stdio", "http"])
async def test_every_tool_answers(where: str, era: str, server: Serving, tmp_path: Path) -> None:
    async with place(where, era, server, tmp_path / "home") as client:
        assert client.protocol_version == VERSIONS[era]
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(listed) == TOOLS
        assert all(tool.output_schema and tool.annotations and tool.title for tool in listed.values())
        must_be_accurate(listed)
        await runs(client)
        await sessions(client)
        await project(client, "" if where == "stdio" else "app", server, era)


async def runs(client: Client) -> None:
    ran = await call(client, "run_python", code="import sys\nprint(sys.argv[1:])\n6 * 7", args=["a"])
    assert ran.structured_content["value"] == "42"
    assert (ran.structured_content["status"], ran.structured_content["stdout"]) == ("ok", "['a']\n")
    assert text(ran) == "status: ok\nstdout: ['a']\nvalue: 42"
    ran = await call(client, "run_bash", script="cat data.txt; cat > out.txt", files={"data.txt": "hi"}, stdin="x",
                     outputs=["out.txt"])  # fmt: skip
    assert (ran.structured_content["stdout"], ran.structured_content["files"]) == ("hi", {"out.txt": 1})
    ran = await call(client, "run_command", command=["echo", "a b"])
    assert ran.structured_content["stdout"] == "a b\n"
    failed = await client.call_tool("run_python", {"code": "1 / 0"})
    assert failed.is_error
    assert "ZeroDivisionError" in text(failed)
    verdict = await call(client, "check", code="rm -rf /", language="bash")
    assert verdict.structured_content["decision"] in ("allow", "prompt", "forbid")
    assert verdict.structured_content["findings"]
    wrong = await client.call_tool("run_python", {"code": "1", "timeout": -1})
    assert wrong.is_error


async def sessions(client: Client) -> None:
    opened = (await call(client, "session_open")).structured_content["session_id"]
    await call(client, "run_python", code="x = 41", session_id=opened)
    assert (await call(client, "run_python", code="x + 1", session_id=opened)).structured_content["value"] == "42"
    shown = await call(client, "run_python", code=PICTURE, session_id=opened)
    picture = next(block for block in shown.content if block.type == "image")
    assert (picture.mime_type, base64.b64decode(picture.data)) == ("image/png", PNG)
    await call(client, "run_bash", script="mkdir -p sub && cd sub && echo deep > file", session_id=opened)
    assert (await call(client, "run_command", command=["cat", "file"], session_id=opened)).structured_content[
        "stdout"
    ] == "deep\n"
    await call(client, "write_file", session_id=opened, path="a/b.txt", text="é" * 40_000)
    first = await call(client, "read_file", session_id=opened, path="a/b.txt")
    rest = await call(
        client, "read_file", session_id=opened, path="a/b.txt", offset=first.structured_content["next_offset"]
    )
    assert first.structured_content["text"] + rest.structured_content["text"] == "é" * 40_000
    await call(client, "write_file", session_id=opened, path="p.png", base64_content=base64.b64encode(PNG).decode())
    assert [block.type for block in (await call(client, "read_file", session_id=opened, path="p.png")).content] == [
        "text",
        "image",
    ]
    listed = await call(client, "list_files", session_id=opened, path="a")
    assert [entry["name"] for entry in listed.structured_content["entries"]] == ["b.txt"]
    missing = await client.call_tool("read_file", {"session_id": opened, "path": "none"})
    assert missing.is_error
    assert "No such file" in text(missing)
    assert (await call(client, "session_interrupt", session_id=opened)).structured_content["done"] == "nothing ran"
    assert (await call(client, "session_restart", session_id=opened)).structured_content["alive"]
    assert (await client.call_tool("run_python", {"code": "x", "session_id": opened})).is_error
    found = (await call(client, "session_list")).structured_content["sessions"]
    assert opened in [each["session_id"] for each in found]
    await call(client, "session_close", session_id=opened)
    gone = await client.call_tool("run_python", {"code": "x", "session_id": opened})
    assert "there is no session" in text(gone)


async def project(client: Client, name: str, server: Serving, era: str) -> None:
    named = {"project": name} if name else {}
    tried = await call(client, "try_command", command="echo two >> notes.txt; echo new > added.txt", **named)
    assert {each["path"]: each["kind"] for each in tried.structured_content["changes"]} == {
        "added.txt": "added",
        "notes.txt": "modified",
    }
    assert "+two" in tried.structured_content["diff"]
    assert tried.structured_content["run"]["status"] == "ok"
    kept = tried.structured_content["id"]
    if name:  # there two have to agree
        refused = await client.call_tool("apply_changes", {"id": kept})
        assert "lacks the scope approve" in text(refused)
        async with over_http(server, era, "boss") as boss:
            assert (await call(boss, "apply_changes", id=kept)).structured_content["state"] == "applied"
            assert (await call(boss, "undo_changes", id=kept)).structured_content["state"] == "undone"
    else:
        assert (await call(client, "apply_changes", id=kept)).structured_content["state"] == "applied"
        assert (await call(client, "undo_changes", id=kept)).structured_content["state"] == "undone"
    other = (await call(client, "try_command", command="rm notes.txt", **named)).structured_content["id"]
    assert (await call(client, "discard_changes", id=other)).structured_content["state"] == "discarded"


def must_be_accurate(tools: dict[str, Tool]) -> None:
    """What tools say of themselves: clients ask their users by it."""
    hints = {name: tool.annotations for name, tool in tools.items()}
    looks = {name for name, hint in hints.items() if hint and hint.read_only_hint}
    assert looks == {"check", "session_list", "read_file", "list_files"}
    destroys = {name for name, hint in hints.items() if hint and hint.destructive_hint}
    assert destroys == {
        *("apply_changes", "undo_changes", "discard_changes", "write_file", "session_close", "session_restart"),
    }
    reaches = {name for name, hint in hints.items() if hint and hint.open_world_hint}
    assert reaches == {"run_python", "run_bash", "run_command"}
