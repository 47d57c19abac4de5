"""From a caller's options to a `Request` and its `Submission`: names are checked and defaults filled in."""

from __future__ import annotations

import os
import pwd
import shlex
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypedDict, get_args

import msgspec

from ..config import Config
from ..lib.errors import InvalidRequest
from ..lib.text import did_you_mean
from ..models import LANGUAGES, Limits, Request, Stream, Submission, WorkspaceKind
from ..output.expectations import Expectation, expectation

_MAX_COMMAND = 6 << 20  # the kernel's own bound; what no system runs need not be written to the log


Files = Mapping[str, bytes | str | os.PathLike[str]] | Iterable[str | os.PathLike[str]]


class More(TypedDict, total=False):
    """Options of any run, beside its code, its place and its variables."""

    policy: str | None
    limits: Limits | Mapping[str, Any] | None
    """A whole `Limits`, or only the ones that differ from the configured; sizes may be text such as `"256MiB"`."""
    timeout: float | None
    """Seconds that it may take: short for the limit `time`."""
    memory: int | str | None
    """Bytes that it may use, or a text such as `"256MiB"`: short for the limit of that name."""
    stdin: bytes | str
    secrets: Mapping[str, str]
    """Variables of the run whose values are taken out of every output and record."""
    files: Files
    """What is placed in its directory first: name → content (bytes, text, or a `Path` to read), or a list of paths."""
    outputs: Iterable[str]
    """Which files of the run's directory to bring back, by glob; `**` for all that are new or changed."""
    checkpoint: bool | None
    """Whether the directory of the host that it works in is kept before, and put back unless the run ends well. None:
    if a person had to say yes to it; of a process that is talked to, only with True."""
    require: Iterable[str]
    expect: Any
    """What it has to print: `"json"`, `"regex:…"`, a JSON Schema or a type; see `expect`."""
    reason: str
    requester: str
    label: str
    """What it is called each time it is asked for; a pinned approval goes by it."""


class Options(More, total=False):
    """Options of a run."""

    args: Iterable[str]
    """Arguments of Python or Bash code: `sys.argv[1:]`, `"$@"`."""
    backend: str
    env: Mapping[str, str]
    cwd: str | None
    workspace: WorkspaceKind
    project: str | os.PathLike[str] | None
    """What the workspace is made of; by default the current directory, where it is not `scratch`."""
    writes: Iterable[str] | None
    """Where in its project it is expected to write, by glob: what it changes elsewhere is told as `unexpected`."""
    wait: bool
    """Whether to wait for a person who has to say yes. Without waiting the result is `pending`; see `resume`."""
    on_output: Callable[[Stream, str], Any] | None
    """Called with each piece of output (`"stdout"` or `"stderr"`, and text) while the run goes on."""
    whole_output: bool
    """Whether a stream gives all that is printed, up to `output_total`; else it gives as much as the result keeps."""


_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def with_path(options: Options) -> Options:
    """The options, with a PATH for a run on the host that has none: Bash would take its own, which ends in the current
    directory. Configured executors get exactly the variables that they name."""
    env = options.get("env", {})
    if options.get("backend") != "native" or not isinstance(env, Mapping) or "PATH" in env:
        return options
    return {**options, "env": {"PATH": _PATH, **env}}


