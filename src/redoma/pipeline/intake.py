"""Turns a caller's options into a `Request` and its `Submission`: checks names and fills in defaults."""

from __future__ import annotations

import functools
import os
import pwd
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

import msgspec

from ..config import Config
from ..lib.errors import InvalidRequest
from ..lib.files import reason
from ..lib.text import did_you_mean
from ..lib.types import resolved
from ..models import (
    LANGUAGES,
    Decision,
    EnvironmentUse,
    Evaluation,
    HostRule,
    Limits,
    Request,
    Secret,
    Stream,
    Submission,
    WorkspaceKind,
    host_rules,
)

if TYPE_CHECKING:
    from ..output.expectations import Expectation

_WORKSPACES: tuple[WorkspaceKind, ...] = get_args(WorkspaceKind)
_MAX_COMMAND = 6 << 20  # the kernel's own bound; a longer command can't run, and need not be logged


Files = Mapping[str, bytes | str | os.PathLike[str]] | Iterable[str | os.PathLike[str]]


class More(TypedDict, total=False):
    """Options of any run, besides its code, its place and its variables."""

    policy: str | None
    limits: Limits | Mapping[str, Any] | None
    """A whole `Limits`, or only those that differ from the configured ones; sizes may be text such as `"256MiB"`."""
    timeout: float | None
    """Seconds that it may take: short for the limit `time`."""
    memory: int | str | None
    """Bytes that it may use, or a text such as `"256MiB"`: short for the limit of that name."""
    stdin: bytes | str
    secrets: Mapping[str, str | Secret]
    """Variables of the run whose values are removed from every output and record. A `Secret` never enters the run."""
    network: Iterable[str | Mapping[str, Any] | HostRule] | None
    """Hosts that it may reach: `"api.github.com"`, `"*.example.org:443"`, `"GET api.x.com/v1/**"`, or a mapping with
    `host`, `port`, `methods`, `paths` and `addresses`. By default those of the configuration, which are none."""
    environment: str | None
    """The environment whose packages it finds: see `redoma env`."""
    packages: Iterable[str] | None
    """Packages that it finds, such as `["pandas"]`: installed when they are first wanted, with approval."""
    files: Files
    """What is placed in its directory first: name → content (bytes, text, or a `Path` to read), or a list of paths."""
    outputs: Iterable[str]
    """Which files of the run's directory to return, by glob; `**` for all that are new or changed."""
    checkpoint: bool | None
    """Whether to take a checkpoint of the host directory that it works in, and roll back unless the run succeeds. None:
    only if a person had to approve it; for an interactive process, only True does.
    """
    require: Iterable[str]
    expect: Any
    """What it must print: `"json"`, `"regex:…"`, a JSON Schema or a type; see `expect`."""
    reason: str
    requester: str
    label: str
    """A name for recurring submissions; a pinned approval is found by it."""


class Options(More, total=False):
    """Options of a run."""

    args: Iterable[str]
    """Arguments of code: `sys.argv[1:]`, `"$@"`, `process.argv.slice(2)`."""
    backend: str
    env: Mapping[str, str]
    cwd: str | None
    workspace: WorkspaceKind
    project: str | os.PathLike[str] | None
    """The directory for the workspace; by default the current one, unless the workspace is `scratch`."""
    writes: Iterable[str] | None
    """Where in its project it is expected to write, by glob: changes elsewhere are reported as `unexpected`."""
    wait: bool
    """Whether to wait for a person who must approve. Without waiting the result is `pending`; see `resume`."""
    on_output: Callable[[Stream, str], Any] | None
    """Called with each piece of output (`"stdout"` or `"stderr"`, and text) during the run."""
    whole_output: bool
    """Whether a stream gives everything that is printed, up to `output_total`; else as much as the result keeps."""


_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def with_path(options: Options) -> Options:
    """Return the options, with a PATH for a run on the host that has none: Bash's own default ends in the current
    directory. Configured executors get exactly the variables that they name.
    """
    env = options.get("env", {})
    if options.get("backend") != "native" or not isinstance(env, Mapping) or "PATH" in env:
        return options
    return {**options, "env": {"PATH": _PATH, **env}}


def args_with_command() -> InvalidRequest:
    """Return the error for a command with the option `args`."""
    return InvalidRequest("args were given with a command", why="it has its own", next="add them to the command")


