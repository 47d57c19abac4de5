"""The sandbox provider passes inspect_ai's own check of providers, and inspect_ai finds it by its name."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from inspect_ai.util import SandboxEnvironment
from inspect_ai.util._sandbox.environment import SandboxUserUnsupportedError
from inspect_ai.util._sandbox.registry import registry_find_sandboxenv
from inspect_ai.util._sandbox.self_check import *  # noqa: F403 - how its makers want it to be used

from redoma.integrations.inspect import RedomaSandboxConfig, RedomaSandboxEnvironment


@pytest.fixture
async def sandbox_env() -> AsyncIterator[SandboxEnvironment]:
    config = RedomaSandboxConfig(memory="1GiB")
    environments = await RedomaSandboxEnvironment.sample_init("self-check", config, {})
    yield environments["default"]
    await RedomaSandboxEnvironment.sample_cleanup("self-check", config, environments, interrupted=False)


async def test_exec_as_user(sandbox_env: SandboxEnvironment) -> None:
    """In place of inspect_ai's own, which makes another user, as root: a cell has one user, who is not root."""
    with pytest.raises(SandboxUserUnsupportedError, match="none as root"):
        await sandbox_env.exec(["whoami"], user="root")
    assert (await sandbox_env.exec(["whoami"], user="guest")).stdout == "guest\n"


TASK = """
import asyncio, sys
from inspect_ai import Task, eval_async
from inspect_ai.dataset import Sample
from inspect_ai.solver import solver
from inspect_ai.util import sandbox

@solver
def ask_the_sandbox():
    async def solve(state, generate):
        await sandbox().write_file("a.py", "print(6 * 7)")
        state.output.completion = (await sandbox().exec(["python3", "a.py"])).stdout.strip()
        return state

    return solve

task = Task(dataset=[Sample(input="what is 6 * 7?")], solver=ask_the_sandbox(), sandbox="redoma")
(log,) = asyncio.run(eval_async(task, model="mockllm/model", log_dir=sys.argv[1]))
print("told", log.status, log.samples[0].output.completion)
"""
"""A program of its own: inspect_ai patches asyncio for a whole process, and loops would be left open in other tests."""


def test_inspect_finds_the_provider_by_its_entry_point() -> None:
    assert registry_find_sandboxenv("redoma") is RedomaSandboxEnvironment


def test_a_task_runs_in_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TASK, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert "told success 42" in done.stdout, (done.stdout, done.stderr)
