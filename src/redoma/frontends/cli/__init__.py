"""The command line.

`redoma --help` is what people type first and most, so it answers from text that is kept ready (`help.py`, which a test
compares with what click would say) without loading click, let alone the rest of Redoma.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # started with it closed (`>&-`): Python then has nothing to write to
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - for as long as we run
    try:
        status = _run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        status = 141  # as in `redoma --help | head -n 1`; see `options.READER_GONE`
    except OSError as error:
        sys.stderr.write(f"redoma: standard output can't be written: {error.strerror}\n")
        status = 125
    if status and not sys.stdout.closed:
        # What is still unwritten would be tried once more at exit, and complained about.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(status)


def _run(arguments: list[str]) -> int:
    completing = "_REDOMA_COMPLETE" in os.environ  # a shell asks click, with the words in its environment
    if arguments in ([], ["--help"], ["-h"], ["help"]) and not completing:
        from .help import HELP

        sys.stdout.write(HELP)
        return 0
    if arguments == ["--version"]:
        from redoma import __version__

        sys.stdout.write(f"redoma {__version__}\n")
        return 0
    from .app import run

    return run(arguments)
