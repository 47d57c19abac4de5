"""Attacks through what is inherited: descriptors, shared memory, and the parent's secrets."""

from __future__ import annotations

from jail_attack import NAIVE, NATIVE, REACHES, SYSCALLS, Attack, without

_ALL = """
numbers = sorted(int(name) for name in os.listdir('/proc/self/fd'))
numbers = [fd for fd in numbers if fd > 2 and os.path.exists(f'/proc/self/fd/{fd}')]
"""

DESCRIPTORS = [
    Attack(
        name="finds an inherited descriptor",
        code=_ALL + "for fd in numbers: breach(fd, os.readlink(f'/proc/self/fd/{fd}'))",
        control=NAIVE,
    ),
    Attack(
        name="finds an inherited descriptor from Bash",
        language="bash",
        # Not by listing the directory: that would use a descriptor itself. 255 is where Bash keeps its script.
        code='for ((fd = 3; fd < 255; fd++)); do [ -e /proc/$$/fd/$fd ] && breach "$(readlink /proc/$$/fd/$fd)"; done',
        control=NATIVE,
    ),
    Attack(
        name="reads the host through an inherited directory",
        code="""
for fd in range(0, 1024):
    for path in (T.secret.lstrip('/'), '../' * 30 + T.secret.lstrip('/')):
        try:
            print(os.read(os.open(path, os.O_RDONLY, dir_fd=fd), 100).decode())
        except OSError:
            continue
""",
        control=NAIVE,
    ),
    Attack(
        name="climbs out of an inherited directory",
        code="""
for fd in range(0, 1024):
    try:
        os.fchdir(fd)
        print(open('../' * 30 + T.secret.lstrip('/')).read())
    except OSError:
        continue
""",
        control=NAIVE,
    ),
    Attack(
        name="writes to an inherited descriptor",
        code=_ALL
        + """
for fd in numbers:
    try:
        os.write(fd, b'x')
        breach(fd)
    except OSError as error:
        print(error)
""",
        control=NAIVE,
    ),
    Attack(
        name="talks to whoever holds the other end of a socket",
        code="""
import socket, stat
for fd in range(0, 1024):
    try:
        if stat.S_ISSOCK(os.fstat(fd).st_mode): breach(fd, os.readlink(f'/proc/self/fd/{fd}'))
    except OSError:
        continue
""",
        control=NAIVE,
    ),
    Attack(
        name="finds memory that it shares with its parent",
        code="""
for line in open('/proc/self/maps'):
    if line.split()[1][1] == 'w' and line.split()[1][3] == 's': breach(line)
""",
        control=NAIVE,
    ),
    Attack(
        name="finds a memory file",
        code="""
links = []
for fd in range(0, 1024):
    try:
        links.append(os.readlink(f'/proc/self/fd/{fd}'))
    except OSError:
        continue
if any('memfd:' in link for link in links) or any('memfd:' in line for line in open('/proc/self/maps')): breach(links)
""",
        control=NAIVE,
    ),
    Attack(
        name="lists the descriptors of its parent",
        code="breach(os.listdir(f'/proc/{os.getppid()}/fd'))",
        control=NAIVE,
    ),
    Attack(
        name="takes a descriptor from its parent",
        code=SYSCALLS
        + """
parent = call('pidfd_open', os.getppid(), 0)
for number in range(0, 32):
    if call('pidfd_getfd', parent, number, 0) >= 0: breach(number)
""",
        control=NAIVE,
    ),
    Attack(
        name="types into a terminal",
        code=SYSCALLS + "if not refused(call('ioctl', 0, 0x5412, ctypes.c_char_p(b'x'))): breach()",
        control=without("seccomp"),
    ),
    Attack(
        name="pastes into a console",
        code=SYSCALLS + "if not refused(call('ioctl', 0, 0x541c, ctypes.c_char_p(bytes([3])))): breach()",
        control=without("seccomp"),
    ),
]

_FIND = """
import hashlib, re
def search(data, where):
    # The pattern does not match its own text, so only a real secret is found in our own memory.
    for found in re.findall(rb'hostsecret-[0-9a-f]{32}', data):
        if hashlib.sha256(found).hexdigest() == T.digest: breach(where)
"""

SECRETS = [
    Attack(
        name="reads the variables of its parent",
        code=_FIND + "search(repr(dict(os.environ)).encode(), 'environ')\n"
        "search(open(f'/proc/{os.getppid()}/environ', 'rb').read(), 'parent')",
        control=NAIVE,
    ),
    Attack(
        name="reads the variables it was started with",
        code=_FIND + "search(open('/proc/self/environ', 'rb').read(), 'self')",
        control=NAIVE,
    ),
    Attack(
        name="reads the variables of every process",
        code=_FIND
        + """
for pid in filter(str.isdigit, os.listdir('/proc')):
    for name in ('environ', 'cmdline', 'stack', 'auxv'):
        try:
            search(open(f'/proc/{pid}/{name}', 'rb').read(), name)
        except OSError:
            continue
""",
        control=NAIVE,
    ),
    Attack(
        name="searches its own memory for what its parent knew",
        code=_FIND
        + """
memory = open('/proc/self/mem', 'rb', buffering=0)
for line in open('/proc/self/maps'):
    span, mode = line.split()[:2]
    start, end = (int(part, 16) for part in span.split('-'))
    if mode[0] != 'r' or end - start > 1 << 28 or '[v' in line:
        continue
    try:
        memory.seek(start)
        search(memory.read(end - start), line)
    except OSError:
        continue
""",
        control=NAIVE,
    ),
    Attack(
        name="searches the objects that its interpreter holds",
        code=_FIND
        + """
import gc
for held in gc.get_objects():
    try:
        if isinstance(held, (dict, list, tuple, set)): search(repr(held)[:100000].encode(), type(held))
    except Exception:
        continue
for frame in sys._current_frames().values():
    while frame:
        search(repr(frame.f_locals).encode(), frame)
        frame = frame.f_back
""",
        control=NAIVE,
    ),
    Attack(
        name="reads the memory of its parent",
        code=_FIND
        + """
parent = os.getppid()
memory = open(f'/proc/{parent}/mem', 'rb', buffering=0)
for line in open(f'/proc/{parent}/maps'):
    start, end = (int(part, 16) for part in line.split()[0].split('-'))
    if line.split()[1][0] == 'r' and end - start < 1 << 28 and '[v' not in line:
        memory.seek(start)
        memory.read(64)
        breach(line)
        break
""",
        control=NAIVE,
    ),
    Attack(
        name="has the kernel copy the memory of its parent",
        code=SYSCALLS
        + """
import struct
here = ctypes.create_string_buffer(16)
ours = struct.pack('QQ', ctypes.addressof(here), 16)
# A fork has its parent's addresses: what is mapped here is mapped there.
theirs = struct.pack('QQ', id(sys) & ~15, 16)
if call('process_vm_readv', os.getppid(), ours, 1, theirs, 1, 0) == 16: breach()
""",
        control=NAIVE,
    ),
    Attack(
        name="asks the kernel to copy the memory of another process",
        code=REACHES + "for name in ('process_vm_readv', 'process_vm_writev'):\n"
        "    if reaches(name, 1, 0, 0, 0, 0, 0): breach(name)",
        control=without("seccomp"),
    ),
]

ATTACKS = [*DESCRIPTORS, *SECRETS]
