"""The system call filter: every refused call is really made, with it and, where that does no harm, without it."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import random
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from redoma.backends.jail import seccomp

MACHINE = os.uname().machine
NUMBERS = {name: columns for name, *columns in (entry.split() for entry in seccomp._NUMBERS.split(","))}
GARBAGE = 0x5EED << 32  # in the upper half of an argument, which the kernel doesn't look at

# Forks a child for every attempt: a filter can't be taken off again, and this process has no thread that a fork could
# catch in the middle. What the attempt came to goes back as text: "ok", the name of an errno, or of a signal.
SERVER = """
import ctypes, errno, fcntl, json, mmap, os, pty, signal, socket, sys, threading
from redoma.backends import linux

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
numbers = json.loads(sys.argv[1])
programs = {name: bytes.fromhex(text) for name, text in json.loads(sys.argv[2]).items()}

def raw(name, *arguments):
    return libc.syscall(*(ctypes.c_long(value) for value in (numbers.get(name, name), *arguments)))

def call(name, *arguments):
    return "ok" if raw(name, *arguments) >= 0 else errno.errorcode[ctypes.get_errno()]

def clone(flags):
    pid = raw("clone", flags | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    return "ok" if pid > 0 else errno.errorcode[ctypes.get_errno()]

def make(name, *arguments):
    "An object of System V, and its end."
    made = raw(name, *arguments)
    if made < 0:
        return errno.errorcode[ctypes.get_errno()]
    end = {"shmget": (0, 0), "semget": (0, 0, 0), "msgget": (0, 0)}[name]
    raw(name.replace("get", "ctl"), made, *end)
    return "ok"

def text(value):
    kept.append(ctypes.create_string_buffer(value))
    return ctypes.addressof(kept[-1])

def machine_code(code):
    memory = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 7)
    memory.write(code)
    return ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))()

def thread(code):
    found = []
    worker = threading.Thread(target=lambda: found.append(eval(code)))
    worker.start()
    worker.join()
    return found[0]

kept = []
for line in sys.stdin:
    attempt = json.loads(line)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            terminal = pty.openpty()[1] if "terminal" in attempt["code"] else -1
            namespace = os.open("/proc/self/ns/net", os.O_RDONLY) if "namespace" in attempt["code"] else -1
            file = os.open("attempt", os.O_CREAT | os.O_RDONLY)
            # Under a filter that refuses everything Python gets no memory: leave it some that is free, in every arena.
            room = [bytes(480) for _ in range(20_000)]
            room = room[::500]
            if attempt["program"]:
                linux.allow_no_new_privileges()
                linux.install_filter(programs[attempt["program"]])
            os.write(writer, str(eval(attempt["code"])).encode())
        except BaseException as problem:
            os.write(writer, repr(problem).encode())
        os._exit(0)
    os.close(writer)
    answer = os.read(reader, 1000).decode()
    os.close(reader)
    status = os.waitpid(child, 0)[1]
    print(signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else answer, flush=True)
