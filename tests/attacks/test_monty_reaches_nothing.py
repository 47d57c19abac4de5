"""Each attack is seen to succeed where nothing isolates (native), and to fail on Monty, in a cell or by itself.

All are harmless: they look for a marker, or try to leave one.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from redoma import Config, Executor
from redoma.backends.monty.backend import MontyBackend
from redoma.backends.native.backend import NativeBackend
from redoma.config import AuditConfig
from redoma.models import MiB

MARKER = "marker-4711"


class Target:
    """What an attack is after: a file, a directory, a variable and a listener of this host."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "secret.txt"
        self.file.write_text(MARKER)
        self.planted = directory / "planted"
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.2)
        self.port = self._listener.getsockname()[1]
        self.reached = threading.Event()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        while not self._done.is_set():
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            self.reached.set()  # before it hears of it: then the test goes on
            connection.sendall(MARKER.encode())
            connection.close()

    def close(self) -> None:
        self._done.set()
        self._thread.join()
        self._listener.close()


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    monkeypatch.setenv("HOST_SECRET", MARKER)
    target = Target(tmp_path)
    yield target
    target.close()


@pytest.fixture(scope="module", params=[True, False], ids=["in cells", "by itself"])
def executor(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    config = Config(audit=AuditConfig(directory=tmp_path_factory.mktemp("state") / "audit"))
    with Executor(config, backends=[MontyBackend(cells=request.param), NativeBackend()]) as executor:
        yield executor
        isolation = executor.run("1").isolation
        assert ("kernel" in isolation.layers, "kernel" in isolation.missing) == (request.param, not request.param)


ATTACKS: dict[str, Callable[[Target], str]] = {
    "reads a file": lambda t: f"print(open({str(t.file)!r}).read())",
    "reads a file through pathlib": lambda t: f"from pathlib import Path\nprint(Path({str(t.file)!r}).read_text())",
    "climbs out of its directory": lambda t: f"print(open('../' * 20 + {str(t.file)[1:]!r}).read())",
    "lists a directory": lambda t: f"import os\nprint([n + '{MARKER}' for n in os.listdir({str(t.file.parent)!r})])",
    "asks whether a file exists": lambda t: f"import os\nif os.path.exists({str(t.file)!r}): print('{MARKER}')",
    "plants a file": lambda t: f"open({str(t.planted)!r}, 'w').write('x')\nprint('{MARKER}')",
    "connects to a listener": lambda t: (
        f"import socket\ns = socket.create_connection(('127.0.0.1', {t.port}))\nprint(s.recv(99).decode())"
    ),
    "starts a program": lambda t: (
        f"import subprocess\nprint(subprocess.run(['cat', {str(t.file)!r}], capture_output=True, text=True).stdout)"
    ),
    "starts a program through os": lambda t: f"import os\nprint(os.popen('cat {t.file}').read())",
    "imports by name": lambda t: f"print(__import__('os').popen('cat {t.file}').read())",
    "walks up to a subclass": lambda t: (
        "for c in ().__class__.__base__.__subclasses__():\n"
        f"    if c.__name__ == '_wrap_close': print(c.__init__.__globals__['popen']('cat {t.file}').read())"
    ),
    "evaluates text": lambda t: f'print(eval("open({str(t.file)!r}).read()"))',
    "loads native code": lambda t: f"import ctypes\nprint(ctypes.CDLL(None) and '{MARKER}')",
    "finds its parent": lambda t: f"import os\nprint('{MARKER}', os.getppid())",
    "signals its parent": lambda t: f"import os\nos.kill(os.getppid(), 0)\nprint('{MARKER}')",
    "writes to an inherited descriptor": lambda t: f"import os\nos.write(1, b'{MARKER}')",
    "asks for the host's name": lambda t: f"import socket\nprint(socket.gethostname() and '{MARKER}')",
    "asks for the user": lambda t: f"import getpass, os\nprint(os.getuid() is not None and '{MARKER}')",
    "maps memory": lambda t: f"import mmap\nm = mmap.mmap(-1, 4096)\nprint('{MARKER}')",
    "starts a thread": lambda t: f"import threading\nthreading.Thread(target=lambda: print('{MARKER}')).start()",
    "reaches into a frame": lambda t: f"import sys\nprint(sys._getframe().f_globals and '{MARKER}')",
}


@pytest.mark.parametrize("name", ATTACKS)
def test_the_attack_succeeds_natively_and_fails_on_monty(name: str, target: Target, executor: Executor) -> None:
    code = ATTACKS[name](target)
    unprotected = executor.run(code, backend="native", policy="none", env={"PATH": os.defpath})
    target.reached.clear()
    target.planted.unlink(missing_ok=True)
    protected = executor.run(code, backend="monty", policy="none")
    assert MARKER in unprotected.stdout, unprotected.stderr
    assert MARKER not in protected.stdout + repr(protected.value)  # a traceback may quote the code itself
    assert not protected.ok or protected.stdout == ""
    assert not target.reached.is_set()
    assert not target.planted.exists()


def test_no_variable_of_the_host_is_seen(target: Target, executor: Executor) -> None:
    result = executor.run("import os\nprint(os.getenv('HOST_SECRET'), dict(os.environ))", policy="none")
    assert (result.stdout, MARKER in repr(result)) == ("None {}\n", False)


BOMBS = {
    "a growing list": "x = [0]\nwhile True: x = x + x",
    "a growing text": "x = 'a'\nwhile True: x = x + x",
    "a huge number": "x = 7 ** (10 ** 9)",
    "a shifted number": "x = 1 << (10 ** 12)",
    "a huge range": "x = list(range(10 ** 10))",
    "a padded text": "x = 'a'.ljust(10 ** 11)",
    "a format width": "x = '%' + str(10 ** 10) + 'd'\ny = x % 1",
    "deep recursion": "def f(): return f()\nf()",
    "deep data": "x = []\nfor i in range(10 ** 6): x = [x]\nx",
    "a slow pattern": "import re\nre.match('(a+)+$', 'a' * 40 + 'b')",
    "virtual files": "for i in range(10 ** 6): open('/workspace/f' + str(i), 'w').write('x' * 10 ** 6)",
    "a generator of output": "while True: print('x' * 10 ** 6)",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_ends_by_itself_and_takes_nothing_with_it(name: str, executor: Executor) -> None:
    before = _resident()
    limits = {"time": 2.0, "memory": 64 * MiB, "output_total": 8 * MiB}
    result = executor.run(BOMBS[name], policy="none", limits=limits, files={"a": b""})
    assert result.status.ending == "ran", result.error
    assert result.usage.wall < 10
    assert executor.run("1 + 1").value == 2  # and the next run works
    assert _resident() - before < 200 * MiB, "the bomb went off in our own process"


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
