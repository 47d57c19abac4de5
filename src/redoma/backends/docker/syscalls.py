"""The jail's system call filter as an engine's seccomp profile: both use one table.

An engine's own filter allows more than a run needs: calls that bypass every filter (io_uring), 32-bit calls, and on
many engines sockets that are not confined by a network namespace, such as vsock to the hypervisor.

The engine passes the rules to libseccomp, which supports "allow if an argument, under a mask, has this value", several
such rules, and a default action; but not "refuse if", nor two conditions on one argument. So the jail's refusals are
inverted here into the values that remain allowed.
"""

from __future__ import annotations

import errno
import json
from functools import cache
from itertools import product
from typing import Any

from ..jail import seccomp
from ..jail.seccomp import Condition, Rule

_WORD = 0xFFFFFFFF
_Pattern = tuple[int, int]  # a mask, and the value that an argument must have under it
_Case = dict[int, _Pattern]  # patterns by argument number: all must match

# Allowed here without checks. In a cell, the checks protect the init, which measures usage and must not be slowed down;
# here the engine measures. And leases are impossible on an image's files, which another user owns. Fewer rules make a
# container start faster.
_WHATEVER = ("sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr", "fcntl")


@cache
def profile() -> str:
    """Return the rules as JSON, for the engine's option `seccomp=`."""
    refused = [*seccomp.REFUSED.values()]
    rules = [
        *(_refusal(names, errno.ENOSYS) for names in seccomp.ABSENT.values()),
        *(_refusal(names, errno.EPERM) for names in refused),
        _refusal(seccomp.PRETENDED, 0),
        _allowed([name for names in seccomp.ALLOWED.values() for name in names.split()] + list(_WHATEVER)),
    ]
    for name, checks in seccomp.CHECKED.items():
        if name not in _WHATEVER:
            rules += [_allowed([name], case) for case in _cases(_without_init(checks))]
    return json.dumps({"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": errno.ENOSYS, "syscalls": rules})


def _refusal(names: str, number: int) -> dict[str, Any]:
    return {"names": names.split(), "action": "SCMP_ACT_ERRNO", "errnoRet": number}


def _allowed(names: list[str], case: _Case | None = None) -> dict[str, Any]:
    return {
        "names": names,
        "action": "SCMP_ACT_ALLOW",
        "args": [
            {"index": argument, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}
            for argument, (mask, value) in sorted((case or {}).items())
        ],
    }


def _without_init(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """Leave out the rules that protect init; `setpriority` and `ioprio_set` have one among others."""
    return tuple(rule for rule in rules if rule.conditions != (Condition(1, (1,)),))


def _cases(rules: tuple[Rule, ...]) -> list[_Case]:
    """Return the cases in which no rule applies: for each rule, one of its conditions must not hold."""
    found: list[_Case] = []
    for broken in product(*(rule.conditions for rule in rules)):
        for patterns in product(*(_otherwise(condition) for condition in broken)):
            case: _Case | None = {}
            for condition, pattern in zip(broken, patterns, strict=True):
                case = _also(case, condition.argument, pattern)
            if case is not None and not any(_covers(other, case) for other in found):
                found = [other for other in found if not _covers(case, other)] + [case]
    return found


def _covers(wide: _Case, narrow: _Case) -> bool:
    """Return whether everything that matches `narrow` matches `wide`."""
    return all(
        argument in narrow and not mask & ~narrow[argument][0] and narrow[argument][1] & mask == value
        for argument, (mask, value) in wide.items()
    )


def _also(case: _Case | None, argument: int, new: _Pattern) -> _Case | None:
    """Return the case with another pattern added; None if nothing can match both."""
    if case is None:
        return None
    mask, value = case.get(argument, (0, 0))
    if (value ^ new[1]) & mask & new[0]:
        return None
    return {**case, argument: (mask | new[0], value | new[1])}


def _otherwise(condition: Condition) -> list[_Pattern]:
    """Return patterns for the values for which the condition does not hold."""
    if not condition.wanted:
        return [(condition.mask, value) for value in condition.values]
    if condition.mask == _WORD:
        return _around(frozenset(condition.values), 32, 0)
    low = condition.mask & -condition.mask  # the mask's bits are contiguous: count in units of the lowest
    width = (condition.mask // low).bit_length()
    return [
        ((mask & ((1 << width) - 1)) * low, value * low)
        for mask, value in _around(frozenset(value // low for value in condition.values), width, 0)
    ]


def _around(holes: frozenset[int], bits: int, start: int) -> list[_Pattern]:
    """Return blocks that cover all numbers of `bits` bits from `start` on, except the holes."""
    if not any(start <= hole < start + (1 << bits) for hole in holes):
        return [(_WORD & ~((1 << bits) - 1), start)]
    if bits == 0:
        return []
    return [*_around(holes, bits - 1, start), *_around(holes, bits - 1, start + (1 << (bits - 1)))]
