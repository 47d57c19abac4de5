"""approvals: questions that wait for a person, decisions, and pins."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

import click
import msgspec

from .emit import emit, emit_list, json_option, shown, table
from .options import audit_log
from .state import State

if TYPE_CHECKING:
    from redoma.approval import Ledger, LedgerEntry

_COLOURS = {"open": "yellow", "approved": "green", "used": "green"}

_reason = click.option("--reason", required=True, help="Say why, for the record.")


@click.group("approvals")
def approvals() -> None:
    """List, show and decide what waits for a person.

    \b
    Examples:
      redoma approvals list
      redoma approvals show 3f2a9c
      redoma approvals approve 3f2a9c --reason "reviewed, it only reads"
      redoma approvals approve 3f2a9c --reason "nightly check" --pin-until 2030-01-31
      redoma approvals deny 3f2a9c --reason "not on a Friday"
    """


def _ledger(state: State) -> Ledger:
    from redoma.approval import Ledger
    from redoma.approval.store import open_store
    from redoma.config import state_directory

    audit = audit_log(state).append if state.config.audit.enabled else lambda kind, run, data: None
    approval = state.config.approval
    return Ledger(open_store(state_directory()), audit, separate=approval.separate, expires=approval.expires)


@approvals.command("list")
@click.option("--all", "everything", is_flag=True, help="Include those that were decided.")
@json_option
@click.pass_obj
def list_(state: State, everything: bool) -> None:
    """List what waits for an answer, oldest first."""
    from redoma.approval import STATES

    found = _ledger(state).entries(*(STATES if everything else ("open",)))
    emit_list(
        found, _row, empty="nothing is on the list" if everything else "nothing waits for an answer", shape=_shape
    )


@approvals.command("show")
@click.argument("id")
@json_option
@click.pass_obj
def show(state: State, id: str) -> None:  # noqa: A002 - the argument's name on the command line
    """Show the whole question: command, reasoning, risks and effect. A prefix of its ID is enough."""
    from redoma.approval import describe

    ledger = _ledger(state)

    def lines(entry: LedgerEntry) -> Iterator[str]:
        described = describe(entry.ask)
        yield described.text
        if not described.whole:
            yield f"\nAll of it: redoma approvals show --json {entry.ask.id}"
        yield f"\n{_verdict(entry)}"

    emit(ledger.load(ledger.whole_id(id)), lines, shape=_shape)


@approvals.command("approve")
@click.argument("id")
@_reason
@click.option(
    "--pin-until",
    metavar="DATE",
    type=click.DateTime(["%Y-%m-%d"]),
    help="Approve it for good, to the end of that day.",
)
@json_option
@click.pass_obj
def approve(state: State, id: str, reason: str, pin_until: datetime | None) -> None:  # noqa: A002 - as above
    """Approve exactly this: for one run, or with --pin-until for any number of unchanged runs."""
    until = None
    if pin_until is not None:
        from redoma.approval import LAST_YEAR

        if pin_until.year >= LAST_YEAR:
            raise click.BadParameter(f"a pin ends before {LAST_YEAR}: give an earlier date", param_hint="--pin-until")
        until = pin_until.replace(tzinfo=UTC) + timedelta(days=1)
    _answer(state, id, "approved", reason, pinned_until=until)


@approvals.command("deny")
@click.argument("id")
@_reason
@json_option
@click.pass_obj
def deny(state: State, id: str, reason: str) -> None:  # noqa: A002 - as above
    """Refuse a request."""
    _answer(state, id, "denied", reason)


@approvals.command("pins")
@json_option
@click.pass_obj
def pins(state: State) -> None:
    """List the pins: approvals of exactly this content, under this policy, until a date."""
    found = [entry for entry in _ledger(state).entries("approved") if entry.approval and entry.approval.pinned]
    emit_list(found, _row, empty="nothing is pinned", shape=_shape)


@approvals.command("unpin")
@click.argument("id")
@_reason
@json_option
@click.pass_obj
def unpin(state: State, id: str, reason: str) -> None:  # noqa: A002 - as above
    """Remove a pin: the next run needs approval again."""
    from redoma.pipeline.intake import user

    ledger = _ledger(state)
    ask = ledger.unpin(ledger.whole_id(id), by=user(), reason=reason)
    emit(ledger.load(ask.id), _decided, shape=_shape)


def _answer(
    state: State,
    prefix: str,
    decision: Literal["approved", "denied"],
    reason: str,
    *,
    pinned_until: datetime | None = None,
) -> None:
    from redoma.pipeline.intake import user

    ledger = _ledger(state)
    ask = ledger.load(ledger.whole_id(prefix)).ask
    # The approver is the user by the operating system: no option or variable changes that.
    ledger.answer(ledger.reply(ask, decision, approver=user(), reason=reason, pinned_until=pinned_until))
    emit(ledger.load(ask.id), _decided, shape=_shape)


def _decided(entry: LedgerEntry) -> list[str]:
    table([_row(entry)])
    return [_verdict(entry)]


def _row(entry: LedgerEntry) -> tuple[str, ...]:
    ask = entry.ask
    state = click.style(entry.state, fg=_COLOURS.get(entry.state, "red"))
    what = shown(ask.label or ask.request.text, 60)
    until = entry.approval.expires if entry.approval and entry.state == "approved" else ask.expires
    return ask.id, state, ask.level.value, f"{until:%Y-%m-%d %H:%M}", shown(ask.requester, 24), what


def _verdict(entry: LedgerEntry) -> str:
    said = entry.approval
    if said is None:
        return {"open": "It waits for an answer.", "expired": "Nobody has answered in time."}.get(
            entry.state, entry.state
        )
    until = f" until {said.expires:%Y-%m-%d %H:%M} UTC" if said.decision == "approved" else ""
    pinned = f", pinned (used {entry.uses} times)" if said.pinned else ""
    who = f"{shown(said.approver, 60)} at {said.at:%Y-%m-%d %H:%M} UTC: {shown(said.reason, 200)}"
    return f"{entry.state}{until}{pinned}, by {who}"


def _shape(entry: LedgerEntry) -> dict[str, Any]:
    """Return an entry as JSON, with file contents in base64."""
    return {"id": entry.ask.id, "state": entry.state, **msgspec.to_builtins(entry)}
