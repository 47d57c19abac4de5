"""Attacks on the limits of time, output, disk, processes and descriptors. Each takes a little more than allowed."""

from __future__ import annotations

from jail_attack import SLOW, STARTED, Attack, Control, only_with_xattrs_on_tmpfs, raised, without

MiB = 1 << 20
_FILE = """
def fill(path, size):
    with open(path, 'wb') as file:
        for _ in range(size >> 20): file.write(os.urandom(4096) * 256)
"""

_TIMES = min(SLOW, 4)
"""On an emulated machine a cell may have used more than 0.3 s of processor time before the attack begins."""
_BURN = f"""
import time
def burn(seconds):
    start = time.process_time()
    while time.process_time() - start < seconds * {_TIMES}: sum(range(1000))
"""
_CPU = {"cpu": 0.3 * _TIMES, "time": 40.0 * _TIMES}
_MORE_CPU = raised(cpu=20.0 * _TIMES)

TIME = [
    Attack(name="burns the processor", code=_BURN + "burn(1.5)\nbreach()", limits=_CPU, control=_MORE_CPU),
    Attack(
        name="burns the processor in many children",
        code=_BURN
        + "children = [os.fork() for _ in range(1)]\n"
        + "for _ in range(5):\n    if os.fork() == 0:\n        burn(0.35)\n        os._exit(0)\n"
        + "if children[0] == 0: os._exit(0)\n"
        + "for _ in range(6): os.wait()\nbreach()",
        limits=_CPU,
        control=_MORE_CPU,
    ),
    Attack(
        name="burns the processor in children that it disowns",
        # The kernel adds a child's time to its parent's when it is waited for, which doesn't happen for these.
        code=_BURN
        + """
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for _ in range(5):
    child = os.fork()
    if child == 0:
        burn(0.35)
        os._exit(0)
    while os.path.exists(f'/proc/{child}'): time.sleep(0.005)
breach()
""",
        limits=_CPU,
        control=_MORE_CPU,
    ),
    Attack(
        name="burns the processor while its init is kept busy",
        code=_BURN
        + f"""
import signal
if os.fork() == 0:
    end = time.monotonic() + {10 * _TIMES}
    while time.monotonic() < end:
        try: os.kill(1, signal.SIGCHLD)
        except OSError: pass
    os._exit(0)
burn(1.5)
breach()
""",
        limits=_CPU,
        control=_MORE_CPU,
    ),
    Attack(
        name="sleeps past its time and ignores every signal",
        code=f"""
import signal, time
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): continue
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
# In steps: a machine that stands still for a while doesn't take them with it.
for _ in range({40 * (1 + SLOW)}): time.sleep(0.05)
breach()
""",
        limits={"time": 1.0},
        control=raised(time=30.0 * SLOW),
    ),
    Attack(
        name="sleeps past its time in Bash and traps every signal",
        language="bash",
        code="trap '' TERM INT HUP QUIT XCPU ALRM; "
        f"for ((i = 0; i < {20 * (1 + SLOW)}; i++)); do sleep 0.1; done; breach",
        limits={"time": 1.0},
        control=raised(time=30.0 * SLOW),
    ),
    Attack(
        name="gives its time to a child that ignores every signal",
        code=f"""
import signal, time
if os.fork() == 0:
    os.setsid()
    for number in range(1, 32):
        if number not in (9, 19): signal.signal(number, signal.SIG_IGN)
    for _ in range({40 * (1 + SLOW)}): time.sleep(0.05)
    breach()
os._exit(os.wait()[1] and 1)
""",
        limits={"time": 1.0},
        control=raised(time=30.0 * SLOW),
    ),
    Attack(
        name="stops itself for ever",
        code="import signal\nos.kill(os.getpid(), signal.SIGSTOP)\n",
        limits={"time": 1.0},
        control=raised(time=7.0 * SLOW),
        succeeded=lambda seen: seen.wall > 6.5 * SLOW,
    ),
    Attack(
        name="raises its own limits",
        code="""
import resource
for name in ('RLIMIT_NOFILE', 'RLIMIT_FSIZE', 'RLIMIT_CORE', 'RLIMIT_CPU', 'RLIMIT_NPROC'):
    which = getattr(resource, name)
    soft, hard = resource.getrlimit(which)
    if hard == resource.RLIM_INFINITY and name in ('RLIMIT_FSIZE', 'RLIMIT_CORE'): breach(name)
    try:
        resource.setrlimit(which, (hard + 1, hard + 1))
        if hard > 0: breach(name)
    except (OSError, ValueError) as error:
        print(name, error)
with open('big', 'wb') as file: file.truncate(40 << 20)
breach('a file as large as it likes')
""",
        limits={"file_size": 32 * MiB},
        control=raised(file_size=64 * MiB),
    ),
]

