"""Monty's workers are in cells: they answer as before, and one that has been taken over reaches nothing either."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jail_insides import SLOW

from redoma import AsyncExecutor, Config, Executor, Result, Status
from redoma.backends.monty.backend import MontyBackend
from redoma.config import AuditConfig
from redoma.models import MiB

PACKAGES = str(Path(sys.modules["redoma"].__file__ or "").parents[1])


def monty(config: Config, *, cells: bool) -> Executor:
    return Executor(config, backends=[MontyBackend(cells=cells)])


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Executor, Executor]]:
    config = Config(audit=AuditConfig(directory=tmp_path_factory.mktemp("state") / "audit"))
    with monty(config, cells=True) as inside, monty(config, cells=False) as outside:
        yield inside, outside


# --- the same answers ---

PROGRAMS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain values": ("(1, 2.5, 'x', b'\\x00y', None, True, [1], {2, 3}, frozenset([4]), {(1, 2): {'a': b'b'}})", {}),
    "numbers that JSON does not have": ("[float('inf'), 10 ** 40, -(10 ** 40)]", {}),
    "a number that nobody could print": ("1 << 20000", {}),
    "a value that is not plain": ("import datetime\ndatetime.date(2020, 1, 2)", {}),
    "a named tuple": ("from collections import namedtuple\nnamedtuple('P', 'a b')(1, 2)", {}),
    "a deep value": ("x = []\nfor i in range(500): x = [x]\nx", {}),
    "a wide value": ("list(range(200000))", {}),
    "a long text": ("'x' * 1000000", {}),
    "a text that is too long": ("'x' * 3000000", {}),
    "a text of many bytes": ("'é🦜' * 50000", {}),
    "no value": ("x = 1", {}),
    "an error": ("print('before')\nraise ValueError('boom')", {}),
    "an error of the code's own": ("raise MemoryError('memory limit exceeded: not really')", {}),
    "an error that looks like a time-out": ("raise TimeoutError('feed time limit exceeded: no')", {}),
    "an error with a long text": ("raise ValueError('x' * 3000000)", {}),
    "a mistake": ("def f(:", {}),
    "both streams": ("import sys\nprint('out')\nprint('err', file=sys.stderr)", {}),
    "input": ("print(input('?'), input(), sep='|')", {"stdin": "eins\nzwei\n"}),
    "input without an end": ("print(input())", {"stdin": "eins"}),
    "input that ends early": ("input()\ninput()", {"stdin": "eins\n"}),
    "input that is not text": ("input()", {"stdin": b"\xff\xfe\n"}),
    "variables": (
        "import os\nprint(os.getenv('A'), os.environ['B'], sorted(os.environ))",
        {"env": {"A": "1", "B": "ü"}},
    ),
    "a secret": ("import os\nprint(os.getenv('KEY') == 'opensesame')", {"secrets": {"KEY": "opensesame"}}),
    "files": (
        "open('new', 'w').write(open('a/b').read() * 2)\nprint(open('new').read(), open('/workspace/a/b').read())",
        {"files": {"a/b": b"text"}},
    ),
    "files, listed": ("import os\nsorted(os.listdir('.')) + [os.getcwd()]", {"files": {"a/b": b"", "c": b""}}),
    "no files": ("import os\nos.listdir('.')", {}),
    "recursion": ("def f(n): return n and f(n - 1)\nf(150)", {"limits": {"recursion": 100}}),
    "sleep": ("import time\ntime.sleep(0.05)\n'slept'", {}),
    "an odd sleep": ("import time\ntime.sleep(-1)", {}),
    "code that Monty lacks": ("class A(metaclass=type): pass\nprint(1)", {}),
    "too much memory": ("x = 'a'\nwhile True: x = x + x", {"limits": {"memory": 32 * MiB}}),
    "very little memory": ("x = 'a'\nwhile True: x = x + x", {"limits": {"memory": 1 * MiB}}),
    "too much time": ("while True: pass", {"limits": {"time": 0.5}}),
    "too much sleep": ("import time\nprint('x')\ntime.sleep(60)", {"limits": {"time": 0.5}}),
    "too much processor time": ("while True: pass", {"limits": {"cpu": 0.5}}),
    "too many bytes written": (
        "f = open('x', 'w')\nfor i in range(100): f.write('x' * 100000)",
        {"limits": {"file_size": MiB}, "files": {"a": b""}},
    ),
    "too much output": ("while True: print('x' * 1000)", {"limits": {"output_total": MiB}}),
    "a file of the request that is large": ("len(open('a').read())", {"files": {"a": b"x" * (8 * MiB)}}),
}


def essence(result: Result) -> dict[str, Any]:
    return {
        "status": result.status,
        "exit": result.exit_code,
        "value": result.value,
        # How much of a flood had come when it was stopped is a matter of chance.
        "stdout": result.stdout if result.status is not Status.OUTPUT else result.stdout[:100],
        "stderr": result.stderr,
        "exception": result.exception if result.status is not Status.TIMEOUT else None,  # or ended before it was raised
        "error": result.error if result.status is not Status.TIMEOUT else None,
    }


@pytest.mark.any_kernel
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_run_ends_the_same_in_a_cell(name: str, both: tuple[Executor, Executor]) -> None:
    code, options = PROGRAMS[name]
    limits = options.get("limits", {})
    # How much it has done before its time is over depends on the machine: where it was nothing, it gets more time.
    for seconds in (limits["time"] * factor for factor in (1, 8, 64)) if "time" in limits else (60.0,):
        given = {**options, "limits": {**limits, "time": seconds}}
        inside, outside = (executor.run(code, policy="none", **given) for executor in both)
        if essence(inside) == essence(outside):
            break
    assert essence(inside) == essence(outside)
    if name == "code that Monty lacks":
        assert (inside.status, inside.stdout) == (Status.FAILED, "")
        return
    assert inside.status.ending == "ran", inside.error
    assert inside.isolation.lacking(("interpreter", "seccomp", "kernel", "net", "mount", "pid", "user", "memory")) == ()
    assert "kernel" not in inside.isolation.missing
    assert "kernel" in outside.isolation.missing


@pytest.mark.any_kernel
async def test_code_that_monty_lacks_goes_to_the_next_backend(config: Config) -> None:
    from redoma import Answer, FakeBackend

    class Next(FakeBackend):
        name = "docker"

    code = "class A(metaclass=type): pass"
    async with AsyncExecutor(config, backends=[MontyBackend(), Next(Answer(stdout="next"), name="docker")]) as executor:
        alone = await executor.run(code, policy="none", backend="monty")
        assert "line 1" in (alone.error or "")
        assert (await executor.run(code, policy="none")).stdout == "next"


def test_a_run_leaves_nothing_on_the_host_while_it_lasts(config: Config, tmp_path: Path) -> None:
    """Its files are in the cell: no directory that a crash could leave behind."""
    seen: list[list[str]] = []
    watched = Path(os.environ.get("TMPDIR", "/tmp"))
    before = set(watched.glob("redoma-*"))
    with monty(config, cells=True) as executor:
        executor.run(
            "print(open('a').read())",
            files={"a": b"x"},
            policy="none",
            on_output=lambda *_: seen.append([path.name for path in set(watched.glob("redoma-*")) - before]),
        )
    assert seen
    assert not any(seen)


# --- a worker that has been taken over ---

TAKEN_OVER = """#!/bin/bash
{attack}
[ -x {real} ] && exec {real} "$@"
tail -c +{offset} "$0" > /tmp/worker && chmod +x /tmp/worker && exec /tmp/worker "$@"
exit 1
"""
"""Does what an attacker would do first, with a shell in the worker's place, and then goes on as the worker."""


