"""What comes in over HTTP and what goes out, as structs; the OpenAPI document is made of these.

Results, evaluations, effects and approvals go out as the library has them (`models`).
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec

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
    """Bytes that are no text."""

    base64: bytes


def content(given: str | Content) -> bytes:
    """What a caller has sent, as bytes."""
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
    """What to run. Everything has a default but the code, or the command."""

    code: str = ""
    """Source text in `language`."""
    argv: tuple[str, ...] = ()
    """With the language `command`, the program and its arguments; else the arguments of the code."""
    language: Literal["python", "bash", "javascript", "command"] = "python"
    backend: Literal["auto", "jail", "docker", "monty", "ray"] = "auto"
    limits: SomeLimits = SomeLimits()
    stdin: str | Content = ""
    env: dict[str, str] = {}
    secrets: dict[str, str] = {}
    """Variables whose values are taken out of every output and record, and never written to the disk."""
    network: tuple[str | dict[str, Any], ...] = ()
    """Hosts that it may reach, such as `GET api.example.org`, or `{"host": "api.example.org", "methods": ["GET"]}`."""
    environment: Short = ""
    """The environment of the server whose packages it finds."""
    packages: tuple[Short, ...] = ()
    """Packages that it finds; those that are not installed on the server are a matter for approval."""
    files: dict[str, str | Content] = {}
    """Name → content, placed in the run's directory before it starts."""
    outputs: tuple[str, ...] = ()
    """Which files of that directory to bring back, by glob."""
    workspace: Literal["scratch", "read-only", "overlay"] = "scratch"
    project: Short = ""
    """The name of a project that the server offers, for a workspace other than `scratch`."""
    policy: Short | None = None
    """Another policy than the configured one; needs the scope `admin`."""
    require: tuple[Short, ...] = ()
    """Isolation layers without which it does not run."""
    expect: str | dict[str, Any] | None = None
    """What it has to print: `json`, `regex:…`, or a JSON Schema."""
    reason: Reason = ""
    """Why, for whoever is asked to approve it and for the record."""
    label: Short = ""


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A run, in a list."""

    id: str
    state: RunState
    status: str = ""
    """Of its result, once there is one."""
    mode: Mode
    key: str
    """The name of the key that asked for it."""
    language: str
    title: str
    """Its label, or the beginning of its code."""
    created: datetime
    started: datetime | None = None
    ended: datetime | None = None
    approval_id: str = ""
    """What somebody has to approve, or has approved."""
    note: str = ""
    """Why it was interrupted or cancelled."""
    session: str = ""
    """The session that it ran in, if it did."""


class RunView(RunSummary, frozen=True, kw_only=True):
    """A run, with what was asked for and what came of it."""

    request: RunBody
    """Without the values of its secrets."""
    result: Result | None = None


class Runs(msgspec.Struct, frozen=True, kw_only=True):
    """Some runs, newest first."""

    runs: tuple[RunSummary, ...]
    next: str = ""
    """Give it as `before` to get those before these; empty if there are none."""


Seconds = Annotated[float, msgspec.Meta(gt=0, le=604800)]
FilePath = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]


class SessionBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A session to open. Everything has a default."""

    backend: Literal["auto", "jail", "docker", "ray"] = "auto"
    limits: SomeLimits = SomeLimits()
    """Of all its runs together; `time` and those on output are each run's own."""
    env: dict[str, str] = {}
    secrets: dict[str, str] = {}
    """Variables whose values are taken out of every output and record, and never written to the disk."""
    files: dict[str, str | Content] = {}
    """Name → content, placed in its directory before it starts."""
    workspace: Literal["scratch", "read-only"] = "scratch"
    project: Short = ""
    policy: Short | None = None
    """Another policy than the configured one; needs the scope `admin`."""
    require: tuple[Short, ...] = ()
    """Isolation layers without which it is not opened."""
    idle: Seconds | None = None
    """Seconds without use after which it is ended."""
    lifetime: Seconds | None = None
    """Seconds after which it is ended in any case."""
    reason: Reason = ""
    label: Short = ""


class SessionRunBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What to run in a session. Everything has a default but the code, or the command."""

    code: str = ""
    argv: tuple[str, ...] = ()
    """With the language `command`, the program and its arguments; else the arguments of the code."""
    language: Literal["python", "bash", "javascript", "command"] = "python"
    context: Short = "main"
    """The name of the variables that it sees: runs of different contexts don't see each other's."""
    limits: SomeLimits = SomeLimits()
    """Only `time` and those on output: the others are the session's."""
    stdin: str | Content = ""
    env: dict[str, str] = {}
    """More variables of this run."""
    policy: Short | None = None
    expect: str | dict[str, Any] | None = None
    reason: Reason = ""
    label: Short = ""


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """A session."""

    id: str
    state: Literal["open", "busy", "ended"]
    ended: str = ""
    """Why it has ended."""
    key: str
    """The name of the key that opened it."""
    backend: str
    label: str = ""
    created: datetime
    used: datetime
    """When something was last asked of it."""
    runs: int = 0
    isolation: dict[str, str] = {}
    """Layers in force, as probed from inside."""


