"""The process interface on the host and in cells; and where it differs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from process_stage import KINDS, configured, stage

import redoma
from redoma import Executor, InvalidRequest, Refused
from redoma.exec import ProcessExecutor

pytest.register_assert_rewrite("process_suite")

from process_suite import *  # noqa: E402, F403
from process_suite import started  # noqa: E402


@pytest.fixture(scope="module", params=["jail", "native"])
def executor(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    with stage(tmp_path_factory.mktemp("stage"), KINDS[request.param]) as executor:
        yield executor


def test_the_shared_executor_is_used_where_none_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Executor(configured(tmp_path, "name: shell, kind: exec.native"))
    monkeypatch.setattr(redoma.pipeline.sync, "_default", (os.getpid(), shared))
    with redoma.exec.get("app:shell") as shell:
        assert started(shell, "echo hi").stdout_stream().read_all() == "hi\n"
    shared.close()


def test_monty_takes_python_and_can_not_be_talked_to(tmp_path: Path) -> None:
    with Executor(configured(tmp_path, "name: calc, kind: exec.monty, default_env: {A: b}")) as executor:
        calc = redoma.exec.get("app:calc", executor)
        process = started(calc, "import os\nprint(os.getenv('A'))\n6 * 7")
        assert (process.wait(), process.result.value, process.stdout_stream().read_all()) == (0, 42, "b\n")
        assert process.result.backend == "monty"
        with pytest.raises(InvalidRequest, match="neither input nor signals"):
            process.write_stdin("x")
        with pytest.raises(InvalidRequest, match="neither input nor signals"):
            process.signal(signal.SIGTERM)
        with pytest.raises(Refused):
            calc.exec("eval(input())", policy="strict").start()
        with pytest.raises(InvalidRequest, match="no directories"):
            calc.exec("1", work_dir="/")
        with pytest.raises(InvalidRequest, match="several words"):
            calc.exec(["1", "+", "1"])


def test_input_that_nobody_reads_keeps_nobody_waiting(shell: ProcessExecutor) -> None:
    process = started(shell, ["sh", "-c", "exec <&-; echo closed; sleep 0.5; echo done"])
    assert process.stdout_stream().read() == "closed\n"
    for _ in range(30):
        process.write_stdin(b"x" * 100_000)  # far more than may wait
    assert process.wait() == 0


def test_a_directory_that_is_not_there_is_told(shell: ProcessExecutor) -> None:
    process = started(shell, "pwd", work_dir="/no/such/place")
    assert process.wait() != 0
    assert "could not enter /no/such/place: No such file or directory" in (process.result.error or "")
    if process.result.backend == "jail":
        with pytest.raises(InvalidRequest, match="absolute path inside"):
            shell.exec("pwd", work_dir="below")


def test_a_current_directory_that_is_gone_matters_to_those_who_would_work_there(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    entries = f"name: here, {KINDS['native']}", f"name: there, {KINDS['native']}, default_work_dir: /usr/lib"
    with Executor(configured(tmp_path, *entries)) as executor:
        here, there = redoma.exec.get("app:here", executor), redoma.exec.get("app:there", executor)
        assert started(there, "pwd").stdout_stream().read_all() == "/usr/lib\n"
        assert started(here, "pwd", work_dir="/usr/bin").stdout_stream().read_all() == "/usr/bin\n"
        assert started(here, "cat f", files={"f": "beside it"}).stdout_stream().read_all() == "beside it"
        for options in ({}, {"work_dir": "below"}):
            with pytest.raises(InvalidRequest, match="no directory to work in: the current one was removed"):
                here.exec("pwd", options)
        with pytest.raises(InvalidRequest, match="no directory to work in"):
            executor.command(["pwd"], backend="native")


def test_a_program_that_is_talked_to_holds_nothing_but_its_streams(shell: ProcessExecutor) -> None:
    process = started(shell, ["ls", "-l", "/proc/self/fd"])
    found = [line.split(" -> ")[1].partition(":")[0] for line in process.stdout_stream().read_all().splitlines()[1:]]
    assert found[:3] == ["pipe"] * 3
    assert len(found) == 4  # and the directory it reads


def test_signals_that_come_at_once_are_all_delivered_and_disturb_nothing(shell: ProcessExecutor) -> None:
    script = (
        "trap 'echo 1' USR1; trap 'echo 2' USR2; trap 'echo end; exit 0' TERM; echo up; while :; do sleep 0.01; done"
    )
    process = started(shell, ["sh", "-c", script])
    out = process.stdout_stream()
    assert out.read() == "up\n"
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
        process.signal(number)
    assert sorted(out.read_all().split()) == ["1", "2", "end"]
    assert process.wait() == 0
    for _ in range(3):  # those that were made ready meanwhile were not disturbed
        assert started(shell, "true").wait() == 0