HEAD = 1024


def taken_over(place: Path, attack: str) -> Path:
    real = Path(sys.executable).with_name("monty")
    head = TAKEN_OVER.format(attack=attack, real=real, offset=HEAD + 1).encode()
    assert len(head) <= HEAD
    program = place / "monty"
    program.write_bytes(head.ljust(HEAD) + real.read_bytes())
    program.chmod(0o755)
    return program


class Host:
    """What an attacker is after."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.secret = place / "secret"
        self.secret.write_text("marker-4711")
        self.planted = place / "planted"
        self.descriptor = os.open(self.secret, os.O_RDONLY)
        os.set_inheritable(self.descriptor, True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._thread.start()

    def _answer(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection:
                connection.sendall(b"marker-4711\n")

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self._thread.join()
        os.close(self.descriptor)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    tmp_path.chmod(0o755)
    host = Host(tmp_path)
    yield host
    host.close()


ATTACKS: dict[str, Callable[[Host], str]] = {
    "reads a file of the host": lambda host: f"cat {host.secret} >&2",
    "plants a file": lambda host: f"echo x > {host.planted} && echo marker-4711 >&2",
    "connects to the host's loopback": lambda host: (
        f"exec 9<>/dev/tcp/127.0.0.1/{host.port} && head -n 1 <&9 >&2; exec 9>&-"
    ),
    "reads a descriptor that it inherited": lambda host: f"cat <&{host.descriptor} >&2",
    "sees Redoma's process": lambda host: f"kill -0 {os.getpid()} && echo marker-4711 >&2",
    "reads Redoma's memory map": lambda host: f"grep -q python /proc/{os.getpid()}/maps && echo marker-4711 >&2",
    "knows the host's name": lambda host: (
        f"[ $(cat /proc/sys/kernel/hostname || hostname) = {socket.gethostname()} ] && echo marker-4711 >&2"
    ),
    "reads the names of the host's users": lambda host: "grep -q ^daemon: /etc/passwd && echo marker-4711 >&2",
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_worker_that_was_taken_over_reaches_nothing(
    name: str, host: Host, config: Config, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MONTY_BIN", str(taken_over(host.place, ATTACKS[name](host))))
    with monty(config, cells=False) as executor:
        assert executor.run("1 + 1").value == 2
    assert "marker-4711" in capfd.readouterr().err, "the attack doesn't work even without a cell"
    host.planted.unlink(missing_ok=True)
    with monty(config, cells=True) as executor:
        result = executor.run("1 + 1")
    assert result.value == 2, result.error  # it has gone all the way through the worker that was taken over
    assert "marker-4711" not in result.stderr + capfd.readouterr().err
    assert not host.planted.exists()


def test_a_worker_that_does_not_answer_is_an_error_and_no_way_out_of_the_cell(
    tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = tmp_path / "seen"
    program = tmp_path / "monty"
    program.write_text(f"#!/bin/sh\necho here >> {seen}\nexit 42\n")
    program.chmod(0o755)
    tmp_path.chmod(0o777)
    monkeypatch.setenv("MONTY_BIN", str(program))
    with monty(config, cells=True) as executor:
        result = executor.run("1 + 1")
    assert result.status is Status.FAILED
    assert "42" in (result.error or "")
    assert not seen.exists()  # it was not tried again without a cell


# --- its end ---


def processes_below(pid: int) -> dict[int, str]:
    found: dict[int, str] = {}
    todo = [pid]
    while todo:
        above = todo.pop()
        try:
            for thread in os.listdir(f"/proc/{above}/task"):
                for child in map(int, Path(f"/proc/{above}/task/{thread}/children").read_text().split()):
                    found[child] = Path(f"/proc/{child}/comm").read_text().strip()
                    todo.append(child)
        except OSError:
            continue
    return found


def busy_worker(pid: int) -> int:
    """The one that computes: what is only armed, or was kept by another test, uses next to no time meanwhile."""
    deadline = time.monotonic() + 60 * SLOW
    at_first: dict[int, int] = {}
    while time.monotonic() < deadline:
        for child, name in processes_below(pid).items():
            used = sum(map(int, _stat(child)[11:13]))
            if name == "monty" and used - at_first.setdefault(child, used) > 20 * SLOW:
                return child
        time.sleep(0.02)
    raise AssertionError(f"no worker is busy: {processes_below(pid)}")


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["0"] * 20


def gone(pid: int) -> bool:
    return _stat(pid)[0] in ("0", "Z")


def test_a_worker_killed_by_somebody_is_our_failure_and_the_next_run_works(config: Config) -> None:
    with monty(config, cells=True) as executor:
        running = executor.start(
            executor.core.run("while True: pass", limits={"time": 300 * SLOW, "cpu": 300 * SLOW}, policy="none")
        )
        os.kill(busy_worker(os.getpid()), signal.SIGKILL)
        result = running.result(timeout=60 * SLOW)
        assert (result.status, "worker died" in (result.error or "")) == (Status.FAILED, True)
        assert executor.run("1 + 1").value == 2


BUSY = """
import redoma
from redoma.backends.monty.backend import MontyBackend
with redoma.Executor(backends=[MontyBackend(cells={cells})]) as executor:
    executor.run("while True: pass", limits={{"time": 120}}, policy="none", files={{"a": b"x"}})
