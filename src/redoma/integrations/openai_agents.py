"""Tools for the OpenAI Agents SDK: Python, Bash and files of a session."""

from __future__ import annotations

from agents import Tool, function_tool

from . import sandbox as shared
from .sandbox import Sandbox


def tools(sandbox: Sandbox) -> list[Tool]:
    """The tools `run_python`, `run_bash`, `read_file` and `write_file`, for `Agent(tools=…)`."""
    return [function_tool(function) for function in shared.tools(sandbox, "openai-agents")]
