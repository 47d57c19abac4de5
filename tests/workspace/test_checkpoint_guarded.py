"""A checkpoint for as long as a block lasts, as the executor uses it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from checkpoint_stage import stage

from redoma.workspace.checkpoint import Checkpoint, guarded
from redoma.workspace.restore import Restored
from redoma.workspace.tree import Tree


@pytest.fixture
def project() -> Iterator[Path]:
    with stage() as directory:
        (directory / "project").mkdir()
        yield directory / "project"


@pytest.fixture
def state(project: Path) -> Path:
    return project.parent / "state"


async def test_success_clears_and_failure_rolls_back(project: Path, state: Path) -> None:
    with Tree(project) as tree:
        async with guarded(tree, state) as guard:
            (project / "a").write_text("stays")
            guard.succeeded = True
        assert (guard.restored, [change.path for change in guard.effect.changes] if guard.effect else 0) == (
            None,
            ["a"],
        )
        async with guarded(tree, state) as guard:
            (project / "a").write_text("changed")
        assert guard.restored is not None
        assert (guard.restored.paths, (project / "a").read_text()) == (("a",), "stays")
        with suppress(ZeroDivisionError):
            async with guarded(tree, state) as guard:
                (project / "a").unlink()
                _ = 1 / 0
        assert guard.restored is not None
    assert ((project / "a").read_text(), os.listdir(state)) == ("stays", ["locks"])


async def test_a_cancelled_run_is_rolled_back_before_anybody_hears_of_it(project: Path, state: Path) -> None:
    (project / "a").write_text("as it was")
    begun = asyncio.Event()

    async def run() -> None:
        with Tree(project) as tree:
            async with guarded(tree, state):
                (project / "a").write_text("changed")
                begun.set()
                await asyncio.Event().wait()

    task = asyncio.create_task(run())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ((project / "a").read_text(), os.listdir(state)) == ("as it was", ["locks"])


async def test_cancelled_once_more_it_is_rolled_back_all_the_same(
    project: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "a").write_text("as it was")
    running, restoring, go_on = asyncio.Event(), asyncio.Event(), threading.Event()
    loop, restore = asyncio.get_running_loop(), Checkpoint.restore

    def slow(checkpoint: Checkpoint) -> Restored:
        loop.call_soon_threadsafe(restoring.set)
        go_on.wait(60)
        return restore(checkpoint)

    async def run() -> None:
        with Tree(project) as tree:
            async with guarded(tree, state):
                (project / "a").write_text("changed")
                running.set()
                await asyncio.Event().wait()

    monkeypatch.setattr(Checkpoint, "restore", slow)
    task = asyncio.create_task(run())
    for reached in (running, restoring):
        await reached.wait()
        task.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (project / "a").read_text() == "as it was"


async def test_cancelled_while_it_is_taken_there_is_no_checkpoint(project: Path, state: Path) -> None:
    async def run() -> None:
        with Tree(project) as tree:
            async with guarded(tree, state):
                raise AssertionError("it must not begin")

    os.mkdir(state, 0o700)
    task = asyncio.create_task(run())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert set(os.listdir(state)) <= {"locks"}
