"""A copy of a session has its variables, imports and files, and goes its own way from then on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import redoma
from redoma import AsyncExecutor, BackendError, Config, Executor, InvalidRequest, Session, Unsupported
from redoma.backends.jail import JailBackend
from redoma.config import AuditConfig, SessionsConfig


@pytest.fixture(scope="module")
def session_executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    """With time enough to end a run that was interrupted: a session whose run does not end is ended."""
    audit = AuditConfig(directory=tmp_path_factory.mktemp("state") / "audit")
    with Executor(Config(audit=audit, sessions=SessionsConfig(grace=60.0))) as made:
        yield made


@pytest.fixture
def copy(session: Session) -> Iterator[Session]:
    """Of a session in which something has happened."""
    session.run("import json, os, signal\nx = [1, 2]\ndef f(n):\n    return n * x[-1]")
    (made,) = session.fork()
    with made:
        yield made


def test_copies_have_everything_and_go_their_own_ways(session: Session) -> None:
    session.run("import json, os\nx = [1]\ndef f():\n    return json.dumps(x)")
    session.files.write("data/a.txt", "first")
    copies = session.fork(3)
    try:
        for number, copy in enumerate(copies):
            assert (
                copy.run(f"x.append({number}); open('data/a.txt', 'a').write('{number}'); f()").value
                == f"[1, {number}]"
            )
        assert [copy.files.read_text("data/a.txt") for copy in copies] == ["first0", "first1", "first2"]
        assert session.run("f(), open('data/a.txt').read()").value == ("[1]", "first")
        assert len({copy.id for copy in (session, *copies)}) == 4
    finally:
        for copy in copies:
            copy.close()
    assert session.run("x").value == [1]


def test_a_copy_can_be_copied_and_outlives_its_parent(session_executor: Executor) -> None:
    parent = session_executor.session()
    parent.run("x = 1")
    (child,) = parent.fork()
    parent.close()
    child.run("x += 1")
    (grandchild,) = child.fork()
    child.close()
    assert grandchild.run("x += 1; x").value == 3
    (last,) = grandchild.fork()
    grandchild.close()
    with last:
        assert last.run("x").value == 3
        assert last.id.startswith(parent.id)


def test_an_array_is_there_and_is_written_to_by_its_owner_alone(session_executor: Executor) -> None:
    with session_executor.session(memory="1GiB") as session:
        assert session.run("import numpy as np\na = np.ones(2_000_000)\n(a @ a)").value == 2_000_000
        one, other = session.fork(2)
        with one, other:
            assert one.run("a[:] = 3; float(a.sum())").value == 6_000_000
            assert other.run("float(a.sum()), float(a @ a)").value == (2_000_000, 2_000_000)
        assert session.run("float(a.sum())").value == 2_000_000


def test_one_that_is_larger_than_a_file_may_be_can_be_copied(session_executor: Executor) -> None:
    with session_executor.session(limits={"file_size": 1 << 20}) as session:
        session.run("data = b'x' * 30_000_000")
        (copy,) = session.fork()
        with copy:
            assert copy.run("len(data), data[-1:], open('/tmp/a', 'wb').write(b'1' * 1000)").value == (
                30_000_000,
                b"x",
                1000,
            )
            assert copy.run("open('/tmp/b', 'wb').write(b'1' * 2_000_000)").status != "ok"


def test_a_copy_takes_code_of_every_kind(copy: Session) -> None:
    assert copy.run("f(2), os.getcwd()").value == (4, "/workspace")
    assert copy.run(
        "import threading\nt = threading.Thread(target=lambda: x.append(9)); t.start(); t.join(); x"
    ).value == [1, 2, 9]
    assert copy.run("import asyncio\nawait asyncio.sleep(0, 7)").value == 7
    assert copy.run("def deep(n):\n    return n and deep(n - 1)\ndeep(900)").value == 0
    assert copy.run("deep(10**6)").exception == "RecursionError"
    assert (
        copy.run("pid = os.fork()\nif pid == 0: os._exit(5)\nos.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])").value
        == 5
    )
    assert copy.run("sum(map(len, [bytes(10_000)] * 1000)), len([object() for _ in range(200_000)])").value == (
        10**7,
        200_000,
    )
    assert copy.run("import decimal, xml.dom.minidom; str(decimal.Decimal(1) / 3)[:4]").value == "0.33"
    assert copy.bash("cd /tmp && export Y=1").ok
    assert copy.run("os.getcwd(), os.environ['Y']").value == ("/tmp", "1")
    assert copy.run("1 / 0").exception == "ZeroDivisionError"
    assert copy.run("while True: pass", timeout=0.5).status == "timeout"
    assert copy.run("x[0]").value == 1
    copy.restart()
    assert copy.run("x").exception == "NameError"


def test_open_files_directory_variables_signals_and_contexts_are_kept(session: Session) -> None:
    session.run(
        "import os, signal, logging, sys\nos.makedirs('deep'); os.chdir('deep'); os.umask(0o077)\n"
        "os.environ['A'] = 'b'; out = open('log', 'w'); out.write('one '); out.flush()\n"
        "source = open('/etc/passwd'); first = source.readline()\n"
        "seen = []; signal.signal(signal.SIGUSR1, lambda *_: seen.append('usr1'))\n"
        "logging.basicConfig(stream=os.fdopen(os.dup(1), 'w')); null = open(os.devnull, 'w')"
    )
    session.run("y = 5", context="other")
    (copy,) = session.fork()
    with copy:
        assert copy.run("os.getcwd(), os.environ['A'], source.readline() != first").value == (
            "/workspace/deep",
            "b",
            True,
        )
        copy.run("out.write('two'); out.flush(); null.write('x'); null.flush(); open('private', 'w').close()")
        assert copy.run("open('log').read(), oct(os.stat('private').st_mode & 0o777)").value == ("one two", "0o600")
        assert copy.run("os.kill(os.getpid(), signal.SIGUSR1); seen").value == ["usr1"]
        assert "told" in copy.run("logging.warning('told')").stdout
        assert copy.run("y", context="other").value == 5
    assert session.run("open('log').read(), seen").value == ("one ", [])


def test_an_event_loop_without_tasks_is_made_anew(session: Session) -> None:
    session.run("import asyncio\nawait asyncio.sleep(0)")
    (copy,) = session.fork()
    with copy:
        assert copy.run("await asyncio.sleep(0, 1)").value == 1
    assert session.run("await asyncio.sleep(0, 2)").value == 2


def test_copies_draw_other_random_numbers(session: Session) -> None:
    session.run("import random; random.seed(1)")
    copies = session.fork(3)
    drawn = [each.run("random.random()").value for each in copies]
    for each in copies:
        each.close()
    assert len(set(drawn)) == 3


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import threading, time\nthreading.Thread(target=time.sleep, args=(30,), daemon=True).start()", "thread"),
        ("import subprocess\np = subprocess.Popen(['sleep', '30'])", "sleep"),
        ("import os\nr, w = os.pipe()", "pipe"),
        ("import socket\ns = socket.socket()", "socket"),
        ("import tempfile\nf = tempfile.TemporaryFile()", "deleted file"),
        ("import mmap\nm = mmap.mmap(-1, 4096)", "shares memory"),
        ("import mmap\nf = open('m', 'w+b'); f.truncate(4096); m = mmap.mmap(f.fileno(), 0)", "shares memory"),
        ("import asyncio\nasync def f():\n    asyncio.ensure_future(asyncio.sleep(30))\nawait f()", "asyncio"),
        ("data = bytes(range(256)) * 1_400_000", "too large"),
    ],
)
def test_what_no_copy_can_have_is_refused_and_named(session: Session, code: str, why: str) -> None:
    assert session.run(code).ok
    with pytest.raises(BackendError, match=why):
        session.fork()
    assert session.run("1").value == 1


def test_a_process_in_the_background_is_refused_until_it_has_ended(session: Session) -> None:
    process = session.start("sleep 30")
    with pytest.raises(BackendError, match="background"):
        session.fork()
    process.close()
    (copy,) = session.fork()
    copy.close()


def test_each_copy_has_the_limits_for_itself(session_executor: Executor) -> None:
    with session_executor.session(memory="150MiB") as session:
        session.run("x = bytearray(20_000_000)")
        one, other = session.fork(2)
        with one, other:
            assert one.run("y = bytearray(200_000_000); y[::4096] = b'1' * len(y[::4096])").status == "memory"
            assert other.run("len(x)").value == 20_000_000
        assert session.run("len(x)").value == 20_000_000


def test_runs_in_a_copy_are_judged_and_recorded_as_its_own(session_executor: Executor) -> None:
    with session_executor.session(policy="strict") as session:
        session.run("x = 1")
        (copy,) = session.fork()
        with copy:
            assert copy.run("import ctypes").status in ("forbidden", "denied")
            result = copy.run("x + 1")
            assert result.value == 2
    audit = Path(session_executor.core.config.audit.directory)
    lines = [json.loads(line) for file in sorted(audit.glob("*.jsonl")) for line in file.read_text().splitlines()]
    (intent,) = [each for each in lines if each["kind"] == "intent" and each["id"] == result.id]
    assert intent["data"]["session"] == copy.id == f"{session.id}.1"


def test_wrong_numbers_and_backends_are_told(session: Session, tmp_path: Path) -> None:
    for wrong in (0, -1, True, "2"):
        with pytest.raises(InvalidRequest, match="number of copies"):
            session.fork(wrong)  # type: ignore[arg-type]
    config = Config(audit=AuditConfig(directory=tmp_path))
    with Executor(config, backends=[JailBackend(minimum=0)]) as executor, executor.session() as other:
        other.run("x = 1")
        with pytest.raises(Unsupported, match="no way to copy"):
            other.fork()


def test_if_there_are_too_many_none_is_left(tmp_path: Path) -> None:
    config = Config(audit=AuditConfig(directory=tmp_path), sessions=SessionsConfig(maximum=3))
    with Executor(config) as executor, executor.session() as session:
        session.run("x = 1")
        with pytest.raises(BackendError, match="as many as may be"):
            session.fork(3)
        copies = session.fork(2)
        assert [copy.run("x").value for copy in copies] == [1, 1]


async def test_the_same_on_an_event_loop(tmp_path: Path) -> None:
    async with AsyncExecutor(Config(audit=AuditConfig(directory=tmp_path))) as executor, executor.session() as session:
        await session.run("x = 1")
        copies = await session.fork(2)
        assert [(await copy.run("x + 1")).value for copy in copies] == [2, 2]
        best = await redoma.abest_of(session, ["x = 5", "x = 7", "1 / 0"], score=_score)
        assert (best.index, best.scores) == (1, (5.0, 7.0, None))
        assert best.session is not None
        assert (await best.session.run("x")).value == 7


async def _score(copy: redoma.AsyncSession, result: redoma.Result) -> float:
    return float((await copy.run("x")).value)


def test_no_descriptor_of_ours_is_left(session: Session) -> None:
    def used() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    session.run("import os")
    session.fork()[0].close()
    before, rounds = used(), 20
    for _ in range(rounds):
        session.fork()[0].close()
        session.run("r, w = os.pipe()")
        with pytest.raises(BackendError):
            session.fork()
        session.run("os.close(r); os.close(w)")
    assert used() < before + rounds  # some are those of cells that are made ahead


def test_the_best_of_several_is_kept(session: Session) -> None:
    session.run("best = 0")
    won = redoma.best_of(session, ["best = 2", "best = 9", "best = 4"], score=lambda copy, _: copy.run("best").value)
    assert (won.index, won.scores, won.kept) == (1, (2, 9, 4), None)
    assert won.session is not None
    with won.session as winner:
        assert winner.run("best").value == 9
    assert session.run("best").value == 0
    lost = redoma.best_of(session, ["1 / 0"], score=lambda *_: 1)
    assert (lost.index, lost.session, lost.result) == (None, None, None)
    with pytest.raises(InvalidRequest, match="no candidates"):
        redoma.best_of(session, [], score=lambda *_: 1)
    with pytest.raises(InvalidRequest, match="has to be a number"):
        redoma.best_of(session, ["1"], score=lambda *_: "good")  # type: ignore[arg-type]
