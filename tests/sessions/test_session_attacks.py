"""What a session's code can't do, whoever runs it: to the runs after it, to other sessions, and to us."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pace import SLOW
from redoma import AsyncExecutor, BackendError, Capabilities, Config, Isolation, Outcome, Request, Status
from redoma.backends.base import Control, Sink
from redoma.config import SessionsConfig
from redoma.models.reach import NOTHING
from redoma.sessions import files
from redoma.sessions.line import Line

_HERE = Path(__file__).parent
sys.path.append(str(_HERE.parent / "attacks"))
import jail_crew  # noqa: E402
from session_attacks import ATTACKS  # noqa: E402

_SCRIPT = _HERE / "session_attacks.py"
_CREWS = ("root", "unprivileged") if os.geteuid() == 0 else ("ourselves",)


@pytest.fixture(scope="module")
def verdicts() -> Iterator[dict[str, dict[str, dict[str, Any]]]]:
    with tempfile.TemporaryDirectory(prefix="attack-crew-") as place:
        yield _verdicts(Path(place))


def _verdicts(place: Path) -> dict[str, dict[str, dict[str, Any]]]:
    commands = {who: [sys.executable, str(_SCRIPT)] for who in _CREWS}
    if "unprivileged" in commands:
        commands["unprivileged"] = jail_crew.unprivileged(place, _SCRIPT)
    environment = {"PATH": os.defpath, "LANG": "C.UTF-8"}
    running = {
        who: subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd="/"
        )
        for who, command in commands.items()
    }
    found = {}
    for who, process in running.items():
        out, errors = process.communicate(timeout=400 * SLOW)
        assert process.returncode == 0, errors
        found[who] = {told["name"]: told for told in map(json.loads, out.splitlines())}
    return found


@pytest.mark.parametrize("who", _CREWS)
@pytest.mark.parametrize("name", [attack.name for attack in ATTACKS])
def test_earlier_code_that(verdicts: dict[str, dict[str, dict[str, Any]]], who: str, name: str) -> None:
    told = verdicts[who][name]
    assert told["holds"], told
    assert told["as_it_should"], told
    assert told["bystander"] == 4711, "another session was touched"
    assert told["seconds"] < 60 * SLOW, "it kept us waiting"


_OWNER = """
import redoma, sys
for i in range(3):
    session = redoma.Session()
    session.run("import subprocess; subprocess.Popen(['sleep', '{marker}'])")
    session.start("sleep {marker}")
    keep = session, globals().get("keep")
