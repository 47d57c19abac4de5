"""run: code in a sandbox, or wherever --backend says."""

from __future__ import annotations

import os
from typing import Any

import click

from redoma.lib.errors import InvalidRequest
from redoma.models import Language

from .completion import files
from .emit import wants_json
from .options import Lang, limits_and_context, run_options
from .plain import hint_at_input, run_code
from .result import show
from .source import read_source
from .state import State


@click.command("run", options_metavar="[OPTIONS]")
@click.argument("source", shell_complete=files)
@click.argument("arguments", nargs=-1, shell_complete=files)
@click.option(
    "--lang",
    type=Lang(),
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
      redoma run --lang javascript 'console.log(6 * 7)'
      redoma run --lang bash --backend native --cwd . 'ls | wc -l'
    """
    if source == "-" and given["pass_stdin"]:
        raise InvalidRequest("--stdin was given with `-`", why="the code itself comes from there", next="use a file")
    options = run_options(given)
    if state.server is not None:
        if cwd is not None:
            raise InvalidRequest("--cwd was given with --server", why="it is about this machine", next="leave it out")
        return _run_there(
            state,
            source,
            lang,
            {**options, "args": arguments},
            given["output_dir"],
            force=given["force"],
            with_input=given["pass_stdin"],
        )
    return run_code(
        state,
        source,
        arguments,
        lang,
        cwd,
        options=options,
        output_dir=given["output_dir"],
        force=given["force"],
        with_input=given["pass_stdin"],
    )


def _run_there(
    state: State,
    source: str,
    lang: Language | None,
    options: dict[str, Any],
    output_dir: str | None,
    *,
    force: bool,
    with_input: bool,
) -> int:
    """Run it on the service that was named with --server."""
    code, language, inline, _ = read_source(source, lang, state)
    del options["whole_output"]
    for name in ("checkpoint", "project"):
        if options.pop(name) is not None:
            raise InvalidRequest(
                f"--{name} was given with --server", why="it is about this machine", next="leave it out"
            )
    if not options["label"] and not inline and source != "-":
        options["label"] = os.path.realpath(source)
    with state.client() as client, client.stream(code, language, **options) as run:
        for stream, text in run:
            if not wants_json():
                click.echo(text, nl=False, err=stream == "stderr")
        status = show(run.result, outputs=options["outputs"], output_dir=output_dir, force=force, with_value=inline)
    if not with_input:
        hint_at_input(run.result, source)
    return status
