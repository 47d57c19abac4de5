"""Attacks across runs: what one run plants, a later one must not find, whether its cell was armed before or after; and
what one run does, a concurrent one must not notice.
"""

from __future__ import annotations

from jail_attack import LASTING, NAIVE, NATIVE, REUSED, SLOW, SYSCALLS, Attack, Control, without


def _file(name: str, path: str, control: Control) -> Attack:
    """The name contains no token of the run: both runs must know it."""
    return Attack(
        name=name,
        before=f"os.makedirs(os.path.dirname({path}) or '.', exist_ok=True)\nopen({path}, 'w').write('planted')",
        code=f"if os.path.exists({path}):\n    os.unlink({path})\n    breach()",
        control=control,
    )


FILES = [
    _file("finds a file of an earlier run in /tmp", "f'/tmp/jail-attacks-{T.token}'", NATIVE),
    _file("finds a file of an earlier run in /dev/shm", "f'/dev/shm/jail-attacks-{T.token}'", NATIVE),
    _file("finds a file of an earlier run in its working directory", "'planted.txt'", REUSED),
    _file("finds a file of an earlier run in its home", "os.path.expanduser('~') + f'/.{T.token}'", REUSED),
    Attack(
        name="imports a module that an earlier run left",
        before="open('planted_module.py', 'w').write('x = 1')",
        code="import importlib\nimportlib.invalidate_caches()\nimport planted_module\nbreach()",
        control=REUSED,
    ),
    Attack(
        name="finds the code of an earlier run",
        before="marker = 'planted' + '-code'\ncode = '''the-code-of-an-earlier-run'''",
        code="""
import re
for place in ('/run', '/tmp', '/workspace', '/dev/shm'):
    for folder, _, names in os.walk(place):
        for name in names:
            try:
                text = open(os.path.join(folder, name), 'rb').read(1 << 20)
            except OSError:
                continue
            if re.search(rb'the-code-of-an-earlier-[r]un', text): breach(name)
if 'code' in globals() and 'earlier' in code: breach()
""",
        control=REUSED,
    ),
]

STATE = [
    Attack(
        name="finds a variable of an earlier run",
        before="os.environ['PLANTED'] = 'x'\nos.putenv('PLANTED', 'x')",
        code="import subprocess\n"
        "if 'PLANTED' in os.environ or b'PLANTED' in subprocess.check_output(['env']): breach()",
        control=REUSED,
    ),
    Attack(
        name="finds a builtin that an earlier run replaced",
        before="import builtins\nbuiltins.planted = 1\nbuiltins.len = lambda x: 4711",
        code="import builtins\nif hasattr(builtins, 'planted') or len('') == 4711: breach()",
        control=REUSED,
    ),
    Attack(
        name="finds a module that an earlier run patched",
        before="import json, os.path\njson.planted = 1\njson.loads = lambda x: 4711\nos.path.planted = 1",
        code="import json\n"
        "if hasattr(json, 'planted') or hasattr(os.path, 'planted') or json.loads('1') == 4711: breach()",
        control=REUSED,
    ),
    Attack(
        name="finds a module that an earlier run made",
        before="import types\nsys.modules['planted'] = types.ModuleType('planted')",
        code="if 'planted' in sys.modules: breach()",
        control=REUSED,
    ),
    Attack(
        name="finds a path that an earlier run added",
        before="sys.path.insert(0, '/planted')\nsys.meta_path.append('planted')",
        code="if '/planted' in sys.path or 'planted' in sys.meta_path: breach()",
        control=REUSED,
    ),
    Attack(
        name="finds a hook that an earlier run set",
        before="import atexit, threading\nsys.excepthook = lambda *_: None\nsys.settrace(None)\n"
        "threading.excepthook = 4711\nsys.planted = 1",
        code="import threading\nif hasattr(sys, 'planted') or threading.excepthook == 4711: breach()",
        control=REUSED,
    ),
    Attack(
        name="finds the working directory of an earlier run",
        before="here = os.getcwd()\nos.mkdir('planted')\nos.chdir('planted')",
        code="if os.getcwd().endswith('planted'): breach()",
        control=REUSED,
    ),
    Attack(
        name="finds the umask of an earlier run",
        before="os.umask(0o123)",
        code="if os.umask(0o022) == 0o123: breach()",
        control=REUSED,
    ),
    Attack(
        name="finds the limits of an earlier run",
        before="import resource, signal\nresource.setrlimit(resource.RLIMIT_NOFILE, (47, 47))\n"
        "signal.signal(signal.SIGUSR2, signal.SIG_IGN)\nos.nice(3)",
        code="import resource, signal\nif resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 47: breach()\n"
        "if signal.getsignal(signal.SIGUSR2) == signal.SIG_IGN or os.nice(0) >= T.nice + 3: breach()",
        control=REUSED,
    ),
    Attack(
        name="finds a descriptor that an earlier run opened",
        before="os.dup2(os.open('/dev/zero', os.O_RDONLY), 99)",
        code="if os.path.exists('/proc/self/fd/99'): breach()",
        control=REUSED,
    ),
    Attack(
        name="searches its memory for what an earlier run said",
        # The pattern doesn't match its own text, and the planted text is assembled only in the earlier run.
        before="planted = 'planted-' + T.token[::-1] * 3\nheld = [planted + str(n) for n in range(1000)]",
        code="""
import re
pattern = re.compile(rb'planted-(?:' + T.token[::-1].encode() + rb'){3}')
memory = open('/proc/self/mem', 'rb', buffering=0)
for line in open('/proc/self/maps'):
    start, end = (int(part, 16) for part in line.split()[0].split('-'))
    if line.split()[1][0] != 'r' or end - start > 1 << 28 or '[v' in line:
        continue
    try:
        memory.seek(start)
        if pattern.search(memory.read(end - start)): breach(line)
    except OSError:
        continue
""",
        control=REUSED,
    ),
    Attack(
        name="draws the same random numbers as another run",
        code="import random, sys\nprint(random.random(), random.randrange(1 << 60))",
        alike=True,
        control=NAIVE,
    ),
]

