"""Attacks on the limit of memory: every place where bytes can be kept. Each takes 240 MiB where 96 are allowed.

They report success once they have held what they took for a while, so that a watcher has had time to notice.
"""

from __future__ import annotations

from jail_attack import SYSCALLS, Attack, Control, raised

MiB = 1 << 20
# In steps: a machine that stands still for a while doesn't take them with it, and a watcher gets to look.
_HOLD = "\nimport time\nfor _ in range(100): time.sleep(0.01)\nbreach()\n"
_MEMORY = {"disk": 512 * MiB, "file_size": 512 * MiB, "processes": 100}
_MUCH = raised(memory=1024 * MiB)


_UNWATCHED = Control(without=frozenset({"seccomp"}), limits=_MUCH.limits)
"""For memory that belongs to no process: if no control group counts it, the filter refuses it."""


def _takes(name: str, code: str, control: Control = _MUCH, memory: int = 96 * MiB, kernels_own: bool = False) -> Attack:
    limits = {**_MEMORY, "memory": memory}
    return Attack(
        name=name,
        code=code + _HOLD,
        limits=limits,
        control=control,
        # On a busy machine a watcher may be late; but it comes.
        succeeded=lambda seen: seen.says_so and seen.status == "ok",
        kernels_own=kernels_own,
    )


_CHILDREN = """
import time
def each(number, work, least=180):
    'So many children at one time, each holding what it took; how many bytes, as they count them.'
    ours, theirs = os.pipe()
    for index in range(number):
        if os.fork() == 0:
            try:
                held = work(index)
                size = len(held) if isinstance(held, bytearray) else held.pop()
                os.write(theirs, b'%d ' % size)
                time.sleep(6)
            finally:
                os._exit(0)
    os.close(theirs)
    done = b''
    while done.count(b' ') < number and (more := os.read(ours, 1000)): done += more
    total = sum(map(int, done.split()))
    print(total, flush=True)
    if done.count(b' ') < number or total < least << 20: sys.exit('less than it wanted')
"""
_FILE = """
def fill(path, size):
    with open(path, 'wb') as file:
        for _ in range(size >> 20): file.write(os.urandom(4096) * 256)
"""

