"""`redoma.scripts`: scripts of Python or Bash, validated and run in containers of their own. See `docs/scripts.md`."""

from __future__ import annotations

from .facades.scripts import (
    BASH_DANGEROUS_PATTERNS,
    PYTHON_DANGEROUS_PATTERNS,
    SECRET_PATTERNS,
    ExecutionResult,
    ScriptExecutor,
    ScriptValidator,
    ValidationResult,
)

__all__ = [
    "BASH_DANGEROUS_PATTERNS",
    "PYTHON_DANGEROUS_PATTERNS",
    "SECRET_PATTERNS",
    "ExecutionResult",
    "ScriptExecutor",
    "ScriptValidator",
    "ValidationResult",
]
