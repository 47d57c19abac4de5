"""One request in one hardened container: what goes in, what comes out, and how it ends."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from docker_bench import docker, inspect, ours, run

from redoma import BackendError
from redoma.backends.base import Control
from redoma.backends.docker import Box, DockerBackend
from redoma.models import KiB, MiB


async def test_python_gets_what_it_was_given_and_nothing_else(backend: DockerBackend) -> None:
    code = """
import os, sys
print(sorted(os.environ), os.environ["GREETING"], os.getcwd() == os.environ["HOME"] + "/workspace")
print(sys.argv, __name__, sorted(os.listdir(".")), open("data/in.txt").read(), sys.stdin.read())
print("to stderr", file=sys.stderr)
import helper
helper.fail()
"""
    ran = await run(
        backend,
        code,
        env={"GREETING": "olá\nmundo"},
        stdin=b"first\nlast",
        files={"data/in.txt": b"content", "helper.py": b"def fail():\n    raise ValueError('boom')"},
    )
    assert ran.ending == ("error", 1)
    assert ran.stdout == (
        "['GREETING', 'HOME', 'LANG', 'PATH'] olá\nmundo True\n"
        "['/run/redoma/main.py'] __main__ ['data', 'helper.py'] content first\nlast\n"
    )
    assert ran.stderr.startswith('to stderr\nTraceback (most recent call last):\n  File "/run/redoma/main.py", line 7')
    assert ran.stderr.endswith("    raise ValueError('boom')\nValueError: boom\n")


async def test_a_coding_cookie_has_no_effect(backend: DockerBackend) -> None:
    hidden = "# coding: utf-7\n# +AAo-print('hidden')\nprint('shown')"
    assert (await run(backend, hidden)).stdout == "shown\n"


async def test_a_script_gets_what_it_was_given_and_nothing_else(backend: DockerBackend) -> None:
    code = 'echo "$GREETING"; cat data/in.txt -; echo "$0" >&2; echo; compgen -e; exit 7'
    files = {"data/in.txt": b"content;", "a b/c": b""}
    ran = await run(
        backend, code, language="bash", env={"GREETING": "um 'dois\"\n$HOME `id`"}, stdin=b"in", files=files
    )
    assert (ran.ending, ran.stderr) == (("error", 7), "/run/redoma/script\n")
    assert ran.stdout.startswith("um 'dois\"\n$HOME `id`\ncontent;in")
    names = set(ran.stdout.split("content;in")[1].split())
    assert names - {"PWD", "OLDPWD", "SHLVL", "_"} == {"GREETING", "HOME", "LANG", "PATH"}  # those are bash's own


async def test_words_of_a_command_arrive_as_they_are(backend: DockerBackend) -> None:
    words = ["um dois", "três 'quatro'", "日本", "", "$HOME *", "a\nb", "`id`", "\\"]
    ran = await run(backend, argv=("python3", "-c", "import sys; print(sys.argv[1:])", *words))
    assert (ran.ending, ran.stdout) == (("ok", 0), f"{words}\n")


_ENDINGS: list[tuple[dict[str, Any], tuple[str, int], str | None]] = [
    ({"argv": ("nothing-like-it",)}, ("error", 127), "could not start nothing-like-it: No such file or directory"),
    ({"argv": ("/etc/passwd",)}, ("error", 126), "could not start /etc/passwd: Permission denied"),
    ({"argv": ("sh", "-c", "exit 127")}, ("error", 127), None),
    ({"code": "import sys; sys.exit(143)"}, ("error", 143), None),
    ({"code": "import os; os.kill(os.getpid(), 15)"}, ("killed", 143), "it was ended by SIGTERM"),
    ({"code": "kill -SEGV $$", "language": "bash"}, ("killed", 139), "it was ended by SIGSEGV"),
]


async def test_how_it_ended_is_told(backend: DockerBackend) -> None:
    every = await asyncio.gather(*(run(backend, **given) for given, _, _ in _ENDINGS))
    assert [(ran.ending, ran.outcome.error) for ran in every] == [(ending, error) for _, ending, error in _ENDINGS]


async def test_new_and_changed_files_come_back_and_others_are_explained(backend: DockerBackend) -> None:
    code = """
