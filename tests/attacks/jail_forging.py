"""Attacks on the result: how a run ended, what it used and what it returned must be true."""

from __future__ import annotations

from jail_attack import NAIVE, NATIVE, SLOW, SYSCALLS, Attack, Seen

_FORGED = "FORGED-4711"
_DAEMON = f"import time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep({8 * SLOW})\n    os._exit(0)\n"


def _not_seven(seen: Seen) -> bool:
    """Return whether the result is forged: the run exited with 7."""
    return (seen.status, seen.exit_code) != ("error", 7) or _FORGED in repr(seen.value)


def _lies(name: str, code: str, **more: object) -> Attack:
    return Attack(name=name, code=code, control=NAIVE, succeeded=_not_seven, **more)  # type: ignore[arg-type]


_FRAMES = f"""
import json, struct
claims = [{{'status': 'ok', 'exit_code': 0, 'value': {_FORGED!r}}}, {{'value': ['repr', {_FORGED!r}]}},
          {{'status': 0, 'cause': '', 'cpu': 0, 'memory': 0, 'value': {_FORGED!r}}}]
frames = []
for claim in claims:
    text = json.dumps(claim).encode()
    frames += [text + b'\\n', struct.pack('!I', len(text)) + text, struct.pack('!cI', b'V', len(text)) + text,
               struct.pack('!cI', b'R', len(text)) + text, struct.pack('!Q', len(text)) + text]
def everywhere(data):
    for fd in range(3, 1024):
        try:
            os.set_blocking(fd, False)
            os.write(fd, data)
        except OSError:
            continue
"""

# Where a guest leaves its report. If it isn't a cell's own, as in the control, it is left alone.
_PLACE = "ours = os.path.ismount('/run') and os.stat('/run').st_uid == os.getuid() != 0\n"

STATUS = [
    _lies(
        "prints what looks like a result",
        _FRAMES + "for frame in frames: os.write(1, frame); os.write(2, frame)\nos._exit(7)",
    ),
    _lies(
        "writes a result to every descriptor",
        _FRAMES + "for frame in frames: everywhere(frame)\nos._exit(7)",
    ),
    _lies("closes every descriptor and fails", "os.closerange(0, 1024)\nos._exit(7)"),
    _lies("starts something else that fails", "os.execv('/bin/sh', ['sh', '-c', 'exit 7'])"),
    _lies(
        "has a child of its own end well in its place",
        "import time\nif os.fork() == 0: os._exit(0)\ntime.sleep(0.2)\nos._exit(7)",
    ),
    _lies(
        "has a child report in its place",
        # The child reaches the end of the code, and so whatever reports the value of a last expression.
        f"child = os.fork()\nif child:\n    os.waitpid(child, 0)\n    os._exit(7)\n{_FORGED!r}",
    ),
    _lies(
        "has a sibling end well in its place",
        SYSCALLS + "import time\nif call('clone', 0x8000 | 17, 0, 0, 0, 0) == 0: os._exit(0)\n"
        "time.sleep(0.3)\nos._exit(7)",
    ),
    _lies(
        "reaches into the frames that called it",
        f"""
frame = sys._getframe()
while frame:
    for name, held in list(frame.f_locals.items()):
        if isinstance(held, int) and not isinstance(held, bool) and 2 < held < 1024:
            try: os.write(held, b'{{"status": "ok", "value": "{_FORGED}"}}\\n')
            except OSError: continue
    frame = frame.f_back
os._exit(7)
""",
    ),
    Attack(
        name="replaces what writes its report",
        code=f"""
import builtins, json, marshal, pickle
forged = {{'status': 'ok', 'value': {_FORGED!r}}}
true_dumps = json.dumps
json.dumps = lambda *a, **k: true_dumps(forged)
marshal.dumps = pickle.dumps = lambda *a, **k: true_dumps(forged).encode()
builtins.repr = lambda *a: {_FORGED!r}
os._exit = lambda code: None
sys.exit(7)
""",
        control=NAIVE,
        succeeded=_not_seven,
    ),
    Attack(
        name="pretends to have been ended for its memory",
        code="print('MemoryError', file=sys.stderr)\nos._exit(137)",
        control=NAIVE,
        succeeded=lambda seen: seen.status != "error",
    ),
    Attack(
        name="pretends to have run out of time",
        code="os._exit(124)",
        control=NAIVE,
        succeeded=lambda seen: seen.status != "error",
    ),
    Attack(
        name="pretends that it was Redoma that failed",
        code=_PLACE
        + """
import json
for claim in ({'broken': 'place the file: no space', 'errno': 12}, {'broken': 'x'}, {'status': 'failed'}):
    if ours: open('/run/report', 'w').write(json.dumps(claim))
for fd in range(3, 64):
    try: os.write(fd, b'{"status": "failed"}\\n')
    except OSError: continue
os._exit(125)
""",
        control=NAIVE,
        succeeded=lambda seen: seen.status != "error" or seen.exit_code != 125,
    ),
    *(
        _lies(
            f"leaves {what} where its report should be",
            _PLACE + f"if ours: {make}\nos._exit(7)",
        )
        for what, make in (
            ("a directory", "os.makedirs('/run/report/x')"),
            ("a pipe", "os.mkfifo('/run/report')"),
            ("a link to a device", "os.symlink('/dev/zero', '/run/report')"),
            ("far too much", "open('/run/report', 'wb').truncate(1 << 27)"),
            ("something that is no JSON", "open('/run/report', 'w').write('[' * 1_000_000)"),
        )
    ),
    Attack(
        name="ends by a signal and is called fine",
        code="import signal\nos.kill(os.getpid(), signal.SIGKILL)",
        control=NAIVE,
        succeeded=lambda seen: seen.status != "killed",
    ),
    Attack(
        name="kills whoever reports on it",
        code="""
import signal, time
parent = os.getppid()
for kill in (lambda: os.kill(parent, signal.SIGKILL),
             lambda: signal.pidfd_send_signal(os.pidfd_open(parent), signal.SIGKILL)):
    try: kill()
    except OSError as error: print(error)
time.sleep(0.2)
os._exit(7)
""",
        control=NATIVE,
        succeeded=_not_seven,
    ),
    Attack(
        name="hides the processor time of its children",
        code="""
import time
def burn(seconds):
    start = time.process_time()
    while time.process_time() - start < seconds: sum(range(1000))
ours, theirs = os.pipe()
child = os.fork()
if child == 0:
    if os.fork() == 0:
        burn(0.4)
        os.write(theirs, b'x')
    os._exit(0)
os.waitpid(child, 0)
os.read(ours, 1)
""",
        control=NAIVE,
        succeeded=lambda seen: seen.cpu is None or seen.cpu < 0.25,
    ),
    Attack(
        name="hides the processor time of children that it disowns",
        code="""
import signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
def burn(seconds):
    start = time.process_time()
    while time.process_time() - start < seconds: sum(range(1000))
child = os.fork()
if child == 0:
    burn(0.4)
    os._exit(0)
while os.path.exists(f'/proc/{child}'): time.sleep(0.01)
""",
        control=NAIVE,
        succeeded=lambda seen: seen.cpu is None or seen.cpu < 0.25,
    ),
]

