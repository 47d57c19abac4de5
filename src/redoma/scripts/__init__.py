"""Scripts of Python or Bash: checked first, then each run in a container of its own. See `docs/scripts.md`.

executor     ScriptExecutor, ExecutionResult
validation   ScriptValidator, ValidationResult
patterns     what is refused, as lists of expressions
bash_syntax  `bash -n`, asked in a cell
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
