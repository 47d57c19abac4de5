"""Tools for LangChain and LangGraph: Python, Bash and files of a session."""

from __future__ import annotations

from collections.abc import Callable

from langchain_core.tools import BaseTool, StructuredTool

from .sandbox import Sandbox

_REQUESTER = "langchain"


def tools(sandbox: Sandbox) -> list[BaseTool]:
    """The tools `run_python`, `run_bash`, `read_file` and `write_file`, for `bind_tools` and agents."""

    def run_python(code: str) -> str:
        """Run Python in a sandbox, and get what it printed and its last expression. Variables and files stay."""
        return sandbox.run_text(code, requester=_REQUESTER)

    def run_bash(script: str) -> str:
        """Run a Bash script in the same sandbox."""
        return sandbox.run_text(script, "bash", requester=_REQUESTER)

    def read_file(path: str) -> str:
        """Read a text file of the sandbox."""
        return sandbox.read_text(path)

    def write_file(path: str, text: str) -> str:
        """Write a text file of the sandbox."""
        return sandbox.write_text(path, text)

    return [_tool(sandbox, function) for function in (run_python, run_bash, read_file, write_file)]


def _tool(sandbox: Sandbox, function: Callable[..., str]) -> BaseTool:
    async def later(**given: str) -> str:
        return await sandbox.in_thread(function, **given)

    return StructuredTool.from_function(function, coroutine=later)
