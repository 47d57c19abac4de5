"""Policy: what may run, what a person is asked about, and what is refused.

    Request ─▶ facts (python/, shell/) ─▶ rules (packs, the user's) ─▶ Evaluation

Pure: no file, clock or environment is read, and the same request under the same policy always gives the
same findings. It expresses intent and decides who is asked; it is never the boundary. The readers and the
packs are loaded when first needed: judging Python doesn't load the Bash parser, nor the reverse.
"""

from __future__ import annotations

from .evaluate import evaluate, secrets_in
from .executed import Executes, candidates, executed_by, executed_by_words, executes, modules, placed
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

__all__ = [
    "BY_TEXT",
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
