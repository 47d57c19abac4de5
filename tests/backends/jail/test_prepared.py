"""A cell that has its orders while the run is being recorded: nothing of the run happens before the word to start."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from jail_insides import behind, children_of, eventually, is_alive, jail, pool_of, run, soon

from redoma import AsyncExecutor, Status
from redoma.backends.base import Outcome
from redoma.backends.jail import JailBackend
from redoma.backends.jail.backend import _PreparedRun
from redoma.backends.jail.cell import Cell
from redoma.lib.errors import AuditError, BackendError, BackendUnavailable
from redoma.models import Limits, Request

Jail = tuple[AsyncExecutor, JailBackend]
PRINT = {
    "python": "print('it ran')",
    "bash": "echo it ran",
    "command": ("echo", "it ran"),
    "javascript": "console.log('it ran')",
}
WHILE = 0.3
"""Seconds in which a run that did not wait would have printed."""


@pytest.fixture
async def the(tmp_path: Path) -> AsyncIterator[Jail]:
    executor, backend = jail(tmp_path, minimum=1)
    async with executor:
        yield executor, backend


def request_for(language: Any, code: Any = None, **options: Any) -> Request:
    options["argv" if language == "command" else "code"] = PRINT[language] if code is None else code
    return Request(language=language, **options)


async def prepared(backend: JailBackend, request: Request) -> _PreparedRun:
    """Return a prepared run, in a cell of the kind that is best for it."""
    for _ in range(3 if request.language == "bash" else 1):  # so that for Bash a shell is started ahead
        await printed_by(
            backend, msgspec.structs.replace(request, **({"code": ":"} if request.language == "bash" else {}))
        )
    pool, kind = pool_of(backend), backend._spec(request)
    assert await soon(lambda: any(cell.spec == kind for cell in list(pool._armed)), 30)
    found = backend.prepare(request)
    assert isinstance(found, _PreparedRun)
    return found


async def printed_by(
    backend: JailBackend, request: Request, ready: _PreparedRun | None = None
) -> tuple[Outcome, bytes, bytes]:
    """Run a request, or one that is prepared. Returns its outcome and what it printed."""
    streams: dict[str, bytes] = {"stdout": b"", "stderr": b""}

    def sink(stream: str, data: bytes) -> bool:
        streams[stream] += data
        return len(streams[stream]) < 1 << 20

    outcome = await (ready.run(sink) if ready is not None else backend.run(request, sink))
    return outcome, streams["stdout"], streams["stderr"]


def cell_of(ready: _PreparedRun) -> Cell:
    return ready._run._cell


def so_far(cell: Cell) -> bytes:
    """Return what it has printed until now."""
    try:
        return os.read(cell.stdout, 1000)
    except BlockingIOError:
        return b""


@pytest.mark.parametrize("language", PRINT)
async def test_nothing_of_it_runs_before_the_word(the: Jail, language: str) -> None:
    backend, request = the[1], request_for(language)
    ready = await prepared(backend, request)
    assert (cell_of(ready).spec.ahead is not None) == (language == "bash")
    await asyncio.sleep(WHILE)
    assert so_far(cell_of(ready)) == b""
    outcome, stdout, stderr = await printed_by(backend, request, ready)  # the control: at the word it does
    assert (outcome.status, stdout, stderr) == (Status.OK, b"it ran\n", b"")


@pytest.mark.parametrize("language", PRINT)
async def test_if_redoma_lets_go_instead_nothing_of_it_runs(the: Jail, language: str) -> None:
    """Seen by the guest alone: init, which would end the cell then, is not told."""
    ready = await prepared(the[1], request_for(language))
    cell = cell_of(ready)
    (guest, *_) = children_of(behind(cell.handle))
    cell.order.close()
    assert await soon(lambda: not is_alive(guest), 30)
    assert so_far(cell) == b""
    ready.discard()


MODULE = "import os; os.write(1, b'its file ran')"
IMPORTED = {
    "a character by its name": (r"'\N{DASH}'", "unicodedata.py"),
    "a name that is not ASCII": ("é = 1", "unicodedata.py"),
    "a warning, and a line of the file in a codec": ("# coding: bz2_codec\n1 is 1", "bz2.py"),
    "a warning, and another codec": ("# coding: idna\n1 is 1", "stringprep.py"),
    "a warning": ("1 is 1", "linecache.py"),
}


@pytest.mark.parametrize("once", [False, True], ids=["pool", "once"])
@pytest.mark.parametrize("case", IMPORTED)
async def test_what_compiling_imports_is_none_of_its_files(tmp_path: Path, case: str, *, once: bool) -> None:
    code, name = IMPORTED[case]
    executor, backend = jail(tmp_path, minimum=1, once=once)
    async with executor:
        backend.warm()
        assert await soon(lambda: pool_of(backend).counts()["armed"] > 0, 30)
        request = request_for("python", code, files={name: MODULE.encode()})
        ready = backend.prepare(request)
        assert isinstance(ready, _PreparedRun)
        await asyncio.sleep(WHILE)
        assert so_far(cell_of(ready)) == b""
        ready.discard()


async def test_at_the_word_its_files_are_the_first_that_imports_find(the: Jail) -> None:
    """The control: such a file is found, and executed, by an import of the code itself."""
    request = request_for("python", "import stringprep", files={"stringprep.py": MODULE.encode()})
    _, stdout, _ = await printed_by(the[1], request, await prepared(the[1], request))
    assert stdout == b"its file ran"


async def test_a_helper_that_is_killed_while_it_waits_starts_nothing(the: Jail) -> None:
    ready = await prepared(the[1], request_for("bash"))
    cell = cell_of(ready)
    shell, helper = children_of(behind(cell.handle))
    await asyncio.sleep(WHILE)  # until it waits
    os.kill(helper, signal.SIGKILL)
    assert await soon(lambda: not is_alive(shell), 30)
    assert so_far(cell) == b""
    ready.discard()


async def test_what_is_discarded_is_dead_and_counted_no_longer(the: Jail) -> None:
    backend = the[1]
    ready = await prepared(backend, request_for("python"))
    init = behind(cell_of(ready).handle)
    inside = [init, *children_of(init)]
    assert pool_of(backend).counts()["running"] == 1
    ready.discard()
    ready.discard()
    assert await soon(lambda: not any(map(is_alive, inside)), 30)
    assert (pool_of(backend).counts()["running"], pool_of(backend).runs) == (0, 0)


async def test_a_guest_that_is_killed_while_it_waits_is_reported(the: Jail) -> None:
    backend, request = the[1], request_for("python")
    ready = await prepared(backend, request)
    (guest, *_) = children_of(behind(cell_of(ready).handle))
    os.kill(guest, signal.SIGKILL)
    assert eventually(lambda: not is_alive(guest), 30)
    outcome, stdout, _ = await printed_by(backend, request, ready)
    assert (outcome.status, stdout) == (Status.KILLED, b"")


async def test_a_cell_that_is_lost_while_it_waits_is_an_error(the: Jail) -> None:
    backend, request = the[1], request_for("python")
    ready = await prepared(backend, request)
    os.kill(behind(cell_of(ready).handle), signal.SIGKILL)
    with pytest.raises(BackendError, match="lost"):
        await printed_by(backend, request, ready)
    assert pool_of(backend).runs == 0


async def test_a_jail_that_is_closed_while_it_waits_is_an_error(the: Jail) -> None:
    executor, backend = the
    ready = await prepared(backend, request_for("python"))
    pool = pool_of(backend)
    await executor.aclose()
    with pytest.raises(BackendError, match="the jail was closed"):
        await printed_by(backend, request_for("python"), ready)
    assert (pool.counts()["running"], pool.runs) == (0, 0)


async def test_its_limits_hold_while_it_prepares(the: Jail) -> None:
    """The compiler alone takes more memory than the run may have: it compiles each `finally` twice."""
    backend = the[1]
    code = "".join(f"{' ' * depth}try: pass\n{' ' * depth}finally:\n" for depth in range(19)) + " " * 19 + "pass"
    request = request_for("python", code, limits=Limits(memory=96 << 20))
    await printed_by(backend, request_for("python"))
    assert await soon(lambda: pool_of(backend).counts()["armed"] > 0, 30)
    ready = backend.prepare(request)
    assert isinstance(ready, _PreparedRun)
    outcome, _, _ = await printed_by(backend, request, ready)
    assert outcome.status is Status.MEMORY


CASES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "value": ("python", "print('a'); {'x': [1, 2.5, None]}", {}),
    "syntax": ("python", "print('a'\nif", {}),
    "warning": ("python", "print('a'); 1 is 1", {}),
    "null byte": ("python", "print('a')\0", {}),
    "deep": ("python", "-" * 30_000 + "1", {}),
    "raised": ("python", "def f(): raise KeyError('é')\nf()", {}),
    "exit": ("python", "import sys; print('a', file=sys.stderr); sys.exit(7)", {}),
    "input": ("python", "print(input(), input())", {"stdin": b"one\ntwo\n"}),
    "files": ("python", "open('data/x.txt').read()", {"files": {"data/x.txt": b"content"}}),
    "outputs": ("python", "open('out.txt', 'w').write('x')", {"outputs": ("out.txt",)}),
    "variables": (
        "python",
        "import os; os.environ['NAME'], os.environ.get('TZ')",
        {"env": {"NAME": "v", "TZ": "Asia/Tokyo"}},
    ),
    "arguments": ("python", "import sys; sys.argv[1:]", {"argv": ("1", "é")}),
    "descriptors": ("python", "import os; sorted(os.listdir('/proc/self/fd'))[:-1]", {}),
    "rlimits": ("python", "import resource as r; [r.getrlimit(n) for n in range(16)]", {}),
    "recursion": ("python", "def f(n): return n and f(n - 1)\nf(900)", {}),
    "time": ("python", "import time; print('a', flush=True); time.sleep(60)", {"limits": Limits(time=0.5)}),
    "cpu": ("python", "while True: pass", {"limits": Limits(cpu=0.5, time=30)}),
    "output": ("python", "while True: print('x' * 10_000)", {}),
    "memory": ("python", "x = bytearray(1 << 30)", {"limits": Limits(memory=64 << 20)}),
    "a file that is too large": ("python", "1", {"files": {"f": bytes(9000)}, "limits": Limits(file_size=5000)}),
    "script": ("bash", 'echo "$0" $$; cat; ls; exit 3', {"stdin": b"in\n", "files": {"a.txt": b"x"}}),
    "large script": ("bash", "# " + "x" * 30_000 + "\necho done", {}),
    "plain shell": ("bash", 'echo "$1"; ls /proc/$$/fd', {"argv": ("one",)}),
    "program": ("command", ("sh", "-c", "echo $X; kill -9 $$"), {"env": {"X": "y"}}),
    "no program": ("command", ("no-such-program",), {}),
}


@pytest.mark.parametrize("case", CASES)
async def test_it_ends_as_it_does_unprepared(the: Jail, case: str) -> None:
    language, code, options = CASES[case]
    backend, request = the[1], request_for(language, code, **options)
    expected, *their_streams = await printed_by(backend, request)
    found, *streams = await printed_by(backend, request, await prepared(backend, request))
    if case != "output":  # how much was printed until then differs
        assert streams == their_streams
    for part in ("status", "exit_code", "value", "exception", "error", "limit", "files", "left_out"):
        assert getattr(found, part) == getattr(expected, part), part
    assert found.isolation == expected.isolation


async def test_large_requests_are_not_prepared(the: Jail) -> None:
    """Nobody would send the rest of the order while the record is written."""
    backend = the[1]
    ready = await prepared(backend, request_for("python"))
    ready.discard()
    assert await soon(lambda: pool_of(backend).counts()["armed"] > 0, 30)
    assert backend.prepare(request_for("python", "#" * 100_000)) is None
    assert backend.prepare(request_for("python", files={"x": bytes(100_000)})) is None


async def test_a_run_that_can_not_be_recorded_never_starts(the: Jail, monkeypatch: pytest.MonkeyPatch) -> None:
    executor, backend = the
    code = "print('it ran', flush=True); import time; time.sleep(60); '\\N{DASH}'"
    assert (await run(executor)).value == 2
    assert await soon(lambda: pool_of(backend).counts()["armed"] > 0, 30)
    seen = []

    def append(kind: str, *_: object) -> None:
        (cell,) = pool_of(backend)._running  # it has its orders already
        assert not eventually(lambda: so_far(cell) != b"", WHILE)
        seen.append(kind)
        raise AuditError("the record can't be written", why="a test says so", next="let it")

    with monkeypatch.context() as changed:
        changed.setattr(executor.audit, "append", append)
        result = await run(executor, code, files={"unicodedata.py": MODULE})
    assert (result.status, result.stdout, seen) == (Status.FAILED, "", ["intent"])
    assert pool_of(backend).counts()["running"] == 0
    assert (await run(executor, "6 * 7")).value == 42


@pytest.mark.parametrize(
    ("error", "is_told"),
    [(BackendUnavailable("gone", why="a test", next=""), False), (OSError(24, "too many files"), True)],
)
async def test_a_backend_that_can_not_prepare_runs_it_as_ever(
    the: Jail, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception, is_told: bool
) -> None:
    executor, backend = the

    def no(request: Request) -> None:
        raise error

    can = msgspec.structs.replace(backend.capabilities(), prepare=no)
    monkeypatch.setattr(backend, "capabilities", lambda: can)
    assert (await run(executor, "6 * 7")).value == 42
    told = [record.getMessage() for record in caplog.records if "run.unprepared" in record.getMessage()]
    assert (len(told), "files" in "".join(told)) == (is_told, False)


@pytest.mark.parametrize(
    ("language", "code", "limits"),
    [
        ("bash", "# " + "x" * 9000 + "\necho done", {"file_size": 5000}),
        ("javascript", "// " + "x" * 9000 + "\nconsole.log('done')", {"file_size": 5000}),
        ("bash", "echo done", {"file_size": 1}),
        ("bash", "echo done", {"open_files": 4}),
    ],
)
async def test_the_limits_of_a_script_are_not_those_of_its_own_file(
    the: Jail, language: str, code: str, limits: dict[str, int]
) -> None:
    result = await run(the[0], code, language, limits=limits)
    assert (result.status, result.stdout) == (Status.OK, "done\n"), result


async def test_what_is_refused_is_given_to_no_cell(the: Jail, monkeypatch: pytest.MonkeyPatch) -> None:
    executor, backend = the
    assert (await run(executor)).value == 2
    assert await soon(lambda: pool_of(backend).counts()["armed"] > 0, 30)
    taken = []
    monkeypatch.setattr(pool_of(backend), "take_now", lambda spec: taken.append(spec))
    assert (await executor.run("rm -rf /", "bash")).status is Status.FORBIDDEN
    assert taken == []
    await executor.run("1", backend="jail")
    assert len(taken) > 0, "the control: what may run is"


async def test_a_run_cancelled_before_it_starts_gives_its_cell_back(the: Jail, monkeypatch: pytest.MonkeyPatch) -> None:
    executor, backend = the
    assert (await run(executor)).value == 2
    assert await soon(lambda: pool_of(backend).counts()["armed"] > 0, 30)

    async def never(*_: object) -> None:
        await asyncio.sleep(60)

    with monkeypatch.context() as changed:
        changed.setattr(executor, "_record_intent", never)
        running = asyncio.create_task(run(executor, "1"))
        assert await soon(lambda: pool_of(backend).counts()["running"] == 1, 30)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert (pool_of(backend).counts()["running"], pool_of(backend).runs) == (0, 0)
