"""lua: a script that runs commands of configured executors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from redoma.lib.errors import InvalidRequest

from .common import Size, State, json_option, read_source
from .complete import files
from .runs import follow, show


@click.command("lua", context_settings={"allow_interspersed_args": False})
@click.option("--backend", default="auto", show_default=True, help="auto, jail, or native: without isolation.")
@click.option(
    "--policy",
    metavar="PACK",
    help="Of the script and of its commands: none, standard, script, strict or core.  [default: configured]",
)
@click.option("--time", "time", type=float, help="Seconds it may take, its commands included.")
@click.option("--cpu", type=float, help="Seconds of processor time, of the script itself.")
@click.option("--memory", type=Size(), help="Memory of the script itself, such as 256MiB.")
@click.option("--require", multiple=True, metavar="LAYER", help="Fail unless this isolation layer is in force.")
@click.option("--reason", default="", help="Why, for the record.")
@json_option
@click.argument("script", shell_complete=files)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def lua(state: State, /, script: str, arguments: tuple[str, ...], as_json: bool, **given: Any) -> int:
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
    code = read_source(script, "lua").code
    limits = {name: given[name] for name in ("time", "cpu", "memory") if given[name] is not None}
    options = {name: given[name] for name in ("backend", "policy", "require", "reason")}
    with Executor(state.attended) as executor:
        scripts = Scripts(executor.core)
        argv = ("stdin" if script == "-" else script, *arguments)
        asked = scripts.ask(code, argv, {**options, "limits": limits})  # type: ignore[typeddict-item]
        try:
            result = follow(LiveRun(executor.core.follow(asked, whole=True), executor), as_json)
        finally:
            executor.wait(scripts.aclose())
    return show(result, as_json, {"outputs": (), "output_dir": None, "force": False})