def build(config: Config, backends: Iterable[str], options: Options, **what: Any) -> Request:
    """Return the request that `options` and `what` (code or argv, language) describe. Raises `InvalidRequest`."""
    if options:
        must_be_known("option", options, Options.__annotations__)
    backend = _plain(options.get("backend", "auto"))
    if backend != "auto":
        must_be_known("backend", [backend], backends)
    language = what["language"]
    known = (*LANGUAGES, *config.languages) if config.languages else LANGUAGES
    must_be_one_of("language", language, known, also=_OTHER_NAMES)
    if (own := config.languages.get(language)) is not None:
        what["interpreter"] = own.argv
    if "args" in options and (args := words("args", options["args"])):
        if language in ("command", "lua"):
            raise args_with_command()
        what["argv"] = args
    if isinstance(code := what.get("code"), str):
        what["code"] = source(code)
    try:
        # Only what was given: reading the defaults of twenty options takes longer than reading the others.
        fields = {
            **_plain(what),
            "backend": backend,
            "limits": _limits(config.limits, limits_given(options)) if _is_given(_LIMITS, options) else config.limits,
            "network": _network(config, backend, options.get("network")),
            "requester": _plain(options.get("requester")) or user(),
        }
        on_the_host = language == "command" and backend == "native"
        if on_the_host or _is_given(_PLACE, options):
            fields |= _place(options, on_the_host)
        if "secrets" in options:
            fields |= _secrets(options["secrets"])
        if _is_given(_PACKAGES, options):
            fields["uses"] = _environment(config, options)
        for name, given in options.items():
            if (read := _FIELDS.get(name)) is not None:
                fields[name] = read(given)
        request = msgspec.convert(fields, resolved(Request), builtin_types=(bytes,))
        if request.argv:
            _must_fit((*request.argv, *request.environment, *request.environment.values()))
        return request
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, InvalidRequest):
            raise error.__cause__ from None
        raise _unreadable({**options, **what}, error) from None
    except (TypeError, AttributeError, ValueError) as error:
        if isinstance(error, InvalidRequest):
            raise
        raise _unreadable({**options, **what}, error) from None


_TYPES: dict[str, tuple[tuple[type, ...], str, str]] = {
    "code": ((str,), "source text", "pass the source as text"),
    "stdin": ((str, bytes), "text or bytes", "pass text, or bytes"),
    "cwd": ((str, os.PathLike), "a path", "write cwd='/tmp'"),
    "project": ((str, os.PathLike), "a path", "write project='.'"),
    "limits": ((Limits, Mapping), "names and numbers", "write limits={'time': 5}"),
    "env": ((Mapping,), "names and values", "write env={'NAME': 'value'}"),
    "secrets": ((Mapping,), "names and values", "write secrets={'NAME': 'value'}"),
    "checkpoint": ((bool,), "True, False or None", "leave it out"),
    **dict.fromkeys(("label", "reason", "requester"), ((str,), "text", "pass text")),
}
"""Options that are one thing: what each may be, in Python's words and in ours, and what to do."""


def _unreadable(given: Mapping[str, Any], error: Exception) -> InvalidRequest:
    """Return the error for a value of a wrong type, with the name of its option. Which one it is, is looked for only
    now: most requests have none.
    """
    for name, value in given.items():
        if (value is not None or name == "code") and (wrong := _wrong_type(name, value)):
            what, why, step = wrong
            return InvalidRequest(what, why=why, next=step)
    return InvalidRequest("the request can't be read", why=str(error), next="check the types given")


def _wrong_type(name: str, value: Any) -> tuple[str, str, str] | None:
    """Return what is wrong with an option, why, and what to do; None if it has a right type. Only names and types are
    said: a value may be secret.
    """
    kind = type(value).__name__
    if name == "code" and isinstance(value, os.PathLike):
        return f"the code is a path ({kind})", "it takes the source itself", "pass path.read_text()"
    if name == "code" and isinstance(value, (bytes, bytearray)):
        return f"the code is of type {kind}", "it takes source text", "pass code.decode()"
    if name in _TYPES and not isinstance(value, _TYPES[name][0]):
        return f"{name} is of type {kind}", f"it takes {_TYPES[name][1]}", _TYPES[name][2]
    if name in ("env", "secrets", "files"):
        return _wrong_item(name, value) if isinstance(value, Mapping) else None
    if name in ("args", "argv", "outputs", "require", "writes") and isinstance(value, (list, tuple)):
        for place, word in enumerate(value):
            if not isinstance(word, str):
                return f"{name}[{place}] is of type {type(word).__name__}", "words are text", "pass str(…) of it"
    return None


def _wrong_item(name: str, items: Mapping[Any, Any]) -> tuple[str, str, str] | None:
    """Return what is wrong with an item of a mapping; see `_wrong_type`."""
    valid, said, step = {
        "env": ((str,), "variables are text", "pass str(…) of it"),
        "secrets": ((str, Secret), "a secret is text, or a redoma.Secret", "pass str(…) of it"),
        "files": ((str, bytes, os.PathLike), "contents are text, bytes or a Path", "pass one of these"),
    }[name]
    for key, item in items.items():
        if not isinstance(key, str) and not (name == "files" and isinstance(key, os.PathLike)):
            return f"{name} has the name {key!r}", "names are text", f"write {str(key)!r}"
        if not isinstance(item, valid):
            return f"{name}[{key!r}] is of type {type(item).__name__}", said, step
    return None


