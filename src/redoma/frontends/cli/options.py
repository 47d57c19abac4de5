"""The options that commands have in common."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from redoma.lib.errors import InvalidRequest

from .completion import backends, environments, files, packs
from .emit import json_option
from .result import check_outputs
from .source import read_file, standard_input
from .state import State

if TYPE_CHECKING:
    from datetime import datetime

    from redoma.audit import AuditLog

F = TypeVar("F", bound=Callable[..., Any])


def audit_log(state: State) -> AuditLog:
    """Return the audit log of the configuration in force."""
    from redoma.audit import AuditLog

    return AuditLog.configured(state.config.audit)


class Lang(click.ParamType[str]):
    """A language that code can be in: one that is built in, one of the configuration, or one of `more`."""

    name = "language"

    def __init__(self, *more: str) -> None:
        self._built_in = ("python", "bash", "javascript", *more)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return f"[{'|'.join(self._built_in)}|…]"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        state = ctx.find_object(State) if ctx is not None else None
        if value not in self._built_in:
            known = (*self._built_in, *(state.config.languages if state is not None else ()))
            if value not in known:
                self.fail(f"{value!r} is not one of {', '.join(known)}.", param, ctx)
        return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in self._built_in if name.startswith(incomplete)]


class TakesCommand(click.Command):
    """A command line that ends in `-- COMMAND...`. What follows the first `--` is the command, literally."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else None
        ctx.meta["redoma.command"] = None if at is None else tuple(args[at + 1 :])
        return super().parse_args(ctx, args[:at])


class EndsInCommand(click.Command):
    """A command line that ends in `COMMAND...`, with or without `--` before it.

    The command begins with the first word that is not one of our options, and is taken literally. If the command line
    takes an ENTRY, such as `app:shell`, it may come before.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ours, theirs = self.ours(ctx, args)
        ctx.meta["redoma.command"] = tuple(theirs) or None
        return super().parse_args(ctx, ours)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete a word of the command: files, by the shell itself. Before the command, our options too."""
        if incomplete.startswith("-") and not ctx.meta.get("redoma.command"):
            return super().shell_complete(ctx, incomplete)
        return [CompletionItem(incomplete, type="file")]

    def ours(self, ctx: click.Context, args: list[str]) -> tuple[list[str], list[str]]:
        """Return our options, with ENTRY, and the words of the command."""
        at = args.index("--") if "--" in args else len(args)
        ours, theirs = self._split(ctx, args[:at])
        if not theirs or (_is_address(theirs[0]) and self._takes_entry and at < len(args)):
            return args[:at], args[at + 1 :]
        if _is_address(theirs[0]) and self._takes_entry:
            return [*ours, theirs[0]], theirs[1:]
        return ours, [*theirs, *args[at:]]

    def _split(self, ctx: click.Context, args: list[str]) -> tuple[list[str], list[str]]:
        """Return what comes before the first word that is not one of our options, and the rest."""
        parser = self.make_parser(ctx)
        parser.allow_interspersed_args = False
        given, rest, _ = parser.parse_args([*args])
        first = given.get("entry")
        count = len(rest) + isinstance(first, str)
        return args[: len(args) - count], args[len(args) - count :]

    @property
    def _takes_entry(self) -> bool:
        return any(param.name == "entry" for param in self.params)


def _is_address(word: str) -> bool:
    """Return whether a word has the form of an executor's address, `namespace:name`."""
    namespace, colon, name = word.partition(":")
    return bool(namespace and colon and name) and "/" not in word and ":" not in name


def given_command() -> tuple[str, ...] | None:
    """Return the words of the command at the end of the line; None if there were none."""
    command: tuple[str, ...] | None = click.get_current_context().meta["redoma.command"]
    return command


def project_directory(path: str | None) -> str | None:
    """Return `path`. Raises `InvalidRequest` if it is not a directory."""
    if path is not None and not os.path.isdir(path):
        why = "it is not a directory" if os.path.lexists(path) else "there is no such directory"
        raise InvalidRequest(f"the project {path} can't be used", why=why, next="name a directory")
    return path


class Moment(click.ParamType["datetime"]):
    """A time: a duration before now (`90s`, `30m`, `2h`, `30d`, `4w`), or an ISO 8601 date or time, in UTC unless it
    has a zone.
    """

    name = "when"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        from datetime import UTC, datetime, timedelta

        from redoma.lib.units import parse_duration

        if isinstance(value, datetime):
            return value
        try:
            if (ago := parse_duration(value)) is not None:
                return datetime.now(UTC) - timedelta(seconds=ago)
            time = datetime.fromisoformat(value)
            return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is not a time; write it like 2h, 30d, 2030-01-31 or 2030-01-31T12:00", param, ctx)