def build(config: Config, backends: Iterable[str], options: Options, **what: Any) -> Request:
    """The request that `options` and `what` (code or argv, language) describe. Raises `InvalidRequest`."""
    must_be_known("option", options, Options.__annotations__)
    backend = _plain(options.get("backend", "auto"))
    if backend != "auto":
        must_be_known("backend", [backend], backends)
    must_be_one_of("language", what["language"], LANGUAGES)
    must_be_one_of("workspace", options.get("workspace", "scratch"), get_args(WorkspaceKind))
    if args := words("args", options.get("args", ())):
        if what["language"] not in ("python", "bash"):
            raise InvalidRequest("args were given with a command", why="it has its own", next="add them to the command")
        what["argv"] = args
    if isinstance(code := what.get("code"), str):
        what["code"] = source(code)
    try:
        request = msgspec.convert(
            {
                **_plain(what),
                "backend": backend,
                "limits": _limits(config.limits, limits_given(options)),
                "stdin": _bytes(options.get("stdin", b"")),
                "env": _plain(dict(options.get("env", {}))),
                "secrets": _plain(dict(options.get("secrets", {}))),
                "files": _files(options.get("files", {})),
                "outputs": words("outputs", options.get("outputs", ())),
                **_place(options, what["language"] == "command" and backend == "native"),
                "checkpoint": options.get("checkpoint"),
                "require": words("require", options.get("require", ())),
                "reason": _plain(options.get("reason", "")),
                "requester": _plain(options.get("requester")) or user(),
                "label": _plain(options.get("label", "")),
            },
            Request,
            builtin_types=(bytes,),
        )
        if request.argv:
            _must_fit((*request.argv, *request.environment, *request.environment.values()))
        return request
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, InvalidRequest):
            raise error.__cause__ from None
        raise InvalidRequest("the request can't be read", why=str(error), next="check the types given") from None
    except (TypeError, AttributeError, ValueError) as error:
        if isinstance(error, InvalidRequest):
            raise
        raise InvalidRequest("the request can't be read", why=str(error), next="check the types given") from None


def submission(request: Request, options: Options, **known: Any) -> Submission:
    """The request with what else the caller's options say of it; `known` are further fields of the `Submission`."""
    return Submission(
        request=request,
        policy=options.get("policy"),
        wait=options.get("wait", True),
        expectation=expected(options),
        writes=writes(options),
        **known,
    )


def expected(options: Options) -> Expectation | None:
    given = options.get("expect")
    return None if given is None else expectation(given)


def writes(options: Options) -> tuple[str, ...] | None:
    given = options.get("writes")
    return None if given is None else words("writes", given)


def _must_fit(parts: Iterable[str]) -> None:
    if (size := sum(map(len, parts))) > _MAX_COMMAND:
        raise InvalidRequest(
            "the command is too long",
            why=f"it has {size} characters, its variables included, and Linux takes {_MAX_COMMAND} at most",
            next="pass data as input, or in a file",
        )


def words(name: str, given: Iterable[str]) -> tuple[str, ...]:
    """A list of words. Raises `InvalidRequest` for a text, which would be taken for a list of its letters."""
    if isinstance(given, (str, bytes)):
        raise InvalidRequest(f"{name} is one text", why="it takes a list of words", next=f"write {_split(given)!r}")
    if not isinstance(given, Iterable):
        raise InvalidRequest(f"{name} is {given!r}", why="it takes a list of words", next=f"write [{str(given)!r}]")
    return tuple(_plain(word) for word in given)


def _split(text: str | bytes) -> list[str] | list[bytes]:
    """The words of a text, as a shell reads them if it can."""
    if isinstance(text, bytes):
        return [text]
    try:
        return shlex.split(text) or [text]
    except ValueError:
        return [text]


def source(code: str) -> str:
    """Without the byte-order mark that some editors begin files with: what is checked, recorded and run is one text."""
    return str.removeprefix(code, "\ufeff")


def must_be_configured(address: str, config: Config) -> None:
    if not config.entries:
        raise InvalidRequest(
            f"unknown executor {address!r}",
            why=" ".join(("none is configured.", *config.notices)).rstrip("."),
            next="write it under `entries` in redoma.yaml, or trust the file: see docs/configuration.md",
        )
    must_be_known("executor", [address], config.entries)


def must_be_known(kind: str, given: Iterable[str], valid: Iterable[str]) -> None:
    """Raise `InvalidRequest` for a name that is not among the valid ones."""
    valid = list(valid)
    for name in given:
        if name not in valid:
            raise InvalidRequest(
                f"unknown {kind} {name!r}",
                why=f"known: {', '.join(valid) or 'none'}",
                next=did_you_mean(str(name), valid, f"use a known {kind}"),
            )


def must_be_one_of(kind: str, given: Any, choices: Iterable[str]) -> None:
    """Raise `InvalidRequest` for a value that is not one of the choices."""
    choices = list(choices)
    if given not in choices:
        *first, last = choices
        raise InvalidRequest(
            f"{kind} {given!r}",
            why=f"choose {', '.join(first)} or {last}",
            next=did_you_mean(str(given), choices, f"use one of these for {kind}"),
        )


