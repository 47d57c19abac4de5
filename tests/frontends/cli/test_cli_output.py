"""What a run prints is what the command line prints: all of it, or an error; a run ends when its reader leaves."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

Command = Callable[..., subprocess.CompletedProcess[str]]
InProcess = Callable[..., tuple[int, str, str]]
PROGRAM = str(Path(sys.executable).with_name("redoma"))


def test_a_copy_by_the_command_line_is_the_file(redoma_command: Command, tmp_path: Path) -> None:
    text = "".join(f"line {number}\n" for number in range(5000))
    (tmp_path / "five.txt").write_text(text)
    done = redoma_command("exec", "--workspace", "read-only", "--", "cat", "five.txt", cwd=tmp_path)
    assert (done.stdout == text, done.stderr, done.returncode) == (True, "", 0)


@pytest.mark.parametrize(
    "code",
    [
        "print('x' * 3_000_000)",
        "import sys; sys.stdout.write('aé' * 1_000_000)",
        "for n in range(300_000): print('row', n)",
        "import sys; [print('row', n, file=sys.stderr) for n in range(3000)]",
    ],
    ids=["one line", "one line without an end", "many lines", "standard error"],
)
def test_nothing_is_left_out(code: str, redoma_command: Command) -> None:
    here = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    done = redoma_command("run", code + "\nNone")
    assert (done.stdout == here.stdout, done.stderr == here.stderr, done.returncode) == (True, True, 0)


def test_secrets_are_taken_out_of_a_line_that_is_too_long_to_wait_for(redoma_command: Command) -> None:
    code = "import os, sys\nfor n in range(40): sys.stdout.write('-' * 9999 + os.environ['TOKEN'])"
    done = redoma_command("run", code, "--secret", "TOKEN=Tr0ub4dor&3-and-more")
    assert "Tr0ub4dor" not in done.stdout
    assert done.stdout == ("-" * 9999 + "[redacted:known-secret]") * 40


def test_more_than_the_limit_is_an_error(redoma_command: Command, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text("version: '1.0'\nlimits: {output_total: 100000}\n")
    done = redoma_command("--config", str(tmp_path / "small.yaml"), "run", "for n in range(10**6): print(n)")
    assert done.returncode == 137
    assert "it printed more than 100000 bytes and was ended" in done.stderr
    assert done.stdout.startswith("0\n1\n2\n")
    assert len(done.stdout) >= 90_000


def test_json_is_bounded(redoma_command: Command) -> None:
    result = json.loads(redoma_command("run", "--json", "for n in range(5000): print(n)").stdout)
    assert result["stdout"].count("\n") <= 1000
    assert result["omitted"]["stdout"] > 0


@pytest.mark.parametrize("code", ["seq 3; sleep 58", "while :; do echo x; done"], ids=["silent", "prints on"])
def test_a_run_ends_when_its_reader_leaves(code: str) -> None:
    with subprocess.Popen(
        [PROGRAM, "run", "--time", "60", "--lang", "bash", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        left = time.monotonic()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141
    assert time.monotonic() - left < 45


@pytest.mark.parametrize("data", ["\\xff", "a\\x00b", "a\\r\\nb\\r\\n"])
def test_output_that_is_no_text_is_not_altered_in_silence(redoma: InProcess, data: str) -> None:
    status, _, errors = redoma("run", f"import sys; n = sys.stdout.buffer.write(b'{data}')")
    assert (status, errors) == (
        0,
        "redoma: note: parts that are not plain text were replaced or left out; "
        "-o FILE brings files back whole, from a run without --workspace\n",
    )


def test_text_is_not_said_to_be_altered(redoma: InProcess) -> None:
    assert redoma("run", "print('ação\\t✓', 'x' * 200_000)")[2] == ""
    assert redoma("run", "print('key AKIAIOSFODNN7EXAMPLA')")[2].startswith("redoma: redacted:")


def test_json_says_nothing_beside_its_document(redoma: InProcess) -> None:
    assert redoma("run", "--json", "import sys; n = sys.stdout.buffer.write(b'\\xff')")[2] == ""