ATTACKS = [
    _takes("takes memory from the heap", "held = [bytearray(os.urandom(4096)) * 256 for _ in range(240)]"),
    _takes(
        "maps memory",
        "import mmap\nheld = mmap.mmap(-1, 240 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
        "for at in range(0, len(held), 4096): held[at] = 1",
    ),
    _takes(
        "maps shared memory",
        "import mmap\nheld = mmap.mmap(-1, 240 << 20)\nfor at in range(0, len(held), 4096): held[at] = 1",
        _UNWATCHED,
    ),
    _takes(
        "maps a device as shared memory",
        "import mmap\nzero = os.open('/dev/zero', os.O_RDWR)\nheld = mmap.mmap(zero, 240 << 20)\n"
        "for at in range(0, len(held), 4096): held[at] = 1",
        Control(without=frozenset({"seccomp", "landlock"}), limits=_MUCH.limits),
    ),
    _takes(
        "maps shared memory and lets go of the address",
        "import mmap\nheld = []\nfor _ in range(60):\n    piece = mmap.mmap(-1, 4 << 20)\n"
        "    for at in range(0, len(piece), 4096): piece[at] = 1\n    held.append(piece)\n"
        "import ctypes\nlibc = ctypes.CDLL(None)\n"
        "for piece in held:\n"
        "    start = ctypes.addressof(ctypes.c_char.from_buffer(piece))\n"
        "    libc.munmap(ctypes.c_void_p(start + 4096), ctypes.c_size_t(len(piece) - 4096))",
        _UNWATCHED,
    ),
    _takes("fills /tmp", _FILE + "fill('/tmp/redoma-' + T.token, 240 << 20)"),
    _takes("fills /dev/shm", _FILE + "fill('/dev/shm/redoma-' + T.token, 240 << 20)"),
    _takes("fills its working directory", _FILE + "fill('big', 240 << 20)"),
    _takes(
        "fills files that have no name any more",
        _FILE + "held = []\nfor _ in range(24):\n    held.append(open('x', 'wb'))\n    os.unlink('x')\n"
        "    for _ in range(10): held[-1].write(os.urandom(4096) * 256)\n    held[-1].flush()",
    ),
    _takes(
        "fills a memory file",
        "held = os.memfd_create('x')\nfor _ in range(240): os.write(held, os.urandom(4096) * 256)",
        _UNWATCHED,
    ),
    _takes(
        "fills System V shared memory",
        SYSCALLS
        + """
libc.shmat.restype = ctypes.c_void_p
name = call('shmget', 0, 240 << 20, 0o1600)
if name < 0: sys.exit('refused')
at = libc.shmat(ctypes.c_int(name), None, ctypes.c_int(0))
libc.shmctl(ctypes.c_int(name), ctypes.c_int(0), None)  # goes with the last who has it
for page in range(0, 240 << 20, 4096): ctypes.memset(at + page, 1, 1)
""",
        _UNWATCHED,
    ),
    _takes("takes memory in many children", _CHILDREN + "each(12, lambda _: bytearray(os.urandom(4096)) * (20 << 8))"),
    _takes(
        "takes memory in threads",
        "import threading, time\nheld = []\n"
        "def take():\n    held.append(bytearray(os.urandom(4096)) * (20 << 8))\n    time.sleep(1)\n"
        "threads = [threading.Thread(target=take, daemon=True) for _ in range(12)]\n"
        "for thread in threads: thread.start()\nwhile len(held) < 12: time.sleep(0.01)",
    ),
    _takes(
        "takes memory in children that nobody can look into",
        _CHILDREN
        + """
import ctypes
def hidden(_):
    ctypes.CDLL(None).prctl(4, ctypes.c_ulong(0), 0, 0, 0)  # not dumpable
    return bytearray(os.urandom(4096)) * (20 << 8)
each(12, hidden)
""",
    ),
    _takes(
        "keeps bytes in pipes",
        _CHILDREN
        + """
def pipes(_):
    held, size = [], 0
    for _ in range(100):
        ours, theirs = os.pipe()
        os.set_blocking(theirs, False)
        held += [ours, theirs]
        try:
            while True: size += os.write(theirs, b'x' * 4096)
        except BlockingIOError:
            continue
    return [*held, size]
each(20, pipes, 60)  # where the kernel itself ends it, for each user
""",
        memory=40 * MiB,
        kernels_own=True,
    ),
    _takes(
        "keeps bytes in sockets",
        _CHILDREN
        + """
import socket
def sockets(_):
    held, size = [], 0
    for _ in range(90):
        pair = socket.socketpair()
        held.append(pair)
        for end in pair:
            end.setblocking(False)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 17)
            try:
                while True: size += end.send(b'x' * 32768)
            except BlockingIOError:
                continue
    return [*held, size]
each(5, sockets)
""",
        kernels_own=True,
    ),
    _takes(
        "has the kernel keep page tables",
        # Reading memory that was never written maps one page of zeroes: nothing is resident, but each 2 MB has a page
        # table.
        SYSCALLS
        + """
libc.mmap.restype = ctypes.c_void_p
size = 120 << 30
at = libc.mmap(None, ctypes.c_size_t(size), ctypes.c_int(1), ctypes.c_int(0x4022), ctypes.c_int(-1), ctypes.c_long(0))
if at in (None, (1 << 64) - 1): sys.exit('refused')
libc.madvise(ctypes.c_void_p(at), ctypes.c_size_t(size), ctypes.c_int(15))  # no huge pages
for page in range(at, at + size, 2 << 20): ctypes.string_at(page, 1)
tables = next(int(line.split()[1]) for line in open('/proc/self/status') if line.startswith('VmPTE'))
if tables < 200 << 10: sys.exit(f'only {tables} KiB')
""",
    ),
    _takes(
        "takes memory while its init is kept busy",
        # A watcher that looks at memory only when nothing else happens would never look.
        """
import signal, time
children = []
for _ in range(2):
    children.append(os.fork())
    if children[-1] == 0:
        end = time.monotonic() + 3
        while time.monotonic() < end:
            try: os.kill(os.getppid() if os.getppid() == 1 else 1, signal.SIGCHLD)
            except OSError: pass
        os._exit(0)
time.sleep(0.1)
held = [bytearray(os.urandom(4096)) * 256 for _ in range(240)]
""",
    ),
    _takes(
        "takes memory among orphans that come and go",
        """
import time
if os.fork() == 0:
    end = time.monotonic() + 3
    while time.monotonic() < end:
        child = os.fork()
        if child == 0:
            if os.fork() == 0: os._exit(0)
            os._exit(0)
        os.waitpid(child, 0)
    os._exit(0)
time.sleep(0.1)
held = [bytearray(os.urandom(4096)) * 256 for _ in range(240)]
""",
    ),
]
