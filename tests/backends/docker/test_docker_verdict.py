"""How a run ended is told as it was, also where the engine is late, the container is gone or the code is ambiguous."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from typing import Any

import pytest
from docker_bench import docker, ours, run, until

from redoma.backends.docker import Box, DockerBackend, box, stub
from redoma.backends.docker import run as runs
from redoma.backends.docker.container import Container
from redoma.backends.docker.engine import Engine
from redoma.models import MiB, Status


@pytest.fixture
async def directly(engine: str) -> AsyncIterator[Engine]:
    """The engine, without a backend around it."""
    connected = Engine(engine)
    yield connected
    await connected.aclose()


async def test_a_look_at_one_that_has_ended_and_gone_tells_nothing(directly: Engine) -> None:
    """It ends between two looks, and its output may be read for a while yet."""
    plain = Box.plain("bash:5.2-alpine", network_mode="none", auto_remove=True)
    container = Container(directly, box.direct(plain, ("true",), {}, None, init=False))
    try:
        await container.create()
        await container.attach()
        await container.start()
        await container.exited()
        assert await until(lambda: ours() == [])
        assert await container.stats() == {}
    finally:
        await container.remove()


async def test_one_that_could_not_be_stopped_is_removed_all_the_same(directly: Engine) -> None:
    """An engine may fail to freeze a container, and then refuses to thaw it."""
    plain = Box.plain("bash:5.2-alpine", network_mode="none", auto_remove=True)
    container = Container(directly, box.direct(plain, ("sleep", "600"), {}, None, init=False))
    await container.create()
    await container.attach()
    await container.start()
    container.frozen = True
    await container.remove()
    assert ours() == []


@pytest.mark.parametrize("language", ["python", "bash"])
async def test_who_ended_in_time_is_not_late_for_leaving_input_unread(
    backend: DockerBackend, language: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine keeps its connection open then, so we wait for a while whether something comes yet."""
    code = "print('done')" if language == "python" else "echo done"
    for seconds in (3.0, 15.0, 60.0):  # more on a machine where it takes that long anyway
        monkeypatch.setattr(runs, "_QUIET", seconds + 1)
        ran = await run(backend, code, language=language, stdin=b"x" * MiB, limits={"time": seconds})
        if ran.ending == ("ok", 0):
            break
    assert (ran.ending, ran.stdout) == (("ok", 0), "done\n")
    assert ran.outcome.usage.wall < seconds


_FORGES = """
import os, sys, time
frame = sys._getframe()
while 'order' not in frame.f_locals: frame = frame.f_back
os.write(1, frame.f_locals['order']['nonce'].encode() + b'=\\n')
time.sleep(600)
"""
# In processes of which none uses enough to be ended by itself.
_BURNS = """
import os, time
while True:
    if os.fork() == 0:
        while time.process_time() < 0.3: pass
        os._exit(0)
    os.wait()
"""


@pytest.mark.parametrize(
    ("code", "limits"),
    [(_FORGES, {"time": 5.0}), (_BURNS, {"cpu": 1})],
    ids=["forges the last word", "uses up its processor time"],
)
async def test_a_program_that_deafens_the_stub_wins_little_time(
    backend: DockerBackend, code: str, limits: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may write to the stub's memory, and so keep it from ending it. For the files, which are not coming."""
    monkeypatch.setattr(runs, "_LAST_WORD", 100.0)
    monkeypatch.setattr(runs, "_SENDING", 2.0)

    async def to_deaf_ears(container: Container, number: int) -> None:
        if number != stub.END:
            await tell(container, number)

    tell = Container.signal
    monkeypatch.setattr(Container, "signal", to_deaf_ears)
    async with asyncio.timeout(240):
        ran = await run(backend, code, outputs=("x",), limits=limits)
    assert ran.outcome.status is Status.TIMEOUT
    if "cpu" in limits:
        assert ran.outcome.usage.cpu is not None
        assert ran.outcome.usage.cpu < limits["cpu"] + runs._SENDING_CPU + 2
    else:
        assert ran.outcome.usage.wall < 20


@pytest.mark.parametrize("place", ["program", "child", "direct"])
async def test_memory_is_told_also_where_the_engine_hears_of_it_late(
    backend: DockerBackend, engine: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: set[Container] = set()

    async def not_at_first(container: Container) -> bool:
        if container in asked:
            return await hears(container)
        asked.add(container)
        return False

    hears = Container.ran_out_of_memory
    monkeypatch.setattr(Container, "ran_out_of_memory", not_at_first)
    code = "x = bytearray(200 << 20)"
    if place == "child":
        code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])"
    if place != "direct":
        ran = await run(backend, code, limits={"memory": 64 * MiB})
    else:
        plain = DockerBackend(Box.plain("python:3.11-slim", auto_remove=True, memory_limit=64 * MiB), host=engine)
        ran = await run(plain, argv=("python3", "-c", code))
        await plain.aclose()
    assert ran.ending == ("memory", None)


