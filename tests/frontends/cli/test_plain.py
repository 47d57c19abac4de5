"""Command lines that click need not read: the same as if it had."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import pytest

from redoma.frontends.cli import is_plain, plain
from redoma.frontends.cli.app import cli
from redoma.frontends.cli.options import run_options

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

FORMS = [
    ["run", "print('hello'); 6 * 7"],
    ["run", "import sys; print('a', file=sys.stderr); sys.exit(3)"],
    ["run", "1 / 0"],
    ["run", "input()"],
    ["run", "ls -l"],
    ["run", "nofile.py"],
    ["run", "./nofile"],
    ["run", "prnt(1)"],
    ["run", ""],
    ["eval", "2 + 2"],
    ["eval", "import os; os.listdir('.')"],
    ["exec", "--backend", "native", "--", "echo", "hello"],
    ["exec", "--backend", "native", "--", "sh", "-c", "exit 7"],
    ["exec", "--backend", "native", "--", "no-such-program"],
    ["exec", "--backend", "native", "--", "rm", "-rf", "/"],
]


def redoma(state: Path, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "REDOMA_STATE_DIR": str(state)}
    command = [sys.executable, "-m", "redoma", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, **more)


@pytest.mark.parametrize("words", FORMS, ids=" ".join)
def test_it_prints_and_exits_as_it_does_with_click(tmp_path: Path, words: list[str]) -> None:
    assert is_plain(words)
    assert not is_plain(["--log-level", "off", *words])
    without, with_click = redoma(tmp_path, *words), redoma(tmp_path, "--log-level", "off", *words)
    assert (without.returncode, without.stdout, without.stderr) == (
        with_click.returncode,
        with_click.stdout,
        with_click.stderr,
    )


@pytest.mark.parametrize("words", [["run", "x"], ["exec", "--backend", "native", "--", "x"]], ids=" ".join)
def test_its_options_are_those_that_click_gives(words: list[str]) -> None:
    context = click.Context(cli)
    command = cli.get_command(context, words[0])
    assert command is not None
    given = command.make_context(words[0], words[1:], parent=context).params
    expected = {**plain.OPTIONS, "backend": "native"} if words[0] == "exec" else plain.OPTIONS
    assert run_options(given) == expected
    assert (given["output_dir"], given["force"], given["cwd"]) == (None, False, None)


@pytest.mark.parametrize(
    "words",
    [
        ["run"],
        ["run", "-"],
        ["run", "--help"],
        ["run", "a", "b"],
        ["eval"],
        ["eval", "-h"],
        ["exec", "true"],
        ["doctor"],
    ],
    ids=" ".join,
)
def test_everything_else_is_for_click(words: list[str]) -> None:
    assert not is_plain(words)


NEVER = {"click", "yaml", "rich", "sqlite3", "ssl", "shutil", "tempfile", "secrets", "typing_extensions"}
"""Modules that no short command loads: each takes longer than what it would be loaded for."""
NOT_YET = {"inspect", "linecache", "platform", "subprocess", "textwrap", "traceback", "urllib.parse"}
NOT_YET |= {"asyncio.sslproto", "asyncio.staggered", "msgspec._json_schema", "msgspec.inspect", "msgspec.msgpack"}
NOT_YET |= {"msgspec.toml", "msgspec.yaml"}
"""Modules that asyncio, msgspec and pathlib import, and that a short run does without."""


NATIVE_UNUSED = {"tree_sitter", "redoma.backends.jail", "redoma.backends.hosts", "json", "importlib.util"}
NATIVE_UNUSED |= {"redoma.policy.shell.reader", "redoma.policy.shell.oneliners", "redoma.pipeline.foreign_repositories"}


@pytest.mark.parametrize(
    ("words", "unused"),
    [
        (["run", "print(1)"], {"re2", "tree_sitter", "redoma.policy.options", "redoma.policy.shell"}),
        (["exec", "--backend", "native", "--", "printf", "1\\n"], NATIVE_UNUSED),
    ],
    ids=["run", "native"],
)
def test_a_short_command_loads_only_what_it_uses(tmp_path: Path, words: list[str], unused: set[str]) -> None:
    program = (
        f"import os, sys; sys.argv[1:] = {words!r}; leave = os._exit\n"
        "os._exit = lambda status: (sys.stderr.write(' '.join(sys.modules)), sys.stderr.flush(), leave(status))\n"
        "from redoma.frontends.cli import main; main()"
    )
    environment = {**os.environ, "REDOMA_STATE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    assert done.stdout == "1\n"
    assert loaded & (NEVER | NOT_YET | unused) == set()
    assert len(loaded) <= 300  # 305 before some of them were loaded when they are used


def test_what_is_started_ahead_is_gone_also_where_it_was_not_needed(tmp_path: Path) -> None:
    """Many of them, of which some never get as far as a cell, and some are killed."""
    before = mounts()
    for words in (["run", "print(1)"], ["run", "nofile.py"], ["eval", "1"], ["run", "x ="], ["eval", ")"]):
        redoma(tmp_path, *words)
    killed = subprocess.Popen(
        [sys.executable, "-m", "redoma", "run", "print(1)"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    time.sleep(0.1)
    killed.kill()
    killed.wait()
    # Those of other tests, which run meanwhile, come and go: what is ours, and left, stays.
    left, new = zygotes(), mounts() - before
    deadline = time.monotonic() + 60
    while (left or new) and time.monotonic() < deadline:
        time.sleep(0.05)
        left, new = left & zygotes(), new & mounts()
    assert not left
    assert not new


def zygotes() -> set[str]:
    """Interpreters that have become ours alone: what started them is gone. Each with its number."""
    found = set()
    for process in Path("/proc").iterdir():
        try:
            words = (process / "cmdline").read_bytes() if process.name.isdigit() else b""
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1]) if words else 0
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == 1 and b"redoma.backends.jail" in words:
            found.add(f"{process.name} {words.decode(errors='replace')}")
    return found


def mounts() -> set[str]:
    return set(Path("/proc/self/mountinfo").read_text().splitlines())


def test_the_record_is_the_same(tmp_path: Path) -> None:
    for words in (["run", "print(1)"], ["--log-level", "off", "run", "print(1)"]):
        redoma(tmp_path, *words)
    said = json.loads(redoma(tmp_path, "audit", "tail", "--json").stdout)
    kinds = [record["kind"] for record in said]
    assert kinds == ["intent", "outcome", "intent", "outcome"]
    first, second = (record["data"] for record in said if record["kind"] == "intent")
    assert {**first, "seed": 0} == {**second, "seed": 0}


def test_eval_without_monty_says_how_to_install_it(tmp_path: Path) -> None:
    code = "import sys; sys.modules['pydantic_monty'] = None; from redoma.frontends.cli import main; main()"
    env = {**os.environ, "REDOMA_STATE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code, "eval", "1"], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert "monty is not here" in done.stdout
    assert "install 'pydantic-monty" in done.stdout
