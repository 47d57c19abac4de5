"""The command line.

`redoma --help` is typed first and most often, so it is answered from a prepared text (`help.txt`, which a test compares
with click's output) without loading click, let alone the rest of Redoma.
"""

from __future__ import annotations

import _signal
import atexit
import gc
import io
import os
import sys

TYPE_CHECKING = False  # type checkers recognise the name; importing `typing` would take longer than the help
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import NoReturn


def main() -> NoReturn:
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # started with it closed (`>&-`): Python sets it to None
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - for as long as we run
    gc.set_threshold(20_000)  # the first objects are modules, and collecting garbage among them takes a tenth longer
    leave(status_of(sys.argv[1:]))


def status_of(arguments: list[str]) -> int:
    """Run a command and return its exit status, however it ends."""
    try:
        status = _run(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:  # while we were still loading; later it is handled where it happens
        sys.stderr.write("redoma: interrupted\n")
        status = 130
    except SystemExit as leaving:  # at a signal: see `begin`
        status = leaving.code if isinstance(leaving.code, int) else 1
    except BrokenPipeError:
        status = 141  # as in `redoma --help | head -n 1`; see `state.READER_GONE`
    except OSError as error:
        sys.stderr.write(f"redoma: standard output can't be written: {error.strerror}\n")
        status = 125
    return status


def leave(status: int, *, last: Callable[[], None] | None = None) -> NoReturn:
    """End the process at once. The command has closed what it opened; finalising the interpreter, module by module,
    would only take time, and so would waiting for threads that hang in a system call. `last` is called after all output
    has been written.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # its reader is gone, which the status already says; or it is closed
            continue
    try:
        if last is not None:
            last()
    finally:
        os._exit(status)


def _run(arguments: list[str]) -> int:
    completing = "_REDOMA_COMPLETE" in os.environ  # a shell asks click, with the words in the environment
    if arguments in ([], ["--help"], ["-h"], ["help"]) and not completing:
        with open(os.path.join(os.path.dirname(__file__), "help.txt"), encoding="utf-8") as file:
            sys.stdout.write(file.read())
        return 0
    if arguments == ["--version"]:
        from redoma import __version__

        sys.stdout.write(f"redoma {__version__}\n")
        return 0
    if not completing and arguments[0] in ("run", "eval"):
        from . import warm

        if (status := warm.run(arguments)) is not None:
            return status
    begin()
    if not completing:
        if not _is_warm():
            _start_ahead(arguments)
        if is_plain(arguments):
            return _run_plain(arguments)
    from .app import run

    return run(arguments)


NATIVE = ["exec", "--backend", "native", "--"]


def is_plain(arguments: list[str]) -> bool:
    """Return whether these words are one of the few forms that need no click: see `plain`."""
    if "REDOMA_SERVER" in os.environ:
        return False
    if arguments[:4] == NATIVE:
        return len(arguments) > 4
    return len(arguments) == 2 and arguments[0] in ("run", "eval") and not arguments[1].startswith("-")


def _run_plain(arguments: list[str]) -> int:
    """Run a command that needs no click. What explains an error is loaded only if it fails."""
    from redoma.lib.extras import load_small

    gc.disable()  # until everything is loaded: see `State.executor`
    try:
        load_small()
        from .plain import run

        status = run(arguments)
        sys.stdout.flush()
        return status
    except (Exception, KeyboardInterrupt) as error:
        from .app import explain

        return explain(arguments, error)


def _is_warm() -> bool:
    """Whether this is a process of the user's own service, which has made a cell already."""
    module = sys.modules.get("redoma.frontends.cli.warm")
    return module is not None and bool(module.inside)


def begin() -> None:
    """Set up what every command needs: streams that accept any text, and an orderly end at a signal."""
    for stream in (sys.stdout, sys.stderr):
        # A character that the terminal can't show is escaped, instead of raising UnicodeEncodeError.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    for number in (_signal.SIGTERM, _signal.SIGHUP):
        _signal.signal(number, _end)
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _end)


_RETRY = 0.01  # seconds
_deferred = 0  # a signal that came during an import


def _end(number: int, frame: FrameType | None) -> None:
    """End as for Ctrl-C: what runs is ended and recorded first. The default handler would leave it running.

    An exception in the middle of an import can leave the interpreter's import lock held, and then every thread that
    imports something hangs. So during an import the signal is only noted, and a timer calls this again.
    """
    global _deferred
    if number == _signal.SIGALRM:
        number = _deferred
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            _deferred = number
            _signal.signal(_signal.SIGALRM, _end)
            _signal.setitimer(_signal.ITIMER_REAL, _RETRY)
            return
        frame = frame.f_back
    if number == _signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)


def _start_ahead(arguments: list[str]) -> None:
    """If a cell will be needed, start the interpreter for it before anything else is loaded: that takes as long as
    loading the rest. A wrong guess costs a moment of another processor; the interpreter ends with us.
    """
    command, *words = arguments
    if command not in ("run", "eval") or sys.platform != "linux" or "REDOMA_SERVER" in os.environ:
        return
    others = ("--backend", "--workspace", "--project", "--environment", "--package")
    if any(word in ("-h", "--help") or word.startswith(others) for word in words):
        return
    from redoma.backends.jail import start

    if command == "run":
        start.ahead()
    else:
        from redoma.backends.monty import worker

        start.ahead(worker.programs, preload=(worker.PRELOAD,))
