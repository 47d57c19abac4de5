"""The real program, typed as a person would."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leftovers import children_of

Command = Callable[..., subprocess.CompletedProcess[str]]


def answer(done: subprocess.CompletedProcess[str]) -> Any:
    return json.loads(done.stdout)


def test_eval_prints_exactly_the_dictionary(redoma_command: Command) -> None:
    done = redoma_command("eval", "2 + 2")
    assert (done.stdout, done.stderr, done.returncode) == ("{'status': 'success', 'output': 4}\n", "", 0)


def test_eval_lists_nothing_of_the_host(redoma_command: Command, tmp_path: Path) -> None:
    (tmp_path / "visible-name").touch()
    done = redoma_command("eval", "import os; os.listdir('.')", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout.startswith("{'status': 'error', 'message': ")
    assert "visible-name" not in done.stdout + done.stderr


def test_eval_says_what_was_printed(redoma_command: Command) -> None:
    assert answer(redoma_command("eval", "--json", "print('hi'); 3")) == {
        "status": "success",
        "output": 3,
        "printed": "hi\n",
    }


def test_run_takes_code_a_file_and_standard_input(redoma_command: Command, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("print('from a file')")
    assert redoma_command("run", "print('inline')").stdout == "inline\n"
    assert redoma_command("run", str(script)).stdout == "from a file\n"
    assert redoma_command("run", "-", input="print('from stdin')").stdout == "from stdin\n"


def test_run_shows_the_value_of_inline_code(redoma_command: Command) -> None:
    assert redoma_command("run", "6 * 7").stdout == "42\n"


def test_run_of_a_missing_file_says_so(redoma_command: Command) -> None:
    done = redoma_command("run", "missing.py")
    assert done.returncode == 2
    assert "there is no file missing.py" in done.stderr
    assert "Traceback" not in done.stderr


def test_run_puts_files_beside_the_code(redoma_command: Command, tmp_path: Path) -> None:
    (tmp_path / "local.csv").write_text("a,b")
    code = "print(open('local.csv').read(), open('in/other.csv').read())"
    local = tmp_path / "local.csv"
    assert redoma_command("run", code, "-f", str(local), "-f", f"{local}:in/other.csv").stdout == "a,b a,b\n"


def test_run_bash_in_a_cell_and_on_the_host_only_when_asked(redoma_command: Command) -> None:
    script = "echo $HOSTNAME; id -u"
    assert redoma_command("run", "--lang", "bash", script).stdout == "redoma\n1000\n"
    assert redoma_command("run", "--lang", "bash", "--backend", "native", script).stdout.endswith(f"\n{os.getuid()}\n")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("run", "1"), 0),
        (("run", "1 / 0"), 1),
        (("run", "--backend", "native", "import sys; sys.exit(7)"), 7),
        (("run", "--time", "0.5", "while True: pass"), 124),
        (("run", "--memory", "20MiB", "x = 'a' * 10**9"), 137),
        (("run", "--lang", "bash", "rm -rf /"), 126),
        (("run", "--backend", "native", "--lang", "bash", "sudo ls"), 126),
        (("run", "--require", "moon-dust", "1"), 125),
        (("run", "--backend", "nativ", "1"), 2),
        (("run", "--memory", "lots", "1"), 2),
        (("nonsense",), 2),
    ],
)
def test_the_exit_status_tells_the_endings_apart(
    redoma_command: Command, arguments: tuple[str, ...], expected: int
) -> None:
    done = redoma_command(*arguments)
    assert done.returncode == expected
    assert "redoma/" not in done.stderr  # a traceback may be the code's, never ours


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("check", "import os\nprint(os.getcwd())"), 0),
        (("check", "--lang", "bash", "pip install x"), 1),
        (("check", "--lang", "bash", "r''m -rf /"), 2),
        (("check", "--", "rm", "-rf", "/"), 2),
        (("check", "--", "ls", "-l"), 0),
        (("check", "--", "reboot"), 2),
        (("check", "--", "sudo"), 1),
        (("check", "--policy", "strict", "import os"), 2),
        (("check", "--policy", "none", "--lang", "bash", "rm -rf /"), 0),
    ],
)
def test_check_prints_the_verdict_and_exits_by_it(
    redoma_command: Command, arguments: tuple[str, ...], expected: int
) -> None:
    done = redoma_command(*arguments)
    assert done.returncode == expected
    assert ("allow", "prompt", "forbid")[expected] in done.stdout


def test_check_names_rule_place_reason_and_way_out(redoma_command: Command) -> None:
    report = answer(redoma_command("check", "--json", "--lang", "bash", "echo hi\n  chmod 777 x"))
    assert report["decision"] == "forbid"
    finding = next(finding for finding in report["findings"] if finding["decision"] == "forbid")
    assert (finding["line"], finding["column"]) == (2, 3)
    assert all(finding[key] for key in ("rule", "reason", "text", "suggestion"))


def test_run_answers_json_with_everything(redoma_command: Command) -> None:
    report = answer(redoma_command("run", "--json", "print('x'); [1, {'a': (1, 2)}]"))
    assert (report["status"], report["ending"], report["stdout"], report["backend"]) == ("ok", "ran", "x\n", "jail")
    assert report["evaluation"]["decision"] == "allow"
    assert report["isolation"]["layers"]["network"] == "a namespace of its own"
    assert report["isolation"]["missing"] == []


def test_an_error_is_json_where_json_was_asked_for(redoma_command: Command) -> None:
    done = redoma_command("run", "--json", "--backend", "nativ", "1")
    assert answer(done)["status"] == "failed"
    assert "native" in answer(done)["next"]


def test_secrets_are_neither_shown_nor_recorded(redoma_command: Command) -> None:
    done = redoma_command(
        *("run", "--secret", "API_TOKEN", "import os; print(os.getenv('API_TOKEN'))"),
        env={**os.environ, "API_TOKEN": "correct-horse-battery"},
    )
    assert "correct-horse" not in done.stdout + done.stderr
    assert "redacted" in done.stdout
    recorded = "".join(path.read_text() for path in Path(os.environ["HOME"]).rglob("*.jsonl"))
    assert recorded.count("\n") == 2
    assert "correct-horse" not in recorded


def test_the_record_can_be_read_and_verified(redoma_command: Command) -> None:
    ran = answer(redoma_command("run", "--json", "--reason", "because", "print(1)"))
    assert redoma_command("audit", "verify").stdout.startswith("intact: 2 records")
    shown = answer(redoma_command("audit", "show", "--json", ran["id"][:8]))
    assert [record["kind"] for record in shown] == ["intent", "outcome"]
    assert shown[0]["data"]["reason"] == "because"
    assert {"timestamp", "code", "result", "error", "duration", "memory_used"} - {"timestamp"} <= {
        *shown[0]["data"],
        *shown[1]["data"],
    }
    assert "print(1)" in redoma_command("audit", "tail").stdout
    assert answer(redoma_command("audit", "stats", "--json"))["by_status"] == {"ok": 1}


def test_an_edited_record_is_named(redoma_command: Command) -> None:
    for number in range(3):
        redoma_command("eval", str(number))
    (log,) = Path(os.environ["HOME"]).rglob("audit-*.jsonl")
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([lines[0], lines[1], lines[2].replace(b'"1"', b'"7"'), *lines[3:]]))
    done = redoma_command("audit", "verify")
    assert done.returncode == 1
    assert f"{log.name}:3" in done.stdout


def test_nothing_runs_when_it_cannot_be_recorded(redoma_command: Command, tmp_path: Path) -> None:
    in_the_way = tmp_path / "state"
    in_the_way.write_text("a file where the directory should be")
    mark = tmp_path / "mark"
    done = redoma_command(
        *("run", "--lang", "bash", "--backend", "native", f"touch {mark}"),
        env={**os.environ, "REDOMA_STATE_DIR": str(in_the_way)},
    )
    assert done.returncode == 125
    assert not mark.exists()


def test_policy_none_is_on_record(redoma_command: Command) -> None:
    redoma_command("run", "--policy", "none", "1")
    assert answer(redoma_command("audit", "tail", "--json"))[0]["data"]["policy"] == "none"


def test_a_configured_executor_runs_exactly_what_its_list_allows(redoma_command: Command, tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(
        'version: "1.0"\nnamespace: app\nentries:\n  - name: shell\n    kind: exec.native\n'
        f"    default_work_dir: {tmp_path}\n    default_env: {{GREETING: hi}}\n"
        '    command_whitelist: ["ls", "printenv GREETING"]\n'
    )
    assert "c.yaml" in redoma_command("--config", str(config), "exec", "app:shell", "--", "ls").stdout
    assert redoma_command("--config", str(config), "exec", "app:shell", "--", "printenv", "GREETING").stdout == "hi\n"
    refused = redoma_command("--config", str(config), "exec", "app:shell", "--", "ls", "-l")
    assert refused.returncode == 126
    assert "app:shell" in refused.stderr
    assert "printenv GREETING" in refused.stderr


def test_a_cloned_project_cannot_switch_the_protection_off(redoma_command: Command, tmp_path: Path) -> None:
    (tmp_path / "redoma.yaml").write_text("policy: {pack: none}\n")
    before = redoma_command("check", "--lang", "bash", "rm -rf /", cwd=tmp_path)
    assert before.returncode == 2
    assert "redoma config trust" in before.stderr
    assert redoma_command("config", "trust", "--yes", cwd=tmp_path).returncode == 0
    assert redoma_command("check", "--lang", "bash", "rm -rf /", cwd=tmp_path).returncode == 0
    (tmp_path / "redoma.yaml").write_text("policy: {pack: none} \n")
    assert redoma_command("check", "--lang", "bash", "rm -rf /", cwd=tmp_path).returncode == 2


def test_config_check_names_line_key_and_the_nearest_valid_one(redoma_command: Command, tmp_path: Path) -> None:
    (tmp_path / "redoma.yaml").write_text("limits:\n  tiem: 5\n")
    done = redoma_command("config", "check", cwd=tmp_path)
    assert done.returncode == 1
    assert "redoma.yaml:2:3" in done.stdout
    assert "time" in done.stdout


def test_config_show_says_where_each_value_came_from(redoma_command: Command, tmp_path: Path) -> None:
    (tmp_path / "redoma.yaml").write_text("limits: {time: 5}\n")
    rows = {row["key"]: row for row in answer(redoma_command("config", "show", "--json", cwd=tmp_path))}
    assert rows["limits.time"]["value"] == 5
    assert "redoma.yaml:1" in rows["limits.time"]["origin"]
    assert rows["limits.memory"]["origin"] == "default"


def test_doctor_says_what_this_host_offers(redoma_command: Command) -> None:
    report = answer(redoma_command("doctor", "--json"))
    assert report["auto"] == "jail"
    assert {backend["name"] for backend in report["backends"]} == {"jail", "docker", "monty", "lean", "native"}


def test_the_help_that_is_kept_ready_is_what_click_would_say(redoma_command: Command) -> None:
    import click

    from redoma.frontends.cli import app

    cli = app.cli
    context = click.Context(cli, info_name="redoma", terminal_width=80, **cli.context_settings)
    kept = Path(app.__file__).with_name("help.txt").read_text()
    assert f"{cli.get_help(context)}\n" == kept, "write what click says to help.txt"
    assert redoma_command("--help").stdout == redoma_command("-h").stdout == redoma_command().stdout == kept


@pytest.mark.parametrize("command", ["run", "eval", "exec", "lua", "check", "audit", "config"])
def test_every_help_has_an_example(redoma_command: Command, command: str) -> None:
    assert f"redoma {command} " in redoma_command(command, "--help").stdout.replace("\n", " ")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_printed(redoma_command: Command, shell: str) -> None:
    assert "_REDOMA_COMPLETE" in redoma_command("completion", shell).stdout


def test_completion_completes(redoma_command: Command) -> None:
    words = {**os.environ, "_REDOMA_COMPLETE": "bash_complete", "COMP_WORDS": "redoma au", "COMP_CWORD": "1"}
    assert "audit" in redoma_command(env=words).stdout


def test_no_colour_without_a_terminal(redoma_command: Command) -> None:
    done = redoma_command("check", "--lang", "bash", "rm -rf /")
    assert "\x1b" not in done.stdout + done.stderr


def test_escape_sequences_of_a_run_do_not_reach_the_terminal(redoma_command: Command) -> None:
    done = redoma_command("run", r"print('\x1b]0;owned\x07 \x1b[2J')")
    assert "\x1b" not in done.stdout
    assert "\x07" not in done.stdout


def test_a_reader_that_has_enough_is_no_error(redoma_command: Command) -> None:
    redoma_command("eval", "1")
    reader, writer = os.pipe()
    os.close(reader)
    done = redoma_command("audit", "tail", capture_output=False, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_everything_after_the_first_dashes_is_the_commands(redoma_command: Command, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("content")
    assert redoma_command("exec", "--backend", "native", "--", "cat", "--", str(tmp_path / "f")).stdout == "content"
    without = redoma_command("exec", "--backend", "native")
    assert without.returncode == 2
    assert "there is no command" in without.stderr


def on_a_terminal(*arguments: str, **env: str) -> bytes:
    """What the program writes to a real terminal."""
    controller, terminal = pty.openpty()
    program = str(Path(sys.executable).with_name("redoma"))
    environment = {**os.environ, "TERM": "xterm", **env}
    process = subprocess.Popen([program, *arguments], stdout=terminal, stderr=terminal, env=environment)
    os.close(terminal)
    shown = b""
    while True:
        try:
            shown += (chunk := os.read(controller, 4096))
        except OSError:  # the other end is closed
            break
        if not chunk:
            break
    process.wait(timeout=60)
    os.close(controller)
    return shown


def test_colours_are_for_terminals_that_want_them() -> None:
    arguments = ("check", "--lang", "bash", "rm -rf /")
    assert b"\x1b[31m" in on_a_terminal(*arguments, NO_COLOR="")
    assert b"\x1b" not in on_a_terminal(*arguments, NO_COLOR="1")
    assert b"\x1b" not in on_a_terminal(*arguments, TERM="dumb", NO_COLOR="")
    assert b"\x1b" not in on_a_terminal("run", "--backend", "nativ", "1", NO_COLOR="1")


@pytest.mark.usefixtures("nothing_left_behind")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_the_run_and_is_on_record(number: int, tmp_path: Path) -> None:
    program = str(Path(sys.executable).with_name("redoma"))
    (tmp_path / "a").touch()
    arguments = [program, "run", "--time", "50", "-f", str(tmp_path / "a"), "while True: pass"]
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while '"kind":"intent"' not in _recorded() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.3)
    while not (workers := children_of(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == (130 if number == signal.SIGINT else 128 + number)
    assert "Traceback" not in errors
    assert workers
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert json.loads(_recorded().splitlines()[-1])["data"]["status"] == "killed"


@pytest.mark.usefixtures("nothing_left_behind")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.parametrize("words", [["run", "while True: pass"], ["run", "--time", "50", "while True: pass"]])
def test_a_signal_at_any_moment_of_the_start_ends_it_and_leaves_nothing(number: int, words: list[str]) -> None:
    program = str(Path(sys.executable).with_name("redoma"))
    for seconds in (0.0, 0.05, 0.2, 0.5):
        process = subprocess.Popen([program, *words], stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 60
        while not children_of(process.pid) and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(seconds)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == (130 if number == signal.SIGINT else 128 + number), errors
        assert "Traceback" not in errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_an_import_waits_for_its_end(number: int, tmp_path: Path) -> None:
    """It would leave the lock on imports held if it raised in the middle."""
    (tmp_path / "slow.py").write_text(
        f"import os, time\nos.kill(os.getpid(), {number})\ntime.sleep(0.2)\nprint('whole', flush=True)\n"
    )
    code = (
        "from redoma.frontends.cli import begin\nbegin()\nimport slow, time\n"
        "try: time.sleep(60)\nexcept BaseException as error: print(type(error).__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    expected = "KeyboardInterrupt" if number == signal.SIGINT else "SystemExit"
    assert done.stdout.split() == ["whole", expected], done.stderr


def _recorded() -> str:
    return "".join(log.read_text() for log in Path(os.environ["HOME"]).rglob("audit-*.jsonl"))


SHELL_TRICKS = [
    "redoma run 'print(1)' >&-",
    "redoma --help >&-",
    "redoma run - <&-",
    "redoma run -i '1' <&-",
    "redoma run 'print(1)' >/dev/full",
    "redoma --help >/dev/full",
    "redoma check --json 'x' >/dev/full",
    "redoma --help | true",
    "redoma run -f /dev/zero 1",
    "mkfifo pipe; redoma run -f pipe 1",
    "redoma run .",
    "redoma run -f . 1",
    "redoma run $'\\xff'",
    "redoma --config nowhere.yaml run 1",
    "redoma config trust nowhere.yaml",
    "redoma audit show zzz",
    "redoma audit tail -n -1",
    "HOME=relative redoma run 1",
    "env -u HOME redoma run 1",
    "mkdir $'\\xff'; cd $'\\xff'; echo 'limits: {time: 1}' > redoma.yaml; redoma config show --json",
    "mkdir $'\\xff'; cd $'\\xff'; redoma exec --json --backend native -- pwd",
    "redoma run --json $'\\xff'",
    "redoma exec --backend native -- ls $'\\xff'",
]


@pytest.mark.parametrize("line", SHELL_TRICKS)
def test_no_condition_of_the_shell_ends_in_a_traceback(line: str) -> None:
    path = f"{Path(sys.executable).parent}:{os.defpath}"
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, timeout=120, check=False, env={**os.environ, "PATH": path}
    )
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_a_source_may_come_through_a_pipe() -> None:
    path = f"{Path(sys.executable).parent}:{os.defpath}"
    for line in ("redoma run <(echo 'print(7)')", "echo 'print(7)' | redoma run /dev/stdin"):
        done = subprocess.run(
            ["bash", "-c", line],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={**os.environ, "PATH": path},
        )
        assert done.stdout == "7\n"


@pytest.mark.parametrize("command", ["run", "check"])
def test_lua_is_not_read_as_python(redoma_command: Command, tmp_path: Path, command: str) -> None:
    file = tmp_path / "a script.lua"
    told = redoma_command(command, "nowhere.lua")
    assert (told.returncode, "there is no file" in told.stderr) == (2 if command == "run" else 3, True)
    file.write_text("print(1)\n")
    told = redoma_command(command, str(file))
    assert (told.returncode, told.stdout) == (2 if command == "run" else 3, "")
    assert told.stderr == (f"redoma: {file} is a Lua script: this takes other languages\n  next: redoma lua '{file}'\n")
    assert redoma_command(command, "--lang", "python", str(file)).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "is_json"),
    [
        (["lua", "--json", "nope.lua"], True),
        (["lua", "--time", "3", "--json", "nope.lua", "x"], True),
        (["lua", "nope.lua", "--json"], False),
        (["lua", "--time", "3", "nope.lua", "--json"], False),
        (["lua", "--", "nope.lua", "--json"], False),
        (["lua", "--nonsense", "--json", "nope.lua"], True),
        (["exec", "app:x", "--", "ls", "--json"], False),
        (["exec", "--json", "app:x", "--", "ls"], True),
        (["exec", "app:x", "--json", "--", "ls"], True),
        (["exec", "app:x", "ls", "--json"], False),
        (["try", "--json", "--keep", "--apply-if-ok", "ls"], True),
        (["try", "--keep", "--apply-if-ok", "ls", "--json"], False),
        (["run", "lua.py", "--json"], True),
    ],
)
def test_an_error_is_json_if_we_were_asked_for_it_and_not_the_program(
    redoma_command: Command, arguments: list[str], is_json: bool
) -> None:
    told = redoma_command(*arguments)
    assert told.returncode == 2
    assert told.stdout.startswith("{") == is_json
    assert told.stderr.startswith("redoma: ") != is_json


def test_check_reads_a_file_as_it_would_be_run(redoma_command: Command, tmp_path: Path) -> None:
    for name, text in (("b.py", "print(1)\n"), ("b.sh", "echo 1\n")):
        (tmp_path / name).write_text(text, encoding="utf-8-sig")
        assert redoma_command("check", str(tmp_path / name)).returncode == 0
        assert redoma_command("run", str(tmp_path / name)).stdout == "1\n"