_LIMITS = ("limits", "timeout", "memory")
_PLACE = ("workspace", "project", "cwd")
_PACKAGES = ("environment", "packages")


def _is_given(names: tuple[str, ...], options: Options) -> bool:
    """Return whether at least one of these options is among those given."""
    return not options.keys().isdisjoint(names)


def _network(config: Config, backend: str, given: Any) -> tuple[HostRule, ...]:
    """Return the hosts that a run may reach: those that its caller names, or else those of the configuration."""
    if given is None:
        return config.network.rules if config.network.hosts and backend in _WITH_HOSTS else ()
    return host_rules(given)


_WITH_HOSTS = ("auto", "jail", "docker", "ray")
"""Backends that the configured hosts apply to: the others have no network, or all of it."""


def _environment(config: Config, options: Options) -> EnvironmentUse | None:
    """The packages that it is to find, if it says something of them."""
    name, packages = options.get("environment"), words("packages", options.get("packages") or ())
    if name is None and not packages:
        return None
    from .packages import wanted

    return wanted(config, name, packages)


def _secrets(given: Mapping[str, str | Secret]) -> dict[str, Any]:
    """Return the fields of a request for its secrets, and for those that stay outside."""
    held = {_plain(name): one.use for name, one in given.items() if isinstance(one, Secret)}
    values = {name: one.value if isinstance(one, Secret) else one for name, one in given.items()}
    return {"secrets": _plain(values), "held": held}


def submission(request: Request, options: Options, **known: Any) -> Submission:
    """Return a submission of the request with the caller's other options; `known` are further fields of the
    `Submission`.
    """
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
    if given is None:
        return None
    from ..output.expectations import expectation

    return expectation(given)


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
    """Return a list of words. Raises `InvalidRequest` for a text, which would be taken for a list of its letters."""
    if isinstance(given, (str, bytes)):
        raise InvalidRequest(f"{name} is one text", why="it takes a list of words", next=f"write {_split(given)!r}")
    if not isinstance(given, Iterable):
        raise InvalidRequest(f"{name} is {given!r}", why="it takes a list of words", next=f"write [{str(given)!r}]")
    return tuple(_plain(word) for word in given)


def _split(text: str | bytes) -> list[str] | list[bytes]:
    """Return the words of a text, split like a shell if possible."""
    if isinstance(text, bytes):
        return [text]
    try:
        return shlex.split(text) or [text]
    except ValueError:
        return [text]


def source(code: str) -> str:
    """Remove the byte-order mark that some editors put at the start: the same text is checked, recorded and run."""
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
    valid = list(valid)  # a name may be anything, also what can't be looked up in a mapping
    for name in given:
        if name not in valid:
            raise InvalidRequest(
                f"unknown {kind} {name!r}",
                why=f"known: {', '.join(valid) or 'none'}",
                next=did_you_mean(str(name), valid, f"use a known {kind}"),
            )


_OTHER_NAMES = {
    **dict.fromkeys(("js", "node", "nodejs", "mjs", "ecmascript"), "javascript"),
    **dict.fromkeys(("py", "python3", "ipython"), "python"),
    **dict.fromkeys(("sh", "shell", "zsh"), "bash"),
}
"""What languages are called elsewhere."""


def must_be_one_of(kind: str, given: Any, choices: Collection[str], *, also: Mapping[str, str] | None = None) -> None:
    """Raise `InvalidRequest` for a value that is not one of the choices. `also`: other name → the choice it means."""
    if given not in choices:
        *first, last = choices
        meant = (also or {}).get(str(given).lower(), str(given))
        raise InvalidRequest(
            f"{kind} {given!r}",
            why=f"choose {', '.join(first)} or {last}",
            next=did_you_mean(meant, choices, f"use one of these for {kind}"),
        )


def limits_given(options: Mapping[str, Any]) -> Limits | Mapping[str, Any] | None:
    """Return the limits that a caller requests, including those given as `timeout` or `memory`."""
    limits = options.get("limits")
    short = {"time": options.get("timeout"), "memory": options.get("memory")}
    short = {name: value for name, value in short.items() if value is not None}
    if isinstance(limits, Limits):
        return msgspec.structs.replace(limits, **short) if short else limits
    for name in short.keys() & set(limits or {}):
        raise InvalidRequest(
            f"the limit {name!r} was given twice",
            why=f"as {'timeout' if name == 'time' else name}=… and in limits",
            next="leave one of them out",
        )
    return {**(limits or {}), **short}


def _files(given: Files) -> dict[str, bytes]:
    return {name: _bytes(content(one)) for name, one in named_files(given).items()}


