"""lua: a script that runs commands of configured executors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from redoma.lib.errors import InvalidRequest

from .completion import files
from .emit import json_option
from .options import Size
from .result import follow, show
from .source import read_source
from .state import State


@click.command("lua", context_settings={"allow_interspersed_args": False})
@click.option("--backend", default="auto", show_default=True, help="Run it on auto, jail or native (no isolation).")
@click.option(
    "--policy",
    metavar="PACK",
    help="Judge script and commands by: none, standard, script, strict or core.  [default: configured]",
)
@click.option("--time", "time", type=float, help="Limit the time it may take, its commands included, in seconds.")
@click.option("--cpu", type=float, help="Limit the processor time of the script itself, in seconds.")
@click.option("--memory", type=Size(), help="Limit the memory of the script itself, such as 256MiB.")
@click.option("--require", multiple=True, metavar="LAYER", help="Fail unless this isolation layer is in force.")
@click.option("--reason", default="", help="Say why, for the record.")
@json_option
@click.argument("script", shell_complete=files)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def lua(state: State, /, script: str, arguments: tuple[str, ...], **given: Any) -> int:
    """Run a Lua script: a FILE, or `-` for standard input.

    It runs in a cell. What it can do outside is to run commands of configured executors: require("exec").

    \b
    Examples:
      redoma lua deploy.lua staging
      redoma lua --time 300 nightly.lua
    """
    from redoma.frontends.lua import Scripts
    from redoma.pipeline.sync import Executor, LiveRun

    if script != "-" and not Path(script).exists():
        raise InvalidRequest(f"there is no file {script}", why="a script is a file, or `-`", next="check the path")
    code = read_source(script, "lua", state).code
    limits = {name: given[name] for name in ("time", "cpu", "memory") if given[name] is not None}
    options = {name: given[name] for name in ("backend", "policy", "require", "reason")}
    with Executor(state.attended) as executor:
        scripts = Scripts(executor.core)
        argv = ("stdin" if script == "-" else script, *arguments)
        asked = scripts.ask(code, argv, {**options, "limits": limits})  # type: ignore[typeddict-item]
        try:
            result = follow(LiveRun(executor.core.follow(asked, whole=True), executor))
        finally:
            executor.wait(scripts.aclose())
    return show(result)
