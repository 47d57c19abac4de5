"""`redoma repl` and `redoma batch`, as people use them."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import redoma
from pace import SLOW

Call = Callable[..., "subprocess.CompletedProcess[str]"]


def test_a_session_is_typed_into(redoma_command: Call, tmp_path: Path) -> None:
    typed = "x = 41\ndef f(n):\n    return n + x\n\nf(1)\n"
    typed += "!cd /tmp; echo from bash\nimport os; os.getcwd()\n%nonsense\n1/0\n"
    done = redoma_command("repl", "--pictures", str(tmp_path / "pictures"), input=typed)
    assert done.stdout == "42\nfrom bash\n'/tmp'\n"
    assert "ZeroDivisionError" in done.stderr
    assert "there is no %nonsense" in done.stderr
    assert done.returncode == 1


def test_what_installs_in_a_session_is_said_where_somebody_tries(redoma_command: Call) -> None:
    done = redoma_command("repl", input="%pip install six\nimport no_such_module_is_here\n")
    assert done.stderr.count("`redoma repl --environment NAME`") == 2
    assert "a session installs nothing: make an environment with `redoma env create NAME PACKAGE`" in done.stderr
    assert "externally-managed" not in done.stderr


def test_pictures_are_saved_and_named(redoma_command: Call, tmp_path: Path) -> None:
    typed = "class P:\n    def _repr_png_(self): return b'picture'\n\nP()\ndisplay(P())\n"
    done = redoma_command("repl", "--pictures", str(tmp_path / "pictures"), input=typed)
    assert done.stdout.count(f"[png: {tmp_path}/pictures/picture-") == 2
    assert (tmp_path / "pictures" / "picture-1.png").read_bytes() == b"picture"


def test_a_session_that_has_ended_begins_anew(redoma_command: Call) -> None:
    done = redoma_command("repl", input="x = 1\nimport os; os._exit(3)\nx\n")
    assert "it begins anew" in done.stderr
    assert "NameError" in done.stderr


def test_at_a_terminal_ctrl_c_interrupts_and_tab_completes() -> None:
    ours, theirs = pty.openpty()
    program = [str(Path(sys.executable).with_name("redoma")), "repl"]
    process = subprocess.Popen(program, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    seen = b""

    def expect(text: bytes) -> None:
        nonlocal seen
        deadline = time.monotonic() + 60 * SLOW
        while text not in seen:
            assert time.monotonic() < deadline, seen
            seen += os.read(ours, 4096)
        seen = seen.partition(text)[2]

    try:
        expect(b">>> ")
        os.write(ours, b"unmistakable = 40 + 2\n")
        expect(b">>> ")
        os.write(ours, b"unmist\t\n")
        expect(b"\n42")
        expect(b">>> ")
        os.write(ours, b"while print('be' + 'gun', flush=True) is None:\n    while True: pass\n\n")
        expect(b"... ")
        expect(b"begun\r\n")
        os.kill(process.pid, signal.SIGINT)
        expect(b"interrupted")
        expect(b">>> ")
        os.write(ours, b"unmistakable + 1\n")
        expect(b"43")
        os.write(ours, b"exit\n")
        assert process.wait(60 * SLOW) in (0, 130)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


# --- batches ---


def jobs(path: Path, count: int, code: str = "print({0} * 2)") -> Path:
    path.write_text("".join(json.dumps({"id": f"job-{i}", "code": code.format(i)}) + "\n" for i in range(count)))
    return path


def results(path: Path) -> dict[str, dict[str, object]]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({each["job"] for each in found}) == len(found), "a job was run twice"
    return {each["id"]: each for each in found}


def test_every_job_has_its_result_and_a_bad_one_its_reason(redoma_command: Call, tmp_path: Path) -> None:
    file = jobs(tmp_path / "jobs.jsonl", 10)
    with file.open("a") as more:
        more.write('\n{"id": "bad", "code": 5}\nnonsense\n{"id": "odd", "code": "1", "cdoe": 2}\n')
        more.write('{"id": "late", "code": "while True: pass", "timeout": 0.3}\n')
    done = redoma_command("batch", str(file), "-o", str(tmp_path / "results.jsonl"), "-j", "4")
    found = results(tmp_path / "results.jsonl")
    assert [found[f"job-{i}"]["stdout"] for i in range(10)] == [f"{2 * i}\n" for i in range(10)]
    assert found["late"]["status"] == "timeout"
    assert {found[name]["status"] for name in ("bad", "odd")} == {"failed"}
    assert "not a JSON object" in str(found[13]["error"])  # type: ignore[index]
    assert done.returncode == 1
    assert "14 of 14 jobs" in done.stderr
    assert "10 ok" in done.stderr
    again = redoma_command("batch", str(file), "-o", str(tmp_path / "results.jsonl"))
    assert "0 of 14 jobs" in again.stderr


def test_broken_lines_are_named_and_run_once_they_are_fixed(redoma_command: Call, tmp_path: Path) -> None:
    lines = ['{"code": "print(1)"}', "nonsense", '{"cdoe": "1"}', *["{}"] * 5]
    (tmp_path / "jobs.jsonl").write_text("\n".join(lines))
    words = ("batch", "jobs.jsonl", "-o", "results.jsonl")
    done = redoma_command(*words, cwd=tmp_path)
    assert done.returncode == 1
    told = done.stderr.splitlines()
    assert told[0].endswith(": 7 failed, 1 ok")
    assert told[1].startswith("redoma: failed: line 2 of jobs.jsonl: it is not a JSON object: ")
    assert told[2].startswith("redoma: failed: line 3 of jobs.jsonl: it has an unknown 'cdoe'; known: id, code, ")
    assert told[3] == 'redoma: failed: line 4 of jobs.jsonl: it has no "code"'
    assert told[6:] == [
        "redoma: failed: 2 more lines: see results.jsonl",
        "  next: fix them, remove their results from results.jsonl, and start the batch again",
    ]
    (tmp_path / "jobs.jsonl").write_text('{"code": "print(2)"}\n' * 8)
    found = (tmp_path / "results.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "results.jsonl").write_text("".join(line for line in found if '"failed"' not in line))
    done = redoma_command(*words, cwd=tmp_path)
    assert (done.returncode, "7 of 8 jobs" in done.stderr, "8 ok" in done.stderr) == (0, True, True)


def test_a_file_that_can_not_be_written_is_named(redoma_command: Call, tmp_path: Path) -> None:
    jobs(tmp_path / "jobs.jsonl", 1)
    done = redoma_command("batch", "jobs.jsonl", "-o", "nowhere/results", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        125,
        "redoma: nowhere/results could not be read or written: No such file or directory\n"
        "  next: check the path and its rights\n",
    )


def test_a_batch_that_was_killed_goes_on_where_it_was(redoma_command: Call, tmp_path: Path) -> None:
    file = jobs(tmp_path / "jobs.jsonl", 60, "import time; time.sleep(0.03); print({0})")
    program = [str(Path(sys.executable).with_name("redoma")), "batch", str(file), "-o", str(tmp_path / "out.jsonl")]
    for enough in (8, 25):
        process = subprocess.Popen([*program, "-j", "3"], stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60 * SLOW
        while time.monotonic() < deadline:
            written = (tmp_path / "out.jsonl").read_bytes().count(b"\n") if (tmp_path / "out.jsonl").exists() else 0
            if written >= enough:
                break
            time.sleep(0.01)
        process.kill()
        process.wait()
    with (tmp_path / "out.jsonl").open("a") as file_:
        file_.write('{"job": 59, "status": "o')  # as a crash in the middle of a line leaves it
    done = redoma_command(*program[1:])
    assert done.returncode == 0
    found = results(tmp_path / "out.jsonl")
    assert [found[f"job-{i}"]["stdout"] for i in range(60)] == [f"{i}\n" for i in range(60)]


def test_a_file_of_something_else_is_not_written_to(redoma_command: Call, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("a diary\n")
    done = redoma_command("batch", str(jobs(tmp_path / "jobs.jsonl", 1)), "-o", str(other))
    assert done.returncode == 2
    assert "name another file" in done.stderr
    assert other.read_text() == "a diary\n"


def test_map_gives_results_in_order_and_takes_code_as_it_is_needed() -> None:
    taken = 0

    def codes() -> Iterator[str]:
        nonlocal taken
        while True:
            taken += 1
            yield f"import time; time.sleep({0.1 if taken == 1 else 0}); {taken}"

    found = redoma.map(codes(), jobs=3)
    assert [next(found).value for _ in range(8)] == list(range(1, 9))
    assert taken <= 11
    found.close()  # type: ignore[attr-defined]
    with pytest.raises(redoma.InvalidRequest, match="1 to 1000"):
        next(redoma.map(["1"], jobs=0))


@pytest.mark.parametrize("codes", ["abc", b"abc"])
def test_map_refuses_one_text_before_it_runs_each_of_its_letters(codes: str) -> None:
    with pytest.raises(redoma.InvalidRequest, match=r"codes is one text.*write \[code\]"):
        redoma.map(codes)
