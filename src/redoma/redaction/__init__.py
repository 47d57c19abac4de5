"""Secrets and personal data: finding them in a text, and taking them out.

`scan` finds them by their looks; a `Redactor` also takes out values it was told, in every usual encoding. Both are
a courtesy to readers and logs, not a boundary: code that wants to can always encode what it prints.
"""

from __future__ import annotations

from ..models import MIN_SECRET
from .redactor import Redactor
from .scanner import KNOWN, PERSONAL_KINDS, SECRET_KINDS, Match, scan

__all__ = ["KNOWN", "MIN_SECRET", "PERSONAL_KINDS", "SECRET_KINDS", "Match", "Redactor", "scan"]
