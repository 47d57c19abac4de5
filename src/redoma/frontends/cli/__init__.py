"""The command line.

`redoma --help` is what people type first and most, so it answers from text that is kept ready (`help.py`, which a test
compares with what click would say) without loading click, let alone the rest of Redoma.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    arguments = sys.argv[1:]
    completing = "_REDOMA_COMPLETE" in os.environ  # a shell asks click, with the words in its environment
    if arguments in ([], ["--help"], ["-h"]) and not completing:
        from .help import HELP

        sys.stdout.write(HELP)
    elif arguments == ["--version"]:
        from redoma import __version__

        sys.stdout.write(f"redoma {__version__}\n")
    else:
        from .app import run

        sys.exit(run(arguments))
