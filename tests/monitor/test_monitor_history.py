"""What is remembered is whole, bounded, and can be read while it is written."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from after_stage import CRITICAL, NOON, OK, WARNING, found

from redoma.approval.store import SCHEMA
from redoma.lib.errors import StoreError
from redoma.lib.sqlite import Store
from redoma.monitor import history as history_module
from redoma.monitor.history import DAY, History, numbers
from redoma.monitor.model import Action, Check
from redoma.monitor.report import gather, plots

CHECKS = [Check(name="disk", rule="")]


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path / "state" / "monitor.db")


def test_to_look_makes_no_database(history: History) -> None:
    assert (history.spells(0), history.actions(0), history.series("x", 0), history.stored_states()) == ([], [], [], {})
    assert not history.store.exists


def test_a_state_that_stays_is_one_spell_with_its_last_message(history: History) -> None:
    for minute in range(5):
        history.add(found(OK, NOON + 60 * minute), CHECKS)
    for minute in range(5, 8):
        history.add(found(CRITICAL, NOON + 60 * minute, f"at {minute}"), CHECKS)
    first, second = history.spells(0, "disk")
    assert (first.state, first.since, first.until) == (OK, NOON, NOON + 240)
    assert (second.state, second.since, second.until, second.message) == (CRITICAL, NOON + 300, NOON + 420, "at 7")
    assert history.spells(0, "another") == []
    assert [spell.state for spell in history.spells(NOON + 299)] == [CRITICAL]


def test_where_nobody_looked_nothing_is_claimed(history: History) -> None:
    for hours in (0, 5):
        history.add(found(OK, NOON + 3600 * hours), CHECKS)
    assert [(spell.since, spell.until) for spell in history.spells(0)] == [(NOON, NOON), (NOON + 18000, NOON + 18000)]
    assert history.stored_states()["disk"].since == NOON  # which is what is known of it all the same


def test_a_finding_has_lasted_also_over_a_restart(history: History) -> None:
    checks = [Check(name="disk", rule="", lasting=300)]
    assert history.add(found(WARNING), checks).verdicts[0].state is OK
    again = History(history.store.path)
    verdict = again.add(found(WARNING, NOON + 300), checks).verdicts[0]
    assert (verdict.state, verdict.since) == (WARNING, NOON + 300)


def test_a_round_that_took_longer_than_one_begun_after_it_begins_no_spell(history: History) -> None:
    for second in (0, 10, 9, 20):
        history.add(found(OK, NOON + second), CHECKS)
    assert [(spell.since, spell.until) for spell in history.spells(0)] == [(NOON, NOON + 20)]


def test_a_clock_that_is_years_ahead_for_a_round_makes_nobody_forget(history: History) -> None:
    for hour in range(3):
        history.add(found(OK, NOON + 3600 * hour, facts={"cpu": {"percent": 1.0}}), CHECKS)
    history.add_action(_action(NOON))
    before = history.spells(0), history.actions(0)
    history.add(found(OK, NOON + 5000 * DAY, facts={"cpu": {"percent": 2.0}}), CHECKS)
    assert (history.spells(0)[:1], history.actions(0)) == before
    seen = found(OK, NOON + 3 * 3600, facts={"cpu": {"percent": 1.0}})
    history.add(seen, CHECKS)
    report = gather(seen, history, CHECKS)
    assert max(time for _, points in report.curves for time, _ in points) <= seen.time
    assert max(spell.since for spell in report.spells["disk"]) <= seen.time


def test_what_is_older_than_its_time_goes(tmp_path: Path) -> None:
    history = History(tmp_path / "monitor.db", retention=10 * DAY)
    for day in range(30):
        history.add(found(OK if day % 2 else CRITICAL, NOON + day * DAY, facts={"cpu": {"percent": day}}), CHECKS)
        history.add_action(_action(NOON + day * DAY))
    oldest = NOON + 19 * DAY
    assert [value for _, value in history.series("cpu.percent", 0)] == list(range(19, 30))
    assert min(spell.until for spell in history.spells(0)) >= oldest
    assert min(action.time for action in history.actions(0)) >= oldest


def test_of_what_is_older_than_a_day_every_peak_is_kept_and_little_else(history: History) -> None:
    for minute in range(60):
        percent = 99.0 if minute == 33 else 10.0
        history.add(found(OK, NOON + 60 * minute, facts={"cpu": {"percent": percent}}), CHECKS)
    history.add(found(OK, NOON + 2 * DAY), CHECKS)
    values = [value for _, value in history.series("cpu.percent", 0)]
    assert len(values) == 6
    assert max(values) == 99.0


def test_a_check_that_is_gone_is_forgotten_and_one_that_lasts_is_not(tmp_path: Path) -> None:
    history = History(tmp_path / "monitor.db", retention=10 * DAY)
    checks = [*CHECKS, Check(name="old", rule="")]
    history.add(found({"disk": CRITICAL, "old": CRITICAL}), checks)
    for check in ("disk", "old"):
        history.record_notice("ops", check, CRITICAL, NOON)
    for day in range(1, 31):
        history.add(found(CRITICAL, NOON + day * DAY), checks)
    assert history.last_notices() == {("ops", "disk"): (CRITICAL, NOON)}
    assert history.stored_states().keys() == {"disk"}


def test_spells_and_deeds_are_bounded_in_number(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "MAX_SPELLS", 5)
    monkeypatch.setattr(history_module, "MAX_ACTIONS", 5)
    for number in range(20):
        history.add(found(CRITICAL if number % 2 else OK, NOON + number), CHECKS)
        history.add_action(_action(NOON + number))
    history.add(found(OK, NOON + 3600), CHECKS)
    assert len(history.spells(0)) == len(history.actions(0)) == 5


def test_it_is_read_while_it_is_written(history: History) -> None:
    history.add(found(OK), CHECKS)
    with history.store.writing() as db:
        db.execute("DELETE FROM spells")
        assert [spell.state for spell in History(history.store.path).spells(0)] == [OK]


_WRITER = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from after_stage import found, NOON, OK, CRITICAL
from redoma.monitor.history import History
from redoma.monitor.model import Check
history, number = History(Path({path!r})), 0
while True:
    facts = dict(a=number, b=number)
    history.add(found(CRITICAL if number % 2 else OK, NOON + number, facts=facts), [Check(name="disk", rule="")])
    print(number, flush=True)
    number += 1
"""


