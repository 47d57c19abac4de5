"""Which of the attacks on the jail also apply to a lean cell; for each of the others, why not, and what a result says
about it. And attacks that only lean cells must withstand, since they share their namespaces with Redoma.
"""

from __future__ import annotations

from jail_attack import NAIVE, NATIVE, SLOW, SYSCALLS, Attack, raised, without
from jail_suite import ATTACKS

from redoma.backends import linux

_NOWHERE = {
    "lean cells have no namespaces: the results have `pid`, `mount`, `net`, `uts` and `cgroup` in `missing`": (
        *(name for name in ATTACKS if name.startswith("shares the host's ") and name.endswith(" namespace")),
        "learns the host's name",
        "sees the host's network interfaces",
    ),
    "whether a file exists shows, but not what is in it: `filesystem` and `names` are missing": (
        "finds the host's /etc/shadow",
        "finds root's home",
        "asks whether a file of the host exists",
        "reads what the kernel tells of the machine",
        "finds the kernel's memory or its triggers",
        "finds paths of the host in its own memory map",
    ),
    "other runs see its locks on files of the system, and for a moment after its end: `locks` is missing": (
        *(name for name, attack in ATTACKS.items() if attack.beside),
        "finds a lock that an earlier run left in a socket",
    ),
    "they mind that the file system is not read-only: Landlock refuses, see `writes to files of the system`": (
        *(name for name in ATTACKS if name.startswith("writes to ")),
    ),
    "files are on a disk, where they take no memory; how many there may be is the limit on `disk`": (
        "fills its working directory",
        "fills files that have no name any more",
    ),
    "limits on its files are watched every 10 ms, and a run that has passed them is ended": (
        "writes more than it may",
        "reserves space without writing",
        "makes directories without end",
        "makes more files than it may",
    ),
}
_NOT_WITH_REDOMAS_USER = {
    "Redoma may not empty that set: no program gains by it, because of `no_new_privs`": ("has bounding capabilities",),
    "processes are counted every 10 ms, and a run with too many is ended: see `goes on with too many processes`": (
        "starts threads without end",
        "forks without end",
        "forks without end in Bash",
    ),
}

_WITHOUT = without("landlock", "user", "seccomp")
"""Without any boundary, except for the domain that confines signals."""