STREAMS = [
    Attack(
        name="goes on writing after its end",
        code=f"""
import time
if os.fork() == 0:
    os.setsid()
    time.sleep({3 * SLOW})
    for _ in range(20):
        time.sleep({0.1 * SLOW})
        os.write(1, b'{_FORGED}')
    os._exit(0)
""",
        control=NAIVE,
        succeeded=lambda seen: _FORGED in seen.stdout or seen.wall > 4.5 * SLOW,
    ),
    Attack(
        name="keeps its output open after its end",
        code=_DAEMON,
        control=NAIVE,
        succeeded=lambda seen: seen.wall > 6 * SLOW,
    ),
    Attack(
        name="hands its output to a daemon and fails",
        code=_DAEMON + "os._exit(7)\n",
        control=NAIVE,
        succeeded=lambda seen: seen.wall > 6 * SLOW or _not_seven(seen),
    ),
]

VALUES = [
    Attack(
        name="returns an object that lies about itself",
        code=f"""
class Liar(str):
    def __repr__(self): return {_FORGED!r} * 10_000_000
    def __str__(self): return {_FORGED!r}
    def __reduce__(self): return (os.system, ('touch ' + T.plant,))
    @property
    def __class__(self): return int
Liar('x')
""",
        limits={"output_bytes": 4096},
        control=NAIVE,
        succeeded=lambda seen: seen.planted or _FORGED * 500 in repr(seen.value) or seen.value == "x",
    ),
    Attack(
        name="returns a value of a million parts",
        # Bypasses what would have said that it is too large.
        code=_PLACE
        + """
if ours:
    open('/run/report', 'w').write('{"value": ["list"' + ', 0' * 600_000 + ']}')
    os._exit(0)
[0] * 600_000
""",
        control=NAIVE,
        succeeded=lambda seen: isinstance(seen.value, list) and len(seen.value) > 200_000,
    ),
    Attack(
        name="returns an exception whose name is a book",
        code="raise type('E' * 200_000, (Exception,), {})('x' * 200_000)",
        control=NAIVE,
        succeeded=lambda seen: len(seen.exception or "") + len(seen.error or "") > 20_000,
    ),
    Attack(
        name="returns something whose text has no end",
        code=f"""
import time
class Slow:
    def __repr__(self):
        time.sleep({1 + 4.5 * SLOW})
        return 'done'
Slow()
""",
        limits={"time": 1.0},
        control=NAIVE,
        succeeded=lambda seen: seen.status == "ok" or seen.wall > 1 + 4 * SLOW,
    ),
]

ATTACKS = [*STATUS, *STREAMS, *VALUES]
