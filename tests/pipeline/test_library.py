"""The library as people call it: the names they write, the values that come back, and texts that help."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import subprocess
import sys
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

import redoma
from redoma import Answer, AsyncExecutor, Config, Executor, FakeBackend, InvalidRequest, Limits, Request, Result, Status
from redoma.backends.jail import value as codec
from redoma.backends.jail import value_reading
from redoma.config import NativeEntry
from redoma.lib.extras import pip_install
from redoma.pipeline.intake import Options


@pytest.fixture
def fake(config: Config) -> Any:
    seen: list[Request] = []

    def remember(request: Request) -> bool:
        seen.append(request)
        return True

    with Executor(config, backends=[FakeBackend(Answer(when=remember))]) as executor:

        def run(**options: Any) -> Request:
            result = executor.run("1", backend="fake", **options)
            assert result.ok, result.error
            return seen[-1]

        yield run


# --- options ---------------------------------------------------------------------------------------------------


def test_timeout_and_memory_are_short_for_limits(fake: Any) -> None:
    limits = fake(timeout=5, memory="256MiB").limits
    assert (limits.time, limits.memory) == (5, 256 << 20)
    assert fake(timeout=None, memory=None).limits == Limits()
    assert fake(timeout=2, limits=Limits(time=9, disk=1 << 20)).limits == Limits(time=2, disk=1 << 20)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("256MiB", 256 << 20),
        ("1.5GB", 1_500_000_000),
        ("2048 KiB", 2 << 20),
        ("1048576", 1048576),
        ("256m", 256_000_000),
        ("256M", 256_000_000),
        ("256mib", 256 << 20),
        ("1g", 1_000_000_000),
        ("2048k", 2_048_000),
        ("8388608b", 8388608),
    ],
)
def test_sizes_can_be_text(fake: Any, text: str, size: int) -> None:
    assert fake(limits={"disk": text, "memory": text}).limits == Limits(disk=size, memory=size)
    assert Limits(output_total=text).output_total == size  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory": "256 apples"}, "limit 'memory' is '256 apples'"),
        ({"memory": ""}, "that is not a size"),
        ({"memory": "0"}, "a limit is a positive number"),
        ({"timeout": "5s"}, "limit 'time' is '5s'"),
        ({"timeout": -1}, "limit 'time' is -1"),
        ({"timeout": 5, "limits": {"time": 6}}, "given twice"),
        ({"limits": {"timeout": 5}}, "did you mean 'time'"),
        ({"workspace": "overlai"}, "workspace 'overlai': choose scratch, read-only, overlay or direct.*'overlay'"),
        ({"files": "data.csv"}, r"write \['data.csv'\]"),
        ({"files": 5}, "files is 5: it takes names and contents, or a list of paths"),
        ({"files": ["/no/such/file"]}, "'/no/such/file' can't be read: no such file or directory"),
        ({"files": {"x": Path("/tmp")}}, "is a directory. Next: list the files in it"),
        ({"files": ["/etc/hostname", "/proc/sys/kernel/hostname"]}, "two files are to be called 'hostname'"),
        ({"files": {"x": 1}}, r"files\['x'\] is of type int: contents are text, bytes or a Path"),
        ({"env": {"A": "1", "B": 1}}, r"env\['B'\] is of type int: variables are text. Next: pass str"),
        ({"env": {1: "A"}}, "env has the name 1: names are text. Next: write '1'"),
        ({"env": ["A=1"]}, "env is of type list: it takes names and values. Next: write env={'NAME': 'value'}"),
        ({"secrets": {"A": 1}}, r"secrets\['A'\] is of type int"),
        ({"args": ["a", 1]}, r"args\[1\] is of type int: words are text"),
        ({"stdin": 1}, "stdin is of type int: it takes text or bytes"),
        ({"limits": "5"}, "limits is of type str: it takes names and numbers"),
    ],
)
def test_a_mistake_says_what_to_write(fake: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        fake(**options)


def test_an_unknown_language_names_the_choices(config: Config) -> None:
    with Executor(config, backends=[FakeBackend()]) as executor:
        with pytest.raises(
            InvalidRequest, match=r"language 'pyton': choose python, bash, javascript, lua or command.*'python'"
        ):
            executor.run("1", "pyton")


@pytest.mark.parametrize(("called", "language"), [("js", "javascript"), ("Node", "javascript"), ("py", "python")])
def test_a_language_by_another_name_is_recognised(config: Config, called: str, language: str) -> None:
    with Executor(config, backends=[FakeBackend()]) as executor:
        with pytest.raises(InvalidRequest, match=f"did you mean '{language}'"):
            executor.run("1", called)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (Path("add.py"), r"the code is a path \(PosixPath\).*pass path.read_text\(\)"),
        (b"1", r"the code is of type bytes.*pass code.decode\(\)"),
        (None, "code is of type NoneType: it takes source text"),
    ],
)
def test_code_that_is_no_text_is_told_how_to_become_one(config: Config, code: Any, message: str) -> None:
    with Executor(config, backends=[FakeBackend()]) as executor, pytest.raises(InvalidRequest, match=message):
        executor.run(code)


def test_files_can_be_paths_and_lists(fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x.csv").write_text("a,b")
    (tmp_path / "y.bin").write_bytes(b"\0\xff")
    monkeypatch.chdir(tmp_path)
    named = fake(files={"in.csv": tmp_path / "data" / "x.csv", "note": "text", "raw": b"\1"})
    assert named.files == {"in.csv": b"a,b", "note": b"text", "raw": b"\1"}
    listed = fake(files=["data/x.csv", tmp_path / "y.bin", Path("data/../y.bin").resolve().parent / "data" / "x.csv"])
    assert listed.files == {"data/x.csv": b"a,b", "y.bin": b"\0\xff", "x.csv": b"a,b"}


def test_a_configured_executor_takes_timeout_too(config: Config) -> None:
    entries = {"app:shell": NativeEntry(name="shell")}
    with Executor(msgspec.structs.replace(config, entries=entries)) as executor:
        result = executor.command(["sleep", "9"], entry="app:shell", timeout=0.3)
    assert result.status is Status.TIMEOUT


# --- asynchronous ------------------------------------------------------------------------------------------------


def test_arun_runs_and_can_be_cancelled() -> None:
    async def both() -> tuple[Result, bool]:
        first = await redoma.arun("6 * 7", timeout=20)
        try:
            await asyncio.wait_for(redoma.arun("while True: pass", timeout=60), 0.5)
        except TimeoutError:
            return first, True
        return first, False

    result, cancelled = asyncio.run(both())
    assert (result.value, cancelled) == (42, True)


# --- values ------------------------------------------------------------------------------------------------------

MOMENT = datetime(2026, 11, 17, 1, 2, 3, 456, tzinfo=UTC)


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("Decimal('1.10')", Decimal("1.10")),
        ("datetime(2026, 11, 17, 1, 2, 3, 456, tzinfo=timezone.utc)", MOMENT),
        ("[date(2026, 11, 17), time(1, 2)]", [date(2026, 11, 17), time(1, 2)]),
        ("timedelta(days=-1, seconds=5)", timedelta(days=-1, seconds=5)),
        ("{date(2026, 1, 1): {Decimal('NaN'): 1}.__len__()}", {date(2026, 1, 1): 1}),
    ],
)  # fmt: skip
def test_dates_and_decimals_come_back(code: str, value: object) -> None:
    result = redoma.run(f"from datetime import *\nfrom decimal import Decimal\n{code}", timeout=20)
    assert (result.value, type(result.value)) == (value, type(value))
    assert result.value_repr == repr(value)


def test_a_decimal_as_a_key_makes_the_value_a_repr() -> None:
    result = redoma.run("from decimal import Decimal\n{Decimal('1.5'): [Decimal('2')]}", timeout=20)
    assert result.value == result.value_repr == "{Decimal('1.5'): [Decimal('2')]}"


def test_what_is_no_plain_data_comes_as_its_repr() -> None:
    result = redoma.run("class Point:\n    def __repr__(self): return 'Point(1, 2)'\nPoint()", timeout=20)
    assert (result.value, result.value_repr) == ("Point(1, 2)", "Point(1, 2)")
    assert redoma.run("'text'", timeout=20).value_repr == "'text'"
    assert redoma.run("x = 1", timeout=20).value_repr is None


class Generic:
    """As NumPy's scalars are to the codec, which imports nothing."""

    def __init__(self, item: object) -> None:
        self._item = item

    def item(self) -> object:
        return self if self._item is None else self._item


