"""What every test gets: a home and a state directory of its own, so that none touches the user's."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

import engine_helpers
from redoma import Config
from redoma.backends.docker import DockerBackend
from redoma.backends.jail import cgroup
from redoma.config import AuditConfig
from redoma.pipeline import sync

# Hypothesis keeps what it finds and computes beside the tests, if nothing is said, and a checkout may be read-only.
os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", f"{tempfile.gettempdir()}/hypothesis-of-{os.getuid()}")

if worker := os.environ.get("PYTEST_XDIST_WORKER"):
    # What looks for leftovers looks at the whole directory, so each process of a run needs one of its own.
    os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix=f"{worker}-")
    os.chmod(tempfile.tempdir, 0o1777)  # noqa: S103 # as /tmp: some tests run as another user
    atexit.register(shutil.rmtree, tempfile.tempdir, ignore_errors=True)


# In the background of a script it would be ignored, and so by every program that a test starts and wants to interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each of several processes takes the next file when it is done with one: the longest, with containers, first."""
    if worker:
        items.sort(key=lambda item: "engine" not in getattr(item, "fixturenames", ()))


@pytest.fixture(autouse=True)
def _own_home(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path_factory.mktemp("home")
    others = ("XDG_", "REDOMA_") if "engine" in request.fixturenames else ("XDG_", "REDOMA_", "DOCKER_")
    for name in [name for name in os.environ if name.startswith(others)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path_factory.mktemp("cwd"))


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(audit=AuditConfig(directory=tmp_path / "state" / "audit"))


@pytest.fixture
def redoma_command() -> Callable[..., subprocess.CompletedProcess[str]]:
    """The real program, as a person types it."""

    def call(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
        program = Path(sys.executable).with_name("redoma")
        settings: dict[str, object] = {"capture_output": True, "text": True, "timeout": 60, "check": False}
        return subprocess.run([str(program), *arguments], **{**settings, **options})  # type: ignore[call-overload, no-any-return]

    return call


@pytest.fixture
def redoma(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """The command line, in this process: starting one for each call is most of what a call costs."""

    def call(*arguments: str) -> tuple[int, str, str]:
        from redoma.frontends.cli.app import run

        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
        try:
            status = run([*arguments])
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return status, *capsys.readouterr()

    return call


def descendants() -> set[int]:
    """Every live process below this one."""
    found: set[int] = set()
    todo = [os.getpid()]
    while todo:
        pid = todo.pop()
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                children = Path(f"/proc/{pid}/task/{thread}/children").read_text().split()
                new = {int(child) for child in children} - found
                found |= new
                todo.extend(new)
        except FileNotFoundError:
            continue
    return found


def scratch_directories() -> set[str]:
    return {name for name in os.listdir(tempfile.gettempdir()) if name.startswith("redoma-")}


@pytest.fixture
def nothing_left_behind() -> Iterator[None]:
    """No process and no scratch directory outlives the test."""
    before = descendants(), scratch_directories()
    yield
    deadline = time.monotonic() + 3  # monty's pool reaps the worker it kept warm a moment after it is closed
    while not descendants() <= before[0] and time.monotonic() < deadline:
        time.sleep(0.02)
    assert descendants() <= before[0], "a process was left behind"
    assert scratch_directories() <= before[1], "a scratch directory was left behind"


def close_shared_executor() -> None:
    """It keeps cells and containers armed until the process ends."""
    if sync._default is not None:
        sync._default[1].close()


@pytest.fixture(scope="session")
def engine() -> Iterator[str]:
    """The DOCKER_HOST of a real Docker engine with the images; the code under test finds it there as at a user's.

    Started if there is none, and then stopped at the end. No container may be left in it.
    """
    host, new = engine_helpers.start()
    os.environ["DOCKER_HOST"] = host
    yield host
    close_shared_executor()
    left = engine_helpers.containers_left(host)
    if new and not worker:
        engine_helpers.stop()
    assert left == []


@pytest.fixture(scope="session", autouse=True)
def _nothing_left_behind_by_all_tests_together() -> Iterator[None]:
    """The whole run leaves neither a scratch directory nor a process, whichever test forgot to look."""
    before = scratch_directories()
    yield
    close_shared_executor()
    if isinstance(groups := cgroup.find(), cgroup.Cgroups):
        groups.sweep()  # of parents that a test has killed outright: as the next Redoma would
    assert scratch_directories() <= before
    deadline = time.monotonic() + 3
    while descendants() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert descendants() == set()


@pytest.fixture
async def backend(engine: str) -> AsyncIterator[DockerBackend]:
    """Containers as they are by default: hardened, and none made ahead."""
    hardened = DockerBackend(host=engine)
    yield hardened
    await hardened.aclose()
