"""What copies of a session can't do to each other, to their parent and to us; each with the case in which it can be
done, so that the attack is known to work."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from redoma import BackendError, Executor, Request, Session
from redoma.backends import image
from redoma.backends.base import Control
from redoma.backends.jail import JailBackend

# Has the check for descriptors overlook everything, in the process that the code shares with our worker.
_OVERLOOK = """
import gc
worker = next(each for each in gc.get_objects() if type(each).__name__ == 'Worker')
checks = type(worker)._save.__globals__['copying']
checks.check = lambda known: []
"""
# Keeps the file that the session is written to.
_STASH = """
import mmap, os, socket
x = bytearray(b'as it was' * 1000)
stashed, receive = [], socket.recv_fds
def stashing(*args):
    got = receive(*args)
    stashed.extend(os.dup(number) for number in got[1])
    return got
socket.recv_fds = stashing
"""
# Also maps it, behind the back of the process that is written.
_MAP = """
fork, mapped = os.fork, []
def mapping():
    if pid := fork():
        mapped.append(mmap.mmap(stashed[0], 1 << 20))
    return pid
os.fork = mapping
"""
_REWRITE = """
count = 0
for number in stashed:
    size = os.fstat(number).st_size
    place = 0
    while place < size and place < 1 << 26:
        data = os.pread(number, 1 << 20, place)
        at = data.find(b'as it was' * 3)
        while at >= 0:
            try:
                os.pwrite(number, b'CHANGED!!', place + at)
                count += 1
            except PermissionError:
                pass
            at = data.find(b'as it was' * 3, at + 9)
        place += 1 << 20
count > 0
"""


def test_a_parent_can_t_change_what_its_copies_see(session: Session) -> None:
    assert session.run(_STASH + _OVERLOOK).ok
    (copy,) = session.fork()
    with copy:
        assert session.run("len(stashed)").value == 1
        assert session.run(_REWRITE).value is False
        assert copy.run("b'CHANGED' in x").value is False


def test_it_could_if_the_image_was_not_sealed(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "_SEALED", 0)
    session.run(_STASH + _OVERLOOK)
    (copy,) = session.fork()
    with copy:
        assert session.run(_REWRITE).value is True
        assert copy.run("b'CHANGED' in x").value is True


def test_a_parent_that_keeps_its_image_mapped_is_not_forked(session: Session) -> None:
    session.run(_STASH + _OVERLOOK + _MAP)
    with pytest.raises(BackendError, match="still writes to its image"):
        session.fork()
    assert session.run("1").value == 1


def test_a_copy_has_no_way_to_the_image_that_others_are_of(session: Session) -> None:
    session.run("import os")
    (copy,) = session.fork()
    with copy:
        found = copy.run(
            "found = []\n"
            "for pid in filter(str.isdigit, os.listdir('/proc')):\n"
            "    try:\n"
            "        found += [os.readlink(f'/proc/{pid}/fd/{name}') for name in os.listdir(f'/proc/{pid}/fd')]\n"
            "    except OSError: pass\n"
            "[each for each in found if 'memfd' in each], len(found) > 5"
        ).value
        assert found == ([], True)
        opened = copy.run(
            "mapped = [line.split()[0] for line in open('/proc/self/maps') if 'memfd' in line]\n"
            "def attempt(place):\n"
            "    start, end = (part.lstrip('0') for part in place.split('-'))\n"
            "    try: return os.open(f'/proc/self/map_files/{start}-{end}', os.O_RDONLY)\n"
            "    except OSError as error: return error.errno\n"
            "len(mapped) > 0, {attempt(place) for place in mapped}"
        ).value
        assert opened == (True, {errno.EPERM})


@pytest.fixture
def family(session: Session) -> Iterator[tuple[Session, Session, Session]]:
    """A parent and two copies."""
    session.run("import os, signal, socket, subprocess, ctypes\nlibc = ctypes.CDLL(None, use_errno=True)")
    one, other = session.fork(2)
    with one, other:
        yield session, one, other


_LISTEN = """
tcp = socket.socket(); tcp.bind(('127.0.0.1', 4711)); tcp.listen()
abstract = socket.socket(socket.AF_UNIX); abstract.bind('\\0meeting'); abstract.listen()
open('/dev/shm/note', 'w').write('x'); open('/tmp/note', 'w').write('x'); open('/workspace/note', 'w').write('x')
shared = libc.shmget(4711, 4096, 0o1666)
shared >= 0
"""
_MEET = """
def met():
    found = []
    for family, address in ((socket.AF_INET, ('127.0.0.1', 4711)), (socket.AF_UNIX, '\\0meeting')):
        with socket.socket(family) as one:
            try: one.connect(address); found.append(str(address))
            except OSError: pass
    found += [path for path in ('/dev/shm/note', '/tmp/note', '/workspace/note') if os.path.exists(path)]
    if libc.shmget(4711, 4096, 0o666) >= 0: found.append('shared memory')
    return found
