"""The data that travels down the pipeline: frozen in, frozen out.

A `Request` says what somebody wants run. Policy turns it into an `Evaluation`, a backend into an
`Outcome` (see `backends.base`), and the executor into the one `Result` every caller gets, whichever
backend ran it. Values that can be derived are properties, so they can never disagree.
"""

from __future__ import annotations

import enum
import re
import uuid
from datetime import datetime
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from ..lib.errors import InvalidRequest
from ..lib.units import parse_size
from .effect import Change as Change
from .effect import Effect as Effect
from .effect import Version as Version
from .reach import HOST, Reach
from .result_parts import Artifact, Diagnosis
from .result_parts import Seed as Seed
from .result_parts import Usage as Usage

KiB = 1024
MiB = 1024 * KiB

Language = Literal["python", "bash", "lua", "command"]
Stream = Literal["stdout", "stderr"]
WorkspaceKind = Literal["scratch", "read-only", "overlay", "direct"]
"""Where a run works: in an empty directory of its own; in a project that it can only read; in one that it changes in a
copy, so that what it did can be looked at before it is applied; or in the project itself."""

LANGUAGES: tuple[Language, ...] = get_args(Language)


class Decision(enum.Enum):
    """What policy says of a request. Ordered: the strictest match wins."""

    ALLOW = "allow"
    PROMPT = "prompt"
    FORBID = "forbid"

    @property
    def rank(self) -> int:
        return _RANKS[self]

    # A plain Enum has no order and a StrEnum would sort by spelling ("forbid" < "prompt"), so each is spelt out.
    def __lt__(self, other: Decision) -> bool:
        return self.rank < other.rank

    def __le__(self, other: Decision) -> bool:
        return self.rank <= other.rank

    def __gt__(self, other: Decision) -> bool:
        return self.rank > other.rank

    def __ge__(self, other: Decision) -> bool:
        return self.rank >= other.rank

    def __str__(self) -> str:
        return self.value


_RANKS = {decision: rank for rank, decision in enumerate(Decision)}


class Level(enum.StrEnum):
    """How much stands between a request and its effects, derived from the evaluation and the request."""

    L1 = "L1"
    """Inline: it only looks."""
    L2 = "L2"
    """Constrained: it writes, within limits."""
    L3 = "L3"
    """Contained: code that nobody has reviewed."""
    L4 = "L4"
    """A person has to say yes."""


class Status(enum.StrEnum):
    """How a request ended. Three endings, never confused: it ran, we refused, we failed. Or it waits for a person."""

    OK = "ok"
    ERROR = "error"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    OUTPUT = "output"
    KILLED = "killed"

    FORBIDDEN = "forbidden"
    DENIED = "denied"
    EXPIRED = "expired"

    FAILED = "failed"

    PENDING = "pending"

    @property
    def ending(self) -> Literal["ran", "refused", "failed", "pending"]:
        if self in (Status.FORBIDDEN, Status.DENIED, Status.EXPIRED):
            return "refused"
        if self is Status.PENDING:
            return "pending"
        return "failed" if self is Status.FAILED else "ran"


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run may use. Every field is always set: there is no "unlimited" to forget."""

    time: float = 30.0
    """Wall-clock seconds."""
    cpu: float = 120.0
    """Seconds of processor time, of all processes of the run together."""
    memory: int = 512 * MiB
    """Bytes, for the run as a whole."""
    processes: int = 100
    """Processes and threads at one time."""
    output_lines: int = 1000
    """Lines kept of stdout and of stderr each; head and tail are kept, the middle is counted."""
    output_bytes: int = 1 * MiB
    """Bytes kept of stdout and of stderr each."""
    output_total: int = 64 * MiB
    """Bytes a run may print before it is stopped with status `output`."""
    file_size: int = 256 * MiB
    """Bytes of the largest file a run may write."""
    disk: int = 256 * MiB
    """Bytes of all files of the run together."""
    files: int = 10_000
    """Files and directories of the run."""
    open_files: int = 256
    """Descriptors of one process."""
    recursion: int = 1000
    """Depth of the code's own Python calls, on backends that count them."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, str) and name in _SIZES:
                value = _size(name, value)
                msgspec.structs.force_setattr(self, name, value)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 2**63:
                raise InvalidRequest(
                    f"limit {name!r} is {value!r}", why="a limit is a positive number", next=f"set {name} above 0"
                )
            if name == "memory" and value < MiB:
                raise InvalidRequest(
                    f"memory is {value:g} bytes", why="no program fits into that", next=f'write "{value:g}MiB"'
                )
            if name not in ("time", "cpu") and not isinstance(value, int):
                raise InvalidRequest(
                    f"limit {name!r} is {value!r}", why="it counts whole units", next=f"use {int(value) or 1}"
                )