import os, socket
open("changed", "w").write("new")
os.makedirs("out/" + "d/" * 3)
open("out/d/d/d/" + "n" * 150, "wb").write(bytes(range(256)) * 1000)
os.symlink("/etc/passwd", "link")
os.symlink("/" + "t" * 200, "a long link")
os.mkfifo("pipe")
os.mkdir("folder")
open("other", "w").write("not asked for")
"""
    asked = ("changed", "same", "out/**", "link", "pipe", "folder", "absent")
    for language, source in (("python", code), ("command", "")):
        given = {"argv": ("python3", "-c", code)} if language == "command" else {"code": source}
        ran = await run(backend, outputs=asked, files={"changed": b"old", "same": b"same"}, **given)
        assert ran.ending == ("ok", 0), ran.stderr
        assert ran.outcome.files == {"changed": b"new", "out/d/d/d/" + "n" * 150: bytes(range(256)) * 1000}
        assert ran.outcome.left_out == {
            "same": "unchanged",
            "link": "a symbolic link, which is not followed",
            "pipe": "a pipe, not a regular file",
            "folder/": "a directory with nothing new in it",
            "absent": "there is no such file",
        }


@pytest.mark.parametrize("language", ["python", "bash"])
async def test_a_time_out_keeps_what_was_printed_and_written(backend: DockerBackend, language: str) -> None:
    code = "open('part', 'w').write('so far')\nprint('partial')\nwhile True: pass"
    if language == "bash":
        code = "printf 'so far' > part; echo partial; trap '' TERM; while :; do :; done"
    for seconds in (1.5, 7.5, 30.0):  # more on a machine where it gets to nothing so soon
        ran = await run(backend, code, language=language, outputs=("part",), limits={"time": seconds})
        if ran.stdout:
            break
    assert (ran.ending, ran.stdout) == (("timeout", None), "partial\n")
    assert ran.outcome.files == {"part": b"so far"}
    assert ran.outcome.usage.wall >= 1.5
    assert ran.outcome.usage.memory is not None
    assert ran.outcome.usage.memory > 100 * KiB
    assert ran.outcome.usage.cpu is not None
    assert ours() == []


async def test_memory_is_told_from_a_kill(backend: DockerBackend) -> None:
    small = {"memory": 64 * MiB}
    assert (await run(backend, "x = bytearray(200 << 20)", limits=small)).ending == ("memory", None)
    in_a_child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'x = bytearray(200 << 20)'])"
    assert (await run(backend, in_a_child, limits=small)).ending == ("memory", None)
    assert (await run(backend, "x = bytearray(32 << 20)", limits=small)).ending == ("ok", 0)
    killed = await run(backend, "import os; os.kill(os.getpid(), 9)", limits=small)
    assert (killed.ending, killed.outcome.error) == (("killed", 137), "it was ended by SIGKILL")


_PLENTY = """
import os
def take(what, one, most):
    count = 0
    try:
        while count < most:
            one(count)
            count += 1
    except OSError as error:
        print(what, count, error.strerror)
    else:
        print(what, count, "without end")
kept = []
take("files", lambda n: open(f"f{n}", "w").close(), 300)
take("descriptors", lambda n: kept.append(open("/dev/null")), 300)
kept.clear()
for n in range(200): os.unlink(f"f{n}") if os.path.exists(f"f{n}") else None
def fork(n):
    if os.fork() == 0:
        import time
        time.sleep(60)
