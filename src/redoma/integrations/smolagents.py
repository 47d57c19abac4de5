"""An executor for the CodeAgent of smolagents: the code that the model writes runs in a session.

Tools of the agent are sent into the session as source text, as smolagents does for its remote executors, and run there.
What comes back is plain data that the session has checked: no pickle.
"""

from __future__ import annotations

import json
from typing import Any

from smolagents import Tool
from smolagents.local_python_executor import CodeOutput, PythonExecutor
from smolagents.tools import get_tools_definition_code

from ..lib.errors import InvalidRequest, RedomaError
from ..models import Result
from .sandbox import MAX_TEXT, Sandbox

_REQUESTER = "smolagents"
_FINAL = "RedomaFinalAnswer"
_FINAL_ANSWER = f"""
class {_FINAL}(BaseException):
    pass

def final_answer(answer=None):
    global _redoma_final_answer
    _redoma_final_answer = answer
    raise {_FINAL}
"""


class RedomaExecutor(PythonExecutor):  # type: ignore[misc] # its types are not read
    """For `CodeAgent(executor=RedomaExecutor(sandbox))`. Raises `RedomaError` for code that did not end well, which the
    agent passes on to its model."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.state: dict[str, Any] = {}
        """Where the agent looks for what was printed before an error."""

    def send_tools(self, tools: dict[str, Tool]) -> None:
        """Define the agent's tools in the session. Raises `InvalidRequest` for an agent among them."""
        others = {name: tool for name, tool in tools.items() if name != "final_answer"}
        for name, tool in others.items():
            if not isinstance(tool, Tool):
                raise InvalidRequest(
                    f"{name} can't be used in a sandbox",
                    why="a managed agent runs in this process, and its calls can't get out",
                    next="leave managed_agents out",
                )
        code = get_tools_definition_code(others) if others else ""
        self._run(f"{code}\n{_FINAL_ANSWER}")

    def send_variables(self, variables: dict[str, Any]) -> None:
        """Set variables in the session: plain data only. Raises `InvalidRequest` for others."""
        if not variables:
            return
        try:
            text = json.dumps(variables)
        except (TypeError, ValueError) as error:
            raise InvalidRequest(
                "the variables can't be sent into the sandbox", why=str(error), next="send plain data only"
            ) from None
        self._run(f"import json as _json\nglobals().update(_json.loads({text!r}))")

    def __call__(self, code_action: str) -> CodeOutput:
        result = self.sandbox.run(code_action, requester=_REQUESTER)
        logs = result.stdout + result.stderr * (not result.ok and result.exception != _FINAL)
        self.state["_print_outputs"] = logs
        if result.exception == _FINAL:
            final = self._run("_redoma_final_answer")
            return CodeOutput(output=final.value, logs=result.stdout, is_final_answer=True)
        _must_be_ok(result)
        return CodeOutput(output=result.value, logs=logs, is_final_answer=False)

    def cleanup(self) -> None:
        """End the session; the agent calls this."""
        self.sandbox.close()

    def _run(self, code: str) -> Result:
        result = self.sandbox.run(code, requester=_REQUESTER)
        _must_be_ok(result)
        return result


def _must_be_ok(result: Result) -> None:
    if not result.ok:
        raise RedomaError(result.error or result.to_text(MAX_TEXT), why=result.denial.why if result.denial else "")
