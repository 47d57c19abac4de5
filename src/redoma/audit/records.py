"""What the log says of a run: an `Intent` before it, an `Outcome` after it. Those who write and who read share these.

Texts are as the record has them: secrets were taken out, and what is no UTF-8 is written with escapes. Input, files and
outputs are recorded by size and hash; `inputs` has the contents of the first two where they could be kept.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from ..lib.errors import AuditError
from ..models import (
    Artifact,
    Decision,
    Finding,
    Isolation,
    Language,
    Level,
    Limits,
    PolicyView,
    Seed,
    Status,
    Stream,
    WorkspaceKind,
)
from ..models.reach import Reach
from .record import Record

T = TypeVar("T", bound=msgspec.Struct)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a person said of a run before it began."""

    id: str
    """Under which they were asked."""
    approver: str
    decision: str
    pinned: bool


class KeptInputs(msgspec.Struct, frozen=True, kw_only=True):
    """Names of contents in `inputs`; empty for what was not kept."""

    stdin: str = ""
    files: tuple[str, ...] = ()
    """In the order of the request's."""


class Intent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is about to run, or was refused."""

    language: Language
    code: str
    """Of a command, its words joined for reading: see `argv`."""
    requester: str
    reason: str
    backend: str
    """What was asked for; the outcome has what ran it."""
    workspace: WorkspaceKind
    cwd: str | None
    env: dict[str, str]
    secrets: tuple[str, ...]
    """Their names."""
    stdin: int
    """Bytes."""
    files: dict[str, int]
    """Name → bytes."""
    outputs: tuple[str, ...]
    require: tuple[str, ...]
    limits: Limits
    policy: str
    policy_digest: str
    decision: Decision
    findings: tuple[Finding, ...]
    reach: Reach
    level: Level
    level_why: tuple[str, ...]
    argv: tuple[str, ...] = ()
    project: str | None = None
    label: str = ""
    checkpoint: bool | None = None
    writes: tuple[str, ...] | None = None
    expect: str = ""
    """What it had to print, in words."""
    pack: str | None = None
    """The policy that was asked for; None for the configured one."""
    entry: str = ""
    live_input: bool = False
    unread_input: bool = False
    no_wait: bool = False
    objections: int = 0
    """How many of the findings, from the first, are no policy's."""
    view: PolicyView | None = None
    approval: Answer | None = None
    inputs: KeptInputs | None = None
    missing: dict[str, str] = {}
    """What of the request the record does not have exactly → why."""

    def __post_init__(self) -> None:
        if self.objections > len(self.findings):
            raise ValueError("it has fewer findings than objections")

    @property
    def rules(self) -> tuple[str, ...]:
        """The ids of what was found, in order."""
        return tuple([finding.rule for finding in self.findings])


class Printed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the result had of one stream."""

    size: int
    """Characters."""
    sha256: str = ""
    text: str | None = None
    """Its beginning, unless that is `Outcome.result`."""


class FileOut(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was brought back."""

    name: str
    size: int
    sha256: str


class EffectSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What the run did to its project."""

    digest: str
    changes: int
    paths: tuple[tuple[str, str, str], ...]
    """The first of them: path, what it was, what it is."""


class DenialSummary(msgspec.Struct, frozen=True, kw_only=True):
    rule: str
    resource: str


class Outcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of it."""

    status: Status
    exit_code: int | None
    result: str
    """The beginning of the value as Python prints it; without one, of what was printed."""
    error: str | None
    duration: float
    """Seconds."""
    memory_used: int | None
    cpu: float | None
    backend: str
    isolation: Isolation
    redacted: dict[str, int]
    stdout: Printed
    stderr: Printed
    value: str = ""
    """SHA-256 of the value, if there was one."""
    exception: str | None = None
    seed: Seed | None = None
    denial: DenialSummary | None = None
    effect: EffectSummary | None = None
    unexpected: tuple[str, ...] | None = None
    rolled_back: bool | None = None
    passed_over: dict[str, str] = {}
    no_checkpoint: str = ""
    mismatch: str | None = None
    diagnoses: tuple[str, ...] = ()
    artifacts: dict[Stream, Artifact] = {}
    files: tuple[FileOut, ...] = ()
    left_out: dict[str, str] = {}


def read_intent(record: Record) -> Intent:
    """The intent that a record holds. Raises `AuditError` if it holds none."""
    return _read(record, Intent)


def read_outcome(record: Record) -> Outcome:
    """The outcome that a record holds. Raises `AuditError` if it holds none."""
    return _read(record, Outcome)


def _read(record: Record, kind: type[T]) -> T:
    try:
        return msgspec.convert(record.data, kind)
    except (ValueError, RecursionError) as error:  # of which msgspec's errors are some
        raise AuditError(
            f"run {record.id} can't be rebuilt",
            why=f"its {record.kind} record is not understood ({error})",
            next="see `redoma audit show`",
        ) from error