_FLOOD = {"output_total": MiB // 4}
_MORE_OUTPUT = raised(output_total=64 * MiB)


def _floods(name: str, code: str, control: Control = _MORE_OUTPUT) -> Attack:
    return Attack(name=name, code=code, limits=_FLOOD, control=control, succeeded=lambda seen: seen.status == "ok")


OUTPUT = [
    _floods("floods stdout", "for _ in range(4000): print('x' * 1000)"),
    # It also reports on stderr that it has started: an engine may pass that stream on first.
    _floods(
        "floods stderr",
        f"print({STARTED!r}, file=sys.stderr)\nfor _ in range(4000): print('x' * 1000, file=sys.stderr)",
    ),
    _floods("floods without a newline", "for _ in range(64): os.write(1, b'x' * 65536)"),
    _floods("floods both streams at once", "for _ in range(64): os.write(1, b'x' * 32768); os.write(2, b'y' * 32768)"),
    _floods(
        "floods from many children",
        "for _ in range(8):\n    if os.fork() == 0:\n        for _ in range(16): os.write(1, b'x' * 32768)\n"
        "        os._exit(0)\nfor _ in range(8): os.wait()",
    ),
    _floods(
        "floods through a descriptor that it opened anew",
        "fd = os.open('/proc/self/fd/1', os.O_WRONLY)\nfor _ in range(64): os.write(fd, b'x' * 65536)",
        Control(where="native", limits=_MORE_OUTPUT.limits),
    ),
    _floods(
        "floods by splicing a file into its output",
        "open('x', 'wb').write(b'x' * (4 << 20))\nfile = os.open('x', os.O_RDONLY)\n"
        "while os.splice(file, 1, 65536): pass",
    ),
]

_DISK = {"disk": 8 * MiB, "files": 200}

DISK = [
    Attack(
        name="writes more than it may",
        code=_FILE + "for number in range(12): fill(f'f{number}', 1 << 20)\nbreach()",
        limits=_DISK,
        control=raised(disk=64 * MiB),
    ),
    Attack(
        name="spreads what it writes over every place",
        code=_FILE
        + """
for place in ('/workspace', '/tmp', '/dev/shm', '/var/tmp'):
    if os.path.isdir(place): fill(f'{place}/redoma-{T.token}', 5 << 20)
breach()
""",
        limits=_DISK,
        control=raised(disk=64 * MiB),
    ),
    Attack(
        name="reserves space without writing",
        code="file = os.open('x', os.O_RDWR | os.O_CREAT)\nos.posix_fallocate(file, 0, 12 << 20)\nbreach()",
        limits=_DISK,
        control=raised(disk=64 * MiB),
    ),
    Attack(
        name="keeps bytes in attributes of files",
        absent=only_with_xattrs_on_tmpfs,
        code="""
kept = 0
for number in range(150):
    path = f'/tmp/redoma-{T.token}-{number}'
    open(path, 'w').close()
    for attribute in range(8):
        try:
            os.setxattr(path, f'user.a{attribute}', os.urandom(1024) * 60)
            kept += 60 << 10
        except OSError as error:
            print(error)
            break
print(kept)
if kept > 12 << 20: breach(kept)
""",
        limits=_DISK,
        control=raised(disk=128 * MiB, files=100_000),
    ),
    Attack(
        name="makes more files than it may",
        code="for number in range(400): open(f'f{number}', 'w').close()\nbreach()",
        limits=_DISK,
        control=raised(files=1000),
    ),
    Attack(
        name="makes more links than it may",
        code="for number in range(400): os.symlink('x' * 1000, f'/tmp/{T.token}-{number}')\nbreach()",
        limits=_DISK,
        control=raised(files=1000),
    ),
    Attack(
        name="makes directories without end",
        code="for _ in range(400):\n    os.mkdir('d')\n    os.chdir('d')\nbreach()",
        limits=_DISK,
        control=raised(files=1000),
    ),
    Attack(
        name="makes a file larger than it may",
        code="import signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "with open('big', 'wb') as file: file.truncate(64 << 20)\nbreach()",
        limits={"file_size": 32 * MiB},
        control=raised(file_size=128 * MiB),
    ),
    Attack(
        name="writes far behind the end of a file",
        code="import signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "with open('big', 'wb') as file:\n    file.seek(64 << 20)\n    file.write(b'x')\nbreach()",
        limits={"file_size": 32 * MiB},
        control=raised(file_size=128 * MiB),
    ),
]

COUNTS = [
    Attack(
        name="forks without end",
        code="""
import time
for number in range(80):
    if os.fork() == 0:
        time.sleep(2)
        os._exit(0)
breach(number)
""",
        limits={"processes": 30},
        control=raised(processes=200),
    ),
    Attack(
        name="forks without end in Bash",
        language="bash",
        code=f"set -e; for ((i = 0; i < 80; i++)); do sleep {5 * SLOW} & done; [ $(jobs -r | wc -l) -gt 60 ] && breach",
        limits={"processes": 30},
        control=raised(processes=200),
    ),
    Attack(
        name="starts threads without end",
        code="""
import threading, time
for number in range(80): threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
breach(number)
""",
        limits={"processes": 30},
        control=raised(processes=200),
    ),
    Attack(
        name="leaves the dead unburied",
        code="""
import time
for number in range(80):
    if os.fork() == 0: os._exit(0)
time.sleep(0.3)
breach()
""",
        limits={"processes": 30},
        control=raised(processes=200),
    ),
    Attack(
        name="opens files without end",
        code="held = [os.open('/dev/null', os.O_RDONLY) for _ in range(200)]\nbreach(len(held))",
        limits={"open_files": 64},
        control=raised(open_files=400),
    ),
    Attack(
        name="takes the file watches of its user",
        code="""
import ctypes
library = ctypes.CDLL(None)
breach() if all(library.inotify_init1(0) >= 0 for _ in range(40)) else None
""",
        control=without("user-namespaces"),
    ),
    Attack(
        name="opens files without end in Bash",
        language="bash",
        code='for ((i = 10; i < 200; i++)); do eval "exec $i</dev/null" || exit 1; done; breach',
        limits={"open_files": 64},
        control=raised(open_files=400),
    ),
]

ATTACKS = [*TIME, *OUTPUT, *DISK, *COUNTS]
