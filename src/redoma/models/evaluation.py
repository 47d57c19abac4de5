"""What policy says of a request, and what a person says where policy wants one to decide."""

from __future__ import annotations

import enum
from datetime import datetime
from typing import Literal

import msgspec

from .reach import HOST, Reach


class Decision(enum.Enum):
    """What policy says of a request. Ordered: the strictest match wins."""

    ALLOW = "allow"
    PROMPT = "prompt"
    FORBID = "forbid"

    @property
    def rank(self) -> int:
        return _RANKS[self]

    # A plain Enum has no order and a StrEnum would sort by spelling ("forbid" < "prompt"), so each is spelt out.
    def __lt__(self, other: Decision) -> bool:
        return self.rank < other.rank

    def __le__(self, other: Decision) -> bool:
        return self.rank <= other.rank

    def __gt__(self, other: Decision) -> bool:
        return self.rank > other.rank

    def __ge__(self, other: Decision) -> bool:
        return self.rank >= other.rank

    def __str__(self) -> str:
        return self.value


_RANKS = {decision: rank for rank, decision in enumerate(Decision)}


class Level(enum.StrEnum):
    """How much stands between a request and its effects, derived from the evaluation and the request."""

    L1 = "L1"
    """Inline: it only looks."""
    L2 = "L2"
    """Constrained: it writes, within limits."""
    L3 = "L3"
    """Contained: code that nobody has reviewed."""
    L4 = "L4"
    """A person has to say yes."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One rule that matched one place."""

    rule: str
    decision: Decision
    reason: str
    line: int = 0
    column: int = 0
    """1-based, in characters; 0 when the finding is about the request as a whole."""
    text: str = ""
    """What matched, shortened for reading."""
    suggestion: str = ""
    permit: str = ""
    """Lines of a redoma.yaml that would permit it, if it was not found by a rule of the policy."""
    out_of_reach: str = ""
    """Why it doesn't count in this run: what it is about can't be touched, or not yet."""


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that policy says of a request."""

    policy: str
    """The pack's name; `none` when the static checks were switched off."""
    digest: str
    """SHA-256 of the policy's rules: two evaluations with one digest followed the same rules."""
    findings: tuple[Finding, ...] = ()
    reach: Reach = HOST
    """What the run could touch. The decision holds for this reach only."""

    @property
    def decision(self) -> Decision:
        return max((finding.decision for finding in self.findings), default=Decision.ALLOW)

    @property
    def deciding(self) -> tuple[Finding, ...]:
        """The findings that made the decision what it is."""
        decision = self.decision
        return tuple(f for f in self.findings if f.decision is decision and decision is not Decision.ALLOW)


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """A person's answer to exactly one request under one policy, or to one effect."""

    id: str
    """Of the question."""
    digest: str
    decision: Literal["approved", "denied", "expired"]
    approver: str
    reason: str
    at: datetime
    expires: datetime
    """When an approval that was not used, or a pin, is void."""
    pinned: bool = False
    """Good for any number of uses until it expires, for exactly the same content under the same policy."""
