"""The data that travels through the pipeline: frozen in, frozen out.

A `Request` says what to run; its `Submission` adds what only the caller knows, and `Judged` adds the policy's verdict.
A backend turns the request into an `Outcome` (see `backends.base`), and the executor turns that into the one `Result`
every caller gets, whichever backend ran it. Values that can be derived are properties, so they can't be inconsistent.
"""

from __future__ import annotations

from .effect import Change, Effect, Version
from .environment import EnvironmentUse, Interpreter
from .evaluation import Approval, Decision, Evaluation, Finding, Level
from .isolation import Isolation
from .network import HostRule, NetworkRequest, Secret, SecretUse, host_rule, host_rules
from .request import (
    LANGUAGES,
    MIN_SECRET,
    OTHER,
    KiB,
    Language,
    Limits,
    MiB,
    Request,
    Seed,
    Stream,
    WorkspaceKind,
)
from .result import Artifact, Chunk, Denial, Diagnosis, Display, Result, Status, Usage
from .submission import ExecutedFiles, Judged, PolicyView, Submission

__all__ = [
    "LANGUAGES",
    "MIN_SECRET",
    "OTHER",
    "Approval",
    "Artifact",
    "Change",
    "Chunk",
    "Decision",
    "Denial",
    "Diagnosis",
    "Display",
    "Effect",
    "EnvironmentUse",
    "Evaluation",
    "ExecutedFiles",
    "Finding",
    "HostRule",
    "Interpreter",
    "Isolation",
    "Judged",
    "KiB",
    "Language",
    "Level",
    "Limits",
    "MiB",
    "NetworkRequest",
    "PolicyView",
    "Request",
    "Result",
    "Secret",
    "SecretUse",
    "Seed",
    "Status",
    "Stream",
    "Submission",
    "Usage",
    "Version",
    "WorkspaceKind",
    "host_rule",
    "host_rules",
]
