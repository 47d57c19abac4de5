"""A script executor that is used once and never closed, and one that lacks what it needs."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from redoma import Config, InvalidRequest
from redoma.config import AuditConfig, DockerConfig
from redoma.scripts import ExecutionResult, ScriptExecutor

HELLO = ExecutionResult(True, "hello\n", "", 0)


@pytest.mark.usefixtures("engine", "nothing_left_behind")
@pytest.mark.parametrize("backend", ["docker", "jail"])
def test_without_a_block_it_runs_on_any_loop_and_keeps_nothing(backend: str, config: Config) -> None:
    scripts = ScriptExecutor(backend, config=config)  # type: ignore[arg-type]

    async def several() -> list[ExecutionResult]:
        return await asyncio.gather(*(scripts.execute("echo hello", "bash") for _ in range(3)))

    assert asyncio.run(scripts.execute("print('hello')", "python")) == HELLO
    assert asyncio.run(several()) == [HELLO] * 3
    left = ["docker", "ps", "--all", "--quiet", "--filter", f"label=redoma.pid={os.getpid()}"]
    assert subprocess.run(left, check=True, capture_output=True).stdout == b""


@pytest.mark.usefixtures("engine", "nothing_left_behind")
@pytest.mark.parametrize("backend", ["docker", "jail"])
async def test_kept_warm_it_is_closed_with_its_block_and_can_be_used_again(backend: str, config: Config) -> None:
    async with ScriptExecutor(backend, config=config, warm=1) as scripts:  # type: ignore[arg-type]
        for _ in range(2):
            assert await scripts.execute("print('hello')", "python") == HELLO
    assert await scripts.execute("echo hello", "bash") == HELLO


def _in_the_engine() -> bytes:
    """Containers and volumes of this process."""
    mine = ("--quiet", "--filter", f"label=redoma.pid={os.getpid()}")
    asked = (("docker", "ps", "--all", *mine), ("docker", "volume", "ls", *mine))
    return b"".join(subprocess.run(words, check=True, capture_output=True).stdout for words in asked)


@pytest.mark.usefixtures("engine", "nothing_left_behind")
@pytest.mark.parametrize("moment", [0.0, 0.1, 0.3, 1.0])
async def test_a_block_that_is_left_with_scripts_still_running_leaves_nothing(
    config: Config, moment: float, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        await asyncio.sleep(moment)
        raise ZeroDivisionError

    running: list[asyncio.Task[ExecutionResult]] = []

    async def work() -> None:
        async with ScriptExecutor(config=config) as scripts:
            for script, kind in (("import time\ntime.sleep(50)", "python"), ("sleep 50", "bash")):
                running.append(asyncio.create_task(scripts.execute(script, kind)))
            await asyncio.gather(*running, fail())

    with pytest.raises(ZeroDivisionError):
        await work()
    assert _in_the_engine() == b""
    for result in await asyncio.gather(*running):
        assert (result.success, result.exit_code, result.timeout) == (False, -1, False)
        assert (result.error or "").startswith("docker is closed: its executor was. Next: ")
    assert _in_the_engine() == b""
    gc.collect()
    # Nothing such as "Unclosed client session"; that they have failed is ours to tell.
    assert [text for text in caplog.messages if not (text.startswith("run.ended ") and "status=failed" in text)] == []


@pytest.mark.usefixtures("engine", "nothing_left_behind")
@pytest.mark.parametrize("backend", ["docker", "jail"])
def test_threads_with_loops_of_their_own_share_one_and_each_lets_go_of_its_part(
    backend: str, config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    scripts = ScriptExecutor(backend, config=config)  # type: ignore[arg-type]

    def once(number: int) -> ExecutionResult:
        return asyncio.run(scripts.execute(f"echo {number}", "bash"))

    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(once, range(12)))
    assert results == [ExecutionResult(True, f"{number}\n", "", 0) for number in range(12)]
    assert _in_the_engine() == b""
    gc.collect()
    assert caplog.messages == []


@pytest.mark.usefixtures("engine")
async def test_containers_are_as_configured_but_for_what_scripts_are_promised(config: Config, tmp_path: Path) -> None:
    def executor(docker: DockerConfig, **given: Any) -> ScriptExecutor:
        return ScriptExecutor(config=msgspec.structs.replace(config, docker=docker), **given)

    nowhere = DockerConfig(host=f"unix://{tmp_path}/configured.sock", python="other:1", bash="other:1")
    assert "configured.sock" in ((await executor(nowhere).execute("echo hello", "bash")).error or "")
    given = executor(nowhere, host=os.environ["DOCKER_HOST"])
    assert await given.execute("echo hello", "bash") == HELLO  # with the promised image, and the host that was given
    result = await executor(DockerConfig(runtime="no-such-runtime")).execute("echo hello", "bash")
    assert (result.exit_code, "no runtime 'no-such-runtime'" in (result.error or "")) == (-1, True)


@pytest.mark.usefixtures("engine")
async def test_with_gvisor_scripts_run_on_its_kernel(config: Config) -> None:
    """Whose number of processes can't be limited, so that the promise of 100 is waived: see docs/scripts.md."""
    gvisor = msgspec.structs.replace(config, docker=DockerConfig(runtime="runsc"))
    async with ScriptExecutor(config=gvisor) as scripts:
        assert await scripts.execute("print('hello')", "python") == HELLO
        assert "Starting gVisor" in (await scripts.execute("dmesg", "bash")).stdout


async def test_without_an_engine_the_error_says_what_to_do(config: Config, tmp_path: Path) -> None:
    scripts = ScriptExecutor(config=config, host=f"unix://{tmp_path}/no.sock")
    result = await scripts.execute("print('hello')", "python")
    assert (result.success, result.exit_code, result.validation_failed, result.timeout) == (False, -1, False, False)
    assert "engine" in result.stderr
    assert "Next: " in result.stderr
    assert result.error == result.stderr


@pytest.mark.usefixtures("engine")
async def test_without_the_image_the_error_says_what_to_do(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScriptExecutor, "IMAGES", MappingProxyType(dict.fromkeys(("python", "bash"), "redoma-none:0")))
    result = await ScriptExecutor(config=config).execute("print('hello')", "python")
    assert (result.success, result.exit_code, result.validation_failed) == (False, -1, False)
    assert "redoma-none:0" in result.stderr
    assert "docker pull" in result.stderr
    assert result.error == result.stderr


async def test_what_can_not_be_recorded_does_not_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    scripts = ScriptExecutor("jail", config=Config(audit=AuditConfig(directory=tmp_path / "file")))
    result = await scripts.execute("print('hello')", "python")
    assert (result.success, result.stdout, result.exit_code, result.validation_failed) == (False, "", -1, False)
    assert result.error
    assert result.error == result.stderr


@pytest.mark.parametrize("warm", ["2", 1.5, True, -1, None, 10**6])
def test_a_number_to_keep_warm_that_is_none_is_refused_at_once(config: Config, warm: Any) -> None:
    for backend in ("docker", "jail"):
        with pytest.raises(InvalidRequest, match="warm is "):
            ScriptExecutor(backend, config=config, warm=warm)


def test_a_backend_without_a_boundary_is_not_taken(config: Config) -> None:
    with pytest.raises(InvalidRequest, match="'docker' or 'jail'"):
        ScriptExecutor("native", config=config)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="no engine"):
        ScriptExecutor("jail", config=config, pull=True)
