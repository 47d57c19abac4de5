"""The group of all commands, and the one place where an error becomes a message and an exit status."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO

import click

import redoma
from redoma.errors import RedomaError

from . import configs, host, records, runs
from .common import FAILED, State, print_json


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit status: the code's own; 124 time-out, 137 memory or a kill, 126 refused, 125 Redoma itself failed.",
)
@click.option(
    "--config", type=click.Path(path_type=Path), metavar="FILE", help="Use this redoma.yaml as well; it is trusted."
)
@click.version_option(redoma.__version__, prog_name="redoma", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context, config: Path | None) -> None:
    """Run code and commands that nobody has reviewed, safely.

    \b
    Examples:
      redoma run 'print(6 * 7)'            Python in a sandbox
      redoma run script.py -f data.csv     a file, with data beside it
      redoma check --lang bash 'rm -rf /'  the verdict, without running
      redoma exec app:shell -- git status  a configured executor
      redoma audit tail                    what ran lately
      redoma doctor                        what this host offers
    """
    context.obj = State(config)


for command in (
    *(runs.run, runs.evaluate, runs.execute, runs.check),
    *(records.audit, configs.config, host.doctor, host.completion),
):
    cli.add_command(command)


def run(arguments: list[str]) -> int:
    """Run the command line. Whatever goes wrong ends as a message: what, why and what next; never as a traceback."""
    _make_writable(sys.stdout)
    _make_writable(sys.stderr)
    as_json = "--json" in arguments
    try:
        return int(cli.main(arguments, prog_name="redoma", standalone_mode=False) or 0)
    except click.exceptions.Abort:
        click.echo("redoma: interrupted", err=True)
        return 130
    except click.ClickException as error:
        if as_json:
            print_json({"status": "failed", "error": error.format_message()})
        else:
            error.show()
    except RedomaError as error:
        if as_json:
            print_json({"status": "failed", "error": error.what, "why": error.why, "next": error.next})
        else:
            click.echo(
                click.style("redoma: ", fg="red") + error.what + (f": {error.why}" if error.why else ""), err=True
            )
            if error.next:
                click.echo(f"  next: {error.next}", err=True)
    return FAILED


def _make_writable(stream: IO[str]) -> None:
    """A terminal that can't show a character gets an escape for it, not a UnicodeEncodeError."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