"""


@pytest.mark.parametrize("cells", [True, False], ids=["in a cell", "control: without"])
def test_a_busy_worker_dies_with_redoma(cells: bool, tmp_path: Path) -> None:
    """Outside of a cell it reads nothing while it computes, and so doesn't notice; its directory stays, too."""
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": PACKAGES}
    process = subprocess.Popen([sys.executable, "-c", BUSY.format(cells=cells)], env=environment)
    worker = busy_worker(process.pid)
    everything = processes_below(process.pid)
    process.kill()
    process.wait()
    deadline = time.monotonic() + (60 if cells else 2)
    while not all(map(gone, everything)) and time.monotonic() < deadline:
        time.sleep(0.01)
    survivors = {pid: name for pid, name in everything.items() if not gone(pid)}
    if not cells:
        assert worker in survivors, "without a cell it survives: if it no longer does, this test shows nothing"
        os.kill(worker, signal.SIGKILL)
        return
    assert survivors == {}
    assert list(tmp_path.iterdir()) == []


# --- where there are no cells ---

WITHOUT = """
import os, redoma
from redoma.backends.jail.root import enter_user_namespace
from redoma.backends.monty.backend import MontyBackend
enter_user_namespace(0)
with open("/proc/sys/user/max_user_namespaces", "w") as limit:
    limit.write("0")
with redoma.Executor(backends=[MontyBackend()]) as executor:
    required = executor.run("1 + 1", require=["kernel"], backend="monty")
    result = executor.run("1 + 1")
    again = executor.run("1 + 1", require=["kernel"], backend="monty")
print(required.status, required.error)
print(result.value, "kernel" in result.isolation.missing, sorted(result.isolation.layers))
print(again.status, again.error)
"""