"""

Attempt = Callable[..., str]
NEVER = errno.EDOTDOT  # of a file system that nobody has: no call answers so by itself


def nothing_but(*numbers: int) -> bytes:
    """A filter that refuses all other calls."""
    steps = [(0x20, 0, 0, 0), *((0x15, len(numbers) - place, 0, number) for place, number in enumerate(numbers))]
    steps += [(0x06, 0, 0, 0x00050000 | NEVER), (0x06, 0, 0, 0x7FFF0000)]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


LET_BY = ("write", "exit_group")
PROBES = {"uretprobe": 335, "uprobe": 336} if MACHINE == "x86_64" else {}


def test_the_kernel_lets_nothing_past_a_filter_but_its_own_probes(attempt: Attempt) -> None:
    """Since Linux 6.14 it asks no filter about these two. If there is ever another, it has to be looked at."""
    let_by = LET_BY
    code = (
        f"[number for number in range(1200) if number not in {sorted(PROBES.values())} "
        f"and number not in [numbers[name] for name in {let_by}] and call(number, 0, 0, 0, 0, 0, 0) != 'EDOTDOT']"
    )
    assert attempt(code, "nothing") == "[]"


@pytest.mark.parametrize("number", PROBES.values(), ids=PROBES)
def test_a_probe_that_the_kernel_did_not_set_ends_the_caller_or_does_nothing(attempt: Attempt, number: int) -> None:
    """Both look where they are called from: only from code that the kernel itself has put there do they do anything."""
    assert attempt(f"call({number}, 0, 0, 0, 0, 0, 0)", "held") in ("ENOSYS", "ENXIO", "SIGILL", "SIGSEGV")


@pytest.fixture(scope="module")
def attempt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attempt]:
    column = seccomp._ARCHITECTURES[MACHINE][1]
    numbers = {name: int(columns[column]) for name, columns in NUMBERS.items() if columns[column] != "-"}
    programs = {"held": seccomp.program(watched=False).hex(), "watched": seccomp.program(watched=True).hex()}
    programs["nothing"] = nothing_but(*(numbers[name] for name in LET_BY)).hex()
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, json.dumps(numbers), json.dumps(programs)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path_factory.mktemp("server"),
    ) as server:
        assert server.stdin
        assert server.stdout
        requests, answers = server.stdin, server.stdout

        def ask(code: str, program: str = "") -> str:
            print(json.dumps({"code": code, "program": program}), file=requests, flush=True)
            return answers.readline().strip()

        yield ask
        server.stdin.close()


class Attack(NamedTuple):
    code: str
    refused: str
    control: str = "any"  # who may make the call without the filter, and gets another answer: any, root, nobody
    programs: tuple[str, ...] = ("held", "watched")


def calls(refused: str, control: str, *codes: str) -> list[Attack]:
    return [Attack(f"call({code})", refused, control) for code in codes]


ATTACKS = [
    # The file system's shape. Arguments are senseless where sense would do harm: EFAULT shows that the kernel saw them.
    *calls("EPERM", "root", "'mount', 1, 1, 1, 0, 0", "'pivot_root', 1, 1", "'fsopen', 1, 0", "'fsmount', -1, 0, 0"),
    *calls("EPERM", "root", "'move_mount', -1, 1, -1, 1, 0", "'fspick', -1, 1, 0"),
    *calls("EPERM", "any", "'umount2', 1, 0x40000000", "'chroot', 1", "'open_tree', -100, 1, 0"),
    *calls("EPERM", "any", "'open_tree_attr', -100, 1, 0, 0, 0", "'fsconfig', -1, 0, 0, 0, 0"),
    *calls("EPERM", "any", "'mount_setattr', -1, 1, 0, 1, 0", "'statmount', 1, 1, 0, 0", "'listmount', 1, 1, 0, 0"),
    *calls("EPERM", "any", "'name_to_handle_at', -100, 1, 1, 1, 0"),
    *calls("EPERM", "root", "'open_by_handle_at', -1, 1, 0", "'fanotify_init', -1, 0"),
    *calls("EPERM", "any", "'fanotify_mark', -1, 0, 0, 0, 0"),
    # Namespaces.
    *calls("EPERM", "any", "'unshare', 0x10000000", "'unshare', 1", "'setns', -1, 0"),
    Attack("clone(0x10000000)", "EPERM"),
    Attack(f"clone({GARBAGE | 0x10000000:#x})", "EPERM"),
    *[Attack(f"clone({1 << bit:#x})", "EPERM", "root") for bit in (17, 25, 26, 27, 29, 30)],
    *calls("ENOSYS", "any", "'clone3', 0, 0"),
    # Other processes.
    *calls("EPERM", "any", "'ptrace', 0, 0, 0, 0", "'process_vm_readv', os.getpid(), 0, 0, 0, 0, 0"),
    *calls("EPERM", "any", "'process_vm_writev', os.getpid(), 0, 0, 0, 0, 0", "'process_madvise', -1, 0, 0, 0, 0"),
    *calls("EPERM", "any", "'process_mrelease', -1, 0", "'pidfd_getfd', -1, 0, 0"),
    *calls("EPERM", "any", "'kcmp', os.getpid(), os.getpid(), 0, 0, 0"),
    *calls("EPERM", "any", "'prlimit64', os.getppid(), 7, 0, 0", f"'prlimit64', {GARBAGE} | os.getppid(), 7, 0, 0"),
    *calls(
        "EPERM", "any", "'move_pages', 0, 0, 0, 0, 0, 0", "'migrate_pages', 0, 0, 0, 0", "'mbind', 0, 0, 99, 0, 0, 0"
    ),
    *calls("EPERM", "any", "'set_mempolicy', 0, 0, 0", "'set_mempolicy_home_node', 0, 0, 0, 1"),
    # Its init, pid 1, which must not be slowed down.
    *calls("EPERM", "any", "'sched_setscheduler', 1, 0, 0", "'sched_setparam', 1, 0", "'sched_setattr', 1, 0, 0"),
    *calls("EPERM", "any", "'sched_setaffinity', 1, 8, 1", f"'sched_setaffinity', {GARBAGE | 1}, 8, 1"),
    *calls("EPERM", "any", "'setpriority', 1, 99999999, 0", "'setpriority', 2, 99999999, 0"),
    *calls("EPERM", "any", "'ioprio_set', 2, 99999999, 0", "'ioprio_set', 3, 99999999, 0"),
    *calls("EPERM", "nobody", "'setpriority', 0, 1, 19", f"'setpriority', {GARBAGE}, {GARBAGE | 1}, 19"),
    *calls("EPERM", "nobody", "'ioprio_set', 1, 1, 0"),
    # Code and listeners in the kernel.
    *calls(
        "EPERM", "any", "'seccomp', 0xffff, 0, 0", "'prctl', 22, 99, 0, 0, 0", f"'prctl', {GARBAGE | 22}, 99, 0, 0, 0"
    ),
    *calls("EPERM", "any", "'add_key', 1, 1, 0, 0, 0", "'request_key', 1, 1, 1, 0", "'keyctl', 0, -4, 1"),
    *calls("EPERM", "any", "'perf_event_open', 1, 0, -1, -1, 0"),
    *calls("EPERM", "root", "'bpf', 9999, 0, 0", "'userfaultfd', -1", "'lookup_dcookie', 0, 0, 0"),
    *calls("EPERM", "any", "'setsockopt', socket.socket().fileno(), 1, 26, 1, 16"),
    *calls("EPERM", "any", "'setsockopt', socket.socket().fileno(), 1, 50, 1, 4"),
    *calls("EPERM", "any", f"'setsockopt', socket.socket().fileno(), {GARBAGE | 1}, {GARBAGE | 26}, 1, 16"),
    *calls("EPERM", "any", "'setsockopt', socket.socket().fileno(), 6, 31, text(b'tls'), 3"),
    # Past the filter, out of the machine's pools, out of sight.
    *calls("ENOSYS", "any", "'io_uring_setup', 0, 0", "'io_uring_enter', -1, 0, 0, 0, 0, 0"),
    *calls("ENOSYS", "any", "'io_uring_register', -1, 0, 0, 0", "'io_setup', 1, 1", "'vmsplice', -1, 0, 0, 0"),
    *calls("ENOSYS", "nobody", "'memfd_secret', 0", "'cachestat', -1, 0, 0, 0", "511", "1000000", "-1"),
    *calls("EINVAL", "any", "'prctl', 59, 0, 0, 0, 0", f"'prctl', {GARBAGE | 59}, 0, 0, 0, 0"),
    *calls(
        "ENOMEM",
        "nobody",
        "'mmap', 0, 1 << 21, 3, 0x40022, -1, 0",
        f"'mmap', 0, 1 << 21, 3, {GARBAGE | 0x40022}, -1, 0",
    ),
    Attack("call('memfd_create', text(b'x'), 4)", "ENOMEM", programs=("held",)),
    Attack("make('shmget', 0, 1 << 21, 0o5600)", "ENOMEM", "nobody", ("held",)),
    # Memory that a watcher of processes would not see.
    Attack("call('memfd_create', text(b'x'), 0)", "ENOSYS", programs=("watched",)),
    Attack("make('shmget', 0, 4096, 0o1600)", "ENOSYS", programs=("watched",)),
    Attack("make('semget', 0, 1, 0o1600)", "ENOSYS", programs=("watched",)),
    Attack("make('msgget', 0, 0o1600)", "ENOSYS", programs=("watched",)),
    Attack("call('mmap', 0, 4096, 3, 0x21, -1, 0)", "EPERM", programs=("watched",)),
    Attack(f"call('mmap', 0, 4096, 3, {GARBAGE | 0x21}, -1, 0)", "EPERM", programs=("watched",)),
    # The machine.
    *calls(
        "EPERM", "root", "'kexec_load', 0, 999999, 0, 0", "'kexec_file_load', -1, -1, 0, 0, 0", "'reboot', 0, 0, 0, 0"
    ),
    *calls("EPERM", "root", "'init_module', 1, 0, 1", "'finit_module', -1, 1, 0xffff", "'delete_module', 1, 0"),
    *calls("EPERM", "root", "'syslog', 10, 0, 0", "'swapon', 1, 0", "'swapoff', 1", "'acct', 1"),
    *calls("EPERM", "root", "'sethostname', 1, 5", "'setdomainname', 1, 5"),
    *calls("EPERM", "any", "'quotactl', 0x7fffff00, 0, 0, 0", "'quotactl_fd', -1, 0, 0, 0"),
    *calls("EPERM", "any", "'settimeofday', 1, 0", "'clock_settime', 0, 1", "'adjtimex', 1", "'clock_adjtime', 0, 1"),
    *calls("EPERM", "nobody", "'vhangup'"),
    *calls("EPERM", "any", "'personality', 0x40000", "'personality', 8", f"'personality', {GARBAGE | 0x40000}"),
    # Sockets: families, kinds and protocols.
    *calls("EAFNOSUPPORT", "any", "'socket', 16, 3, 0", f"'socket', {GARBAGE | 16}, 3, 0"),
    *calls(
        "EAFNOSUPPORT", "nobody", *(f"'socket', {family}, 1, 0" for family in (0, 3, 15, 17, 21, 31, 38, 40, 44, 45))
    ),
    *calls("EAFNOSUPPORT", "nobody", "'socketpair', 2, 1, 0, 1", "'socketpair', 30, 1, 0, 1"),
    *calls("EPERM", "root", "'socket', 2, 3, 1", "'socket', 10, 3, 58", f"'socket', 2, {GARBAGE | 3}, 255"),
    *calls("EPERM", "root", "'socket', 2, 0x80803, 255", "'socket', 2, 10, 0"),
    *calls("EPERM", "any", "'socket', 1, 3, 0", "'socketpair', 1, 3, 0, 1"),
    *calls("EPROTONOSUPPORT", "nobody", "'socket', 2, 1, 132", "'socket', 2, 2, 1", "'socket', 10, 2, 115"),
    *calls("EPROTONOSUPPORT", "nobody", f"'socket', {GARBAGE | 2}, 1, {GARBAGE | 262}"),
    # Files and devices.
    *calls(
        "EPERM", "root", "'ioctl', terminal, 0x5412, text(b'x')", f"'ioctl', terminal, {GARBAGE | 0x5412}, text(b'x')"
    ),
    *calls("EPERM", "any", "'ioctl', terminal, 0x541c, text(b'x')", "'ioctl', terminal, 0x5423, text(bytes(4))"),
    *calls("EPERM", "any", f"'ioctl', terminal, {GARBAGE | 0x5423}, text(bytes(4))"),
    *calls("ENOTTY", "any", "'ioctl', namespace, 0xb701", f"'ioctl', namespace, {GARBAGE | 0xB701}"),
    *calls("EPERM", "any", "'fcntl', file, 1024, 0", f"'fcntl', file, {GARBAGE | 1024}, 0"),
    *calls("EPERM", "any", "'fcntl', os.open('/', os.O_RDONLY), 1026, 0", "'fcntl', file, 1036, 0"),
    *calls("EPERM", "nobody", "'fcntl', file, 1038, 0"),  # gone in Linux 5.17
    *calls("EPERM", "root", "'mknodat', -100, text(b'device'), 0o20600, 0x103"),
]
OLD_CALLS = calls("EPERM", "any", "'iopl', 0", "'ioperm', 0, 1, 0", "'modify_ldt', 0, 1, 0")
if MACHINE == "x86_64":
    ATTACKS += [*OLD_CALLS, *calls("EPERM", "nobody", "'mknod', text(b'device'), 0o60600, 0x103")]
    ATTACKS += calls("EPERM", "root", "numbers['mount'] | 1 << 32, 1, 1, 1, 0, 0")  # the number, too, has 32 bits
    ATTACKS += calls("SIGSYS", "any", "39 | 0x40000000", "165 | 0x40000000, 1, 1, 1, 0, 0", "520 | 0x40000000, 1, 1, 1")
    ATTACKS += [
        Attack("machine_code(bytes.fromhex('b814000000cd80c3'))", "SIGSYS"),  # getpid by int 0x80
        Attack("thread('call(39 | 0x40000000)')", "SIGSYS"),  # takes all threads along
    ]


@pytest.mark.parametrize(
    ("code", "refused", "program"),
    [
        pytest.param(code, refused, program, id=f"{code}-{program}")
        for code, refused, _, programs in ATTACKS
        for program in programs
    ],
)
def test_it_is_refused(attempt: Attempt, code: str, refused: str, program: str) -> None:
    assert attempt(code, program) == refused


@pytest.mark.parametrize(
    ("code", "refused", "control"),
    [pytest.param(*attack[:3], id=attack.code) for attack in ATTACKS if attack.control != "nobody"],
)
def test_without_the_filter_the_kernel_takes_it(attempt: Attempt, code: str, refused: str, control: str) -> None:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    if int(status.get("Seccomp", "0")):
        pytest.skip("needs to be free of other filters: this process was started under one")
    if control == "root" and not int(status["CapEff"], 16) >> 21 & 1:
        pytest.skip("needs root with CAP_SYS_ADMIN: to others the kernel gives the same errno")
    answer = attempt(code)
    assert answer != refused
    assert "Error" not in answer


@pytest.mark.parametrize("name", sorted({name for names in seccomp.REFUSED.values() for name in names.split()}))
def test_every_refused_call_is_attacked(name: str) -> None:
    assert any(f"'{name}'" in attack.code for attack in [*ATTACKS, *OLD_CALLS])


ORDINARY = [
    "call('socket', 2, 1, 6)",
    f"call('socket', {GARBAGE | 2}, {GARBAGE | 0x80801}, {GARBAGE})",
    "call('socket', 10, 2, 17)",
    "call('socket', 1, 5, 0)",
    "clone(0)",
    f"clone({GARBAGE})",
    "call('personality', 0xffffffff)",
    "call('personality', -1)",
    "call('personality', 0)",
    "call('prlimit64', 0, 7, 0, 0)",
    f"call('prlimit64', {GARBAGE}, 7, 0, 0)",
    "call('prctl', 15, text(b'name'), 0, 0, 0)",
    "call('ioctl', terminal, 0x5413, text(bytes(8)))",
    f"call('ioctl', terminal, {GARBAGE | 0x5413}, text(bytes(8)))",
    "call('fcntl', file, 1, 0)",
    "call('mmap', 0, 4096, 3, 0x22, -1, 0)",
    "call('mmap', 0, 4096, 1, 1, file, 0)",
    "call('sched_setaffinity', 0, 8, text(bytes([255] * 8)))",
    "call('setpriority', 0, 0, 19)",
    "call('mknodat', -100, text(b'%d' % os.getpid()), 0o10600, 0)",
    "call('sync')",
    "call('syncfs', -1)",  # would be EBADF: it never reached the kernel
]


@pytest.mark.parametrize("program", ["held", "watched"])
@pytest.mark.parametrize("code", ORDINARY)
def test_ordinary_calls_still_work(attempt: Attempt, code: str, program: str) -> None:
    assert attempt(code, program) == "ok"


@pytest.mark.parametrize("attack", [attack for attack in ATTACKS if attack.programs == ("watched",)], ids=str)
def test_memory_without_a_process_is_there_where_a_cgroup_holds_it(attempt: Attempt, attack: Attack) -> None:
    assert attempt(attack.code, "held") == "ok"


# --- the program ---


def judge(program: bytes, architecture: int, number: int, arguments: list[int]) -> int:
    """What the kernel's machine for such programs would answer."""
    data = struct.pack("=IIQ6Q", number, architecture, 0, *arguments)
    steps = list(struct.iter_unpack("=HBBI", program))
    at = accumulator = 0
    while True:
        operation, if_true, if_false, operand = steps[at]
        at += 1
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, operand)
        elif operation == 0x54:
            accumulator &= operand
        elif operation == 0x05:
            at += operand
        elif operation in (0x15, 0x35):
            at += if_true if (accumulator == operand if operation == 0x15 else accumulator >= operand) else if_false
        else:
            assert operation == 0x06
            return int(operand)


