"""serve: Redoma over HTTP, with a dashboard."""

from __future__ import annotations

from pathlib import Path

import click

from redoma.lib.errors import RedomaError
from redoma.lib.extras import pip_install

from .state import State


@click.command("serve")
@click.option("--host", default="127.0.0.1", show_default=True, help="Listen on this address.")
@click.option("--port", default=8800, show_default=True, type=click.IntRange(0, 65535), help="Listen on this port.")
@click.option(
    "--socket", "path", type=click.Path(path_type=Path), metavar="PATH", help="Listen on this Unix socket instead."
)
@click.option("--e2b-port", type=click.IntRange(0, 65535), help="Serve E2B's interface on this port, too.")
@click.option("--user", is_flag=True, help="Make `redoma run` of this user quicker instead; no HTTP, no keys.")
@click.pass_obj
def serve(state: State, host: str, port: int, path: Path | None, e2b_port: int | None, user: bool) -> None:
    """Serve runs, approvals, changes and the audit log over HTTP, with a dashboard at / and E2B's interface at /e2b.

    Every request needs a key (`redoma keys`). If there is none, one is made and shown. Put a server that speaks TLS in
    front of an address that others can reach.

    With --user, be the user's own service on a Unix socket: `redoma run` finds it there, and is as quick as Python
    itself. Results, configuration and exit statuses are the same with and without it.

    \b
    Examples:
      redoma serve
      redoma serve --user
      redoma keys create agent --scope run
      curl -H "Authorization: Bearer $KEY" -d '{"code": "print(6 * 7)"}' http://127.0.0.1:8800/v1/runs
      redoma serve --e2b-port 8801
    """
    if user:
        _serve_user(path)
        return
    try:
        from redoma.frontends.e2b.mount import endpoint
        from redoma.frontends.http import server
        from redoma.frontends.http.service import Service
    except ImportError as error:
        raise RedomaError(
            "there is no server here", why=f"{error.name} is not installed", next=pip_install("redoma[server]")
        ) from error

    service = Service(state.config)
    if (path is not None or server.is_local(host)) and not service.keys.any_good():
        key, text = service.keys.create(_unused({each.name for each in service.keys.list()}), ["admin"])
        click.echo(f"A first key was made, {key.name}, which may do everything. It is shown this once:\n\n  {text}\n")

    def ready(url: str, others: list[str]) -> None:
        for other in others:
            click.echo(f"E2B's interface is at {other}")
        click.echo(f"Redoma serves at {url}")

    more = {} if e2b_port is None else {e2b_port: endpoint(service)}
    endpoint(service).keeps_ready = e2b_port is not None
    server.serve(service, host=host, port=port, path=path, more=more, ready=ready)
    click.echo("Redoma has stopped.", err=True)


def _serve_user(path: Path | None) -> None:
    from . import user_service

    def ready(where: str) -> None:
        click.echo(f"Redoma makes `redoma run` quicker, at {where}")

    user_service.serve(path, ready, lambda what: click.echo(f"redoma: {what}", err=True))
    click.echo("Redoma has stopped.", err=True)


def _unused(names: set[str]) -> str:
    number = 1
    while (name := "admin" if number == 1 else f"admin-{number}") in names:
        number += 1
    return name
