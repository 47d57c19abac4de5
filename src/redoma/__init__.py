"""Redoma runs code and commands that nobody has reviewed, safely.

    import redoma

    result = redoma.run("print('hello'); 6 * 7")
    result.status, result.stdout, result.value      # ok, "hello\\n", 42

Public names are here, each loaded when it is first used: `import redoma` itself loads next to nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as type checkers know it; `typing` itself would double the time of this import
if TYPE_CHECKING:
    from typing import Any

    from . import approval, scripts
    from . import exec as exec  # noqa: A004 - part of the interface
    from .backends.base import Backend, Capabilities, Outcome
    from .backends.fake import Answer, FakeBackend
    from .config import Config
    from .facades.core import (
        Core,
        command_history,
        handle_execution_error,
        process_command,
        run_python_code,
        validate_code,
    )
    from .facades.safe import execute_safe
    from .lib.errors import (
        ApprovalError,
        AuditError,
        BackendError,
        BackendUnavailable,
        CallbackError,
        ConfigError,
        Conflict,
        InvalidRequest,
        NotWritten,
        PolicyError,
        RedomaError,
        Refused,
        StoreError,
        Unsupported,
        WorkspaceError,
    )
    from .models import (
        Approval,
        Artifact,
        Chunk,
        Decision,
        Denial,
        Diagnosis,
        Evaluation,
        Finding,
        Isolation,
        Level,
        Limits,
        Request,
        Result,
        Status,
        Usage,
    )
    from .pipeline.executor import AsyncExecutor
    from .pipeline.streaming import AsyncLiveRun
    from .pipeline.sync import Executor, LiveRun, arun, command, run, stream
    from .policy import Rule
    from .telemetry import metrics
    from .workspace.atomic import atomic_write

__version__ = "0.1.0"

_HOMES = {
    "backends.base": "Backend Capabilities Outcome",
    "backends.fake": "Answer FakeBackend",
    "config": "Config",
    "lib.errors": (
        "ApprovalError AuditError BackendError BackendUnavailable CallbackError ConfigError Conflict InvalidRequest "
        "NotWritten PolicyError RedomaError Refused StoreError Unsupported WorkspaceError"
    ),
    "pipeline.executor": "AsyncExecutor",
    "facades.core": "Core command_history handle_execution_error process_command run_python_code validate_code",
    "facades.safe": "execute_safe",
    "models": (
        "Approval Artifact Chunk Decision Denial Diagnosis Evaluation Finding Isolation Level Limits Request Result "
        "Status Usage"
    ),
    "policy": "Rule",
    "pipeline.streaming": "AsyncLiveRun",
    "pipeline.sync": "Executor LiveRun arun command run stream",
    "workspace.atomic": "atomic_write",
}
_MODULES = {"approval": "approval", "exec": "exec", "metrics": "telemetry.metrics", "scripts": "scripts"}
"""Modules that are public by themselves: `redoma.exec` (not in `__all__`: a star import would hide the builtin)."""
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = [
    "Answer",
    "Approval",
    "ApprovalError",
    "Artifact",
    "AsyncExecutor",
    "AsyncLiveRun",
    "AuditError",
    "Backend",
    "BackendError",
    "BackendUnavailable",
    "CallbackError",
    "Capabilities",
    "Chunk",
    "Config",
    "ConfigError",
    "Conflict",
    "Core",
    "Decision",
    "Denial",
    "Diagnosis",
    "Evaluation",
    "Executor",
    "FakeBackend",
    "Finding",
    "InvalidRequest",
    "Isolation",
    "Level",
    "Limits",
    "LiveRun",
    "NotWritten",
    "Outcome",
    "PolicyError",
    "RedomaError",
    "Refused",
    "Request",
    "Result",
    "Rule",
    "Status",
    "StoreError",
    "Unsupported",
    "Usage",
    "WorkspaceError",
    "approval",
    "arun",
    "atomic_write",
    "command",
    "command_history",
    "execute_safe",
    "handle_execution_error",
    "metrics",
    "process_command",
    "run",
    "run_python_code",
    "scripts",
    "stream",
    "validate_code",
]


def __getattr__(name: str) -> Any:
    import importlib

    if name in _MODULES:
        return importlib.import_module(f".{_MODULES[name]}", __name__)
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOME_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
