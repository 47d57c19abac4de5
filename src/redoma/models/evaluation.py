"""The policy's verdict on a request, and a person's answer if policy prompts for one."""

from __future__ import annotations

import enum
from datetime import datetime
from typing import Literal

import msgspec

from .reach import HOST, Reach


class Decision(enum.Enum):
    """The policy's decision on a request. Ordered: the strictest match wins."""

    ALLOW = "allow"
    PROMPT = "prompt"
    FORBID = "forbid"

    @property
    def rank(self) -> int:
        return _RANKS[self]

    # A plain Enum has no order and a StrEnum would sort by spelling ("forbid" < "prompt"), so each is defined.
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
    """How strongly a request is contained, derived from the evaluation and the request."""

    L1 = "L1"
    """Inline: it only reads."""
    L2 = "L2"
    """Constrained: it writes, within limits."""
    L3 = "L3"
    """Contained: code that nobody has reviewed."""
    L4 = "L4"
    """A person must approve."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One rule that matched one place."""

    rule: str
    decision: Decision
    reason: str
    line: int = 0
    column: int = 0
    """1-based, in characters; 0 if the finding is about the request as a whole."""
    text: str = ""
    """The matched text, shortened for reading."""
    suggestion: str = ""
    permit: str = ""
    """Lines of a redoma.yaml that would permit it, if it was not found by a rule of the policy."""
    out_of_reach: str = ""
    """Why it doesn't count in this run: it can't touch what the finding is about, or not yet."""
    script: str = ""
    """The script that it was found in, if not in the request itself. No permit covers it: the script may change."""


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """The result of evaluating a request."""

    policy: str
    """The pack's name; `none` if the static checks were switched off."""
    digest: str
    """SHA-256 of the policy's rules: evaluations with the same digest used the same rules."""
    findings: tuple[Finding, ...] = ()
    reach: Reach = HOST
    """What the run could touch. The decision applies to this reach only."""

    @property
    def decision(self) -> Decision:
        if not self.findings:
            return Decision.ALLOW
        return max(finding.decision for finding in self.findings)

    @property
    def deciding(self) -> tuple[Finding, ...]:
        """The findings that determined the decision."""
        decision = self.decision
        return tuple(f for f in self.findings if f.decision is decision and decision is not Decision.ALLOW)


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """A person's answer to exactly one request under one policy, or to one effect."""

    id: str
    """The id of the question."""
    digest: str
    decision: Literal["approved", "denied", "expired"]
    approver: str
    reason: str
    at: datetime
    expires: datetime
    """When an unused approval, or a pin, expires."""
    pinned: bool = False
    """Whether it can be used any number of times until it expires, for exactly the same content under the same
    policy.
    """
