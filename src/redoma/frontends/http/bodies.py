"""Request and answer bodies as structs, from which the OpenAPI document is made.

Results, evaluations, effects and approvals are those of the library (`models`).
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec

from ...environments import Environment
from ...models import Effect, Level, Result
from ...models.evaluation import Finding
from ...sessions.folder import FileInfo
from .keys import Key, Scope

RunState = Literal["queued", "running", "waiting", "done", "cancelled", "interrupted"]
Mode = Literal["sync", "async", "stream"]

Short = Annotated[str, msgspec.Meta(max_length=200)]
Reason = Annotated[str, msgspec.Meta(max_length=2000)]
_Number = Annotated[float, msgspec.Meta(gt=0, le=1e15)]
_Whole = Annotated[int, msgspec.Meta(gt=0, le=2**53)]
_Size = _Whole | Annotated[str, msgspec.Meta(max_length=40, examples=["256MiB"])]


class Content(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes that are not text."""

    base64: bytes


def content(given: str | Content) -> bytes:
    """Return the bytes of a text or of `Content`."""
    return given.base64 if isinstance(given, Content) else given.encode()


class SomeLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Limits that differ from the configured ones. Sizes are bytes, or a text such as `256MiB`."""

    time: _Number | None = None
    cpu: _Number | None = None
    memory: _Size | None = None
    processes: _Whole | None = None
    output_lines: _Whole | None = None
    output_bytes: _Size | None = None
    output_total: _Size | None = None
    file_size: _Size | None = None
    disk: _Size | None = None
    files: _Whole | None = None
    open_files: _Whole | None = None
    recursion: _Whole | None = None
    network_bytes: _Size | None = None
    connections: _Whole | None = None


class RunBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What to run. Everything but the code or the command has a default."""

    code: str = ""
    """Source text in `language`."""
    argv: tuple[str, ...] = ()
    """With the language `command`, the program and its arguments; otherwise the arguments of the code."""
    language: Literal["python", "bash", "javascript", "command"] = "python"
    backend: Literal["auto", "jail", "docker", "monty", "ray"] = "auto"
    limits: SomeLimits = SomeLimits()
    stdin: str | Content = ""
    env: dict[str, str] = {}
    secrets: dict[str, str] = {}
    """Variables whose values are removed from every output and record, and never written to disk."""
    network: tuple[str | dict[str, Any], ...] = ()
    """Hosts it may reach, such as `GET api.example.org` or `{"host": "api.example.org", "methods": ["GET"]}`."""
    environment: Short = ""
    """The environment of the server whose packages can be imported."""
    packages: tuple[Short, ...] = ()
    """Packages that the run needs; those that are not installed on the server need an approval."""
    files: dict[str, str | Content] = {}
    """Name → content, placed in the run's directory before it starts."""
    outputs: tuple[str, ...] = ()
    """Globs of the files in that directory to return."""
    workspace: Literal["scratch", "read-only", "overlay"] = "scratch"
    project: Short = ""
    """The name of a project that the server offers, for a workspace other than `scratch`."""
    policy: Short | None = None
    """A policy other than the configured one; needs the scope `admin`."""
    require: tuple[Short, ...] = ()
    """Isolation layers that must be in force, or it does not run."""
    expect: str | dict[str, Any] | None = None
    """What the run has to print: `json`, `regex:…`, or a JSON Schema."""
    reason: Reason = ""
    """Why it should run, for the approver and the audit log."""
    label: Short = ""


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A run, in a list."""

    id: str
    state: RunState
    status: str = ""
    """The status of the result, once there is one."""
    mode: Mode
    key: str
    """The name of the key that requested it."""
    language: str
    title: str
    """Its label, or the beginning of its code."""
    created: datetime
    started: datetime | None = None
    ended: datetime | None = None
    approval_id: str = ""
    """The id of the approval that it waits for, or has got."""
    note: str = ""
    """Why it was interrupted or cancelled."""
    session: str = ""
    """The session that it ran in, if any."""


class RunView(RunSummary, frozen=True, kw_only=True):
    """A run with its request and its result."""

    request: RunBody
    """The request, without the values of its secrets."""
    result: Result | None = None


class Runs(msgspec.Struct, frozen=True, kw_only=True):
    """Some runs, newest first."""

    runs: tuple[RunSummary, ...]
    next: str = ""
    """Pass it as `before` to get older runs; empty if there are none."""


Seconds = Annotated[float, msgspec.Meta(gt=0, le=604800)]
FilePath = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]


class SessionBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A session to open. Everything has a default."""

    backend: Literal["auto", "jail", "docker", "ray"] = "auto"
    limits: SomeLimits = SomeLimits()
    """They hold for all runs together, but `time` and the output limits for each run."""
    env: dict[str, str] = {}
    secrets: dict[str, str] = {}
    """Variables whose values are removed from every output and record, and never written to disk."""
    files: dict[str, str | Content] = {}
    """Name → content, placed in its directory before it starts."""
    environment: Short = ""
    """The environment of the server whose packages can be imported."""
    packages: tuple[Short, ...] = ()
    """Packages for the session, of those that are installed on the server."""
    workspace: Literal["scratch", "read-only", "overlay"] = "scratch"
    project: Short = ""
    """The name of a project that the server offers, for a workspace other than `scratch`."""
    policy: Short | None = None
    """A policy other than the configured one; needs the scope `admin`."""
    require: tuple[Short, ...] = ()
    """Isolation layers that must be in force, or the session is not opened."""
    idle: Seconds | None = None
    """Seconds without use after which the session is ended."""
    lifetime: Seconds | None = None
    """Seconds after which the session is ended in any case."""
    reason: Reason = ""
    label: Short = ""


class SessionRunBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What to run in a session. Everything but the code or the command has a default."""

    code: str = ""
    argv: tuple[str, ...] = ()
    """With the language `command`, the program and its arguments; otherwise the arguments of the code."""
    language: Literal["python", "bash", "javascript", "command"] = "python"
    context: Short = "main"
    """The namespace of its variables: runs in different contexts don't see each other's variables."""
    limits: SomeLimits = SomeLimits()
    """Only `time` and the output limits: all others are set for the session."""
    stdin: str | Content = ""
    env: dict[str, str] = {}
    """Additional environment variables of this run."""
    cwd: Annotated[str, msgspec.Meta(max_length=4096)] = ""
    """The working directory of a Python run, a path in the session; afterwards the session is back where it was."""
    charts: bool = False
    """Whether matplotlib figures and pandas tables are also returned as data."""
    policy: Short | None = None
    expect: str | dict[str, Any] | None = None
    reason: Reason = ""
    label: Short = ""


class Terminal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The size of a terminal."""

    rows: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 24
    columns: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 80


class ProcessBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A command to start in the background of a session."""

    command: Annotated[str, msgspec.Meta(min_length=1)] | Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    """A line of Bash, or a list of a program and its arguments."""
    env: dict[str, str] = {}
    """Additional environment variables."""
    cwd: Annotated[str, msgspec.Meta(max_length=4096)] = ""
    """The working directory, a path in the session; by default the one in which the last run ended."""
    terminal: Terminal | None = None
    """Give the process a terminal of this size; then all its output comes as stdout."""
    timeout: Seconds | None = None
    """Seconds after which the process is ended; by default it may run as long as the session."""
    policy: Short | None = None
    """A policy other than the session's; needs the scope `admin`."""
    reason: Reason = ""
    label: Short = ""


class ProcessView(RunSummary, frozen=True, kw_only=True):
    """A background process of a session. It is a run: follow it, look it up and cancel it by its id."""

    pid: int = 0
    """Its process id inside the session, as the session reports it; 0 if it was not started."""


class ProcessList(msgspec.Struct, frozen=True, kw_only=True):
    """Background processes of a session."""

    processes: tuple[ProcessView, ...]


class Signal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A signal for the process group of a process."""

    signal: Annotated[int, msgspec.Meta(ge=1, le=64)] = 15


class ForkBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many copies to make."""

    n: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """A session."""

    id: str
    state: Literal["open", "busy", "ended"]
    ended: str = ""
    """Why the session has ended."""
    key: str
    """The name of the key that opened it."""
    backend: str
    label: str = ""
    created: datetime
    used: datetime
    """When it was last used."""
    runs: int = 0
    isolation: dict[str, str] = {}
    """Isolation layers in force, as probed from inside."""


class SessionList(msgspec.Struct, frozen=True, kw_only=True):
    """Sessions."""

    sessions: tuple[SessionView, ...]


