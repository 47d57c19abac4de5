"""What somebody wants run, and within which limits."""

from __future__ import annotations

import re
import uuid
from typing import Literal, get_args

import msgspec

from ..lib.errors import InvalidRequest
from ..lib.units import parse_size

KiB = 1024
MiB = 1024 * KiB

Language = Literal["python", "bash", "lua", "command"]
Stream = Literal["stdout", "stderr"]
WorkspaceKind = Literal["scratch", "read-only", "overlay", "direct"]
"""Where a run works: in an empty directory of its own; in a project that it can only read; in one that it changes in a
copy, so that what it did can be looked at before it is applied; or in the project itself."""

LANGUAGES: tuple[Language, ...] = get_args(Language)


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


class Seed(msgspec.Struct, frozen=True, kw_only=True):
    """What the random numbers of a Python run came from, so that they can be drawn again. Nothing that must not be
    guessed comes from it: `secrets`, `os.urandom` and `uuid4` ask the kernel."""

    random: int
    """Of `random`, and of `numpy.random` where that is preloaded."""
    hashes: int
    """Of the hashes of text, and so of the order of sets: what PYTHONHASHSEED is to an interpreter."""


MIN_SECRET = 4
"""Characters of the shortest secret. A shorter text occurs by chance, and can't be taken out of an output."""

MAX_PATTERN, MAX_PATTERNS = 1024, 100
"""Characters of one pattern in `outputs`, and how many there may be."""

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
    """The name under which its requester runs it each time. A pinned approval goes by it."""
    seed: Seed | None = None
    """The seed of another run, to draw the same random numbers where the backend can; None for a new one."""
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
            if not _is_plain(pattern) or len(pattern) > MAX_PATTERN or len(self.outputs) > MAX_PATTERNS:
                raise InvalidRequest(
                    f"{pattern[:80]!r} can't say which files to bring back",
                    why="only files below the run's own directory are; "
                    f"at most {MAX_PATTERNS} patterns of {MAX_PATTERN} characters",
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
            raise InvalidRequest(
                f"the project {project!r} can't be used", why="it is no absolute path", next="write an absolute path"
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
    def text(self) -> str:
        """The code, or the command as a shell would write it."""
        if self.language != "command":
            return self.code
        import shlex

        return shlex.join(self.argv)

    @property
    def environment(self) -> dict[str, str]:
        return {**self.env, **self.secrets}