async def test_memory_is_told_where_the_engine_never_hears_of_it(
    backend: DockerBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(container: Container) -> bool:
        return False

    monkeypatch.setattr(Container, "ran_out_of_memory", never)
    ran = await run(backend, "x = bytearray(200 << 20)", limits={"memory": 64 * MiB})
    assert ran.ending == ("memory", None)


async def test_memory_is_told_of_a_shell_too(backend: DockerBackend) -> None:
    ran = await run(backend, "x=x; while :; do x=$x$x; done", language="bash", limits={"memory": 64 * MiB})
    assert ran.ending == ("memory", None)


@pytest.mark.parametrize(
    ("code", "language", "ending"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "python", ("killed", 137)),
        ("import os; os._exit(137)", "python", ("error", 137)),
        ("kill -9 $$", "bash", ("killed", 137)),
    ],
)
async def test_a_kill_for_memory_elsewhere_on_the_machine_is_not_this_runs(
    backend: DockerBackend, code: str, language: str, ending: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = iter(range(1000))
    monkeypatch.setattr(runs, "_oom_kills", lambda: b"%d" % next(counts))
    assert (await run(backend, code, language=language)).ending == ending


async def test_one_whose_end_was_not_seen_is_not_kept(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def in_vain(container: Container, number: int) -> None:
        """As with an engine whose kill takes its time."""

    monkeypatch.setattr(Container, "signal", in_vain)
    monkeypatch.setattr(runs, "_GRACE", 0.5)
    plain = DockerBackend(Box.plain("bash:5.2-alpine"), host=engine)  # auto_remove: false
    try:
        ran = await run(plain, argv=("sleep", "600"), limits={"time": 1.0})
        assert ran.ending == ("timeout", None)
        assert (ours(), plain.kept) == ([], ())
    finally:
        await plain.aclose()


async def test_a_code_that_could_be_a_signals_is_taken_for_no_limit(backend: DockerBackend, engine: str) -> None:
    plain = DockerBackend(Box.plain("bash:5.2-alpine", network_mode="none", auto_remove=True), host=engine)
    killed = {
        code: ("killed", code, f"it was ended by {signal.Signals(code - 128).name}") for code in (129, 143, 152, 159)
    }
    expected = {**killed, 128: ("error", 128, None), 160: ("error", 160, None), 255: ("error", 255, None)}
    try:
        for code, told in expected.items():
            bash, command, python = await asyncio.gather(
                run(backend, f"exit {code}", language="bash"),
                run(plain, argv=("sh", "-c", f"exit {code}")),
                run(backend, f"import sys; sys.exit({code})"),
            )
            assert [(*ran.ending, ran.outcome.error) for ran in (bash, command)] == [told] * 2
            assert (*python.ending, python.outcome.error) == ("error", code, None)
    finally:
        await plain.aclose()
    unusual = await run(backend, "import os; os.kill(os.getpid(), 40)")
    assert (unusual.ending, unusual.outcome.error) == (("killed", 168), "it was ended by signal 40")


@pytest.mark.parametrize(("used", "ending"), [(0.9, ("timeout", None)), (0.1, ("killed", 152))])
async def test_the_signal_for_processor_time_is_believed_of_who_has_used_it(
    backend: DockerBackend, used: float, ending: tuple[str, int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def look(container: Container) -> dict[str, Any]:
        return {"cpu_stats": {"cpu_usage": {"total_usage": int(used * 1e9)}}}

    monkeypatch.setattr(Container, "stats", look)
    ran = await run(backend, "sleep 2; kill -XCPU $$", language="bash", limits={"cpu": 1})
    assert ran.ending == ending


async def test_a_program_that_could_not_be_started_is_told_from_one_that_says_so(engine: str) -> None:
    image = f"redoma-test/work-dir:{os.getpid()}"
    made = docker("create", "bash:5.2-alpine").strip()
    exported = subprocess.run(["docker", "export", made], capture_output=True, check=True).stdout  # noqa: ASYNC221
    docker("rm", made)
    settings = ("--change=WORKDIR /usr/local/bin", "--change=ENV PATH=/etc/passwd:.:/bin")  # of which one is a file
    docker("import", *settings, "-", image, given=exported)
    plain = DockerBackend(Box.plain(image, network_mode="none", auto_remove=True), host=engine)
    cases = {
        ("./bash", "-c", "exit 127"): None,  # which is there
        ("bash", "-c", "exit 126"): None,
        ("./bosh",): "could not start ./bosh: No such file or directory",
        ("bosh",): "could not start bosh: No such file or directory",
    }
    try:
        for argv, error in cases.items():
            ran = await run(plain, argv=argv)
            assert (ran.outcome.status, ran.outcome.error) == (Status.ERROR, error), argv
    finally:
        await plain.aclose()
        docker("rmi", image)


@pytest.mark.parametrize("runtime", [None, "runsc"])
async def test_a_source_that_is_larger_than_the_memory_is_tried_once(
    engine: str, runtime: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Container] = []

    async def create(container: Container) -> None:
        made.append(container)
        await really(container)

    really = Container.create
    monkeypatch.setattr(Container, "create", create)
    backend = DockerBackend(Box(runtime=runtime), host=engine)
    try:
        ran = await run(backend, "#" + "x" * (70 * MiB) + "\nprint(1)", limits={"memory": 64 * MiB})
    finally:
        await backend.aclose()
    assert (ran.ending, len(made)) == (("memory", None), 1)