class SessionList(msgspec.Struct, frozen=True, kw_only=True):
    sessions: tuple[SessionView, ...]


class Interrupted(msgspec.Struct, frozen=True, kw_only=True):
    interrupted: bool
    """Whether something ran."""


class CompleteBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What somebody has typed."""

    text: Annotated[str, msgspec.Meta(max_length=1000)]
    context: Short = "main"


class Names(msgspec.Struct, frozen=True, kw_only=True):
    names: tuple[str, ...]


class FileList(msgspec.Struct, frozen=True, kw_only=True):
    files: tuple[FileInfo, ...]


class FileName(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of a session. Relative paths begin in its first working directory."""

    path: FilePath


class FileRename(FileName, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of a session, and another name for it."""

    to: FilePath


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """It was done."""

    done: Literal[True] = True


class ApprovalView(msgspec.Struct, frozen=True, kw_only=True):
    """A question that a person has to answer, or has."""

    id: str
    state: Literal["open", "approved", "denied", "expired", "used", "unpinned"]
    requester: str
    own: bool
    """Whether this key has asked for it: then another one has to answer."""
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
    """The risks."""
    effect: Effect | None = None
    """What it did in an overlay, where that is what is to be approved."""
    digest: str
    approver: str = ""
    answer_reason: str = ""
    shown: str = ""
    """All of it as one text, as the command line shows it; only of one approval."""


class Approvals(msgspec.Struct, frozen=True, kw_only=True):
    approvals: tuple[ApprovalView, ...]


class Answer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why it is approved or denied. It goes on record."""

    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=2000)]
    digest: Annotated[str, msgspec.Meta(max_length=64)] = ""
    """The digest of what was read. If it is given and another one waits under this id, nothing is approved."""


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
    """Of one; a list has none."""
    count: int = 0
    """How many paths it is about."""


class ChangesList(msgspec.Struct, frozen=True, kw_only=True):
    changes: tuple[ChangesView, ...]


class ApplyBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which changes to apply."""

    paths: tuple[str, ...] | None = None
    """Only what is at these paths or below; by default everything."""
    named: tuple[str, ...] = ()
    """Protected paths that are to be applied too."""


class CheckBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What to judge, without running it."""

    code: str = ""
    argv: tuple[str, ...] = ()
    language: Literal["python", "bash", "javascript", "command"] = "python"
    policy: Short | None = None


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """What policy says of it."""

    decision: Literal["allow", "prompt", "forbid"]
    policy: str
    digest: str
    findings: tuple[Finding, ...]
    level: Level
    level_why: tuple[str, ...]
    backend: str
    """Where it would run; empty if nowhere."""


class AuditRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run on record."""

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
    """Runs on record, newest first."""

    runs: tuple[AuditRun, ...]


class AuditStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the chain of records is whole."""

    ok: bool
    records: int
    head: str
    """The hash of the newest record: keep it elsewhere, and compare it later."""
    problem: str = ""


class KeyBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key to make."""

    name: Short
    scopes: tuple[Scope, ...] = ("run",)
    seconds: Annotated[float, msgspec.Meta(gt=0, le=1e9)] | None = None
    """How long it is good for; by default for good."""
    concurrency: Annotated[int, msgspec.Meta(ge=1, le=10000)] = 16
    rate: Annotated[float, msgspec.Meta(gt=0, le=100000)] = 50.0


class NewKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key that was made. Its text is shown this once."""

    key: Key
    text: str


class KeyList(msgspec.Struct, frozen=True, kw_only=True):
    keys: tuple[Key, ...]


class Health(msgspec.Struct, frozen=True, kw_only=True):
    status: Literal["ok", "stopping", "failing"]
    version: str = ""
    queued: int = 0
    running: int = 0


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One of the events that a run is followed by."""

    event: Literal["state", "output", "display", "result"]
    data: str
    """JSON: of `state` the run's id, state, note and approval_id; of `output` stream and text; of `display`, in a
    session, what the code showed; of `result` a Result."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request was not answered."""

    error: str
    why: str = ""
    next: str = ""
    code: str = ""
    """Of an operation on a file: what its system call said, such as `ENOENT`."""
