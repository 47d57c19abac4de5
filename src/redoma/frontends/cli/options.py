"""What commands have in common: their options, and the configuration that is in force."""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import click
from click.shell_completion import CompletionItem

from redoma.lib.errors import InvalidRequest

from .completion import backends, files, packs
from .emit import is_interactive, json_option, note
from .source import read_file, standard_input

if TYPE_CHECKING:
    from datetime import datetime

    from redoma.audit import AuditLog
    from redoma.config import Config

FAILED = 125
USAGE = 2
"""Wrong usage. `check` exits with `UNKNOWN` instead: its 2 is a verdict."""
READER_GONE = 141
"""128 + SIGPIPE, as of any program whose reader has gone."""
UNKNOWN = 3
"""What monitoring plugins exit with when they could not find out. Those who run plugins know no 125."""
F = TypeVar("F", bound=Callable[..., Any])


class State:
    """What the options before the command said: which configuration file, and how to log."""

    def __init__(self, config_file: Path | None, log: Mapping[str, Any]) -> None:
        self._file, self._log = config_file, log

    @functools.cached_property
    def config(self) -> Config:
        """The configuration, loaded when a command first needs it; its notices are printed then."""
        from redoma.config import load, with_log

        config = with_log(load(self._file), self._log, "the command line")
        if config.log.level != "off":
            from redoma.telemetry import logs

            logs.write(config.log.level, config.log.format, config.log.file)
        for notice in config.notices:
            note(notice)
        return config

    @property
    def attended(self) -> Config:
        """The configuration for a command that somebody waits for: at a terminal that person is asked for approval,
        unless the configuration names somebody else."""
        import msgspec

        config = self.config
        if config.approval.approver != "auto" or not is_interactive():
            return config
        return msgspec.structs.replace(config, approval=msgspec.structs.replace(config.approval, approver="console"))


def audit_log(state: State) -> AuditLog:
    """The audit log of the configuration in force."""
    from redoma.audit import AuditLog

    settings = state.config.audit
    return AuditLog(settings.directory, retention_days=settings.retention_days, fsync=settings.fsync)


class CommandGroup(click.Group):
    """A group that answers an unknown command with the one that was probably meant."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args and args[0] not in known and not args[0].startswith("-") and not ctx.resilient_parsing:
            from redoma.lib.text import closest

            near = closest(args[0], known)
            hint = f"did you mean `{ctx.command_path} {near}`?" if near else f"`{ctx.command_path} --help` lists them"
            if not near and ctx.parent is None and not args[0].replace("-", "").isalnum():  # code, not a name
                hint = f"to run it, type {shlex.join([ctx.command_path, 'eval', args[0]])}"
            raise InvalidRequest(f"there is no command {f'{ctx.command_path} {args[0]}'!r}", next=hint)
        return super().resolve_command(ctx, args)


class TakesCommand(click.Command):
    """A command line that ends in `-- COMMAND...`. What follows the first `--` is the command's, word for word."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else None
        ctx.meta["redoma.command"] = None if at is None else tuple(args[at + 1 :])
        return super().parse_args(ctx, args[:at])


class EndsInCommand(click.Command):
    """A command line that ends in `COMMAND...`, with or without `--` before it.

    The command begins with the first word that is no option of ours, and is taken word for word. An ENTRY, such as
    `app:shell`, may stand before it, where there is such an argument.
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
        """Our options, with ENTRY, and the words of the command."""
        at = args.index("--") if "--" in args else len(args)
        ours, theirs = self._split(ctx, args[:at])
        if not theirs or (_is_address(theirs[0]) and self._takes_entry and at < len(args)):
            return args[:at], args[at + 1 :]
        if _is_address(theirs[0]) and self._takes_entry:
            return [*ours, theirs[0]], theirs[1:]
        return ours, [*theirs, *args[at:]]

    def _split(self, ctx: click.Context, args: list[str]) -> tuple[list[str], list[str]]:
        """What comes before the first word that is no option of ours, and the rest."""
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
    """Whether a word has the form of an executor's name, `namespace:name`."""
    namespace, colon, name = word.partition(":")
    return bool(namespace and colon and name) and "/" not in word and ":" not in name


def given_command() -> tuple[str, ...] | None:
    """The words of the command at the end of the line; None if there were none."""
    command: tuple[str, ...] | None = click.get_current_context().meta["redoma.command"]
    return command


