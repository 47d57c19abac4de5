"""What the end of a run comes to, whichever backend tells of it."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from redoma import Isolation, Limits, Status, Usage
from redoma.backends.endings import Ending

LIMITS = Limits(cpu=2.0, file_size=1024, processes=7)
CPU = "it used more than 2 s of processor time and was ended"
FILE = "it wrote a file of more than 1024 bytes and was ended"
RAISED = "it ended with a MemoryError; it may use 536870912 bytes of memory"


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({"exit_code": 0}, (Status.OK, None, 0, "")),
        ({"exit_code": 3, "error": "ValueError: x"}, (Status.ERROR, "ValueError: x", 3, "")),
        ({"exit_code": 3, "error": ""}, (Status.ERROR, None, 3, "")),
        ({"exit_code": 127, "broken": "start x: no"}, (Status.ERROR, "could not start x: no", 127, "")),
        ({"signal": signal.SIGTERM}, (Status.KILLED, "it was ended by SIGTERM", 143, "")),
        ({"signal": 200}, (Status.KILLED, "it was ended by signal 200", 328, "")),
        ({"signal": signal.SIGXFSZ}, (Status.KILLED, FILE, 153, "file_size")),
        ({"signal": signal.SIGXFSZ, "names_limit": False}, (Status.KILLED, "it was ended by SIGXFSZ", 153, "")),
        ({"limit": "cpu", "signal": signal.SIGXCPU}, (Status.TIMEOUT, CPU, None, "cpu")),
        ({"limit": "memory", "exit_code": 1}, (Status.MEMORY, None, None, "memory")),
        ({"memory_error": True, "exit_code": 1, "error": "MemoryError: "}, (Status.MEMORY, RAISED, None, "memory")),
        ({"memory_error": True, "limit": "cpu"}, (Status.TIMEOUT, CPU, None, "cpu")),
        ({"memory_error": True, "out_of_memory": True}, (Status.MEMORY, None, None, "memory")),
        ({"memory_error": True, "stopped": Status.TIMEOUT}, (Status.TIMEOUT, None, None, "time")),
        ({"limit": "processes"}, (Status.KILLED, "it had more than 7 processes and was ended", None, "processes")),
        ({"killed": "the disk is full"}, (Status.KILLED, "the disk is full", None, "")),
        ({"stopped": Status.TIMEOUT}, (Status.TIMEOUT, None, None, "time")),
        ({"stopped": Status.TIMEOUT, "limit": "cpu"}, (Status.TIMEOUT, CPU, None, "cpu")),
        ({"stopped": Status.KILLED, "exit_code": 0}, (Status.KILLED, None, None, "")),
        ({"flooded": True, "exit_code": 0}, (Status.OUTPUT, None, None, "output_total")),
        ({"flooded": True, "stopped": Status.OUTPUT}, (Status.OUTPUT, None, None, "output_total")),
        ({"out_of_memory": True, "flooded": True, "stopped": Status.TIMEOUT}, (Status.MEMORY, None, None, "memory")),
    ],
)
def test_the_first_cause_that_applies_counts(known: dict[str, Any], expected: tuple[Any, ...]) -> None:
    outcome = Ending(**known).outcome(LIMITS, isolation=Isolation(), usage=Usage())
    assert (outcome.status, outcome.error, outcome.exit_code, outcome.limit) == expected


def test_a_value_comes_with_success_alone_and_an_exception_with_failure_alone() -> None:
    def told(**known: Any) -> tuple[Any, str | None]:
        ending = Ending(**known)
        outcome = ending.outcome(LIMITS, isolation=Isolation(), usage=Usage(), value=1, exception="KeyError")
        return outcome.value, outcome.exception

    assert told(exit_code=0) == (1, None)
    assert told(exit_code=1) == told(out_of_memory=True) == (None, "KeyError")
    assert told(stopped=Status.TIMEOUT) == told(signal=9) == (None, None)