KILL, ALLOW, REFUSE, ABSENT = 0x80000000, 0x7FFF0000, 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS
MACHINES = pytest.mark.parametrize("machine", sorted(seccomp._ARCHITECTURES))
WATCHED = pytest.mark.parametrize("watched", [False, True], ids=["held", "watched"])


def numbers_of(machine: str) -> dict[str, int]:
    column = seccomp._ARCHITECTURES[machine][1]
    return {name: int(columns[column]) for name, columns in NUMBERS.items() if columns[column] != "-"}


@MACHINES
@WATCHED
def test_every_call_gets_the_answer_of_its_group(machine: str, watched: bool) -> None:
    program, architecture = seccomp.program(watched, machine), seccomp._ARCHITECTURES[machine][0]
    groups = [(seccomp.ALLOWED, ALLOW), (seccomp.REFUSED, REFUSE), (seccomp.ABSENT, ABSENT)]
    groups += [(seccomp.ABSENT_WHEN_WATCHED, ABSENT)] if watched else []
    wanted = {name: answer for group, answer in groups for names in group.values() for name in names.split()}
    numbers = numbers_of(machine)
    for name, number in numbers.items():
        if name in wanted:
            assert judge(program, architecture, number, [0] * 6) == wanted[name], name
    for number in {*range(600), 0x3FFFFFFF, 0x80000000, 0xFFFFFFFF} - set(numbers.values()):
        assert judge(program, architecture, number, [0] * 6) == ABSENT