_KEY = "int(T.token[:7], 16)"

KERNEL = [
    Attack(
        name="finds System V shared memory of an earlier run",
        before=SYSCALLS + f"name = call('shmget', {_KEY}, 4096, 0o1666)\nprint(name)",
        code=SYSCALLS
        + f"""
name = call('shmget', {_KEY}, 0, 0)
print(name)
if name >= 0:
    libc.shmctl(ctypes.c_int(name), ctypes.c_int(0), None)
    breach()
""",
        control=without("ipc", "seccomp"),
    ),
    Attack(
        name="finds a message of an earlier run",
        before=SYSCALLS + f"print(call('msgget', {_KEY}, 0o1666))",
        code=SYSCALLS
        + f"""
name = call('msgget', {_KEY}, 0)
print(name)
if name >= 0:
    libc.msgctl(ctypes.c_int(name), ctypes.c_int(0), None)
    breach()
""",
        control=without("ipc", "seccomp"),
    ),
    Attack(
        name="finds a POSIX message queue of an earlier run",
        before=SYSCALLS + "print(call('mq_open', T.token.encode(), 0o102, 0o666, None))",
        code=SYSCALLS
        + """
queue = call('mq_open', T.token.encode(), 2, 0, None)
print(queue)
if queue >= 0:
    libc.mq_unlink(b'/' + T.token.encode())
    breach()
""",
        control=without("ipc", "seccomp", "landlock"),
    ),
    Attack(
        name="finds a key of an earlier run",
        before=SYSCALLS + "print(call('add_key', b'user', T.token.encode(), b'planted', 7, -4))",  # the user's keyring
        code=SYSCALLS
        + """
key = call('keyctl', 10, -4, b'user', T.token.encode(), 0)
print(key)
if key > 0:
    call('keyctl', 9, key, -4)
    breach()
""",
        control=Control(where="native"),
    ),
    Attack(
        name="finds an abstract socket of an earlier run",
        before="""
import socket, time
listener = socket.socket(socket.AF_UNIX)
listener.bind(chr(0) + 'planted-' + T.token)
listener.listen()
if os.fork() == 0:
    os.setsid()
    os.closerange(0, 3)
    time.sleep(20)
    os._exit(0)
""",
        code="import socket\nsocket.socket(socket.AF_UNIX).connect(chr(0) + 'planted-' + T.token)\nbreach()",
        control=NAIVE,
    ),
    Attack(
        name="finds a process of an earlier run",
        # The pipe is closed when the program has been started.
        before="ours, theirs = os.pipe()\nif os.fork() == 0:\n    os.setsid()\n    os.closerange(0, 3)\n"
        "    os.execv('/bin/sleep', ['sleep-' + T.token, '20'])\nos.close(theirs)\nos.read(ours, 1)",
        code="""
for pid in filter(str.isdigit, os.listdir('/proc')):
    try:
        if ('sleep-' + T.token).encode() in open(f'/proc/{pid}/cmdline', 'rb').read(): breach()
    except OSError:
        continue
""",
        control=NAIVE,
    ),
]

