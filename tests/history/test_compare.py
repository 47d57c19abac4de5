"""Two ends side by side: what is compared, what is only measured, and what a record can't say."""

from __future__ import annotations

from typing import Any

import msgspec

from redoma.audit.records import Outcome
from redoma.history.compare import Field, compare_outcomes

ENDED: dict[str, Any] = {
    **{"status": "ok", "exit_code": 0, "result": "hello\n", "error": None, "duration": 0.001, "memory_used": None},
    **{"cpu": None, "backend": "jail", "isolation": {}, "redacted": {}},
}


def ended(**changes: Any) -> Outcome:
    streams = {"stdout": {"size": 6, "sha256": "a" * 64}, "stderr": {"size": 0}}
    return msgspec.convert({**ENDED, **streams, **changes}, Outcome)


def states(before: Outcome, after: Outcome) -> dict[str, str]:
    return {field.name: field.state for field in compare_outcomes(before, after)}


def test_time_and_memory_are_measured_and_never_a_difference() -> None:
    found = states(ended(), ended(duration=9.0, memory_used=1 << 20, cpu=3.0))
    assert {found[name] for name in ("time", "cpu", "memory")} == {"measured"}
    assert "different" not in found.values()


def test_output_of_the_same_length_is_compared_by_its_hash() -> None:
    other = ended(stdout={"size": 6, "sha256": "b" * 64}, result="hallo\n")
    (stdout,) = (field for field in compare_outcomes(ended(), other) if field.name == "stdout")
    assert stdout.state == "different"
    assert stdout.diff == "--- recorded\n+++ replayed\n@@ -1 +1 @@\n-hello\n+hallo\n"


def test_changes_are_compared_path_by_path() -> None:
    one = {"digest": "1", "changes": 1, "paths": [["a", "", "file 644 aaaa"]]}
    other = {"digest": "2", "changes": 1, "paths": [["a", "", "file 644 bbbb"]]}
    assert states(ended(effect=one), ended(effect=one))["changes"] == "same"
    assert states(ended(effect=one), ended(effect=other))["changes"] == "different"
    assert states(ended(effect=one), ended())["changes"] == "different"


def test_a_difference_beyond_what_the_record_has_is_said_to_be_there() -> None:
    text = "y" * 8192
    before = ended(result=text, stdout={"size": 9000, "sha256": "a" * 64})
    after = ended(result=text, stdout={"size": 9001, "sha256": "b" * 64})
    found = [field for field in compare_outcomes(before, after) if field.name == "stdout"]
    assert found == [
        Field(
            name="stdout",
            state="different",
            before="9,000 characters",
            after="9,001 characters",
            diff="(what the record has of it is the same; it differs further on)\n",
        )
    ]