take("processes", fork, 300)
take("bytes", lambda n: open(f"b{n}", "wb").write(b"x" * (1 << 20)), 64)
"""


async def test_limits_on_files_descriptors_processes_and_bytes_hold(backend: DockerBackend) -> None:
    limits = {"files": 200, "open_files": 64, "processes": 20, "disk": 8 * MiB}
    ran = await run(backend, _PLENTY, limits=limits)
    assert ran.stdout.splitlines() == [
        "files 200 No space left on device",
        f"descriptors {64 - 3} Too many open files",
        "processes 19 Resource temporarily unavailable",  # it is one itself
        "bytes 7 No space left on device",  # the eighth part is for shared memory
    ]
    unbound = {"files": 10_000, "open_files": 1024, "processes": 1000, "disk": 256 * MiB}
    ran = await run(backend, _PLENTY, limits=unbound)
    assert [line.split(" ", 2)[2] for line in ran.stdout.splitlines()] == ["without end"] * 4


async def test_processor_time_of_all_processes_is_limited(backend: DockerBackend) -> None:
    busy = "import os\nfor _ in range(3): os.fork()\nwhile True: pass"
    ran = await run(backend, busy, limits={"cpu": 1})
    assert (ran.ending, ran.outcome.error) == (
        ("timeout", None),
        "it used more than 1 s of processor time and was ended",
    )


async def test_a_flood_is_stopped(backend: DockerBackend) -> None:
    ran = await run(backend, "yes", language="bash", limits={"output_total": 4 * MiB})
    assert ran.ending == ("output", None)
    assert 4 * MiB < len(ran.stdout) < 5 * MiB


async def _talk(control: Control, printed: Callable[[str], Any]) -> None:
    for word in ("one", "two"):
        await control.write(f"{word}\n".encode())
        await printed(f"got {word}")
    control.end_input()


def _signal(*numbers: int) -> Callable[[Control, Callable[[str], Any]], Any]:
    async def send(control: Control, printed: Callable[[str], Any]) -> None:
        await printed("here")
        for number in numbers:
            control.signal(number)

    return send


_LOOP = "while read line; do echo got $line; done; echo end"
_TRAP = "trap 'echo caught; exit 5' INT; echo here; sleep 60 & wait"


async def test_input_and_signals_while_it_runs(backend: DockerBackend, engine: str) -> None:
    python = "import sys\nfor line in sys.stdin: print('got', line.strip())\nprint('end')"
    told = "got one\ngot two\nend\n"
    assert (await run(backend, python, meanwhile=_talk)).stdout == told
    assert (await run(backend, _LOOP, language="bash", meanwhile=_talk)).stdout == told
    waits = "print('here'); import time; time.sleep(60)"
    assert (await run(backend, waits, meanwhile=_signal(signal.SIGTERM))).ending == ("killed", 143)
    # Stopped it takes no notice; so it is only when it goes on that it ends.
    stopped = (signal.SIGSTOP, signal.SIGCONT, signal.SIGTERM)
    assert (await run(backend, waits, meanwhile=_signal(*stopped))).ending == ("killed", 143)
    caught = await run(backend, _TRAP, language="bash", meanwhile=_signal(signal.SIGINT))
    assert (caught.ending, caught.stdout) == (("error", 5), "here\ncaught\n")


async def test_without_a_network_there_is_still_a_host_of_its_own(backend: DockerBackend) -> None:
    code = """
import socket
with socket.create_server(("localhost", 0)) as server, socket.create_connection(("localhost", server.getsockname()[1])):
    print(open("/etc/hosts").read(), end="")
