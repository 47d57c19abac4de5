"""Redoma runs code and commands that nobody has reviewed, safely.

    import redoma

    result = redoma.run("print('hello'); 6 * 7")
    result.status, result.stdout, result.value      # ok, "hello\\n", 42

Public names are here, each loaded when it is first used: `import redoma` itself loads next to nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers recognise the name; importing `typing` would double the time of this import
if TYPE_CHECKING:
    from typing import Any

    from . import approval as approval
    from . import exec as exec  # noqa: A004 - part of the interface
    from . import scripts as scripts
    from .backends.base import Backend as Backend
    from .backends.base import Capabilities as Capabilities
    from .backends.base import Outcome as Outcome
    from .backends.fake import Answer as Answer
    from .backends.fake import FakeBackend as FakeBackend
    from .config import Config as Config
    from .facades.core import Core as Core
    from .facades.core import command_history as command_history
    from .facades.core import handle_execution_error as handle_execution_error
    from .facades.core import process_command as process_command
    from .facades.core import run_python_code as run_python_code
    from .facades.core import validate_code as validate_code
    from .facades.safe import execute_safe as execute_safe
    from .frontends.http.client import AsyncClient as AsyncClient
    from .frontends.http.client import Client as Client
    from .frontends.http.client import connect as connect
    from .lib.errors import ApprovalError as ApprovalError
    from .lib.errors import AuditError as AuditError
    from .lib.errors import BackendError as BackendError
    from .lib.errors import BackendUnavailable as BackendUnavailable
    from .lib.errors import CallbackError as CallbackError
    from .lib.errors import ConfigError as ConfigError
    from .lib.errors import Conflict as Conflict
    from .lib.errors import EnvironmentProblem as EnvironmentProblem
    from .lib.errors import InvalidRequest as InvalidRequest
    from .lib.errors import NotWritten as NotWritten
    from .lib.errors import PolicyError as PolicyError
    from .lib.errors import RedomaError as RedomaError
    from .lib.errors import Refused as Refused
    from .lib.errors import ServiceError as ServiceError
    from .lib.errors import StoreError as StoreError
    from .lib.errors import Unsupported as Unsupported
    from .lib.errors import WorkspaceError as WorkspaceError
    from .models import Approval as Approval
    from .models import Artifact as Artifact
    from .models import Chunk as Chunk
    from .models import Decision as Decision
    from .models import Denial as Denial
    from .models import Diagnosis as Diagnosis
    from .models import Display as Display
    from .models import Evaluation as Evaluation
    from .models import Finding as Finding
    from .models import HostRule as HostRule
    from .models import Isolation as Isolation
    from .models import Level as Level
    from .models import Limits as Limits
    from .models import NetworkRequest as NetworkRequest
    from .models import Request as Request
    from .models import Result as Result
    from .models import Secret as Secret
    from .models import Status as Status
    from .models import Usage as Usage
    from .pipeline.batch import map as map  # noqa: A004 - part of the interface
    from .pipeline.executor import AsyncExecutor as AsyncExecutor
    from .pipeline.streaming import AsyncLiveRun as AsyncLiveRun
    from .pipeline.sync import Executor as Executor
    from .pipeline.sync import LiveRun as LiveRun
    from .pipeline.sync import arun as arun
    from .pipeline.sync import command as command
    from .pipeline.sync import run as run
    from .pipeline.sync import stream as stream
    from .policy import Rule as Rule
    from .sessions.best import Best as Best
    from .sessions.best import abest_of as abest_of
    from .sessions.best import best_of as best_of
    from .sessions.session import AsyncSession as AsyncSession
    from .sessions.session import Session as Session
    from .telemetry import metrics as metrics
    from .workspace.atomic import atomic_write as atomic_write

__version__ = "0.1.0"

_HOMES = {
    "backends.base": "Backend Capabilities Outcome",
    "backends.fake": "Answer FakeBackend",
    "frontends.http.client": "AsyncClient Client connect",
    "config": "Config",
    "lib.errors": (
        "ApprovalError AuditError BackendError BackendUnavailable CallbackError ConfigError Conflict "
        "EnvironmentProblem InvalidRequest NotWritten PolicyError RedomaError Refused ServiceError StoreError "
        "Unsupported WorkspaceError"
    ),
    "pipeline.batch": "map",
    "pipeline.executor": "AsyncExecutor",
    "facades.core": "Core command_history handle_execution_error process_command run_python_code validate_code",
    "facades.safe": "execute_safe",
    "models": (
        "Approval Artifact Chunk Decision Denial Diagnosis Display Evaluation Finding HostRule Isolation Level Limits "
        "NetworkRequest Request Result Secret Status Usage"
    ),
    "policy": "Rule",
    "sessions.best": "Best abest_of best_of",
    "sessions.session": "AsyncSession Session",
    "pipeline.streaming": "AsyncLiveRun",
    "pipeline.sync": "Executor LiveRun arun command run stream",
    "workspace.atomic": "atomic_write",
}
_MODULES = {"approval": "approval", "exec": "exec", "metrics": "telemetry.metrics", "scripts": "scripts"}
"""Modules that are public themselves. `exec` and `map` are not in `__all__`: a star import would hide builtins."""
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = sorted({*_HOME_OF, *_MODULES} - {"exec", "map"})


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
