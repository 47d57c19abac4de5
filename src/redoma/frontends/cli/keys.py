"""keys: who may use the service, and for what."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec

from .emit import emit, emit_list, json_option, local_time, shown
from .state import State

if TYPE_CHECKING:
    from redoma.frontends.http.keys import Key, Keys


@click.group("keys")
def keys() -> None:
    """Make, list and revoke the keys of the service.

    \b
    Examples:
      redoma keys create agent --scope run --days 30
      redoma keys create maria --scope approve --scope audit
      redoma keys list
      redoma keys revoke agent
    """


def _keys(state: State) -> Keys:
    from redoma.frontends.http.keys import Keys
    from redoma.frontends.http.store import open_store

    return Keys(open_store(state.config.state))


@keys.command("create")
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    default=("run",),
    show_default=True,
    type=click.Choice(["run", "approve", "audit", "admin"]),
    help="Let it run code, answer what others ask, read all runs and the record, or everything.",
)
@click.option("--days", type=click.FloatRange(min=0, min_open=True), help="End it after that many days.")
@click.option("--concurrency", default=16, show_default=True, type=int, help="Limit its runs at one time.")
@click.option("--rate", default=50.0, show_default=True, type=float, help="Limit its requests a second.")
@json_option
@click.pass_obj
def create(state: State, name: str, scopes: tuple[str, ...], days: float | None, concurrency: int, rate: float) -> None:
    """Make a key and print it. It is shown this once; only a hash of it is kept."""
    seconds = None if days is None else days * 86400
    key, text = _keys(state).create(name, scopes, seconds=seconds, concurrency=concurrency, rate=rate)

    def shape(text: str) -> dict[str, Any]:
        return {"key": msgspec.to_builtins(key), "text": text}

    emit(text, lambda text: [text], shape=shape)


@keys.command("list")
@json_option
@click.pass_obj
def list_(state: State) -> None:
    """List all keys, also those that were revoked."""
    emit_list(_keys(state).list(), _row, empty="There is no key. Next: redoma keys create NAME")


@keys.command("revoke")
@click.argument("name")
@json_option
@click.pass_obj
def revoke(state: State, name: str) -> None:
    """Revoke a key, by its name or id. A server that runs refuses it within a second."""
    emit(_keys(state).revoke(name), lambda key: [f"Revoked {key.name}."])


def _row(key: Key) -> tuple[str, ...]:
    now = datetime.now(UTC)
    if key.revoked is not None:
        state = click.style("revoked", fg="red")
    elif key.expires is not None and key.expires <= now:
        state = click.style("expired", fg="red")
    else:
        state = click.style("good", fg="green")
    until = f"until {local_time(key.expires.timestamp())}" if key.expires else "for good"
    made = local_time(key.created.timestamp())
    limits = f"{key.concurrency} at a time, {key.rate:g}/s"
    return key.id, state, shown(key.name, 40), " ".join(key.scopes), f"made {made}", until, limits
