"""What people type: mistakes that are told apart, commands as they come to mind, and what a shell completes."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Command = Callable[..., subprocess.CompletedProcess[str]]
InProcess = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _state_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project that is the current directory."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "Makefile").write_text("clean:\n\trm -rf build\n")
    (project / "build").mkdir()
    (project / "build" / "part").write_text("made\n")
    monkeypatch.chdir(project)
    return project


# --- what is no Python and no Bash ---


@pytest.mark.parametrize("text", ["rm -rf /", "for f in *; do rm $f; done", "curl -s example.com | sh"])
def test_what_is_not_python_is_not_allowed(redoma: InProcess, text: str) -> None:
    status, output, errors = redoma("check", text)
    assert (status, output) == (3, "")
    assert errors.startswith("redoma: not valid Python: line 1: ")
    assert errors.endswith("next: did you mean --lang bash?\n")


def test_what_is_neither_is_not_said_to_be_bash(redoma: InProcess) -> None:
    status, _, errors = redoma("check", "print('unclosed")
    assert (status, "--lang bash" in errors) == (3, False)


@pytest.mark.parametrize("text", ["if then", "echo 'open", "echo a\nfor i in 1 2; do echo $i", "echo $(ls", "a() {"])
@pytest.mark.parametrize("where", [(), ("--backend", "jail")])
def test_bash_that_does_not_parse_is_not_allowed(redoma: InProcess, text: str, where: tuple[str, ...]) -> None:
    status, output, errors = redoma("check", *where, "--lang", "bash", text)
    assert (status, output) == (3, "")
    assert errors.startswith("redoma: not valid Bash: line ")


@pytest.mark.parametrize("text", ["fi", "}", "echo a;;", "while :; do done", "echo (a)"])
def test_what_bash_itself_does_not_accept_is_not_allowed(redoma: InProcess, text: str) -> None:
    """Our parser accepts these."""
    status, output, errors = redoma("check", "--lang", "bash", text)
    assert (status, output) == (3, "")
    assert errors.startswith("redoma: not valid Bash: line 1: Bash says: syntax error near unexpected token")


@pytest.mark.parametrize(
    "text", ["ls; git log | head", "for x in a b; do echo $x; done", "time while read x; do :; done"]
)
def test_what_bash_accepts_is_judged(redoma: InProcess, text: str) -> None:
    assert redoma("check", "--lang", "bash", text)[0] == 0


def test_bash_that_is_refused_and_does_not_parse_is_still_refused(redoma: InProcess) -> None:
    assert redoma("check", "--lang", "bash", "rm -rf /; if then")[0] == 2


@pytest.mark.parametrize(
    ("language", "text"), [("python", "rm -rf /"), ("bash", "if then"), ("bash", "fi"), ("javascript", "if (")]
)
def test_explain_allows_nothing_that_does_not_parse(redoma: InProcess, language: str, text: str) -> None:
    assert redoma("policy", "explain", "--lang", language, text)[:2] == (2, "")


def test_check_says_how_it_read_a_text(redoma: InProcess) -> None:
    assert "read as  Python; for a shell command add --lang bash\n" in redoma("check", "print(1)")[1]
    assert "read as" not in redoma("check", "--lang", "bash", "ls")[1]


@pytest.mark.parametrize(
    ("text", "name"), [("reboot", "reboot"), ("rm -rf", "rm"), ("ls -l", "ls"), ("ls | wc -l", "ls")]
)
def test_a_command_that_parses_as_python_is_not_allowed(redoma: InProcess, text: str, name: str) -> None:
    assert redoma("check", text) == (
        3,
        "",
        f"redoma: as Python this only fails: {name!r} is not defined\n  next: did you mean --lang bash?\n",
    )
    status, _, errors = redoma("run", text)
    assert (status, errors.splitlines()[-1]) == (
        1,
        f"redoma: as Python this only fails: {name!r} is not defined; did you mean --lang bash?",
    )


@pytest.mark.parametrize("text", ["prnt(1)", "foo(ls)", "frame.head()"])
def test_a_call_of_something_undefined_is_not_said_to_be_bash(redoma: InProcess, text: str) -> None:
    status, _, errors = redoma("run", text)
    assert (status, "NameError" in errors, "bash" in errors) == (1, True, False)
    assert redoma("check", text)[2].endswith("next: define it first, or say that it is Python: --lang python\n")
    assert "in this Python" in redoma("policy", "explain", text)[1]


@pytest.mark.parametrize("text", ["./nosuch", "../nosuch", "/nosuch/file", "~/nosuch", "src/nosuch", "nosuch.sh"])
def test_a_path_to_nothing_is_no_code(redoma: InProcess, place: Path, text: str) -> None:
    for command, status in (("run", 2), ("check", 3)):
        assert redoma(command, text) == (
            status,
            "",
            f"redoma: there is no file {text}: it looks like a file's name\n  next: check the path\n",
        )


@pytest.mark.parametrize(("text", "value"), [("6/7*7", "6.0"), ("'a/b'", "'a/b'"), ("1//1", "1")])
def test_code_with_a_slash_is_code(redoma: InProcess, place: Path, text: str, value: str) -> None:
    assert redoma("run", text) == (0, f"{value}\n", "")


def test_a_path_can_be_a_command_or_a_regular_expression(redoma: InProcess, place: Path) -> None:
    assert redoma("run", "--lang", "bash", "./nosuch")[0] == 127
    assert redoma("run", "--lang", "javascript", "/a/")[0] == 0


def test_a_file_that_may_not_be_seen_is_no_code(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed" / "script").write_text("print(1)")
    (tmp_path / "unreadable.py").write_text("print(1)")
    (tmp_path / "unreadable.py").chmod(0)
    (tmp_path / "closed").chmod(0)
    code = (
        "import os, sys\nfrom redoma.frontends.cli.source import read_source\n"
        "if os.geteuid() == 0: os.setresuid(65534, 65534, 65534)\n"
        "for name in sys.argv[1:]:\n"
        "    try: print(read_source(name, None, None))\n"
        "    except Exception as error: print(type(error).__name__, error)\n"
    )
    words = [sys.executable, "-c", code, "closed/script", "unreadable.py"]
    try:
        tmp_path.chmod(0o755)
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    finally:
        (tmp_path / "closed").chmod(0o700)
    first, second = done.stdout.splitlines()
    assert first.startswith("InvalidRequest closed/script can't be read: Permission denied")
    assert second.startswith("InvalidRequest unreadable.py can't be read: Permission denied")


def test_a_file_that_does_not_say_what_it_is_is_no_python_either(redoma: InProcess, tmp_path: Path) -> None:
    (tmp_path / "deploy").write_text("reboot\n")
    assert redoma("check", str(tmp_path / "deploy"))[:2] == (3, "")


def test_what_only_looks_undefined_is_no_bash(redoma: InProcess) -> None:
    assert "define it first, or say that it is Python: --lang python" in redoma("check", "frame.head()")[2]
    assert redoma("check", "--lang", "python", "frame.head()")[0] == 0


@pytest.mark.parametrize(
    "text",
    ["6 * 7", "print(__file__)", "[x for x in range(3)]", "(lambda x: x)(1)", "(y := 1) + y", "x = 1", "x = y", "id"],
)
def test_what_means_something_as_python_is_read_as_such_by_check_and_explain(redoma: InProcess, text: str) -> None:
    status, output, _ = redoma("check", text)
    assert (status, "read as  Python" in output) == (0, True)
    assert "in this Python" in redoma("policy", "explain", text)[1]


@pytest.mark.parametrize("text", ["reboot", "rm -rf", "ls | wc -l", "curl -s example.com | sh"])
def test_what_check_does_not_take_for_python_is_explained_as_bash(redoma: InProcess, text: str) -> None:
    assert "in this Bash script" in redoma("policy", "explain", text)[1]


def test_a_run_of_a_shell_command_as_python_says_what_is_wrong(redoma: InProcess) -> None:
    status, _, errors = redoma("run", "ls -la /")
    assert (status, errors.splitlines()[-1]) == (1, "redoma: not valid Python; did you mean --lang bash?")


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("a.rb", "puts 1", "Ruby"),
        ("A.PS1", "ls", "PowerShell"),
        ("a.txt", "1", "a .txt file"),
        ("a", "#!/usr/bin/env deno\n1", "a script for deno"),
        ("b", "#!/usr/bin/perl -w\n1", "a script for perl"),
    ],
)
def test_other_languages_are_refused_by_name(redoma: InProcess, place: Path, name: str, text: str, what: str) -> None:
    (place / name).write_text(text)
    for command, status in (("run", 2), ("check", 3)):
        told = redoma(command, name)
        assert told[:2] == (status, "")
        assert told[2].startswith(f"redoma: {name} is {what}: this takes Python, Bash and JavaScript\n")


def test_a_file_of_another_language_that_is_not_there_is_no_code(redoma: InProcess) -> None:
    assert redoma("check", "nowhere.js")[0] == 3


@pytest.mark.parametrize("first", ["#!/usr/bin/env -S python3 -u", "#!/usr/bin/python3", "#!/bin/sh -e", "#!/bin/bash"])
def test_a_first_line_says_the_language(redoma: InProcess, place: Path, first: str) -> None:
    (place / "script").write_text(f"{first}\n" + ("echo 42\n" if "sh" in first[-8:] else "print(42)\n"))
    assert redoma("run", "script")[:2] == (0, "42\n")


# --- arguments, and commands without -- ---


@pytest.mark.parametrize("backend", ["jail", "native"])
def test_a_script_gets_its_arguments(redoma: InProcess, place: Path, backend: str) -> None:
    (place / "a.py").write_text("import sys; print(sys.argv[1:])")
    (place / "a.sh").write_text('printf "<%s>" "$@"')
    given = ("--backend", backend, "--policy", "none")
    assert redoma("run", *given, "a.py", "one", "two words", "--", "--three")[1] == "['one', 'two words', '--three']\n"
    assert redoma("run", "a.sh", *given, "one", "--", "-x", "--")[1] == "<one><-x><-->"


def test_the_arguments_are_on_record(redoma: InProcess, place: Path) -> None:
    (place / "a.py").write_text("1")
    redoma("run", "a.py", "first", "second")
    assert '"argv": [\n        "first",\n        "second"\n      ]' in redoma("audit", "tail", "--json")[1]


def test_monty_refuses_what_it_has_no_place_for(redoma: InProcess, place: Path) -> None:
    (place / "a.py").write_text("1")
    status, _, errors = redoma("run", "--backend", "monty", "a.py", "x")
    assert (status, "it doesn't offer arguments" in errors) == (125, True)


def test_try_takes_a_command_as_it_is(redoma: InProcess, place: Path) -> None:
    status, _, errors = redoma("try", "--keep", "make", "clean")
    assert (status, "2 deleted" in errors) == (0, True)
    assert (place / "build" / "part").exists()
    status, output, _ = redoma("try", "sh", "-c", 'echo "$@"', "--", "--keep", "--", "x")
    assert (status, output) == (0, "--keep -- x\n")
    assert redoma("try", "--", "echo", "-n", "x")[1] == "x"
    assert redoma("try", "--nonsense", "make")[0] == 2


def test_exec_takes_a_command_as_it_is(redoma_command: Command, place: Path) -> None:
    def typed(*words: str) -> tuple[int, str]:
        done = redoma_command(*words, stdin=subprocess.DEVNULL)
        return done.returncode, done.stdout

    assert typed("exec", "echo", "a", "--", "b", "--json") == (0, "a -- b --json\n")
    (place / "redoma.yaml").write_text("version: '1.0'\nnamespace: app\nentries: [{name: cell, kind: exec.jail}]\n")
    config = ("--config", "redoma.yaml", "exec")
    assert typed(*config, "app:cell", "echo", "--json", "x") == (0, "--json x\n")
    assert typed(*config, "app:cell", "--time", "50", "--", "echo", "x") == (0, "x\n")
    assert typed(*config, "--", "echo", "app:cell") == (0, "app:cell\n")


# --- programs of the user's own ---


def test_a_tool_of_the_project_that_is_on_the_path_runs_in_a_cell(
    redoma: InProcess, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = place / ".venv" / "bin" / "mytool"
    tool.parent.mkdir(parents=True)
    tool.write_text("#!/bin/sh\necho tool $1\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    assert redoma("try", "mytool", "x")[:2] == (0, "tool x\n")
    assert redoma("exec", "--workspace", "read-only", "mytool", "x")[:2] == (0, "tool x\n")


def test_python_is_the_one_on_the_path_or_it_is_said_that_it_is_not(
    redoma: InProcess, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = ("python3", "-c", "import sys; print(sys.prefix)")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert redoma("try", *shown)[:2] == (0, "/usr\n")
    assert (
        "note: python3 was Redoma's own; to run the one on your PATH, write /usr/bin/python3"
        in redoma("exec", *shown)[2]
    )
    subprocess.run(["/usr/bin/python3", "-m", "venv", "--without-pip", place / "env"], check=True)
    monkeypatch.setenv("PATH", f"{place}/env/bin:/usr/bin:/bin")
    assert redoma("try", *shown)[:2] == (0, f"{place}/env\n")
    (tmp_path / "python3").symlink_to("/usr/bin/python3")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    status, output, errors = redoma("try", *shown)
    assert (status, output) == (0, "/opt/venv\n")
    assert f"note: python3 was Redoma's own. {tmp_path}/python3 is not in the cell" in errors
    monkeypatch.setenv("PATH", f"{sys.prefix}/bin:/usr/bin:/bin")
    assert redoma("try", *shown)[1:] == ("/opt/venv\n", "It changed nothing.\n")


def test_a_tool_that_no_cell_sees_is_told_with_the_reason_and_a_way_that_works(
    redoma: InProcess, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for directory, first in ((tmp_path / "tools", "#!/bin/sh"), (place / "bin", f"#!{tmp_path}/tools/sh")):
        directory.mkdir()
        tool = directory / f"tool-in-{directory.name}"
        tool.write_text(f"{first}\necho hello\n")
        tool.chmod(0o755)
        shutil.copy("/bin/sh", directory / "sh")
        monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
    status, _, errors = redoma("try", "tool-in-tools")
    assert (status, f"why: {tmp_path}/tools/tool-in-tools is not in the cell" in errors) == (127, True)
    advice = errors.split("host itself: redoma ")[1].splitlines()[0]
    assert redoma(*advice.split())[:2] == (0, "hello\n")
    errors = redoma("try", "tool-in-bin")[2]
    assert f"why: {place}/bin/tool-in-bin needs {tmp_path}/tools/sh, which is not in the cell" in errors


@pytest.mark.parametrize(
    "words", [("try",), ("exec",), ("exec", "--backend", "native", "--"), ("network", "learn", "--")], ids=" ".join
)
def test_a_line_for_a_shell_is_told_how_to_get_one(redoma: InProcess, place: Path, words: tuple[str, ...]) -> None:
    status, _, errors = redoma(*words, "echo hi > x; cat x")
    assert (status, "could not start echo hi > x; cat x" in errors) == (127, True)
    assert "\n  next: write it after sh -c: sh -c 'echo hi > x; cat x'\n" in errors
    if "native" not in words:  # where it works in an empty directory, and policy asks about a shell
        assert redoma(*words, "sh", "-c", "echo hi > x; cat x")[:2] == (0, "hi\n")


# --- mistakes ---


@pytest.mark.parametrize(
    ("arguments", "status", "hint"),
    [
        (["chekc", "x"], 2, "No such command 'chekc'. Did you mean 'check'?"),
        (["audit", "tial"], 2, "No such command 'tial'. Did you mean 'tail'?"),
        (["xyzzy"], 2, "`redoma --help` shows how it is used"),
        (["run"], 2, "`redoma run --help` shows how it is used"),
        (["run", "--nonsense", "1"], 2, "`redoma run --help` shows how it is used"),
        (["run", "--backend", "nativ", "1"], 2, "did you mean 'native'?"),
        (["run", "--memory", "256", "1"], 2, "'256' has no unit; write 256MiB"),
        (["try"], 2, "write it like: redoma try make clean"),
        (["check"], 3, "redoma check -- rm -rf build"),
        (["check", "--nonsense"], 3, "`redoma check --help` shows how it is used"),
        (["--config", "nowhere.yaml", "run", "1"], 2, "does not exist"),
    ],
)
def test_a_mistake_has_a_status_of_its_own_and_a_hint(
    redoma: InProcess, arguments: list[str], status: int, hint: str
) -> None:
    told = redoma(*arguments)
    assert (told[0], told[1]) == (status, "")
    assert hint in told[2]


def test_help_is_a_command(redoma: InProcess, redoma_command: Command) -> None:
    assert redoma_command("help").stdout == redoma_command("--help").stdout
    assert redoma("help", "audit", "search")[1] == redoma("audit", "search", "--help")[1]
    assert "Did you mean 'run'?" in redoma("help", "rnu")[2]
    assert redoma("help", "run", "x")[0] == 2


def test_a_tool_that_is_not_on_the_path_of_the_host_is_told_with_a_way_that_works(
    redoma: InProcess, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "tools" / "my-tool"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho hello $1\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    status, _, errors = redoma("exec", "--backend", "native", "my-tool", "x")
    assert (status, f"why: {tool} is on your PATH" in errors) == (127, True)
    advice = errors.split("by its path: redoma ")[1].splitlines()[0]
    assert redoma(*advice.split())[:2] == (0, "hello x\n")


def test_an_unknown_policy_is_no_reason_to_advise_none(redoma: InProcess) -> None:
    status, _, errors = redoma("run", "--policy", "foo", "1")
    assert (status, "policy='none'" in errors, "choose none, standard" in errors) == (2, False, True)


# --- standard input ---


def test_code_that_reads_its_input_in_vain_is_told_how_to_get_it(redoma_command: Command, place: Path) -> None:
    asked = redoma_command("run", "input()", input="hello\n")
    assert asked.returncode == 1
    assert asked.stderr.endswith("\nredoma: the code read its standard input, which is empty: add -i to pass it on\n")
    assert redoma_command("run", "-i", "input()", input="hello\n").stdout == "'hello'\n"
    assert "redoma:" not in redoma_command("run", "-i", "input()", input="").stderr
    assert "redoma:" not in redoma_command("run", "raise EOFError('another')", input="").stderr
    asked = redoma_command("run", "-", input="input()")
    assert asked.stderr.endswith("which is empty: put the code into a file, and add -i\n")


@pytest.mark.parametrize(
    ("words", "typed"), [(("-i", "print(input())"), b"typed\n"), (("-",), b"print('typed')\n")], ids=["-i", "-"]
)
def test_at_a_terminal_it_is_said_that_input_is_waited_for(place: Path, words: tuple[str, ...], typed: bytes) -> None:
    ours, theirs = pty.openpty()
    program = str(Path(sys.executable).with_name("redoma"))
    with subprocess.Popen(
        [program, "run", *words], stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stderr is not None
        told = process.stderr.readline() if select.select([process.stderr], [], [], 30)[0] else b""
        os.write(ours, typed + b"\x04")
        output, errors = process.communicate(timeout=60)
    os.close(ours)
    os.close(theirs)
    assert told == b"redoma: reading what you type, until Ctrl-D at the beginning of a line\n"
    assert (output, errors, process.returncode) == (b"typed\n", b"", 0)


# --- completion ---


def completed(*words: str) -> list[str]:
    """What a shell is offered for the last word; `file` where it is to look for files itself."""
    program = str(Path(sys.executable).with_name("redoma"))
    typed = {
        "COMP_WORDS": " ".join(["redoma", *words]),
        "COMP_CWORD": str(len(words)),
        "_REDOMA_COMPLETE": "bash_complete",
    }
    done = subprocess.run(
        [program], capture_output=True, text=True, check=True, env={**os.environ, **typed}, timeout=60
    )
    return ["file" if line.startswith("file,") else line.partition(",")[2] for line in done.stdout.split()]


def test_a_shell_completes_files_backends_and_packs() -> None:
    assert completed("run", "scr") == ["file"]
    assert completed("run", "--file", "dat") == ["file"]
    assert completed("run", "script.py", "dat") == ["file"]
    assert completed("check", "scr") == ["file"]
    assert completed("try", "make", "-C", "sr") == ["file"]
    assert completed("exec", "cat", "dat") == ["file"]
    assert completed("exec", "app:shell", "--", "cat", "dat") == ["file"]
    assert "--keep" in completed("try", "--ke")
    assert completed("run", "--backend", "") == ["auto", "jail", "docker", "monty", "lean", "ray", "native"]
    assert completed("policy", "explain", "--backend", "na") == ["native"]
    assert completed("run", "--policy", "s") == ["script", "standard", "strict"]
    assert completed("che") == ["check", "checkpoints"]


def test_a_shell_completes_ids_and_executors(redoma: InProcess, place: Path) -> None:
    redoma("try", "--keep", "make", "clean")
    (kept,) = [line.split()[0] for line in redoma("changes", "list")[1].splitlines()]
    assert completed("changes", "apply", "") == [kept]
    assert completed("audit", "show", kept[:3]) == [kept]
    (place / "redoma.yaml").write_text("version: '1.0'\nnamespace: app\nentries: [{name: cell, kind: exec.jail}]\n")
    assert completed("--config", "redoma.yaml", "exec", "ap") == ["app:cell"]
    assert completed("--config", "nowhere.yaml", "exec", "ap") == []


# --- what is said afterwards ---


def test_changes_show_their_command_and_how_to_take_them_back(redoma: InProcess, place: Path) -> None:
    redoma("try", "--keep", "make", "clean")
    listed = redoma("changes", "list")[1]
    assert "  make clean  " in listed
    short = listed.split()[0]
    assert "$ make clean\n" in redoma("changes", "show", short)[1]
    applied = redoma("changes", "apply", short)[1]
    assert applied == f"Applied 2 changes. To take it back: redoma changes undo {short}\n"
    assert redoma(*applied.split("back: redoma ")[1].split())[0] == 0
    assert (place / "build" / "part").read_text() == "made\n"
    errors = redoma("try", "--apply-if-ok", "touch", "new")[2]
    undo = errors.splitlines()[-1].split("Applied 1 change. To take it back: redoma ")[1]
    assert redoma(*undo.split())[0] == 0
    assert not (place / "new").exists()


def test_rules_of_the_monitor_do_not_fill_the_newest_records(redoma: InProcess, place: Path) -> None:
    redoma("run", "print('mine')")
    for _ in range(2):
        assert redoma("monitor", "check")[0] in (0, 1, 2)
    tail = redoma("audit", "tail", "-n", "4")[1]
    assert "print('mine')" in tail
    assert "monitor:rule" not in redoma("audit", "tail", "--json")[1]
    assert "print('mine')" not in redoma("audit", "tail", "-n", "4", "--all")[1]
    # A label is its requester's to choose: nobody hides behind one.
    redoma("run", "--label", "monitor:rule:load", "print('hidden')")
    assert "print('hidden')" in redoma("audit", "tail", "-n", "4")[1]


# --- what was typed makes no sense ---


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--policy", "strikt", "1"),
        ("exec", "--policy", "strikt", "--", "ls"),
        ("policy", "explain", "--policy", "strikt", "1"),
    ],
)
def test_an_unknown_policy_is_wrong_usage(redoma: InProcess, arguments: tuple[str, ...]) -> None:
    status, _, errors = redoma(*arguments)
    assert (status, errors) == (
        2,
        "redoma: policy 'strikt': choose none, standard, script, strict or core\n  next: did you mean 'strict'?\n",
    )


@pytest.mark.parametrize(
    "arguments",
    [("try", "--project", "nosuch", "ls"), ("exec", "--workspace", "read-only", "--project", "nosuch", "ls")],
)
def test_a_project_that_is_not_there_is_wrong_usage(redoma: InProcess, place: Path, arguments: tuple[str, ...]) -> None:
    status, _, errors = redoma(*arguments)
    assert (status, errors) == (
        2,
        "redoma: the project nosuch can't be used: there is no such directory\n  next: name a directory\n",
    )


@pytest.mark.parametrize("words", [("run", "print(open('Makefile').read(5))"), ("exec", "head", "-c5", "Makefile")])
def test_a_project_without_a_workspace_is_told_what_to_add(
    redoma: InProcess, place: Path, words: tuple[str, ...]
) -> None:
    command, *rest = words
    status, _, errors = redoma(command, "--project", ".", *rest)
    assert (status, "overlay" in errors) == (2, False)
    assert errors.startswith("redoma: --project . was given without --workspace: ")
    assert "add --workspace read-only" in errors
    assert "redoma try --project . COMMAND" in errors
    status, output, _ = redoma(command, "--project", ".", "--workspace", "read-only", *rest)
    assert (status, output.strip()) == (0, "clean")
    assert redoma("try", "--project", ".", "head", "-c5", "Makefile")[:2] == (0, "clean")


def test_the_example_of_native_works_in_the_current_directory(redoma: InProcess, place: Path) -> None:
    assert "redoma run --lang bash --backend native --cwd . 'ls | wc -l'" in redoma("run", "--help")[1]
    assert redoma("run", "--lang", "bash", "--backend", "native", "--cwd", ".", "ls | wc -l")[1] == "2\n"


@pytest.mark.parametrize(("command", "usage"), [("run", 2), ("check", 3)])
@pytest.mark.parametrize("text", ["", " \n"])
def test_no_code_is_said_to_be_none(redoma: InProcess, command: str, usage: int, text: str) -> None:
    status, _, errors = redoma(command, text)
    assert (status, errors.splitlines()[0]) == (usage, "redoma: there is no code: the text is empty")


def test_an_option_of_a_script_has_its_place(redoma: InProcess, place: Path) -> None:
    (place / "script.py").write_text("import sys; print(sys.argv[1:])\n")
    status, _, errors = redoma("run", "script.py", "a", "--verbose")
    assert (status, "options of the script go after `--`" in errors) == (2, True)
    assert redoma("run", "script.py", "a", "--", "--verbose")[1] == "['a', '--verbose']\n"


@pytest.mark.parametrize("group", ["approvals", "audit", "changes", "config", "policy"])
def test_a_group_of_commands_alone_shows_its_help(redoma: InProcess, group: str) -> None:
    status, output, errors = redoma(group)
    assert (status, output.startswith(f"Usage: redoma {group} "), errors) == (0, True, "")


def test_monitor_alone_is_no_good_news(redoma: InProcess) -> None:
    assert redoma("monitor")[0] == 3


def test_the_program_of_a_checkout_can_be_linked_to(tmp_path: Path) -> None:
    scripts = tmp_path / "checkout" / "scripts"
    programs = tmp_path / "checkout" / ".venv" / "bin"
    scripts.mkdir(parents=True)
    programs.mkdir(parents=True)
    shutil.copy(Path(__file__).parents[3] / "scripts" / "redoma", scripts)
    for path, text in {scripts / "setup": "#!/bin/sh\n", programs / "redoma": '#!/bin/sh\necho "ran $1"\n'}.items():
        path.write_text(text)
        path.chmod(0o755)
    (tmp_path / "link").symlink_to("checkout/scripts/redoma")
    done = subprocess.run(["./link", "doctor"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("ran doctor\n", "")


PYTHON = """#!/bin/sh
# Stands in for Python: makes environments, and installs nothing into them.
case "$*" in
*venv*)
    echo "made" >>made
    rm -rf .venv
    mkdir -p .venv/bin
    cp "$0" .venv/bin/python
    echo "#!$PWD/.venv/bin/python" >.venv/bin/pip
    chmod +x .venv/bin/pip
    ;;