print("ready", flush=True)
sys.stdin.read()
"""


def _marked(marker: str) -> list[str]:
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                if marker.encode() in (process / "cmdline").read_bytes():
                    found.append(process.name)
            except OSError:
                continue
    return found


@pytest.mark.usefixtures("nothing_left_behind")
def test_nothing_is_left_when_the_owner_is_killed() -> None:
    marker = f"{os.getpid()}.4711"
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER.format(marker=marker)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert owner.stdout is not None
    assert owner.stdin is not None
    assert owner.stdout.readline() == b"ready\n"
    deadline = time.monotonic() + 60 * SLOW
    while len(_marked(marker)) < 7 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(_marked(marker)) >= 7  # theirs, and the owner's own command line
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    owner.stdin.close()
    deadline = time.monotonic() + 60 * SLOW
    while _marked(marker) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert _marked(marker) == []


class _Liar:
    """A backend whose driver says what it likes, as one would that has been taken over."""

    name, reach = "jail", NOTHING

    def __init__(self, *says: bytes) -> None:
        self._says = says

    def capabilities(self) -> Capabilities:
        return Capabilities(
            languages=frozenset({"python"}),
            isolation=Isolation(),
            limits=frozenset(),
            control=True,
            files=True,
            env=True,
        )

    async def run(self, request: Request, sink: Sink, control: Control | None = None) -> Outcome:
        assert control is not None
        more = sink("stdout", _frame({"is": "ready"}))
        heard = b""
        while more and b'"do":' not in heard:
            heard += await control.read()
        for said in self._says if more else ():
            if not sink("stdout", said):
                break
        else:
            await control.read()
        return Outcome(status=Status.OUTPUT, isolation=Isolation())

    async def aclose(self) -> None: ...


class _LyingPython(_Liar):
    """A backend in whose sessions it is the Python that says what it likes, by its direct line."""

    def capabilities(self) -> Capabilities:
        return msgspec.structs.replace(super().capabilities(), descriptors=True)

    async def run(self, request: Request, sink: Sink, control: Control | None = None) -> Outcome:
        assert control is not None
        while control.passed == -1:
            await control.read()
        with socket.socket(fileno=os.dup(int(control.passed))) as line:
            _, pipes, _, _ = socket.recv_fds(line, 1, 2)
            line.setblocking(False)
            sink("stdout", _frame({"is": "ready"}))
            loop = asyncio.get_running_loop()
            try:
                await loop.sock_recv(line, 65536)
                for said in self._says:
                    await loop.sock_sendall(line, said)
                await asyncio.Event().wait()
            finally:
                for number in pipes:
                    os.close(number)
        raise AssertionError


_HEADS = st.fixed_dictionaries(
    {"is": st.sampled_from(["out", "display", "done", "answer", "exit", "ready", "other"])},
    optional={
        **{name: st.integers(-1, 3) for name in ("run", "id", "process", "exit", "signal", "status", "errno")},
        "stream": st.sampled_from(["stdout", "stderr", "x"]),
        "types": st.lists(st.tuples(st.sampled_from(["text/html", "image/png", "x"]), st.integers(-1, 70)), max_size=3),
        **{name: st.text(max_size=20) for name in ("exception", "error", "broken", "file", "traceback")},
        **{name: st.booleans() for name in ("memory", "is_value")},
    },
)


def _frame(head: dict[str, object], body: bytes = b"") -> bytes:
    text = json.dumps(head).encode()
    return len(text).to_bytes(4, "big") + len(body).to_bytes(4, "big") + text + body


@pytest.mark.parametrize(
    "said",
    [
        b"\xff" * 64,
        _frame({"is": "nonsense"}),
        _frame({"is": "done", "run": -1}),
        _frame({"is": "done", "run": 1, "more": 1}),
        _frame({"is": "done", "run": 1, "exit": 2**40}),
        _frame({"is": "display", "run": 1, "types": [["text/html", 5]]}, b"1234"),
        _frame({"is": "out", "run": 1, "stream": "stdlog"}, b"x"),
        b"".join(_frame({"is": "out", "process": 77, "stream": "stdout"}, b"x" * (8 << 20)) for _ in range(2)),
        b"[" * 100_000,
    ],
    ids=range(9),
)
@pytest.mark.parametrize("liar", [_Liar, _LyingPython])
async def test_a_session_that_says_what_no_session_says_is_ended(
    config: Config, said: bytes, liar: type[_Liar]
) -> None:
    async with AsyncExecutor(config, backends=[liar(said)]) as executor:
        session = executor.session()
        result = await session.run("1", timeout=30)
        assert result.status == "failed"
        assert "not a message of a session" in (result.error or "")
        assert not session.alive


@pytest.mark.parametrize("liar", [_Liar, _LyingPython])
async def test_its_word_about_other_runs_and_questions_counts_for_nothing(config: Config, liar: type[_Liar]) -> None:
    lies = [
        _frame({"is": "done", "run": 2}, b'"FORGED"'),
        _frame({"is": "answer", "id": 99}),
        _frame({"is": "exit", "process": 5, "status": 0}),
        _frame({"is": "out", "run": 9, "stream": "stdout"}, b"FORGED"),
        _frame({"is": "done", "run": 1}, b'"true"'),
    ]
    async with AsyncExecutor(config, backends=[liar(*lies)]) as executor:
        result = await executor.session().run("1", timeout=30)
        assert (result.status, result.value, result.stdout) == ("ok", "true", "")


async def test_a_driver_that_never_answers_is_ended_in_time(config: Config) -> None:
    config = msgspec.structs.replace(config, sessions=SessionsConfig(grace=0.2))
    async with AsyncExecutor(config, backends=[_Liar(_frame({"is": "ready"}))]) as executor:
        session = executor.session()
        start = time.monotonic()
        result = await session.run("1", timeout=0.3)
        assert result.status in ("timeout", "failed")
        assert time.monotonic() - start < 5 * SLOW


async def test_a_driver_that_never_answers_a_question_is_ended_in_time(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    from redoma.sessions.channel import Channel

    assert Channel.ask.__kwdefaults__ is not None
    monkeypatch.setitem(Channel.ask.__kwdefaults__, "patience", 0.3)
    async with AsyncExecutor(config, backends=[_Liar(_frame({"is": "ready"}))]) as executor:
        session = executor.session()
        with pytest.raises(BackendError, match="did not answer"):
            await session.files.read("x")
        assert not session.alive


async def test_displays_that_wait_for_no_answer_end_the_session(config: Config) -> None:
    display = _frame({"is": "display", "run": 1, "types": [["text/html", 1]]}, b"x")
    async with AsyncExecutor(config, backends=[_LyingPython(display * 2)]) as executor:
        result = await executor.session().run("1", timeout=30)
        assert "before the last one was taken" in (result.error or "")


_SENDS_DESCRIPTORS = """
import json, os, socket, stat, struct
head = json.dumps({"is": "answer", "id": 10**9}).encode()
message = struct.pack("!II", len(head), 0) + head
sent = 0
for number in range(100, 256):
    try:
        if not stat.S_ISSOCK(os.fstat(number).st_mode): continue
        line = socket.socket(fileno=os.dup(number))
        for _ in range(20):
            socket.send_fds(line, [message], [1] * 10)
            sent += 10
    except OSError: continue
