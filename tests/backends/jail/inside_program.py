"""Run in a container by test_in_containers.py: uses Redoma like a user there, and prints the results as JSON.

Arguments: the backend, which user ids cells should have (`own` or `same`), whether to run `all` checks, or `some`
quick ones, and how many runs a soak has. The tests have a short soak; by hand, it may have thousands.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redoma
from redoma import Limits, Status
from redoma.models import Language

BACKEND, USERS, CHECKED = sys.argv[1:4]
SOAK = int(sys.argv[4]) if sys.argv[4:] else 12
CHECKS: list[Callable[[], Any]] = []


def check(function: Callable[[], Any]) -> Callable[[], Any]:
    CHECKS.append(function)
    return function


def run(code: str, language: Language = "python", **options: Any) -> redoma.Result:
    return redoma.run(code, language, backend=BACKEND, **options)


@check
def python_runs_and_returns_a_value() -> None:
    result = run("import json; print(6*7); {'a': [1, 2.5]}")
    assert (result.status, result.stdout, result.value) == (Status.OK, "42\n", {"a": [1, 2.5]}), result


@check
def the_user_is_the_one_that_is_said() -> None:
    result = run("import os; (os.getuid(), os.getgid())")
    if BACKEND == "jail":
        assert result.value == (1000, 1000), result
    elif USERS == "own":
        assert result.value[0] == result.value[1] >= 0x40000000, result
        assert "user" in result.isolation.layers
        assert run("import os; os.getuid()").value != result.value[0]
    else:
        assert result.value[0] == os.getuid(), result
        assert "user" in result.isolation.missing


@check
def what_is_missing_is_on_the_result_and_require_fails_closed() -> None:
    missing = run("1").isolation.missing
    expected = (
        {"user-namespaces"} if BACKEND == "jail" else {"pid", "mount", "net", "uts", "cgroup", "filesystem", "names"}
    )
    assert expected <= set(missing), missing
    for layer in expected:
        refused = run("print('ran')", require=[layer])
        assert (refused.status, refused.stdout) == (Status.FAILED, ""), refused
    assert run("print('ran')", require=["seccomp", "landlock", "network", "kernel"]).status is Status.OK


@check
def bash_and_commands_run() -> None:
    assert run("echo $((40 + 2)); printf 'a\\nb\\n' | sort -r | head -1", "bash").stdout == "42\nb\n"
    found = redoma.command(["sh", "-c", "exit 7"], backend=BACKEND)
    assert found.exit_code == 7, found


@check
def numpy_runs() -> None:
    result = run("import numpy; int(numpy.arange(10).reshape(2, 5).sum())")
    assert result.value == 45, result


@check
def files_go_in_and_out() -> None:
    code = "import os; os.makedirs('d'); open('d/out', 'w').write(open('in').read().upper())"
    result = run(code, files={"in": b"abc"}, outputs=["d/out"])
    assert result.files == {"d/out": b"ABC"}, result


@check
def temporary_files_have_a_place() -> None:
    result = run("import tempfile; f = tempfile.NamedTemporaryFile(); f.write(b'x'); f.flush(); f.name")
    assert result.status is Status.OK, result


@check
def time_is_limited() -> None:
    for seconds in (1, 5, 25):  # more on a machine where it gets to nothing in one
        result = run("print('partial', flush=True)\nimport time; time.sleep(60)", timeout=seconds)
        if result.stdout:
            break
    assert (result.status, result.stdout) == (Status.TIMEOUT, "partial\n"), result


@check
def processor_time_is_limited() -> None:
    result = run("import os\nos.fork(); os.fork()\nwhile True: pass", limits=Limits(cpu=0.5, time=30))
    assert result.status is Status.TIMEOUT, result


@check
def memory_is_limited() -> None:
    result = run("x = []\nwhile True: x.append('a' * 1000000)", memory="150MB")
    assert result.status is Status.MEMORY, result


@check
def memory_of_many_processes_is_limited_together() -> None:
    code = "import os, time\nfor _ in range(4):\n"
    code += "  if os.fork() == 0: x = bytearray(os.urandom(60 << 20)); time.sleep(50); os._exit(0)\n"
    code += "for _ in range(1000):  # until one of them was killed, if not all\n"
    code += "  time.sleep(0.05)\n  if os.waitpid(-1, os.WNOHANG)[0]: break\n"
    result = run(code, memory="150MB", timeout=60)
    assert result.status is Status.MEMORY, result


@check
def processes_are_limited() -> None:
    code = (
        "import os, time\ncount = 0\n"
        "try:\n  for _ in range(100):\n    if os.fork() == 0: time.sleep(60); os._exit(0)\n    count += 1\n"
        "except OSError: pass\nif count > 20: time.sleep(40)\nprint(count)"
    )
    result = run(code, limits=Limits(processes=20, time=60))
    assert result.status is Status.KILLED or int(result.stdout) < 21, result


@check
def output_is_limited() -> None:
    result = run("while True: print('x' * 1000)", limits=Limits(output_bytes=100_000))
    assert result.status is Status.OUTPUT, result


@check
def disk_is_limited() -> None:
    result = run("f = open('big', 'wb')\nfor _ in range(200): f.write(bytes(1000000))", limits=Limits(disk=20_000_000))
    assert result.status in (Status.KILLED, Status.ERROR), result


@check
def output_streams() -> None:
    for pause in (0.2, 2.0, 8.0):  # longer on a machine that is busy elsewhere for so long
        pieces: list[tuple[float, str]] = []
        code = f"import time\nfor i in range(3): print(i, flush=True); time.sleep({pause})"
        run(code, on_output=lambda *piece, to=pieces: to.append((time.monotonic(), str(piece))), timeout=60)
        if pieces[-1][0] - pieces[0][0] > pause:
            return
    raise AssertionError(pieces)


@check
def the_policy_judges_and_the_log_records() -> None:
    refused = run("rm -rf /", "bash", policy="strict")
    assert refused.status in (Status.FORBIDDEN, Status.DENIED), refused
    listed = subprocess.run(
        [sys.executable, "-m", "redoma", "audit", "verify"], capture_output=True, text=True, check=False
    )
    assert listed.returncode == 0, listed


@check
def nothing_is_left_after_many_runs() -> None:
    code = (
        "import os\nif os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0: os.execvp('sleep', ['sleep', '4711'])\n"
        "  os._exit(0)\nopen('x', 'w').write('x')"
    )
    before = _settled() if SOAK > 12 else (0, 0)
    for _ in range(SOAK):
        assert run(code).status is Status.OK
    assert "x004711" not in _processes()  # the argument, and not a process id that looks like it
    if SOAK > 12:
        after = _settled()
        assert after[0] <= before[0], (before, after)
        assert after[1] <= before[1], (before, after)


def _settled() -> tuple[int, int]:
    """Return the numbers of processes and of our descriptors, once they have not changed for two seconds."""
    since, found = time.monotonic(), (0, 0)
    while time.monotonic() - since < 2:
        time.sleep(0.1)
        if (now := (_count_ours(), len(os.listdir("/proc/self/fd")))) != found:
            since, found = time.monotonic(), now
    return found


def _processes() -> str:
    words = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words.append(f"{place.name} {(place / 'cmdline').read_bytes()!r}")
        except OSError:
            continue
    return "\n".join(words)


@check
def an_executor_that_is_closed_leaves_nothing() -> None:
    code = "import redoma, sys; print(redoma.run('import os, time; os.fork(); 1', backend=sys.argv[1]).status)"
    done = subprocess.run([sys.executable, "-c", code, BACKEND], capture_output=True, text=True, check=False)
    assert "ok" in done.stdout, done
    places = [name for parent in ("/tmp", "/dev/shm") for name in os.listdir(parent) if name.startswith("redoma-lean-")]
    assert len(places) <= 1, places  # our own


@check
def a_redoma_that_is_killed_takes_its_cells_along() -> None:
    sleeper = (
        "import os, time\nfor _ in range(3):\n  if os.fork() == 0: os.setsid(); time.sleep(4712)\n"
        "print('on', flush=True)\ntime.sleep(4712)"
    )
    code = (
        f"import redoma, sys\nsay = lambda *_: print('on', flush=True)\n"
        f"redoma.run({sleeper!r}, backend=sys.argv[1], on_output=say, timeout=60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, BACKEND], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"on\n"
    before = _count_ours()
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 60
    while (left := _count_ours()) > before - 5 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left <= before - 5, (before, left, _processes())


def _count_ours() -> int:
    """Return the number of processes here that are not kernel threads or zombies."""
    count = 0
    for place in Path("/proc").glob("[0-9]*"):
        try:
            count += (place / "stat").read_text().rpartition(") ")[2][0] not in "ZX"
        except OSError:
            continue
    return count


@check
def auto_takes_lean_cells_only_if_the_configuration_says_so() -> None:
    if BACKEND != "lean":
        assert redoma.run("1").backend == "jail"
        return
    command = [sys.executable, "-m", "redoma", "run", "--json", "import os; print(os.getpid() > 0)"]
    plain = subprocess.run(command, capture_output=True, text=True, check=False)
    assert json.loads(plain.stdout)["backend"] != "lean", plain
    bash = subprocess.run([*command[:4], "--lang", "bash", "echo 1"], capture_output=True, text=True, check=False)
    assert bash.returncode == 125, bash
    assert "`jail: {lean: true}`" in bash.stderr, bash
    assert "seccomp=unconfined" in bash.stderr, bash
    Path("/tmp/lean.yaml").write_text("jail: {lean: true}\n")
    allowed = [*command[:3], "--config", "/tmp/lean.yaml", *command[3:]]
    configured = subprocess.run(allowed, capture_output=True, text=True, check=False)
    assert json.loads(configured.stdout)["backend"] == "lean", configured


def main() -> None:
    found = {}
    slow = (a_redoma_that_is_killed_takes_its_cells_along, processor_time_is_limited, time_is_limited, output_streams)
    for each in CHECKS:
        if CHECKED == "some" and each in slow:
            continue
        try:
            each()
            found[each.__name__] = ""
        except BaseException as error:
            found[each.__name__] = f"{type(error).__name__}: {error}"[:1500]
    print(json.dumps(found))


main()
