"""Secrets and personal data: finding them in text, and taking them out.

`scan` finds them by their looks; a `Redactor` also takes out values that it was given, in every usual encoding. Both
are a courtesy to readers and logs, not a boundary: code that wants to can always encode what it prints.

    patterns, services (what secrets look like) ─▶ scanner (finds them) ─▶ checks (rejects false alarms) ─▶ redactor
"""

from __future__ import annotations

from ..models import MIN_SECRET
from .redactor import Redactor, clean
from .scanner import KNOWN, PERSONAL_KINDS, SECRET_KINDS, Match, scan

__all__ = ["KNOWN", "MIN_SECRET", "PERSONAL_KINDS", "SECRET_KINDS", "Match", "Redactor", "clean", "scan"]
