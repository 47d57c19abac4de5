"""Whatever is done to whatever project: afterwards it is what it was."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from checkpoint_stage import NOBODY, Project, everything, in_a_fork, stage, take

from pace import MANY
from redoma.workspace.restore import Restored

CASES = 300 * MANY


def wrong(seed: int, place: Path) -> str:
    """What is not as it has to be; nothing, if all is well."""
    project = Project(place / f"project-{seed}", random.Random(seed))
    project.fill()
    before = everything(project.root)
    checkpoint = take(project.root, place / "state")
    done = project.work()
    changed = {change.path for change in checkpoint.effect().changes}
    restored = checkpoint.restore()
    after = everything(project.root)
    again = ((), Restored()) if seed % 10 else (checkpoint.effect().changes, checkpoint.restore())
    checkpoint.clear()
    where = f"seed {seed}, {done}: "
    if after != before:
        return where + repr({path: (before.get(path), after.get(path)) for path in {*before, *after}})
    if restored.failed or restored.left or again != ((), Restored()):
        return where + repr((restored, again))
    if not changed <= set(restored.paths):
        return where + f"{changed - set(restored.paths)} changed, and was not said to be put back"
    return ""


def many(start: int) -> list[str]:
    with stage() as place:
        return [found for seed in range(start, start + CASES) if (found := wrong(seed, place))]


def test_after_any_work_a_project_is_put_back_byte_for_byte() -> None:
    assert many(0) == []


def test_after_any_work_a_project_is_put_back_without_rights_too() -> None:
    if os.geteuid():
        pytest.skip("the other test has no rights either")
    assert in_a_fork(lambda: many(CASES), user=NOBODY) == []
