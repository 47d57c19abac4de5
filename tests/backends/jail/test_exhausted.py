"""Nothing left of a resource: a run says so, and the next works once there is some again."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jail_insides import SLOW, jail, look, run

from redoma import Status

_GENEROUS = 60.0 * SLOW  # seconds, where a quiet machine needs a few hundredths
_HERE = Path(__file__).parent

_EXHAUSTED = """
import asyncio, json, os, resource, subprocess, sys, tempfile, time
from pathlib import Path
from redoma import AsyncExecutor, Config
from redoma.backends.jail import JailBackend
from redoma.config import AuditConfig

slowest = 0.0
async def run(executor, **options):
    global slowest
    start = time.monotonic()
    result = await executor.run("6 * 7", backend="jail", policy="none", **options)
    slowest = max(slowest, time.monotonic() - start)
    return result

def make(place):
    backend = JailBackend()
    return AsyncExecutor(Config(audit=AuditConfig(directory=Path(place), enabled=False)), backends=[backend]), backend

def open_files():
    return len(os.listdir("/proc/self/fd"))
"""

_FILES = """
hogs = []
def exhaust(but):
    try:
        while True:
            hogs.append(os.dup(0))
    except OSError:
        for _ in range(but):
            os.close(hogs.pop())
def release():
    while hogs:
        os.close(hogs.pop())

