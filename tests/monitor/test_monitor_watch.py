"""The whole program over time: at a terminal, in a pipe, and when it is told to end."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from after_stage import CRITICAL, NOON, found
from monitor_stage import redoma_command as redoma_command
from patience import PROGRAM
from rich.console import Console

from redoma.frontends.cli import monitor as watching
from redoma.frontends.cli.monitor import round_lines, spark, view
from redoma.monitor.model import Action

PLAN = """
version: 1
defaults: false
checks:
  - {name: first, rule: 'True', severity: critical, message: it is so}
  - {name: later, rule: 'True', for: 1h}
  - {name: fine, rule: 'False'}
"""
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def plan(tmp_path: Path) -> str:
    file = tmp_path / "plan.yaml"
    file.write_text(PLAN)
    return str(file)


class Terminal:
    """A real one, with a program at its other end."""

    def __init__(self, *command: str) -> None:
        self.pid, self._end = pty.fork()
        if self.pid == 0:
            os.environ |= {"TERM": "xterm", "LINES": "40", "COLUMNS": "100"}
            os.execv(PROGRAM[0], [*PROGRAM, *command])  # noqa: S606 - as a person at that terminal would
        self.seen = ""

    def read_until(self, done: Callable[[str], bool]) -> None:
        while not done(self.seen) and self._read():
            pass

    def _read(self) -> bool:
        if not select.select([self._end], [], [], 120)[0]:
            return False
        try:
            piece = os.read(self._end, 65536)
        except OSError:  # the other end is closed
            return False
        self.seen += piece.decode(errors="replace")
        return bool(piece)

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    def wait(self) -> int:
        self.read_until(lambda _: False)
        os.close(self._end)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.mark.usefixtures("nothing_left_behind")
def test_at_a_terminal_it_is_a_live_view_that_ctrl_c_ends_and_leaves_the_terminal_as_it_was(plan: str) -> None:
    terminal = Terminal("monitor", "watch", "--file", plan, "--interval", "0.2")
    terminal.read_until(lambda seen: seen.count("Ctrl-C ends it") >= 2)
    terminal.type("\x03")
    assert terminal.wait() == 0
    seen = terminal.seen
    assert re.match(r"\x1b\[\?1049h(\x1b\[H)?\x1b\[\?25l", seen)
    live, _, after = seen.rpartition("\x1b[?25h\x1b[?1049l")
    assert live.count("\x1b[?1049h") == 1
    assert "Processor" in live
    assert re.search("[▁▂▃▄▅▆▇█]", live)
    assert "is \x1b[31m\x1b[1mcritical" in after  # what it last showed stays on the screen
    assert "Traceback" not in seen


@pytest.mark.usefixtures("nothing_left_behind")
def test_in_a_pipe_it_says_what_changes_goes_on_without_a_report_and_a_signal_ends_it_clean(
    plan: str, redoma_command: Run, tmp_path: Path
) -> None:
    folder = tmp_path / "www"
    folder.mkdir()
    command = [*PROGRAM, "monitor", "watch", "--file", plan, "--interval", "0.2", "-v", "--report", f"{folder}/r.md"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        rounds = 0
        while rounds < 3:
            rounds += "rule fine: ok, by monty in" in process.stderr.readline()
        lines = [process.stdout.readline() for _ in range(2)]
        assert "❌" in (folder / "r.md").read_text()
        folder.rename(tmp_path / "elsewhere")  # at once: something may just be written there
        lines.append(process.stdout.readline())  # nothing had changed until then
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 0
    assert re.fullmatch(r"\S+Z \S+: 3 checks, critical\n", lines[0])
    assert re.fullmatch(r"\S+Z first critical it is so\n", lines[1])
    assert re.search(r"missing report: .*make the directory first", lines[2])
    told = json.loads(redoma_command("monitor", "history", "--json").stdout)
    assert [spell["state"] for spell in told["spells"] if spell["check"] == "first"] == ["critical"]
    shown = redoma_command("monitor", "history", "later")
    assert re.fullmatch(r"\S+ \S+ UTC  ok  later  .*\n", shown.stdout)


@pytest.mark.usefixtures("nothing_left_behind")
def test_prometheus_is_answered_until_it_ends(plan: str) -> None:
    command = [*PROGRAM, "monitor", "watch", "--file", plan, "--metrics", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        url = process.stderr.readline().removeprefix("metrics at ").strip()
        process.stdout.readline()  # the first round is over
        with urllib.request.urlopen(url) as answer:  # noqa: S310 - of our own server
            told = answer.read().decode()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    for check, state in {"first": 2, "later": 0, "fine": 0}.items():
        assert f'redoma_check_state{{check="{check}"}} {state}.0\n' in told
        assert re.search(rf'redoma_check_seconds{{check="{check}"}} [0-9.e-]+\n', told)
    assert 'redoma_runs_total{backend="monty",language="python",status="ok"} 3.0\n' in told
    assert "redoma_round_timestamp_seconds 1." in told
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url)  # noqa: S310 - where it was


def test_without_the_library_nothing_is_watched_and_it_says_why(plan: str) -> None:
    code = "import sys; sys.modules['prometheus_client'] = None; from redoma.frontends.cli import main; main()"
    call = [sys.executable, "-c", code, "monitor", "watch", "--file", plan, "--metrics", "--plain"]
    done = subprocess.run(call, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (3, "")
    assert "prometheus_client is not installed" in done.stderr
    assert "pip install 'redoma[metrics]'" in done.stderr


@pytest.mark.parametrize("live", [True, False])
def test_whatever_is_said_a_terminal_gets_text(live: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """Rules are refused for less; but what a collector, a server or a command said is shown, too."""
    bad = "a\x1b[2J\x1b]52;c;eA==\x07\u202eb\r\n\x9b1m"
    action = Action(time=NOON, kind="remedy", check="x", name=bad, state=CRITICAL, ok=False, text=bad)
    seen = found(
        CRITICAL, message=bad, host=bad, problems={bad: bad}, actions=(action,), facts={"disk": [{"mount": bad}]}
    )
    seen.facts["disk"][0]["percent"] = 3.0
    if live:
        Console(force_terminal=True, width=1000).print(view(seen, None, 60.0))
    else:
        for line in [*watching._changes(None, seen), *round_lines(seen), *round_lines(seen, brief=True)]:
            print(line)
    shown = capsys.readouterr().out
    assert r"a\x1b[2J\x1b]52;c;eA==\x07\u202eb" in shown
    ours = re.sub(r"\x1b\[(?:(?:1;3)?[0-9]{0,2}m|[HKJ])", "", shown)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", ours)


def test_one_look_writes_every_report_and_remembers_nothing_if_it_is_dry(
    plan: str, redoma_command: Run, tmp_path: Path
) -> None:
    files = [tmp_path / f"report.{kind}" for kind in ("html", "md", "json")]
    reports = [word for file in files for word in ("--report", str(file))]
    done = redoma_command("monitor", "check", "--file", plan, "--dry", *reports)
    assert (done.returncode, done.stderr) == (2, "")
    assert re.search(r"ok +later .* warning if it lasts", done.stdout)
    assert files[0].read_text().startswith("<!doctype html>")
    assert "❌" in files[1].read_text()
    assert json.loads(files[2].read_text())["state"] == "critical"
    assert redoma_command("monitor", "history").stderr == "nothing is remembered for that time\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["check", "--report", "report.pdf"], "none of .html, .md and .json"),
        (["watch", "--report", "report"], "none of .html, .md and .json"),
        (["history", "--since", "yesterday"], "is not a time; write it like 2h, 30d"),
        (["watch", "--interval", "0"], "not in the range"),
        (["watch", "--metrics", "9464"], "it needs a host and a port"),
        (["watch", "--metrics", "192.0.2.1:9464"], "metrics can't be served at 192.0.2.1:9464"),
        (["check", "--report", "none/report.html", "--only", "fine", "--file", "{plan}"], "make the directory first"),
    ],
)
def test_a_mistake_is_told_without_a_traceback(plan: str, redoma_command: Run, arguments: list[str], said: str) -> None:
    done = redoma_command("monitor", *(word.format(plan=plan) for word in arguments))
    assert done.returncode == 3
    assert said in done.stderr
    if "{plan}" in arguments:
        assert "is ok: 1 ok" in done.stdout  # what was found is told all the same
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("form", ["", "--json"])
def test_who_reads_no_further_changes_no_exit_status(plan: str, form: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [*PROGRAM, "monitor", "check", "--file", plan, *form.split()]
    try:
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (2, "")


# --- when the next round is ---


class Clock:
    """A time that only passes when somebody waits, or works."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(watching, "time", clock)
    yield clock
    monkeypatch.setattr(watching, "time", time)


@pytest.mark.parametrize(
    ("takes", "begins"),
    [
        ([0.3] * 5, [0, 10, 20, 30, 40]),  # it doesn't drift
        ([0.3, 25.0, 0.3, 0.3, 0.3], [0, 10, 40, 50, 60]),  # what it has missed is left out
        ([10.0] * 5, [0, 10, 20, 30, 40]),  # no pause is needed, and none is made
        ([9.999] * 5, [0, 10, 20, 30, 40]),
    ],
)
def test_rounds_neither_drift_nor_overlap(clock: Clock, takes: list[float], begins: list[float]) -> None:
    began = []
    for _ in watching._ticks(10.0, len(takes)):
        began.append(clock.now - 100.0)
        clock.now += takes[len(began) - 1]
    assert began == begins


def test_values_are_drawn_as_blocks() -> None:
    assert spark([0, 12.5, 50, 99.9, 100, 250, -1], 100.0) == "▁▂▅███▁"
    assert spark([0.0, 0.0], None) == "▁▁"
