"""Time for the rules and collectors of tests: on a busy machine a process may get no processor for seconds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from redoma.monitor import actions, collect, rules

SECONDS = 60.0
_evaluated = rules._run

PROGRAM = (
    sys.executable,
    "-c",
    f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import patience; sys.path.pop(0); "
    "patience.take(); from redoma.frontends.cli import main; main()",
)
"""The real program, with that time."""


async def _run(*given: Any) -> Any:
    """Evaluate a rule without haste, unless it has no end: how soon that one is given up is what is tested."""
    made, facts, check, executor, backend, limits, pack = given
    if "while True" not in check.rule:
        limits = msgspec.structs.replace(limits, time=SECONDS)
    return await _evaluated(made, facts, check, executor, backend, limits, pack)


CHANGED: list[tuple[Any, str, Any]] = [
    (rules, "_run", _run),
    (actions, "NOTICE_SECONDS", SECONDS),
    *((collect, name, SECONDS) for name in ("_SECONDS", "MOUNT_SECONDS", "_FILE_SECONDS", "_COMMAND_SECONDS")),
]


def take() -> None:
    for module, name, value in CHANGED:
        setattr(module, name, value)


class GivesUpOn(collect.BoundedCalls):
    """Waits for one call for a moment only, and for all others for as long as they take."""

    def __init__(self, name: str, seconds: float) -> None:
        super().__init__()
        self._name, self._moment = name, seconds

    async def run(self, name: str, work: Any, seconds: float, *, stop: Any = None) -> Any:
        return await super().run(name, work, self._moment if name == self._name else SECONDS, stop=stop)
