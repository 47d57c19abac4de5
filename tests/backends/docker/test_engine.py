"""`scripts/engine`: what it starts, and what it says when it can't."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "engine"


def script(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    return subprocess.run([SCRIPT, *arguments], capture_output=True, text=True, env=environment, check=False)


def test_an_engine_that_answers_is_used_as_it_is(engine: str) -> None:
    for asked in ("start", "status", "start"):
        answer = script(asked)
        assert (answer.returncode, answer.stdout, answer.stderr) == (0, f"{engine}\n", "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts an engine")
def test_what_an_engine_runs_is_left_alone_while_it_is_too_busy_to_answer(tmp_path: Path) -> None:
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    daemon = subprocess.Popen([*sleep, f"{tmp_path}/daemon.json"])
    runs = subprocess.Popen([*sleep, f"{tmp_path}/exec/container"])
    (tmp_path / "docker.pid").write_text(str(daemon.pid))
    (tmp_path / "log").touch()
    environment = {name: value for name, value in os.environ.items() if name != "DOCKER_HOST"}
    start = subprocess.Popen([SCRIPT, "start"], env={**environment, "ENGINE_STATE": str(tmp_path)})
    try:
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            assert runs.poll() is None
            time.sleep(0.1)
    finally:
        for process in (start, runs, daemon):
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("image", "there", "not_there"),
    [
        ("python:3.11-slim", "/usr/local/bin/python3 /usr/local/bin/python bash sh tar dd env sleep", "git busybox"),
        ("bash:5.2-alpine", "/usr/local/bin/bash busybox sh tar dd env sleep", "python3 python perl apt-get"),
    ],
)
def test_the_images_have_what_the_real_ones_have(engine: str, image: str, there: str, not_there: str) -> None:
    look = f"id -u; for name in {there} {not_there}; do command -v $name >/dev/null && echo $name; done; :"
    run = ["docker", "run", "--rm", "--network", "none", "--read-only", "--user", "nobody", image, "sh", "-c", look]
    seen = subprocess.run(run, capture_output=True, text=True, check=False)
    assert (seen.stdout.split(), seen.stderr) == (["65534", *there.split()], "")


def test_a_host_where_nothing_answers_is_an_error_with_a_next_step(tmp_path: Path) -> None:
    nowhere = f"unix://{tmp_path}/none.sock"
    answer = script("start", DOCKER_HOST=nowhere)
    assert answer.returncode == 1
    assert answer.stderr == (
        f"engine: nothing answers at DOCKER_HOST={nowhere}. Next: start it, or unset DOCKER_HOST\n"
    )
    assert script("status", DOCKER_HOST=nowhere).returncode == 1


def test_a_daemon_that_dies_shows_the_end_of_its_log(tmp_path: Path) -> None:
    if os.geteuid() != 0 or Path("/var/run/docker.sock").exists():
        pytest.skip("only root starts an engine, and only where there is none")
    (tmp_path / "data").write_text("in the way")
    answer = script("start", ENGINE_STATE=str(tmp_path))
    assert answer.returncode == 1
    assert answer.stdout == ""
    assert "canonical path points to a file" in answer.stderr
    assert answer.stderr.endswith(f"engine: dockerd did not start; above is the end of {tmp_path}/log\n")
    assert script("stop", ENGINE_STATE=str(tmp_path)).returncode == 0
