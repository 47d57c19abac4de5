"""A person has to say yes: to exactly this request, under exactly this policy, or to exactly this effect.

Theory of operation. What needs a person is a `Judged` submission. Everything in it that decides what would happen goes
into one digest, and an answer is an answer to that digest: whatever is altered, be it one byte of an input file, a rule
of the policy or a change in the effect, has another digest, and nobody has said yes to that.

    Judged ─▶ Gate ─▶ a pin, or an approval that was not used yet, of this digest? ──▶ it goes on
                └──▶ post it in the ledger ─▶ ask the approver ─▶ answer ─▶ take ─────▶ it goes on, once

The *ledger* (SQLite, `store`) is the one place where an answer becomes good: whoever answers, a console, a callback or
`redoma approvals` in another process, writes it there, and whoever wants to run takes it from there. The first answer
counts. Taking is one transaction, before anything runs: of two who try one gets it, and after a kill nobody does.
Each step is written to the audit log inside its transaction; what can't be recorded doesn't happen.

    open ──▶ approved ──▶ used          approved for a `pin`: taken any number of times, until it is `unpinned`
      ├────▶ denied
      └────▶ expired

No approver means no. So does one that fails, that answers something else than what it was asked, that is the requester
where they have to be two, or that nobody hears from in time.
"""

from __future__ import annotations

from .approvers import NOBODY, Approver, Callback, Chain, Deny, Queue
from .ask import Ask, digest_of, setting_of
from .console import Console
from .gate import Gate, Verdict
from .ledger import LAST_YEAR, STATES, Entry, Ledger
from .show import describe

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
    "Entry",
    "Gate",
    "Ledger",
    "Queue",
    "Verdict",
    "describe",
    "digest_of",
    "setting_of",
]
