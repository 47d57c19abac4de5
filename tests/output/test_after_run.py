"""On the whole path, in real cells and with the real program: data or a mismatch, diagnoses, and all of the output."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from redoma import AsyncExecutor, Config, Executor, InvalidRequest, Status
from redoma.audit import AuditLog
from redoma.frontends.shapes import result_json

Command = Callable[..., "subprocess.CompletedProcess[str]"]

LONG = "print('line 0'); [print('line', n) for n in range(1, 5000)]; None"


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return tmp_path / "state" / "artifacts"


@pytest.fixture
def executor(config: Config, kept: Path) -> Iterator[Executor]:
    with Executor(msgspec.structs.replace(config, state=kept.parent)) as executor:
        yield executor


def records(config: Config) -> list[dict[str, object]]:
    return [record.data for record in AuditLog(config.audit.directory).tail(10)]


def test_what_was_expected_is_data_and_on_record(executor: Executor, config: Config) -> None:
    result = executor.run("import json; print(json.dumps({'n': [1, 2]}))", expect=dict[str, list[int]])
    assert (result.status, result.data, result.mismatch) == (Status.OK, {"n": [1, 2]}, None)
    intent, outcome = records(config)
    assert intent["expect"] == "type dict[str, list[int]]"
    assert "mismatch" not in outcome


def test_a_mismatch_is_an_error_of_a_run_that_ran_and_on_record(executor: Executor, config: Config) -> None:
    schema = {"items": {"properties": {"price": {"type": "number"}}}}
    result = executor.run('print(\'[{"price": "x"}]\')', expect=schema)
    assert (result.status, result.exit_code, result.data) == (Status.ERROR, 0, None)
    assert result.mismatch == "$[0].price: expected number, got str"
    assert result.shell_exit == 1
    assert records(config)[1]["mismatch"] == result.mismatch


def test_the_value_of_an_expression_counts_where_nothing_is_printed(executor: Executor) -> None:
    assert executor.run("[1, 2]", expect=list[int]).data == [1, 2]


def test_a_bad_expectation_is_refused_before_anything_runs_or_is_recorded(executor: Executor, config: Config) -> None:
    for call in (lambda: executor.run("1", expect="xml"), lambda: executor.stream("1", expect={"type": "nope"})):
        with pytest.raises(InvalidRequest):
            call()
    assert not config.audit.directory.exists()


def test_an_exception_is_named_with_its_place(executor: Executor, config: Config) -> None:
    result = executor.run("def f():\n    return {}['k']\nf()")
    (only,) = result.diagnoses
    assert (only.kind, only.exception, only.line, only.function) == ("python.exception", "KeyError", 2, "f")
    assert records(config)[1]["diagnoses"] == ["python.exception"]
    bash = executor.run("nosuch", "bash")
    assert [one.kind for one in bash.diagnoses] == ["shell.command"]


def test_all_of_a_long_output_can_be_read(executor: Executor, kept: Path, config: Config) -> None:
    result = executor.run(LONG)
    artifact = result.artifacts["stdout"]
    assert "left out" in result.stdout
    assert artifact.lines(2500, 2) == ["line 2499", "line 2500"]
    assert artifact.read(0, artifact.size).decode() == "".join(f"line {n}\n" for n in range(5000))
    assert os.listdir(kept) == [f"{result.id}.stdout"]
    assert records(config)[1]["artifacts"] == {"stdout": msgspec.to_builtins(artifact)}
    assert str(kept) not in json.dumps(result_json(result))


def test_an_expectation_is_of_all_that_was_printed(executor: Executor) -> None:
    result = executor.run("import json; print(json.dumps(list(range(300_000))))", expect=list[int])
    assert result.omitted
    assert result.data == list(range(300_000))


def test_without_a_place_nothing_is_kept_and_a_cut_output_is_a_mismatch(config: Config) -> None:
    with Executor(config) as executor:
        result = executor.run(LONG, expect="regex:(?s).*")
    assert result.artifacts == {}
    assert "limits.output_bytes" in (result.mismatch or "")


async def test_a_run_that_is_cancelled_leaves_no_part(config: Config, kept: Path) -> None:
    endless = "while True: print('x' * 1000)"
    os.makedirs(kept, 0o700)
    async with AsyncExecutor(msgspec.structs.replace(config, state=kept.parent)) as executor:
        run = asyncio.create_task(executor.run(endless, limits={"output_total": 1 << 40, "time": 60, "cpu": 600}))
        while not os.listdir(kept) and not run.done():  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.01)
        assert len(os.listdir(kept)) == 1
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
    assert os.listdir(kept) == []


def test_a_run_that_prints_too_much_keeps_what_it_may(executor: Executor) -> None:
    result = executor.run("while True: print('x' * 1000)", limits={"output_total": 3_000_000})
    assert result.status is Status.OUTPUT
    artifact = result.artifacts["stdout"]
    assert 2_000_000 < artifact.size <= 3_000_000


def test_models_of_others_can_be_shown_as_json(executor: Executor) -> None:
    class Point(msgspec.Struct):
        x: int

    result = executor.run("print('{\"x\": 3}')", expect=Point)
    assert result.data == Point(3)
    assert result_json(result)["data"] == {"x": 3}


# --- the program ---------------------------------------------------------------------------------------------


def test_expect_on_the_command_line(redoma_command: Command, tmp_path: Path) -> None:
    schema = tmp_path / "a.schema.json"
    schema.write_text('{"type": "array"}')
    fits = redoma_command("run", "--expect", str(schema), "--json", "print([1])")
    assert json.loads(fits.stdout)["data"] == [1]
    differs = redoma_command("run", "--expect", str(schema), "import sys; print('{}'); print('log', file=sys.stderr)")
    assert differs.returncode == 1
    assert "$: expected array, got object" in differs.stderr
    regex = redoma_command("run", "--expect", "regex:[0-9]+", "print(42)")
    assert (regex.returncode, regex.stdout) == (0, "42\n")
    schema.write_text("[]")
    for bad in (str(schema), "regex:("):
        refused = redoma_command("run", "--expect", bad, "print(42)")
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "next:" in refused.stderr


def test_redoma_output_reads_what_was_cut(redoma_command: Command) -> None:
    nothing = redoma_command("output")
    assert (nothing.returncode, nothing.stdout) == (0, "")
    run = json.loads(redoma_command("run", "--json", LONG).stdout)["id"]
    text = "".join(f"line {n}\n" for n in range(5000))
    assert redoma_command("output", run).stdout == text
    assert redoma_command("output", run, "--from", "3", "--lines", "2").stdout == "line 2\nline 3\n"
    assert redoma_command("output", run, "--bytes", "0-5").stdout == "line 0"
    assert redoma_command("output", run, "--bytes", f"{len(text) - 5}-").stdout == text[-5:]
    assert redoma_command("output", run, "--grep", "line 12$").stdout == "13:line 12\n"
    described = json.loads(redoma_command("output", run, "--json").stdout)
    assert (described["size"], described["line_count"]) == (len(text), 5000)
    assert run in redoma_command("output").stdout
    for wrong in (["nope"], [run, "--bytes", "9-3"], [run, "--grep", "x", "--lines", "2"]):
        refused = redoma_command("output", *wrong)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "next:" in refused.stderr