def project_directory(path: str | None) -> str | None:
    """Return `path`. Raises `InvalidRequest` if it is not a directory."""
    if path is not None and not os.path.isdir(path):
        why = "it is no directory" if os.path.lexists(path) else "there is no such directory"
        raise InvalidRequest(f"the project {path} can't be used", why=why, next="name a directory")
    return path


class Moment(click.ParamType["datetime"]):
    """A time: a duration before now (`90s`, `30m`, `2h`, `30d`, `4w`), or an ISO 8601 date or time, in UTC unless it
    has a zone."""

    name = "when"
    _UNITS: ClassVar = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        from datetime import UTC, datetime, timedelta

        if isinstance(value, datetime):
            return value
        try:
            if value[-1:] in self._UNITS and value[:-1].isascii() and value[:-1].isdigit():
                return datetime.now(UTC) - timedelta(seconds=int(value[:-1]) * self._UNITS[value[-1]])
            time = datetime.fromisoformat(value)
            return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is no time; write it like 2h, 30d, 2030-01-31 or 2030-01-31T12:00", param, ctx)


class Size(click.ParamType[int]):
    """A number of bytes, such as 256MiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from redoma.lib.units import parse_size

        size = value if isinstance(value, int) else parse_size(value)
        if isinstance(value, str) and value.strip().isdigit():
            self.fail(f"{value!r} has no unit; write {value}MiB, or {value}KiB", param, ctx)
        if size is None:
            self.fail(f"{value!r} is not a size; write it like 256MiB", param, ctx)
        return size


since_option = click.option(
    "--since", type=Moment(), metavar="WHEN", help="Take what is newer: 2h, 30d, or 2030-01-31."
)
_MAX_FILE = 256 * 1024 * 1024
_MAX_SCHEMA = 256 * 1024

policy_option = click.option(
    "--policy",
    metavar="PACK",
    shell_complete=packs,
    help="Use this pack: none, standard, strict, script or core.  [default: configured]",
)
_backend = click.option(
    "--backend",
    default="auto",
    show_default=True,
    shell_complete=backends,
    help="Run it on auto, jail, docker, monty, or native: the host itself, without a sandbox.",
)
_VARIABLE: dict[str, Any] = {"multiple": True, "metavar": "NAME[=VALUE]"}
_LIMITS = (
    policy_option,
    click.option("--time", "seconds", type=float, help="Limit the time it may take, in seconds."),
    click.option("--cpu", type=float, help="Limit its processor time, in seconds."),
    click.option("--memory", type=Size(), help="Limit its memory, such as 256MiB."),
    click.option("--disk", type=Size(), help="Limit all its files together, such as 64MiB."),
)
_VARIABLES = (
    click.option(
        "-e", "--env", **_VARIABLE, help="Set NAME in the run; without =VALUE, copy it from this environment."
    ),
    click.option(
        "--secret", "secrets", **_VARIABLE, help="Set NAME as --env does, and keep its value out of all output."
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
    """A decorator that gives a command these options, in this order."""

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


limits_of_a_run = with_options(*_LIMITS, *_VARIABLES, *_ABOUT)
"""The options that every run has."""
limits_and_context = with_options(_backend, *_LIMITS, *_VARIABLES, *_WORKSPACE, *_ABOUT)
"""The options that `run` and `exec` share."""


def run_options(given: dict[str, Any]) -> dict[str, Any]:
    """The values of those options, as the executor takes them."""
    limits = {"time": given["seconds"], "cpu": given["cpu"], "memory": given["memory"], "disk": given["disk"]}
    return {
        "backend": given.get("backend", "auto"),
        "policy": given["policy"],
        "limits": {name: value for name, value in limits.items() if value is not None},
        "env": dict(_variable(text) for text in given["env"]),
        "secrets": dict(_variable(text) for text in given["secrets"]),
        "files": dict(_file(text) for text in given.get("files", ())),
        "outputs": given.get("outputs", ()),
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


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if equals:
        return name, value
    if name not in os.environ:
        raise InvalidRequest(f"{name} has no value", why="it isn't set in our environment", next=f"write {name}=VALUE")
    return name, os.environ[name]


def _file(text: str) -> tuple[str, bytes]:
    local, _, guest = text.partition(":")
    return guest or Path(local).name, read_file(Path(local), _MAX_FILE)


def output_options(given: dict[str, Any]) -> dict[str, Any]:
    """Which files to bring back, where to, and whether to replace what is there: what `result.show` takes."""
    return {"outputs": given["outputs"], "output_dir": given["output_dir"], "force": given["force"]}
