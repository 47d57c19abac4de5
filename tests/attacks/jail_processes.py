"""Attacks on processes: those of the host, the cell's own init, and ways to outlive the run."""

from __future__ import annotations

from jail_attack import NAIVE, NATIVE, REACHES, SYSCALLS, Attack, without

# If it isn't confined and is root, it first becomes the victim's user, so that it reaches no other user's processes.
# Processes without a handler for SIGURG ignore it.
_HARMLESS = """
import signal
if os.getuid() == 0:
    os.setgroups([])
    os.setresgid(T.guest_uid, T.guest_uid, T.guest_uid)
    os.setresuid(T.guest_uid, T.guest_uid, T.guest_uid)
"""

HOST = [
    Attack(
        name="sees a process of the host",
        code="""
for pid in filter(str.isdigit, os.listdir('/proc')):
    try:
        if f'victim-{T.token}'.encode() in open(f'/proc/{pid}/cmdline', 'rb').read(): breach(pid)
    except OSError:
        continue
""",
        victim=True,
        control=without("proc"),
    ),
    Attack(
        name="signals a process of the host",
        code="import signal\nos.kill(T.victim, signal.SIGUSR1)",
        victim=True,
        control=NATIVE,
        succeeded=lambda seen: bool(seen.hits),
    ),
    Attack(
        name="signals a process of the host from Bash",
        language="bash",
        code="kill -USR1 $victim",
        victim=True,
        control=NATIVE,
        succeeded=lambda seen: bool(seen.hits),
    ),
    Attack(
        name="signals everything",
        code=_HARMLESS + "os.kill(-1, signal.SIGURG)",
        victim=True,
        control=NATIVE,
        succeeded=lambda seen: bool(seen.hits),
    ),
    Attack(
        name="signals every number there could be",
        code=_HARMLESS
        + """
for pid in (*range(T.victim - 50, T.victim + 50), *range(2, 2000)):
    try:
        if pid != os.getpid(): os.kill(pid, signal.SIGURG)
    except OSError:
        continue
""",
        victim=True,
        control=NATIVE,
        succeeded=lambda seen: bool(seen.hits),
    ),
    Attack(
        name="signals a process of the host through a descriptor",
        code="import signal\nsignal.pidfd_send_signal(os.pidfd_open(T.victim), signal.SIGUSR1)",
        victim=True,
        control=NATIVE,
        succeeded=lambda seen: bool(seen.hits),
    ),
    Attack(
        name="has its own death signal a process of the host",
        # A socket's owner, given as a pid, gets a signal when something can be read.
        code="""
import fcntl, signal, socket, time
ours, theirs = socket.socketpair()
fcntl.fcntl(ours, fcntl.F_SETOWN, T.victim)
fcntl.fcntl(ours, 10, signal.SIGUSR1)
fcntl.fcntl(ours, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
theirs.send(b'x')
time.sleep(0.1)
""",
        victim=True,
        control=NATIVE,
        succeeded=lambda seen: bool(seen.hits),
    ),
]

_PARENT = SYSCALLS + "\nparent = os.getppid()\n"

# a process confined by Landlock can't trace processes outside
_INIT = without("seccomp", "memory-of-init", "user", "landlock")

