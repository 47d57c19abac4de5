"""The frozen `Config` with its sections, and the errors for an invalid file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import msgspec

from ..lib.errors import ConfigError
from ..models import Decision, HostRule, Limits, host_rules
from ..models.request import IMAGES

if TYPE_CHECKING:
    from ..policy import Permit, Policy, Rule


Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*\Z")]
"""One part of an address such as `app:shell`, so it contains no colon."""
SECTIONS = ("limits", "audit", "approval", "network", "jail", "docker", "sessions", "log", "server", "cluster")
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
    """By rule id, of any pack; for a rule that the pack in use doesn't have, it has no effect."""
    permits: tuple[Permit, ...] = ()
    """Exact requests that may run although a rule matches them."""

    def load(self, pack: str | None = None, *, time: float = 0.0, hosts: tuple[HostRule, ...] = ()) -> Policy:
        """Return the policy of the configured pack, or of another one with the same rules and decisions.

        Requesting `none` switches the static checks off, including the configured rules.
        """
        from ..policy import load

        if pack == "none":
            return load(pack)
        pack = pack or self.pack
        known = {rule.id for rule in (*load(pack).rules, *self.rules)}
        decisions = {name: decision for name, decision in self.decisions.items() if name in known}
        return load(pack, self.rules, decisions, permits=self.permits, hosts=hosts, time=time)


class AuditConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where the record of every run is kept, and for how long."""

    directory: Path
    enabled: bool = True
    retention_days: Annotated[int, msgspec.Meta(ge=1, le=36500)] = 30
    fsync: bool = False
    inputs: bool = True
    """Whether input and files of a run are kept with its record, so that it can be replayed."""


class ApprovalConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a person is asked for approval, and for how long."""

    approver: Literal["auto", "deny", "console", "queue"] = "auto"
    """`deny` asks nobody, `console` the person at the terminal, `queue` waits for `redoma approvals`. `auto` is the
    terminal on the command line, and nobody elsewhere.
    """
    timeout: Annotated[int, msgspec.Meta(ge=1, le=86400)] = 300
    """Seconds that a run waits for an answer. After that the answer is no."""
    expires: Annotated[int, msgspec.Meta(ge=1, le=31_536_000)] = 86400
    """Seconds for which an approval can be used, and a question without a waiting run can be answered."""
    separate: bool = False
    """Whether requesters may not approve their own requests."""
    webhook: NonEmpty | None = None
    """A URL to which each new question is posted, as JSON."""


class NetworkConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What runs may reach, and what they may name without a prompt. See docs/network.md."""

    hosts: tuple[NonEmpty, ...] = ()
    """Every run in a sandbox may reach these, unless it names others itself."""
    allow: tuple[NonEmpty, ...] = ()
    """A request may name these, or a part of them, without a prompt."""

    @property
    def rules(self) -> tuple[HostRule, ...]:
        return host_rules(self.hosts)

    @property
    def allowed(self) -> tuple[HostRule, ...]:
        """The hosts that need no approval."""
        return host_rules((*self.hosts, *self.allow))


class JailConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How many cells are kept ready, and what is in them."""

    minimum: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 2
    """Cells kept armed while nothing runs."""
    maximum: Annotated[int, msgspec.Meta(ge=1, le=10000)] | None = None
    """Cells at a time; by default four for each processor, and at least 16."""
    queue: Amount = 1000
    """Runs that may wait for a cell. One more is an error."""
    idle: Annotated[float, msgspec.Meta(ge=0)] = 30.0
    """Seconds after which cells beyond the minimum are removed."""
    preload: tuple[Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*\Z")], ...] = ()
    """Modules that are already imported for Python code, such as numpy."""
    lean: bool = False
    """Whether `auto` may use lean cells, which have no namespaces, if neither the jail nor Docker is available."""

    def options(self) -> dict[str, Any]:
        """Return the options of the backends. `lean` is not one of them: the executor decides about it."""
        return {name: getattr(self, name) for name in self.__struct_fields__ if name != "lean"}


class DockerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Which engine is used, what runs there, and how many containers are kept ready."""

    host: NonEmpty | None = None
    """URL of the engine; by default where docker's own client looks."""
    runtime: NonEmpty | None = None
    """Such as `runsc`; by default the engine's own."""
    python: NonEmpty = IMAGES["python"]
    """The image for Python code."""
    bash: NonEmpty = IMAGES["bash"]
    """The image for Bash scripts."""
    command: NonEmpty = IMAGES["command"]
    """The image for commands, and for languages of the configuration."""
    javascript: NonEmpty = IMAGES["javascript"]
    """The image for JavaScript."""
    seccomp: Literal["redoma", "engine"] = "redoma"
    """Which system call filter to use: the jail's, or the engine's laxer one."""
    pull: bool = False
    """Whether a missing image may be pulled."""
    minimum: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0
    """Containers kept waiting, for each kind in use. With 0, every run makes its own."""
    maximum: Annotated[int, msgspec.Meta(ge=1, le=10000)] | None = None
    """Runs at a time; by default four for each processor, and at least 16."""
    queue: Amount = 1000
    """Runs that may wait for a container. One more is an error."""
    idle: Annotated[float, msgspec.Meta(ge=0)] = 30.0
    """Seconds after which containers beyond the minimum are removed."""


class SessionsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How many sessions there may be, and how long they live."""

    maximum: Annotated[int, msgspec.Meta(ge=1, le=10000)] = 64
    """Sessions of one executor that are open at a time. One more is an error."""
    idle: Annotated[float, msgspec.Meta(gt=0, le=604800)] = 600.0
    """Seconds without use after which a session is ended."""
    lifetime: Annotated[float, msgspec.Meta(gt=0, le=604800)] = 3600.0
    """Seconds after which a session is ended in any case."""
    grace: Annotated[float, msgspec.Meta(gt=0, le=600)] = 4.0
    """Seconds that a run has to end after it was interrupted, before the session is ended."""


class LanguageConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A language by the program that runs it. Code in it can't be read before it runs; JavaScript aside."""

    argv: tuple[NonEmpty, ...]
    """Its words, of which `-` stands for the file with the code; without one, that comes last."""
    suffixes: tuple[Annotated[str, msgspec.Meta(pattern=r"^\.[A-Za-z0-9_]+\Z")], ...] = ()
    """Of files in this language, such as `.rb`."""


LogLevel = Literal["off", "debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]


class LogConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line logs about its work, and where. An application that uses Redoma has its own logging."""

    level: LogLevel = "off"
    format: LogFormat = "text"
    file: Path | None = None
    """Appended to; by default standard error."""
    core: Path | None = None
    """Where each run of the Python core is recorded, such as `logs/core.log`, also by an application. None: nowhere."""


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What `redoma serve` lets its callers do."""

    running: Annotated[int, msgspec.Meta(ge=1, le=10000)] | None = None
    """Runs at a time; by default four for each processor."""
    queue: Amount = 1000
    """Runs that may wait for their turn. One more gets the response 429."""
    max_body: Annotated[int, msgspec.Meta(ge=1024)] = 32 << 20
    """Maximum bytes of a request's body."""
    max_limits: Annotated[dict[str, int | float], msgspec.Meta(extra={"any_of": Limits})] = {}
    """The maximum that a caller may request, for each limit. By default ten times the configured limit."""
    sessions: Annotated[int, msgspec.Meta(ge=0, le=10000)] = 8
    """Sessions that one key may have open at a time; `sessions.maximum` is for all keys together."""
    projects: dict[str, Path] = {}
    """Name → directory of the projects that callers may work in, in an overlay or read-only."""
    https: bool = False
    """Whether browsers reach it by HTTPS, through a proxy in front: then the dashboard's cookie requires that."""
    drain: Annotated[float, msgspec.Meta(ge=0)] = 20.0
    """Seconds that runs may continue after the server is told to stop; then they are cancelled."""
    retention_days: Annotated[int, msgspec.Meta(ge=1, le=36500)] = 7
    """How long ended runs can be looked up."""


ClusterBackend = Literal["jail", "docker", "monty", "lean"]


class ClusterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a cluster is used from this machine, and what this machine offers as a node of one. See docs/cluster.md."""

    directory: Path | None = None
    """Where the invitation to the cluster is; by default `cluster` in the state directory."""
    backends: Annotated[tuple[ClusterBackend, ...], msgspec.Meta(min_length=1)] = ("jail", "docker")
    """The backends of nodes that may run what is sent from here."""
    require: tuple[NonEmpty, ...] = ()
    """Isolation layers that every run that is sent from here must have: nodes without them get no work."""
    queue: Amount = 1000
    """Runs that may wait for a node. One more is an error."""
    offer: Annotated[tuple[ClusterBackend, ...], msgspec.Meta(min_length=1)] = ("jail",)
    """As a node: the backends that others may use, in the order in which they are tried."""
    capacity: Annotated[int, msgspec.Meta(ge=1, le=10000)] | None = None
    """As a node: runs at a time; by default four for each processor, and at least 16."""


class _Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """The fields of every kind of executor."""

    name: Name
    default_env: dict[str, str] = {}
    """Variables of every command; those of the caller take precedence."""
    command_whitelist: tuple[NonEmpty, ...] | None = None
    """Exactly these commands may run. None: there is no whitelist. An empty list allows nothing."""
    caller_env: tuple[str, ...] = ()
    """Names of variables that a caller may set although there is a whitelist."""
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
    """URL of the engine; by default its usual socket."""
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
    """Such as `runsc`; by default the engine's own."""
    pull: bool = False
    """Whether a missing image may be pulled."""


Entry = NativeEntry | DockerEntry | JailEntry | MontyEntry
"""Every kind of executor. To add one, add a struct with its own tag to this union."""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The values in force, and where each came from."""

    audit: AuditConfig
    state: Path | None = None
    """Directory for what outlives a run: changes to decide on, approvals, output that is too long for a result. None:
    nothing of that is kept.
    """
    policy: PolicyConfig = PolicyConfig()
    limits: Limits = Limits()
    approval: ApprovalConfig = ApprovalConfig()
    network: NetworkConfig = NetworkConfig()
    jail: JailConfig = JailConfig()
    docker: DockerConfig = DockerConfig()
    sessions: SessionsConfig = SessionsConfig()
    log: LogConfig = LogConfig()
    server: ServerConfig = ServerConfig()
    cluster: ClusterConfig = ClusterConfig()
    languages: dict[str, LanguageConfig] = {}
    """By name: those that are not built in, and `javascript` where it is to run on another program than `node`."""
    entries: dict[str, Entry] = {}
    """By `namespace:name`."""
    origins: dict[str, str] = {}
    """Dotted key → the origin of its value: "default", "project file /srv/app/redoma.yaml:7"."""
    notices: tuple[str, ...] = ()
    """Sentences to show to the user, such as that a project file has no effect and why."""

    def load_policy(self, pack: str | None = None) -> Policy:
        """Return the rules in force. A configured `limits.time` of more than a minute allows runs to take that long."""
        return self.policy.load(pack, time=self.limits.time, hosts=self.network.allowed)


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One error in a file. Line and column are 1-based; 0 if it is the file as a whole."""

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
    """A file can't be used; `problems` lists all its errors, in the order of its lines."""

    def __init__(self, problems: tuple[Problem, ...], lists: str = ": `redoma config check` lists all") -> None:
        self.problems = tuple(sorted(problems, key=lambda problem: (problem.line, problem.column)))
        first, more = self.problems[0], len(problems) - 1
        others = f" ({more} more{lists})" if more else ""
        super().__init__(first.where, why=first.message, next=first.hint + others)


def refuse(file: Path, message: str, hint: str) -> NoReturn:
    """Raise `InvalidFile` for an error in a file as a whole."""
    raise InvalidFile((Problem(file=file, message=message, hint=hint),))


def printable(name: Path | str) -> str:
    """Return a path or key for a message: names in a hostile project must not reach a terminal as control codes."""
    text = str(name)
    return text if text.isprintable() else ascii(text)
