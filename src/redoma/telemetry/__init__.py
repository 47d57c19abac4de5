"""Logs, spans and metrics of what happens, for applications that collect them.

    a stage (`stages`) ──▶ spans       if an OpenTelemetry SDK is set up
                       ├─▶ metrics     always counted, as plain numbers; formatted on request
                       └─▶ events ──▶ the loggers below "redoma"

By default nothing collects them; then nothing is imported for it, nothing is written, and a run takes no longer.

Nothing that a request or its code has chosen gets here: no code, argument, variable, output, reason or message. These
are in the audit log, redacted, under the id of the run. Events name that id.
"""

from __future__ import annotations

from . import metrics
from .events import ERROR, INFO, WARNING, tell
from .stages import approval, backend, decided, effect, looked_at, policy, recorded, run

__all__ = [
    "ERROR",
    "INFO",
    "WARNING",
    "approval",
    "backend",
    "decided",
    "effect",
    "looked_at",
    "metrics",
    "policy",
    "recorded",
    "run",
    "tell",
]
