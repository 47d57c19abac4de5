"""The frozen `Config` with its sections, and the errors for what is wrong with a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import msgspec

from ..lib.errors import ConfigError
from ..models import Decision, Limits

if TYPE_CHECKING:
    from ..policy import Permit, Policy, Rule


Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*\Z")]
"""Half of an address such as `app:shell`, so it holds no colon."""
SECTIONS = ("limits", "audit", "approval", "jail", "docker", "log")
"""The sections whose keys are the fields of one struct of `Config`."""
NonEmpty = Annotated[str, msgspec.Meta(min_length=1)]
Inside = NonEmpty
"""A path in a cell or a container."""
Amount = Annotated[int, msgspec.Meta(ge=0)]


class PolicyConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Which rules judge a request."""

    pack: str = "standard"
    rules: tuple[Rule, ...] = ()
    decisions: dict[str, Decision] = {}
    """By rule id, of any pack; one that the pack in use doesn't have has no effect."""
    permits: tuple[Permit, ...] = ()
    """Exact requests that may run although a rule finds something in them."""

    def load(self, pack: str | None = None, *, time: float = 0.0) -> Policy:
        """Return the policy of the configured pack, or of another one with the same rules and decisions.

        Asking for `none` switches the static checks off, the configured rules among them.
        """
        from ..policy import load

        if pack == "none":
            return load(pack)
        pack = pack or self.pack
        known = {rule.id for rule in (*load(pack).rules, *self.rules)}
        decisions = {name: decision for name, decision in self.decisions.items() if name in known}
        return load(pack, self.rules, decisions, permits=self.permits, time=time)


class AuditConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where the record of every run is kept, and for how long."""

    directory: Path
    enabled: bool = True
    retention_days: Annotated[int, msgspec.Meta(ge=1, le=36500)] = 30
    fsync: bool = False
    inputs: bool = True
    """Whether input and files of a run are kept beside its record, so that it can be replayed."""


class ApprovalConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Who is asked where a person has to say yes, and for how long."""

    approver: Literal["auto", "deny", "console", "queue"] = "auto"
    """Nobody (`deny`), whoever sits at the terminal, or whoever uses `redoma approvals` (`queue`). `auto` is the
    terminal on the command line, and nobody elsewhere."""
    timeout: Annotated[int, msgspec.Meta(ge=1, le=86400)] = 300
    """Seconds that a run waits for an answer. Then it is no."""
    expires: Annotated[int, msgspec.Meta(ge=1, le=31_536_000)] = 86400
    """Seconds that an approval can be used, and that a question nobody waits for can be answered."""
    separate: bool = False
    """Whether nobody may approve what they have asked for themselves."""
    webhook: NonEmpty | None = None
    """Where each new question is posted, as JSON."""


class JailConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How many cells are kept ready, and what is in them."""

    minimum: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 2
    """Cells kept armed while nothing runs."""
    maximum: Annotated[int, msgspec.Meta(ge=1, le=10000)] | None = None
    """Cells at one time; by default four for each processor, and at least 16."""
    queue: Amount = 1000
    """Runs that may wait for a cell. One more is an error."""
    idle: Annotated[float, msgspec.Meta(ge=0)] = 30.0
    """Seconds after which cells beyond the minimum are let go."""
    preload: tuple[Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*\Z")], ...] = ()
    """Modules that Python code finds already imported, such as numpy."""


class DockerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Which engine is used, what runs there, and how many containers are kept ready."""

    host: NonEmpty | None = None
    """URL of the engine; by default where docker's own client looks."""
    runtime: NonEmpty | None = None
    """Such as `runsc`; the engine's own if there is none."""
    python: NonEmpty = "python:3.11-slim"
    """The image for Python code."""
    bash: NonEmpty = "bash:5.2-alpine"
    """The image for Bash scripts."""
    command: NonEmpty = "python:3.11-slim"
    """The image for commands."""
    seccomp: Literal["redoma", "engine"] = "redoma"
    """Whose filter of system calls: the jail's, or the laxer one of the engine."""
    pull: bool = False
    """Whether an image that is not there may be fetched."""
    minimum: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0
    """Containers kept waiting, of each kind that is in use. With none, every run makes its own."""
    maximum: Annotated[int, msgspec.Meta(ge=1, le=10000)] | None = None
    """Runs at one time; by default four for each processor, and at least 16."""
    queue: Amount = 1000
    """Runs that may wait for a container. One more is an error."""
    idle: Annotated[float, msgspec.Meta(ge=0)] = 30.0
    """Seconds after which containers beyond the minimum are let go."""