@MACHINES
@WATCHED
def test_another_architecture_is_fatal_whatever_the_call(machine: str, watched: bool) -> None:
    program = seccomp.program(watched, machine)
    architecture = seccomp._ARCHITECTURES[machine][0]
    for other in (
        0x40000003,
        0x40000028,
        0,
        0xFFFFFFFF,
        {0xC000003E: 0xC00000B7, 0xC00000B7: 0xC000003E}[architecture],
    ):
        assert {judge(program, other, number, [0] * 6) for number in range(600)} == {KILL}
    x32 = {judge(program, architecture, number | 0x40000000, [0] * 6) for number in (*range(600), 0x3FFFFFFF)}
    assert x32 == ({KILL} if machine == "x86_64" else {ABSENT})


@MACHINES
@WATCHED
def test_the_upper_half_of_an_argument_changes_no_answer(machine: str, watched: bool) -> None:
    chance = random.Random(machine)  # the same numbers on every run
    program, architecture = seccomp.program(watched, machine), seccomp._ARCHITECTURES[machine][0]
    for name, rules in seccomp.CHECKED.items():
        rules = (*seccomp.CHECKED_WHEN_WATCHED.get(name, ()), *rules)
        known = [value for rule in rules for condition in rule.conditions for value in condition.values]
        number = numbers_of(machine).get(name)
        for _ in range(200 if number is not None else 0):
            low = [
                chance.choice([*known, 0, 0x21, 1 << chance.randrange(32), chance.getrandbits(32)]) for _ in range(6)
            ]
            high = [value | chance.getrandbits(32) << 32 for value in low]
            assert judge(program, architecture, number or 0, low) == judge(program, architecture, number or 0, high)