def test_scalars_of_numpy_come_as_what_they_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    module = type(sys)("numpy")
    module.generic = Generic  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "numpy", module)
    float64 = type("float64", (Generic,), {})
    assert codec.encode([float64(1.5), float64(MOMENT)], 1000) == ["list", 1.5, ["datetime", MOMENT.isoformat()]]
    assert codec.encode(float64(None), 1000)[0] == "repr"  # type: ignore[index]


def test_a_real_numpy_scalar_comes_back() -> None:
    np = pytest.importorskip("numpy")
    assert codec.encode({"mean": np.float64(1.5), "n": np.int64(3)}, 1000) == ["dict", "mean", 1.5, "n", 3]


def test_the_host_imports_no_numpy_for_a_value() -> None:
    code = "import redoma, sys; redoma.run('1', timeout=20); print('numpy' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


HOSTILE = [
    ["date", "x"], ["date"], ["date", 5], ["Decimal", "1" * 9000], ["timedelta", "1"], ["datetime", ["list"]],
    ["timedelta", "999999999999 0 0"], ["Decimal", "abc"], ["time", "25:00"],
    ["Decimal", "1E+999999999"], ["set", ["Decimal", "1"]], ["dict", ["tuple", ["Decimal", "1"]], 1],
]  # fmt: skip


