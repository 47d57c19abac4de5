"""Fixtures for every test: each has its own home and state directory, so that none touches the user's."""

from __future__ import annotations

import asyncio
import atexit
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

import engine_helpers
from leftovers import Before, descendants, scratch_directories
from pace import SLOW
from redoma import AsyncExecutor, Config, Executor, Session
from redoma.backends.docker import DockerBackend
from redoma.backends.jail import cgroup
from redoma.config import AuditConfig, SessionsConfig
from redoma.pipeline import sync
from redoma.telemetry import metrics
from serving import Serving

if TYPE_CHECKING:
    from local_cluster import LocalCluster
    from network_stage import Host
    from package_index import PackageIndex

# By default Hypothesis stores its data next to the tests, and a checkout may be read-only.
os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", f"{tempfile.gettempdir()}/hypothesis-of-{os.getuid()}")
# Tests have new homes, where zig would compile its C library each time.
os.environ.setdefault("ZIG_GLOBAL_CACHE_DIR", f"{tempfile.gettempdir()}/zig-of-{os.getuid()}")

if worker := os.environ.get("PYTEST_XDIST_WORKER"):
    # The search for leftovers covers the whole directory, so each process of a run needs its own.
    os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix=f"{worker}-")
    os.chmod(tempfile.tempdir, 0o1777)  # noqa: S103 # like /tmp: some tests run as another user
    atexit.register(shutil.rmtree, tempfile.tempdir, ignore_errors=True)


# How long an example takes says more about the machine than about the code.
hypothesis.settings.register_profile(
    "redoma", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True
)
hypothesis.settings.load_profile("redoma")

pytest_plugins = ("e2b_stage",)

# In the background of a script SIGINT is ignored, and so it would be by every program that a test starts and
# interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the same after `nohup`


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests: each of several processes takes the next file when it is done with one, so the longest come
    first: those with containers, then others that take minutes.
    """
    if worker:
        items.sort(key=lambda item: ("engine" not in getattr(item, "fixturenames", ()), item.path.stem not in _LONG))


_LONG = frozenset({
    "test_jail_attacks", "test_lean_attacks", "test_overlay", "test_http_durable", "test_checkpoint_crashes",
    "test_checkpoint_properties", "test_workspace_crashes", "test_workspace_properties", "test_network_attacks",
    "test_session_attacks", "test_environment_attacks", "test_ordinary_programs", "test_conformance", "test_streaming",
})  # fmt: skip


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
        settings: dict[str, object] = {"capture_output": True, "text": True, "timeout": 60 * SLOW, "check": False}
        return subprocess.run([str(program), *arguments], **{**settings, **options})  # type: ignore[call-overload, no-any-return]

    return call


@pytest.fixture
def redoma(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """The command line, in this process: starting one for each call is most of its cost."""

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


@pytest.fixture
def nothing_left_behind() -> Iterator[None]:
    """No process and no scratch directory outlives the test."""
    close_shared_executor()  # whose pool starts processes when it likes
    before = Before()
    yield
    before.check()


def close_shared_executor() -> None:
    """Close the shared executor, which keeps cells and containers armed until the process ends. The next use makes
    another."""
    if sync._default is not None:
        sync._default[1].close()
        sync._default = None


@pytest.fixture(scope="session")
def engine() -> Iterator[str]:
    """The DOCKER_HOST of a real Docker engine with the images; the code under test finds it like a user's.

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


SERVICE = """
approval: {expires: 3600}
limits: {time: 20}
server:
  projects: {app: PROJECT}
"""


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A service in a separate process, with keys and a project, for all tests that don't change it."""
    home = tmp_path_factory.mktemp("service")
    project = home / "project"
    project.mkdir()
    (project / "notes.txt").write_text("one\ntwo\n")
    (project / "old.txt").write_text("old\n")
    serving = Serving(home, settings=SERVICE.replace("PROJECT", str(project)))
    serving.key("agent", "run")
    serving.key("other", "run")
    serving.key("maria", "approve")
    serving.key("auditor", "audit")
    serving.key("boss", "admin")
    serving.start()
    yield serving
    assert serving.stop() == 0
    assert "service.bug" not in serving.log.read_text()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Serving]]:
    """Makes separate services, which are stopped at the end of the test."""
    made: list[Serving] = []

    def make(settings: str = "", **options: object) -> Serving:
        serving = Serving(tmp_path / f"service-{len(made)}", settings=settings, **options)  # type: ignore[arg-type]
        serving.key("agent", "run")
        made.append(serving)
        return serving.start()

    yield make
    for serving in made:
        if serving.process is not None and serving.process.poll() is None:
            serving.stop()