@MACHINES
def test_sockets_are_unix_tcp_and_udp(machine: str) -> None:
    program, architecture = seccomp.program(False, machine), seccomp._ARCHITECTURES[machine][0]
    number = numbers_of(machine)["socket"]
    allowed = {
        (family, kind, protocol)
        for family in (0, 1, 2, 3, 10, 16, 17, 38, 40, 0xFFFFFFFF)
        for kind in range(16)
        for protocol in (0, 1, 6, 17, 58, 115, 132, 136, 255, 262, 0xFFFFFFFF)
        if judge(program, architecture, number, [family, kind, protocol, 0, 0, 0]) == ALLOW
    }
    assert {entry for entry in allowed if entry[0] != 1} == {
        (f, k, p) for f in (2, 10) for k in (1, 2, 5) for p in (0, 6, 17)
    }
    assert {entry[:2] for entry in allowed if entry[0] == 1} == {(1, 1), (1, 2), (1, 5)}  # the kernel sees to the rest


def test_no_call_is_in_two_groups() -> None:
    groups = (seccomp.ALLOWED, seccomp.REFUSED, seccomp.ABSENT)
    names = [name for group in groups for text in group.values() for name in text.split()]
    names += [*seccomp.PRETENDED.split(), *seccomp.CHECKED]
    assert sorted(set(names)) == sorted(names)
    assert set(NUMBERS) == set(names)