INIT = [
    Attack(
        name="traces its init",
        code=_PARENT + "if call('ptrace', 0x4206, parent, 0, 0) == 0: breach()",  # PTRACE_SEIZE stops nothing
        control=_INIT,
    ),
    Attack(
        name="asks the kernel to trace",
        code=REACHES + "reaches('ptrace', 0x4206, 1, 0, 0) and breach()",
        control=without("seccomp"),
    ),
    Attack(
        name="opens the memory of its init",
        code="open(f'/proc/{os.getppid()}/mem', 'r+b', buffering=0)\nbreach()",
        control=_INIT,
    ),
    Attack(
        name="reads the map of its init's memory",
        code="if open(f'/proc/{os.getppid()}/maps').read(): breach()",
        control=_INIT,
    ),
    Attack(
        name="copies out of its init's memory",
        code=_PARENT
        + """
import struct
here = ctypes.create_string_buffer(16)
for place in (0x400000, 0x200000, 0x1000000):  # where linkers put a program that is not moved
    theirs = struct.pack('QQ', place, 16)
    if call('process_vm_readv', parent, struct.pack('QQ', ctypes.addressof(here), 16), 1, theirs, 1, 0) == 16: breach()
""",
        control=_INIT,
    ),
    Attack(
        name="takes a descriptor from its init",
        code=_PARENT
        + """
handle = os.pidfd_open(parent)
for number in range(64):
    if call('pidfd_getfd', handle, number, 0) >= 0: breach(number)
""",
        control=_INIT,
    ),
    Attack(
        name="lists its init's descriptors",
        code="breach(os.listdir(f'/proc/{os.getppid()}/fd'))",
        control=_INIT,
    ),
    Attack(
        name="goes through its init's root",
        code="breach(os.listdir(f'/proc/{os.getppid()}/root/'))",
        control=_INIT,
    ),
    Attack(
        name="changes what its init may use",
        code=_PARENT
        + """
limits = ctypes.create_string_buffer(16)
if call('prlimit64', parent, 7, None, limits) == 0 and call('prlimit64', parent, 7, limits, None) == 0: breach()
""",
        control=_INIT,
    ),
    Attack(
        name="slows its init down",
        code="""
import time
for way in ('priority', 'group', 'user', 'scheduler', 'affinity'):
    try:
        if way == 'priority': os.setpriority(os.PRIO_PROCESS, 1, 5)
        if way == 'group': os.setpriority(os.PRIO_PGRP, os.getpgid(1), 5)
        if way == 'user': os.setpriority(os.PRIO_USER, os.getuid(), 5)
        if way == 'scheduler': os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))
        if way == 'affinity': os.sched_setaffinity(1, {min(os.sched_getaffinity(0))})
        breach(way)
    except OSError as error:
        print(way, error)
if os.getpriority(os.PRIO_PROCESS, 1) > os.getpriority(os.PRIO_PROCESS, 0): breach()
""",
        control=without("seccomp"),
    ),
    Attack(
        name="puts its init last in the queue for the disk",
        code=SYSCALLS + "if not refused(call('ioprio_set', 1, 1, 3 << 13)): breach()",
        control=without("seccomp"),
    ),
    Attack(
        name="has its init killed first when memory is short",
        code="open(f'/proc/{os.getppid()}/oom_score_adj', 'w').write('1000')\nbreach()",
        control=_INIT,
    ),
    Attack(
        name="compares itself with its init",
        code=SYSCALLS
        + "result = call('kcmp', os.getpid(), os.getppid(), 1, 0, 0)\nif not refused(result): breach(result)",
        control=_INIT,
    ),
    Attack(
        name="moves its init's memory",
        code=REACHES + "for name in ('move_pages', 'migrate_pages', 'process_madvise'):\n"
        "    if reaches(name, 1, 0, 0, 0, 0, 0): breach(name)",
        control=without("seccomp"),
    ),
    Attack(
        name="kills its init",
        code="""
import signal, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGABRT, signal.SIGSEGV, signal.SIGXCPU,
               signal.SIGPIPE, signal.SIGHUP, signal.SIGUSR1, signal.SIGALRM, signal.SIGKILL):
    try:
        os.kill(os.getppid(), number)
    except OSError as error:
        print(error)
time.sleep(0.3)
os._exit(7)
""",
        control=NATIVE,
        succeeded=lambda seen: (seen.status, seen.exit_code) != ("error", 7),
    ),
    Attack(
        name="stops its init",
        code="""
import signal, time
try: os.kill(os.getppid(), signal.SIGSTOP)
except OSError as error: print(error)
time.sleep(0.3)
os._exit(7)
""",
        control=NATIVE,
        limits={"time": 8.0},
        succeeded=lambda seen: (seen.status, seen.exit_code) != ("error", 7),
    ),
]

_DAEMON = """
import signal, time
def detach():
    if os.fork(): return False
    os.setsid()
    if os.fork(): os._exit(0)
    for number in range(1, 32):
        if number not in (signal.SIGKILL, signal.SIGSTOP): signal.signal(number, signal.SIG_IGN)
    null = os.open('/dev/null', os.O_RDWR)
    for fd in range(3): os.dup2(null, fd)
    return True
"""


def _outlives(name: str, code: str) -> Attack:
    return Attack(name=name, code=code, control=NAIVE, succeeded=lambda seen: seen.survivors > 0)


SURVIVING = [
    _outlives(
        "leaves a daemon behind",
        _DAEMON + "if detach(): os.execv('/bin/sleep', [f'sleep-{T.token}', '20'])\ntime.sleep(0.2)",
    ),
    _outlives(
        "leaves a daemon behind that nobody waits for",
        _DAEMON
        + """
import ctypes
ctypes.CDLL(None).prctl(36, ctypes.c_ulong(1), 0, 0, 0)  # orphans come to us, not to init
if detach(): os.execv('/bin/sleep', [f'sleep-{T.token}', '20'])
time.sleep(0.2)
os._exit(0)
""",
    ),
    _outlives(
        "is killed and leaves a daemon behind",
        _DAEMON + "if detach(): os.execv('/bin/sh', ['sh', '-c', 'sleep 20; exit', T.token])\n"
        "time.sleep(0.1)\nos.kill(os.getpid(), signal.SIGKILL)",
    ),
    _outlives(
        "leaves a sibling behind instead of a child",
        SYSCALLS
        + """
import time
if call('clone', 0x8000 | 17, 0, 0, 0, 0) == 0:  # CLONE_PARENT
    null = os.open('/dev/null', os.O_RDWR)
    for fd in range(3): os.dup2(null, fd)
    os.execv('/bin/sleep', [f'sleep-{T.token}', '20'])
time.sleep(0.2)
""",
    ),
    _outlives(
        "leaves a process behind that forks away from whoever kills it",
        _DAEMON
        + """
if detach():
    for _ in range(400):
        if os.fork() == 0: os.execv('/bin/sleep', [f'sleep-{T.token}', '5'])
        time.sleep(0.005)
        if os.fork(): os._exit(0)
time.sleep(0.2)
""",
    ),
    _outlives(
        "leaves a stopped process behind",
        _DAEMON
        + """
if detach():
    if os.fork() == 0: os.execv('/bin/sleep', [f'sleep-{T.token}', '20'])
    os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(0.3)
""",
    ),
]

ATTACKS = [*HOST, *INIT, *SURVIVING]