@pytest.fixture(scope="module", autouse=True)
def _no_loops_of_other_libraries(request: pytest.FixtureRequest) -> Iterator[None]:
    """Frameworks and clients leave event loops of their own open. Python would warn of them in the middle of another
    test, when it collects them."""
    yield
    if not {"integrations", "mcp", "e2b"}.intersection(request.path.parts):
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with suppress(RuntimeError):
            asyncio.get_event_loop_policy().get_event_loop().close()
        asyncio.set_event_loop(None)
        gc.collect()


@pytest.fixture(scope="module", autouse=True)
def _no_run_left_on_its_way() -> Iterator[None]:
    """Every run that a file began has ended with it, and so has every session, which is one long run."""
    before = metrics._running
    yield
    deadline = time.monotonic() + 60 * SLOW
    while metrics._running > before and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.02)
    assert metrics._running <= before, "a run or a session was left open"


@pytest.fixture(scope="session", autouse=True)
def _nothing_left_behind_by_all_tests_together() -> Iterator[None]:
    """The whole run leaves neither a scratch directory nor a process, even if a test didn't check."""
    before = scratch_directories()
    yield
    close_shared_executor()
    if isinstance(groups := cgroup.find(), cgroup.Cgroups):
        groups.sweep()  # groups of parents that a test has killed: as the next Redoma would
    gc.collect()  # objects that tests dropped without closing end when they are collected
    deadline = time.monotonic() + 60 * SLOW
    while (descendants() or not scratch_directories() <= before) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert scratch_directories() <= before
    assert descendants() == set()


@pytest.fixture(scope="module")
def session_executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    """One executor for all sessions of a file: starting the first takes longer than most tests."""
    audit = AuditConfig(directory=tmp_path_factory.mktemp("state") / "audit")
    with Executor(Config(audit=audit, sessions=SessionsConfig(grace=1.0))) as made:
        yield made


@pytest.fixture
def session(session_executor: Executor) -> Iterator[Session]:
    with session_executor.session() as opened:
        yield opened


@pytest.fixture(scope="session")
def ray_node() -> Iterator[Config]:
    """A Ray cluster of one node, and the configuration of a client on it."""
    from ray_nodes import Nodes

    nodes = Nodes([""])
    yield nodes.head.config
    nodes.close()


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    """A cluster in this process, without Ray, for tests/backends/ray."""
    from local_cluster import LocalCluster

    made = LocalCluster()
    yield made
    made.close()


@pytest.fixture
async def cluster_executor(cluster: LocalCluster, config: Config) -> AsyncIterator[AsyncExecutor]:
    async with AsyncExecutor(config, backends=[cluster.backend()]) as made:
        yield made


@pytest.fixture
async def backend(engine: str) -> AsyncIterator[DockerBackend]:
    """Containers with the default settings: hardened, and none made ahead."""
    hardened = DockerBackend(host=engine)
    yield hardened
    await hardened.aclose()


# --- named hosts: tests/network ---


@pytest.fixture
def trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this machine trust the hosts of the tests like real ones: OpenSSL reads its authorities from a file."""
    from network_stage import AUTHORITY

    (tmp_path / "authorities.pem").write_bytes(AUTHORITY.certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authorities.pem"))


@pytest.fixture(scope="module")
def jail(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    """One executor for all tests of a file."""
    state = tmp_path_factory.mktemp("state")
    with Executor(Config(audit=AuditConfig(directory=state / "audit"), state=state)) as executor:
        yield executor


@pytest.fixture(scope="module")
def index() -> Iterator[PackageIndex]:
    """A package index on this machine, which pip's configuration names."""
    from package_index import PackageIndex, wheel

    found = PackageIndex()
    found.add(wheel("greeting", "1.0", {"greeting.py": "word = 'hello'\n"}, scripts="greet = greeting:word.title"))
    with pytest.MonkeyPatch.context() as patched:
        for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
            patched.delenv(name)
        patched.setenv("PIP_CONFIG_FILE", os.devnull)
        patched.setenv("PIP_INDEX_URL", found.url)
        yield found
    found.close()


@pytest.fixture
def api(trusted: None) -> Iterator[Host]:
    """A host under the name api.test, with TLS."""
    from network_stage import AUTHORITY, Host

    host = Host("api.test", tls=AUTHORITY)
    yield host
    host.close()