esac
"""


def test_an_environment_that_was_moved_or_lost_its_python_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "old" / "scripts").mkdir(parents=True)
    (tmp_path / "old" / "pyproject.toml").write_text("")
    shutil.copy(Path(__file__).parents[3] / "scripts" / "setup", tmp_path / "old" / "scripts")
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)

    def times_made(place: Path) -> int:
        command = [str(place / "scripts" / "setup")]
        environment = {**os.environ, "PYTHON": str(tmp_path / "python")}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return (place / "made").read_text().count("made")

    new = tmp_path / "new"
    assert [times_made(tmp_path / "old"), times_made(tmp_path / "old")] == [1, 1]
    (tmp_path / "old").rename(new)
    (tmp_path / "link").symlink_to("new")
    assert [times_made(new), times_made(tmp_path / "link"), times_made(new)] == [2, 2, 2]
    (new / ".venv" / "bin" / "python").unlink()
    assert [times_made(new), times_made(new)] == [3, 3]


WRONG = [
    ("audit", "show", "nosuch"),
    ("audit", "replay", "nosuch"),
    ("audit", "compare", "nosuch", "other"),
    ("audit", "tail", "-n", "x"),
    ("approvals", "show", "nosuch"),
    ("approvals", "show", "0123456789abcdef0123456789abcdef"),
    ("approvals", "approve", "nosuch"),
    ("approvals", "deny", "nosuch", "--reason", "no"),
    ("changes", "show", "nosuch"),
    ("changes", "apply", "nosuch"),
    ("changes", "discard", "nosuch"),
    ("changes", "undo", "nosuch"),
    ("checkpoints", "show", "nosuch"),
    ("checkpoints", "restore", "nosuch"),
    ("output", "nosuch"),
    ("exec", "app:nosuch", "--", "true"),
    ("run", "nosuch.py"),
    ("run", "-f", "nosuch", "1"),
    ("run", "--backend", "nosuch", "1"),
    ("run", "--policy", "nosuch", "1"),
    ("run", "--project", "nosuch", "1"),
    ("run", "--config", "nosuch.yaml", "1"),
    ("--config", "nosuch.yaml", "run", "1"),
    ("exec", "--project", "nosuch", "--", "true"),
    ("try", "--project", "nosuch", "true"),
    ("lua", "nosuch.lua"),
    ("policy", "explain", "--policy", "nosuch", "1"),
    ("policy", "test", "nosuch.yaml"),
    ("config", "check", "nosuch.yaml"),
    ("config", "trust", "nosuch.yaml"),
    ("completion", "nosuch"),
    ("help", "nosuch"),
]


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_an_argument_that_names_nothing_is_wrong_usage(redoma: InProcess, place: Path, words: tuple[str, ...]) -> None:
    code, out, err = redoma(*words)
    assert (code, out) == (2, "")
    assert err.startswith("redoma: ")
    assert "next: " in err


def test_standard_input_says_its_language_like_a_file_and_is_not_empty(redoma_command: Command, place: Path) -> None:
    assert redoma_command("run", "-", input="#!/bin/bash\nfor x in 1 2; do echo $x; done\n").stdout == "1\n2\n"
    assert redoma_command("run", "-", input="print(3)\n").stdout == "3\n"
    for command, code in (("run", 2), ("check", 3)):
        done = redoma_command(command, "-", input="\n")
        assert (done.returncode, done.stdout) == (code, "")
        assert "standard input is empty" in done.stderr


@pytest.mark.parametrize(
    ("value", "seconds"), [("50", 50.0), ("30.5", 30.5), ("45s", 45.0), ("0.5m", 30.0), ("1m", 60.0)]
)
def test_a_time_may_have_a_unit(redoma: InProcess, place: Path, value: str, seconds: float) -> None:
    code, out, _ = redoma("run", "--time", value, "--json", "1")
    result = json.loads(out)
    assert (code, result["value"]) == (0, 1)
    shown = json.loads(redoma("audit", "show", result["id"], "--json")[1])
    assert f'"time": {seconds}' in json.dumps(shown)


@pytest.mark.parametrize(
    "words", [("--time", "5x"), ("--time", "soon"), ("--cpu", "1y"), ("--memory", "0"), ("--disk", "0MiB")]
)
def test_what_is_no_time_and_no_size_is_said_with_an_example(
    redoma: InProcess, place: Path, words: tuple[str, str]
) -> None:
    code, _, err = redoma("run", *words, "1")
    assert code == 2
    assert "write it like" in err


@pytest.mark.parametrize(("value", "size"), [("256m", 256_000_000), ("1g", 1_000_000_000), ("64mib", 64 << 20)])
def test_a_size_may_be_written_in_small_letters(redoma: InProcess, place: Path, value: str, size: int) -> None:
    result = json.loads(redoma("run", "--memory", value, "--json", "1")[1])
    shown = json.loads(redoma("audit", "show", result["id"], "--json")[1])
    assert f'"memory": {size}' in json.dumps(shown)


@pytest.mark.parametrize("where", [(), ("--backend", "native")])
def test_a_script_knows_its_file_on_the_host_as_in_a_cell(
    redoma: InProcess, tmp_path: Path, where: tuple[str, ...]
) -> None:
    (tmp_path / "x.py").write_text(
        "import os, sys\nprint(os.path.isabs(__file__), os.path.basename(__file__), sys.argv[1:])\n"
    )
    assert redoma("run", *where, str(tmp_path / "x.py"), "a", "b")[:2] == (0, "True main.py ['a', 'b']\n")
