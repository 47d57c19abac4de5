"""The user's own service: `redoma run` does with it what it does without it, only sooner; nobody else can use it."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leftovers import children_of, descendants
from pace import SLOW

PROGRAM = Path(sys.executable).with_name("redoma")
PATIENCE = 60 * SLOW
SPARES = 2


class User:
    """A service, and calls with and without it."""

    def __init__(self, home: Path) -> None:
        self.home, self.path = home, home / "user.sock"
        self.env = {**os.environ, "HOME": str(home), "REDOMA_USER_SOCKET": str(self.path)}
        self.env.pop("REDOMA_STATE_DIR", None)
        command = [str(PROGRAM), "serve", "--user", "--socket", str(self.path)]
        self.process = subprocess.Popen(
            command, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd="/"
        )
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        assert str(self.path) in said, said + self.process.stdout.read()

    def call(self, *words: str, warm: bool = True, **options: Any) -> subprocess.CompletedProcess[bytes]:
        env = {**self.env, **options.pop("env", {})}
        if not warm:
            env["REDOMA_USER_SOCKET"] = ""
        options = {"timeout": PATIENCE, "cwd": self.home, "input": b"", **options}
        return subprocess.run([str(PROGRAM), *words], env=env, capture_output=True, check=False, **options)

    def taken(self, *words: str, before: str = "") -> bool:
        """Whether the service carries these words out, for a process that does `before` first."""
        code = (
            f"{before}\nfrom redoma.frontends.cli import warm\nimport os\nos._exit(warm.run({list(words)!r}) is None)"
        )
        done = subprocess.run([sys.executable, "-c", code], env=self.env, capture_output=True, timeout=PATIENCE)
        assert done.returncode in (0, 1), done.stderr
        return done.returncode == 0

    def settled(self) -> bool:
        """Whether nothing but the spares is there."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if len(children_of(self.process.pid)) == SPARES:
                return True
            time.sleep(0.05)
        return False

    def stop(self) -> None:
        below = descendants([self.process.pid])
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE) == 0
        assert self.process.stdout is not None
        self.process.stdout.close()
        assert not self.path.exists()
        deadline = time.monotonic() + PATIENCE
        while any(Path(f"/proc/{pid}").exists() for pid in below):
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    made = User(tmp_path_factory.mktemp("user"))
    yield made
    made.stop()


@pytest.mark.parametrize(
    "words",
    [
        ("run", "print(1); import sys; print(2, file=sys.stderr); sys.exit(7)"),
        ("run", "6 * 7"),
        ("run", "1 / 0"),
        ("run", "--lang", "bash", "echo $0 $1; exit 3", "one"),
        ("run", "--time", "1", "while True: pass"),
        ("run", "script.py", "a", "b"),
        ("run", "missing.py"),
        ("run", "--no-such-option", "1"),
        ("run", "-"),
        ("run", "-f", "data.txt", "print(open('data.txt').read())"),
        ("run", "--env", "FROM_HERE", "import os; print(os.environ['FROM_HERE'])"),
        ("run", "print('\\u00e9\\u4e2d')"),
        ("eval", "[1, 2] + [3]"),
    ],
)
def test_the_answer_is_the_same_with_and_without_it(user: User, words: tuple[str, ...]) -> None:
    (user.home / "script.py").write_text("import sys; print(sys.argv[1:])")
    (user.home / "data.txt").write_text("from a file")
    given: dict[str, Any] = {"input": b"print('typed')", "env": {"FROM_HERE": "ours", "TZ": "Asia/Tokyo"}}
    with_it, without = user.call(*words, **given), user.call(*words, warm=False, **given)
    assert (with_it.stdout, with_it.returncode) == (without.stdout, without.returncode)
    assert with_it.stderr == without.stderr


def test_the_configuration_directory_and_umask_are_the_callers(user: User, tmp_path: Path) -> None:
    (tmp_path / "redoma.yaml").write_text("limits: {time: 1.5}\n")
    slow = user.call("run", "import time; time.sleep(20)", cwd=tmp_path)
    assert (slow.returncode, b"1.5" in slow.stderr) == (124, True)
    (tmp_path / "redoma.yaml").write_text("limits: {time: 25.5}\n")
    done = user.call("run", "--json", "1", cwd=tmp_path)
    assert json.loads(done.stdout)["status"] == "ok"
    state = {"REDOMA_STATE_DIR": str(tmp_path / "state")}
    user.call("run", "print('recorded there')", env=state)
    assert b"recorded there" in user.call("audit", "tail", env=state).stdout
    old = os.umask(0o077)
    try:
        user.call("run", "-o", "made.txt", "open('made.txt', 'w').write('x')", cwd=tmp_path)
    finally:
        os.umask(old)
    assert (tmp_path / "made.txt").stat().st_mode & 0o777 == 0o600
    assert user.taken("run", "1")


def test_what_is_about_this_process_is_done_by_it(user: User) -> None:
    assert user.taken("run", "1")
    assert not user.taken("run", "--backend", "native", "1")
    assert not user.taken("run", "--cwd", ".", "1")
    assert not user.taken("run", "/dev/fd/63")
    assert not user.taken("check", "1")
    shell = f"{PROGRAM} run <(echo 'print(5)')"
    done = subprocess.run(["bash", "-c", shell], env=user.env, capture_output=True, timeout=PATIENCE)
    assert done.stdout == b"5\n"


@pytest.mark.parametrize(
    "difference",
    [
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))",
        "import ctypes; assert ctypes.CDLL(None).prctl(38, 1, 0, 0, 0) == 0",  # no_new_privs: as of sandboxed code
        "import os; os.nice(1)",
        "import os; os.environ['PYTHONUTF8'] = '1'",
    ],
)
def test_a_caller_who_differs_in_what_cannot_be_taken_over_is_not_taken(user: User, difference: str) -> None:
    assert not user.taken("run", "1", before=difference)
    assert user.settled()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be another user")
