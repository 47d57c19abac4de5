"""An attack on the jail as data: code that reports when it succeeded, and where it would succeed.

Every attack is harmless where it succeeds: it is bounded in size and time, it targets only what the stage made for it,
and if a system call would do harm, it tests whether the call *would* reach the kernel (see `REACHES`).
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from redoma.backends.jail.kernels import TMPFS_XATTRS, version_of
from redoma.models import Language

SLOW = int(os.environ.get("REDOMA_SLOW", "1"))
"""How many times slower this machine is than the one for which the attacks' times are meant; more than 1 for an
emulated one.
"""
CONTROLS = os.environ.get("REDOMA_CONTROLS", "all")
"""Which attacks are also seen to succeed. `limits`: only those that succeed with higher limits, for a user as whom all
of them were seen to succeed on the same kernel. A control group changes who limits memory, time and processes. It
doesn't matter to an attack that succeeds because a layer is left out, or that isn't in a cell at all.
"""
MARKER = "BREACH-4711"
STARTED = "attack-started"


@dataclass(frozen=True, kw_only=True)
class Control:
    """Where the attack is seen to succeed: what stops it in the jail is removed, and nothing else."""

    where: Literal["jail", "native", "naive", "reused"] = "jail"
    """`jail`: with layers left out or limits raised. `native`: no boundary. `naive`: a warm interpreter that forks,
    leaks and trusts its guests (`jail_naive`). `reused`: one cell for what should have been two.
    """
    without: frozenset[str] = frozenset()
    limits: Mapping[str, float] = field(default_factory=dict)
    root: bool = False
    """Whether only the host's root can do this anywhere: as another user it doesn't succeed."""


NATIVE = Control(where="native")
NAIVE = Control(where="naive")
REUSED = Control(where="reused")


def without(*layers: str) -> Control:
    return Control(without=frozenset(layers))


def raised(**limits: float) -> Control:
    return Control(limits=limits)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What one run did, as its caller and the host saw it."""

    status: str
    exit_code: int | None = None
    stdout: str = ""
    stderr: str = ""
    value: Any = None
    exception: str | None = None
    error: str | None = None
    wall: float = 0.0
    cpu: float | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    survivors: int = 0
    """Processes of the run that were alive after it ended."""
    planted: bool = False
    """Whether the file that the attack should leave on the host is there."""
    memory_layer: str = ""
    """How memory was limited, according to the result."""
    hits: tuple[str, ...] = ()
    """Signals that reached the victim, a process of the host, and who sent them."""
    met: bool = False
    """Whether the other run of the attack was alive at the same time."""

    @property
    def says_so(self) -> bool:
        return MARKER in self.stdout

    def __str__(self) -> str:
        shown = {name: value for name, value in vars(self).items() if value and name not in ("files", "left_out")}
        return ", ".join(f"{name}={str(value)[:600]!r}" for name, value in shown.items())


@dataclass(frozen=True, kw_only=True)
class Attack:
    name: str
    code: str
    control: Control
    language: Language = "python"
    limits: Mapping[str, float] = field(default_factory=dict)
    before: str = ""
    """What an earlier run plants; then `code` looks for it, in more runs than there were armed cells."""
    beside: str = ""
    """What another run does while `code` runs. Both call `lasting(seconds)`, which shows whether they overlapped."""
    outputs: tuple[str, ...] = ()
    victim: bool = False
    """Whether there is a process of the host to signal."""
    succeeded: Callable[[Seen], bool] = lambda seen: seen.says_so
    kernels_own: bool = False
    """Whether it targets memory of the kernel, which belongs to no process: a control group counts it. Without a group
    it can't be stopped; then the result must say that it is not counted.
    """
    alike: bool = False
    """Whether it succeeds if two runs print the same."""
    absent: Callable[[], str] = lambda: ""
    """Why it doesn't exist on this machine; empty if it does."""


def only_on_x86() -> str:
    return "" if platform.machine() == "x86_64" else f"there is no such thing on {platform.machine()}"


def only_with_ipv6() -> str:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return ""
    except OSError as error:
        return f"this machine has no IPv6: {error}"


def only_with_a_route() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            any_socket.connect(("192.0.2.1", 9))  # an unassigned address; nothing is sent
        except OSError as error:
            return f"this machine has no way out of its network itself: {error}"
    return ""


def only_with_xattrs_on_tmpfs() -> str:
    return TMPFS_XATTRS.without if TMPFS_XATTRS.is_missing(platform.release(), root=False) else ""


def only_where_anybody_may_count() -> str:
    with open("/proc/sys/kernel/perf_event_paranoid") as file:
        return "perf_event_paranoid keeps everybody from it" if int(file.read()) > 2 else ""


def only_with_secret_memory() -> str:
    with open("/proc/cmdline") as file:
        off = "secretmem.enable=y" not in file.read() and version_of(platform.release()) < (6, 5)
    return "before Linux 6.5 secret memory is switched off" if off else ""


def text_of(attack_code: str, language: Language, targets: Mapping[str, Any]) -> str:
    """Return the attack with its targets. It first reports that it runs: one that failed before would prove nothing."""
    if language == "bash":
        values = "".join(f"{name}={shlex.quote(str(value))}\n" for name, value in targets.items())
        return f'echo {STARTED}\nbreach() {{ echo {MARKER} "$@"; }}\n{values}{attack_code}'
    return (
        f"import os, sys, types\nprint({STARTED!r}, flush=True)\n"
        f"T = types.SimpleNamespace(**{json.loads(json.dumps(dict(targets)))!r})\n"
        f"def breach(*why): print({MARKER!r}, *why, flush=True)\n{attack_code}"
    )


