"""The supervisor of native commands: what it passes on, what it keeps to itself, and that nothing outlives it."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from redoma.backends.native.backend import NativeBackend
from redoma.lib.errors import BackendError
from redoma.models import Limits, Request, Status

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

ENV = {"PATH": "/usr/bin:/bin"}


@pytest.fixture
async def backend() -> AsyncIterator[NativeBackend]:
    backend = NativeBackend()
    yield backend
    await backend.aclose()


def _request(*argv: str, **more: object) -> Request:
    return Request(argv=argv, language="command", backend="native", cwd="/", env=ENV, **more)  # type: ignore[arg-type]


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _environment(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


def _until(true: Callable[[], object], seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.02)
    return bool(true())


async def _output(backend: NativeBackend, *argv: str) -> tuple[Status, str]:
    said: list[bytes] = []

    def sink(_: object, data: bytes) -> bool:
        said.append(data)
        return True

    outcome = await backend.run(_request(*argv), sink)
    return outcome.status, b"".join(said).decode()


async def test_nothing_of_a_run_is_kept(backend: NativeBackend) -> None:
    gc.collect()  # what earlier tests have dropped
    before = set(_children(os.getpid())), set(os.listdir("/proc/self/fd"))
    for _ in range(3):
        assert await _output(backend, "echo", "hello") == (Status.OK, "hello\n")
    assert (set(_children(os.getpid())), set(os.listdir("/proc/self/fd"))) == before


async def test_a_program_that_is_not_there_is_told_by_its_name(backend: NativeBackend, tmp_path: Path) -> None:
    outcome = await backend.run(_request("no-such-program"), lambda *_: True)
    assert (outcome.exit_code, outcome.error) == (127, "could not start no-such-program: No such file or directory")
    (tmp_path / "here").write_text("not executable")
    asked = msgspec.structs.replace(_request("here"), env={"PATH": f"{tmp_path}:/usr/bin"})
    assert "could not start here: Permission denied" in str((await backend.run(asked, lambda *_: True)).error)
    asked = msgspec.structs.replace(_request("true"), cwd=f"{tmp_path}/none")
    assert f"could not enter {tmp_path}/none: No such file" in str((await backend.run(asked, lambda *_: True)).error)


async def test_more_words_than_the_kernel_takes_are_told(backend: NativeBackend) -> None:
    for words in (["x" * 1000] * 7000, ["x" * 1000] * 9000, ["x"] * 1_100_000):
        outcome = await backend.run(_request("true", *words), lambda *_: True)
        assert (outcome.exit_code, outcome.error) == (127, "could not start true: Argument list too long")


async def test_words_that_are_no_text_arrive_as_they_are(backend: NativeBackend) -> None:
    odd = os.fsdecode(b"\xff\xfe a\nb\x01")
    assert (await backend.run(_request("printf", "%s", odd), _expect(b"\xff\xfe a\nb\x01"))).status is Status.OK
    outcome = await backend.run(_request("true", "\ud800"), lambda *_: True)
    assert outcome.exit_code == 127
    assert "could not start true" in str(outcome.error)


def _expect(wanted: bytes) -> Callable[[object, bytes], bool]:
    def sink(_: object, data: bytes) -> bool:
        assert data == wanted
        return True

    return sink


async def test_a_command_has_three_descriptors_and_its_source(backend: NativeBackend) -> None:
    """Not even one that a library of ours has left inheritable."""
    leaked = os.dup(0)
    os.set_inheritable(leaked, True)
    try:
        # `ls` opens the directory itself.
        assert (await _output(backend, "ls", "/proc/self/fd"))[1].split() == ["0", "1", "2", "3"]
        script = Request(code="ls /proc/self/fd", language="bash", backend="native", env=ENV)
        said: list[bytes] = []

        def sink(_: object, data: bytes) -> bool:
            said.append(data)
            return True

        await backend.run(script, sink)
        assert b"".join(said).split() == [b"0", b"1", b"2", b"3", b"4"]
    finally:
        os.close(leaked)


async def test_it_works_where_children_are_ignored(backend: NativeBackend) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert (await backend.run(_request("sh", "-c", "exit 7"), lambda *_: True)).exit_code == 7
    finally:
        signal.signal(signal.SIGCHLD, before)


async def test_many_at_once_are_all_served(backend: NativeBackend) -> None:
    answers = await asyncio.gather(*(_output(backend, "echo", str(number)) for number in range(40)))
    assert answers == [(Status.OK, f"{number}\n") for number in range(40)]


async def test_it_has_neither_our_variables_nor_our_directory(
    backend: NativeBackend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("REDOMA_TEST_SECRET", "hunter22")
    waits = f"while [ ! -e {tmp_path}/over ]; do sleep 0.02; done"
    before = set(_children(os.getpid()))  # of other tests
    run = asyncio.create_task(_output(backend, "sh", "-c", waits))
    deadline = time.monotonic() + 60
    while not any(map(_children, set(_children(os.getpid())) - before)) and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    (supervisor,) = set(_children(os.getpid())) - before
    if os.geteuid() == 0:  # nobody else may look
        assert _environment(supervisor) == b""
        assert os.readlink(f"/proc/{supervisor}/cwd") == "/"
        # The leash and what it watches: nothing of our output.
        place = f"/proc/{supervisor}/fd"
        leads_to = [os.readlink(f"{place}/{number}") for number in os.listdir(place)]
        assert not {os.readlink(f"/proc/self/fd/{number}") for number in (0, 1, 2)} & set(leads_to)
    (tmp_path / "over").touch()
    assert (await run)[0] is Status.OK


async def test_signals_that_we_ignore_have_their_usual_effect_on_a_command(backend: NativeBackend) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        outcome = await backend.run(_request("sh", "-c", "kill -HUP $$; sleep 0.1; echo alive"), lambda *_: True)
        assert outcome.exit_code == 128 + signal.SIGHUP
        pipe = await backend.run(_request("bash", "-c", "yes | head -1; exit ${PIPESTATUS[0]}"), lambda *_: True)
        assert pipe.exit_code == 128 + signal.SIGPIPE
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("forks", [False, True], ids=["alone", "with a child that outlives it"])
def test_when_redoma_is_killed_the_command_and_all_around_it_end(tmp_path: Path, forks: bool) -> None:
    lasts = f"63.{os.getpid():07}"  # which no other process has among its words
    program = textwrap.dedent(f"""
        import asyncio, os, sys, time
        from pathlib import Path
        from redoma.backends.native.backend import NativeBackend
        from redoma.models import Request

        async def main():
            backend = NativeBackend()
            run = asyncio.create_task(backend.run(
                Request(argv=("sleep", "{lasts}"), language="command", backend="native", cwd="/", env={ENV!r}),
                lambda *_: True))
            def below(pid):
                return Path(f"/proc/{{pid}}/task/{{pid}}/children").read_text().split()
            def begun():
                try:
                    each = [inner for outer in below(os.getpid()) for inner in below(outer)]
                    return any(b"{lasts}" in Path(f"/proc/{{pid}}/cmdline").read_bytes() for pid in each)
                except OSError:
                    return False
            while not begun():
                await asyncio.sleep(0.02)
            if {forks} and os.fork() == 0:  # it has a copy of every descriptor of ours
                time.sleep(300)
                os._exit(0)
            print("ready", flush=True)
            await run
        asyncio.run(main())
        """)
    redoma = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True)
    assert redoma.stdout is not None
    assert redoma.stdout.readline() == b"ready\n"
    around = [supervisor for supervisor in _children(redoma.pid) if _children(supervisor)]
    assert len(around) == 1
    assert _running(lasts)
    redoma.kill()
    try:
        assert _until(lambda: not _running(lasts))
        assert _until(lambda: not any(map(_is_alive, around)))
    finally:
        redoma.wait()
        if forks:
            os.killpg(redoma.pid, signal.SIGKILL)
        redoma.stdout.close()


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _running(argument: str) -> list[str]:
    found = []
    for process in Path("/proc").iterdir():
        try:
            words = (process / "cmdline").read_bytes().split(b"\0") if process.name.isdigit() else []
        except (FileNotFoundError, ProcessLookupError):
            continue
        if words[:2] == [b"sleep", argument.encode()]:
            found.append(process.name)
    return found


async def test_a_run_whose_time_is_over_before_it_began_is_a_time_out(backend: NativeBackend, tmp_path: Path) -> None:
    for _ in range(3):
        request = _request("touch", str(tmp_path / "began"), limits=Limits(time=0.0001))
        assert (await backend.run(request, lambda *_: True)).status is Status.TIMEOUT


async def test_a_command_that_stops_its_supervisor_is_ended_all_the_same(backend: NativeBackend) -> None:
    said: list[bytes] = []

    def sink(_: object, data: bytes) -> bool:
        said.append(data)
        return True

    for seconds in (0.5, 3.0, 15.0):  # more on a machine where it gets to nothing in half a second
        limits = msgspec.structs.replace(Limits(), time=seconds)
        stops = _request("sh", "-c", "kill -STOP $PPID; echo stopped; exec sleep 60", limits=limits)
        try:
            await backend.run(stops, sink)
        except BackendError as error:
            assert "the supervisor was killed" in str(error)  # noqa: PT017 - or it came to nothing
            return
        assert not said, "its supervisor was stopped, and it was not told"
    pytest.fail("it was never begun")
