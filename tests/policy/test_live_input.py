"""Input that will come while a program runs can't be read beforehand: who would do what it says is asked about."""

from __future__ import annotations

import shlex

import pytest

from redoma.models import Decision, Evaluation, Request
from redoma.policy import evaluate, load

ALLOW, PROMPT, FORBID = Decision.ALLOW, Decision.PROMPT, Decision.FORBID


def judged(command: str, pack: str = "standard", stdin: bytes = b"", *, live_input: bool = True) -> Evaluation:
    request = Request(argv=tuple(shlex.split(command)), stdin=stdin, language="command")
    return evaluate(load(pack), request, live_input=live_input)


OBEYS = [
    "psql",
    "psql -h db prod",
    "sqlite3 t.db",
    "mysql -u root",
    "redis-cli",
    "mongosh",
    "duckdb x.db",
    "sqlplus",
    "/usr/bin/sqlite3 t.db",
    "env LANG=C psql",
    "timeout 5 sqlite3 t.db",
    "stdbuf -o0 sqlite3 t.db",
    "docker exec -i db psql",
    "sh -c 'sqlite3 t.db'",
    "sh -c 'sh -c \"sqlite3 t.db\"'",
    "sh -c 'f() { sqlite3 t.db; }; f'",
    "flock f -c 'sqlite3 t.db'",
    "ed",
    "vi f",
    "gdb",
    "dc",
    # It looks like statements on the command line, and is not.
    "psql -U -c prod",
    "psql -c '\\i -'",
    "psql -c 'select 1' -f -",
    "mysql -e 'source /dev/stdin'",
    "sqlite3 -separator , t.db",
    "sqlite3 -cmd 'select 1' t.db",
    "redis-cli -x get",
]
ALWAYS_OBEYS = [
    "bash",
    "sh -s x",
    "python3",
    "python3 -",
    "python3 -i x.py",
    "env python3 -Bi x.py",
    "ipython",
    "node",
    "perl",
    "irb",
    "octave",
    "sh -c 'cat | psql'",
    "xargs rm",
    "xargs sh -c",
    "parallel",
    "script",
    "at now",
    "crontab -",
    "awk -f - x",
    "sed -f /dev/stdin x",
    "make -f -",
]
READS = [
    "cat",
    "wc -c",
    "git status",
    "git apply",
    "git cat-file --batch",
    "grep x",
    "sort -u",
    "bc -q",
    "tee out",
    "od -An -tx1",
    "jq .",
    "sed s/a/b/",
    "awk '{print $1}'",
    "head -c 3",
    "tar xf -",
    "xargs grep x",
    "sleep 60",
    "make",
    "python3 x.py",
    "python3 -c 'import sys; print(sys.stdin.read())'",
    "sh -c 'read -r x; echo got $x'",
    "sh -c 'while read -r line; do echo \"$(($line))\"; done'",
    "sh -c 'cat > out; wc -l < out'",
    "script -c ls",
    # Nothing is left to be told: everything it is to do stands on its command line.
    "psql -c 'select 1'",
    "psql -Atc 'select 1' prod",
    "psql -h localhost -U me -d prod --command='select 1'",
    "sqlite3 t.db 'select 1'",
    "sqlite3 -readonly -json t.db 'select 1'",
    "mysql -u root -e 'select 1'",
    "redis-cli -h db GET key",
    "psql --version",
]


@pytest.mark.parametrize("command", OBEYS)
def test_who_does_what_its_input_says_needs_approval(command: str) -> None:
    found = judged(command)
    assert found.decision is PROMPT, found
    assert any(finding.rule == "shell.live-input" for finding in found.findings), found


@pytest.mark.parametrize("command", ALWAYS_OBEYS)
def test_interpreters_need_approval_whatever_they_are_given(command: str) -> None:
    assert judged(command).decision is PROMPT
    assert judged(command, live_input=False).decision is PROMPT


@pytest.mark.parametrize("command", READS)
def test_who_takes_its_input_for_data_is_left_in_peace(command: str) -> None:
    assert judged(command).findings == ()


@pytest.mark.parametrize("command", ["psql", "sqlite3 t.db", "ed", "sh -c 'sqlite3 t.db'"])
def test_without_input_nothing_is_said(command: str) -> None:
    assert judged(command, live_input=False).findings == ()


def test_it_says_what_to_do_instead() -> None:
    first = judged("psql prod").deciding[0]
    assert (first.rule, first.text) == ("shell.live-input", "psql prod")
    assert "--stdin" in first.suggestion
    assert "command_whitelist" in first.suggestion


def test_input_that_is_known_is_read_also_where_more_will_come() -> None:
    assert judged("bash", stdin=b"rm -rf /").decision is FORBID
    assert judged("cat", stdin=b"rm -rf /").decision is ALLOW


def test_input_that_is_known_is_read_through_a_shell_too() -> None:
    for stdin, expected in ((b"drop table users;", PROMPT), (b"select 1;", ALLOW)):
        assert judged("sh -c 'sqlite3 t.db'", stdin=stdin, live_input=False).decision is expected


@pytest.mark.parametrize("pack", ["script", "strict", "core"])
def test_stricter_packs_ask_too(pack: str) -> None:
    assert judged("sqlite3 t.db", pack).decision >= PROMPT