@pytest.mark.parametrize("data", HOSTILE, ids=str)
def test_hostile_dates_are_refused(data: list[object]) -> None:
    with pytest.raises(ValueError, match=r"."):
        value_reading.decode(json.dumps(data).encode())


def test_secrets_in_decimals_are_redacted_and_dates_stay(config: Config) -> None:
    value = [Decimal("4242424242424242"), date(2026, 1, 1)]
    with Executor(config, backends=[FakeBackend(Answer(value=value))]) as executor:
        result = executor.run("1", backend="fake")
    assert result.value == ["[redacted:card]", date(2026, 1, 1)]


# --- as one text -------------------------------------------------------------------------------------------------


def answered(config: Config, **answer: Any) -> Result:
    with Executor(config, backends=[FakeBackend(Answer(**answer))]) as executor:
        return executor.run("1", backend="fake")


def test_a_result_as_one_text(config: Config) -> None:
    text = answered(config, stdout="a\nb\n", stderr="warned\n", value=[1, "x"]).to_text()
    assert text == "status: ok\nstdout:\na\nb\nstderr: warned\nvalue: [1, 'x']"
    failed = answered(config, status=Status.ERROR, exit_code=3, error="ZeroDivisionError: division by zero").to_text()
    assert failed == "status: error (exit code 3)\nerror: ZeroDivisionError: division by zero"


def test_a_result_prints_its_essentials() -> None:
    result = redoma.run("print('hello'); 6 * 7")
    assert re.fullmatch(rf"<Result ok, value=42, stdout='hello\\n', [0-9.e-]+ s on jail, id={result.id}>", str(result))
    failed = redoma.run("1 / 0")
    assert repr(failed).startswith("<Result error, exit code 1, error='ZeroDivisionError: division by zero', ")
    assert not failed.ok
    assert failed  # as any object: it is `ok` that tells


@pytest.mark.parametrize("text", ["\U0010ffff", "x", "\x1b", "\n"])
def test_a_result_prints_no_more_than_a_few_hundred_harmless_characters(config: Config, text: str) -> None:
    long = text * 100_000
    shown = repr(answered(config, status=Status.ERROR, error=long, stdout=long, stderr=long, exception="X"))
    assert len(shown) < 600
    assert shown.isprintable()
    shown = repr(answered(config, value=long, stdout=long, stderr=long))
    assert len(shown) < 600
    assert shown.isprintable()


def test_a_refusal_as_one_text_has_its_reason_once() -> None:
    text = redoma.run("rm -rf /", language="bash", backend="native").to_text()
    assert text.count("removes the whole file system") == text.count("`redoma try`") == 1
    text = redoma.run("while True: pass", timeout=0.2).to_text()
    assert text.splitlines()[:2] == ["status: timeout", "error: it ran longer than 0.2 s and was ended"]
    assert text.splitlines()[2].startswith("allowed: do less, or ask for more")