class Interrupted(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to an interrupt."""

    interrupted: bool
    """Whether something was running."""


class CompleteBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The text to complete."""

    text: Annotated[str, msgspec.Meta(max_length=1000)]
    context: Short = "main"


class Names(msgspec.Struct, frozen=True, kw_only=True):
    """Completions."""

    names: tuple[str, ...]


class FileList(msgspec.Struct, frozen=True, kw_only=True):
    """The entries of a directory."""

    files: tuple[FileInfo, ...]


class FileName(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of a session. Relative paths begin in its first working directory."""

    path: FilePath


class FileRename(FileName, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of a session and its new path."""

    to: FilePath


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """Success."""

    done: Literal[True] = True


class ApprovalView(msgspec.Struct, frozen=True, kw_only=True):
    """A request for approval, open or answered."""

    id: str
    state: Literal["open", "approved", "denied", "expired", "used", "unpinned"]
    requester: str
    own: bool
    """Whether this key asked for it; then another key has to answer."""
    reason: str
    label: str
    level: Level
    created: datetime
    expires: datetime
    run: str
    language: str
    text: str
    """The code, or the command."""
    findings: tuple[Finding, ...]
    """The risks that policy found."""
    effect: Effect | None = None
    """What the run changed in an overlay, if those changes are to be approved."""
    digest: str
    approver: str = ""
    answer_reason: str = ""
    shown: str = ""
    """The whole approval as text, as the command line shows it; empty in a list."""


class Approvals(msgspec.Struct, frozen=True, kw_only=True):
    """Approvals, oldest first."""

    approvals: tuple[ApprovalView, ...]


class ApprovalAnswer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why it is approved or denied; it is recorded in the audit log."""

    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=2000)]
    digest: Annotated[str, msgspec.Meta(max_length=64)] = ""
    """The digest of what the approver read. If it is given and differs, the answer is rejected."""


class ChangesView(msgspec.Struct, frozen=True, kw_only=True):
    """What a run in an overlay would change in a project, or has changed."""

    id: str
    state: Literal["kept", "partly", "applied", "undone", "discarded", "broken"]
    project: str
    command: str
    time: datetime
    since: datetime
    applied: tuple[str, ...] = ()
    left: dict[str, str] = {}
    effect: Effect | None = None
    """The effect; a list leaves it out."""
    count: int = 0
    """The number of changed paths."""


class ChangesList(msgspec.Struct, frozen=True, kw_only=True):
    """Kept changes, newest first."""

    changes: tuple[ChangesView, ...]


class ApplyBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which changes to apply."""

    paths: tuple[str, ...] | None = None
    """Only changes at or below these paths; by default all."""
    named: tuple[str, ...] = ()
    """Protected paths to apply too."""


class CheckBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What to check against policy, without running it."""

    code: str = ""
    argv: tuple[str, ...] = ()
    language: Literal["python", "bash", "javascript", "command"] = "python"
    policy: Short | None = None


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict of policy."""

    decision: Literal["allow", "prompt", "forbid"]
    policy: str
    digest: str
    findings: tuple[Finding, ...]
    level: Level
    level_why: tuple[str, ...]
    backend: str
    """The backend that would run it; empty if there is none."""


class AuditRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run in the audit log."""

    id: str
    time: str
    ended: str
    requester: str
    label: str
    language: str
    text: str
    reason: str
    decision: str
    level: str
    rules: tuple[str, ...]
    approver: str
    status: str
    backend: str
    exit_code: int | None
    duration: float | None
    memory: int | None
    error: str


class AuditRuns(msgspec.Struct, frozen=True, kw_only=True):
    """Runs in the audit log, newest first."""

    runs: tuple[AuditRun, ...]


class AuditStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the chain of audit records is intact."""

    ok: bool
    records: int
    head: str
    """The hash of the newest record; store it elsewhere to compare it later."""
    problem: str = ""


class EnvironmentBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An environment to create."""

    name: Short
    packages: Annotated[tuple[Short, ...], msgspec.Meta(min_length=1)]
    """Requirements as pip reads them, such as `pandas>=2`."""


class EnvironmentList(msgspec.Struct, frozen=True, kw_only=True):
    """Environments, by name."""

    environments: tuple[Environment, ...]


class KeyBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key to create."""

    name: Short
    scopes: tuple[Scope, ...] = ("run",)
    seconds: Annotated[float, msgspec.Meta(gt=0, le=1e9)] | None = None
    """Seconds until it expires; by default it does not."""
    concurrency: Annotated[int, msgspec.Meta(ge=1, le=10000)] = 16
    rate: Annotated[float, msgspec.Meta(gt=0, le=100000)] = 50.0


class NewKey(msgspec.Struct, frozen=True, kw_only=True):
    """A new key. Its text is shown only this once."""

    key: Key
    text: str


class KeyList(msgspec.Struct, frozen=True, kw_only=True):
    """Keys."""

    keys: tuple[Key, ...]


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the server."""

    status: Literal["ok", "stopping", "failing"]
    version: str = ""
    queued: int = 0
    running: int = 0


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a run."""

    event: Literal["state", "output", "display", "result"]
    data: str
    """JSON. For `state`: the run's id, state, note and approval_id; for `output`: stream and text; for `display`, in
    sessions: what the code displayed; for `result`: a Result."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """An error: why a request failed."""

    error: str
    why: str = ""
    next: str = ""
    code: str = ""
    """For a file operation: the error of its system call, such as `ENOENT`."""


def encode(shape: Any) -> bytes:
    """Return JSON, even if it has file names that are not UTF-8 (as lone surrogates)."""
    try:
        return msgspec.json.encode(shape)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(shape)).encode()


def moment(seconds: float) -> datetime:
    """Return a Unix time as a `datetime` in UTC."""
    return datetime.fromtimestamp(seconds, UTC)