OWN = [
    Attack(
        name="looks into the directories of other cells",
        code="""
place = os.path.dirname(os.path.dirname(os.getcwd()))
for path in (place, os.path.dirname(os.getcwd()), *(f'{place}/{number}/workspace' for number in range(1, 2000))):
    try:
        if os.listdir(path) is not None and path != os.getcwd(): breach(path)
    except OSError:
        continue
""",
        control=_WITHOUT,
    ),
    Attack(
        name="writes to files of the system",
        code="""
for path in ('/usr/bin/env', '/etc/passwd', os.__file__, sys.executable, T.secret, '/proc/self/oom_score_adj'):
    try:
        os.close(os.open(path, os.O_WRONLY))
        breach(path)
    except OSError as error:
        print(path, error)
""",
        control=NATIVE,
    ),
    Attack(
        name="changes the mode of a file of the host's",
        code="""
before = os.stat(T.file).st_mode
try: os.chmod(T.file, 0o604)
except OSError as error: print(error)
if os.stat(T.file).st_mode != before:
    os.chmod(T.file, before & 0o7777)
    breach()
""",
        control=NATIVE,
    ),
    Attack(
        name="changes the times of a file of the host's",
        code="""
before = os.stat(T.file).st_mtime_ns
try: os.utime(T.file, ns=(1, before + 1000000000))
except OSError as error: print(error)
if os.stat(T.file).st_mtime_ns != before: breach()
""",
        control=NATIVE,
    ),
    Attack(
        name="changes the owner of a file of the host's, or its attributes",
        code="""
before = os.stat(T.file).st_ctime_ns
for step in (lambda: os.chown(T.file, os.getuid(), os.getgid()), lambda: os.setxattr(T.file, 'user.x', b'x')):
    try: step()
    except OSError as error: print(error)
if os.stat(T.file).st_ctime_ns != before: breach()
""",
        control=NATIVE,
    ),
    Attack(
        name="watches what others make in a directory of the host's",
        code="""
import ctypes
library = ctypes.CDLL(None)
watching = library.inotify_init1(0)
if watching >= 0 and library.inotify_add_watch(watching, os.path.dirname(T.file).encode(), 0x100) >= 0: breach()
""",
        control=NATIVE,
    ),
    Attack(
        name="reads the attributes of a file of the host's",
        code="""
for step in (os.listxattr, lambda path: os.getxattr(path, 'user.x')):
    try: breach(step(T.file))
    except OSError as error: print(error)
""",
        control=NATIVE,
    ),
    Attack(
        name="sends a datagram from a pair of sockets to one of the host's",
        code="""
import socket
for kind in (socket.SOCK_DGRAM, socket.SOCK_SEQPACKET, socket.SOCK_STREAM):
    for address in (T.unix, '\\0' + T.abstract):
        try:
            one, other = socket.socketpair(socket.AF_UNIX, kind)
            one.sendto(b'x', address)
            if not other.recv(10): breach(kind)
        except OSError as error:
            print(kind, error)
            if error.errno in (91, 111): breach(kind, 'it got there: the socket there is of another kind')
""",
        control=NATIVE,
    ),
    Attack(
        name="slows a process of the host down",
        code="""
import resource
steps = {
    'affinity': lambda: os.sched_setaffinity(T.victim, os.sched_getaffinity(T.victim)),
    'priority': lambda: os.setpriority(os.PRIO_PROCESS, T.victim, 10),
    'policy': lambda: os.sched_setscheduler(T.victim, os.SCHED_BATCH, os.sched_param(0)),
    'limits': lambda: resource.prlimit(T.victim, resource.RLIMIT_NOFILE, (64, 64)),
}
for name, step in steps.items():
    try:
        step()
        breach(name)
    except OSError as error:
        print(name, error)
""",
        control=NATIVE,
        victim=True,
    ),
    Attack(
        name="uses shared memory of the host's",
        code=SYSCALLS
        + """
made = call('shmget', 0, 4096, 0o1600)
if made >= 0:
    breach(made)
    libc.shmctl(ctypes.c_int(made), ctypes.c_int(0), None)
print(made)
""",
        control=NATIVE,
    ),
    Attack(
        name="reads about other processes",
        code="""
for name in ('environ', 'cmdline', 'maps', 'status', 'fd'):
    for pid in (os.getppid(), T.victim, 1):
        path = f'/proc/{pid}/{name}'
        try:
            os.close(os.open(path, os.O_RDONLY))
            breach(path)
        except OSError as error:
            print(error)
""",
        control=NATIVE,
        victim=True,
    ),
    Attack(
        name="goes on with too many processes",
        code="""
import time
for number in range(80):
    if os.fork() == 0:
        time.sleep(8)
        os._exit(0)
time.sleep(4)
breach(number)
""",
        limits={"processes": 30},
        control=raised(processes=200),
    ),
    Attack(
        name="doubles itself faster than it is counted",
        code="""
import time
ours, theirs = os.pipe()
first = os.getpid()
for _ in range(9): os.fork()
os.write(theirs, b'x')
time.sleep(SECONDS)
if os.getpid() == first and len(os.read(ours, 1000)) > 60: breach()
""".replace("SECONDS", repr(8 * SLOW)),
        limits={"processes": 30},
        control=raised(processes=2000, memory=4 << 30),
    ),
    Attack(
        name="leaves the end of its init unnoticed",
        code="""
import ctypes
if ctypes.CDLL(None).prctl(1, 0, 0, 0, 0) == 0: breach()
""",
        control=NATIVE,
    ),
    Attack(
        name="has a daemon outlive it that its group and session don't show",
        # The control waits for its output to be closed, for 15 seconds on a machine of ordinary speed.
        code="""
import subprocess, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid() if os.fork() == 0 else os._exit(0)
        subprocess.Popen(['sleep', '97' + str(int(T.token[:6], 16))], start_new_session=True)
        os.execvp('sleep', [f'sleep-{T.token}', DAEMON])
    os._exit(0)
time.sleep(0.3)
""".replace("DAEMON", repr(str(60 * SLOW))),
        control=NAIVE,
        succeeded=lambda seen: seen.survivors > 0,
    ),
]
OWN_NAMES = {attack.name for attack in OWN}


def applicable(*, own_user: bool) -> dict[str, Attack]:
    """Return every attack that a lean cell must withstand, with its own user or with Redoma's."""
    waived = {**_NOWHERE, **({} if own_user else _NOT_WITH_REDOMAS_USER)}
    left_out = {name for names in waived.values() for name in names}
    if unknown := left_out - set(ATTACKS):
        raise AssertionError(f"no attack has this name: {unknown}")
    # Before Landlock's version 6 there are no lean cells without a user of their own, not even for a control.
    own = [attack for attack in OWN if attack.control is not _WITHOUT or linux.landlock_abi() >= 6]
    return {name: attack for name, attack in ATTACKS.items() if name not in left_out} | {
        attack.name: attack for attack in own
    }
