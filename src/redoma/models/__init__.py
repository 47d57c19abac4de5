"""The data that travels down the pipeline: frozen in, frozen out.

A `Request` says what somebody wants run; its `Submission` adds what only the caller knows, and `Judged` what policy
says. A backend turns the request into an `Outcome` (see `backends.base`), and the executor that into the one `Result`
every caller gets, whichever backend ran it. Values that can be derived are properties, so they can never disagree.
"""

from __future__ import annotations

from .effect import Change, Effect, Version
from .evaluation import Approval, Decision, Evaluation, Finding, Level
from .isolation import Isolation
from .request import (
    LANGUAGES,
    MAX_PATTERN,
    MAX_PATTERNS,
    MIN_SECRET,
    KiB,
    Language,
    Limits,
    MiB,
    Request,
    Seed,
    Stream,
    WorkspaceKind,
)
from .result import Artifact, Chunk, Denial, Diagnosis, Result, Status, Usage
from .submission import ExecutedFiles, Judged, PolicyView, Submission

__all__ = [
    "LANGUAGES",
    "MAX_PATTERN",
    "MAX_PATTERNS",
    "MIN_SECRET",
    "Approval",
    "Artifact",
    "Change",
    "Chunk",
    "Decision",
    "Denial",
    "Diagnosis",
    "Effect",
    "Evaluation",
    "ExecutedFiles",
    "Finding",
    "Isolation",
    "Judged",
    "KiB",
    "Language",
    "Level",
    "Limits",
    "MiB",
    "PolicyView",
    "Request",
    "Result",
    "Seed",
    "Status",
    "Stream",
    "Submission",
    "Usage",
    "Version",
    "WorkspaceKind",
]
