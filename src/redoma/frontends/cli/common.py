"""What several commands share: the loaded configuration, reading a source, and printing."""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import stat
import sys
import termios
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TextIO, TypeVar

import click
from click.shell_completion import CompletionItem

from redoma.lib.errors import InvalidRequest
from redoma.models import Language

if TYPE_CHECKING:
    from datetime import datetime

    from redoma.audit import AuditLog
    from redoma.config import Config

FAILED = 125
USAGE = 2
"""What was typed makes no sense. `check` exits with `UNKNOWN` then: its 2 is a verdict."""
READER_GONE = 141
"""128 + SIGPIPE, as of any program whose reader has enough."""
UNKNOWN = 3
"""What monitoring plugins exit with where they could not find out: who runs one knows no 125."""
_MAX_SOURCE = 16 * 1024 * 1024
_SUFFIXES: dict[str, Language] = {".py": "python", ".pyw": "python", ".sh": "bash", ".bash": "bash"}
_OTHERS = {
    "a Korn shell script": "ksh",
    "a Windows batch file": "bat cmd",
    "a Z shell script": "zsh",
    "a fish script": "fish",
    "a notebook": "ipynb",
    **{"C": "c h", "C#": "cs", "C++": "cc cpp", "Dart": "dart", "Elixir": "ex exs", "Go": "go", "Haskell": "hs"},
    **{"Java": "java", "JavaScript": "cjs js jsx mjs", "Julia": "jl", "Kotlin": "kt", "Lua": "lua", "PHP": "php"},
    **{"Perl": "pl pm", "PowerShell": "ps1", "R": "r", "Ruby": "rb", "Rust": "rs", "SQL": "sql", "Scala": "scala"},
    **{"Swift": "swift", "Tcl": "tcl", "TypeScript": "ts tsx", "Zig": "zig"},
}
_OTHER_SUFFIXES = {f".{suffix}": name for name, suffixes in _OTHERS.items() for suffix in suffixes.split()}
"""What a suffix says of a file that this can't run."""

F = TypeVar("F", bound=Callable[..., Any])


class State:
    """What the options before the command said."""

    def __init__(self, config_file: Path | None, log: Mapping[str, Any]) -> None:
        self._file, self._log = config_file, log

    @functools.cached_property
    def config(self) -> Config:
        """Loaded when a command needs it; what the user should know of it is said once."""
        from redoma.config import load, with_log

        config = with_log(load(self._file), self._log, "the command line")
        if config.log.level != "off":
            from redoma.telemetry import logs

            logs.write(config.log.level, config.log.format, config.log.file)
        for notice in config.notices:
            click.echo(click.style("redoma: note: ", fg="yellow") + notice, err=True)
        return config

    @property
    def attended(self) -> Config:
        """For a command that somebody waits for: at a terminal they are asked, unless it is configured who is."""
        import msgspec

        config = self.config
        if config.approval.approver != "auto" or not is_a_dialogue():
            return config
        return msgspec.structs.replace(config, approval=msgspec.structs.replace(config.approval, approver="console"))


def audit_log(state: State) -> AuditLog:
    from redoma.audit import AuditLog

    settings = state.config.audit
    return AuditLog(settings.directory, retention_days=settings.retention_days, fsync=settings.fsync)


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def print_json(data: Any) -> None:
    import json

    import msgspec

    # The standard library's writer: a path that is no UTF-8 comes out as the escape that stands for it in JSON.
    click.echo(json.dumps(msgspec.to_builtins(data, enc_hook=str), indent=2, ensure_ascii=False))


def columns(rows: Iterable[Sequence[str]]) -> None:
    """Print rows with every column but the last padded to one width."""
    table = [list(row) for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    for row in table:
        padded = [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)]
        click.echo("  ".join([*padded, row[-1]]).rstrip())


def shown(text: str, most: int = 80) -> str:
    """On one line, bounded, and harmless for a terminal, whatever it holds."""
    from redoma.lib.sanitise import visible

    line = visible(text[: 4 * most]).replace("\n", "\\n").replace("\t", "\\t")
    return line if len(line) <= most and len(text) <= 4 * most else line[: most - 1] + "…"


class CommandGroup(click.Group):
    """Commands. One that there isn't is answered with the one that was probably meant."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args and args[0] not in known and not args[0].startswith("-") and not ctx.resilient_parsing:
            from redoma.lib.text import closest

            near = closest(args[0], known)
            hint = f"did you mean `{ctx.command_path} {near}`?" if near else f"`{ctx.command_path} --help` lists them"
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
    """Whether it has the form of an executor's name."""
    namespace, colon, name = word.partition(":")
    return bool(namespace and colon and name) and "/" not in word and ":" not in name


def given_command() -> tuple[str, ...] | None:
    """The words of the command; None if there was none."""
    command: tuple[str, ...] | None = click.get_current_context().meta["redoma.command"]
    return command


def project_directory(path: str | None) -> str | None:
    """What was given, if it is a directory."""
    if path is not None and not os.path.isdir(path):
        why = "it is no directory" if os.path.lexists(path) else "there is no such directory"
        raise InvalidRequest(f"the project {path} can't be used", why=why, next="name a directory")
    return path