_COMMON_FILES = (
    LASTING
    + f"LONG = {2 * SLOW}"
    + """
import ctypes, fcntl, json, struct
import msgspec
def places():
    'Of everything that cells may only read: each place where something is mounted, and some files.'
    mounts = [line.split()[4] for line in open('/proc/self/mountinfo')]
    found = {path for path in mounts if not path.startswith(('/proc', '/dev', '/tmp', '/workspace', '/run'))}
    found |= {'/opt', '/home', '/dev', '/usr/bin', '/usr/bin/env', '/etc', '/etc/passwd', '/.empty', sys.executable}
    found |= {json.__file__, os.path.dirname(json.__file__), msgspec.__file__}
    return sorted(found)
opened = {path: os.open(path, os.O_RDONLY) for path in places()}
assert len(opened) > 10, opened
"""
)
"""`opened`: descriptors by path. Not devices: those are the host's own, see docs/threat-model.md."""

_RECORD_LOCK = """
def record_lock(descriptor, command, kind):
    'What the kernel answers: the kind of lock that is in the way, if any.'
    lock = struct.pack('hhqqixxxx', kind, 0, 0, 0, 0)
    return struct.unpack('hhqqixxxx', fcntl.fcntl(descriptor, command, lock))[0]
"""


def _record_lock(name: str, set_lock: int, get_lock: int) -> Attack:
    return Attack(
        name=name,
        beside=_COMMON_FILES
        + _RECORD_LOCK
        + f"""
for descriptor in opened.values(): record_lock(descriptor, {set_lock}, fcntl.F_RDLCK)
for _ in lasting(LONG): pass
""",
        code=_COMMON_FILES
        + _RECORD_LOCK
        + f"""
seen = set()
for _ in lasting(LONG):
    for path, descriptor in opened.items():
        if record_lock(descriptor, {get_lock}, fcntl.F_WRLCK) != fcntl.F_UNLCK: seen.add(path)
if seen: breach(sorted(seen))
""",
        control=without("locks"),
    )


LATER = [
    Attack(
        name="finds a lock that an earlier run left in a socket",
        # Descriptors in sockets that are referenced only by each other: the kernel's garbage collector must find them.
        before="""
import fcntl, json, socket
held = os.open(json.__file__, os.O_RDONLY)
fcntl.flock(held, fcntl.LOCK_EX)
for _ in range(20):
    one, other = socket.socketpair()
    for end in (one, other): socket.send_fds(end, [b'x'], [one.fileno(), other.fileno(), held])
    one.close(), other.close()
os.close(held)
""",
        code="""
import fcntl, json
try:
    fcntl.flock(os.open(json.__file__, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    breach()
""",
        control=REUSED,
    ),
]

SAME_TIME = [
    Attack(
        name="sees a lock that another run holds",
        beside=_COMMON_FILES
        + """
for descriptor in opened.values(): fcntl.flock(descriptor, fcntl.LOCK_SH)
for _ in lasting(LONG): pass
""",
        code=_COMMON_FILES
        + """
seen = set()
for _ in lasting(LONG):
    for path, descriptor in opened.items():
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        except BlockingIOError:
            seen.add(path)
if seen: breach(sorted(seen))
""",
        control=without("locks"),
    ),
    _record_lock("sees a record lock that another run holds", 6, 5),  # F_SETLK, F_GETLK
    _record_lock("sees a lock of an open file that another run holds", 37, 36),  # F_OFD_SETLK, F_OFD_GETLK
    Attack(
        name="watches which files another run opens",
        beside=_COMMON_FILES
        + """
import subprocess
for _ in lasting(LONG):
    for path in opened: os.close(os.open(path, os.O_RDONLY))
    subprocess.run(['/usr/bin/env', 'true'])
""",
        code=_COMMON_FILES
        + """
libc = ctypes.CDLL(None, use_errno=True)
watch = libc.inotify_init1(os.O_NONBLOCK)
EVERY_EVENT = 0xfff
names = {libc.inotify_add_watch(watch, path.encode(), EVERY_EVENT): path for path in opened}
assert -1 not in names, ctypes.get_errno()
seen = set()
for _ in lasting(LONG):
    try:
        events = os.read(watch, 1 << 16)
    except BlockingIOError:
        continue
    while events:
        number, _, _, size = struct.unpack('iIII', events[:16])
        seen.add(names.get(number, number))
        events = events[16 + size:]
if seen: breach(sorted(map(str, seen)))
""",
        control=without("locks"),
    ),
]

ATTACKS = [*FILES, *STATE, *KERNEL, *LATER, *SAME_TIME]