class Size(click.ParamType[int]):
    """A number of bytes, such as 256MiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from redoma.lib.units import parse_size

        size = value if isinstance(value, int) else parse_size(value)
        if isinstance(value, str) and value.strip().isdigit() and int(value):
            self.fail(f"{value!r} has no unit; write {value}MiB, or {value}KiB", param, ctx)
        if not size:
            self.fail(f"{value!r} is not a size; write it like 256MiB", param, ctx)
        return size


class Seconds(click.ParamType[float]):
    """A time: a number of seconds, or one with a unit, such as 90s or 5m."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from redoma.lib.units import parse_duration

        try:
            return float(value)
        except ValueError:
            seconds = parse_duration(value)
        if seconds is None:
            self.fail(f"{value!r} is not a time; write it like 30, 90s or 5m", param, ctx)
        return seconds


since_option = click.option(
    "--since", type=Moment(), metavar="WHEN", help="Take what is newer: 2h, 30d, or 2030-01-31."
)
_MAX_FILE = 256 * 1024 * 1024
_MAX_SCHEMA = 256 * 1024

policy_option = click.option(
    "--policy",
    "pack",
    metavar="PACK",
    shell_complete=packs,
    help="Use this pack: none, standard, strict, script or core.  [default: configured]",
)
_backend = click.option(
    "--backend",
    default="auto",
    show_default=True,
    shell_complete=backends,
    help="Run it on auto, jail, docker, monty, lean (cells without namespaces, for containers), ray (a cluster), or "
    "native: the host itself, without a sandbox.",
)
_VARIABLE: dict[str, Any] = {"multiple": True, "metavar": "NAME[=VALUE]"}
_LIMITS = (
    policy_option,
    click.option("--time", "seconds", type=Seconds(), help="Limit the time it may take, such as 90 or 5m."),
    click.option("--cpu", type=Seconds(), help="Limit its processor time, such as 10 or 1m."),
    click.option("--memory", type=Size(), help="Limit its memory, such as 256MiB."),
    click.option("--disk", type=Size(), help="Limit all its files together, such as 64MiB."),
)
VARIABLES = (
    click.option(
        "-e", "--env", **_VARIABLE, help="Set NAME in the run; without =VALUE, copy it from this environment."
    ),
    click.option(
        "--secret",
        "secrets",
        multiple=True,
        metavar="NAME[@HOST][=VALUE]",
        help="Set NAME as --env does, and keep its value out of all output; with @HOST, also out of the run: it is put "
        "in on the way there.",
    ),
    click.option(
        "--allow-host",
        "allow_hosts",
        multiple=True,
        metavar="HOST",
        help="Let it reach this: api.github.com, '*.example.org:443', 'GET api.x.com/v1/**'.  [default: nothing]",
    ),
)
_PACKAGES = (
    click.option(
        "--environment",
        metavar="NAME",
        shell_complete=environments,
        help="Let it find these packages: see `redoma env`.",
    ),
    click.option(
        "--package",
        "packages",
        multiple=True,
        metavar="PACKAGE",
        help="Let it find this package, such as pandas; it is installed the first time, with approval.",
    ),
)
_WORKSPACE = (
    click.option(
        "--project", metavar="DIR", help="Use this in a workspace other than scratch.  [default: the current directory]"
    ),
    click.option(
        "--workspace",
        type=click.Choice(["scratch", "read-only", "direct"]),
        default="scratch",
        help="Let it see of --project: nothing, all of it, or (on native) the project itself, with a checkpoint.",
    ),
    click.option(
        "--checkpoint/--no-checkpoint",
        default=None,
        help="On native, put its directory back if it fails.  [default: if a person had to approve it]",
    ),
    click.option(
        "-f",
        "--file",
        "files",
        multiple=True,
        metavar="LOCAL[:GUEST]",
        shell_complete=files,
        help="Put a file into its directory.",
    ),
    click.option(
        "-o", "--output", "outputs", multiple=True, metavar="PATTERN", help="Bring new files back, such as '*.png'."
    ),
    click.option("--output-dir", metavar="DIR", help="Put them here.  [default: the current directory]"),
    click.option("--force", is_flag=True, help="Replace existing files with those that are brought back."),
)
_ABOUT = (
    click.option("-i", "--stdin", "pass_stdin", is_flag=True, help="Pass standard input on to it."),
    click.option("--require", multiple=True, metavar="LAYER", help="Fail unless this isolation layer is in force."),
    click.option("--expect", metavar="json|regex:RE|FILE", help="Fail unless it prints this; FILE is a JSON Schema."),
    click.option("--reason", default="", help="Say why, for the record."),
    click.option("--label", help="Name it, the same each time, for a pinned approval.  [default: the file]"),
    json_option,
)


