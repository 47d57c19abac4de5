"""Attacks on the kernel: the system calls by which jails are left, or its least reviewed code is reached.

If the call does no harm, it is made, and its result is the proof. Otherwise the attack tests whether it would be
reached.
"""

from __future__ import annotations

from jail_attack import (
    NATIVE,
    REACHES,
    SYSCALLS,
    Attack,
    Control,
    only_on_x86,
    only_where_anybody_may_count,
    only_with_secret_memory,
    without,
)

_FILTER = without("seccomp")
_POWER = without("seccomp", "capabilities", "user")  # the cell's other namespaces don't belong to its user namespace
# a process confined by Landlock can't change mounts
_ALL_POWER = without("seccomp", "capabilities", "user", "landlock")


def _try(words: str) -> str:
    return SYSCALLS + f"result = call({words})\nprint(result)\nif not refused(result): breach(result)\n"


def _reaches(name: str, *calls: str) -> Attack:
    """Each call is `name, argument, …`. With these arguments, a call that does get through is refused by the kernel."""
    return Attack(
        name=name, code=REACHES + "".join(f"reaches({call}) and breach()\n" for call in calls), control=_FILTER
    )


MOUNTS = [
    Attack(
        name="mounts a file system",
        code=_try("'mount', b'none', b'/tmp', b'tmpfs', 0, 0"),
        control=_ALL_POWER,
    ),
    Attack(
        name="binds one directory over another",
        code="os.mkdir('here')\n" + _try("'mount', b'/usr', os.path.abspath('here').encode(), 0, 4096, 0"),
        control=_ALL_POWER,
    ),
    Attack(
        name="makes its root writable again",
        # Only tests whether the call would be reached: a remount that succeeds natively would change the host's root.
        code=REACHES + "reaches('mount', 0, b'/', 0, 32 | 4096, 0) and breach()",
        control=_FILTER,
    ),
    Attack(
        name="unmounts what hides something else",
        code=SYSCALLS
        + """
for place in (b'/tmp', b'/run', b'/proc', b'/dev/shm', b'/usr'):
    result = call('umount2', place, 2)
    print(place, result)
    if result == 0: breach(place)
""",
        control=_ALL_POWER,
    ),
    Attack(
        name="makes a file system with the new calls",
        code=_try("'fsopen', b'tmpfs', 0"),
        control=_POWER,
    ),
    Attack(
        name="takes a copy of a tree of mounts",
        code=_try("'open_tree', -100, b'/usr', 1"),
        control=_ALL_POWER,
    ),
    _reaches("moves a mount", "'move_mount', -1, b'', -1, b'', 0"),
    _reaches("changes what a mount allows", "'mount_setattr', -1, b'', 0, 0, 0"),
    _reaches(
        "reconfigures a file system", "'fspick', -1, b'', 0", "'fsconfig', -1, 99, 0, 0, 0", "'fsmount', -1, 0, 0"
    ),
    Attack(
        name="changes its root directory",
        code=_try("'chroot', b'/tmp'"),
        control=_ALL_POWER,
    ),
    _reaches("swaps its root for another", "'pivot_root', b'/nonexistent', b'/nonexistent'"),
]

_SPACES = {
    "user": 0x10000000,
    "mount": 0x00020000,
    "pid": 0x20000000,
    "network": 0x40000000,
    "IPC": 0x08000000,
    "host name": 0x04000000,
    "control group": 0x02000000,
    "time": 0x00000080,
}

NAMESPACES = [
    *(
        Attack(
            name=f"makes a {space} namespace",
            # With a user namespace, any user may make all others.
            code=_try(f"'unshare', {flag}"),
            control=without("seccomp", "capabilities", "user-namespaces"),
        )
        for space, flag in _SPACES.items()
    ),
    Attack(
        name="becomes root in a user namespace of its own",
        code=SYSCALLS
        + """
user, group = os.getuid(), os.getgid()
if call('unshare', 0x10000000) == 0:
    open('/proc/self/setgroups', 'w').write('deny')
    open('/proc/self/uid_map', 'w').write(f'0 {user} 1')
    if os.getuid() == 0: breach()
""",
        control=without("seccomp", "user-namespaces", "landlock"),
    ),
    Attack(
        name="forks into a user namespace",
        code=SYSCALLS
        + """
child = call('clone', 0x10000000 | 17, 0, 0, 0, 0)
if child == 0: os._exit(0)
print(child)
if child > 0: breach()
""",
        control=without("seccomp", "user-namespaces"),
    ),
    Attack(
        name="forks into a user namespace with clone3",
        code=SYSCALLS
        + """
import struct
words = struct.pack('8Q', 0x10000000, 0, 0, 0, 17, 0, 0, 0)
child = call('clone3', words, len(words))
if child == 0: os._exit(0)
print(child)
if child > 0: breach()
""",
        control=without("seccomp", "user-namespaces"),
    ),
    Attack(
        name="makes a user namespace where a filter has a gap",
        # What the filter refuses is also refused by the limit of 0: this attack is on that second protection.
        code=SYSCALLS + "if call('unshare', 0x10000000) == 0: breach()",
        control=without("seccomp", "user-namespaces"),
    ),
    Attack(
        name="enters the namespaces of its init",
        code=SYSCALLS
        + """
for name in ('mnt', 'net', 'uts', 'ipc', 'pid'):
    try:
        space = os.open(f'/proc/1/ns/{name}', os.O_RDONLY)
    except OSError as error:
        print(error)
        continue
    result = call('setns', space, 0)
    if result == 0: breach(name)
result = call('setns', os.open('/proc/self/ns/uts', os.O_RDONLY), 0)
if result == 0: breach()
""",
        control=_POWER,
    ),
]

