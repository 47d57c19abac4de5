"""The process interface on an event loop; and that nothing of a process is left, however it is left alone."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from process_stage import KINDS, configured

import redoma
from redoma import AsyncExecutor, InvalidRequest, RedomaError
from redoma.exec import AsyncProcess, AsyncProcessExecutor


@pytest.fixture(params=["jail", "native"])
async def shell(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AsyncProcessExecutor]:
    config = configured(tmp_path, f"name: shell, {KINDS[request.param]}")
    async with AsyncExecutor(config) as executor, redoma.exec.aget("app:shell", executor) as shell:
        yield shell


async def started(shell: AsyncProcessExecutor, command: str | list[str]) -> AsyncProcess:
    process = shell.exec(command)
    await process.start()
    return process


def sleepers(mark: str) -> list[int]:
    """Live processes of `sleep` with this argument, wherever they run."""
    found = []
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            try:
                words = (directory / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[:2] == [b"sleep", mark.encode()]:
                found.append(int(directory.name))
    return found


async def there_are(count: int, mark: str) -> bool:
    """Whether so many come to be, within a while."""
    deadline = time.monotonic() + 60
    while len(sleepers(mark)) != count and time.monotonic() < deadline:  # noqa: ASYNC110 - another process's doing
        await asyncio.sleep(0.02)
    return len(sleepers(mark)) == count


@pytest.fixture
def mark(tmp_path: Path) -> str:
    """A number of seconds that only this test sleeps."""
    return f"97{time.time_ns() % 10**9}"


async def test_a_conversation(shell: AsyncProcessExecutor) -> None:
    async with await started(shell, "cat") as process:
        out = process.stdout_stream()
        await process.write_stdin("one\n")
        assert await out.read() == "one\n"
        await process.write_stdin("two\n")
        process.close_stdin()
        assert [text async for text in out] == ["two\n"]
        assert await process.wait() == 0
        assert process.result.backend in KINDS


async def test_several_wait_and_read_at_once(shell: AsyncProcessExecutor) -> None:
    process = await started(shell, ["sh", "-c", "read -r x; echo out; echo err >&2; exit 5"])
    waiting = asyncio.gather(
        process.wait(), process.wait(), process.stdout_stream().read_all(), process.stderr_stream().read_all()
    )
    await asyncio.sleep(0.05)
    await process.write_stdin("\n")
    assert list(await waiting) == [5, 5, "out\n", "err\n"]


async def test_whoever_is_cancelled_while_reading_leaves_the_process_alone(shell: AsyncProcessExecutor) -> None:
    process = await started(shell, "cat")
    for work in (process.stdout_stream().read(), process.wait()):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(work, 0.05)
    await process.write_stdin("here\n")
    assert await process.stdout_stream().read() == "here\n"
    process.signal(signal.SIGTERM)
    assert await process.wait() == 143


async def test_closing_leaves_nothing(shell: AsyncProcessExecutor, mark: str) -> None:
    process = await started(shell, ["sh", "-c", f"sleep {mark} & sleep {mark}"])
    assert await there_are(2, mark)
    await process.close()
    assert sleepers(mark) == []


async def test_a_cancelled_start_leaves_nothing(shell: AsyncProcessExecutor, mark: str) -> None:
    process = shell.exec(["sleep", mark])
    starting = asyncio.create_task(process.start())
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert sleepers(mark) == []
    with pytest.raises(RedomaError):
        await process.wait()


async def test_a_process_that_nobody_refers_to_is_ended(shell: AsyncProcessExecutor, mark: str) -> None:
    process = await started(shell, ["sleep", mark])
    assert await there_are(1, mark)
    output = process.stdout_stream()
    del process
    gc.collect()
    await asyncio.sleep(0.2)
    assert sleepers(mark)  # its output is still somebody's
    del output
    assert await there_are(0, mark)


async def test_releasing_leaves_nothing(shell: AsyncProcessExecutor, mark: str) -> None:
    processes = [await started(shell, ["sleep", mark]) for _ in range(2)]
    assert await there_are(2, mark)
    await shell.release()
    assert sleepers(mark) == []
    assert all(process.stdout_stream() is not None for process in processes)


async def test_closing_the_executor_ends_its_processes(tmp_path: Path, mark: str) -> None:
    with redoma.Executor(configured(tmp_path, "name: shell, kind: exec.native")) as executor:
        process = redoma.exec.get("app:shell", executor).exec(["sleep", mark])
        process.start()
    assert sleepers(mark) == []
    with pytest.raises(RedomaError, match="closed"):
        process.wait()
    process.close()


async def test_one_of_its_own_is_closed_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDOMA_STATE_DIR", str(tmp_path / "state"))
    file = Path.home() / ".config" / "redoma" / "redoma.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("namespace: app\nentries: [{name: shell, kind: exec.native}]\n")
    async with redoma.exec.aget("app:shell") as shell:
        process = await started(shell, "echo hi")
        assert await process.stdout_stream().read_all() == "hi\n"
    with pytest.raises(InvalidRequest, match="released"):
        shell.exec("true")


WAITS = """
import sys, redoma
from pathlib import Path

executor = redoma.Executor(redoma.config.load(Path(sys.argv[1])))
script = f"sleep {sys.argv[2]} & exec sleep {sys.argv[2]}"
process = redoma.exec.get("app:shell", executor).exec(["sh", "-c", script])
process.start()
print("up", flush=True)
process.wait()
"""


@pytest.mark.parametrize("kind", ["jail", "native"])
def test_killing_us_leaves_nothing(tmp_path: Path, kind: str, mark: str) -> None:
    configured(tmp_path, f"name: shell, {KINDS[kind]}")
    us = subprocess.Popen(
        [sys.executable, "-c", WAITS, str(tmp_path / "stage.yaml"), mark],
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    try:
        assert us.stdout is not None
        with us.stdout:
            assert us.stdout.readline() == b"up\n"
        assert asyncio.run(there_are(2, mark))
    finally:
        us.kill()
        us.wait()
    assert asyncio.run(there_are(0, mark))
