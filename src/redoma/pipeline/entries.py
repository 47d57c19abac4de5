"""Configured executors: turns a command for one into a submission, with objections to it.

An entry with a `command_whitelist` runs exactly the commands on it, with the meaning that its author intended. So
nothing that the caller chooses may change that meaning: not one character of the command, no variable except those that
only change the appearance of output, no directory outside the entry's own, no project, and no extra files.
"""

from __future__ import annotations

import os
import posixpath
import shlex
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from ..backends.base import Backend, Control
from ..config import Config, DockerEntry, Entry, JailEntry, MontyEntry, NativeEntry
from ..lib.errors import InvalidRequest
from ..lib.patterns import lazy_pattern
from ..models import Decision, Finding, Limits, PolicyView, Request, Submission
from ..models.request import DEFAULT_TIME
from . import denial, intake
from .intake import Options

_BACKENDS: dict[type[Entry], str] = {
    NativeEntry: "native",
    DockerEntry: "docker",
    JailEntry: "jail",
    MontyEntry: "monty",
}
_LOOKS = lazy_pattern(r"(LANG|LANGUAGE|LC_[A-Z]+|TERM|COLUMNS|LINES|NO_COLOR|FORCE_COLOR|CLICOLOR|CLICOLOR_FORCE)\Z")
# No path, and no `..`: translations are files too, and their texts are printf formats.
_PLAIN = lazy_pattern(r"[A-Za-z0-9_.,:@+-]*\Z")
_ZONE = lazy_pattern(r"[A-Za-z0-9_+-][A-Za-z0-9_+,./:<>-]*\Z")
_SHOWN = 80
_OF_THE_CONTAINER = {"memory": "memory_limit", "processes": "pids_limit"}
"""Limits that apply to a container as a whole → the entry's field for the same."""


class Entries:
    """The configured executors. A backend that belongs to one of them alone is made on first use."""

    def __init__(self, config: Config, backends: Mapping[str, Backend]) -> None:
        self._config, self._backends = config, backends
        self._made: dict[str, Backend] = {}
        self._making = threading.Lock()

    def prepare(
        self, address: str, command: str | Iterable[str], options: Options, control: Control | None = None
    ) -> Submission:
        """Return a command as a submission for this executor, with objections. Raises `InvalidRequest`."""
        intake.must_be_configured(address, self._config)
        entry = self._config.entries[address]
        own, asked = _BACKENDS[type(entry)], options.get("backend", "auto")
        if asked not in ("auto", own):
            raise InvalidRequest(
                f"{address} can't run on {asked}", why=f"it is an executor of kind exec.{own}", next="leave it out"
            )
        command = str.__str__(command) if isinstance(command, str) else intake.words("argv", command)
        request = self._request(entry, command, options)
        apart = bool(request.files or request.outputs)  # it runs in a directory of its own
        directory = None if apart and options.get("cwd") is None else _directory(address, entry, options.get("cwd"))
        listed = entry.command_whitelist is not None
        if listed and isinstance(entry, NativeEntry) and directory is not None:
            directory = os.path.realpath(directory)  # so that it runs in the same directory that is checked below
        objections = _objections(address, entry, command, request, directory) if listed else ()
        if not options.get("wait", True):
            raise InvalidRequest(
                f"{address} can't wait for an approval without its caller",
                why="what runs later is what was asked for, and an executor may be configured anew until then",
                next="leave `wait` out",
            )
        # Together, since it depends on the directory whether there is something to checkpoint.
        request = msgspec.structs.replace(
            request, backend=own, cwd=None if apart else directory, checkpoint=options.get("checkpoint")
        )
        limits = request.limits
        if limits.time <= entry.limits.get("time", 0):  # the entry's owner has allowed that long
            limits = msgspec.structs.replace(limits, time=min(limits.time, DEFAULT_TIME))
        judged = msgspec.structs.replace(request, limits=limits)
        request = msgspec.structs.replace(request, env={**entry.default_env, **request.env})
        unread_input = control is not None and control.takes_input
        return intake.submission(
            request,
            options,
            objections=objections,
            own_backend=self._own_backend(address, entry),
            control=control,
            view=PolicyView.of(request, judged),
            entry=address,
            live_input=unread_input and not listed,  # the owner of a whitelisted program has considered its input
            unread_input=unread_input,
        )

    def _request(self, entry: Entry, command: str | tuple[str, ...], options: Options) -> Request:
        """Return the request with the entry's limits, and without the entry's variables."""
        limits = intake.limits_given(options)
        if limits is None or isinstance(limits, Mapping):
            # A container enforces these as a whole from its start, so they are not set for the run.
            kept = {name: getattr(Limits(), name) for name in _OF_THE_CONTAINER if isinstance(entry, DockerEntry)}
            limits = {**entry.limits, **kept, **(limits or {})}
        changed: Options = {**options, "backend": "auto", "limits": limits, "cwd": None, "checkpoint": None}
        changed["network"] = options.get("network") or ()  # configured hosts don't apply to runs on an entry
        changed |= {"timeout": None, "memory": None}  # they are in `limits` now
        if isinstance(entry, MontyEntry):
            return intake.build(self._config, self._backends, changed, code=_source(command), language="python")
        argv = _argv(entry, command)
        return intake.build(self._config, self._backends, changed, argv=argv, language="command")

    def _own_backend(self, address: str, entry: Entry) -> Backend | None:
        if isinstance(entry, JailEntry):
            return self._backends.get("jail")  # named, because its working directory is not on the host
        if not isinstance(entry, DockerEntry):
            return None
        with self._making:
            if address not in self._made:
                self._made[address] = _containers(entry, self._config.limits)
            return self._made[address]

    async def aclose(self) -> None:
        with self._making:
            made, self._made = self._made, {}
        for backend in made.values():
            await backend.aclose()


