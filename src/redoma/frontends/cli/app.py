"""The group of all commands, `help`, and the one place where an error becomes a message and an exit status."""

from __future__ import annotations

import importlib
import itertools
import os
import shlex
import sys
from pathlib import Path
from typing import Any, cast

import click
from click.core import ParameterSource

import redoma
from redoma.lib.errors import InvalidRequest, RedomaError

from . import begin
from .emit import print_json, wants_json
from .state import FAILED, READER_GONE, UNKNOWN, USAGE, State

_COMMANDS = (
    "approvals",
    "audit",
    "batch",
    "changes",
    "check",
    "checkpoints",
    "cluster",
    "completion",
    "config",
    "doctor",
    "env",
    "eval",
    "exec",
    "help",
    "kernel",
    "keys",
    "lua",
    "mcp",
    "monitor",
    "network",
    "output",
    "policy",
    "repl",
    "run",
    "serve",
    "try",
)
"""Each is in the file of its name, which is loaded when the command is used; `help` is here."""
_FILES = {"help": "app", "try": "try_"}
_OF_THIS_MACHINE = frozenset(
    {"cluster", "completion", "config", "doctor", "help", "kernel", "keys", "mcp", "monitor", "serve"}
)
"""Commands that are about this machine, whatever service is used: they ignore REDOMA_SERVER."""


class ReaderGone(Exception):
    """The reader of our output is gone, as in `| head -n 3`."""


class _Commands(click.Group):
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f".{_FILES.get(cmd_name, cmd_name)}", __package__)
        return next(item for item in vars(module).values() if isinstance(item, click.Command) and item.name == cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        ctx.meta["redoma.words"] = (*ctx.args,)  # click takes them away before it calls `cli`
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise ReaderGone from None  # click would exit with 1, which could be the code's own status


@click.group(
    cls=_Commands,
    commands=dict.fromkeys(_COMMANDS),
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit status: the code's own; 2 wrong usage, 124 time-out, 137 memory, output or a kill, 126 refused, "
    "125 Redoma itself failed.",
)
@click.option(
    "--config",
    type=click.Path(exists=True, path_type=Path),
    metavar="FILE",
    help="Use this redoma.yaml as well; it is trusted.",
)
@click.option(
    "--log-level",
    type=click.Choice(["off", "debug", "info", "warning", "error"]),
    metavar="LEVEL",
    help="Log events: debug, info, warning, error.",
)
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), metavar="FORMAT", help="Log as text, or as json lines."
)
@click.option(
    "--log-file", type=click.Path(path_type=Path), metavar="FILE", help="Append events here, not to standard error."
)
@click.option(
    "--server", metavar="URL", envvar="REDOMA_SERVER", help="Let `run` use this service, with the key in REDOMA_KEY."
)
@click.version_option(redoma.__version__, prog_name="redoma", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context, /, config: Path | None, server: str | None, **log: Any) -> None:
    """Run code and commands that nobody has reviewed, safely.

    \b
    Examples:
      redoma run 'print(6 * 7)'            Python in a sandbox
      redoma run script.py -f data.csv     a file, with data beside it
      redoma check --lang bash 'rm -rf /'  the verdict, without running
      redoma exec app:shell -- git status  a configured executor
      redoma try make clean                what it would change, before it does
      redoma audit tail                    what ran lately
      redoma doctor                        what this host offers
    """
    said = {name.removeprefix("log_"): value for name, value in log.items() if value is not None}
    no_server = _why_no_server(context, server)
    context.obj = State(config, said, server=server, no_server=no_server)
    wants_help = {"-h", "--help"} & {*context.meta["redoma.words"]}  # or what it runs does: `State` refuses that
    if no_server is not None and not wants_help:
        raise no_server


def _why_no_server(context: click.Context, server: str | None) -> InvalidRequest | None:
    """Return the error for a command that can't use the service that was named; None if it can, or needs none."""
    command = context.invoked_subcommand or ""
    if server is None or command in ("run", "help"):
        return None
    why = "only `redoma run` uses a service; this command is about what is on this machine"
    if context.get_parameter_source("server") is ParameterSource.COMMANDLINE:
        return InvalidRequest(f"--server was given with `redoma {command}`", why=why, next="leave --server out")
    if command in _OF_THIS_MACHINE:
        return None
    return InvalidRequest(
        f"`redoma {command}` can't use {server}, which REDOMA_SERVER names",
        why=why,
        next=f"unset REDOMA_SERVER, or write it like: env -u REDOMA_SERVER redoma {command} ...",
    )


