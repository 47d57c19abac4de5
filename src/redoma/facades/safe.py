"""The secure executor on Monty, with its two-key answers."""

from __future__ import annotations

import asyncio
from typing import Any

from ..models import Result
from ..pipeline.sync import Executor, default


async def execute_safe(code: str, *, executor: Executor | None = None) -> dict[str, Any]:
    """Run Python on Monty. Never raises for what the code did.

    Args:
        code: The code; the value of its last expression is the output.
        executor: The executor to run it on; by default one that all callers of this module share.

    Returns:
        `{"status": "success", "output": VALUE}`, or `{"status": "error", "message": TEXT}`. What the code printed, if
        anything, is under `printed`.
    """
    executor = executor or default()
    return answer(await asyncio.wrap_future(executor.start(executor.core.run(code, backend="monty"))))


def answer(result: Result) -> dict[str, Any]:
    """Return a result in the form of this interface."""
    if result.ok:
        said: dict[str, Any] = {"status": "success", "output": result.value}
    else:
        said = {"status": "error", "message": result.error or f"exit status {result.exit_code}"}
    return said | ({"printed": result.stdout} if result.stdout else {})
