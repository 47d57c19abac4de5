"""Runs over a project, in real cells: as the user who runs the tests and, where that is root, as another one too."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from overlay_worker import CASES

from pace import SLOW

_HERE = Path(__file__).parent
USERS = ["ourselves", "unprivileged"] if os.geteuid() == 0 else ["ourselves"]  # only root can become somebody else


@pytest.fixture(
    scope="module", params=[(user, kept_in) for user in USERS for kept_in in ("memory", "disk")], ids="-".join
)
def verdicts(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """What came of each case, by its name. Before Linux 6.6 changes are kept on disk in any case."""
    user, kept_in = request.param
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, str(_HERE / "overlay_worker.py")]
        if user == "unprivileged":
            command = _somebody_else(Path(place))
        done = subprocess.run(
            [*command, place, kept_in], capture_output=True, text=True, timeout=900 * SLOW, check=False, cwd="/"
        )
        told: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
        yield {each["name"]: each["wrong"] for each in told} or {"": done.stderr}


def _somebody_else(place: Path) -> list[str]:
    sys.path.insert(0, str(_HERE.parent / "attacks"))
    from jail_crew import unprivileged

    *command, _ = unprivileged(place)
    for name in ("overlay_worker.py", "overlay_cases.py"):
        shutil.copy(_HERE / name, place)
    place.chmod(0o777)  # it makes its projects there
    return [*command, str(place / "overlay_worker.py")]


@pytest.mark.parametrize("name", CASES)
def test_over_a_project(name: str, verdicts: dict[str, str]) -> None:
    assert verdicts.get(name, f"it never got that far: {verdicts.get('', '')}") == ""
