"""What programs that were written for the script executor's source system rely on: names, fields and sentences."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from redoma import Config, InvalidRequest
from redoma.scripts import executor, patterns, validation
from redoma.scripts.executor import ExecutionResult, ScriptExecutor
from redoma.scripts.patterns import BASH_DANGEROUS_PATTERNS, PYTHON_DANGEROUS_PATTERNS, SECRET_PATTERNS
from redoma.scripts.validation import ScriptValidator, ValidationResult


@pytest_asyncio.fixture(params=["docker", "jail"])
async def scripts(request: pytest.FixtureRequest, config: Config, tmp_path: str) -> AsyncIterator[ScriptExecutor]:
    """Nothing that is refused needs an engine, so there is none."""
    host = f"unix://{tmp_path}/none.sock" if request.param == "docker" else None
    async with ScriptExecutor(request.param, config=config, host=host) as kept:
        yield kept


def test_each_name_is_at_home_in_its_module() -> None:
    import redoma.scripts as package

    assert (package.ScriptExecutor, package.ExecutionResult) == (ScriptExecutor, ExecutionResult)
    assert (package.ScriptValidator, package.ValidationResult) == (ScriptValidator, ValidationResult)
    assert (package.executor, package.validation, package.patterns) == (executor, validation, patterns)
    for name, value in (
        ("SECRET_PATTERNS", SECRET_PATTERNS),
        ("PYTHON_DANGEROUS_PATTERNS", PYTHON_DANGEROUS_PATTERNS),
        ("BASH_DANGEROUS_PATTERNS", BASH_DANGEROUS_PATTERNS),
    ):
        assert getattr(package, name) is value
    assert ScriptExecutor.__module__ == "redoma.scripts.executor"
    assert ScriptValidator.__module__ == "redoma.scripts.validation"


def test_the_class_says_what_scripts_are_given() -> None:
    assert ScriptExecutor.IMAGES == {"python": "python:3.11-slim", "bash": "bash:5.2-alpine"}
    assert (ScriptExecutor.MEMORY_LIMIT, ScriptExecutor.CPU_LIMIT, ScriptExecutor.PID_LIMIT) == ("512m", 1.0, 100)
    assert (ScriptExecutor.DEFAULT_TIMEOUT, ScriptExecutor.MAX_TIMEOUT) == (60, 300)


def test_the_call_and_the_result_have_their_fields_in_order() -> None:
    assert list(inspect.signature(ScriptExecutor.execute).parameters) == [
        *("self", "script_content", "script_type", "timeout")
    ]
    fields = inspect.signature(ExecutionResult).parameters.values()
    assert [field.name for field in fields] == [
        *("success", "stdout", "stderr", "exit_code", "timeout", "validation_failed", "error")
    ]
    assert [field.default for field in fields][4:] == [False, False, None]


async def test_too_long_a_script(scripts: ScriptExecutor) -> None:
    result = await scripts.execute("x = 1\n" * 2000, "python")
    assert result.success is False
    assert result.validation_failed is True
    assert "10000" in result.stderr
    assert result.exit_code is None


async def test_an_embedded_secret(scripts: ScriptExecutor) -> None:
    result = await scripts.execute('api_key = "sk-1234567890abcdef"', "python")
    assert result.success is False
    assert result.validation_failed is True
    assert "secret" in result.stderr.lower()


@pytest.mark.parametrize(("script", "kind"), [("eval('1 + 1')", "python"), ("eval $cmd", "bash")])
async def test_a_dangerous_pattern(scripts: ScriptExecutor, script: str, kind: str) -> None:
    result = await scripts.execute(script, kind)
    assert result.success is False
    assert result.validation_failed is True
    assert "dangerous" in result.stderr.lower()


@pytest.mark.parametrize(("script", "kind"), [("def foo(\n    print('x')", "python"), ("if true; then", "bash")])
async def test_a_syntax_error(scripts: ScriptExecutor, script: str, kind: str) -> None:
    result = await scripts.execute(script, kind)
    assert result.success is False
    assert result.validation_failed is True
    assert "syntax" in result.stderr.lower()


async def test_another_script_type(scripts: ScriptExecutor) -> None:
    result = await scripts.execute("puts 1", "ruby")
    assert result.success is False
    assert result.validation_failed is True
    assert "Invalid script_type" in (result.error or "")
    assert "Must be 'python' or 'bash'" in result.stderr
    assert (result.error or "").startswith("Invalid script_type")


@pytest.mark.parametrize(
    ("script", "kind", "seconds"),
    [
        ("#" * 10_001, "python", None),
        ("password = 'hunter2'", "python", None),
        ("exec('x')", "python", None),
        ("def f(", "python", None),
        ("echo a;;", "bash", None),
        ("puts 1", "ruby", None),
        (b"print(1)", "python", None),
        ("print(1)", "python", -1),
    ],
)
async def test_every_refusal_has_its_message_in_both_fields_and_no_exit_code(
    scripts: ScriptExecutor, script: str, kind: str, seconds: float | None
) -> None:
    result = await scripts.execute(script, kind, seconds)
    assert result.error
    assert result == ExecutionResult(False, "", result.error, None, validation_failed=True, error=result.error)


async def test_what_could_not_run_at_all_says_why_in_both_fields(config: Config, tmp_path: str) -> None:
    result = await ScriptExecutor(config=config, host=f"unix://{tmp_path}/none.sock").execute("print(1)", "python")
    assert result.error
    assert result == ExecutionResult(False, "", result.error, -1, error=result.error)


async def test_what_is_printed_without_a_line_end_is_apart_from_the_sentence_about_the_time(config: Config) -> None:
    async with ScriptExecutor("jail", config=config) as scripts:
        for seconds in (1, 10, 40):  # until it has printed that by then
            result = await scripts.execute("printf out; printf err >&2; sleep 60", "bash", seconds)
            if result.stdout and "err" in result.stderr:
                break
    said = f"Script execution timed out after {seconds}s"
    assert result == ExecutionResult(False, "out", f"err\n{said}", -1, timeout=True, error=said)


async def test_a_subclass_may_set_the_limits(config: Config) -> None:
    class Smaller(ScriptExecutor):
        MEMORY_LIMIT = "64m"
        PID_LIMIT = 5
        MAX_TIMEOUT = 2

    async with Smaller("jail", config=config) as scripts:
        memory = await scripts.execute("x = bytearray(100_000_000)", "python")
        late = await scripts.execute("sleep 30", "bash", 20)
    assert (memory.success, "memory" in (memory.error or "")) == (False, True)
    assert late.stderr == "Script execution timed out after 2s"


async def test_a_memory_limit_that_is_no_size_is_an_error(config: Config) -> None:
    class Wrong(ScriptExecutor):
        MEMORY_LIMIT = "much"

    with pytest.raises(InvalidRequest, match="MEMORY_LIMIT is 'much'"):
        await Wrong("jail", config=config).execute("print(1)", "python")
