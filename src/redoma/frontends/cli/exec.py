"""exec: a command, on a configured executor or on a backend."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

import click

from redoma.lib.errors import InvalidRequest, RedomaError

from .completion import entries_or_files
from .emit import emit_list
from .options import EndsInCommand, given_command, limits_and_context, output_options, run_options
from .plain import run_command
from .result import follow, show
from .state import State

if TYPE_CHECKING:
    from redoma.config import Config, Entry
    from redoma.exec import ProcessControl
    from redoma.pipeline.intake import Options
    from redoma.pipeline.sync import Executor

_FORWARDED = (signal.SIGINT, signal.SIGTERM)


@click.command("exec", cls=EndsInCommand, options_metavar="[OPTIONS] [ENTRY] [--] COMMAND...")
@limits_and_context
@click.option("--cwd", "--work-dir", "cwd", metavar="DIR", help="Work in this directory: of the host, or inside ENTRY.")
@click.option("--list", "listing", is_flag=True, help="Show the configured executors.")
@click.argument("entry", required=False, metavar="", shell_complete=entries_or_files)
@click.pass_obj
def execute(state: State, /, entry: str | None, cwd: str | None, listing: bool, **given: Any) -> int:
    """Run a command, without a shell.

    ENTRY names a configured executor, with its own directory, variables and list of commands. A program that runs there
    gets our SIGINT and SIGTERM, and our standard input as it comes; with --stdin all of it at once, read by policy.

    \b
    Examples:
      redoma exec app:shell -- git status
      redoma exec --list
      redoma exec --workspace read-only grep -r TODO .
      redoma exec --backend native -- ls -l
    """
    if listing:
        _list(state.config)
        return 0
    command = given_command()
    if not command:
        raise InvalidRequest(
            "there is no command", why="it stands at the end", next="write it like: redoma exec app:shell -- git status"
        )
    options = run_options(given)
    if entry is None:
        return run_command(state, command, options, cwd, output_dir=given["output_dir"], force=given["force"])
    with state.executor() as executor:
        from redoma.exec import talk

        live, control = talk(
            executor, entry, command, cast("Options", {**options, "cwd": cwd}), live_input=not given["pass_stdin"]
        )
        with _passed_on(executor, control) if control is not None else nullcontext():
            result = follow(live)
        return show(result, **output_options(given), with_value=control is None)


@contextmanager
def _passed_on(executor: Executor, control: ProcessControl) -> Iterator[None]:
    """Pass our standard input and our signals on to the program while it runs."""
    # A handler may run while this very thread holds a lock of the executor, so another thread passes them on.
    caught: queue.SimpleQueue[int] = queue.SimpleQueue()
    threading.Thread(target=_pass_signals, args=(executor, control, caught), daemon=True).start()
    if control.takes_input:
        threading.Thread(target=_pass_input, args=(executor, control), daemon=True).start()
    before: dict[int, Any] = {number: signal.getsignal(number) for number in _FORWARDED}

    def handle(number: int, frame: FrameType | None) -> None:
        if control.is_started:
            caught.put(number)
        elif callable(before[number]):
            before[number](number, frame)  # there is no program yet, and may never be: the signal is for us

    for each in _FORWARDED:
        signal.signal(each, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _pass_signals(executor: Executor, control: ProcessControl, caught: queue.SimpleQueue[int]) -> None:
    while True:
        number = caught.get()
        with suppress(RedomaError):  # the run has ended meanwhile
            executor.wait(_called(control.signal, number))


def _pass_input(executor: Executor, control: ProcessControl) -> None:
    with suppress(RedomaError):  # the run has ended meanwhile
        # Not before there is a program: until then, typed text may be the answer to an approval question.
        executor.wait(control.settled.wait())
        # Read as it arrives: `sys.stdin` would block for more.
        while data := _read(sys.stdin.fileno()):
            executor.wait(control.write(data))
        executor.wait(_called(control.end_input))


def _read(number: int) -> bytes:
    try:
        return os.read(number, 1 << 16)
    except OSError:  # the terminal is gone, or not ours to read
        return b""


async def _called(function: Callable[..., None], *arguments: Any) -> None:
    function(*arguments)


def _list(config: Config) -> None:
    emit_list(
        sorted(config.entries.items()),
        lambda each: _row(*each),
        empty="no executors are configured: see `entries` in docs/configuration.md",
        shape=lambda each: {"address": each[0], **_plain(each[1])},
    )


def _plain(entry: Entry) -> dict[str, Any]:
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(entry, enc_hook=str)
    return plain


def _row(address: str, entry: Entry) -> tuple[str, ...]:
    from redoma.config import printable

    plain = _plain(entry)
    allowed = plain["command_whitelist"]
    commands = "any command" if allowed is None else ", ".join(map(printable, allowed)) or "no command"
    place = " ".join(printable(plain[key]) for key in ("image", "default_work_dir") if plain.get(key))
    return address, plain["kind"], place or "-", commands
