"""Several processes, and processes that die: one approval is one run, whoever asks and whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from approval_stage import Stage, case_of

from redoma.models import Status

CHILD = Path(__file__).with_name("approval_child.py")


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


@contextmanager
def child(work: str, stage: Stage, id: str = "") -> Iterator[subprocess.Popen[str]]:  # noqa: A002 - as everywhere
    directory = stage.path.parents[1]
    process = subprocess.Popen(
        [sys.executable, str(CHILD), work, str(directory), id], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def told(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


async def test_of_several_who_resume_at_one_time_exactly_one_does(stage: Stage) -> None:
    id = await stage.approved(case_of())  # noqa: A001
    with ExitStack() as stack:
        resumers = [stack.enter_context(child("redeem", stage, id)) for _ in range(4)]
        assert {told(process) for process in resumers} == {"ready"}
        for process in resumers:
            go(process)
        assert sorted(told(process) for process in resumers) == ["None", "denied", "denied", "denied"]


async def test_an_approval_that_was_used_is_used_even_if_nothing_ran_after_it(stage: Stage) -> None:
    id = await stage.approved(case_of())  # noqa: A001
    with child("redeem", stage, id) as process:
        assert told(process) == "ready"
        go(process)
        assert told(process) == "None"
        os.kill(process.pid, signal.SIGKILL)
    verdict = await stage.gate().redeem(id, case_of())
    assert (verdict.status, "has been used" in verdict.error) == (Status.DENIED, True)
    assert (await stage.gate().ask(case_of())).status is Status.DENIED


async def test_who_is_killed_before_it_is_theirs_has_not_used_it(stage: Stage) -> None:
    id = await stage.approved(case_of())  # noqa: A001
    with child("die", stage, id) as process:
        assert told(process) == "recorded"
        os.kill(process.pid, signal.SIGKILL)
    assert (await stage.gate().redeem(id, case_of())).status is None
    assert (await stage.gate().redeem(id, case_of())).status is Status.DENIED


async def test_several_who_are_the_first_make_one_database(stage: Stage) -> None:
    with ExitStack() as stack:
        makers = [stack.enter_context(child("make", stage)) for _ in range(4)]
        assert {told(process) for process in makers} == {"ready"}
        for process in makers:
            go(process)
        ids = {told(process) for process in makers}
    assert {entry.ask.id for entry in stage.ledger.entries("open")} == ids
    assert len(ids) == 1


@pytest.mark.parametrize("decision", ["approved", "denied"])
async def test_a_run_that_waits_hears_of_an_answer_from_another_process(stage: Stage, decision: str) -> None:
    with child("wait", stage) as process:
        stage.now = datetime.now(UTC)
        while not (asked := stage.ledger.entries("open")):
            assert process.poll() is None
        ask = asked[0].ask
        stage.ledger.answer(stage.yes(ask, "carla") if decision == "approved" else stage.no(ask, "carla"))
        assert told(process) == ("None carla" if decision == "approved" else "denied carla")
