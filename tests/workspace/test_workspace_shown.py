"""What a person is shown of an effect is what would be applied."""

from __future__ import annotations

from pathlib import Path

import click
from workspace_stage import Stage

from redoma.frontends.cli.changes import diff_lines


def test_a_diff_hides_nothing_of_what_is_applied(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    evil = "touch PWNED #\r+echo all good\n\x1b]0;touch OSC\x07echo\u202e fine\u200b\x0b-kept\u2028+no line\n"
    effect, _, _ = stage.effect(lambda ran: (ran / "run.sh").write_bytes(evil.encode()))
    lines = [click.unstyle(line) for line in diff_lines(effect)]
    assert lines == [
        "--- /dev/null\n",
        "+++ b/run.sh\n",
        "@@ -0,0 +1,2 @@\n",
        "+touch PWNED #\\r+echo all good\n",
        "+\\x1b]0;touch OSC\\x07echo\\u202e fine\\u200b\\x0b-kept\\u2028+no line\n",
    ]