_SIZES = ("memory", "output_bytes", "output_total", "file_size", "disk")


def _size(name: str, text: str) -> int:
    """Bytes of a size as people write it."""
    if (size := parse_size(text.strip())) is None:
        raise InvalidRequest(
            f"limit {name!r} is {text!r}", why="that is no size", next="write a number of bytes, 256MiB or 1.5GB"
        )
    return size


MIN_SECRET = 4
"""Characters of the shortest value that can be taken out of an output: shorter ones stand everywhere by chance."""

LONGEST_PATTERN, MOST_PATTERNS = 1024, 100
"""Bounds on what says which files to bring back."""

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def _is_plain(path: str) -> bool:
    """Whether it is a relative path that leads down only."""
    return bool(path) and "\0" not in path and not {"", ".", ".."} & set(path.split("/"))


def _new_id() -> str:
    return uuid.uuid4().hex


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody wants run: source text in a language, or an argument vector (`language="command"`)."""

    code: str = ""
    argv: tuple[str, ...] = ()
    """The command; of Python and Bash code, its arguments; of a Lua script, its name and its arguments."""
    language: Language = "python"
    backend: str = "auto"
    limits: Limits = Limits()
    stdin: bytes = b""
    env: dict[str, str] = {}
    secrets: dict[str, str] = {}
    """Variables of the run whose values are taken out of every output and record."""
    files: dict[str, bytes] = {}
    """Relative path → content, placed in the run's working directory before it starts."""
    outputs: tuple[str, ...] = ()
    """Which files of the working directory to bring back, if they are new or changed: globs such as `out/*.csv`."""
    cwd: str | None = None
    """A directory of the host to work in, on backends that see the host; that of an executor in cells or containers is
    a path inside. With a `project`, a path in it."""
    workspace: WorkspaceKind = "scratch"
    project: str | None = None
    """The directory of the host that a workspace other than `scratch` is made of: absolute, and without links."""
    checkpoint: bool | None = None
    """Whether what it works in is kept before, and put back unless it ends well: a directory of the host that it can
    change itself (see `touches`). None: if a person had to say yes to it, and always with the workspace `direct`."""
    require: tuple[str, ...] = ()
    """Isolation layers that must be in force; if one is missing, nothing runs."""
    reason: str = ""
    requester: str = ""
    label: str = ""
    """What its requester calls it each time: the path of a script, or a name. A pinned approval goes by it."""
    seed: Seed | None = None
    """To draw the same random numbers as another run, where the backend can; None for new ones."""
    id: str = msgspec.field(default_factory=_new_id)

    def __post_init__(self) -> None:
        if self.language not in LANGUAGES:
            raise InvalidRequest(
                f"unknown language {self.language!r}",
                why="no backend runs it",
                next=f"use one of {', '.join(LANGUAGES)}",
            )
        if self.language == "command" and (not self.argv or not self.argv[0] or self.code):
            raise InvalidRequest(
                "a command needs an argument vector",
                why="argv is empty" if not self.code else "it was given as code",
                next='pass argv=("ls", "-l"), or language="bash" for a shell script',
            )
        for word in self.argv:
            if "\0" in word:
                raise InvalidRequest("an argument holds a NUL byte", why="the kernel ends it there", next="remove it")
        for name, value in (*self.env.items(), *self.secrets.items()):
            if not _ENV_NAME.match(name) or "\0" in value:
                raise InvalidRequest(
                    f"environment variable {name!r} can't be set",
                    why="names are letters, digits and _, and values hold no NUL byte",
                    next="rename it or encode the value",
                )
        for name, value in self.secrets.items():
            if len(value.strip()) < MIN_SECRET:
                raise InvalidRequest(
                    f"the secret {name} is too short to be kept out of sight",
                    why=f"text of fewer than {MIN_SECRET} characters stands everywhere by chance",
                    next="pass it as an ordinary variable, or use a longer one",
                )
        if self.cwd is not None:
            self._check_cwd(self.cwd)
        self._check_project()
        if self.checkpoint is not None:
            self._check_checkpoint()
        for path in self.files:
            if not _is_plain(path):
                raise InvalidRequest(
                    f"file path {path!r} is not a plain relative path",
                    why="files are placed inside the run's own directory",
                    next="use a path such as data/input.csv",
                )
        for pattern in self.outputs:
            if not _is_plain(pattern) or len(pattern) > LONGEST_PATTERN or len(self.outputs) > MOST_PATTERNS:
                raise InvalidRequest(
                    f"{pattern[:80]!r} can't say which files to bring back",
                    why="only files below the run's own directory are; "
                    f"at most {MOST_PATTERNS} patterns of {LONGEST_PATTERN} characters",
                    next="use patterns such as result.json, plots/*.png, or ** for everything new",
                )

    def _check_cwd(self, cwd: str) -> None:
        for name, given in (("files", self.files), ("outputs", self.outputs)):
            if given:
                raise InvalidRequest(
                    f"the working directory {cwd!r} can't be used",
                    why=f"{name} are placed in the run's own directory"
                    if name == "files"
                    else "files are brought back from the run's own directory only",
                    next=f"leave one of cwd and {name} out",
                )
        if "\0" in cwd:
            raise InvalidRequest(
                f"the working directory {cwd!r} can't be used", why="it holds a NUL byte", next="remove it"
            )

    def _check_project(self) -> None:
        project, wanted = self.project, self.workspace != "scratch"
        if wanted != (project is not None):
            raise InvalidRequest(
                f"the workspace {self.workspace!r} was asked for {'without' if wanted else 'with'} a project",
                why="a project is what a workspace other than scratch is made of",
                next='name both, as in workspace="overlay", project="."',
            )
        if project is not None and (not project.startswith("/") or "\0" in project):
            raise InvalidRequest(f"the project {project!r} can't be used", why="it is no absolute path", next="mend it")
        if project is not None and (self.files or self.outputs):
            raise InvalidRequest(
                "files can't be placed beside a project, nor brought back from it",
                why="what a run leaves in a project is told as its changes",
                next="leave files and outputs out, or use the workspace scratch",
            )

    def _check_checkpoint(self) -> None:
        why, step = "", "leave `checkpoint` out"
        if not isinstance(self.checkpoint, bool):
            why, step = "it is wanted or not", "write True or False"
        elif not self.checkpoint:
            if self.workspace == "direct":
                why, step = "the workspace direct always has one", "leave the workspace out, and use cwd"
        elif self.touches is None:
            if self.workspace != "scratch":
                why = f"nothing that it writes gets into its project with the workspace {self.workspace}"
            elif self.backend != "native":
                why = f"on {self.backend} it works in a directory of its own, and never in one of the host"
            else:
                why, step = "it works in an empty directory of its own", "name one of the host with cwd"
        if why:
            what = "there is nothing to checkpoint" if self.checkpoint is True else f"checkpoint is {self.checkpoint!r}"
            raise InvalidRequest(what, why=why, next=step)

    @property
    def touches(self) -> str | None:
        """The directory of the host that it works in itself, and so changes; None if there is none."""
        if self.workspace == "direct":
            return self.project
        return self.cwd if self.workspace == "scratch" and self.backend == "native" else None

    @property
    def text(self) -> str:
        """What a person reads to know what is asked for."""
        if self.language != "command":
            return self.code
        import shlex

        return shlex.join(self.argv)

    @property
    def environment(self) -> dict[str, str]:
        return {**self.env, **self.secrets}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One rule that matched one place."""

    rule: str
    decision: Decision
    reason: str
    line: int = 0
    column: int = 0
    """1-based, in characters; 0 when the finding is about the request as a whole."""
    text: str = ""
    """What matched, shortened for reading."""
    suggestion: str = ""
    permit: str = ""
    """Lines of a redoma.yaml that would permit it, where what found it is no rule of the policy."""
    out_of_reach: str = ""
    """Why it decides nothing here although it is there: what it is about can't be touched, or not yet."""


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """Everything policy has to say of a request."""

    policy: str
    """The pack's name; `none` when the static checks were switched off."""
    digest: str
    """SHA-256 of the policy's rules: two evaluations with one digest followed the same rules."""
    findings: tuple[Finding, ...] = ()
    reach: Reach = HOST
    """What the run could touch; with another reach, or another policy, the verdict would be another."""

    @property
    def decision(self) -> Decision:
        return max((finding.decision for finding in self.findings), default=Decision.ALLOW)

    @property
    def deciding(self) -> tuple[Finding, ...]:
        """The findings that made the decision what it is."""
        decision = self.decision
        return tuple(f for f in self.findings if f.decision is decision and decision is not Decision.ALLOW)


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody said of exactly one request under one policy, or of one effect."""

    id: str
    """Of what was asked."""
    digest: str
    decision: Literal["approved", "denied", "expired"]
    approver: str
    reason: str
    at: datetime
    expires: datetime
    """When an approval that was not used, or a pin, is void."""
    pinned: bool = False
    """Good for any number of uses until it expires, for exactly the same content under the same policy."""


class Chunk(NamedTuple):
    """A piece of output, while the run goes on."""

    stream: Stream
    text: str


class Isolation(msgspec.Struct, frozen=True, kw_only=True):
    """What stood between the run and the host, layer by layer, and what did not."""

    layers: dict[str, str] = {}
    missing: tuple[str, ...] = ()

    def lacking(self, required: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(layer for layer in required if layer not in self.layers)


class Denial(msgspec.Struct, frozen=True, kw_only=True):
    """Why something was not done, and what would be: one record, whoever said no and on whichever backend."""

    rule: str
    """What said no: a rule of the policy, `limits.memory`, `backend.unsupported`, `workspace.protected` …"""
    resource: str = ""
    """What it was about: the command, the path, the limit, the layer."""
    why: str
    allowed: str
    """What can be done instead."""
    narrowest: str = ""
    """Lines of a redoma.yaml that permit it, as narrowly as one can say it there; empty where none could. For a rule
    exactly this request; for a limit, more of it for every run; for an executor, to be merged into its other lines."""
    retry: bool = False
    """Whether the same request, unchanged, may fare better if it is made again."""
    retry_why: str = ""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The one answer to a request, whichever backend ran it and however it ended."""

    id: str
    status: Status
    exit_code: int | None = None
    """The code's own exit status; None when it didn't run or didn't get as far as having one."""
    stdout: str = ""
    stderr: str = ""
    value: Any = None
    """The value of a last expression: plain data, dates and `Decimal` as they are, a NumPy scalar as the number that it
    holds, anything else as its `repr`."""
    value_repr: str | None = None
    """The value as Python prints it; None if there was none."""
    exception: str | None = None
    """The type of the exception that ended the code, where the backend can tell."""
    error: str | None = None
    """What went wrong, in words."""
    backend: str = ""
    passed_over: dict[str, str] = {}
    """Backends that `auto` prefers to the one that ran it, and why each could not."""
    evaluation: Evaluation
    level: Level | None = None
    level_why: tuple[str, ...] = ()
    denial: Denial | None = None
    """Where we refused, could not, or ended it at a limit: what said no, and what would be allowed."""
    isolation: Isolation = Isolation()
    usage: Usage = Usage()
    seed: Seed | None = None
    """What its random numbers came from, where the backend can tell."""
    redacted: dict[str, int] = {}
    """How many secrets of each kind were taken out of what you read here."""
    omitted: dict[Stream, int] = {}
    """Bytes of each stream that were left out to keep it within the limits."""
    files: dict[str, bytes] = {}
    """Path → content of the files that `outputs` asked for: new or changed ones, as the run left them, not redacted."""
    left_out: dict[str, str] = {}
    """Path → why a file that `outputs` asked for was not brought back."""
    data: Any = None
    """What the output says, in the form that `expect` asked for."""
    mismatch: str | None = None
    """Where and how the output differs from what `expect` asked for. The code itself may have ended well."""
    diagnoses: tuple[Diagnosis, ...] = ()
    """Failures that were recognised in the output, the one that matters most first."""
    artifacts: dict[Stream, Artifact] = {}
    """All of each stream that had to be cut for `stdout` and `stderr`."""
    effect: Effect | None = None
    """What it did to its project. In an overlay nothing has happened to the project itself yet."""
    unexpected: tuple[str, ...] = ()
    """Paths that it changed outside of where it was to write."""
    rollback: dict[str, str] | None = None
    """Of a run with a checkpoint that did not end well: path → why it could not be put back. None: nothing was."""
    no_checkpoint: str = ""
    """Why there was none of a run that a person had to say yes to, though it worked in a directory of the host."""
    approval: Approval | None = None
    """What a person said, where one had to be asked."""
    approval_id: str = ""
    """Under which a person is asked: of a `pending` result, what `resume` takes."""

    @property
    def ok(self) -> bool:
        return self.status is Status.OK

    def to_text(self, limit: int = 8000) -> str:
        """What came of it as one text, for a language model or a log: how it ended, output, value and error.

        `limit` is how many characters it may have (at least 200). Each part gets its share, and of a part that is too
        long the middle is left out. What was redacted stays so.
        """
        if limit < 200:
            raise InvalidRequest(f"limit is {limit}", why="nothing useful fits", next="allow 200 characters or more")
        head = f"status: {self.status.value}"
        head += "" if self.exit_code in (None, 0) else f" (exit code {self.exit_code})"
        said, denial = self.error or "", self.denial
        parts = {
            "stdout": self.stdout.strip("\n"),
            "stderr": self.stderr.strip("\n"),
            "value": None if self.value is None else self.value_repr or repr(self.value),
            "error": self.error,
            # Most often the error has these words already.
            "denied": denial.why if denial and denial.why not in said else None,
            "allowed": denial.allowed if denial and denial.allowed not in said else None,
            "mismatch": self.mismatch,
            "files": ", ".join(sorted(self.files)),
        }
        shown = {name: text for name, text in parts.items() if text}
        room, texts = limit - len(head), {}
        for place, (name, text) in enumerate(sorted(shown.items(), key=lambda part: len(part[1]))):
            share = room // (len(shown) - place)  # short ones first, so that what they don't need goes to the others
            texts[name] = _shortened(f"\n{name}:\n{text}" if "\n" in text else f"\n{name}: {text}", share)
            room -= len(texts[name])
        return head + "".join(texts[name] for name in shown)

    @property
    def shell_exit(self) -> int:
        """What a command line should exit with."""
        match self.status:
            case Status.OK:
                return 0
            case Status.ERROR:
                return self.exit_code or 1
            case Status.TIMEOUT:
                return 124
            case Status.MEMORY | Status.OUTPUT:
                return 137
            case Status.KILLED:
                return self.exit_code or 137
            case Status.FORBIDDEN | Status.DENIED | Status.EXPIRED:
                return 126
            case Status.FAILED:
                return 125
            case Status.PENDING:
                return 75  # EX_TEMPFAIL: try again later


def _shortened(text: str, limit: int) -> str:
    """Its beginning and its end, with a note of what is missing between."""
    if len(text) <= limit:
        return text
    note = f"\n[… {len(text) - limit:,} characters left out …]\n"
    room = max(0, limit - len(note))
    return (text[: room - room // 2] + note + text[len(text) - room // 2 :])[:limit]
