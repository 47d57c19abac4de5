"""A session keeps what its runs leave, and each run is judged, bounded, recorded and told like any other."""

from __future__ import annotations

import ast
import asyncio
import gc
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import redoma
from pace import SLOW
from redoma import AsyncExecutor, Config, Executor, InvalidRequest, Session
from redoma.config import AuditConfig, SessionsConfig


@pytest.fixture(scope="module")
def session_executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    """With time enough to end a run that was interrupted: a session whose run does not end is ended."""
    audit = AuditConfig(directory=tmp_path_factory.mktemp("state") / "audit")
    with Executor(Config(audit=audit, sessions=SessionsConfig(grace=60.0))) as made:
        yield made


def records(executor: Executor) -> list[dict[str, object]]:
    files = sorted(Path(executor.core.config.audit.directory).glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_variables_stay_and_the_last_expression_is_the_value(session: Session) -> None:
    assert session.run("x = 41").ok
    assert session.run("x + 1").value == 42
    assert session.run("import json\ndef f(n):\n    return n * x").value is None
    assert session.run("f(2), json.dumps([1])").value == (82, "[1]")


def test_the_shared_executor_has_sessions() -> None:
    with redoma.Session() as session:
        assert session.run("1 + 1").value == 2


def test_an_error_ends_the_run_and_not_the_session_and_shows_the_code_s_own_lines(session: Session) -> None:
    session.run("def outer():\n    return 1 / zero\nzero = 0")
    failed = session.run("y = 1\nouter()")
    assert (failed.status, failed.exception) == ("error", "ZeroDivisionError")
    assert "return 1 / zero" in failed.stderr
    assert "redoma" not in failed.stderr
    assert session.run("y").value == 1


def test_a_semicolon_at_the_end_means_no_value(session: Session) -> None:
    assert session.run("1;").value is None
    assert session.run("'1;'").value == "1;"


def test_odd_text_in_errors_and_values_ends_no_session(session: Session) -> None:
    assert "\\udc80" in (session.run("raise ValueError(chr(0xdc80) * 3)").error or "")
    assert len(session.run("raise ValueError(chr(1) * 10**6)").error or "") <= 8192
    assert session.run("chr(0xdc80)").ok
    assert session.run("print(chr(0xdc80))").ok
    assert session.command(["\udc80"]).exit_code == 127
    assert session.run("raise type('E' * 10**5, (Exception,), {})").status == "error"
    assert session.run("1").value == 1


def test_exit_ends_the_run_alone(session: Session) -> None:
    left = session.run("import sys\nz = 3\nsys.exit(4)")
    assert (left.status, left.exit_code) == ("error", 4)
    assert session.run("z").value == 3


def test_contexts_have_variables_of_their_own(session: Session) -> None:
    session.run("a = 1", context="left")
    session.run("a = 2", context="right")
    assert [session.run("a", context=name).value for name in ("left", "right")] == [1, 2]
    assert session.run("a").exception == "NameError"


def test_await_may_stand_outside_of_functions(session: Session) -> None:
    assert session.run("import asyncio\nawait asyncio.sleep(0, 'slept')").value == "slept"


def test_a_notebook_s_own_commands_get_an_error_that_says_what_to_use(session: Session) -> None:
    failed = session.run("!ls -l")
    assert failed.exception == "SyntaxError"
    assert "session.command('ls -l')" in (failed.error or "")
    assert "redoma env create" in (session.run("%pip install x").error or "")
    assert "os.chdir('/tmp')" in (session.run("%cd /tmp").error or "")


def test_input_is_that_of_one_run(session: Session) -> None:
    assert session.run("input()", stdin="one\n").value == "one"
    assert session.run("input()").exception == "EOFError"
    assert session.command(["cat"], stdin="two").stdout == "two"
    assert session.command(["cat"]).stdout == ""


def test_output_of_programs_that_the_code_starts_is_the_run_s(session: Session) -> None:
    code = (
        "import os, subprocess\nprint('a')\nsubprocess.run(['echo', 'b'])\nos.write(1, b'c\\n')\nos.write(2, b'd\\n');"
    )
    result = session.run(code)
    assert (result.stdout, result.stderr) == ("a\nb\nc\n", "d\n")


def test_a_child_that_comes_to_the_end_of_the_code_answers_nothing(session: Session) -> None:
    assert session.run("import os\nchild = os.fork()\nif child: os.waitpid(child, 0)\nchild > 0").value is True
    assert session.run("2").value == 2


# --- judged, bounded, recorded ---


def test_every_run_is_judged_and_recorded_with_its_session(session_executor: Executor, session: Session) -> None:
    refused = session.run("import os", policy="strict")
    assert refused.status == "forbidden"
    ran = session.run("'seen'")
    told = {record["id"]: record for record in records(session_executor) if record["kind"] == "intent"}
    assert told[refused.id]["data"]["session"] == session.id == told[ran.id]["data"]["session"]  # type: ignore[index]
    outcomes = {record["id"]: record["data"] for record in records(session_executor) if record["kind"] == "outcome"}
    assert outcomes[ran.id]["result"] == "'seen'"  # type: ignore[index]


def test_secrets_are_there_for_the_code_and_in_no_result(session_executor: Executor) -> None:
    with session_executor.session(secrets={"TOKEN": "correct-horse-battery"}) as session:
        result = session.run(
            "import os\nprint(os.environ['TOKEN'])\ndisplay(os.environ['TOKEN'])\nos.environ['TOKEN'][::-1]"
        )
        assert result.value == "correct-horse-battery"[::-1]
        assert "correct-horse" not in result.stdout + repr(result.displays)
        assert "correct-horse" not in session.command("echo $TOKEN").stdout
        shown: list[object] = []
        session.run(
            "display(os.environ['TOKEN']); print(os.environ['TOKEN'])", on_stdout=shown.append, on_result=shown.append
        )
        assert len(shown) == 2
        assert "correct-horse" not in repr(shown)
    assert "correct-horse" not in json.dumps(records(session_executor))


def test_isolation_is_what_was_found_in_its_cell(session: Session) -> None:
    found = session.run("1").isolation
    assert {"seccomp", "pid", "net", "landlock"} <= found.layers.keys()
    assert "bytes and" in found.layers["private"]


def test_limits_of_a_session_are_no_run_s(session: Session) -> None:
    with pytest.raises(InvalidRequest, match="the session as a whole"):
        session.run("1", limits={"memory": 1 << 30})
    with pytest.raises(InvalidRequest, match="unknown option 'nonsense'"):
        session.run("1", nonsense=1)  # type: ignore[call-arg]


def test_what_is_too_long_for_a_session_is_refused_and_the_session_goes_on(session: Session) -> None:
    session.run("kept = 1")
    result = session.run("input()", stdin=b"x" * (9 << 20))
    assert result.status == "failed"
    assert "too long for a session" in (result.error or "")
    assert session.run("kept").value == 1


def test_too_much_output_ends_the_run_and_not_the_session(session: Session) -> None:
    session.run("kept = 1")
    result = session.run("while True: print('x' * 1000)", limits={"output_total": 1 << 20})
    assert result.status == "output"
    assert "the session goes on" in (result.error or "")
    assert session.run("kept").value == 1


def test_long_output_is_cut_as_for_any_run(session: Session) -> None:
    result = session.run("for i in range(5000): print(i)")
    assert result.ok
    assert result.stdout.startswith("0\n1\n")
    assert result.stdout.endswith("4999\n")
    assert "left out" in result.stdout


def test_a_memory_error_of_python_does_not_end_it_and_nothing_else_is_said(session: Session) -> None:
    result = session.run("raise MemoryError()")
    assert (result.status, result.exception, session.alive) == ("memory", "MemoryError", True)
    said = f"it ended with a MemoryError; the session may use {512 << 20} bytes of memory, and goes on"
    assert result.error == said
    assert result.denial is not None
    assert result.denial.why == said
    assert "redoma.Session(memory='1GiB')" in result.denial.allowed
    assert session.run("6 * 7").value == 42


def test_a_run_that_takes_too_long_is_told_in_one_sentence(session: Session) -> None:
    text = session.run("import time; time.sleep(60)", timeout=0.2).to_text()
    assert "error: it ran longer than 0.2 s and was interrupted; the session goes on" in text
    assert "was ended" not in text
    assert "limits={'time': 0.4}" in text


def test_memory_over_the_limit_ends_it_with_memory(session_executor: Executor) -> None:
    with session_executor.session(memory="128MiB") as session:
        result = session.run("a = bytearray(1 << 30)\na[::4096] = b'1' * len(a[::4096])")
        assert result.status == "memory"
        assert not session.alive
        assert "memory" in session.ended
        later = session.run("1")
        assert later.status == "failed"
        assert "restart()" in (later.error or "")
        session.restart()
        assert session.run("1").value == 1


# --- time ---


def test_a_time_out_interrupts_and_the_session_goes_on(session: Session) -> None:
    session.run("kept = 1")
    result = session.run("while True: pass", timeout=0.3)
    assert result.status == "timeout"
    assert "the session goes on" in (result.error or "")
    assert session.run("kept").value == 1


def test_code_that_takes_no_interrupt_ends_the_session(session: Session) -> None:
    session.core.grace = 1.0
    start = time.monotonic()
    result = session.run(
        "import time\nwhile True:\n    try: time.sleep(9)\n    except KeyboardInterrupt: pass", timeout=0.3
    )
    assert result.status == "timeout"
    assert "so the session was ended" in (result.error or "")
    assert time.monotonic() - start < 60 * SLOW
    assert not session.alive


def test_a_command_that_takes_no_interrupt_is_killed_and_the_session_goes_on(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.run("kept = 1")
    waits = iter([1.0])  # it is soon killed, and has time to be gone
    monkeypatch.setattr(type(session.core), "grace", property(lambda _: next(waits, 60.0)), raising=False)
    result = session.bash("trap '' INT; while true; do sleep 0.1; done", timeout=0.3)
    assert result.status == "timeout"
    assert session.run("kept").value == 1


async def test_interrupt_is_ctrl_c(config: Config) -> None:
    import asyncio

    async with AsyncExecutor(config) as executor, executor.session() as session:
        assert not session.interrupt()
        begun = asyncio.Event()
        code = "print('go', flush=True)\nwhile True: pass"
        running = asyncio.create_task(session.run(code, on_stdout=lambda _: begun.set()))
        await asyncio.wait_for(begun.wait(), 60 * SLOW)
        assert session.interrupt()
        result = await running
        assert (result.status, result.exception, result.stdout) == ("error", "KeyboardInterrupt", "go\n")
        assert (await session.run("1")).value == 1


async def test_an_interrupt_that_comes_before_the_code_has_begun_is_not_lost(config: Config) -> None:
    import asyncio

    async with AsyncExecutor(config) as executor, executor.session() as session:
        await session.run("1")
        for _ in range(30):
            running = asyncio.create_task(session.run("while True: pass", timeout=20))
            while not session.interrupt():  # noqa: ASYNC110 - as soon as there is something to interrupt
                await asyncio.sleep(0)
            assert (await running).exception == "KeyboardInterrupt"
        assert (await session.run("1")).value == 1


async def test_an_interrupt_of_a_run_whose_code_never_begins_ends_no_session(config: Config) -> None:
    import asyncio

    async with AsyncExecutor(config) as executor, executor.session() as session:
        await session.run("kept = 1")
        for _ in range(5):
            running = asyncio.create_task(session.run("1", cwd="missing"))
            while not session.interrupt():  # noqa: ASYNC110 - as soon as there is something to interrupt
                await asyncio.sleep(0)
            assert (await running).exception == "FileNotFoundError"
            assert (await session.run("kept")).value == 1


def test_a_signal_that_comes_between_two_runs_does_not_end_the_session(session: Session) -> None:
    code = """
import signal
def late(*_): raise TimeoutError("too late")
signal.signal(signal.SIGALRM, late)
signal.setitimer(signal.ITIMER_REAL, 0.1)
"""
    assert session.run(code).ok
    time.sleep(0.5)
    result = session.run("1")
    assert (result.value, result.error) == (1, None)
    assert "too late" in result.stderr


async def test_an_interrupt_never_hits_the_run_after_the_one_that_it_was_for(config: Config) -> None:
    async with AsyncExecutor(config) as executor, executor.session() as session:
        await session.run("import time")
        for late in range(60):
            first = asyncio.create_task(session.run("time.sleep(0.001)", timeout=20))
            while not session.interrupt():  # noqa: ASYNC110 - as soon as there is something to interrupt
                await asyncio.sleep(0)
            for _ in range(late):  # at a later moment each time, also when it has just ended
                await asyncio.sleep(0.0002)
                session.interrupt()
            second = asyncio.create_task(session.run("time.sleep(0.001); 'whole'", timeout=20))
            assert (await first).exception in (None, "KeyboardInterrupt")
            result = await second
            assert (result.value, result.error) == ("whole", None), late


def test_a_restart_ends_the_run_that_goes_on_and_what_it_printed_is_no_later_run_s(session: Session) -> None:
    from threading import Thread

    found = []
    code = "import os, time\nprint('early', flush=True)\nif os.fork() == 0:\n    time.sleep(60)\ntime.sleep(60)"
    with session.stream(code) as run:
        assert next(iter(run)).text == "early\n"
        Thread(target=lambda: found.append(session.run("print('late'); 'new'"))).start()
        session.restart()
        for _ in run:
            continue
        assert not run.result.ok
    deadline = time.monotonic() + 60 * SLOW
    while not found and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (found[0].value, found[0].stdout) == ("new", "late\n")


def test_code_as_large_as_may_be_and_its_input_reach_the_python(session: Session) -> None:
    code = f"import sys\n# {'x' * 1_000_000}\nlen(sys.stdin.read())"
    assert session.run(code, stdin=b"y" * 6_000_000, timeout=60 * SLOW).value == 6_000_000


async def test_a_caller_who_goes_away_ends_the_run_and_not_the_session(config: Config) -> None:
    import asyncio

    import msgspec

    config = msgspec.structs.replace(config, sessions=SessionsConfig(grace=60.0))
    async with AsyncExecutor(config) as executor, executor.session() as session:
        await session.run("kept = 1")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await session.run("import time; time.sleep(60)")
        assert (await session.run("kept")).value == 1


def test_it_expires_without_use_and_in_any_case(config: Config) -> None:
    with Executor(config) as executor:
        idle = executor.session(idle=0.4)
        idle.open()
        for lifetime in (0.6, 6.0, 30.0):  # a slow machine takes longer for its first run
            short = executor.session(lifetime=lifetime)
            short.open()
            if (used := short.run("1")).ok:
                break
        assert used.value == 1
        deadline = time.monotonic() + 60 * SLOW
        while (idle.alive or short.alive) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not idle.alive
        assert not short.alive
        assert "not used" in idle.ended
        assert "not used" in (idle.run("1").error or "")
        assert f"longer than {lifetime:g} s" in short.ended


def test_processor_time_is_the_session_s_as_a_whole(session_executor: Executor) -> None:
    with session_executor.session(limits={"cpu": 1.0}) as session:
        results = [session.run("import time\nend = time.process_time() + 0.4\nwhile time.process_time() < end: pass")]
        while results[-1].ok and len(results) < 10:
            results.append(session.run("end = time.process_time() + 0.4\nwhile time.process_time() < end: pass"))
        assert results[0].ok
        assert results[-1].status == "timeout"
        assert "processor time" in session.ended


def test_restart_forgets_variables_and_processes_and_keeps_files(session: Session) -> None:
    session.run("open('kept.txt', 'w').write('1'); x = 1")
    process = session.start("sleep 100")
    session.restart()
    assert session.run("x").exception == "NameError"
    assert session.run("open('kept.txt').read()").value == "1"
    assert process.wait() == 137


def test_no_two_pythons_draw_the_same_random_numbers(session_executor: Executor) -> None:
    drawn = []
    for _ in range(2):
        with session_executor.session() as session:
            drawn.append(session.run("import random; random.random()").value)
            session.restart()
            drawn.append(session.run("import random; random.random()").value)
    assert len(set(drawn)) == 4


def test_no_more_sessions_than_are_configured(tmp_path: Path) -> None:
    config = Config(audit=AuditConfig(directory=tmp_path), sessions=SessionsConfig(maximum=1))
    with Executor(config) as executor, executor.session() as first:
        with pytest.raises(redoma.BackendError, match=r"sessions\.maximum"):
            executor.session().open()
        first.close()
        with executor.session() as second:
            assert second.run("1").value == 1


@pytest.mark.usefixtures("nothing_left_behind")
def test_nothing_is_left_after_close(config: Config) -> None:
    with Executor(config) as executor:
        session = executor.session()
        session.run("import subprocess; subprocess.Popen(['sleep', '1000'])")
        session.start("sleep 1000")
        session.close()
        session.close()
        assert session.run("1").status == "failed"


async def test_an_executor_that_is_closed_first_ends_its_sessions_without_a_word(config: Config) -> None:
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    async with AsyncExecutor(config) as executor:
        session = executor.session()
        await session.run("x = 1")
    assert not session.alive
    assert (await session.run("x")).status == "failed"
    del session, executor
    gc.collect()
    assert told == []


def test_what_runs_inside_needs_no_newer_python_than_it_says() -> None:
    from redoma.sessions import place

    top = Path(redoma.__file__).parent.parent
    for name in place._MODULES:
        ast.parse((top / f"{name.replace('.', '/')}.py").read_text(), feature_version=(3, 9))


# --- many ---


def test_memory_stays_flat_over_many_runs(session: Session) -> None:
    measure = """
import os
def resident(pid):
    with open(f'/proc/{pid}/statm') as file:
        return int(file.read().split()[1]) * 4096
resident(os.getpid()), resident(os.getppid())
"""
    for i in range(60):
        session.run(f"x = {i}\nprint(x)")
    before = session.run(measure).value
    for i in range(300):
        assert session.run(f"x = {i}\nprint(x)\nx").value == i
    after = session.run(measure).value
    assert after[0] - before[0] < 2 << 20
    assert after[1] - before[1] < 1 << 20


async def test_thirty_sessions_at_once_don_t_mix(config: Config) -> None:
    import asyncio

    async with AsyncExecutor(config) as executor:
        sessions = [executor.session() for _ in range(30)]
        try:
            await asyncio.gather(*(each.run(f"mine = {i}", timeout=60) for i, each in enumerate(sessions)))
            found = await asyncio.gather(*(each.run("mine", timeout=60) for each in sessions))
            assert [result.value for result in found] == list(range(30))
        finally:
            await asyncio.gather(*(each.aclose() for each in sessions))


@pytest.mark.parametrize("before", ["", "text = '\u2028\x0c'\n", "text = 1\r\n"])
def test_a_traceback_shows_the_line_and_the_place_in_it(session: Session, before: str) -> None:
    result = session.run(f"{before}x = 1/0")
    assert result.stderr.splitlines()[-3:-1] == ["    x = 1/0", "        ~^~"]
