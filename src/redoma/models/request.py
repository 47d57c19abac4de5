"""What to run, and within which limits."""

from __future__ import annotations

import os
from typing import Annotated, Literal

import msgspec

from ..lib.errors import InvalidRequest
from ..lib.units import parse_size
from .environment import EnvironmentUse
from .network import HostRule, SecretUse, placeholder

KiB = 1024
MiB = 1024 * KiB

Language = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_+.-]*\Z", max_length=40)]
"""One of `LANGUAGES`, or the name of one that the configuration has an interpreter for."""
Stream = Literal["stdout", "stderr"]
WorkspaceKind = Literal["scratch", "read-only", "overlay", "direct"]
"""Where a run works: in its own empty directory; in a project that it can only read; in an overlay of a project, whose
changes can be reviewed before they are applied; or in the project itself.
"""

LANGUAGES = ("python", "bash", "javascript", "lua", "command")
"""Those that need no configuration."""
OTHER = "other"
"""In `Capabilities.languages`: any language that the configuration has an interpreter for."""
CODE = "-"
"""The word of an interpreter that stands for the file with the code."""
_FROM_HERE = """\
const m = require("module"), main = process.argv[1], find = m._resolveFilename;
m._resolveFilename = function (name, from, top, more) {
  const own = from && from.filename === main && !top;
  return find.call(this, name, from, top, own ? { paths: [process.cwd()], ...more } : more);
};
m.runMain();
"""
"""Makes the main file of a JavaScript program `require` modules from the working directory, although we store the file
elsewhere: a run leaves nothing in its directory that it has not written."""
NODE = ("node",)
"""The interpreter of JavaScript, where the configuration names no other."""
IMAGES = {
    "python": "python:3.11-slim",
    "bash": "bash:5.2-alpine",
    "command": "python:3.11-slim",
    "javascript": "node:22-slim",
}
"""The image of a container by language, where the configuration names no other."""


DEFAULT_TIME = 30.0
"""Seconds that a run may take if nothing else is said."""


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run may use. Every field is always set: there is no "unlimited" to forget."""

    time: float = DEFAULT_TIME
    """Wall-clock seconds."""
    cpu: float = 120.0
    """Seconds of processor time, of all processes of the run together."""
    memory: int = 512 * MiB
    """Bytes, for the run as a whole."""
    processes: int = 100
    """Processes and threads at a time."""
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
    network_bytes: int = 256 * MiB
    """Bytes that may pass to and from the hosts of `network`, together."""
    connections: int = 128
    """Connections to them at a time."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, str) and name in SIZES:
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


SIZES = ("memory", "output_bytes", "output_total", "file_size", "disk", "network_bytes")
"""The limits that are sizes in bytes."""


def _size(name: str, text: str) -> int:
    """Return the bytes of a size such as `256MiB`."""
    if (size := parse_size(text.strip())) is None:
        raise InvalidRequest(
            f"limit {name!r} is {text!r}", why="that is not a size", next="write a number of bytes, 256MiB or 1.5GB"
        )
    return size


class Seed(msgspec.Struct, frozen=True, kw_only=True):
    """The seed of a Python run's random numbers, so that they can be reproduced. Nothing secret depends on it:
    `secrets`, `os.urandom` and `uuid4` use the kernel.
    """

    random: int
    """For `random`, and for `numpy.random` if that is preloaded."""
    hashes: int
    """For the hashes of text, and so for the order of sets: like PYTHONHASHSEED."""


MIN_SECRET = 4
"""Characters of the shortest secret. A shorter text occurs by chance, and can't be removed from an output."""

MAX_PATTERN, MAX_PATTERNS = 1024, 100
"""Characters of one pattern in `outputs`, and how many there may be."""


def _is_plain(path: str) -> bool:
    """Return whether it is a relative path without `..` and the like."""
    return bool(path) and "\0" not in path and not {"", ".", ".."} & set(path.split("/"))