LASTING = """
import time
def lasting(seconds):
    'Go on for so long, and say from when to when by the clock that all runs have.'
    begin = time.monotonic()
    while (now := time.monotonic()) < begin + seconds:
        yield now
        time.sleep(0.02)
    print('lasted', begin, now, flush=True)
"""
"""For two concurrent runs. `met` reads what they print."""


def met(one: Seen, other: Seen) -> bool:
    """Return whether two runs overlapped for a while."""
    spans = [re.search(r"^lasted (\S+) (\S+)$", seen.stdout, re.MULTILINE) for seen in (one, other)]
    begin = [float(span[1]) for span in spans if span]
    end = [float(span[2]) for span in spans if span]
    return len(begin) == 2 and min(end) - max(begin) > 0.3


# --- shared by attacks on the kernel ---

# Name → number on x86_64 and on aarch64; calls from 424 on have one number everywhere.
_NUMBERS = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "clone3": (435, 435),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "getpid": (39, 172),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "ioprio_set": (251, 30),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "mbind": (237, 235),
    "memfd_secret": (447, 447),
    "migrate_pages": (256, 238),
    "mknodat": (259, 33),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "mq_open": (240, 180),
    "msgget": (68, 186),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pivot_root": (155, 41),
    "prlimit64": (302, 261),
    "process_madvise": (440, 440),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "shmat": (30, 196),
    "shmget": (29, 194),
    "socket": (41, 198),
    "statmount": (457, 457),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}

SYSCALLS = f"""
import ctypes, errno, platform
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
NUMBERS = {_NUMBERS!r}
NUMBERS = {{name: both[platform.machine() == 'aarch64'] for name, both in NUMBERS.items()}}
def call(name, *words):
    'What the kernel answers: its result, or the negative of its errno.'
    given = [ctypes.c_long(word) if isinstance(word, int) else word for word in words]
    given += [ctypes.c_long(0)] * (6 - len(given))
    number = NUMBERS[name] if isinstance(name, str) else name
    result = libc.syscall(ctypes.c_long(number), *given)
    return result if result != -1 else -ctypes.get_errno()
def refused(result):
    return result in (-errno.EPERM, -errno.EACCES, -errno.ENOSYS, -errno.EAFNOSUPPORT, -errno.EPROTONOSUPPORT)
"""
"""Raw system calls, for attacks that no Python function can make."""

REACHES = (
    SYSCALLS
    + """
import signal, struct, threading
SECCOMP, ALLOW, TO_US = (317, 277)[platform.machine() == 'aarch64'], 0x7fff0000, 0x7fc00000
RECEIVE, ANSWER = 0xc0502100, 0xc0182101
def _answer(listener):
    listener[1].wait()
    while True:
        notice = ctypes.create_string_buffer(80)
        if libc.ioctl(ctypes.c_int(listener[0]), ctypes.c_ulong(RECEIVE), notice) != 0: return
        reply = struct.pack('<QqiI', struct.unpack_from('<Q', notice.raw)[0], 0, -1234, 0)
        libc.ioctl(ctypes.c_int(listener[0]), ctypes.c_ulong(ANSWER), ctypes.create_string_buffer(reply, 24))
def _ask(name, calls, tell):
    'In a child: what each call answers when a filter of our own hands it to us, once every other has let it pass.'
    number = NUMBERS[name] if isinstance(name, str) else name
    steps = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, TO_US), (0x06, 0, 0, ALLOW)]
    code = ctypes.create_string_buffer(b''.join(struct.pack('<HBBI', *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack('<HxxxxxxQ', len(steps), ctypes.addressof(code)), 16)
    listener = [-1, threading.Event()]
    threading.Thread(target=_answer, args=(listener,), daemon=True).start()
    libc.prctl(38, ctypes.c_ulong(1), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))
    listener[0] = libc.syscall(ctypes.c_long(SECCOMP), ctypes.c_long(1), ctypes.c_long(8), program)
    listener[1].set()
    how = 'unfiltered' if listener[0] < 0 else 'filtered'
    for words in calls: os.write(tell, f'{how} {call(name, *words)}\\n'.encode())
def reaching(name, calls):
    'Those of these system calls that would reach the kernel. None is made, unless our own filter is refused to us.'
    calls, found = list(calls), []
    while calls:
        ours, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            _ask(name, calls, theirs)
            os._exit(0)
        os.close(theirs)
        with open(ours) as answers:
            for answer in answers:
                words, (how, result) = calls.pop(0), answer.split()
                print(name, *words, how, result, flush=True)
                if int(result) == -1234 if how == 'filtered' else not refused(int(result)): found.append(words)
        _, status = os.waitpid(child, 0)
        if calls: print(name, *calls.pop(0), 'ended the process with', status, flush=True)
    return found
def reaches(name, *words):
    return bool(reaching(name, [words]))
"""
)
"""`reaches(name, …)`: the kernel evaluates filters newest first and the strictest answer wins. "Ask a listener" is
laxer than "refuse with errno", so the attack's own filter sees exactly the calls that the jail's lets pass. It answers
them itself with an errno that nothing else uses, so a call that would do harm is never really made.
"""
