"""The top-level help, kept ready so that it needs no click. `python -m redoma.frontends.cli.help` writes it anew."""

from __future__ import annotations

HELP = """\
Usage: redoma [OPTIONS] COMMAND [ARGS]...

  Run code and commands that nobody has reviewed, safely.

  Examples:
    redoma run 'print(6 * 7)'            Python in a sandbox
    redoma run script.py -f data.csv     a file, with data beside it
    redoma check --lang bash 'rm -rf /'  the verdict, without running
    redoma exec app:shell -- git status  a configured executor
    redoma try make clean                what it would change, before it does
    redoma audit tail                    what ran lately
    redoma doctor                        what this host offers

Options:
  --config FILE        Use this redoma.yaml as well; it is trusted.
  --log-level LEVEL    Log events: debug, info, warning, error.
  --log-format FORMAT  Log as text, or as json lines.
  --log-file FILE      Append events here, not to standard error.
  --version            Show the version and exit.
  -h, --help           Show this message and exit.

Commands:
  approvals    List, show and decide what waits for a person.
  audit        Read, search and verify the record of what ran, for whom,...
  changes      Apply, discard or undo what runs in overlays did to a project.
  check        Print the verdict, level and backend, without running anything.
  checkpoints  Settle projects in which a run on the host was cut short.
  completion   Print the completion script of a SHELL.
  config       Show and check the configuration, and trust project files.
  doctor       Show what this host offers, what is missing, and what would...
  eval         Evaluate Python on Monty and print the answer as a dictionary.
  exec         Run a command, without a shell.
  help         Show the help of a command, or of all of them.
  lua          Run a Lua script: a FILE, or `-` for standard input.
  monitor      Check this machine by rules that run in a sandbox.
  output       Print what a run with a long output printed; the beginning...
  policy       Explain a verdict, try another policy, and learn permits.
  run          Run code: a FILE, `-` for standard input, or the code itself.
  try          See what a command would do to the current project, then let...

  Exit status: the code's own; 2 wrong usage, 124 time-out, 137 memory, output
  or a kill, 126 refused, 125 Redoma itself failed.
"""


def render() -> str:
    """What click itself would say on a terminal of 80 columns."""
    from click import Context

    from .app import cli

    return cli.get_help(Context(cli, info_name="redoma", terminal_width=80, **cli.context_settings)) + "\n"


if __name__ == "__main__":
    from pathlib import Path

    source = Path(__file__).read_text()
    Path(__file__).write_text(source.replace(HELP, render(), 1))
