"""A toolset for agents of Pydantic AI: Python, Bash and files of a session."""

from __future__ import annotations

from typing import Any

from pydantic_ai import BinaryContent
from pydantic_ai.toolsets import FunctionToolset

from .sandbox import MAX_TEXT, Sandbox, told, tools

_REQUESTER = "pydantic-ai"
_MAX_PICTURES = 3


def toolset(sandbox: Sandbox) -> FunctionToolset[Any]:
    """The tools `run_python`, `run_bash`, `read_file` and `write_file`, for `Agent(toolsets=[…])`."""

    async def run_python(code: str) -> Any:
        """Run Python in a sandbox, and get what it printed and its last expression. Variables and files stay; figures
        of matplotlib come back as pictures.

        Args:
            code: The source text.
        """
        return await sandbox.in_thread(_run, sandbox, code)

    _, *others = tools(sandbox, _REQUESTER)
    return FunctionToolset([run_python, *others])


def _run(sandbox: Sandbox, code: str) -> Any:
    pictures: list[Any] = []

    def run() -> str:
        result = sandbox.run(code, requester=_REQUESTER)
        shown = [display.png for display in result.displays if display.png][:_MAX_PICTURES]
        pictures.extend(BinaryContent(data=png, media_type="image/png") for png in shown)
        return result.to_text(MAX_TEXT)

    text = told(run)
    return [text, *pictures] if pictures else text