met()
"""


def test_copies_have_no_place_to_meet(family: tuple[Session, Session, Session]) -> None:
    parent, one, other = family
    one.run(_LISTEN)
    assert len(one.run(_MEET).value) >= 5  # where it listens itself, all of it is there
    assert other.run(_MEET).value == []
    assert parent.run(_MEET).value == []


def test_copies_neither_see_nor_signal_each_other(family: tuple[Session, Session, Session]) -> None:
    parent, one, other = family
    victim = one.run("victim = subprocess.Popen(['sleep', '60']); victim.pid").value
    seen = (
        "sum(open(f'/proc/{pid}/cmdline').read().startswith('sleep') for pid in os.listdir('/proc') if pid.isdigit())"
    )
    assert one.run(seen).value == 1
    for stranger in (parent, other):
        assert stranger.run(seen).value == 0
        assert stranger.run(f"os.kill({victim}, 9)").exception == "ProcessLookupError"
    assert one.run("victim.poll()").value is None
    assert one.run(f"os.kill({victim}, 9); victim.wait()").value == -9  # its own code can


def test_a_copy_that_kills_everything_kills_itself_alone(family: tuple[Session, Session, Session]) -> None:
    parent, one, other = family
    # Who sends it survives it: it waits here for the end that the loss of its driver brings.
    assert one.run("os.kill(-1, signal.SIGKILL); import time; time.sleep(60)").status in ("killed", "error")
    assert not one.alive
    assert parent.run("6 * 7").value == 42
    assert other.run("6 * 7").value == 42


def test_memory_that_a_copy_writes_to_is_its_own(session: Session) -> None:
    session.run(
        "import ctypes\nx = bytearray(b'parent' * 100_000)\nplace = ctypes.addressof(ctypes.c_char.from_buffer(x))"
    )
    one, other = session.fork(2)
    with one, other:
        assert one.run("ctypes.memset(place, 65, len(x)); bytes(x[:3])").value == b"AAA"
        assert other.run("bytes(x[:6]), x.count(b'A')").value == (b"parent", 0)
    assert session.run("bytes(x[:6]), x.count(b'A')").value == (b"parent", 0)


@pytest.mark.parametrize(
    "lie",
    [
        "checks.save = lambda *_: 4096",
        "checks.save = lambda *_: 1 << 50",
        "checks.save = lambda imager, file, *_: os.pwrite(file, os.urandom(1 << 20), 0)",
        "real = checks.save\nchecks.save = lambda imager, file, *rest: (size := real(imager, file, *rest)) "
        "and [size, os.pwrite(file, b'\\xff' * 4000, 4096)][0]",
        "checks.save = lambda *_: os.kill(os.getpid(), 9)",
        "worker._save = lambda *_: os._exit(3)",
    ],
)
def test_an_image_of_lies_makes_no_copy_and_harms_nobody(session_executor: Executor, lie: str) -> None:
    with session_executor.session() as session, session_executor.session() as bystander:
        bystander.run("x = 4711")
        assert session.run("import os\n" + _OVERLOOK + lie).ok
        with pytest.raises(BackendError):
            session.fork()
        assert bystander.run("x").value == 4711
        assert bystander.fork()[0].run("x").value == 4711


_OUTWARDS = """
import errno, os, signal, socket
signal.signal(signal.SIGPIPE, signal.SIG_IGN)
ours = socket.socket(fileno=0)
def attempt(call):
    try: call(); return 'done'
    except OSError as error: return errno.errorcode[error.errno]
answers = [
    attempt(lambda: ours.send(b'x')),
    attempt(lambda: socket.send_fds(ours, [b'x'], [1])),
    attempt(lambda: ours.getsockopt(socket.SOL_SOCKET, 77, 4)),
    attempt(lambda: ours.getsockopt(socket.SOL_SOCKET, 59, 64)),
    attempt(lambda: ours.setsockopt(socket.SOL_SOCKET, 76, 1)),
]
ours.detach()
print(answers)
"""


def test_nothing_goes_out_by_the_socket_that_the_input_comes_by() -> None:
    async def tried() -> str:
        printed = bytearray()
        backend = JailBackend(minimum=0, prelude="redoma.sessions.driver", passes_descriptors=True)
        try:
            request = Request(code=_OUTWARDS, language="python")
            await backend.run(request, lambda _, data: printed.extend(data) or True, Control())  # type: ignore[func-returns-value]
        finally:
            await backend.aclose()
        return printed.decode()

    assert asyncio.run(tried()) == "['EPIPE', 'EPIPE', 'ENOPROTOOPT', 'ENOPROTOOPT', 'ENOPROTOOPT']\n"


def test_it_would_if_the_other_way_was_open() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert theirs.send(b"x") == 1
        socket.send_fds(theirs, [b"x"], [1])
        ours.shutdown(socket.SHUT_RD)
        with pytest.raises(BrokenPipeError):
            theirs.send(b"x")


def test_copies_end_with_whoever_made_them(tmp_path: Path) -> None:
    import subprocess
    import sys
    import time

    owner = (
        "import redoma, sys\nwith redoma.Session() as session:\n    session.run('x = 1')\n"
        "    copies = session.fork(3)\n"
        '    for copy in copies: copy.run(\'import subprocess; subprocess.Popen(["sleep", "MARK"])\')\n'
        "    print('ready', flush=True)\n    sys.stdin.read()\n"
    )
    mark = f"4242.{os.getpid()}"
    environment = {**os.environ, "REDOMA_STATE_DIR": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-c", owner.replace("MARK", mark)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    assert _sleepers(mark) == 3
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 60
    while _sleepers(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert _sleepers(mark) == 0


def _sleepers(mark: str) -> int:
    count = 0
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            count += place.read_bytes() == f"sleep\0{mark}\0".encode()
        except OSError:
            continue
    return count