def test_a_round_is_in_it_whole_or_not_at_all_after_a_kill(history: History) -> None:
    code = _WRITER.format(tests=str(Path(__file__).parent), path=str(history.store.path))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for _ in range(10):
            told = int(writer.stdout.readline())
        os.kill(writer.pid, signal.SIGKILL)
    a, b = history.series("a", 0), history.series("b", 0)
    assert a == b
    assert len(a) == len(history.spells(0))
    assert len(a) in (told + 1, told + 2)  # whatever was told to be in it is
    history.add(found(OK, NOON + 10_000), CHECKS)


def test_a_database_of_approvals_is_not_taken_for_it(history: History) -> None:
    with Store(history.store.path, SCHEMA).writing():
        pass
    with pytest.raises(StoreError, match="another program"):
        history.add(found(OK), CHECKS)


def test_a_damaged_one_is_told_as_such(history: History) -> None:
    history.add(found(OK), CHECKS)
    history.store.path.write_bytes(b"SQLite format 3\0" + b"\xff" * 4096)
    with pytest.raises(StoreError, match="the history begins anew"):
        history.spells(0)


def test_hostile_names_and_messages_are_kept_as_text(history: History) -> None:
    message = "'); DROP TABLE spells; -- \ud800 \x00"
    facts = {"a'\ud800": {"; DROP": 1.0}, "huge": 10**400, "nan": float("nan")}
    history.add(found(CRITICAL, message=message, facts=facts), CHECKS)
    (spell,) = history.spells(0)
    assert "DROP TABLE spells" in spell.message
    assert history.names(0) == ["a'\\ud800.; DROP"]


def test_only_one_process_at_a_time_sees_to_the_consequences(history: History) -> None:
    with history.alone() as first, History(history.store.path).alone() as second:
        assert (first, second) == (True, False)
    with history.alone() as first:
        assert first


def test_numbers_are_found_where_they_are_and_are_bounded() -> None:
    facts = {
        "cpu": {"percent": 4.5, "count": 2},
        "disk": [{"mount": "/", "percent": 71.0}, {"mount": "/home", "percent": 5}],
        "web": {"ok": True, "body": "12", "seconds": 0.2},
        "deep": {"a": {"b": {"c": {"d": {"e": 1}}}}},
        "many": list(range(1000)),
    }
    names = numbers(facts)
    assert names["disk./home.percent"] == 5.0
    assert names["web.ok"] == 1.0
    assert not any(name.startswith(("deep", "web.body")) for name in names)
    assert len(names) == 200
    shown = plots(list(names))
    assert [plot.title for plot in shown.values()] == ["Processor", "Disk /", "Disk /home", "web: seconds to answer"]


def test_the_file_is_sqlite_that_anybody_can_look_into(history: History) -> None:
    history.add(found(CRITICAL, message="full"), CHECKS)
    with sqlite3.connect(f"file:{history.store.path}?mode=ro", uri=True) as db:
        assert db.execute("SELECT state, message FROM spells").fetchall() == [(2, "full")]
    db.close()


def _action(time: float) -> Action:
    return Action(time=time, kind="notice", check="disk", name="ops", state=CRITICAL, ok=True, text="sent")