@MACHINES
def test_the_numbers_are_those_of_libseccomp(machine: str) -> None:
    try:
        library = ctypes.CDLL("libseccomp.so.2")
    except OSError:
        pytest.skip("needs libseccomp.so.2, to compare with")
    for name, number in numbers_of(machine).items():
        theirs = library.seccomp_syscall_resolve_name_arch(
            ctypes.c_uint32(seccomp._ARCHITECTURES[machine][0]), name.encode()
        )
        assert theirs == number or (theirs < 0 and number >= 443), name  # an older library doesn't know the newest


def test_an_architecture_without_a_table_is_an_error_that_says_so() -> None:
    with pytest.raises(OSError, match="x86_64 and aarch64 only, not for riscv64"):
        seccomp.program(watched=False, machine="riscv64")


# --- installing it ---

PREPARE = """
import os, sys, threading
from redoma.backends import linux
from redoma.backends.jail import seccomp
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PREPARE + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_thread_that_was_there_before_is_under_the_filter_too() -> None:
    done = run("""
installed, found = threading.Event(), []
def late():
    installed.wait()
    try:
        linux.unshare(0x10000000)
    except OSError as problem:
        found.append(problem.errno)
worker = threading.Thread(target=late)
worker.start()
linux.allow_no_new_privileges()
linux.install_filter(seccomp.program(False))
installed.set()
worker.join()
print(found)
""")
    assert (done.stdout, done.stderr) == ("[1]\n", "")


def test_what_the_kernel_does_not_take_is_an_error() -> None:
    done = run("""
linux.allow_no_new_privileges()
for program in (b"", b"12345678", seccomp.program(False)[:-8]):
    try:
        linux.install_filter(program)
    except OSError as problem:
        print(problem.errno)
print(open("/proc/self/status").read().count("Seccomp:\t0"))
""")
    assert (done.stdout, done.stderr) == ("22\n22\n22\n1\n", "")
