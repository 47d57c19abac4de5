"""The adapters, in the real frameworks, with scripted models."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from smolagents import FinalAnswerTool, tool

from pace import SLOW
from redoma import Config, Executor
from redoma.audit.read import records
from redoma.config import SessionsConfig
from redoma.integrations import langchain, openai_agents, pydantic_ai
from redoma.integrations.deepagents import RedomaBackend
from redoma.integrations.sandbox import Sandbox
from redoma.integrations.smolagents import RedomaExecutor
from redoma.lib.errors import InvalidRequest, RedomaError

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
PRINTED = {
    "pydantic_ai_agent.py": "the tool said:\nstatus: ok\nvalue: 45\n",
    "langchain_tools.py": "status: ok\nvalue: 45\nIt is 45.\n",
    "deep_agent.py": "2\nIt has two lines.\n",
    "smolagents_agent.py": "14\n",
    "openai_agents_agent.py": "the tool said:\nstatus: ok\nvalue: 45\n",
}


def test_every_example_is_tested() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(PRINTED)


@pytest.mark.parametrize("name", sorted(PRINTED))
def test_the_example_of_a_framework_runs(name: str) -> None:
    ran = subprocess.run(
        [sys.executable, EXAMPLES / name], capture_output=True, text=True, check=False, timeout=120 * SLOW
    )
    assert (ran.returncode, ran.stdout) == (0, PRINTED[name]), ran.stderr


@pytest.fixture
def sandbox(config: Config) -> Iterator[Sandbox]:
    patient = msgspec.structs.replace(config, sessions=SessionsConfig(grace=60.0))  # for what was cancelled to end
    with Executor(patient) as executor, Sandbox(executor) as sandbox:
        yield sandbox


def requesters(config: Config) -> set[str]:
    return {record.data["requester"] for record in records(config.audit.directory, kinds={"intent"})}


async def test_tools_of_pydantic_ai_share_a_session_and_show_pictures(sandbox: Sandbox, config: Config) -> None:
    found = pydantic_ai.toolset(sandbox).tools
    assert set(found) == {"run_python", "run_bash", "read_file", "write_file"}
    call: dict[str, Any] = {name: each.function for name, each in found.items()}
    assert "wrote 2 characters" in await call["write_file"]("f.txt", "hi")
    assert "hi" in await call["run_bash"]("cat f.txt")
    assert "1 / 0" in await call["run_python"]("1 / 0")
    text, picture = await call["run_python"]("class P:\n    def _repr_png_(self): return b'\\x89PNG'\nP()")
    assert (text.splitlines()[0], picture.media_type) == ("status: ok", "image/png")
    assert "No such file" in await call["read_file"]("none")
    assert requesters(config) == {"pydantic-ai"}


async def test_tools_of_langchain_work_in_ordinary_and_asynchronous_code(sandbox: Sandbox, config: Config) -> None:
    known = {each.name: each for each in langchain.tools(sandbox)}
    assert await asyncio.to_thread(known["run_python"].invoke, {"code": "x = 41"}) == "status: ok"
    assert await known["run_python"].ainvoke({"code": "x + 1"}) == "status: ok\nvalue: 42"
    assert await known["write_file"].ainvoke({"path": "a", "text": "b"}) == "wrote 1 characters to a"
    assert await known["read_file"].ainvoke({"path": "a"}) == "b"
    assert requesters(config) == {"langchain"}


def test_files_and_the_shell_of_deep_agents_are_the_sessions(sandbox: Sandbox, config: Config) -> None:
    backend = RedomaBackend(sandbox)
    assert backend.write("/tmp/notes/a.txt", "one\ntwo\n").error is None
    assert backend.edit("/tmp/notes/a.txt", "two", "three").error is None
    assert backend.download_files(["/tmp/notes/a.txt", "/none"])[0].content == b"one\nthree\n"
    assert [each.error for each in backend.download_files(["/none", "/tmp"])] == ["file_not_found", "is_directory"]
    assert backend.upload_files([("/tmp/b.bin", b"\x00"), ("/proc/x", b"")])[0].error is None
    ran = backend.execute("cat /tmp/notes/a.txt; echo bad >&2; exit 3")
    assert (ran.output, ran.exit_code) == ("one\nthree\nbad\n", 3)
    assert backend.execute("sleep 100", timeout=1).exit_code == 124
    assert requesters(config) == {"deepagents"}


def test_tools_of_the_openai_agents_sdk_are_described(sandbox: Sandbox) -> None:
    described: dict[str, Any] = {each.name: each for each in openai_agents.tools(sandbox)}
    assert set(described) == {"run_python", "run_bash", "read_file", "write_file"}
    assert described["run_python"].params_json_schema["properties"]["code"]["description"] == "The source text."


@tool  # type: ignore[untyped-decorator] # it has no types
def double(number: int) -> int:
    """Double a number.

    Args:
        number: Any number.
    """
    return 2 * number


def test_code_of_smolagents_runs_in_the_session_with_its_tools(sandbox: Sandbox, config: Config) -> None:
    executor = RedomaExecutor(sandbox)
    executor.send_tools({"double": double, "final_answer": FinalAnswerTool()})
    executor.send_variables({"numbers": [1, 2]})
    ran = executor("print(numbers)\ndouble(21)")
    assert (ran.output, ran.logs, ran.is_final_answer) == (42, "[1, 2]\n", False)
    final = executor("try:\n    final_answer({'n': double(2)})\nexcept Exception:\n    pass")
    assert (final.output, final.is_final_answer) == ({"n": 4}, True)
    with pytest.raises(RedomaError, match="ZeroDivisionError"):
        executor("print('before')\n1 / 0")
    assert "before" in executor.state["_print_outputs"]
    with pytest.raises(InvalidRequest, match="plain data"):
        executor.send_variables({"x": object()})
    with pytest.raises(InvalidRequest, match="managed agent"):
        executor.send_tools({"helper": object()})
    assert requesters(config) == {"smolagents"}


async def test_cancelling_a_tool_ends_what_runs_and_the_session_goes_on(sandbox: Sandbox) -> None:
    run_python: Any = pydantic_ai.toolset(sandbox).tools["run_python"].function
    await run_python("x = 1")
    call = asyncio.ensure_future(run_python("import time\nwhile True: time.sleep(0.05)"))
    deadline = time.monotonic() + 30 * SLOW
    while sandbox.session.core.current is None:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await run_python("x") == "status: ok\nvalue: 1"


def test_a_session_that_was_ended_begins_anew(sandbox: Sandbox) -> None:
    assert sandbox.run("1", requester="test").ok
    sandbox.session.close()
    assert sandbox.run_text("6 * 7", requester="test") == "status: ok\nvalue: 42"