sent
"""


def _most_of_one_pipe() -> int:
    """How many descriptors this process has of the same pipe, at the most. Cells that are being made have others."""
    found: Counter[str] = Counter()
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the listing's own
            found[os.readlink(f"/proc/self/fd/{number}")] += 1
    return max(count for name, count in found.items() if name.startswith("pipe:"))


async def _descriptors_of(config: Config) -> int:
    """How many descriptors of its output we have more when a session has sent us many."""
    async with AsyncExecutor(config) as executor, executor.session() as session:
        await session.run("1")
        before = _most_of_one_pipe()
        sent = await session.run(_SENDS_DESCRIPTORS)
        assert isinstance(sent.value, int), sent
        assert sent.value >= 200, sent
        return _most_of_one_pipe() - before


async def test_descriptors_that_a_session_sends_are_not_received(config: Config) -> None:
    assert await _descriptors_of(config) == 0


async def test_they_would_be_if_they_were_asked_for(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[int] = []

    def asking(line: Line) -> bytes | None:
        try:
            data, numbers, _, _ = socket.recv_fds(line._socket, 65536, 100)
        except BlockingIOError:
            return None
        received.extend(numbers)
        return data

    monkeypatch.setattr(Line, "_received", asking)
    try:
        assert await _descriptors_of(config) >= 100
    finally:
        for number in received:
            os.close(number)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(said=st.lists(st.one_of(st.binary(max_size=64), st.builds(_frame, _HEADS, st.binary(max_size=64))), max_size=4))
@pytest.mark.parametrize("liar", [_Liar, _LyingPython])
async def test_whatever_a_session_says_a_run_ends_with_a_result(
    config: Config, said: list[bytes], liar: type[_Liar]
) -> None:
    config = msgspec.structs.replace(config, sessions=SessionsConfig(grace=0.02))
    async with AsyncExecutor(config, backends=[liar(*said)]) as executor:
        result = await executor.session().run("1", timeout=0.05)
        assert result.status in ("ok", "error", "timeout", "killed", "failed", "memory")


_LINKS = "import os\nos.symlink({marked!r}, 'link')\nos.symlink({beside!r}, 'd')"


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    """A directory of the host with a file that a session's code knows the path of."""
    place = tmp_path / "ours"
    place.mkdir()
    (place / "marked").write_text("of the host")
    return place


async def test_links_to_files_of_the_host_lead_nowhere(config: Config, ours: Path, tmp_path: Path) -> None:
    async with AsyncExecutor(config) as executor, executor.session() as session:
        await session.run(_LINKS.format(marked=str(ours / "marked"), beside=str(ours)))
        with pytest.raises(FileNotFoundError):
            await session.files.read("link")
        with pytest.raises(OSError):  # noqa: PT011 - which one depends on what the cell has at that path
            await session.files.write("d/new", "x")
        assert await session.files.download(".", tmp_path / "down") == 0
    assert os.listdir(ours) == ["marked"]


def test_they_would_if_files_were_read_and_written_outside_of_the_cell(ours: Path, tmp_path: Path) -> None:
    outside = files.Operations(str(tmp_path))
    (tmp_path / "link").symlink_to(ours / "marked")
    (tmp_path / "d").symlink_to(ours)
    assert outside.answer({"op": "read", "path": "link", "offset": 0}, b"")[1] == b"of the host"
    outside.answer({"op": "write", "path": "d/new", "part": "1", "first": True, "last": True}, b"x")
    assert (ours / "new").read_text() == "x"


async def test_hostile_names_of_files_go_nowhere(config: Config, tmp_path: Path) -> None:
    entry = {"kind": "file", "size": 1, "mode": 0o644, "modified": 0.0}
    names = ["../up", "a/b", "..", ".", "", "nul\0"]
    listed = json.dumps([{"name": name, **entry} for name in names]).encode()
    async with AsyncExecutor(config, backends=[_Liar(_frame({"is": "answer", "id": 1}, listed))]) as executor:
        session = executor.session()
        assert await session.files.download(".", tmp_path / "down") == 0
        assert list((tmp_path / "down").iterdir()) == []
        with pytest.raises(BackendError):
            await session.files.read("x")


@pytest.mark.parametrize(
    "said", [b"", b"[]", b'{"cpu_ms": -1, "memory": 0, "disk": 0, "disk_total": 0}', b'{"cpu_ms": 1e300}', b"[" * 9000]
)
async def test_hostile_usage_is_none(config: Config, said: bytes) -> None:
    async with AsyncExecutor(config, backends=[_Liar(_frame({"is": "answer", "id": 1}, said))]) as executor:
        with pytest.raises(BackendError, match="what it uses"):
            await executor.session().usage()
