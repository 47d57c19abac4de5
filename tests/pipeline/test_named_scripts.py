"""Scripts that a command names are judged by what they hold, wherever the command could touch something."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from redoma import Config, Decision, Executor, Status
from redoma.backends.fake import FakeBackend
from redoma.config import NativeEntry
from redoma.models import Finding
from redoma.models.reach import HOST, NOTHING

REMOVES = "import shutil\nshutil.rmtree('src')\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "package").mkdir()
    files = {
        "removes.py": REMOVES,
        "sub/removes.py": REMOVES,
        "harmless.py": "print(open('a.csv').read())\n",
        "outer.sh": "#!/bin/sh\necho hello\npython3 removes.py\n",
        "args.sh": 'rm "$@"\n',
        "removes.js": 'require("fs").rmSync("src", {recursive: true});\n',
        "long.sh": ": 'a long text'\n" * 20_000,
        "package/__main__.py": REMOVES,
        "removes.pl": "unlink glob('*');\n",
        "prints.pl": "print 6 * 7;\n# \0\n",
        "task": "#!/usr/bin/env ruby\nsystem('rm -rf src')\n",
        "sub/inner.sh": "python3 removes.py\n",
        "sub/beside.sh": '. "$(dirname "$0")/inner.sh"\n',
        "many.sh": "".join(f"bash many{number}.sh\n" for number in range(60)),
        **{f"many{number}.sh": "ls\n" for number in range(60)},
        "deep0.sh": "bash deep1.sh\n",
        **{f"deep{number}.sh": f"bash deep{number + 1}.sh\n" for number in range(1, 12)},
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "outer.sh").chmod(0o755)
    (tmp_path / "binary").write_bytes(b"\x7fELF\0rm -rf src\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def judged(config: Config, *argv: str) -> tuple[Decision, list[Finding]]:
    with Executor(config, backends=[FakeBackend(name="native", reach=HOST)]) as executor:
        result = executor.command(argv, backend="native")
    assert (result.status is Status.OK) == (result.evaluation.decision is Decision.ALLOW)
    return result.evaluation.decision, list(result.evaluation.findings)


@pytest.mark.parametrize(
    "argv",
    [
        ("python3", "removes.py"),
        ("python3", "-u", "removes.py", "--all"),
        ("env", "A=1", "python3", "removes.py"),
        ("./outer.sh",),
        ("bash", "outer.sh"),
        ("bash", "-c", ". ./outer.sh"),
        ("bash", "-c", "cd sub && python3 removes.py"),
        ("bash", "-c", "bash < outer.sh"),
        ("bash", "args.sh", "-rf", "src"),
        ("node", "removes.js"),
        ("bash", "long.sh"),
        ("python3", "package"),
        ("python3", "-m", "removes"),
        ("python3", "-m", "package"),
        ("perl", "removes.pl"),
        ("./task",),
        ("bash", "-c", "cd sub && bash inner.sh"),
        ("bash", "sub/beside.sh"),
        ("bash", "many.sh"),
        ("bash", "deep0.sh"),
    ],
    ids=" ".join,
)
def test_a_script_that_would_be_asked_about_is_asked_about_by_its_name(
    config: Config, place: Path, argv: tuple[str, ...]
) -> None:
    decision, findings = judged(config, *argv)
    assert decision is Decision.PROMPT
    assert all(each.script for each in findings)


@pytest.mark.parametrize(
    "argv",
    [
        ("python3", "harmless.py"),
        ("python3", "missing.py"),
        ("bash", "args.sh", "a.txt"),
        ("cat", "removes.py"),
        ("perl", "prints.pl"),
        ("python3", "-m", "json.tool"),
        ("bash", "many1.sh"),
        ("xargs", "./many1.sh"),
    ],
    ids=" ".join,
)
def test_a_harmless_one_and_one_that_is_only_read_pass(config: Config, place: Path, argv: tuple[str, ...]) -> None:
    assert judged(config, *argv) == (Decision.ALLOW, [])


def test_a_pipe_in_place_of_a_script_is_not_waited_for(config: Config, place: Path) -> None:
    os.mkfifo(place / "pipe.sh")
    assert judged(config, "bash", "pipe.sh") == (Decision.ALLOW, [])


def test_the_finding_says_where_it_is_and_no_permit_is_offered(config: Config, place: Path) -> None:
    """A permit is for the text of a command, and would hold for whatever the script says by then."""
    with Executor(config, backends=[FakeBackend(name="native", reach=HOST)]) as executor:
        result = executor.command(("python3", "removes.py"), backend="native")
        control = executor.run(REMOVES, backend="native")
    assert "removes.py:2: shutil.rmtree('src')" in [each.text for each in result.evaluation.findings]
    assert result.denial is not None
    assert control.denial is not None
    assert (result.denial.resource, result.denial.narrowest) == ("removes.py:2: shutil.rmtree('src')", "")
    assert control.denial.narrowest


def test_in_a_cell_nothing_is_read(config: Config, place: Path) -> None:
    with Executor(config, backends=[FakeBackend(name="jail", reach=NOTHING)]) as executor:
        assert executor.command(("python3", "removes.py")).evaluation.findings == ()


def test_a_file_that_is_handed_over_is_read_as_well(config: Config, place: Path) -> None:
    with Executor(config, backends=[FakeBackend(name="native", reach=HOST)]) as executor:
        result = executor.command(("python3", "x.py"), backend="native", files={"x.py": REMOVES.encode()})
    assert result.status is Status.DENIED


def test_the_owner_of_a_listed_command_has_considered_what_it_runs(config: Config, place: Path) -> None:
    entry = NativeEntry(name="build", default_work_dir=place, command_whitelist=("python3 removes.py",))
    listed = msgspec.structs.replace(config, entries={"app:build": entry})
    (place / "src").mkdir()
    with Executor(listed) as executor:
        result = executor.command(("python3", "removes.py"), entry="app:build")
    assert result.status is Status.OK, result.error
