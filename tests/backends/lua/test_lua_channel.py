"""Attacks on the channel between a script's cell and us, by code that has got out of Lua and speaks for itself."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from lua_stage import Stage

from redoma.frontends import lua as broker
from redoma.models import Status


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    stage = Stage(tmp_path_factory.mktemp("lua"))
    yield stage
    stage.close()


def test_an_impostor_that_speaks_like_the_host_gets_what_a_script_gets(stage: Stage) -> None:
    """The control of what follows: this stage lets code through to the broker."""
    result = stage.impostor(
        """
        executor = ask(do="get", entry="app:shell")["value"]
        process = ask(do="exec", executor=executor, command="printenv GREETING", work_dir=None, env={})["value"]
        say(str(ask(do="start", process=process)))
        say(str(ask(do="read", process=process, stream="stdout", size=None)))
        """.replace("\n        ", "\n")
    )
    assert (result.status, result.stdout) == (Status.OK, "{'value': True}{'value': 'hello\\n'}"), result


NO_MESSAGE = "it sent what is not a message of a script's host, and was ended"
MALFORMED = {
    "garbage": ("os.write(1, b'\\0\\0\\0\\5hello')", NO_MESSAGE),
    "no_json": ("frame(b'\\xff\\xfe')", NO_MESSAGE),
    "nothing": ("frame(b'')", NO_MESSAGE),
    "another_type": ("frame([1])", NO_MESSAGE),
    "no_such_question": ("ask(do='eval', code='1')", NO_MESSAGE),
    "more_fields": ("ask(do='get', entry='app:shell', executor='x')", NO_MESSAGE),
    "fewer_fields": ("ask(do='exec', executor=1, command='ls')", NO_MESSAGE),
    "a_wrong_type": ("ask(do='read', process='1', stream='stdout', size=None)", NO_MESSAGE),
    "another_stream": ("ask(do='read', process=1, stream='__class__', size=None)", NO_MESSAGE),
    "a_negative_size": ("ask(do='read', process=1, stream='stdout', size=-1)", NO_MESSAGE),
    "deep": ("frame(b'[' * 500000)", NO_MESSAGE),
    "deep_inside": ('frame(b\'{"do":"exec","env":\' + b\'{"a":\' * 100000)', NO_MESSAGE),
    "more_than_bytes": ("say('\\u1234')", NO_MESSAGE),
    "huge": ("send(struct.pack('!I', 0xffffffff) + b'x')", "it sent a message of 4294967295 bytes, which no script's "),
    "too_long": ("frame(b' ' * ((1 << 20) + 1))", "it sent a message of 1048577 bytes, which no script's host does"),
    "impatient": (
        'one = b\'{"do":"get","entry":"a:b"}\'; os.write(1, 2 * (struct.pack(\'!I\', len(one)) + one))',
        "it asked again before it had its answer, which no script's host does, and was ended",
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_who_speaks_like_no_host_of_ours_is_ended(stage: Stage, name: str) -> None:
    attack, told = MALFORMED[name]
    result = stage.impostor(f"say('begun')\n{attack}\ntime.sleep(60)", limits={"time": 90})
    assert (result.status, result.stdout) == (Status.KILLED, "begun"), result
    assert (result.error or "").startswith(told), result.error
    assert result.usage.wall < 60


def test_numbers_are_looked_up_among_the_scripts_own(stage: Stage) -> None:
    numbers = "(0, -1, 1, 7, 2**63, 10**300)"
    result = stage.impostor(
        f"""
for number in {numbers}:
    for message in (
        {{"do": "release", "executor": number}},
        {{"do": "exec", "executor": number, "command": "id", "work_dir": None, "env": {{}}}},
        *({{"do": do, "process": number}} for do in ("start", "wait", "close", "close_stdin")),
        {{"do": "signal", "process": number, "number": 9}},
        {{"do": "write", "process": number, "text": "x"}},
        {{"do": "read", "process": number, "stream": "stdout", "size": 1}},
        {{"do": "close_stream", "process": number, "stream": "stderr"}},
    ):
        say(list(ask(**message))[0] + " ")
"""
    )
    assert (result.status, set(result.stdout.split())) == (Status.OK, {"error"}), result
    assert len(result.stdout.split()) == 60


def test_what_another_script_has_is_out_of_reach(stage: Stage) -> None:
    """Numbers are counted anew for each: the first process of one is not the first of the other."""
    result = stage.run(
        """
        local executor = require("exec").get("app:shell")
        local proc = executor.exec("sleep 60")
        proc:start()
        """
    )
    assert result.ok
    theirs = stage.impostor("say(ask(do='signal', process=2, number=9)['error'])")
    assert theirs.stdout.startswith("this process is gone")


def test_text_that_is_none_of_luas_is_refused(stage: Stage) -> None:
    result = stage.impostor("say(ask(do='get', entry='\\u1234')['error'])")
    assert result.stdout == "a string can't be read: it is not a string that Lua can have. Next: pass bytes"


def test_a_message_that_is_never_finished_is_a_time_out(stage: Stage) -> None:
    result = stage.impostor("send(struct.pack('!I', 1 << 20) + b'{')\ntime.sleep(30)", limits={"time": 0.5})
    assert (result.status, result.stdout) == (Status.TIMEOUT, "")


def test_a_flood_of_messages_is_too_much_output_and_takes_no_memory_of_ours(stage: Stage) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = stage.impostor("while True: say('x' * 1000000)", limits={"output_total": 100_000_000})
    assert result.status is Status.OUTPUT, result
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB, of 100 MB


def test_reading_no_answers_blocks_nobody_but_itself(stage: Stage) -> None:
    # It asks again once its first answer is there, which it doesn't read.
    result = stage.impostor(
        "import select\nframe({'do': 'get', 'entry': 'no:such'})\nselect.select([0], [], [])\n"
        "frame({'do': 'get', 'entry': 'no:such'})\ntime.sleep(0.2)\nsay('done')"
    )
    assert (result.status, result.stdout) == (Status.OK, "done")


def test_a_script_may_not_have_too_much_at_a_time(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "_MAX_COMMANDS", 70)
    result = stage.run(
        """
        local exec, made, last, problem = require("exec"), {}, nil, nil
        local function fill(make)
          local count = 0
          repeat
            last, problem = make()
            if last then count = count + 1; made[count] = last end
          until not last
          print(count, problem)
        end
        fill(function() return exec.get("app:shell") end)
        local executor = made[1]
        fill(function() return executor.exec("true") end)
        for _, proc in ipairs(made) do proc:close() end
        fill(function() return executor.exec("true") end)
        """
    )
    assert result.stdout.splitlines() == [
        "16\tthere are too many executors: a script may have 16. Next: release those that are done",
        "64\tthere are too many processes: a script may have 64. Next: close those that have ended",
        "6\tthere are too many commands: a script may have 70. Next: run another script for the rest",
    ]


def test_nothing_of_the_host_is_in_the_cell_but_the_channel(stage: Stage) -> None:
    """Python there has three descriptors and no way to files of ours: what it can ask for is all that it can do."""
    secret = Path(os.environ["HOME"]) / "secret"
    secret.write_text("of ours")
    result = stage.impostor(
        f"""
say(" ".join(sorted(os.listdir("/proc/self/fd"))[:-1]))
try:
    say(open({str(secret)!r}).read())
except OSError as error:
    say(" " + type(error).__name__)
say(" " + str(os.getppid()))
"""
    )
    assert result.stdout == "0 1 2 FileNotFoundError 1", result
