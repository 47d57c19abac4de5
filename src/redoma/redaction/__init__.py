"""Finds secrets and personal data in text, and removes them.

`scan` finds them by their form. A `Redactor` also removes values that it was given, in every usual encoding. Both are a
help for readers and logs, not a boundary: code can always encode what it prints.

    patterns, services (the forms of secrets) ─▶ scanner (finds them) ─▶ checks (rejects false alarms) ─▶ redactor
"""

from __future__ import annotations

from ..models import MIN_SECRET
from .redactor import Redactor, clean
from .scanner import PERSONAL_KINDS, SECRET_KINDS, load_redaction, scan

__all__ = [
    "MIN_SECRET",
    "PERSONAL_KINDS",
    "SECRET_KINDS",
    "Redactor",
    "clean",
    "load_redaction",
    "scan",
]