CODE = [
    Attack(name="adds a key", code=_try("'add_key', b'user', b'x', b'y', 1, -2"), control=_FILTER),
    Attack(name="looks at its keyrings", code=_try("'keyctl', 0, -3, 0"), control=_FILTER),
    Attack(name="asks for a key", code=_try("'request_key', b'user', b'nonexistent', 0, 0"), control=_FILTER),
    _reaches("loads a program into the kernel", "'bpf', 5, 0, 0"),
    Attack(
        name="counts what the processor does",
        absent=only_where_anybody_may_count,
        code=SYSCALLS
        + """
import struct
event = ctypes.create_string_buffer(struct.pack('IIQ', 1, 112, 3) + bytes(24) + struct.pack('Q', 0x61), 112)
result = call('perf_event_open', event, 0, -1, -1, 0)
print(result)
if not refused(result): breach(result)
""",
        control=_FILTER,
    ),
    Attack(
        name="makes a ring for input and output",
        code=SYSCALLS
        + "ring = call('io_uring_setup', 4, ctypes.create_string_buffer(120))\nif not refused(ring): breach(ring)",
        control=_FILTER,
    ),
    _reaches("uses somebody's ring", "'io_uring_enter', -1, 0, 0, 0, 0, 0", "'io_uring_register', -1, 99, 0, 0"),
    Attack(
        name="handles its own page faults",
        code=_try("'userfaultfd', 1"),  # for user code only: what any user may request
        control=_FILTER,
    ),
    Attack(
        name="takes memory that nobody can see",
        absent=only_with_secret_memory,
        code=_try("'memfd_secret', 0"),
        control=_FILTER,
    ),
    _reaches("watches whole file systems", "'fanotify_init', 0, 0"),
    _reaches("names files by their handles", "'name_to_handle_at', -1, b'', 0, 0, 0"),
    Attack(
        name="switches the randomisation of addresses off",
        code=_try("'personality', 0x0040000"),
        control=_FILTER,
    ),
    _reaches("compiles a filter of system calls", "317 if platform.machine() == 'x86_64' else 277, 99, 0, 0"),
    Attack(
        name="filters its own system calls",
        code=SYSCALLS
        + """
import struct
allow = ctypes.create_string_buffer(struct.pack('<HBBI', 6, 0, 0, 0x7fff0000))
program = ctypes.create_string_buffer(struct.pack('<HxxxxxxQ', 1, ctypes.addressof(allow)), 16)
libc.prctl(38, ctypes.c_ulong(1), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))
if libc.prctl(22, ctypes.c_ulong(2), program, ctypes.c_ulong(0), ctypes.c_ulong(0)) == 0: breach()
""",
        control=_FILTER,
    ),
]

MACHINE = [
    _reaches("loads another kernel", "'kexec_load', 0, 0, 0, -1", "'kexec_file_load', -1, -1, 0, 0, -1"),
    _reaches(
        "loads a module into the kernel",
        "'init_module', 0, 0, 0",
        "'finit_module', -1, 0, 0",
        "'delete_module', b'redoma-nonexistent', 0",
    ),
    _reaches("restarts the machine", "'reboot', 1, 2, 3, 0"),
    _reaches("swaps to a file of its own", "'swapon', b'/nonexistent', 0", "'swapoff', b'/nonexistent'"),
    _reaches(
        "sets the clock", "'settimeofday', 1, 1", "'clock_settime', 99, 0", "'adjtimex', 0", "'clock_adjtime', 99, 0"
    ),
    Attack(
        name="renames the machine",
        code=SYSCALLS
        + "for name in ('sethostname', 'setdomainname'):\n    if not refused(call(name, b'x', 1)): breach(name)",
        control=_POWER,
    ),
    _reaches("reads or clears the kernel's log", "'syslog', 10, 0, 0"),
    _reaches("accounts for processes, or limits disks", "'acct', b'/nonexistent/x'", "'quotactl', -1, 0, 0, 0"),
    _reaches("hangs the terminal up", "'vhangup'"),
    _reaches("reads what a profiler has found", "'lookup_dcookie', 0, 0, 0"),
    _reaches("places memory on nodes", "'mbind', 0, 0, 0, 0, 0, 99"),
    Attack(
        name="asks for the ports of the machine",
        code=REACHES + "for number in (172, 173, 154):\n    if reaches(number, 99, 0, 0): breach(number)",
        control=_FILTER,
        absent=only_on_x86,
    ),
]

