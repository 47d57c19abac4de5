"""The Docker engine of the tests: a real one, used through the commands that a developer would type."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

_SCRIPT = Path(__file__).parents[1] / "scripts" / "engine"


def _call(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, capture_output=True, text=True, timeout=600, check=False)


def start() -> tuple[str, bool]:
    """Return the engine's DOCKER_HOST, and whether it had to be started."""
    new = _call(_SCRIPT, "status").returncode != 0
    started = _call(_SCRIPT, "start")
    if started.returncode == 0:
        return started.stdout.strip(), new
    why = started.stderr.strip()
    if os.geteuid() != 0:
        pytest.skip(f"no Docker engine: {why}")
    pytest.fail(f"the Docker engine did not start:\n{why}")


def stop() -> None:
    stopped = _call(_SCRIPT, "stop")
    assert stopped.returncode == 0, stopped.stderr


def containers_left(host: str) -> list[str]:
    """Return the containers of this process, or of a Redoma process that has died.

    Other tests may use the engine as well, and leave one for a moment until they sweep it: only what stays counts.
    """
    deadline = time.monotonic() + 60
    while (left := _ours(host)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return left


def _ours(host: str) -> list[str]:
    form = '{{.ID}}\t{{.Label "redoma.pid"}}\t{{.Names}}\t{{.Status}}\t{{.Labels}}'
    listed = _call("docker", "--host", host, "ps", "--all", "--no-trunc", "--format", form)
    assert listed.returncode == 0, listed.stderr
    return [
        line
        for line in listed.stdout.splitlines()
        for _, pid, _, _, labels in [line.split("\t")]
        if any(label.startswith("redoma") for label in labels.split(","))
        and (pid == str(os.getpid()) or not Path("/proc", pid or "none").exists())
    ]