def test_another_user_is_refused_even_where_the_socket_is_open_to_them(user: User) -> None:
    code = (
        "import os, _socket\n"
        "from redoma.frontends.cli import warm\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "warm.os.geteuid = lambda: 0\n"  # the caller's own check, out of the way
        "s = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)\n"
        "try:\n    s.connect(warm.socket_path())\nexcept PermissionError:\n    os._exit(7)\n"
        "try:\n    os._exit(8 if warm._ask(s, ['run', '1']) else 9)\nexcept BrokenPipeError:\n    os._exit(9)\n"
    )

    def attempt() -> int:
        return subprocess.run([sys.executable, "-c", code], env=user.env, timeout=PATIENCE, cwd="/").returncode

    above = [place for place in user.path.parents if not place.stat().st_mode & 0o001]
    modes = {place: place.stat().st_mode for place in (*above, user.path)}
    try:
        assert attempt() == 7
        for place in modes:
            place.chmod(0o777 if place == user.path else modes[place] | 0o055)
        assert attempt() == 9
    finally:
        for place, mode in modes.items():
            place.chmod(mode & 0o7777)


def begun(user: User, code: str) -> subprocess.Popen[str]:
    """A run that has printed its first line."""
    process = subprocess.Popen(
        [str(PROGRAM), "run", code], env=user.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"  # which also shows that output comes while it runs
    return process


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_the_run(user: User, number: signal.Signals, status: int) -> None:
    process = begun(user, "import time; print('begun', flush=True); time.sleep(600)")
    process.send_signal(number)
    _, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, "Traceback" in errors) == (status, False)
    assert user.settled()


def test_a_caller_who_is_killed_takes_the_run_along(user: User) -> None:
    process = begun(user, "import time; print('begun', flush=True); time.sleep(600)")
    deadline = time.monotonic() + PATIENCE  # the spare that it took is replaced meanwhile
    while len(children_of(user.process.pid)) < SPARES and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(children_of(user.process.pid)) >= SPARES
    process.kill()
    process.communicate(timeout=PATIENCE)
    assert user.settled()


def test_a_person_is_asked_at_the_callers_terminal(user: User) -> None:
    child, terminal = pty.fork()
    if child == 0:
        os.execve(  # noqa: S606 - in a terminal of its own
            PROGRAM, ["redoma", "run", "--time", "61", "print('approved')"], user.env
        )
    said = b""

    def until(word: bytes) -> None:
        nonlocal said
        deadline = time.monotonic() + PATIENCE
        while word not in said:
            assert time.monotonic() < deadline, said
            if select.select([terminal], [], [], 1)[0]:
                said += os.read(terminal, 65536)

    until(b"anything else is no: ")
    os.write(terminal, b"yes\n")
    until(b"for the record: ")
    os.write(terminal, b"a test\n")
    until(b"approved\r\n")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(terminal)


def test_without_a_service_or_with_a_dead_one_nothing_changes(user: User, tmp_path: Path) -> None:
    dead = tmp_path / "dead.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        made.bind(str(dead))
    for path in (dead, tmp_path / "none", "relative", ""):
        done = user.call("run", "print(1)", env={"REDOMA_USER_SOCKET": str(path)})
        assert (done.stdout, done.stderr, done.returncode) == (b"1\n", b"", 0)


def test_a_second_one_says_that_it_runs_already_and_the_first_says_nothing(tmp_path: Path) -> None:
    first = User(tmp_path)
    try:
        again = first.call("serve", "--user", "--socket", str(first.path))
        assert (again.returncode, again.stdout) == (125, b"")
        assert again.stderr.decode() == (
            f"redoma: a service runs already at {first.path}: it answers there\n"
            "  next: use that one, end it first, or choose another path with --socket\n"
        )
        assert first.call("run", "print(1)").stdout == b"1\n"
        assert first.settled()
        assert first.process.stdout is not None
        assert not select.select([first.process.stdout], [], [], 0.5)[0]
    finally:
        first.stop()


def test_systemd_can_pass_the_socket(tmp_path: Path) -> None:
    """The service then has neither a locale nor the variables of the caller's shell."""
    path = tmp_path / "passed.sock"
    bare = {"HOME": str(tmp_path), "REDOMA_USER_SOCKET": str(path), "PATH": os.defpath, "LISTEN_FDS": "1"}
    env = {**bare, "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as passed:
        passed.bind(str(path))
        passed.listen()
        command = ["bash", "-c", f"exec 3<&{passed.fileno()}; LISTEN_PID=$$ exec {PROGRAM} serve --user"]
        service = subprocess.Popen(command, env=bare, pass_fds=[passed.fileno()], stdout=subprocess.PIPE, text=True)
    assert service.stdout is not None
    try:
        assert str(path) in service.stdout.readline()
        code = "from redoma.frontends.cli import warm; import os; os._exit(warm.run(['run', 'print(4)']))"
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, timeout=PATIENCE)
        assert (done.returncode, done.stdout) == (0, b"4\n"), done.stderr
    finally:
        service.terminate()
        assert service.wait(PATIENCE) == 0
        service.stdout.close()
    assert path.exists()  # it is systemd's


def test_several_callers_at_once_are_all_served(user: User) -> None:
    callers = [
        subprocess.Popen([str(PROGRAM), "run", f"print({n})"], env=user.env, stdout=subprocess.PIPE, text=True)
        for n in range(6)
    ]
    assert [caller.communicate(timeout=PATIENCE)[0] for caller in callers] == [f"{number}\n" for number in range(6)]
    assert user.settled()