def with_options(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Return a decorator that gives a command these options, in this order."""

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


limits_of_a_run = with_options(*_LIMITS, *VARIABLES, *_ABOUT)
"""The options that every run has."""
limits_and_context = with_options(_backend, *_LIMITS, *VARIABLES, *_PACKAGES, *_WORKSPACE, *_ABOUT)
"""The options that `run` and `exec` share."""


def run_options(given: dict[str, Any]) -> dict[str, Any]:
    """Return the values of those options, as the executor takes them. Raises `InvalidRequest`, also if the files that
    it is to bring back could not be written.
    """
    outputs = tuple(map(_output, given.get("outputs", ())))
    check_outputs(outputs, given.get("output_dir"), force=given.get("force", False))
    if given.get("project") is not None and given.get("workspace") == "scratch":
        project = shlex.quote(project_directory(given["project"]) or "")
        raise InvalidRequest(
            f"--project {project} was given without --workspace",
            why="in its own empty directory a run sees nothing of a project",
            next="add --workspace read-only to let it read the project; to see what a command would change there, use "
            f"redoma try --project {project} COMMAND",
        )
    limits = {"time": given["seconds"], "cpu": given["cpu"], "memory": given["memory"], "disk": given["disk"]}
    return {
        "backend": given.get("backend", "auto"),
        "policy": given["pack"],
        "limits": {name: value for name, value in limits.items() if value is not None},
        "env": dict(variable(text) for text in given["env"]),
        "secrets": dict(_secret(text) for text in given["secrets"]),
        "network": given["allow_hosts"] or None,
        "environment": given.get("environment"),
        "packages": given.get("packages") or None,
        "files": dict(placed_file(text) for text in given.get("files", ())),
        "outputs": outputs,
        "stdin": standard_input() if given["pass_stdin"] else b"",
        "workspace": given.get("workspace", "scratch"),
        "project": project_directory(given.get("project")),
        "checkpoint": given.get("checkpoint"),
        "require": given["require"],
        "reason": given["reason"],
        "expect": _expected(given["expect"]),
        "label": given["label"] or "",
        "whole_output": True,  # a file or a pipe gets all of it
    }


def _expected(text: str | None) -> Any:
    if text is None or text == "json" or text.startswith("regex:"):
        return text
    from redoma.output.expectations import schema_file

    return schema_file(read_file(Path(text), _MAX_SCHEMA), text)


def variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if equals:
        return name, value
    if name not in os.environ:
        raise InvalidRequest(
            f"{name} has no value",
            why="it isn't set in our environment",
            next=f"write {name}=VALUE, or --environment {name} for the packages of an environment",
        )
    return name, os.environ[name]


def _secret(text: str) -> tuple[str, Any]:
    """Parse NAME[=VALUE], or NAME@HOST[,HOST][=VALUE] for one that stays outside."""
    head, equals, value = text.partition("=")
    name, at, hosts = head.partition("@")
    found = variable(f"{name}{equals}{value}")
    if not at:
        return found
    from redoma.models import Secret

    return name, Secret(found[1], hosts=tuple(hosts.split(",")))


def placed_file(text: str) -> tuple[str, bytes]:
    local, _, guest = text.partition(":")
    return guest or Path(local).name, read_file(Path(local), _MAX_FILE)


def _output(pattern: str) -> str:
    """Return a pattern as requests take it. `./out/`, as a shell completes it, is `out`."""
    return pattern.removeprefix("./").rstrip("/") or pattern


def output_options(given: dict[str, Any]) -> dict[str, Any]:
    """Return which files to write, where, and whether to replace existing ones: the arguments of `result.show`."""
    return {
        "outputs": tuple(map(_output, given["outputs"])),
        "output_dir": given["output_dir"],
        "force": given["force"],
    }