class Source(NamedTuple):
    code: str
    language: Language
    inline: bool
    """Whether it is the argument itself, not a file or `-`."""
    guessed: bool
    """Whether nobody said which language it is: neither an option, nor its name, nor its first line."""


def read_source(source: str, language: Language | None) -> Source:
    """Source text from `-`, a file, or the argument itself. What nobody says the language of is read as Python."""
    guessed = language is None
    if source == "-":
        code = _decode(standard_input(_MAX_SOURCE + 1), "standard input")
        return Source(code, language or "python", inline=False, guessed=guessed)
    if not source.strip():
        raise InvalidRequest("there is no code", why="the text is empty", next="name a file, or write the code itself")
    path = Path(source)
    try:
        exists = len(source) < 4096 and "\n" not in source and "\0" not in source and path.exists()
    except OSError:
        exists = False
    if exists:
        data = read_file(path, _MAX_SOURCE, pipes=True)
        guessed = guessed and path.suffix not in _SUFFIXES and not data.startswith(b"#!")
        return Source(_decode(data, source), language or _language_of(path, data), inline=False, guessed=guessed)
    has_suffix = path.suffix in _SUFFIXES or path.suffix.lower() in _OTHER_SUFFIXES
    if has_suffix and not any(character in source for character in " \t\n(;=$"):
        raise InvalidRequest(f"there is no file {source}", why="it looks like a file's name", next="check the path")
    return Source(source, language or "python", inline=True, guessed=guessed)


def read_file(path: Path, most: int, *, pipes: bool = False) -> bytes:
    """A file's content. Anything but a regular file could keep us waiting for ever; a source may be a pipe even so."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (0 if pipes else os.O_NONBLOCK))
        with open(descriptor, "rb") as file:
            mode = os.fstat(descriptor).st_mode
            if not (stat.S_ISREG(mode) or (pipes and (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)))):
                raise InvalidRequest(f"{path} can't be read", why="it is not a regular file", next="name a file")
            data = file.read(most + 1)
    except OSError as error:
        why = error.strerror or str(error)
        raise InvalidRequest(f"{path} can't be read", why=why, next="check the path and its rights") from None
    if len(data) > most:
        raise InvalidRequest(f"{path} is too large", why=f"at most {most} bytes are taken", next="make it smaller")
    return data


@contextlib.contextmanager
def new_file(path: Path, *, force: bool) -> Iterator[TextIO]:
    """A file for our eyes only, as the log is; there when it is whole, and not before."""
    import secrets

    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(part, flags, 0o600), "w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            yield file
        if force:
            os.replace(part, path)
        else:
            os.link(part, path)  # which, unlike renaming, never replaces anything
    except FileExistsError:
        raise InvalidRequest(f"{path} is there already", why="nothing was written", next="add --force") from None
    except OSError as error:
        why = error.strerror or str(error)
        raise InvalidRequest(f"{path} can't be written", why=why, next="choose another place") from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def is_a_dialogue() -> bool:
    """Whether a person sits there, who sees what we say and can answer."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def forget_what_was_typed() -> None:
    """Drop what was typed or pasted before a question was shown: it answers nothing."""
    if sys.stdin is not None and sys.stdin.isatty():
        termios.tcflush(sys.stdin, termios.TCIFLUSH)


def standard_input(most: int = -1) -> bytes:
    return sys.stdin.buffer.read(most) if sys.stdin is not None else b""


def _language_of(path: Path, data: bytes) -> Language:
    """By its name, or by its first line. Raises `InvalidRequest` if these say that it is neither Python nor Bash."""
    if path.suffix in _SUFFIXES:
        return _SUFFIXES[path.suffix]
    words = data.split(b"\n", 1)[0].removeprefix(b"#!").split() if data.startswith(b"#!") else []
    programs = [Path(word.decode(errors="replace")).name for word in words if not word.startswith(b"-")]
    program = next((name for name in programs if name != "env" and "=" not in name), "")
    if program in ("sh", "bash", "dash"):
        return "bash"
    if program.startswith(("python", "pypy")):
        return "python"
    if path.suffix == ".lua" or program.startswith("lua"):
        raise InvalidRequest(
            f"{path} is a Lua script", why="this takes Python and Bash", next=f"redoma lua {shlex.quote(str(path))}"
        )
    if program or path.suffix:
        what = (
            f"a script for {program}" if program else _OTHER_SUFFIXES.get(path.suffix.lower(), f"a {path.suffix} file")
        )
        raise InvalidRequest(
            f"{path} is {what}",
            why="this takes Python and Bash",
            next="name the language if it is one of these: --lang python, or --lang bash",
        )
    return "python"


def _decode(data: bytes, name: str) -> str:
    if len(data) > _MAX_SOURCE:
        raise InvalidRequest(
            f"{name} is too large", why=f"source has at most {_MAX_SOURCE} bytes", next="make it a file"
        )
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"{name} is not UTF-8 text", why=f"byte {error.start} can't be read", next="save it as UTF-8"
        ) from None


class Moment(click.ParamType["datetime"]):
    """A time: so long ago (`90s`, `30m`, `2h`, `30d`, `4w`), or a date or time as ISO 8601 has it, of UTC if no zone is
    given."""

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


since_option = click.option("--since", type=Moment(), metavar="WHEN", help="From then on: 2h, 30d, or 2030-01-31.")
