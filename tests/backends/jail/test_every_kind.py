"""A run of each kind, as whoever runs the tests: what must work on every kernel that has a jail (`scripts/kernels`)."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from redoma import Config, Executor, Limits, Status
from redoma.backends.jail import JailBackend, cgroup, lean
from redoma.backends.jail.kernels import BY_KERNEL, IDMAPPED_OVERLAYS, LANDLOCK_FILES, OWN_OVERLAYS, USER_OVERLAYS
from redoma.backends.jail.places import may_change_users
from redoma.config import AuditConfig
from redoma.models import MiB

PROGRAM = Path(sys.executable).with_name("redoma")
Command = Callable[..., subprocess.CompletedProcess[str]]

_GROUPS = cgroup.find()
_DELEGATED = "REDOMA_DELEGATED" in os.environ  # read here: a test of its own sees none of the user's variables
MISSING = [each for each in BY_KERNEL if each.is_missing(platform.release(), root=os.geteuid() == 0)]
NO_OVERLAYS = USER_OVERLAYS in MISSING or IDMAPPED_OVERLAYS in MISSING
needs_overlays = pytest.mark.skipif(NO_OVERLAYS, reason="this kernel has no project overlays for this user")


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    state = tmp_path_factory.mktemp("state")  # the user's stays as it is
    config = Config(state=state, audit=AuditConfig(directory=state / "audit"))
    with Executor(config=config, backends=[JailBackend(minimum=1)]) as executor:
        yield executor


@pytest.mark.parametrize(
    "arguments",
    [("print(6 * 7)",), ("--lang", "bash", "echo $((6 * 7))")],
    ids=["python", "bash"],
)
def test_code_typed_at_a_shell(arguments: tuple[str, ...], redoma_command: Command) -> None:
    done = redoma_command("run", "--backend", "jail", *arguments)
    assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr


def test_a_command_typed_at_a_shell(redoma_command: Command) -> None:
    done = redoma_command("exec", "--backend", "jail", "--", "echo", "42")
    assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr


def test_auto_takes_the_jail(redoma_command: Command) -> None:
    done = redoma_command("run", "--json", "6 * 7")
    result = json.loads(done.stdout)
    assert (result["backend"], result["value"], result.get("passed_over", {})) == ("jail", 42, {})


HEAP = "kept = [b'x' * (1 << 20) for _ in range(400)]"
FILES = """
with open('/tmp/filled', 'wb') as file:
    for _ in range(400):
        file.write(b'x' * (1 << 20))
import time; time.sleep(50)
"""
MEMFD = """
import os
number = os.memfd_create('filled')
for _ in range(400):
    os.write(number, b'x' * (1 << 20))
import time; time.sleep(50)
"""
FORKS = """
import os, time
for _ in range(10):
    if os.fork() == 0:
        kept = b'x' * (40 << 20)
        time.sleep(50)
        os._exit(0)
for _ in range(1000):  # until one of them was killed, if not all
    pid, status = os.waitpid(-1, os.WNOHANG)
    if pid and os.WIFSIGNALED(status): break
    time.sleep(0.05)