LogLevel = Literal["off", "debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]


class LogConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line logs of its work, and where. An application that uses Redoma has its own logging."""

    level: LogLevel = "off"
    format: LogFormat = "text"
    file: Path | None = None
    """Appended to; standard error if there is none."""
    core: Path | None = None
    """Where each run of the Python core is recorded, such as `logs/core.log`, also by an application. None: nowhere."""


class _Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """What every kind of executor has."""

    name: Name
    default_env: dict[str, str] = {}
    """Variables of every command; those that a caller gives win."""
    command_whitelist: tuple[NonEmpty, ...] | None = None
    """Exactly these commands may run. None: no list was given. An empty list allows nothing."""
    caller_env: tuple[str, ...] = ()
    """Names of variables that a caller may set even though there is a list of commands."""
    limits: Annotated[dict[str, int | float], msgspec.Meta(extra={"any_of": Limits})] = {}
    """Those of `Limits` that differ from the configured ones."""


class NativeEntry(_Entry, frozen=True, kw_only=True, tag="exec.native"):
    """An executor that runs on the host with a clean environment."""

    default_work_dir: Path | None = None
    trust_repository: bool = False
    """Whether Git may run what the repository configures: hooks, filters, external diffs, helpers."""


class JailEntry(_Entry, frozen=True, kw_only=True, tag="exec.jail"):
    """An executor that runs in cells."""

    default_work_dir: Inside | None = None


class MontyEntry(_Entry, frozen=True, kw_only=True, tag="exec.monty"):
    """An executor whose commands are Python, run by Monty."""


class DockerEntry(_Entry, frozen=True, kw_only=True, tag="exec.docker"):
    """An executor that runs in containers. Its defaults are those of an ordinary container, not of a hardened one."""

    image: NonEmpty
    default_work_dir: Inside | None = None
    host: NonEmpty | None = None
    """URL of the engine; its usual socket if there is none."""
    network_mode: Literal["host", "bridge", "none"] = "bridge"
    volumes: tuple[str, ...] = ()
    """As `host:container` or `host:container:ro`."""
    user: NonEmpty | None = None
    memory_limit: Amount = 0
    """Bytes; 0 is unlimited."""
    cpu_quota: Amount = 0
    """100000 is one processor; 0 is unlimited."""
    auto_remove: bool = False
    read_only_rootfs: bool = False
    no_new_privileges: bool = False
    cap_drop: tuple[str, ...] = ()
    cap_add: tuple[str, ...] = ()
    pids_limit: Amount = 0
    """Processes; 0 is unlimited."""
    tmpfs: dict[str, str] = {}
    """Path → options."""
    runtime: NonEmpty | None = None
    """Such as `runsc`; the engine's own if there is none."""
    pull: bool = False
    """Whether an image that is not there may be fetched."""


Entry = NativeEntry | DockerEntry | JailEntry | MontyEntry
"""Every kind of executor; a new kind is one more struct, with its own tag, in this union."""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The values in force, and where each came from."""

    audit: AuditConfig
    state: Path | None = None
    """Directory for what outlives a run: changes to decide on, approvals, output that is too long for a result. None:
    nothing of that is kept."""
    policy: PolicyConfig = PolicyConfig()
    limits: Limits = Limits()
    approval: ApprovalConfig = ApprovalConfig()
    jail: JailConfig = JailConfig()
    docker: DockerConfig = DockerConfig()
    log: LogConfig = LogConfig()
    entries: dict[str, Entry] = {}
    """By `namespace:name`."""
    origins: dict[str, str] = {}
    """Dotted key → where its value came from: "default", "project file /srv/app/redoma.yaml:7"."""
    notices: tuple[str, ...] = ()
    """Sentences the user should see, such as that a project file has no effect and why."""

    def load_policy(self, pack: str | None = None) -> Policy:
        """Return the rules in force. A configured `limits.time` of more than a minute allows runs to take that long."""
        return self.policy.load(pack, time=self.limits.time)


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong with a file. Line and column are 1-based; 0 when it is the file as a whole."""

    file: Path
    message: str
    line: int = 0
    column: int = 0
    key: str = ""
    """The dotted path of the key, such as `limits.time`."""
    hint: str = ""

    @property
    def where(self) -> str:
        position = f":{self.line}:{self.column}" if self.line else ""
        return printable(self.file) + position + (f": {printable(self.key)}" if self.key else "")


class InvalidFile(ConfigError):
    """A file can't be used; `problems` lists everything that is wrong with it, in the order of its lines."""

    def __init__(self, problems: tuple[Problem, ...], lists: str = ": `redoma config check` lists all") -> None:
        self.problems = tuple(sorted(problems, key=lambda problem: (problem.line, problem.column)))
        first, more = self.problems[0], len(problems) - 1
        others = f" ({more} more{lists})" if more else ""
        super().__init__(first.where, why=first.message, next=first.hint + others)


def refuse(file: Path, message: str, hint: str) -> NoReturn:
    """Raise `InvalidFile` for what is wrong with a file as a whole."""
    raise InvalidFile((Problem(file=file, message=message, hint=hint),))


def printable(name: Path | str) -> str:
    """Return a path or key as a message can show it: a hostile project's names must not reach a terminal as control
    codes."""
    text = str(name)
    return text if text.isprintable() else ascii(text)
