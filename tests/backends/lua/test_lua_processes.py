"""The process API, as a Lua script has it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import pytest
from lua_stage import Stage

from redoma.models import Result, Status


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    stage = Stage(tmp_path_factory.mktemp("lua"))
    yield stage
    stage.close()


BEGIN = """
local exec = require("exec")
local executor = assert(exec.get(arg[1] or "app:shell"))
"""


def lines(result: Result) -> list[str]:
    assert (result.status, result.stderr) == (Status.OK, ""), result
    return result.stdout.splitlines()


@pytest.mark.parametrize("entry", ["app:shell", "app:cell"])
def test_a_dialogue_with_a_program(stage: Stage, entry: str) -> None:
    """What it prints is there while it runs, and it gets what is written while it runs."""
    result = stage.run(
        BEGIN
        + """
        local proc = assert(executor.exec({"sh", "-c", "echo ready; read x; echo got $x; echo oops >&2; cat; exit 7"}))
        local out, err = proc:stdout_stream(), proc:stderr_stream()
        print(proc:start())
        print(out:read())
        print(proc:write_stdin("olá\\n"))
        print(out:read())
        print(proc:write_stdin("the rest"), proc:close_stdin())
        print(out:read("a"), out:read("a") == "", out:read())
        print(err:read(3), err:read(), err:read())
        print(proc:wait(), proc:wait())
        print(out:close(), err.close(), proc:close())
        print(executor:release())
        """,
        entry,
    )
    assert lines(result) == [
        *("true", "ready", "", "true", "got olá", "", "true\ttrue", "the rest\ttrue\tnil", "oop\ts", "\tnil"),
        *("7\t7", "true\ttrue\ttrue", "true"),
    ]


def test_methods_work_with_a_colon_and_with_a_dot(stage: Stage) -> None:
    result = stage.run(
        """
        local exec = require("exec")
        local executor = exec:get("app:shell")
        local a, b = executor.exec("printenv GREETING"), executor:exec("printenv GREETING")
        a.start() b:start()
        print(a.wait(), b:wait(), a.stdout_stream().read(), b:stdout_stream():read("a"), a, executor)
        do local c <close> = executor.exec("true") end
        """
    )
    assert "".join(lines(result)) == "0\t0\thello\thello\tprocess\texecutor"


def test_input_is_bytes_and_output_is_text(stage: Stage) -> None:
    result = stage.run(
        BEGIN
        + r"""
        local function run(command, input)
          local proc <close> = assert(executor.exec(command))
          assert(proc:start())
          assert(proc:write_stdin(input))
          proc:close_stdin()
          return (proc:stdout_stream():read("a"))
        end
        print(run("od -An -tx1", "\0\xff\xc3\xa1\n\r"))
        print(run("wc -c", ("0123456789"):rep(300000)))
        print(#run("cat", "olá €"), run("cat", "olá €"))
        """
    )
    assert lines(result) == [" 00 ff c3 a1 0a 0d", "", "3000000", "", "8\tolá €"]


def test_signals_and_exit_status(stage: Stage) -> None:
    result = stage.run(
        BEGIN
        + """
        local polite = executor.exec({"sh", "-c", "trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0; done"})
        polite:start()
        local out = polite:stdout_stream()
        write(out:read(), tostring(polite:signal(15)), "\\n", out:read(), polite:wait(), "\\n")
        local other = executor.exec("sleep 60")
        other:start()
        print(other:signal(9), other:wait())
        local missing = executor.exec("no-such-program-anywhere")
        print(missing:start(), missing:wait())
        """
    )
    assert lines(result) == ["up", "true", "bye", "3", "true\t137", "true\t127"]


def test_directory_and_variables(stage: Stage, tmp_path: Path) -> None:
    result = stage.run(
        BEGIN
        + """
        for _, options in ipairs({{}, {work_dir = arg[2]}, {env = {NAME = "value", NUMBER = 7}}}) do
          local proc = assert(executor.exec({"sh", "-c", "echo $PWD $GREETING $NAME $NUMBER"}, options))
          proc:start()
          write(proc:stdout_stream():read("a"))
        end
        """,
        "app:shell",
        str(tmp_path),
    )
    here = str(stage.directory)
    assert lines(result) == [f"{here} hello", f"{tmp_path} hello", f"{here} hello value 7"]


FAILING = {
    "exec.get()": 'exec.get takes the name of an executor, and got nil. Next: write exec.get("app:shell")',
    "exec.get('app:shel')": "unknown executor 'app:shel'",
    "exec.get(('x'):rep(2000000))": "get is too large: ",
    "executor.exec()": "exec takes a command, and got nil",
    "executor.exec({})": "exec takes a command, and got table",
    "executor.exec({'a', {}})": "exec takes a command, and got table",
    "executor.exec('')": "",
    "executor.exec('echo \"')": "",
    "executor.exec('a\\0b')": "",
    "executor.exec(words)": "executor.exec failed: ",
    "executor.exec('ls', 'x')": 'exec takes a table of options, and got "x"',
    "executor.exec('ls', {cwd = '/'})": 'exec takes the options work_dir and env, and got "cwd"',
    "executor.exec('ls', {work_dir = 1})": "the option work_dir is a path, and got number",
    "executor.exec('ls', {env = 'x'})": "the option env is a table of names and values",
    "executor.exec('ls', {env = {'x'}})": "the option env is a table of names and values",
    "executor.exec('ls', {env = {['A B'] = 'x'}})": "environment variable 'A B' can't be set",
    "listed.exec('git status; id')": "app:listed did not run the command: app:listed does not allow this command; "
    "it allows: git status, cat",
    "listed.exec('git status', {env = {GIT_DIR = '/'}})": "app:listed did not run the command: ",
    "executor.exec('rm -rf /').start()": "app:shell did not run the command: ",
    "fresh.wait()": "the process does not run: it was not started. Next: call start() first",
    "fresh.write_stdin('x')": "the process does not run",
    "fresh.signal(15)": "the process does not run",
    "fresh.stdout_stream().read()": "the process does not run",
    "fresh.stdout_stream():read('l')": "read takes nothing, a number of characters above 0",
    "fresh.stdout_stream():read(0)": "read takes nothing, a number of characters above 0",
    "fresh.stdout_stream():read(1.5)": "read takes nothing, a number of characters above 0",
    "started.start()": "the process can't be started: it was started before",
    "started.signal('TERM')": 'signal takes the number of a signal, and got "TERM"',
    "started.signal(1000)": "1000 can't be sent: it is not a signal of this system",
    "started.signal(-1)": "-1 can't be sent",
    "started.write_stdin({})": "write_stdin takes a string, and got table",
    "ended.write_stdin('x')": "the input can't be written: the run has ended",
    "ended.signal(15)": "the signal can't be sent: the run has ended",
    "closed.wait()": "this process is gone: it was closed or released. Next: get a new one",
    "closed.close()": "this process is gone",
    "released.exec('ls')": "this executor is gone",
    "released.release()": "this executor is gone",
    "shut.read()": "the stream can't be read: it was closed",
}


def test_a_failing_call_returns_nil_and_why_and_never_raises(stage: Stage) -> None:
    calls = ", ".join(f"function() return {call} end" for call in FAILING)
    result = stage.run(
        BEGIN
        + f"""
        local listed, released = exec.get("app:listed"), exec.get("app:shell")
        released:release()
        local fresh, started, ended, closed = executor.exec("ls"), executor.exec("cat"), executor.exec("true"),
          executor.exec("ls")
        started:start() ended:start() ended:wait() closed:close()
        local words = {{}}
        for place = 1, 1000001 do words[place] = "x" end
        local shut = started:stderr_stream()
        shut:close()
        for _, call in ipairs({{{calls}}}) do
          local results = table.pack(pcall(call))
          print(results.n, results[1], results[2], type(results[3]), results[3])
        end
        """
    )
    found = [line.split("\t", 4) for line in lines(result)]
    assert len(found) == len(FAILING)
    for (call, message), (*shape, told) in zip(FAILING.items(), found, strict=True):
        assert shape == ["3", "true", "nil", "string"], (call, shape, told)
        assert told.startswith(message), call
        assert ". Next: " in told, (call, told)


def test_a_script_is_on_record_and_so_are_its_commands(stage: Stage) -> None:
    key = "AKIAIOSFODNN7EXAMPLQ"
    before = len(stage.records())
    source = BEGIN + f"executor.exec('echo x').start() print('{key[:4]}' .. '{key[4:]}')"
    result = stage.run(source, "app:shell", "an argument", reason="to see")
    assert key not in result.stdout
    assert result.redacted
    intents = [record["data"] for record in stage.records()[before:] if record["kind"] == "intent"]
    assert [(intent["language"], intent["code"]) for intent in intents] == [("lua", source), ("command", "echo x")]
    assert intents[0]["argv"] == ["script.lua", "app:shell", "an argument"]
    assert intents[0]["reason"] == "to see"


def test_policy_reads_no_lua_but_secrets_and_what_it_asks_for(stage: Stage) -> None:
    assert stage.run("print('rm -rf / ; import os; eval(1)')", policy="script").ok
    result = stage.run("local key = 'AKIAIOSFODNN7EXAMPLQ'", policy="script")
    assert (result.status, result.evaluation.deciding[0].rule) == (Status.FORBIDDEN, "script.secret"), result
    result = stage.run(BEGIN + "print(executor.exec('rm -rf /').start())")
    assert lines(result)[0].startswith("nil\tapp:shell did not run the command: it removes the whole file system")


@pytest.mark.parametrize(
    ("policy", "told"), [(None, "true"), ("strict", "nil"), ("none", "true"), ("standard", "true"), ("core", "nil")]
)
def test_the_policy_of_a_script_is_that_of_its_commands(stage: Stage, policy: str | None, told: str) -> None:
    result = stage.run(BEGIN + "print((executor.exec({'sh', '-c', 'echo 1; echo 2'}):start()))", policy=policy)
    assert lines(result) == [told]


def test_no_policy_is_none_for_its_commands_too(stage: Stage) -> None:
    source = BEGIN + "print((executor.exec({'sh', '-c', 'eval \"$0\"', 'true'}):start()))"
    assert lines(stage.run(source)) == ["nil"]
    assert lines(stage.run(source, policy="none")) == ["true"]


def test_a_command_that_is_too_long_reaches_neither_policy_nor_the_log(stage: Stage) -> None:
    before = len(stage.records())
    result = stage.run(
        """
        local listed, long = require("exec").get("app:listed"), ("x"):rep(128 * 1024)
        local words = {}
        for place = 1, 2000 do words[place] = ("y"):rep(100) end
        for _, command in ipairs({long .. "x", words}) do print(listed.exec(command)) end
        print(listed.exec("cat", {env = {LANG = long}}))
        print((listed.exec(long)))
        local told
        for _ = 1, 200 do _, told = listed.exec(long) end
        print(told)
        """
    )
    too_long, words, variables, just_right, enough = lines(result)
    for told in (too_long, words, variables):
        assert told.startswith("nil\tthe command is too long: it has ")
    assert just_right == "nil"
    assert enough.startswith("there are too many commands: a script may have 16777216 bytes of them")
    intents = [record for record in stage.records()[before:] if record["kind"] == "intent"]
    assert len(intents) == 1 + 128  # the script, and 16 MiB of commands


SLEEPER = (
    BEGIN
    + """
local proc = executor.exec({"sh", "-c", "echo $$; exec sleep 300"})
proc:start()
write(proc:stdout_stream():read())
"""
)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    "ending",
    ["", "error('x')", "os.exit(0)", "proc:wait()", "while true do end", "proc:close()", "executor:release()"],
)
def test_what_a_script_has_started_ends_with_it(stage: Stage, ending: str) -> None:
    late = ending in ("proc:wait()", "while true do end")
    for seconds in (1.0, 5.0, 25.0) if late else (60.0,):  # more on a machine where it gets to nothing in one
        result = stage.run(SLEEPER + ending, limits={"time": seconds})
        if result.stdout:
            break
    assert not is_alive(int(result.stdout))
    assert (result.status is Status.TIMEOUT) == late


def test_what_a_script_has_started_ends_when_it_is_cancelled(stage: Stage) -> None:
    asked = stage.scripts.ask(SLEEPER + "proc:wait()", ("script.lua",), {})
    pids: list[int] = []
    work = stage.executor.start(stage.executor.core.follow(asked).deliver(lambda _, text: pids.append(int(text))))
    while not pids:
        time.sleep(0.01)
    assert is_alive(pids[0])
    work.cancel()
    with pytest.raises(CancelledError):
        work.result()
    assert not is_alive(pids[0])


def test_scripts_run_side_by_side(stage: Stage) -> None:
    found: dict[str, str] = {}

    def one(name: str) -> None:
        source = BEGIN + "local p = executor.exec({'echo', arg[2]}) p:start() write(p:stdout_stream():read('a'))"
        found[name] = stage.run(source, "app:shell", name).stdout

    threads = [threading.Thread(target=one, args=(f"script {number}",)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {name: f"{name}\n" for name in found}
    assert len(found) == 6