def test_the_text_in_the_documentation_is_what_comes() -> None:
    page = (Path(__file__).parents[2] / "docs" / "library.md").read_text()
    assert redoma.run("print('read 120 rows')\n1 / 0").to_text() in page


@pytest.mark.parametrize("limit", [200, 500, 8000])
def test_a_long_result_keeps_every_part_within_the_limit(config: Config, limit: int) -> None:
    result = answered(
        config,
        stdout="o" * 50_000 + "END",
        stderr="e" * 50_000,
        value="v" * 9000,
        error="broke: 42",
        status=Status.ERROR,
    )
    text = result.to_text(limit)
    assert len(text) <= limit
    assert "broke: 42" in text
    assert "stdout" in text
    assert "left out" in text
    with pytest.raises(InvalidRequest, match="200 characters"):
        result.to_text(10)


# --- documentation -----------------------------------------------------------------------------------------------


def test_public_functions_say_what_they_take_return_and_raise() -> None:
    for function in (redoma.run, redoma.arun, redoma.stream, redoma.command):
        text = inspect.getdoc(function) or ""
        assert all(part in text for part in ("Args:", "Returns:", "Raises:")), function
    ours = (redoma.run_python_code, redoma.validate_code, redoma.handle_execution_error, redoma.process_command)
    for simple in (redoma.execute_safe, *ours):
        text = inspect.getdoc(simple) or ""
        assert all(part in text for part in ("Args:", "Returns:")), simple
    options = inspect.getdoc(redoma.run) or ""
    assert [name for name in Options.__annotations__ if f"{name}:" not in options and f"{name}," not in options] == []
    for kind in (Executor, AsyncExecutor, Result, Limits, redoma.LiveRun):
        for name, member in inspect.getmembers(kind, callable):
            if not name.startswith("_") and member.__module__.startswith("redoma"):
                assert member.__doc__, f"{kind.__name__}.{name}"


# --- traps -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["object()", "[object()]", "lambda: 1"])
def test_any_other_value_is_its_repr(code: str) -> None:
    result = redoma.run(code, timeout=20)
    assert result.ok, result.error
    assert "object at 0x" in result.value or "lambda" in result.value


def test_a_repr_that_fails_is_the_code_s_own_error() -> None:
    result = redoma.run("class A:\n    def __repr__(self): 1 / 0\nA()", timeout=20)
    assert (result.exception, "_Odd" in result.stderr) == ("ZeroDivisionError", False)


def test_a_run_on_the_host_finds_no_program_in_the_current_directory(tmp_path: Path) -> None:
    """Without PATH, Bash would take its own, which ends in the current directory."""
    (tmp_path / "gti").write_text("#!/bin/sh\necho found\n")
    (tmp_path / "gti").chmod(0o755)
    for result in (
        redoma.command(["bash", "-c", "gti; echo $PATH"], backend="native", cwd=str(tmp_path)),
        redoma.run("gti; echo $PATH", "bash", backend="native", cwd=str(tmp_path)),
    ):
        assert "found\n" not in result.stdout
        assert result.stdout.startswith("/usr/local/sbin:/usr/local/bin:")
        assert "." not in result.stdout.strip().split(":")


def test_advice_on_words_and_memory_works_when_followed() -> None:
    with pytest.raises(InvalidRequest, match=r"write \['ls', '-l'\]"):
        redoma.command("ls -l")
    for memory in (256, "256"):
        with pytest.raises(InvalidRequest, match='write "256MiB"'):
            redoma.run("1", memory=memory)


def test_an_unknown_policy_is_told_with_the_choices() -> None:
    with pytest.raises(InvalidRequest, match=r"policy 'strikt': choose none, .* or core\. Next: did you mean 'strict'"):
        redoma.run("1", policy="strikt")


def test_what_is_missing_is_installed_where_redoma_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "my env"))
    assert pip_install("redoma[docker]") == "pip install 'redoma[docker]'"  # an environment without a pip
    (tmp_path / "my env" / "bin").mkdir(parents=True)
    (tmp_path / "my env" / "bin" / "pip").touch()
    assert pip_install("redoma[docker]") == f"'{tmp_path}/my env/bin/pip' install 'redoma[docker]'"
    monkeypatch.setattr(sys, "base_prefix", sys.prefix)
    assert pip_install("redoma[docker]") == "pip install 'redoma[docker]'"