"""


@pytest.mark.parametrize("how", [HEAP, FILES, MEMFD, FORKS], ids=["heap", "tmpfs", "memfd", "a tree of processes"])
def test_memory_over_its_limit_ends_the_run(how: str, executor: Executor) -> None:
    limits = Limits(memory=128 * MiB, disk=1024 * MiB, file_size=1024 * MiB, time=60)
    result = executor.run(how, backend="jail", policy="none", limits=limits)
    if how == MEMFD and not isinstance(_GROUPS, cgroup.Cgroups):
        assert result.exception == "OSError", "a watcher can't see such memory, so there is none"
        assert "Function not implemented" in (result.error or "")
    else:
        assert result.status == Status.MEMORY, result


def test_the_result_says_how_memory_is_limited(executor: Executor) -> None:
    result = executor.run("6 * 7", backend="jail")
    by_group = "watched" not in result.isolation.layers["memory"]
    assert by_group == isinstance(_GROUPS, cgroup.Cgroups)
    assert by_group or not _DELEGATED


def test_advice_on_groups_works_when_it_is_followed(redoma_command: Command) -> None:
    def groups(*command: str) -> dict[str, str]:
        done = redoma_command("doctor", "--json") if not command else subprocess.run(command, **captured)
        facts: list[dict[str, str]] = json.loads(done.stdout)["host"]
        return next(fact for fact in facts if fact["name"] == "cgroup")

    captured: dict[str, Any] = {"capture_output": True, "text": True, "check": False, "timeout": 120}
    captured["env"] = {**os.environ, "XDG_RUNTIME_DIR": f"/run/user/{os.geteuid()}"}  # as in the user's own shell
    fact = groups()
    if fact["fix"].startswith("systemd-run "):
        line = fact["fix"].splitlines()[0].replace("redoma doctor", f"{PROGRAM} doctor --json")
        fact = groups("sh", "-c", line)
        assert fact["what"].startswith("v2 limits the memory of a cell")
    else:
        assert "limits the memory" in fact["what"] or not os.path.isdir("/run/systemd/system")


def test_what_is_missing_is_on_the_result_and_can_be_insisted_on(executor: Executor) -> None:
    result = executor.run("6 * 7", backend="jail")
    assert (result.status, result.value) == (Status.OK, 42)
    missing = {"landlock"} if LANDLOCK_FILES in MISSING else set()
    missing |= {"names"} if USER_OVERLAYS in MISSING else set()
    missing |= {"locks"} if OWN_OVERLAYS in MISSING else set()
    assert set(result.isolation.missing) == missing
    for layer in missing:
        assert executor.run("6 * 7", backend="jail", require=[layer]).status == Status.FAILED


def project(tmp_path: Path) -> Path:
    place = tmp_path / "project"
    for name in ("build/lib/a.o", "build/b.o", "src/main.c"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(name)
    return place


def files(place: Path) -> dict[str, str]:
    return {str(path.relative_to(place)): path.read_text() for path in place.rglob("*") if path.is_file()}


def test_a_removal_is_tried_applied_and_undone(tmp_path: Path, redoma_command: Command) -> None:
    place = project(tmp_path)
    before = files(place)
    tried = redoma_command("try", "--keep", "--", "rm", "-rf", "build", cwd=place)
    if NO_OVERLAYS:
        assert (tried.returncode, files(place)) == (125, before)
        assert "see `redoma doctor`" in tried.stderr
        return
    assert (tried.returncode, files(place)) == (0, before), tried.stderr
    kept = tried.stderr.split("Kept as ")[1].split(".")[0]
    with Executor() as executor:
        executor.apply(kept, by_hand=True)
        assert files(place) == {"src/main.c": "src/main.c"}
        executor.undo(kept)
    assert files(place) == before


@needs_overlays
@pytest.mark.parametrize(
    "command",
    [
        "rm -rf build && mkdir build && echo new >build/new",
        "mkdir new && mv build/* new && rmdir build",
        "rm build/b.o && mkdir build/b.o && echo in >build/b.o/in",
        "rm -rf build && echo file >build",
        "rm -rf * && mkdir -p src/main.c && echo deep >src/main.c/deep",
    ],
)
def test_an_overlay_applied_is_what_a_direct_run_does(command: str, tmp_path: Path, executor: Executor) -> None:
    place, direct = project(tmp_path / "tried"), project(tmp_path / "direct")
    result = executor.run(command, "bash", project=str(place), workspace="overlay", policy="none")
    assert result.status == Status.OK, result.error
    executor.apply(result.id)
    subprocess.run(["bash", "-c", command], cwd=direct, check=True)
    assert files(place) == files(direct)
    assert sorted(os.listdir(place)) == sorted(os.listdir(direct))


@needs_overlays
def test_a_project_cannot_be_filled_beyond_the_limit(tmp_path: Path, executor: Executor) -> None:
    """In memory the write fails; on disk the run is ended. Either way no more than that was ever there."""
    place = project(tmp_path)
    limits = Limits(disk=16 * MiB, file_size=64 * MiB, memory=512 * MiB)
    code = "import time\nfor n in range(40):\n    open(f'{n}', 'wb').write(b'x' * (1 << 20))\n    time.sleep(0.05)"
    result = executor.run(code, project=str(place), workspace="overlay", policy="none", limits=limits)
    if "on disk" in result.isolation.layers["workspace"]:
        assert result.status == Status.KILLED
        assert "wrote more than" in (result.error or "")
    else:
        assert result.status == Status.ERROR
        assert "No space left" in (result.error or "")
    assert not list(place.glob("[0-9]*"))


def test_lean_cells_are_ended_at_their_limit_and_with_what_they_left(tmp_path: Path) -> None:
    """The kernel decides which user init has once it is executed, and so whether it can end what runs."""
    if why := lean.why_not(own_user=may_change_users()):
        pytest.skip(f"lean cells need more: {why}")
    code = "import os, time\nif os.fork() == 0:\n  os.setsid()\n  time.sleep(600)\nwhile True: pass"
    with Executor(config=Config(audit=AuditConfig(directory=tmp_path)), backends=[lean.LeanBackend()]) as executor:
        result = executor.run(code, backend="lean", policy="none", timeout=1)
        assert result.status is Status.TIMEOUT
        assert executor.run("6 * 7", backend="lean", policy="none").value == 42
