"""`redoma audit replay`, as a person types it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

Redoma = Callable[..., subprocess.CompletedProcess[str]]


def newest(redoma: Redoma) -> str:
    (record,) = json.loads(redoma("audit", "tail", "-n", "1", "--json").stdout)
    return str(record["id"])


def test_a_run_is_replayed_by_the_beginning_of_its_id_and_the_exit_status_says_how(redoma_command: Redoma) -> None:
    redoma_command("run", "import random; print(random.random(), {'a', 'b', 'c'})")
    same = newest(redoma_command)
    shown = redoma_command("audit", "replay", same[:8])
    assert (shown.returncode, shown.stdout.split()[:2]) == (0, ["identical", same])

    redoma_command("run", "import time; print(time.time_ns())")
    other = newest(redoma_command)
    shown = redoma_command("audit", "replay", other)
    assert shown.returncode == 1
    assert "≠  stdout" in shown.stdout
    assert "--- recorded" in shown.stdout
    assert "because: it reads the clock" in shown.stdout

    summary = redoma_command("audit", "replay", "--last", "10")
    assert (summary.returncode, summary.stdout.splitlines()[-1]) == (1, "1 different, 1 identical")
    told: Any = json.loads(redoma_command("audit", "replay", other, "--json").stdout)
    assert (told["verdict"], told["id"]) == ("different", other)
    assert {"name": "status", "state": "same", "before": "ok", "after": "ok"} in told["fields"]


def test_what_cannot_be_replayed_is_said_without_a_traceback(redoma_command: Redoma) -> None:
    for arguments, said in (
        (["nonsense"], "no run on record has an id that starts with 'nonsense'"),
        ([], "it takes ids, or --last N, and not both"),
        (["--last", "3"], "no run is on record"),
    ):
        ended = redoma_command("audit", "replay", *arguments)
        assert (ended.returncode, ended.stdout) == (2, "")
        assert said in ended.stderr
        assert "Traceback" not in ended.stderr
