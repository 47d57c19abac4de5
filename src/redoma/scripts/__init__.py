"""Python or Bash scripts: validated first, then each run in its own container. See `docs/scripts.md`.

executor     ScriptExecutor, ExecutionResult
validation   ScriptValidator, ValidationResult
patterns     what is refused, as lists of expressions
bash_syntax  `bash -n`, run in a cell
"""

from __future__ import annotations

from .executor import ExecutionResult, ScriptExecutor
from .patterns import BASH_DANGEROUS_PATTERNS, PYTHON_DANGEROUS_PATTERNS, SECRET_PATTERNS
from .validation import ScriptValidator, ValidationResult

__all__ = [
    "BASH_DANGEROUS_PATTERNS",
    "PYTHON_DANGEROUS_PATTERNS",
    "SECRET_PATTERNS",
    "ExecutionResult",
    "ScriptExecutor",
    "ScriptValidator",
    "ValidationResult",
]
