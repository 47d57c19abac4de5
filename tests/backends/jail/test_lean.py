"""Lean cells: where they are refused, and that nothing outlives what made them."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jail_insides import pool_of, soon

from redoma import Config, Executor, Status
from redoma.backends import linux
from redoma.backends.jail import directories, lean, places
from redoma.backends.jail.lean import LeanBackend
from redoma.backends.jail.places import Places
from redoma.config import AuditConfig
from redoma.lib.errors import BackendUnavailable
from redoma.models import Request

SLEEPER = """
import os, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0: os.execvp('sleep', ['sleep', '{token}'])
        os.execvp('sleep', ['sleep', '{token}'])
print('on', flush=True)
time.sleep(600)
"""


@pytest.fixture
def backend() -> LeanBackend:
    return LeanBackend(minimum=1)


@pytest.fixture
def executor(backend: LeanBackend, tmp_path: Path) -> Iterator[Executor]:
    config = Config(audit=AuditConfig(enabled=False, directory=tmp_path))
    with Executor(config, backends=[backend]) as executor:
        yield executor


@pytest.mark.parametrize(
    ("version", "own_user", "words"),
    [
        (0, True, "no Landlock"),
        (0, False, "no Landlock"),
        (5, False, "doesn't keep signals inside"),
        (5, True, ""),
        (2, True, ""),
        (6, False, ""),
    ],
)
def test_what_a_kernel_can_not_promise_is_refused(
    version: int, own_user: bool, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linux, "landlock_abi", lambda: version)
    why = lean.why_not(own_user=own_user)
    assert words in why
    assert bool(why) == bool(words)


def test_a_backend_that_is_refused_runs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linux, "landlock_abi", lambda: 0)
    with pytest.raises(BackendUnavailable, match="lean cells are not available"):
        LeanBackend().capabilities()
    assert lean.advice() == ""


@pytest.mark.parametrize(("language", "code"), [("python", "print('it ran')"), ("bash", "echo it ran")])
async def test_nothing_of_a_run_happens_before_the_word_to_start(
    backend: LeanBackend, language: Any, code: str
) -> None:
    request, printed = Request(code=code, language=language), b""

    def sink(_: str, data: bytes) -> bool:
        nonlocal printed
        printed += data
        return True

    try:
        await backend.run(request, sink)
        assert await soon(lambda: pool_of(backend).counts()["armed"] > 0)
        ready = backend.prepare(request)
        assert ready is not None
        (cell,) = pool_of(backend)._running
        await asyncio.sleep(0.3)
        with pytest.raises(BlockingIOError):
            os.read(cell.stdout, 100)
        printed = b""
        assert (await ready.run(sink)).status is Status.OK
        assert printed == b"it ran\n"
    finally:
        await backend.aclose()


def test_auto_never_takes_it_by_itself(tmp_path: Path) -> None:
    from redoma.config.model import JailConfig
    from redoma.pipeline.executor import auto

    audit = AuditConfig(enabled=False, directory=tmp_path)
    assert "lean" not in auto(Config(audit=audit))
    assert auto(Config(audit=audit, jail=JailConfig(lean=True))) == ("jail", "docker", "lean", "monty")


def _start(executor: Executor) -> tuple[Any, str]:
    """A run with children that have left it, as far as they can."""
    token = f"47{time.monotonic_ns() % 10**8}"
    live = executor.stream(SLEEPER.format(token=token), backend="lean", policy="none", limits={"time": 300})
    next(iter(live))
    deadline = time.monotonic() + 60
    while len(_sleepers(token)) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(_sleepers(token)) >= 3
    return live, token


def _result(live: Any) -> Any:
    for _ in live:
        continue
    return live.result


def _sleepers(token: str) -> list[int]:
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().split(b"\0")
            if token.encode() in words and (place / "stat").read_text().rpartition(") ")[2][0] not in "ZX":
                found.append(int(place.name))
        except OSError:
            continue
    return found


def _all_end(token: str) -> bool:
    deadline = time.monotonic() + 60
    while _sleepers(token) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not _sleepers(token)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])


def test_a_cell_whose_init_is_killed_leaves_nothing(executor: Executor, backend: LeanBackend) -> None:
    live, token = _start(executor)
    zygote = pool_of(backend).zygote_pid
    init = _sleepers(token)[0]
    while _parent(init) != zygote:
        init = _parent(init)
    os.kill(init, signal.SIGKILL)
    assert _all_end(token)
    assert _result(live).status is Status.FAILED
    assert executor.run("6 * 7", backend="lean", policy="none").value == 42


def test_a_cell_whose_zygote_is_killed_leaves_nothing(executor: Executor, backend: LeanBackend) -> None:
    live, token = _start(executor)
    zygote = pool_of(backend).zygote_pid
    assert zygote is not None
    os.kill(zygote, signal.SIGKILL)
    assert _all_end(token)
    assert _result(live).status is Status.FAILED
    assert executor.run("6 * 7", backend="lean", policy="none").value == 42


def test_what_a_killed_redoma_left_is_removed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(directories, "_NEW", 0.0)
    left = tmp_path / "redoma-lean-left"
    (left / "1" / "workspace").mkdir(parents=True)
    left.chmod(0o700)
    os.utime(left, (1, 1))
    living = Places(own_user=False)
    path, user = living.take()
    assert user == 0
    another = Places(own_user=False)
    assert not left.exists()
    assert Path(path, "workspace").is_dir()
    living.give_back(path)
    for each in (living, another):
        each.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("large", "first", "last"), [(True, 0x40000000, 0x60000000), (False, 62000, 65000)])
def test_users_are_drawn_from_what_the_container_has(
    large: bool, first: int, last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "_has_large_numbers", lambda: large)
    drawn = {places._draw_user() for _ in range(50)}
    assert len(drawn) > 40
    assert all(first <= user < last and user % 2 == 0 for user in drawn)


def test_others_must_be_able_to_read_the_interpreter(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    inner = tmp_path / "inner"
    inner.mkdir(mode=0o700)
    (inner / "file").write_text("")
    assert places.closed_to_others(str(inner / "file"))
    assert places.closed_to_others("/usr/bin/env") == ""


def test_many_runs_leave_nothing(executor: Executor, backend: LeanBackend) -> None:
    code = "import os, time\nif os.fork() == 0:\n  os.setsid()\n  time.sleep(60)\nopen('x', 'w').write('x')\n1"
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(100):
        assert executor.run(code, backend="lean", policy="none").value == 1
    pool = pool_of(backend)
    deadline = time.monotonic() + 60
    while (left := _descendants(pool.zygote_pid)) > 2 * 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left <= 2 * 3  # what waits armed: an init and a guest each
    while (opened := len(os.listdir("/proc/self/fd"))) >= before + 40 and time.monotonic() < deadline:
        time.sleep(0.05)  # those of the last runs are still being closed
    assert opened < before + 40


def _descendants(pid: int | None) -> int:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return 0  # it has ended meanwhile
    return len(children) + sum(_descendants(int(child)) for child in children)
