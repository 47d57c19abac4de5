"""`redoma lua`, as a person types it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lua_stage import ENTRIES

Command = Callable[..., subprocess.CompletedProcess[str]]

GUIDE = (Path(__file__).parents[3] / "docs" / "lua.md").read_text()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "redoma.yaml").write_text(ENTRIES.format(directory=tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def lua(redoma_command: Command, place: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def call(source: str, *arguments: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        (place / "script.lua").write_text(source)
        return redoma_command("--config", "redoma.yaml", "lua", *options, "script.lua", *arguments)

    return call


def test_the_example_in_the_guide_prints_the_status_of_a_repository(lua: Command, place: Path) -> None:
    (config,) = re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)
    (script,) = re.findall(r"```lua\n(.*?)```", GUIDE, re.DOTALL)
    (place / "redoma.yaml").write_text(config.replace("/srv/app", str(place)))
    subprocess.run(["git", "init", "-q", "-b", "trunk", place], check=True)
    done = lua(script)
    printed = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert printed[0] == "On branch trunk"
    assert {"\tredoma.yaml", "\tscript.lua"} <= set(printed)
    assert printed[-2] == "it ended with 0"
    assert printed[-1] == (
        "nil\tapp:shell did not run the command: app:shell does not allow this command; it allows: git status "
        "[entry.whitelist]. Next: Add it to command_whitelist of app:shell"
    )


def test_arguments_are_the_scripts_own(lua: Command) -> None:
    done = lua("print(#arg, ...) os.exit(3)", "--time", "-x", "--", "--help")
    assert (done.returncode, done.stdout) == (3, "4\t--time\t-x\t--\t--help\n")


@pytest.mark.parametrize(
    ("source", "code", "told"),
    [
        (
            "local x = {}\nlocal y = x.z.w",
            1,
            "script.lua:2: attempt to index a nil value (field 'z')\nstack traceback:",
        ),
        ("print('a')\nif", 1, "script.lua:2: unexpected symbol near <eof>\n"),
        ("while true do end", 124, "redoma: timeout: it ran longer than 1 s and was ended\n"),
    ],
)
def test_how_it_ended_is_the_exit_status(lua: Command, source: str, code: int, told: str) -> None:
    done = lua(source, options=("--time", "1" if code == 124 else "60"))
    assert done.returncode == code
    assert done.stderr.startswith(told)


def test_as_json(lua: Command) -> None:
    result = json.loads(lua("print('olá') error('x')", options=("--json",)).stdout)
    assert (result["status"], result["exit_code"], result["stdout"]) == ("error", 1, "olá\n")
    assert result["error"] == "LuaError: script.lua:1: x"


def test_from_standard_input_and_from_nowhere(redoma_command: Command) -> None:
    done = redoma_command("lua", "-", "x", input="print(arg[0], ...) error('here')")
    assert (done.returncode, done.stdout) == (1, "stdin\tx\n")
    assert done.stderr.startswith("stdin:1: here\n")
    missing = redoma_command("lua", "nowhere.lua")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert missing.stderr == (
        "redoma: there is no file nowhere.lua: a script is a file, or `-`\n  next: check the path\n"
    )


@pytest.mark.parametrize("backend", ["monty", "nonsense"])
def test_a_backend_that_has_no_lua_is_an_error(lua: Command, backend: str) -> None:
    done = lua("print(1)", options=("--backend", backend))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"Lua can't run on {backend}: it runs on auto, jail, native" in done.stderr


def test_a_layer_that_is_required_and_missing_is_an_error(lua: Command) -> None:
    assert lua("print(1)", options=("--require", "seccomp", "--require", "interpreter")).stdout == "1\n"
    done = lua("print(1)", options=("--require", "seccomp", "--backend", "native"))
    assert (done.returncode, done.stdout) == (125, "")
    assert "it doesn't offer the isolation layer 'seccomp'" in done.stderr


WITHOUT_CELLS = """
from redoma.backends.jail.root import enter_user_namespace
enter_user_namespace(0)
with open("/proc/sys/user/max_user_namespaces", "w") as limit:
    limit.write("0")
