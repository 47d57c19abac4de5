"""repl: an interactive session."""

from __future__ import annotations

import ast
import codeop
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click

from redoma.lib.errors import RedomaError

from .completion import backends, files
from .displays import Screen
from .emit import note
from .options import VARIABLES, Size, placed_file, policy_option, variable, with_options
from .state import State

if TYPE_CHECKING:
    from redoma.models import Result
    from redoma.sessions.session import Session, SessionRun

_HELP = "!COMMAND runs Bash, %cd DIR goes elsewhere, %restart forgets everything, Ctrl-D or exit ends it"


@click.command("repl")
@click.option("--backend", default="auto", show_default=True, shell_complete=backends, help="Use jail or docker.")
@policy_option
@click.option("--time", "seconds", type=float, help="Limit the time of each run, in seconds.")
@click.option("--memory", type=Size(), help="Limit the memory of the session, such as 256MiB.")
@with_options(*VARIABLES)
@click.option(
    "-f",
    "--file",
    "placed",
    multiple=True,
    metavar="LOCAL[:GUEST]",
    shell_complete=files,
    help="Put a file into its directory.",
)
@click.option("--environment", metavar="NAME", help="Let it find these packages: see `redoma env`.")
@click.option("--pictures", metavar="DIR", help="Save pictures here.  [default: a new directory for temporary files]")
@click.pass_obj
def repl(state: State, /, pictures: str | None, **given: Any) -> int:
    """Type Python into a session: a cell of its own that keeps variables and files.

    A line that begins with `!` is Bash. Pictures are saved, and their path is printed. Every run is judged and recorded
    like any other.

    \b
    Examples:
      redoma repl
      redoma repl -f data.csv --time 60
    """
    limits = {"time": given["seconds"], "memory": given["memory"]}
    options: dict[str, Any] = {
        "backend": given["backend"],
        "policy": given["pack"],
        "limits": {name: value for name, value in limits.items() if value is not None},
        "env": dict(variable(text) for text in given["env"]),
        "secrets": dict(variable(text) for text in given["secrets"]),
        "files": dict(placed_file(text) for text in given["placed"]),
        "environment": given["environment"],
    }
    from redoma.pipeline.sync import Executor

    with Executor(state.attended) as executor, executor.session(**options) as session:
        if sys.stdin.isatty():
            note(f"a session on {session.core.name}; {_HELP}")
        with _reading(session, state):
            return _Repl(session, pictures).loop()


class _Repl:
    def __init__(self, session: Session, pictures: str | None) -> None:
        self._session, self._screen = session, Screen(pictures)
        self._status = 0

    def loop(self) -> int:
        while (text := self._read()) is not None:
            if text.strip() in ("exit", "quit", "exit()", "quit()"):
                break
            if text.strip():
                self._do(text)
        return self._status

    def _read(self) -> str | None:
        """Return the next complete statement, or line for Bash; None at the end."""
        asks, lines = sys.stdin.isatty(), list[str]()
        while True:
            try:
                line = input(("... " if lines else ">>> ") if asks else "")
            except EOFError:
                if asks:
                    click.echo()
                return "\n".join(lines) if lines else None
            except KeyboardInterrupt:
                click.echo()
                lines.clear()
                continue
            if not lines and line.lstrip().startswith(("!", "%")):
                return line
            lines.append(line)
            if _is_whole("\n".join(lines)):
                return "\n".join(lines)

    def _do(self, text: str) -> None:
        try:
            result = self._run(text.strip() if text.lstrip().startswith(("!", "%")) else text)
            self._status = 0 if result is None else result.shell_exit
        except KeyboardInterrupt:
            note("interrupted")
            self._status = 130
        except RedomaError as error:
            note(str(error))
            self._status = 125
        if self._session.ended:
            note(f"the session has ended: {self._session.ended}; it begins anew")
            self._session.restart()

    def _run(self, text: str) -> Result | None:
        if text.startswith("!"):
            return self._follow(self._session.stream(text[1:].strip(), "bash", whole_output=True))
        if text.startswith("%"):
            return self._special(text)
        return self._follow(self._session.stream(text, whole_output=True))

    def _special(self, text: str) -> Result | None:
        name, _, rest = text[1:].partition(" ")
        match name:
            case "cd":
                return self._follow(self._session.stream(f"cd -- {shlex.quote(rest.strip() or '/')} && pwd", "bash"))
            case "pip" if rest.split()[:1] == ["install"]:
                create, use = "`redoma env create NAME PACKAGE`", "`redoma repl --environment NAME`"
                note(f"a session installs nothing: make an environment with {create}, then start {use}")
            case "pip":
                return self._follow(self._session.stream(f"pip {rest}", "bash", whole_output=True))
            case "restart":
                self._session.restart()
                note("variables and processes are gone; files stay")
            case _:
                note(f"there is no %{name}; {_HELP}")
        return None

    def _follow(self, live: SessionRun) -> Result:
        from redoma.models import Chunk

        shown = 0
        with live as run:
            for event in run:
                if isinstance(event, Chunk):
                    click.echo(event.text, nl=False, err=event.stream == "stderr")
                else:
                    shown += 1
                    self._screen.draw(event)
        result = run.result
        if result.value_repr is not None and not (shown and result.displays[-1].text == result.value_repr):
            click.echo(result.value_repr)
        if not result.ok and (result.exception is None or result.status != "error"):
            note(f"{result.status.value}: {result.error or 'exit status ' + str(result.exit_code)}")
        for hint in result.hints:
            note(hint, "hint")
        return result


def _is_whole(text: str) -> bool:
    """Return whether a statement is complete: then an empty line, or the end of its only line, ends it."""
    compiler = codeop.Compile()
    compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    try:
        return codeop._maybe_compile(compiler, text, "<input>", "single") is not None  # type: ignore[attr-defined]
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
        return True  # the session reports the error


@contextmanager
def _reading(session: Session, state: State) -> Iterator[None]:
    """Set up line editing, with history and completion of the session's names, if a person types."""
    if not sys.stdin.isatty():
        yield
        return
    import readline

    history = state.config.state / "repl-history" if state.config.state else None
    found: list[str] = []

    def complete(text: str, place: int) -> str | None:
        if place == 0:
            found[:] = session.complete(text) if text else []
        return found[place] if place < len(found) else None

    if history is not None:
        with suppress(OSError):
            readline.read_history_file(history)
    readline.set_completer(complete)
    readline.parse_and_bind("tab: complete")
    try:
        yield
    finally:
        readline.set_completer(None)
        if history is not None:
            readline.set_history_length(1000)
            with suppress(OSError):
                history.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                os.close(os.open(history, os.O_CREAT | os.O_WRONLY, 0o600))
                readline.write_history_file(history)
