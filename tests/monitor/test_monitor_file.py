"""monitor.yaml: every mistake has its place, and a file that was only found does no more than it may."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from redoma import Config
from redoma.config import AuditConfig, Entry, InvalidFile, NativeEntry
from redoma.monitor.file import load, reaches, ready_made_checks, trust
from redoma.monitor.model import CommandNotifier, CommandProbe, FileProbe, HttpProbe, TcpProbe, WebhookNotifier

FULL = """\
version: 1
interval: 30
collect:
  app_log: {kind: file, path: app.log, tail: 8KiB, pattern: 'ERROR .*'}
  web: {kind: http, url: 'http://127.0.0.1:8080/health', timeout: 3, expect: ok}
  db: {kind: tcp, host: 127.0.0.1, port: 5432}
  queue: {kind: command, run: ops:shell, command: mailq}
checks:
  - name: memory
    rule: memory['percent'] > 50
    message: "half of it"
  - name: root_disk
    rule: any(d['percent'] > 90 for d in disk)
    severity: critical
    for: 5m
    notify: [ops]
    remedy: {run: ops:any, command: 'journalctl --vacuum-size=200M', after: 10m, again: 1h}
notify:
  ops: {kind: webhook, url: 'http://127.0.0.1:9000/hook', repeat: 1h, recovery: true}
  log: {kind: command, run: ops:shell, command: 'logger -t redoma'}