"""
WITHOUT_LUPA = "import sys; sys.modules['lupa'] = None"
ELSEWHERE = """
import importlib.util, os, shutil, sys
shutil.copytree(os.path.dirname(importlib.util.find_spec("lupa").origin), "elsewhere/lupa", dirs_exist_ok=True)
sys.path.insert(0, os.path.abspath("elsewhere"))
"""


@pytest.mark.parametrize(
    ("without", "told", "on_the_host"),
    [
        (
            WITHOUT_CELLS,
            ("the jail is not available on this host", "see `redoma doctor`, or choose the backend `native`"),
            0,
        ),
        (WITHOUT_LUPA, ("Lua is not here: lupa isn't installed", "pip install 'redoma[lua]'"), 125),
        (ELSEWHERE, ("Lua can't be used in a cell: lupa is in ", "pip install 'redoma[lua]' where"), 0),
    ],
    ids=["no_cells", "no_lupa", "lupa_elsewhere"],
)
def test_what_is_missing_is_an_error_that_says_what_to_do(
    place: Path, without: str, told: tuple[str, ...], on_the_host: int
) -> None:
    def run(*options: str) -> subprocess.CompletedProcess[str]:
        program = f"{without}\nfrom redoma.frontends.cli import main\nmain()"
        return subprocess.run(
            [sys.executable, "-c", program, "lua", *options, "-"],
            input="print('it ran')",
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
            env={**os.environ, "XDG_STATE_HOME": str(place)},
        )

    place.chmod(0o777)
    done = run()
    assert (done.returncode, done.stdout) == (125, ""), done
    assert all(text in done.stderr for text in told), done.stderr
    native = run("--backend", "native")
    assert (native.returncode, native.stdout) == (on_the_host, "" if on_the_host else "it ran\n")


@pytest.fixture
def somebody() -> Iterator[list[str]]:
    """An interpreter of an unprivileged user's."""
    if os.geteuid():
        yield [sys.executable]
        return
    sys.path.insert(0, str(Path(__file__).parents[2] / "attacks"))
    try:
        from jail_crew import unprivileged
    finally:
        sys.path.pop(0)
    with tempfile.TemporaryDirectory(prefix="somebody-") as place:
        yield unprivileged(Path(place))[:-1]


def test_it_takes_no_privileges(somebody: list[str]) -> None:
    script = """
        for _, name in ipairs({"app:shell", "app:cell"}) do
          local proc = assert(require("exec").get(name).exec("cat"))
          assert(proc:start())
          proc:write_stdin("through " .. name .. "\\n")
          proc:close_stdin()
          write(proc:stdout_stream():read("a"), proc:wait(), "\\n")
        end
    """
    with tempfile.TemporaryDirectory(prefix="home-") as home:
        os.chmod(home, 0o777)  # noqa: S103 - somebody else writes there
        Path(home, "named.yaml").write_text(ENTRIES.format(directory=home))
        program = "from redoma.frontends.cli import main; main()"
        done = subprocess.run(
            [*somebody, "-c", program, "--config", f"{home}/named.yaml", "lua", "-"],
            input=script,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
            env={"PATH": os.defpath, "HOME": home},
            cwd=home,
        )
    assert (done.stdout, done.stderr) == ("through app:shell\n0\nthrough app:cell\n0\n", "")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_when_redoma_is_ended(place: Path, number: signal.Signals) -> None:
    (place / "script.lua").write_text(
        """
        local executor = require("exec").get("app:shell")
        local proc = executor.exec({"sh", "-c", "echo $$; exec sleep 300"})
        proc:start()
        write(proc:stdout_stream():read())
        proc:wait()
        """
    )
    redoma = subprocess.Popen(
        [str(Path(sys.executable).with_name("redoma")), "--config", "redoma.yaml", "lua", "script.lua"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert redoma.stdout is not None
    with redoma.stdout:
        sleeper = int(redoma.stdout.readline())
        redoma.send_signal(number)
        redoma.wait(60)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{sleeper}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not Path(f"/proc/{sleeper}").exists()