@click.command("help")
@click.argument("commands", nargs=-1)
@click.pass_context
def show_help(context: click.Context, commands: tuple[str, ...]) -> None:
    """Show the help of a command, or of all of them.

    \b
    Example:
      redoma help audit search
    """
    command: click.Command = cli
    context = context.find_root()
    for name in commands:
        if not isinstance(command, click.Group):
            raise click.UsageError(f"{context.command_path} has no commands of its own", context)
        _, found, _ = command.resolve_command(context, [name])
        if found is None:
            raise click.UsageError(f"{context.command_path} has no command {name!r}", context)
        command, context = found, click.Context(found, context, name, **found.context_settings)
    click.echo(command.get_help(context))


def run(arguments: list[str]) -> int:
    """Run the command line and return the exit status. Every error becomes a message (what, why, what next), never a
    traceback.
    """
    begin()
    try:
        status = int(cli.main(arguments, prog_name="redoma", standalone_mode=False, color=_colour()) or 0)
        sys.stdout.flush()
        return status
    except Exception as error:
        return explain(arguments, error)


def explain(arguments: list[str], error: BaseException) -> int:
    """Print an error for the person who typed these words, and return the exit status."""
    try:
        raise error
    except (click.exceptions.Abort, KeyboardInterrupt, EOFError):
        _complain("interrupted")
        return 130
    except click.exceptions.NoArgsIsHelpError as error:  # a group without a command
        click.echo(error.format_message(), color=_colour())
        return _USAGE.get(_command_of(arguments), 0)
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "redoma"
        hint = f"`{path} --help` shows how it is used"
        if isinstance(error, click.NoSuchOption) and path == "redoma run":
            hint = f"options of the script go after `--`; {hint}"
        elif isinstance(error, click.NoSuchCommand) and not error.command_name.replace("-", "").isalnum():  # it is code
            hint = f"to run it, type {shlex.join(['redoma', 'eval', error.command_name])}"
        _fail(arguments, error.format_message(), hint=hint)
        return _USAGE.get(_command_of(arguments), USAGE)
    except InvalidRequest as error:
        _fail(arguments, error.what, error.why, error.next)
        return _USAGE.get(_command_of(arguments), USAGE)
    except click.ClickException as error:
        _fail(arguments, error.format_message())
    except RedomaError as error:
        _fail(arguments, error.what, error.why, error.next)
    except (ReaderGone, BrokenPipeError):
        return READER_GONE
    except OSError as error:
        from redoma.lib.files import reason

        name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes | os.PathLike) else ""
        what = f"{name or 'a file'} could not be read or written"
        _fail(arguments, what, reason(error), "check the path and its rights" if name else "")
    except Exception as error:  # for a bug of ours a user must not have to read our source
        _fail(arguments, "this is a bug in Redoma", repr(error), "please report it, with what you typed")
    return UNKNOWN if _command_of(arguments) == "monitor" else FAILED


_USAGE = {"check": UNKNOWN, "monitor": UNKNOWN}


def _command_of(arguments: list[str]) -> str:
    return next((word for word in arguments if word in _COMMANDS), "")


def _colour() -> bool | None:
    """Return False if colours are unwanted; otherwise click decides by whether it writes to a terminal."""
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None


def _complain(text: str) -> None:
    click.echo(f"{click.style('redoma:', fg='red')} {text}", err=True, color=_colour())


def _asks_for_json(arguments: list[str]) -> bool:
    """Return whether --json is among our own options: what follows `--`, a command or a Lua script is not ours."""
    lenient: dict[str, Any] = {"resilient_parsing": True, "ignore_unknown_options": True}
    command, rest = cast("click.Command | None", cli), arguments
    context = click.Context(cli, **lenient)
    while isinstance(command, click.Group):
        _, rest, _ = command.make_parser(context).parse_args([*rest])
        rest = [*itertools.dropwhile(lambda word: word.startswith("-"), rest)]  # unknown options
        name, command, rest = command.resolve_command(context, rest or [""])
        if command is not None:
            context = click.Context(command, context, name, **{**command.context_settings, **lenient})
    if command is not None:
        command.parse_args(context, rest)
    return wants_json(context)


def _fail(arguments: list[str], what: str, why: str = "", hint: str = "") -> None:
    from redoma.lib.sanitise import sanitise

    what, why, hint = sanitise(what), sanitise(why), sanitise(hint)
    try:
        if _asks_for_json(arguments):
            print_json({"status": "failed", "error": what, "why": why, "next": hint})
            sys.stdout.flush()
            return
    except OSError as error:
        why = f"{why}; and standard output: {error.strerror}"
    _complain(what + (f": {why}" if why else ""))
    if hint:
        click.echo(f"  next: {hint}", err=True)