"""


@pytest.fixture
def config(tmp_path: Path) -> Config:
    shell = NativeEntry(name="shell", command_whitelist=("mailq", "logger -t redoma"))
    entries: dict[str, Entry] = {"ops:shell": shell, "ops:any": NativeEntry(name="any")}
    return Config(audit=AuditConfig(directory=tmp_path / "audit"), entries=entries)


def test_everything_that_is_said_is_in_the_plan(config: Config, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(FULL)
    plan = load(file, config)
    assert plan.interval == 30
    assert plan.source == str(file)
    assert plan.collect == {
        "app_log": FileProbe(path=tmp_path / "app.log", tail=8192, pattern="ERROR .*"),
        "web": HttpProbe(url="http://127.0.0.1:8080/health", timeout=3.0, expect="ok"),
        "db": TcpProbe(host="127.0.0.1", port=5432),
        "queue": CommandProbe(run="ops:shell", command="mailq"),
    }
    assert plan.notify == {
        "ops": WebhookNotifier(url="http://127.0.0.1:9000/hook", repeat=3600.0),
        "log": CommandNotifier(run="ops:shell", command="logger -t redoma"),
    }
    checks = {check.name: check for check in plan.checks}
    assert checks.keys() == {"root_disk", *(check.name for check in ready_made_checks())}
    assert checks["memory"].message == "half of it"
    root = checks["root_disk"]
    assert (root.lasting, root.severity, root.notify) == (300.0, "critical", ("ops",))
    assert root.remedy is not None
    assert (root.remedy.after, root.remedy.again) == (600.0, 3600.0)


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        ("chekcs: []", "1:1", "did you mean 'checks'?"),
        ("interval: 0", "1:1", "from 1 to 86400"),
        ("version: 2", "1:10", "expected '1'"),
        ("collect: {a: {kind: fille}}", "1:21", "did you mean 'file'?"),
        ("collect: {a: {kind: tcp, host: h, port: 0}}", "1:41", "from 1 to 65535"),
        ("collect: {a: {kind: http, url: 'file:///etc/passwd'}}", "1:27", "nothing can be asked there"),
        ("collect: {a: {kind: http, url: 'http://u:p@h/'}}", "1:27", "nothing can be asked there"),
        ("collect: {a: {kind: file, path: x, pattern: '(?=x)'}}", "1:36", "RE2"),
        ("collect: {a: {kind: http, url: 'http://h/', timeout: 10m}}", "1:54", "from 0.1 to 60"),
        ("collect: {disk: {kind: file, path: x}}", "1:11", "a fact of the machine itself"),
        ("collect: {A-b: {kind: file, path: x}}", "1:11", "can't be a variable"),
        ("collect: {if: {kind: file, path: x}}", "1:11", "can't be a variable"),
        ("collect: {a: {kind: command, run: ops:shel, command: x}}", "1:30", "did you mean 'ops:shell'?"),
        ("collect: {a: {kind: command, run: ops:any, command: x}}", "1:30", "has no list"),
        ("notify: {a: {kind: command, run: ops:any, command: x}}", "1:29", "has no list"),
        ("checks: [{rule: x}]", "1:10", "the key 'name' is missing"),
        ("checks: [{name: x}]", "1:10", "the key 'rule' is missing"),
        ("checks: [{name: X, rule: x}]", "1:17", "a name of small letters"),
        ("checks: [{name: x, rule: x, for: soon}]", "1:34", "a time such as 5m"),
        ("checks: [{name: x, rule: x, for: -1}]", "1:34", "from 0 to"),
        ("checks: [{name: x, rule: x}, {name: x, rule: y}]", "1:31", "already a check 'x'"),
        ("checks: [{name: x, rule: x, notify: [nobody]}]", "1:29", "nobody is called 'nobody'"),
        ("checks: [{name: x, rule: x, remedy: {run: a:b}}]", "1:37", "the key 'command' is missing"),
        ("checks: [{name: x, rule: x, remedy: {run: a:b, command: c}}]", "1:38", "no executor 'a:b'"),
        ("checks: [{name: x, rule: '" + "x" * 10_001 + "'}]", "1:20", "more than 10000 characters"),
    ],
)
def test_every_mistake_is_told_with_its_place(config: Config, tmp_path: Path, text: str, place: str, says: str) -> None:
    file = tmp_path / "monitor.yaml"
    file.write_text(text)
    with pytest.raises(InvalidFile) as failure:
        load(file, config)
    assert f"monitor.yaml:{place}" in str(failure.value)
    assert says in str(failure.value)


def test_without_any_file_there_are_the_ready_made_checks(config: Config, tmp_path: Path) -> None:
    plan = load(None, config, cwd=tmp_path)
    assert plan.checks == ready_made_checks()
    assert plan.source == ""


def test_the_users_own_file_is_used_where_there_is_no_other(config: Config, tmp_path: Path) -> None:
    own = Path(os.environ["HOME"]) / ".config" / "redoma" / "monitor.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("defaults: false\nchecks: [{name: mine, rule: 'False'}]")
    assert [check.name for check in load(None, config, cwd=tmp_path).checks] == ["mine"]
    (tmp_path / "monitor.yaml").write_text("defaults: false\nchecks: [{name: here, rule: 'False'}]")
    assert [check.name for check in load(None, config, cwd=tmp_path).checks] == ["here"]


def test_a_file_that_others_can_write_is_refused(config: Config, tmp_path: Path) -> None:
    file = tmp_path / "monitor.yaml"
    file.write_text("checks: []")
    file.chmod(0o666)
    with pytest.raises(InvalidFile, match="other users can change it"):
        load(file, config, cwd=tmp_path)
    found = load(None, config, cwd=tmp_path)
    assert found.checks == ready_made_checks()
    assert "has no effect, because anybody can change it" in found.notices[0]


@pytest.mark.parametrize(
    ("text", "does"),
    [
        ("collect: {a: {kind: file, path: /srv/log}}", "line 1 reads /srv/log"),
        ("collect: {a: {kind: http, url: 'http://h/'}}", "line 1 fetches http://h/"),
        ("collect: {a: {kind: tcp, host: h, port: 1}}", "line 1 connects to h:1"),
        ("collect: {a: {kind: command, run: ops:shell, command: mailq}}", "line 1 runs 'mailq' by ops:shell"),
        ("notify: {a: {kind: webhook, url: 'http://h/'}}", "line 1 tells http://h/"),
        ("notify: {a: {kind: command, run: ops:shell, command: mailq}}", "line 1 runs 'mailq' by ops:shell"),
        ("checks: [{name: x, rule: x, remedy: {run: ops:any, command: c}}]", "line 1 runs 'c' by ops:any"),
    ],
)
def test_a_file_that_was_only_found_reaches_nothing_until_exactly_it_is_trusted(
    config: Config, tmp_path: Path, text: str, does: str
) -> None:
    file = tmp_path / "monitor.yaml"
    file.write_text(text)
    plan = load(None, config, cwd=tmp_path)
    assert (plan.collect, plan.notify, plan.checks) == ({}, {}, ready_made_checks())
    assert does in plan.notices[0]
    source, shown = reaches(file, config)
    assert shown == [does]
    trust(source)
    assert load(None, config, cwd=tmp_path).source == str(file)
    file.write_text(text + "\n# more")
    assert load(None, config, cwd=tmp_path).source == ""


@pytest.mark.parametrize("field", ["rule", "message", "about"])
def test_what_is_on_record_each_round_is_bounded(config: Config, tmp_path: Path, field: str) -> None:
    file = tmp_path / "mine.yaml"
    fields = {"name": "x", "rule": "True", field: "x" * 10_001}
    file.write_text(f"checks: [{json.dumps(fields)}]")
    with pytest.raises(InvalidFile, match=f"{field}: it has more than 10000 characters"):
        load(file, config)


def test_a_found_file_cannot_flood_a_terminal_with_what_it_reaches(config: Config, tmp_path: Path) -> None:
    probes = ", ".join(f"a{number}: {{kind: tcp, host: {'h' * 1000}, port: 1}}" for number in range(100))
    (tmp_path / "monitor.yaml").write_text(f"collect: {{{probes}}}")
    (notice,) = load(None, config, cwd=tmp_path).notices
    assert len(notice) < 2000
    assert "and 95 more" in notice


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_not_used_and_stops_nobody(config: Config, tmp_path: Path) -> None:
    file = tmp_path / "monitor.yaml"
    file.write_text("{broken")
    os.chown(file, 65534, 65534)
    plan = load(None, config, cwd=tmp_path)
    assert plan.checks == ready_made_checks()
    assert "it belongs to the user" in plan.notices[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_counts_once_its_content_is_trusted(config: Config, tmp_path: Path) -> None:
    file = tmp_path / "monitor.yaml"
    file.write_text("checks: [{name: theirs, rule: 'True'}]")
    os.chown(file, 65534, 65534)
    env = {"HOME": str(tmp_path), "REDOMA_STATE_DIR": str(tmp_path / "state")}
    assert load(None, config, cwd=tmp_path, env=env).checks == ready_made_checks()
    trust(reaches(file, config, env=env)[0], env=env)
    assert "theirs" in [check.name for check in load(None, config, cwd=tmp_path, env=env).checks]
    with file.open("a") as stream:
        stream.write("\n")
    assert load(None, config, cwd=tmp_path, env=env).checks == ready_made_checks()
