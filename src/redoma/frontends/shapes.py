"""Results and verdicts as JSON: one shape for every frontend."""

from __future__ import annotations

from typing import Any

import msgspec

from ..models import Evaluation, Result
from ..policy import Leveled


def evaluation_json(evaluation: Evaluation) -> dict[str, Any]:
    """Return an evaluation with its decision."""
    shape: dict[str, Any] = msgspec.to_builtins(evaluation)
    return {"decision": evaluation.decision.value, **shape}


def verdict_json(evaluation: Evaluation, level: Leveled, backend: str) -> dict[str, Any]:
    """Return a verdict with the level, its reasons, and the backend that would run it (empty: none)."""
    return {
        **evaluation_json(evaluation),
        "level": level.level.value,
        "level_why": list(level.why),
        "backend": backend,
    }


def result_json(result: Result) -> dict[str, Any]:
    """Return a result as JSON. Contents of all files are base64: readers need not guess which are text."""
    shape: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(result, value=None, data=None))
    return shape | {
        "ending": result.status.ending,
        "value": json_value(result.value),
        "data": json_value(msgspec.to_builtins(result.data, enc_hook=repr)),
        "evaluation": evaluation_json(result.evaluation),
    }


def json_value(value: Any) -> Any:
    """Return the value if JSON can represent it; else its `repr`, as for bytes, a tuple as a key, or 80-bit
    integers.
    """
    try:
        same: bool = msgspec.json.decode(msgspec.json.encode(value)) == value
    except (TypeError, ValueError, OverflowError, RecursionError):
        same = False
    return value if same else repr(value)
