"""One place decides between JSON and text; what is drawn by `rich` is drawn on terminals alone."""

from __future__ import annotations

import json
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from redoma.frontends.cli.emit import emit, emit_list, json_option, one_line, shown, table


@click.command()
@json_option
@click.option("--empty", is_flag=True)
def listed(empty: bool) -> None:
    emit_list([] if empty else ["a", "bb"], lambda item: (item, "x"), empty="nothing", shape=lambda item: {"is": item})


@click.command()
@json_option
def said() -> None:
    emit({"answer": 42}, lambda data: [f"It is {data['answer']}."])


def test_a_command_prints_json_only_if_asked_to() -> None:
    assert CliRunner().invoke(said).stdout == "It is 42.\n"
    assert json.loads(CliRunner().invoke(said, ["--json"]).stdout) == {"answer": 42}


def test_a_list_is_a_table_an_array_or_a_note_on_standard_error() -> None:
    assert CliRunner().invoke(listed).stdout == "a   x\nbb  x\n"
    assert json.loads(CliRunner().invoke(listed, ["--json"]).stdout) == [{"is": "a"}, {"is": "bb"}]
    none = CliRunner().invoke(listed, ["--empty"])
    assert (none.stdout, none.stderr) == ("", "nothing\n")
    assert json.loads(CliRunner().invoke(listed, ["--json", "--empty"]).stdout) == []


def test_colours_take_no_room_in_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    table([(click.style("a", fg="red"), "1"), ("bbb", "2")])
    assert capsys.readouterr().out == "a    1\nbbb  2\n"


def test_on_a_narrow_terminal_cells_are_wrapped_in_their_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    hostile = "[bold]no markup[/bold] " + "word " * 10
    table([("id1", hostile), ("id2", "short")])
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert all(len(line) <= 30 for line in lines)
    assert lines[0].startswith("id1  [bold]no")
    assert lines[1].startswith("     ")  # the second column goes on below itself
    assert lines[-1] == "id2  short"


def test_what_is_shown_is_one_bounded_line_that_a_terminal_can_take() -> None:
    assert shown("a\nb\x1b[2J") == "a\\nb\\x1b[2J"
    assert shown("x" * 100, 10) == "x" * 9 + "…"
    assert one_line("a\n  b\x07") == "a b\\x07"


def test_in_a_pipe_rich_is_not_even_imported() -> None:
    code = (
        "import sys\nfrom redoma.frontends.cli.app import run\nrun(['approvals', 'list'])\n"
        "run(['check', 'print(1)'])\nprint('rich' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.endswith("False\n")
