"""Tools for LangChain and LangGraph: Python, Bash and files of a session."""

from __future__ import annotations

from langchain_core.tools import BaseTool, StructuredTool

from .sandbox import Sandbox

_REQUESTER = "langchain"


def tools(sandbox: Sandbox) -> list[BaseTool]:
    """The tools `run_python`, `run_bash`, `read_file` and `write_file`, for `bind_tools` and agents."""

    def run_python(code: str) -> str:
        """Run Python in a sandbox, and get what it printed and its last expression. Variables and files stay."""
        return sandbox.run_text(code, requester=_REQUESTER)

    async def run_python_later(code: str) -> str:
        return await sandbox.in_thread(run_python, code)

    def run_bash(script: str) -> str:
        """Run a Bash script in the same sandbox."""
        return sandbox.run_text(script, "bash", requester=_REQUESTER)

    async def run_bash_later(script: str) -> str:
        return await sandbox.in_thread(run_bash, script)

    def read_file(path: str) -> str:
        """Read a text file of the sandbox."""
        return sandbox.read_text(path)

    async def read_file_later(path: str) -> str:
        return await sandbox.in_thread(read_file, path)

    def write_file(path: str, text: str) -> str:
        """Write a text file of the sandbox."""
        return sandbox.write_text(path, text)

    async def write_file_later(path: str, text: str) -> str:
        return await sandbox.in_thread(write_file, path, text)

    return [
        StructuredTool.from_function(run_python, coroutine=run_python_later),
        StructuredTool.from_function(run_bash, coroutine=run_bash_later),
        StructuredTool.from_function(read_file, coroutine=read_file_later),
        StructuredTool.from_function(write_file, coroutine=write_file_later),
    ]
