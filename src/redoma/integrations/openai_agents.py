"""Tools for the OpenAI Agents SDK: Python, Bash and files of a session."""

from __future__ import annotations

from agents import Tool, function_tool

from .sandbox import Sandbox

_REQUESTER = "openai-agents"


def tools(sandbox: Sandbox) -> list[Tool]:
    """The tools `run_python`, `run_bash`, `read_file` and `write_file`, for `Agent(tools=…)`."""

    async def run_python(code: str) -> str:
        """Run Python in a sandbox, and get what it printed and its last expression. Variables and files stay.

        Args:
            code: The source text.
        """
        return await sandbox.in_thread(sandbox.run_text, code, requester=_REQUESTER)

    async def run_bash(script: str) -> str:
        """Run a Bash script in the same sandbox.

        Args:
            script: The source text.
        """
        return await sandbox.in_thread(sandbox.run_text, script, "bash", requester=_REQUESTER)

    async def read_file(path: str) -> str:
        """Read a text file of the sandbox.

        Args:
            path: Relative to its first directory.
        """
        return await sandbox.in_thread(sandbox.read_text, path)

    async def write_file(path: str, text: str) -> str:
        """Write a text file of the sandbox.

        Args:
            path: Relative to its first directory.
            text: The whole content.
        """
        return await sandbox.in_thread(sandbox.write_text, path, text)

    return [function_tool(function) for function in (run_python, run_bash, read_file, write_file)]
