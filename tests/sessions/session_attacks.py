"""What a session's earlier code tries against what comes later. A program of its own, so that the same attacks can be
made by root and by an unprivileged user: it prints one line of JSON for each.

An attack is a first run, and what must be true afterwards of the second, of another session and of us. Attacks only try
to be believed, or to keep us waiting: where one succeeds nothing is broken.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from redoma import BackendError, Config, Executor, Result, Session
from redoma.config import AuditConfig, SessionsConfig

# Everything that this process, or the driver above it, has open; frames of many kinds.
_EVERYWHERE = """
import os, json, struct
def frame(head, body=b''):
    head = json.dumps(head).encode()
    return struct.pack('!II', len(head), len(body)) + head + body
def everywhere(data):
    for pid in (os.getpid(), os.getppid()):
        try: names = os.listdir(f'/proc/{pid}/fd')
        except OSError: names = []
        for name in names:
            try:
                number = os.open(f'/proc/{pid}/fd/{name}', os.O_WRONLY | os.O_NONBLOCK)
                os.write(number, data)
            except OSError: continue
    for number in range(3, 256):
        try:
            os.set_blocking(number, False)
            os.write(number, data)
        except OSError: continue
"""


# Says, again and again, what the file says in which the driver looks before it interrupts a run.
_STATE = """
import os, struct, threading, time
def lie():
    while True:
        for number in range(100, 256):
            try: os.pwrite(number, struct.pack('!Q?', {run}, False), 0)
            except OSError: continue