def test_where_no_cell_can_be_had_it_runs_as_before_and_says_so(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": PACKAGES, "XDG_STATE_HOME": str(tmp_path / "state")}
    tmp_path.chmod(0o777)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], env=environment, capture_output=True, text=True, timeout=60 * SLOW, check=False
    )
    required, result, again = done.stdout.splitlines() or [done.stderr] * 3
    assert required.startswith("failed monty has no kernel here: the jail is not available on this host: ")
    assert result == "2 True ['environment', 'filesystem', 'interpreter', 'network', 'process']"
    assert again.startswith(
        "failed monty can't run this request: it doesn't offer the isolation layer 'kernel'. Next: see "
    )


def test_a_monty_that_a_cell_does_not_see_runs_as_before_and_says_so(tmp_path: Path) -> None:
    """Installed for one user, say: a cell has the packages of the interpreter only."""
    import pydantic_monty

    shutil.copytree(Path(pydantic_monty.__file__).parent, tmp_path / "pydantic_monty")
    program = "import redoma; r = redoma.run('1 + 1', backend='monty'); print(r.value, r.isolation.missing, r.error)"
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{PACKAGES}"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60 * SLOW, check=False
    )
    assert done.stdout == "2 ('kernel', 'limit on files') None\n", done.stderr


def test_a_forked_child_has_cells_of_its_own(config: Config) -> None:
    """Monty's runtime doesn't survive a fork. In cells it is not in our process at all."""
    program = (
        "import os, redoma\n"
        "print(redoma.run('1', backend='monty').value, flush=True)\n"
        "if os.fork() == 0:\n"
        "    print(redoma.run('1 + 1', backend='monty').value, flush=True)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "print(redoma.run('1 + 2', backend='monty').value)\n"
    )
    environment = {**os.environ, "PYTHONPATH": PACKAGES}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60 * SLOW, check=False
    )
    assert done.stdout == "1\n2\n3\n", done.stderr
