"""Policy: what may run, what a person is asked about, and what is refused.

    Request ─▶ facts (python/, shell/, javascript/) ─▶ rules (packs, the user's) ─▶ Evaluation

Pure: apart from the packs, no file, clock or environment is read, so the same request under the same policy always has
the same findings. A policy expresses intent and decides who is asked; it is never the security boundary. The readers
and the packs are loaded on first use: judging Python doesn't load the Bash parser, nor the reverse. `executed` tells
which files a request executes. It is imported by itself, because only an approval depends on that.
"""

from __future__ import annotations

from .evaluate import evaluate, secrets_in
from .facts import HOST_TRAITS
from .levels import Leveled, level_of
from .reading import Reading
from .rules import BY_TEXT, PACKS, Permit, Policy, Rule, fingerprint, load, permit_lines, permit_of, verify_permit

__all__ = [
    "BY_TEXT",
    "HOST_TRAITS",
    "PACKS",
    "Leveled",
    "Permit",
    "Policy",
    "Reading",
    "Rule",
    "evaluate",
    "fingerprint",
    "level_of",
    "load",
    "permit_lines",
    "permit_of",
    "secrets_in",
    "verify_permit",
]
