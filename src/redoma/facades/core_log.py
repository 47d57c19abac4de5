"""`logs/core.log` of the Python core: one JSON line a run, a file a day, kept 30 days."""

from __future__ import annotations

from pathlib import Path

from ..audit import DailyLog


class CoreLog(DailyLog):
    """Writes the log. Holds nothing open, so it may be shared by threads, processes and forks."""

    def __init__(self, path: Path = Path("logs/core.log"), *, keep_days: int = 30) -> None:
        super().__init__(path, keep_days=keep_days)

    def write(
        self, *, code: str, result: str | None, error: str | None, duration: float, memory_used: int | None
    ) -> None:
        """Add one record. Raises AuditError if it can't be written."""
        self.add({"code": code, "result": result, "error": error, "duration": duration, "memory_used": memory_used})
