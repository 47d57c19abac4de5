"""Logs, spans and metrics of what happens, for whoever listens.

    a stage (`stages`) ──▶ spans       where an OpenTelemetry SDK is set up
                       ├─▶ metrics     counted always, in plain numbers; drawn up when somebody asks
                       └─▶ events ──▶ the loggers below "redoma"

By default nobody listens; then nothing is loaded for it, nothing is written, and a run takes no longer.

Nothing that a request or its code has chosen gets here: no code, argument, variable, output, reason or message. These
are in the audit log, with secrets taken out, under the id of the run. That id is what an event names.
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
