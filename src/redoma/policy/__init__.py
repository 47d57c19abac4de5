"""Policy: what may run, what a person is asked about, and what is refused.

    Request ─▶ facts (python/, shell/, javascript/) ─▶ rules (packs, the user's) ─▶ Evaluation

Pure: apart from the packs, no file, clock or environment is read, so the same request under the same policy always has
the same findings. A policy expresses intent and decides who is asked; it is never the security boundary. The readers
and the packs are loaded on first use: judging Python doesn't load the Bash parser, nor the reverse.
"""

from __future__ import annotations

from .evaluate import evaluate, secrets_in
from .facts import HOST_TRAITS
from .levels import Leveled, level_of
from .reading import Reading
from .rules import (
    BY_TEXT,
    PACKS,
    Permit,
    Policy,
    Rule,
    fingerprint,
    is_plain,
    load,
    permit_lines,
    permit_of,
    verify_permit,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .executed import Executes as Executes
    from .executed import candidates as candidates
    from .executed import executed_by as executed_by
    from .executed import executed_by_words as executed_by_words
    from .executed import executes as executes
    from .executed import modules as modules
    from .executed import placed as placed

__all__ = [
    "BY_TEXT",
    "HOST_TRAITS",
    "PACKS",
    "Executes",
    "Leveled",
    "Permit",
    "Policy",
    "Reading",
    "Rule",
    "candidates",
    "evaluate",
    "executed_by",
    "executed_by_words",
    "executes",
    "fingerprint",
    "is_plain",
    "level_of",
    "load",
    "modules",
    "permit_lines",
    "permit_of",
    "placed",
    "secrets_in",
    "verify_permit",
]


def __getattr__(name: str) -> Any:
    # Loaded on first use: which files a request executes matters only if a person's approval depends on them.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import executed

    return getattr(executed, name)