def new_id() -> str:
    """Return a random UUID without dashes. (The module `uuid` takes longer to load than a run.)"""
    number = int.from_bytes(os.urandom(16), "big")
    return f"{number & ~(0xF << 76) & ~(0x3 << 62) | 0x4 << 76 | 0x2 << 62:032x}"


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What to run: source text in a language, or an argument vector (`language="command"`)."""

    code: str = ""
    argv: tuple[str, ...] = ()
    """The command; for code, its arguments; for a Lua script, its name and its arguments."""
    language: Language = "python"
    interpreter: tuple[str, ...] = ()
    """The words that run code in a language other than Python, Bash and Lua, in which `CODE` stands for its file."""
    backend: str = "auto"
    limits: Limits = Limits()
    stdin: bytes = b""
    env: dict[str, str] = {}
    secrets: dict[str, str] = {}
    """Variables of the run whose values are removed from every output and record."""
    held: dict[str, SecretUse] = {}
    """Those of the secrets that stay outside: the run has a placeholder in the variable, and the value is inserted on
    the way to the hosts that it is for.
    """
    network: tuple[HostRule, ...] = ()
    """The hosts that it may reach; by default none."""
    uses: EnvironmentUse | None = None
    """The packages that it finds, in place of those of Redoma's own interpreter."""
    files: dict[str, bytes] = {}
    """Relative path → content, placed in the run's working directory before it starts."""
    outputs: tuple[str, ...] = ()
    """Which files of the working directory to return, if they are new or changed: globs such as `out/*.csv`."""
    cwd: str | None = None
    """A directory of the host to work in, on backends that see the host; for an executor in cells or containers, a path
    inside. With a `project`, a path in it.
    """
    workspace: WorkspaceKind = "scratch"
    project: str | None = None
    """The directory of the host for a workspace other than `scratch`: absolute, and without links."""
    checkpoint: bool | None = None
    """Whether to take a checkpoint of the host directory that it can change directly (see `touches`), and roll back
    unless it succeeds. None: only if a person had to approve it, and always with the workspace `direct`.
    """
    require: tuple[str, ...] = ()
    """Isolation layers that must be in force; if one is missing, nothing runs."""
    reason: str = ""
    requester: str = ""
    label: str = ""
    """The name under which its requester runs it each time. A pinned approval is found by it."""
    seed: Seed | None = None
    """The seed of another run, to reproduce its random numbers if the backend can; None for a new one."""
    id: str = msgspec.field(default_factory=new_id)

    def __post_init__(self) -> None:
        if self.language == "javascript" and not self.interpreter:
            msgspec.structs.force_setattr(self, "interpreter", NODE)
        if self.language not in LANGUAGES and not self.interpreter:
            raise InvalidRequest(
                f"unknown language {self.language!r}",
                why="no backend runs it, and the configuration names no program that does",
                next=f"use one of {', '.join(LANGUAGES)}, or name its program under `languages` in redoma.yaml",
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
            if not (name.isascii() and name.isidentifier()) or "\0" in value:
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
        if self.held:
            self._check_held()
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
        if len(self.outputs) > MAX_PATTERNS:
            raise InvalidRequest(
                f"{len(self.outputs)} patterns say which files to bring back",
                why=f"there may be {MAX_PATTERNS}",
                next="use fewer, such as plots/*.png, or ** for everything new",
            )
        for pattern in self.outputs:
            self._check_output(pattern)

    def _check_output(self, pattern: str) -> None:
        why, step = "", "use patterns such as result.json, plots/*.png, or ** for everything new"
        if len(pattern) > MAX_PATTERN:
            why = f"it has more than {MAX_PATTERN} characters"
        elif pattern.startswith("/"):
            why = "it is an absolute path, and only files below the run's own directory are brought back"
            step = "let the code write to the directory that it starts in, and name the file relative to that"
        elif not _is_plain(pattern):
            why = "it is not a plain relative path: it is empty, or a part of it is empty, a dot or two dots"
            if "\0" in pattern:
                why = "it holds a NUL byte"
        if why:
            raise InvalidRequest(f"{pattern[:80]!r} can't say which files to bring back", why=why, next=step)

    def _check_held(self) -> None:
        for name, use in self.held.items():
            for host in use.hosts:
                below = host.removeprefix("*")
                named = [rule.host for rule in self.network]
                if not any(own == host or (own.startswith("*.") and below.endswith(own[1:])) for own in named):
                    raise InvalidRequest(
                        f"the secret {name} is for {host}, which the run can't reach",
                        why="network names no such host",
                        next=f"add {host!r} to network, or leave the secret out",
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
            raise InvalidRequest(
                f"the project {project!r} can't be used",
                why="it is not an absolute path",
                next="write an absolute path",
            )
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
        """The directory of the host that the run changes directly; None if there is none."""
        if self.workspace == "direct":
            return self.project
        return self.cwd if self.workspace == "scratch" and self.backend == "native" else None

    @property
    def kind(self) -> str:
        """The language, or `OTHER` for one of the configuration: what a backend can or can't run."""
        return self.language if self.language in LANGUAGES else OTHER

    def interpreted(self, file: str) -> tuple[str, ...]:
        """The words that run the code in `file` with its interpreter. Without a word for it, it comes last."""
        if CODE in self.interpreter:
            return (*(file if word == CODE else word for word in self.interpreter), *self.argv)
        before = ("--preserve-symlinks-main", "-e", _FROM_HERE, "--") if self.language == "javascript" else ()
        return (*self.interpreter, *before, file, *self.argv)

    @property
    def text(self) -> str:
        """The code, or the command in shell notation."""
        if self.language != "command":
            return self.code
        import shlex

        return shlex.join(self.argv)

    @property
    def environment(self) -> dict[str, str]:
        """Its variables as the run sees them: with placeholders for secrets that stay outside."""
        outside = {name: placeholder(self.id, name) for name in self.held}
        return {**self.env, **self.secrets, **outside}