"""
    assert (await run(backend, code)).stdout == "127.0.0.1 localhost\n::1 localhost\n"
    (volume,) = docker("volume", "ls", "-q", "--filter", f"label=redoma.pid={os.getpid()}").split()
    docker("volume", "rm", volume)  # as somebody who tidies up does
    assert (await run(backend, code)).ending == ("ok", 0)
    await backend.aclose()
    assert docker("volume", "ls", "-q", "--filter", f"label=redoma.pid={os.getpid()}") == ""


async def test_a_configured_container_runs_the_command_itself(engine: str) -> None:
    plain = DockerBackend(Box.plain("python:3.11-slim", auto_remove=True), host=engine)
    try:
        here = await run(
            plain, argv=("sh", "-c", "pwd; echo $A; id -u; cat; exit 3"), cwd="/usr/lib", env={"A": "x"}, stdin=b"in"
        )
        assert (here.ending, here.stdout) == (("error", 3), "/usr/lib\nx\n0\nin")
        assert (await run(plain, argv=("sh", "-c", _LOOP), meanwhile=_talk)).stdout == "got one\ngot two\nend\n"
        term = await run(plain, argv=("sh", "-c", "echo here; exec sleep 60"), meanwhile=_signal(signal.SIGTERM))
        assert term.ending == ("killed", 143)
        missing = await run(plain, argv=("nothing-like-it",))
        assert missing.ending == ("error", 127)
        assert missing.outcome.error == "could not start nothing-like-it: No such file or directory"
        own = await run(plain, argv=("sh", "-c", "exit 127"))
        assert (own.ending, own.outcome.error) == (("error", 127), None)
        assert ours() == []
    finally:
        await plain.aclose()


async def test_a_container_that_is_not_to_be_removed_is_kept_until_we_close(engine: str) -> None:
    plain = DockerBackend(Box.plain("bash:5.2-alpine"), host=engine)
    try:
        assert (await run(plain, argv=("sh", "-c", "echo kept"))).stdout == "kept\n"
        (name,) = plain.kept
        assert docker("logs", name) == "kept\n"
        assert inspect(name)["State"]["Status"] == "exited"
    finally:
        await plain.aclose()
    assert ours() == []


_LOOK = """
import os
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
print("uid", os.getuid(), "capabilities", status["CapBnd"], "no_new_privs", status["NoNewPrivs"])
print("interfaces", [line.split(":")[0].strip() for line in open("/proc/net/dev").readlines()[2:]])
for path in ("/x", "/usr/x"):
    try:
        open(path, "a").close()
    except OSError as error:
        print(path, error.strerror)
    else:
        print(path, "was written")
"""


async def test_it_is_hardened_inside_and_the_result_says_so(backend: DockerBackend, engine: str) -> None:
    ran = await run(backend, _LOOK, require=("network", "capabilities", "user", "kernel", "memory", "filesystem"))
    assert ran.stdout == (
        "uid 65534 capabilities 0000000000000000 no_new_privs 1\ninterfaces ['lo']\n"
        "/x Read-only file system\n/usr/x Read-only file system\n"
    )
    assert ran.outcome.isolation.missing == ()
    plain = DockerBackend(Box.plain("python:3.11-slim", auto_remove=True, network_mode="host"), host=engine)
    try:  # as it is without the protection
        ran = await run(plain, argv=("python3", "-c", _LOOK))
        assert "uid 0" in ran.stdout
        assert "interfaces ['lo']" not in ran.stdout
        assert "/x was written" in ran.stdout
        assert {"net", "capabilities", "user", "no_new_privs", "memory", "pids"} <= set(ran.outcome.isolation.missing)
        with pytest.raises(BackendError, match="'network' is not available"):
            await run(plain, argv=("sh", "-c", "echo ran"), require=("network",))
    finally:
        await plain.aclose()


async def test_gvisor_runs_the_same(engine: str) -> None:
    if "runsc" not in docker("info", "--format", "{{json .Runtimes}}"):
        pytest.fail("the engine of the tests has no runsc")
    gvisor = DockerBackend(Box(runtime="runsc"), host=engine)
    try:
        ran = await run(gvisor, "print(open('/proc/version').read())\nopen('x', 'w').write('y')", outputs=("x",))
        assert "gVisor" in ran.stdout or "4.4.0" in ran.stdout  # the version that gVisor says it is
        assert ran.outcome.files == {"x": b"y"}
        assert ran.outcome.isolation.layers["kernel"].startswith("gVisor")
        trapped = await run(gvisor, _TRAP, language="bash", meanwhile=_signal(signal.SIGINT))
        assert (trapped.ending, trapped.stdout) == (("error", 5), "here\ncaught\n")
        assert (await run(gvisor, "x = bytearray(300 << 20)", limits={"memory": 128 * MiB})).ending == ("memory", None)
        assert (await run(gvisor, "while True: pass", limits={"time": 1.5})).ending == ("timeout", None)
        assert not {"files", "processes"} & gvisor.capabilities().limits  # which gVisor does not have
    finally:
        await gvisor.aclose()