def limits_given(options: Options) -> Limits | Mapping[str, Any] | None:
    """The limits that a caller asks for, also those given as `timeout` or `memory`."""
    limits = options.get("limits")
    short = {"time": options.get("timeout"), "memory": options.get("memory")}
    short = {name: value for name, value in short.items() if value is not None}
    if isinstance(limits, Limits):
        return msgspec.structs.replace(limits, **short)
    for name in short.keys() & set(limits or {}):
        raise InvalidRequest(
            f"the limit {name!r} was given twice",
            why=f"as {'timeout' if name == 'time' else name}=… and in limits",
            next="leave one of them out",
        )
    return {**(limits or {}), **short}


def _files(given: Files) -> dict[str, bytes]:
    """Name → content. A list is of paths: a relative one keeps its directories, any other only its last name."""
    if isinstance(given, (str, bytes, os.PathLike)):
        raise InvalidRequest(
            f"files is {given!r}",
            why="it takes names and contents, or a list of paths",
            next=f"write [{given!r}], or {{'name': content}}",
        )
    if isinstance(given, Mapping):
        return {_plain(os.fspath(name)): _content(content) for name, content in given.items()}
    files: dict[str, bytes] = {}
    for one in given:
        path = Path(one)
        name = path.name if path.is_absolute() or ".." in path.parts else path.as_posix()
        if name in files:
            raise InvalidRequest(
                f"two files are to be called {name!r}",
                why="a list places each under its own name",
                next="name them: files={'first.csv': Path(…), 'second.csv': Path(…)}",
            )
        files[name] = _content(path)
    return files


def _content(given: bytes | str | os.PathLike[str]) -> bytes:
    if not isinstance(given, os.PathLike):
        return _bytes(given)
    try:
        return Path(given).read_bytes()
    except OSError as error:
        raise InvalidRequest(
            f"the file {os.fspath(given)!r} can't be read",
            why=(error.strerror or str(error)).lower(),
            next="name a file that is there" if not os.path.isdir(given) else "list the files in it",
        ) from None


def _limits(configured: Limits, given: Limits | Mapping[str, Any] | None) -> Limits:
    if isinstance(given, Limits):
        return given
    changes = dict(given or {})
    must_be_known("limit", changes, Limits.__struct_fields__)
    return msgspec.structs.replace(configured, **changes)


def _place(options: Options, on_the_host: bool) -> dict[str, Any]:
    """Workspace, project and working directory."""
    workspace, project = options.get("workspace", "scratch"), options.get("project")
    if workspace == "scratch":
        return {"workspace": workspace, "project": project, "cwd": _directory(options, on_the_host)}
    top = os.path.realpath(project if project is not None else os.getcwd())
    here = os.path.realpath(options.get("cwd") or os.getcwd())
    inside = here == top or here.startswith(top.rstrip("/") + "/")
    if not inside and options.get("cwd"):
        raise InvalidRequest(
            f"the working directory {here!r} can't be used", why=f"it is not in the project {top}", next="leave it out"
        )
    return {"workspace": workspace, "project": top, "cwd": here if inside else top}


def _directory(options: Options, on_the_host: bool) -> str | None:
    """Where it works, as an absolute path. A command on the host works where its caller is, as a shell's would."""
    given = options.get("cwd")
    if given is None and on_the_host and not options.get("files") and not options.get("outputs"):
        return absolute("")
    return None if given is None else absolute(given)


def absolute(path: str) -> str:
    """The absolute path. The current directory is looked up only if needed: it may have been removed."""
    if os.path.isabs(path):
        return os.path.abspath(path)
    try:
        return os.path.abspath(os.path.join(os.getcwd(), path))
    except FileNotFoundError:
        raise InvalidRequest(
            "there is no directory to work in", why="the current one was removed", next="change to one that is there"
        ) from None


def _plain(value: Any) -> Any:
    """Plain `str` for subclasses of it, which could behave differently or not exist in another process."""
    match value:
        case str():
            return str.__str__(value)
        case dict():
            return {_plain(name): _plain(item) for name, item in value.items()}
        case tuple():
            return tuple(map(_plain, value))
        case _:
            return value


def _bytes(content: bytes | str) -> bytes:
    if isinstance(content, bytes) and type(content) is not bytes:
        return bytes(memoryview(content))
    return content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content


def user() -> str:
    """The user's name by the operating system; no variable or option changes it."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"
