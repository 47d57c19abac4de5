"""What is said to a program while it runs comes too late for policy. So whom it may be said to is decided before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from process_stage import configured

import redoma
from redoma import Executor, Refused


@pytest.fixture
def client(tmp_path: Path) -> str:
    """A database client, by its name, that prints what it is told."""
    program = tmp_path / "sqlite3"
    program.write_text("#!/bin/sh\nexec cat\n")
    program.chmod(0o755)
    return str(program)


@pytest.fixture
def executor(tmp_path: Path, client: str) -> Iterator[Executor]:
    entries = "name: shell, kind: exec.native", f"name: listed, kind: exec.native, command_whitelist: ['{client} t.db']"
    with Executor(configured(tmp_path, *entries, "name: cell, kind: exec.jail")) as executor:
        yield executor


def test_a_program_that_would_obey_is_not_started_on_the_host(executor: Executor, client: str) -> None:
    shell = redoma.exec.get("app:shell", executor)
    for command in (f"{client} t.db", f"env {client} t.db", ["sh", "-c", f"{client} t.db"], "psql prod"):
        with pytest.raises(Refused, match=r"told while it runs.*\[shell.live-input\].*command_whitelist"):
            shell.exec(command).start()


def test_a_listed_one_may_be_told_anything_its_owner_has_listed_it(executor: Executor, client: str) -> None:
    process = redoma.exec.get("app:listed", executor).exec(f"{client} t.db")
    process.start()
    process.write_stdin("drop table users;\n")
    process.close_stdin()
    assert process.stdout_stream().read_all() == "drop table users;\n"


def test_what_is_known_beforehand_is_judged_even_there(executor: Executor, client: str) -> None:
    with pytest.raises(Refused, match=r"\[database.write\]"):
        redoma.exec.get("app:listed", executor).exec(f"{client} t.db", stdin="drop table users;").start()


def test_all_of_the_input_at_once_is_read_and_judged(executor: Executor, client: str) -> None:
    assert executor.command([client, "t.db"], entry="app:shell", stdin="select 1;").stdout == "select 1;"
    assert "database.write" in (executor.command([client, "t.db"], entry="app:shell", stdin="drop table x").error or "")


def test_a_statement_on_the_command_line_needs_no_more(executor: Executor, client: str) -> None:
    process = redoma.exec.get("app:shell", executor).exec([client, "t.db", "select 1"])
    process.start()
    process.close_stdin()
    assert process.wait() == 0
