"""What the log says about a run: an `Intent` before it, an `Outcome` after it. Writers and readers share these types.

Texts are as recorded: secrets were removed, and bytes that are not UTF-8 are escaped. Input, files and outputs are
recorded by size and hash; `inputs` has the contents of the first two if they could be kept.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from ..lib.errors import AuditError
from ..lib.types import resolved
from ..models import (
    Artifact,
    Decision,
    EnvironmentUse,
    Finding,
    HostRule,
    Isolation,
    Language,
    Level,
    Limits,
    NetworkRequest,
    PolicyView,
    SecretUse,
    Seed,
    Status,
    Stream,
    WorkspaceKind,
)
from ..models.reach import Reach
from .record import Record

T = TypeVar("T", bound=msgspec.Struct)


class RecordedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A person's answer about a run, given before it began."""

    id: str
    """The id of the question."""
    approver: str
    decision: str
    pinned: bool


class KeptInputs(msgspec.Struct, frozen=True, kw_only=True):
    """Names of contents in `inputs`; empty for what was not kept."""

    stdin: str = ""
    files: tuple[str, ...] = ()
    """In the order of the request's files."""


class Intent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is about to run, or was refused."""

    language: Language
    code: str
    """For a command, its words joined for reading: see `argv`."""
    requester: str
    reason: str
    backend: str
    """The requested backend; the outcome has the one that ran it."""
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
    interpreter: tuple[str, ...] = ()
    """The words that run code in a language other than Python and Bash."""
    network: tuple[HostRule, ...] = ()
    """The hosts that it may reach."""
    uses: EnvironmentUse | None = None
    """The packages that it found."""
    held: dict[str, SecretUse] = {}
    """Secrets that stay outside of the run, and the hosts that they are for."""
    project: str | None = None
    label: str = ""
    checkpoint: bool | None = None
    writes: tuple[str, ...] | None = None
    expect: str = ""
    """A description of what it was expected to print."""
    pack: str | None = None
    """The requested policy; None for the configured one."""
    entry: str = ""
    session: str = ""
    """The id of the session that it ran in."""
    live_input: bool = False
    unread_input: bool = False
    no_wait: bool = False
    objections: int = 0
    """How many of the findings, from the first, don't come from a policy."""
    view: PolicyView | None = None
    approval: RecordedAnswer | None = None
    inputs: KeptInputs | None = None
    missing: dict[str, str] = {}
    """Parts of the request that the record does not have exactly → why."""

    def __post_init__(self) -> None:
        if self.objections > len(self.findings):
            raise ValueError("it has fewer findings than objections")

    @property
    def rules(self) -> tuple[str, ...]:
        """The ids of the findings, in order."""
        return tuple([finding.rule for finding in self.findings])


class Printed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the result had of one stream."""

    size: int
    """Characters."""
    sha256: str = ""
    text: str | None = None
    """Its beginning, unless that is `Outcome.result`."""


class FileOut(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was returned."""

    name: str
    size: int
    sha256: str


class EffectSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What the run did to its project."""

    digest: str
    changes: int
    paths: tuple[tuple[str, str, str], ...]
    """The first changes: path, what it was, what it is."""
    requests: int = 0
    """Requests to hosts that it includes: see `Outcome.network`."""


class DenialSummary(msgspec.Struct, frozen=True, kw_only=True):
    rule: str
    resource: str


class Outcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a run ended."""

    status: Status
    exit_code: int | None
    result: str
    """The beginning of the value as Python prints it; without a value, of the output."""
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
    network: tuple[NetworkRequest, ...] = ()
    """The first requests that it made to hosts, including refused ones. Never headers, queries or bodies."""
    more_network: int = 0
    """How many more there were."""


def read_intent(record: Record) -> Intent:
    """Return the intent in a record. Raises `AuditError` if there is none."""
    return _read(record, Intent)


def read_outcome(record: Record) -> Outcome:
    """Return the outcome in a record. Raises `AuditError` if there is none."""
    return _read(record, Outcome)


def _read(record: Record, kind: type[T]) -> T:
    try:
        return msgspec.convert(record.data, resolved(kind))
    except (ValueError, RecursionError) as error:  # includes msgspec's errors
        raise AuditError(
            f"run {record.id} can't be rebuilt",
            why=f"its {record.kind} record is not understood ({error})",
            next="see `redoma audit show`",
        ) from error