threading.Thread(target=lie, daemon=True).start()
"""


class Attack(NamedTuple):
    name: str
    first: str
    then: Callable[[Session], Result | None]
    holds: Callable[[Result | None], bool]
    survives: bool | None = True
    """Whether the session must be alive afterwards; None if it may have ended."""
    seconds: float = 10.0
    """How long the first run may take."""


def run(code: str, **options: object) -> Callable[[Session], Result | None]:
    return lambda session: session.run(code, **options)  # type: ignore[arg-type]


def command(line: str, **options: object) -> Callable[[Session], Result | None]:
    return lambda session: session.command(line, **options)  # type: ignore[arg-type]


def interrupted_and_then(code: str) -> Callable[[Session], Result | None]:
    """The run after one that was interrupted just as it ended."""

    def then(session: Session) -> Result | None:
        run = session.stream("import time; print(1, flush=True); time.sleep(0.3)")
        for _ in run:
            session.interrupt()
        return session.run(code, timeout=5)

    return then


def unanswered(ask: Callable[[Session], object]) -> Callable[[Session], Result | None]:
    """Something that may fail, and must not wait."""

    def then(session: Session) -> Result | None:
        try:
            ask(session)
        except (OSError, BackendError):
            return None
        return None

    return then


def in_a_copy(meanwhile: str, code: str) -> Callable[[Session], Result | None]:
    """What a copy finds when its parent has run something since."""

    def then(session: Session) -> Result | None:
        (copy,) = session.fork()
        with copy:
            session.run(meanwhile)
            return copy.run(code)

    return then


def never_ok(result: Result | None) -> bool:
    return result is not None and result.status in ("timeout", "output")


def anything(result: Result | None) -> bool:
    return True


ATTACKS = [
    Attack(
        "writes to all that its copy began with",
        "import os, signal\nx = bytearray(b'as it was' * 10_000)\nopen('/tmp/file', 'wb').write(x)",
        in_a_copy(
            "x[:] = b'X' * len(x)\nopen('/tmp/file', 'wb').write(x)\n"
            "for pid in filter(str.isdigit, os.listdir('/proc')):\n"
            "    if int(pid) not in (1, 2, os.getpid(), os.getppid()): os.kill(int(pid), signal.SIGKILL)",
            "x == open('/tmp/file', 'rb').read() == b'as it was' * 10_000",
        ),
        lambda result: result is not None and result.value is True,
    ),
    Attack(
        "ignores Ctrl-C for the runs that follow",
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)",
        run("while True: pass", timeout=0.3),
        never_ok,
        survives=False,
    ),
    Attack(
        "catches whatever interrupts it",
        # Ten deep: an interrupt that comes while one of them handles another is caught by the next.
        "def for_ever(depth=9):\n    while True:\n        try:\n"
        "            for_ever(depth - 1) if depth else sum(range(99))\n        except BaseException: pass",
        run("for_ever()", timeout=0.3),
        never_ok,
        survives=False,
    ),
    Attack(
        "says at once that a run has ended, and goes on",
        _EVERYWHERE + "import threading, time\n"
        "def lie():\n"
        "    while True:\n"
        "        for run in range(1, 9): everywhere(frame({'is': 'done', 'run': run}, b'\"FORGED\"'))\n"
        "        time.sleep(0.01)\n"
        "threading.Thread(target=lie, daemon=True).start()",
        run("1", timeout=3),
        anything,
        survives=None,
    ),
    Attack(
        "sends no frames at all into every descriptor",
        _EVERYWHERE + "for _ in range(20): everywhere(b'\\xff' * 4096)",
        run("1", timeout=3),
        anything,
        survives=None,
    ),
    Attack(
        "announces a frame of gigabytes",
        _EVERYWHERE + "everywhere(struct.pack('!II', 2**31, 2**31) + b'x' * 100)",
        run("1", timeout=3),
        anything,
        survives=None,
    ),
    Attack(
        "kills the driver",
        "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)",
        run("1", timeout=3),
        anything,
        survives=None,
    ),
    Attack(
        "stops the driver",
        "import os, signal\nos.kill(os.getppid(), signal.SIGSTOP)",
        command("true", timeout=0.5),
        lambda result: result is None or not result.ok,
        survives=None,
        seconds=1.0,
    ),
    Attack(
        "stops the driver, so that nobody can interrupt the next run",
        "import os, signal\nos.kill(os.getppid(), signal.SIGSTOP)",
        run("while True: pass", timeout=0.3),
        never_ok,
        survives=False,
        seconds=1.0,
    ),
    Attack(
        "notes for the driver that no run goes on",
        _STATE.format(run=2**60),
        run("while True: pass", timeout=0.3),
        never_ok,
        survives=False,
    ),
    Attack(
        "notes for the driver that no run has begun yet",
        _STATE.format(run=0),
        interrupted_and_then("1"),
        lambda result: result is not None and (result.ok or result.status == "failed"),  # but never interrupted
        survives=None,
    ),
    Attack(
        "takes the runs that come after it",
        "import os, socket, threading\n"
        "def take(number):\n"
        "    while True:\n"
        "        try: os.read(number, 65536)\n"
        "        except OSError: return\n"
        "for number in range(100, 256): threading.Thread(target=take, args=(number,), daemon=True).start()",
        run("1", timeout=0.5),
        lambda result: result is None or result.status != "ok" or result.value == 1,
        survives=None,
    ),
    Attack(
        "makes its pipes larger, and prints for ever",
        "import fcntl, subprocess\n"
        "for number in (1, 2):\n"
        "    try: fcntl.fcntl(number, 1031, 1 << 20)\n"
        "    except OSError: pass\n"
        "subprocess.Popen(['sh', '-c', 'while :; do echo flood; echo flood >&2; done'])",
        run("import time; time.sleep(20)", limits={"output_total": 1 << 16}),
        never_ok,
    ),
    Attack(
        "says in its copy's name that a run has ended",
        _EVERYWHERE,
        in_a_copy(
            "for run in range(1, 99): everywhere(frame({'is': 'done', 'run': run}, b'\"FORGED\"'))",
            "import time; time.sleep(0.2); 'own'",
        ),
        lambda result: result is not None and result.value == "own",
        survives=None,
    ),
    Attack(
        "prints for ever from a process that it left behind",
        "import subprocess\nsubprocess.Popen(['sh', '-c', 'while :; do echo flood; done'])",
        run("import time; time.sleep(20)", limits={"output_total": 1 << 16}),
        never_ok,
    ),
    Attack(
        "replaces what its result is made with",
        "import builtins, json, sys\njson.dumps = builtins.repr = lambda *_, **__: 'x' * 10**7\n"
        "import os\nos.getpid = lambda: 1",
        run("object()", timeout=2),
        anything,
        survives=None,
    ),
    Attack(
        "returns a value whose keys collide",
        "import sys\nframe = sys._getframe()\nwhile 'values' not in frame.f_globals: frame = frame.f_back\n"
        "keys = [['int', hex(i * (2**61 - 1))] for i in range(90_000)]\n"
        "frame.f_globals['values'].encode = lambda *_: ['set', *keys]",
        run("1", timeout=30),
        lambda result: result is not None and result.ok and result.value is None,
        survives=None,
    ),
    Attack(
        "takes more memory than the session may",
        "kept = 1",
        run("a = bytearray(1 << 30)\na[::4096] = b'1' * len(a[::4096])", timeout=15),
        lambda result: result is not None and result.status == "memory",
        survives=False,
    ),
    Attack(
        "leaves as many processes as it can",
        "import os, time\nfor _ in range(500):\n    try: child = os.fork()\n    except OSError: break\n"
        "    if child == 0:\n        time.sleep(60)\n        os._exit(0)",
        run("1 + 1", timeout=30),
        lambda result: result is not None and result.value == 2,
    ),
    Attack(
        "puts a pipe where a file is read",
        "import os; os.mkfifo('pipe')",
        unanswered(lambda session: session.files.read("pipe")),
        anything,
    ),
    Attack(
        "puts links to what is not there for it where files are read",
        "import os\nfor i, target in enumerate(['/etc/shadow', '/proc/1/environ', '/dev/zero', 'loop3']):\n"
        "    os.symlink(target, f'loop{i}')",
        unanswered(lambda session: [session.files.read(f"loop{i}", max_bytes=1 << 20) for i in range(4)]),
        anything,
    ),
    Attack(
        "swaps a directory for a link while files are written",
        "import subprocess, os\nos.mkdir('d')\nsubprocess.Popen(['sh', '-c', "
        "'while :; do mv d e; ln -s /etc d; rm d; mv e d; done'], stderr=subprocess.DEVNULL)",
        unanswered(lambda session: [session.files.write(f"d/{i}", "x") for i in range(30)]),
        anything,
    ),
]


def verdict(executor: Executor, bystander: Session, attack: Attack) -> dict[str, object]:
    start = time.monotonic()
    with executor.session() as session:
        session.run(attack.first, timeout=attack.seconds)
        result = attack.then(session)
        took = time.monotonic() - start
        alive = session.alive and session.run("'alive'", timeout=30 if attack.survives else 5).value == "alive"
        mine = bystander.run("secret").value
    return {
        "name": attack.name,
        "holds": attack.holds(result),
        "alive": alive,
        "as_it_should": attack.survives is None or alive == attack.survives,
        "bystander": mine,
        "seconds": took,
        "result": None if result is None else f"{result.status} {result.error}",
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as state:
        audit = AuditConfig(directory=Path(state) / "audit")
        # A session that must survive has time to end a run that was interrupted; one that must end has little.
        hasty, patient = (Config(audit=audit, sessions=SessionsConfig(grace=grace)) for grace in (0.6, 60.0))
        with Executor(hasty) as brief, Executor(patient) as executor, executor.session() as bystander:
            bystander.run("secret = 4711")
            for attack in ATTACKS:
                told = verdict(executor if attack.survives else brief, bystander, attack)
                print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
