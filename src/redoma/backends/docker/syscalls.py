"""The jail's filter of system calls, in the words that an engine takes: one table for both.

An engine's own filter lets more pass than a run needs: what does other calls' work past every filter (io_uring), 32-bit
numbers, and on many engines sockets that no network namespace holds, such as the one to the machine below (vsock).

The engine hands the rules to libseccomp, which can say "allowed if an argument, under a mask, is this", any of several
such rules, and what to answer else; but not "refused if", nor two things of one argument. So what the jail refuses is
turned around here: into the values that remain.
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
_Pattern = tuple[int, int]  # a mask, and what an argument has to be under it
_Case = dict[int, _Pattern]  # by argument: all of them have to fit

# In a cell its init counts what is used, and must not be slowed down: here that is the engine's business. And a lease
# can't be had on files of an image, which are another user's. Each rule less makes a container start sooner.
_WHATEVER = ("sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr", "fcntl")


@cache
def profile() -> str:
    """The rules as JSON, for the engine's option `seccomp=`."""
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
    """`setpriority` and `ioprio_set` have a rule of the same kind as those of `_WHATEVER`, among others."""
    return tuple(rule for rule in rules if rule.conditions != (Condition(1, (1,)),))


def _cases(rules: tuple[Rule, ...]) -> list[_Case]:
    """When none of the rules applies: for each of them, one of its conditions must not hold."""
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
    """Whether whatever fits the narrow one fits the wide one."""
    return all(
        argument in narrow and not mask & ~narrow[argument][0] and narrow[argument][1] & mask == value
        for argument, (mask, value) in wide.items()
    )


def _also(case: _Case | None, argument: int, new: _Pattern) -> _Case | None:
    """Both; None if nothing is both."""
    if case is None:
        return None
    mask, value = case.get(argument, (0, 0))
    if (value ^ new[1]) & mask & new[0]:
        return None
    return {**case, argument: (mask | new[0], value | new[1])}


def _otherwise(condition: Condition) -> list[_Pattern]:
    """The values for which the condition does not hold."""
    if not condition.wanted:
        return [(condition.mask, value) for value in condition.values]
    if condition.mask == _WORD:
        return _around(frozenset(condition.values), 32, 0)
    low = condition.mask & -condition.mask  # a mask of neighbouring bits: count in units of its lowest
    width = (condition.mask // low).bit_length()
    return [
        ((mask & ((1 << width) - 1)) * low, value * low)
        for mask, value in _around(frozenset(value // low for value in condition.values), width, 0)
    ]


def _around(holes: frozenset[int], bits: int, start: int) -> list[_Pattern]:
    """Every number of so many bits, from `start` on, but these: in as few blocks as halving finds."""
    if not any(start <= hole < start + (1 << bits) for hole in holes):
        return [(_WORD & ~((1 << bits) - 1), start)]
    if bits == 0:
        return []
    return [*_around(holes, bits - 1, start), *_around(holes, bits - 1, start + (1 << (bits - 1)))]
