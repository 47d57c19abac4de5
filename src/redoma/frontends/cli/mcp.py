"""mcp: Redoma as tools for agents, by the Model Context Protocol; and the configuration of clients."""

from __future__ import annotations

from pathlib import Path

import click

from redoma.lib.errors import RedomaError
from redoma.lib.extras import pip_install

from .emit import confirm, note
from .options import project_directory
from .state import State
from .try_ import current_project


@click.group("mcp", invoke_without_command=True)
@click.option("--project", metavar="DIR", help="Let try_command work on this.  [default: the current project]")
@click.pass_context
def mcp(context: click.Context, project: str | None) -> None:
    """Serve tools to an agent, over standard input and output (MCP).

    Clients start this by themselves, once `redoma mcp install` has told them how. `redoma serve` has the same tools at
    /mcp.

    \b
    Examples:
      redoma mcp install claude-code
      redoma mcp install cursor --project ~/code/app
    """
    if context.invoked_subcommand is not None:
        return
    project = project_directory(project)
    _serve(context.obj, Path(project) if project is not None else current_project(Path.cwd()))


def _serve(state: State, project: Path) -> None:
    try:
        from redoma.frontends.mcp.stdio import serve
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith(("mcp", "pydantic")):
            raise
        raise _needs_package(error.name or "mcp") from None
    serve(state.config, project)


def _needs_package(missing: str) -> RedomaError:
    return RedomaError("this needs the package mcp", why=f"there is no {missing}", next=pip_install("redoma[mcp]"))


@mcp.command("install")
@click.argument("client", type=click.Choice(["claude-code", "cursor", "vscode", "codex"]))
@click.option("--project", metavar="DIR", help="Let try_command work on this, wherever the client is started.")
@click.option("--yes", is_flag=True, help="Don't ask before writing.")
def install(client: str, project: str | None, yes: bool) -> int:
    """Add Redoma to the configuration of a client, after showing what would be written.

    \b
    Examples:
      redoma mcp install claude-code
      redoma mcp install vscode --yes
    """
    from importlib.util import find_spec

    from redoma.frontends.mcp.install import plan

    if find_spec("mcp") is None:  # the client would only say that the server doesn't start
        raise _needs_package("mcp")
    planned = plan(client, project_directory(project))
    if planned.is_there:
        note(f"{planned.path} has it already")
        return 0
    click.echo(f"{planned.path} would have this:\n\n{planned.shown}\n")
    if not yes and not confirm("Write it?", otherwise="add --yes to write it without a question"):
        note("nothing was written")
        return 1
    planned.write()
    note(f"written. {planned.next}")
    return 0
