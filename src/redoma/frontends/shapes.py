"""Results and verdicts as JSON: one shape for every frontend."""

from __future__ import annotations

from typing import Any

import msgspec

from ..models import Evaluation, Result
from ..policy import Leveled


def evaluation_json(evaluation: Evaluation) -> dict[str, Any]:
    shape: dict[str, Any] = msgspec.to_builtins(evaluation)
    return {"decision": evaluation.decision.value, **shape}


def verdict_json(evaluation: Evaluation, level: Leveled, backend: str) -> dict[str, Any]:
    """What `check` answers: the verdict, the level and why, and where it would run (nowhere: an empty name)."""
    return {
        **evaluation_json(evaluation),
        "level": level.level.value,
        "level_why": list(level.why),
        "backend": backend,
    }


def result_json(result: Result) -> dict[str, Any]:
    """Contents of files are base64, all of them: whoever reads it needn't guess which are text."""
    shape: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(result, value=None, data=None))
    return shape | {
        "ending": result.status.ending,
        "value": json_value(result.value),
        "data": json_value(msgspec.to_builtins(result.data, enc_hook=repr)),
        "evaluation": evaluation_json(result.evaluation),
    }


def json_value(value: Any) -> Any:
    """The value where JSON can carry it unchanged, else its `repr`: a tuple as a key, bytes, an integer of 80 bits."""
    try:
        same: bool = msgspec.json.decode(msgspec.json.encode(value)) == value
    except (TypeError, ValueError, OverflowError, RecursionError):
        same = False
    return value if same else repr(value)
