"""What a run prints and leaves: capture, live streaming, artifacts, expectations, diagnoses."""

from __future__ import annotations

MARKS = ("at ", 'File "', "panic", "rror", " --> ")
"""Every trace of a failure contains one of these. Most output has none and needs no further search."""