async def main():
    resource.setrlimit(resource.RLIMIT_NOFILE, (120, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    executor, backend = make("/nowhere")
    await run(executor)  # whatever Python imports on the way has been imported
    await executor.aclose()
    failed, before = [], open_files()
    for cold in (True, False):
        executor, backend = make("/nowhere")
        for free in range(0, 24, 2 if cold else 1):
            if not cold:
                await run(executor)
            exhaust(free)
            try:
                results = [await run(executor) for _ in range(3)]
            finally:
                release()
            failed += [result.error for result in results if result.status == "failed"]
            wrong = [result for result in results if result.status not in ("failed", "ok")]
            assert not wrong, wrong
            after = await run(executor)
            assert after.value == 42, (cold, free, after)
            if cold:
                await executor.aclose()
                executor, backend = make("/nowhere")
        await executor.aclose()
    for _ in range(300):  # a slow machine takes its time to close what was open
        await asyncio.sleep(0.2)
        if open_files() == before:
            break
    print(json.dumps({"failed": sorted(set(failed)), "left": open_files() - before, "slowest": slowest}))
asyncio.run(main())
"""


def _exhausted(code: str, command: list[str] | None = None) -> dict[str, Any]:
    done = subprocess.run(
        [*(command or [sys.executable]), "-c", _EXHAUSTED + code],
        capture_output=True,
        text=True,
        timeout=300 * SLOW,
        cwd="/",
        env={"PATH": os.defpath, "HOME": "/nowhere"},
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.any_kernel
def test_runs_without_descriptors_fail_with_the_reason_and_work_when_there_are_some_again() -> None:
    answer = _exhausted(_FILES)
    assert answer["failed"]
    for error in answer["failed"]:
        assert "open files" in error
        assert "bug" not in error
    assert answer["left"] == 0
    assert answer["slowest"] < _GENEROUS


_PROCESSES = """
hogs = []
def used():
    threads = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if f"\\nUid:\\t{os.getuid()}\\t" in Path(f"/proc/{pid}/status").read_text():
                threads += len(os.listdir(f"/proc/{pid}/task"))
        except OSError:
            continue  # it has ended since
    return threads
def exhaust():
    try:
        while True:
            hogs.append(subprocess.Popen(["sleep", "120"]))
    except OSError:
        return
def release():
    for hog in hogs:
        hog.kill()
    while hogs:
        hogs.pop().wait()

async def main():
    most = used() + 30
    resource.setrlimit(resource.RLIMIT_NPROC, (most, resource.getrlimit(resource.RLIMIT_NPROC)[1]))
    executor, backend = make("/nowhere")
    exhaust()  # not even a thread can be started
    try:
        cold = await run(executor)
    finally:
        release()
    first = await run(executor)
    assert first.value == 42, first
    failed, odd = [cold.error], 1 << 24
    for _ in range(3):
        while backend._pools[None, None, None].counts()["armed"] < 2:
            await asyncio.sleep(0.01)
        results = []
        try:
            for _ in range(40):
                await asyncio.sleep(0.05)  # what was on its way out is gone
                exhaust()
                odd += 4096  # for which no cell is armed, or kept
                result = await run(executor, limits={"disk": odd})
                if result.status != "ok":  # else something that was still on its way out has made room
                    results.append(result)
                if len(results) == 4:
                    break
            armed = await run(executor)
        finally:
            release()
        failed += [result.error or str(result) for result in results]
        after = await run(executor)
        assert (armed.value, after.value) == (42, 42), (armed, after)
    exhaust()
    try:
        await executor.aclose()
    finally:
        release()
    print(json.dumps({"cold": cold.status, "failed": failed, "slowest": slowest}))
asyncio.run(main())
"""


@pytest.fixture
def somebody() -> Iterator[list[str]]:
    """An interpreter of somebody whose processes are limited in number: root's are not."""
    if os.geteuid():
        yield [sys.executable]
        return
    sys.path.insert(0, str(_HERE.parents[1] / "attacks"))
    try:
        from jail_crew import unprivileged
    finally:
        sys.path.pop(0)
    with tempfile.TemporaryDirectory(prefix="somebody-") as place:
        # Another user than that of the attacks, whose processes may come and go at this moment.
        yield [re.sub("(--re.id=).*", r"\g<1>47999", word) for word in unprivileged(Path(place))[:-1]]


def test_runs_without_processes_fail_with_the_reason_and_work_when_there_are_some_again(somebody: list[str]) -> None:
    answer = _exhausted(_PROCESSES, somebody)
    assert answer["cold"] == "failed"
    assert len(answer["failed"]) == 1 + 3 * 4
    assert all("thread" in error or "unavailable" in error for error in answer["failed"]), answer["failed"]
    assert answer["slowest"] < _GENEROUS


@pytest.mark.any_kernel
def test_more_descriptors_than_select_knows_are_no_problem() -> None:
    code = """
resource.setrlimit(resource.RLIMIT_NOFILE, (2000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
async def main():
    many = [os.dup(0) for _ in range(1500)]
    executor, backend = make("/nowhere")
    values = [(await run(executor)).value for _ in range(5)]
    await executor.aclose()
    print(json.dumps({"values": values}))
asyncio.run(main())
"""
    assert _exhausted(code)["values"] == [42] * 5


async def test_a_guest_that_has_filled_its_disk_still_reports_and_the_next_has_an_empty_one(tmp_path: Path) -> None:
    before = look()
    executor, _ = jail(tmp_path)
    limits = {"disk": 4 << 20}
    fill = "try:\n    with open('big', 'wb') as f:\n        while True: f.write(b'x' * 65536)\nexcept OSError: pass\n"
    result = await run(executor, fill + "'still here'", limits=limits)
    assert (result.status, result.value) == (Status.OK, "still here")
    result = await run(executor, fill + "open('/tmp/more', 'w').write('x' * 65536)", limits=limits)
    assert result.status is Status.ERROR
    assert "4MiB together" in result.hints[0]
    result = await run(executor, "open('a', 'wb').write(b'x' * 3000000)", limits=limits)
    assert (result.status, result.value) == (Status.OK, 3000000)
    await executor.aclose()
    assert before.left_in_the_end() == {}


def test_full_temporary_file_systems_of_the_host_do_not_matter(tmp_path: Path) -> None:
    """In a mount namespace of its own, where /dev/shm and the temporary directory have no room for a byte."""
    code = (
        _EXHAUSTED
        + """
async def main():
    executor, backend = make("/nowhere")
    full = []
    for directory in ("/dev/shm", sys.argv[1]):
        try:
            open(os.path.join(directory, "file"), "w").write("x" * 100)
        except OSError as error:
            full.append(error.errno)
    code = "open('/dev/shm/a', 'w').write('x' * 9999); open('b', 'w').write('y')"
    result = await executor.run(code, backend="jail", policy="none", files={"a": b"x"}, outputs=["**"])
    await executor.aclose()
    print(json.dumps({"full": full, "status": result.status, "error": result.error}))
os.environ["TMPDIR"] = sys.argv[1]
asyncio.run(main())
"""
    )
    full = tmp_path / "full"
    full.mkdir()
    mounts = f"mount -t tmpfs -o nr_inodes=1 none /dev/shm && mount -t tmpfs -o nr_inodes=1 none {full}"
    # Who may mount only as root of a namespace is somebody else again afterwards.
    become = "" if os.geteuid() == 0 else "unshare -U --map-user=1000 --map-group=1000"
    done = subprocess.run(
        [
            *("unshare", "-m" if os.geteuid() == 0 else "-rm", "sh", "-c", f'{mounts} && exec {become} "$@"', "sh"),
            *(sys.executable, "-c", code, str(full)),
        ],
        capture_output=True,
        text=True,
        timeout=120 * SLOW,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"full": [28, 28], "status": "ok", "error": None}
