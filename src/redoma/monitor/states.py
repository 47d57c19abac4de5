"""From what rules find now to how things stand: a finding has to last before it counts, and each state has a beginning.

Pure: what was remembered comes in, and what to remember goes out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from .model import Check, Held, State, Verdict

_BAD = (State.WARNING, State.CRITICAL)


def settle(
    found: Sequence[Verdict], previous: Mapping[str, Held], checks: Iterable[Check], now: float
) -> tuple[list[Verdict], dict[str, Held]]:
    """The verdicts as they count, and what to remember of them. `state` of those that come in is what a rule found."""
    lasting = {check.name: check.lasting for check in checks}
    settled, held = [], {}
    for verdict in found:
        after = held[verdict.check] = _next(previous.get(verdict.check), verdict.state, lasting[verdict.check], now)
        settled.append(
            msgspec.structs.replace(verdict, state=after.state, found=verdict.state, since=after.since),
        )
    return settled, held


def _next(before: Held | None, found: State, lasting: float, now: float) -> Held:
    bad_since = before.bad_since if before else 0.0
    if found is State.OK:
        bad_since = 0.0
    elif found in _BAD:
        bad_since = min(bad_since or now, now)  # a clock that was set back must not make it wait for years
    # Only what was found has to last. That a rule can't say is so at once, and so is that all is well again.
    waits = found in _BAD and now - bad_since < lasting
    state = found
    if waits:
        state = before.state if before and before.state in _BAD else State.OK
    since = min(before.since, now) if before and before.state is state else now
    return Held(state=state, since=since, bad_since=bad_since)
