"""Approvals: a person must approve exactly this request under exactly this policy, or exactly this effect.

Theory of operation. What needs an approval is a `Judged` submission. Everything in it that determines what would happen
goes into one digest, and an answer is bound to that digest. If anything changes (one byte of an input file, a rule of
the policy, a change in the effect), the digest differs, and the approval doesn't apply.

    Judged ─▶ Gate ─▶ a pin, or an approval that was not used yet, of this digest? ──▶ it goes on
                └──▶ post it in the ledger ─▶ ask the approver ─▶ answer ─▶ take ─────▶ it goes on, once

The *ledger* (an SQLite database) is the only place where an answer becomes valid. The answer of every approver (a
console, a callback, `redoma approvals` in another process) is written there, and every run takes it from there. The
first answer counts. Taking is one transaction, before anything runs: if two runs try, one gets the approval; if that
run is killed, the approval is still used up. Each step is written to the audit log inside its transaction; what can't
be recorded doesn't happen.

    open ──▶ approved ──▶ used          approved for a `pin`: taken any number of times, until it is `unpinned`
      ├────▶ denied
      └────▶ expired

Without an approver the answer is no. It is also no if the approver fails, answers another question, doesn't answer in
time, or is the requester although they must differ (`separate`).
"""

from __future__ import annotations

from .approvers import NOBODY, Approver, Callback, Chain, Deny, Queue
from .ask import Ask, configuration_digest, digest_of
from .gate import Gate, Verdict
from .ledger import LAST_YEAR, STATES, Ledger, LedgerEntry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .console import Console as Console
    from .show import describe as describe

__all__ = [
    "LAST_YEAR",
    "NOBODY",
    "STATES",
    "Approver",
    "Ask",
    "Callback",
    "Chain",
    "Console",
    "Deny",
    "Gate",
    "Ledger",
    "LedgerEntry",
    "Queue",
    "Verdict",
    "configuration_digest",
    "describe",
    "digest_of",
]


def __getattr__(name: str) -> Any:
    if name == "Console":
        from .console import Console

        return Console
    if name == "describe":
        from .show import describe

        return describe
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