_MACHINE_CODE = (
    SYSCALLS
    + """
import signal
libc.mmap.restype = ctypes.c_void_p
def run(code):
    'What a function of raw machine code returns, in a child; None where it was killed.'
    page = libc.mmap(None, ctypes.c_size_t(4096), 7, 0x22, -1, ctypes.c_long(0))
    ctypes.memmove(page, code, len(code))
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(theirs, str(ctypes.CFUNCTYPE(ctypes.c_int)(page)()).encode())
        os._exit(0)
    os.close(theirs)
    text = os.read(ours, 100)
    print(text, child, os.waitpid(child, 0)[1])
    return child, int(text) if text else None
"""
)

FOREIGN = [
    Attack(
        name="makes a 32-bit system call",
        # mov eax, 20; int 0x80; ret: number 20 is getpid there, and writev here
        code=_MACHINE_CODE + "child, answer = run(bytes([0xb8, 20, 0, 0, 0, 0xcd, 0x80, 0xc3]))\n"
        "if child == answer: breach()",
        control=_FILTER,
        absent=only_on_x86,
    ),
    Attack(
        name="makes a system call with x32 numbers",
        code=REACHES + "reaches(0x40000000 | 39) and breach()",
        control=_FILTER,
        absent=only_on_x86,
    ),
    Attack(
        name="makes a system call that did not exist yet",
        code=REACHES + "for number in (471, 480, 511, 600, 4711):\n    if reaches(number, -1): breach(number)",
        control=_FILTER,
    ),
    Attack(
        name="hides a forbidden argument in the upper half of a word",
        code=SYSCALLS + "for family in (16, 17, 40):\n"
        "    if call('socket', family | 1 << 32, 3, 0) >= 0 or call('socket', family | 1 << 32, 1, 0) >= 0: breach()\n"
        "if call('personality', 0x0040000 | 1 << 32) >= 0: breach()",
        control=_FILTER,
    ),
]

PRIVILEGE = [
    Attack(
        name="starts a setuid program",
        code="""
import shutil, subprocess, time
before = os.geteuid()
for name in ('su', 'passwd', 'chsh', 'newgrp', 'mount'):
    path = shutil.which(name, path='/usr/bin:/bin:/usr/sbin:/sbin')
    if path is None or not os.stat(path).st_mode & 0o4000: continue
    program = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    for _ in range(40):
        try:
            status = open(f'/proc/{program.pid}/status').read()
        except OSError:
            break
        effective = int(status.split('Uid:')[1].split()[1])
        if f'Name:\\t{name}' in status and effective == 0: breach(name)
        time.sleep(0.005)
    program.stdin.close()
    try:
        program.wait(1)
    except subprocess.TimeoutExpired:
        program.kill()
""",
        control=NATIVE,
    ),
    Attack(
        name="may gain privileges by starting a program",
        code="if 'NoNewPrivs:\\t0' in open('/proc/self/status').read(): breach()",
        control=without("no_new_privs", "seccomp", "landlock"),
    ),
    *(
        Attack(
            name=f"has {kind} capabilities",
            code="values = dict(line.split(':\\t') for line in open('/proc/self/status') if line.startswith('Cap'))\n"
            f"if int(values['{key}'], 16): breach(values)",
            control=without("capabilities"),
        )
        for kind, key in (("effective", "CapEff"), ("permitted", "CapPrm"), ("bounding", "CapBnd"))
    ),
    Attack(
        name="gives itself capabilities",
        code="""
import ctypes, struct
libc = ctypes.CDLL(None, use_errno=True)
header, every = struct.pack('II', 0x20080522, 0), b'\\xff\\xff\\xff\\xff' * 6
libc.syscall(ctypes.c_long(126 if os.uname().machine == 'x86_64' else 91), header, every)
every = struct.pack('IIIIII', *[1 << 21, 1 << 21, 0] + [0] * 3)
libc.syscall(ctypes.c_long(126 if os.uname().machine == 'x86_64' else 91), header, every)
if int(next(line for line in open('/proc/self/status') if line.startswith('CapEff')).split()[1], 16): breach()
""",
        control=without("capabilities"),
    ),
    Attack(
        name="becomes another user",
        code="""
for user in {0, 65534, 1, 1001} - {os.getuid()}:
    try:
        os.setresuid(user, user, user)
        breach(user)
    except OSError as error:
        print(error)
""",
        control=Control(where="native", root=True),
    ),
    Attack(
        name="is root on the host",
        code="""
for line in open('/proc/self/uid_map'):
    inside, outside, count = map(int, line.split())
    if outside == 0: breach(line)
""",
        control=NATIVE,
    ),
    Attack(
        name="maps more users to itself",
        code="""
for name in ('uid_map', 'gid_map'):
    try:
        os.write(os.open(f'/proc/self/{name}', os.O_WRONLY), b'0 0 1')
        breach(name)
    except OSError as error:
        print(error)
if open('/proc/self/setgroups').read().strip() == 'allow': breach('setgroups')
""",
        control=NATIVE,
    ),
]

ATTACKS = [*MOUNTS, *NAMESPACES, *CODE, *MACHINE, *FOREIGN, *PRIVILEGE]