def _source(command: str | tuple[str, ...]) -> str:
    """Return Python code as one text, also if it is given as a list of one word. Raises `InvalidRequest`."""
    if isinstance(command, str):
        return command
    if len(command) != 1:
        raise InvalidRequest("the code is several words", why="an executor of kind exec.monty takes one text of Python")
    return command[0]


def _argv(entry: Entry, command: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return the words of a command, split as a shell would. A command that will be refused is not split: it is
    recorded as it was given.
    """
    if entry.command_whitelist is not None and not _is_listed(entry, command):
        words = (command,) if isinstance(command, str) else command
        words = tuple(word.replace("\0", "\\0") if isinstance(word, str) else word for word in words)
        return ("''", *words[1:]) if words[:1] == ("",) else words
    if not isinstance(command, str):
        return command
    try:
        return tuple(shlex.split(command))
    except ValueError as error:
        raise InvalidRequest(
            "the command can't be split into words", why=str(error), next="close every quote, or give a list of words"
        ) from None


def _is_listed(entry: Entry, command: str | tuple[str, ...]) -> bool:
    """Return whether the command is on the whitelist: as text character by character, as words word by word."""
    allowed = entry.command_whitelist or ()
    if isinstance(entry, MontyEntry):
        return _source(command) in allowed
    if isinstance(command, str):
        return command in allowed
    return command in [tuple(shlex.split(each)) for each in allowed]


def _forbidden(rule: str, reason: str, text: str, suggestion: str) -> Finding:
    return Finding(
        rule=f"entry.{rule}", decision=Decision.FORBID, reason=reason, text=text[:_SHOWN], suggestion=suggestion
    )


def _objections(
    address: str, entry: Entry, command: str | tuple[str, ...], request: Request, directory: str | None
) -> tuple[Finding, ...]:
    """Return why the whitelist does not allow it, each finding with the lines that would permit it."""
    found = tuple(_unlisted(address, entry, command, request, directory))
    permit = _permitting(address, entry, command, found)
    return tuple(msgspec.structs.replace(each, permit=permit) for each in found)


def _unlisted(
    address: str, entry: Entry, command: str | tuple[str, ...], request: Request, directory: str | None
) -> Iterator[Finding]:
    if not _is_listed(entry, command):
        yield _forbidden(
            "whitelist",
            f"{address} does not allow this command; it allows: {', '.join(entry.command_whitelist or ()) or 'none'}",
            command if isinstance(command, str) else shlex.join(map(str, command)),
            f"Add it to command_whitelist of {address}",
        )
    strange = [
        name
        for name, value in request.environment.items()
        if name not in entry.caller_env and not _only_looks(name, value)
    ]
    if strange:
        yield _forbidden(
            "variables",
            f"{address} has a list of commands, and {', '.join(strange)} could change what they do",
            ", ".join(strange),
            f"Leave it out, set it in default_env of {address}, or name it in its caller_env",
        )
    for field in ("files", "outputs"):
        if given := getattr(request, field):
            yield _forbidden(
                field,
                f"{address} has a list of commands, and they run where it says, not beside {field} of the caller",
                ", ".join(given),
                f"Leave {field} out, or use an executor without a command_whitelist",
            )
    if request.workspace != "scratch":  # it would run among the files of the caller's project
        yield _forbidden(
            "workspace",
            f"{address} has a list of commands, and they run where it says, not in a project of the caller",
            f"{request.workspace} of {request.project}",
            "Leave workspace and project out, or use an executor without a command_whitelist",
        )
    # A whitelisted command may read configuration in its directory, as git does.
    if (root := _own_directory(entry)) is not None and directory is not None and not _is_below(entry, directory, root):
        yield _forbidden(
            "work_dir",
            f"{address} has a list of commands, and they run in {root} or below it only",
            directory,
            f"Leave work_dir out, or make default_work_dir of {address} one that holds both",
        )


def _permitting(address: str, entry: Entry, command: str | tuple[str, ...], objections: tuple[Finding, ...]) -> str:
    """Return lines of the entry that would permit exactly this command; empty if none could."""
    if not {each.rule for each in objections} <= {"entry.whitelist", "entry.variables"}:
        return ""
    fields: dict[str, Any] = {"image": entry.image} if isinstance(entry, DockerEntry) else {}
    listed = entry.command_whitelist or ()
    text = command if isinstance(command, str) else shlex.join(map(str, command))
    fields["command_whitelist"] = [*listed, *([] if _is_listed(entry, command) else [text])]
    names = [name for each in objections if each.rule == "entry.variables" for name in each.text.split(", ")]
    if names or entry.caller_env:
        fields["caller_env"] = [*entry.caller_env, *names]
    return denial.of_entry(address, f"exec.{_BACKENDS[type(entry)]}", fields)


def _only_looks(name: str, value: str) -> bool:
    """Return whether a variable changes at most the appearance of the output."""
    if name == "TZ":
        return bool(_ZONE.match(value)) and ".." not in value
    return bool(_LOOKS.match(name) and _PLAIN.match(value))


def _directory(address: str, entry: Entry, given: str | os.PathLike[str] | None) -> str | None:
    """Return the working directory, on the host or inside; None for the backend's own. Raises `InvalidRequest`."""
    if isinstance(entry, MontyEntry):
        if given is None:
            return None
        raise InvalidRequest(f"{address} has no directories", why="it is an executor of kind exec.monty")
    asked = os.fspath(given) if isinstance(given, os.PathLike) else given
    if asked is not None and (not isinstance(asked, str) or "\0" in asked):
        raise InvalidRequest(
            f"the working directory {given!r} can't be used",
            why="it is not a path, or has a NUL byte",
            next="write a path",
        )
    default = _own_directory(entry)
    if isinstance(entry, NativeEntry):
        return intake.absolute(os.path.join(default or "", asked or ""))
    if asked is None:
        return default
    path = posixpath.normpath(posixpath.join(default or "", asked))
    if not path.startswith("/"):
        raise InvalidRequest(
            f"the working directory {given!r} can't be used",
            why=f"{address} has no default_work_dir that it could be below",
            next="write it as an absolute path inside",
        )
    return path


def _own_directory(entry: Entry) -> str | None:
    if isinstance(entry, MontyEntry) or entry.default_work_dir is None:
        return None
    return str(entry.default_work_dir)


def _is_below(entry: Entry, directory: str, root: str) -> bool:
    root = os.path.realpath(root) if isinstance(entry, NativeEntry) else posixpath.normpath(root)
    return directory == root or directory.startswith(root.rstrip("/") + "/")


def _containers(entry: DockerEntry, limits: Limits) -> Backend:
    from ..backends.docker import Box, DockerBackend

    fields = {name: getattr(entry, name) for name in DockerEntry.__struct_fields__ if name in Box.__struct_fields__}
    for name, field in _OF_THE_CONTAINER.items():
        wanted = getattr(msgspec.structs.replace(limits, **entry.limits), name)
        if not fields[field] and wanted != getattr(Limits(), name):
            fields[field] = wanted  # set for this entry or for all runs
    return DockerBackend(Box.plain(entry.image, **fields), host=entry.host)