def named_files(given: Files) -> dict[str, bytes | str | os.PathLike[str]]:
    """Return name → content, which may be a path still to be read. In a list of paths, a relative path keeps its
    directories, any other only its last name. Raises `InvalidRequest`, also if two have the same name.
    """
    if isinstance(given, (str, bytes, os.PathLike)) or not isinstance(given, Iterable):
        raise InvalidRequest(
            f"files is {given!r}",
            why="it takes names and contents, or a list of paths",
            next="write ['data.csv'], or {'name': content}",
        )
    if isinstance(given, Mapping):
        return {_plain(os.fspath(name)): one for name, one in given.items()}
    files: dict[str, bytes | str | os.PathLike[str]] = {}
    for one in given:
        path = Path(one)
        name = path.name if path.is_absolute() or ".." in path.parts else path.as_posix()
        if name in files:
            raise InvalidRequest(
                f"two files are to be called {name!r}",
                why="a list places each under its own name",
                next="name them: files={'first.csv': Path(…), 'second.csv': Path(…)}",
            )
        files[name] = path
    return files


def content(given: bytes | str | os.PathLike[str]) -> bytes | str:
    """Return what a caller gave as content: itself, or what is in the file at a path. Raises `InvalidRequest`."""
    if not isinstance(given, os.PathLike):
        return given
    try:
        return Path(given).read_bytes()
    except OSError as error:
        raise InvalidRequest(
            f"the file {os.fspath(given)!r} can't be read",
            why=reason(error).lower(),
            next="name a file that is there" if not os.path.isdir(given) else "list the files in it",
        ) from None


def _limits(configured: Limits, given: Limits | Mapping[str, Any] | None) -> Limits:
    if isinstance(given, Limits):
        return given
    if not given:
        return configured
    must_be_known("limit", given, Limits.__struct_fields__)
    return msgspec.structs.replace(configured, **given)


def _place(options: Options, on_the_host: bool) -> dict[str, Any]:
    """Return workspace, project and working directory."""
    workspace, project = options.get("workspace", "scratch"), options.get("project")
    must_be_one_of("workspace", workspace, _WORKSPACES)
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
    """Return the working directory as an absolute path. A command on the host works in the caller's, as in a shell."""
    given = options.get("cwd")
    if given is None and on_the_host and not options.get("files") and not options.get("outputs"):
        return absolute("")
    return None if given is None else absolute(given)


def absolute(path: str) -> str:
    """Return the absolute path. The current directory is looked up only if needed: it may have been removed."""
    if os.path.isabs(path):
        return os.path.abspath(path)
    try:
        return os.path.abspath(os.path.join(os.getcwd(), path))
    except FileNotFoundError:
        raise InvalidRequest(
            "there is no directory to work in", why="the current one was removed", next="change to one that is there"
        ) from None


def _plain(value: Any) -> Any:
    """Return plain `str` for subclasses of it, which could behave differently or not exist in another process."""
    match value:
        case str():
            return str.__str__(value)
        case dict():
            return {_plain(name): _plain(item) for name, item in value.items()}
        case tuple():
            return tuple(map(_plain, value))
        case _:
            return value


def _bytes(given: bytes | str) -> bytes:
    if isinstance(given, bytes) and type(given) is not bytes:
        return bytes(memoryview(given))
    return given.encode("utf-8", "surrogateescape") if isinstance(given, str) else given


_FIELDS: dict[str, Callable[[Any], Any]] = {
    "stdin": _bytes,
    "env": lambda given: _plain(dict(given)),
    "files": _files,
    "outputs": functools.partial(words, "outputs"),
    "checkpoint": lambda given: given,
    "require": functools.partial(words, "require"),
    "reason": _plain,
    "label": _plain,
}
"""Options that are fields of a request by themselves, and how each is read."""


def user() -> str:
    """Return the user's name by the operating system; no variable or option changes it."""
    return _name_of(os.getuid())


@functools.cache  # looking it up reads files, and may ask a server
def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


Treatment = Literal["none", "project", "overlay", "checkpoint"]
"""What happens to the workspace of a run: nothing, as it has its own directory; it is checked to be a project; the run
gets an overlay above it; or a checkpoint is taken, to roll it back.
"""


def treatment(request: Request, evaluation: Evaluation) -> Treatment:
    """Return what happens to the workspace of a run. A directory of the host that it changes directly has a checkpoint
    as the request says; by default if the run is risky: policy prompts for it, or it works in a project directly.
    """
    if request.workspace == "overlay":
        return "overlay"
    risky = request.workspace == "direct" or evaluation.decision is Decision.PROMPT
    if request.touches is not None and (risky if request.checkpoint is None else request.checkpoint):
        return "checkpoint"
    return "none" if request.workspace == "scratch" else "project"
