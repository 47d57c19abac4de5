"""The group of all commands, `help`, and the one place where an error becomes a message and an exit status."""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

import redoma
from redoma.lib.errors import InvalidRequest, RedomaError

from .emit import print_json
from .options import FAILED, READER_GONE, UNKNOWN, USAGE, CommandGroup, EndsInCommand, State

_COMMANDS = (
    "approvals",
    "audit",
    "changes",
    "check",
    "checkpoints",
    "completion",
    "config",
    "doctor",
    "eval",
    "exec",
    "help",
    "lua",
    "monitor",
    "output",
    "policy",
    "run",
    "try",
)
"""Each is in the file of its name, which is loaded when the command is used; but `help` is here."""
_FILES = {"help": "app", "try": "try_"}


class ReaderGone(Exception):
    """Nobody reads our output any more, as in `| head -n 3`."""


class _Commands(CommandGroup):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f".{_FILES.get(cmd_name, cmd_name)}", __package__)
        return next(item for item in vars(module).values() if isinstance(item, click.Command) and item.name == cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise ReaderGone from None  # click would make it an exit status of 1, which could be the code's own


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit status: the code's own; 2 wrong usage, 124 time-out, 137 memory, output or a kill, 126 refused, "
    "125 Redoma itself failed.",
)
@click.option(
    "--config", type=click.Path(path_type=Path), metavar="FILE", help="Use this redoma.yaml as well; it is trusted."
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
@click.version_option(redoma.__version__, prog_name="redoma", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context, /, config: Path | None, **log: Any) -> None:
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
    context.obj = State(config, said)


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
    """Run the command line and return the exit status. Any error becomes a message (what, why, what next), never a
    traceback."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that can't show a character gets an escape for it, not a UnicodeEncodeError.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    try:
        status = int(cli.main(arguments, prog_name="redoma", standalone_mode=False, color=_colour()) or 0)
        sys.stdout.flush()
        return status
    except click.exceptions.Abort:
        _complain("interrupted")
        return 130
    except click.exceptions.NoArgsIsHelpError as error:  # a group of commands, alone
        click.echo(error.format_message(), color=_colour())
        return _USAGE.get(_command_of(arguments), 0)
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "redoma"
        hint = f"`{path} --help` shows how it is used"
        if isinstance(error, click.NoSuchOption) and path == "redoma run":
            hint = f"options of the script go after `--`; {hint}"
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
        _fail(arguments, "it could not be read or written", error.strerror or str(error))
    except Exception as error:  # a bug of ours is no reason for a user to read our source
        _fail(arguments, "this is a bug in Redoma", repr(error), "please report it, with what you typed")
    return UNKNOWN if _command_of(arguments) == "monitor" else FAILED


_USAGE = {"check": UNKNOWN, "monitor": UNKNOWN}


def _command_of(arguments: list[str]) -> str:
    return next((word for word in arguments if word in _COMMANDS), "")


def _end(number: int, frame: object) -> NoReturn:
    """End like Ctrl-C does: what runs is ended and recorded first. The default handler would leave it running."""
    raise SystemExit(128 + number)


def _colour() -> bool | None:
    """False where colours are unwanted; otherwise click decides by whether it writes to a terminal."""
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None


def _complain(text: str) -> None:
    click.echo(f"{click.style('redoma:', fg='red')} {text}", err=True, color=_colour())


def _asks_for_json(arguments: list[str]) -> bool:
    """Whether --json is among our own options: what follows `--`, a command or a Lua script is not ours."""
    ours = arguments[: arguments.index("--")] if "--" in arguments else arguments
    command = next((at for at, word in enumerate(ours) if word in _COMMANDS), None)
    if command is None or ours[command] not in ("lua", "try", "exec"):
        return "--json" in ours
    if ours[command] != "lua":
        return "--json" in _options_before_command(ours[command], arguments[command + 1 :])
    from .lua import lua

    context = click.Context(lua, resilient_parsing=True, ignore_unknown_options=True, **lua.context_settings)
    given, _, _ = lua.make_parser(context).parse_args(ours[command + 1 :])
    return "as_json" in given


def _options_before_command(name: str, rest: list[str]) -> list[str]:
    found = cli.get_command(click.Context(cli), name)
    if not isinstance(found, EndsInCommand):
        raise TypeError(f"{name} takes no command")
    try:
        return found.ours(click.Context(found, ignore_unknown_options=True), rest)[0]
    except click.UsageError:
        return rest[: rest.index("--")] if "--" in rest else rest


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
