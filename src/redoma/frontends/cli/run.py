"""run: code in a sandbox, or wherever --backend says."""

from __future__ import annotations

import os
from typing import Any

import click

from redoma.lib.errors import InvalidRequest
from redoma.models import Language

from .completion import files
from .emit import wants_json
from .options import State, limits_and_context, output_options, run_options
from .result import follow, show
from .source import BASH_MEANT, is_bash, read_source, undefined_name


@click.command("run", options_metavar="[OPTIONS]")
@click.argument("source", shell_complete=files)
@click.argument("arguments", nargs=-1, shell_complete=files)
@click.option(
    "--lang",
    type=click.Choice(["python", "bash"]),
    help="Read it as this.  [default: by the file's name, else python]",
)
@limits_and_context
@click.option("--cwd", metavar="DIR", help="Work in this directory of the host, on native.  [default: an empty one]")
@click.pass_obj
def run(
    state: State,
    /,
    source: str,
    arguments: tuple[str, ...],
    lang: Language | None,
    cwd: str | None,
    **given: Any,
) -> int:
    """Run code: a FILE, `-` for standard input, or the code itself.

    ARGUMENTS are the code's own, as sys.argv or $1; write those that begin with a dash after `--`.

    It works in an empty directory of its own, also on native, unless --cwd or --workspace says otherwise. The value of
    a last expression, as in `6 * 7`, is printed by jail and monty only.

    \b
    Examples:
      redoma run 'print(6 * 7)'
      redoma run analyse.py -f data.csv --time 10 --memory 256MiB
      redoma run convert.py 2025 2026 -- --verbose
      redoma run plot.py -f data.csv -o '*.png' --output-dir plots
      echo 'print(1)' | redoma run -
      redoma run --lang bash --backend native --cwd . 'ls | wc -l'
    """
    from redoma.pipeline.sync import Executor

    if source == "-" and given["pass_stdin"]:
        raise InvalidRequest("--stdin was given with `-`", why="the code itself comes from there", next="use a file")
    code, language, inline, guessed = read_source(source, lang)
    if given["label"] is None and not inline and source != "-":
        given["label"] = os.path.realpath(source)
    with Executor(state.attended) as executor:
        live = executor.stream(code, language, **run_options(given), args=arguments, cwd=cwd)
        result = follow(live)
        status = show(result, **output_options(given), with_value=inline)
    if guessed and not wants_json() and result.exception in ("SyntaxError", "NameError") and is_bash(code):
        if result.exception == "SyntaxError":
            click.echo(f"redoma: not valid Python; {BASH_MEANT}", err=True)
        elif undefined := undefined_name(code):
            click.echo(f"redoma: as Python this only fails: {undefined!r} is not defined; {BASH_MEANT}", err=True)
    return status
