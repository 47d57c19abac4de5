"""Attacks on the file system: the host's files, the read-only root, devices, and the contents of /proc and /sys."""

from __future__ import annotations

from jail_attack import NATIVE, REACHES, SYSCALLS, Attack, Control, without

_READ = "print(open({}).read())"

READING = [
    Attack(name="reads a file of the host", code=_READ.format("T.secret"), control=NATIVE),
    Attack(name="reads a file of the host with cat", language="bash", code='cat "$secret"', control=NATIVE),
    Attack(
        name="climbs out of its directory",
        code="os.chdir(os.getcwd())\n" + _READ.format("'../' * 30 + T.secret.lstrip('/')"),
        control=NATIVE,
    ),
    Attack(name="goes through /proc/self/root", code=_READ.format("'/proc/self/root' + T.secret"), control=NATIVE),
    Attack(
        name="goes through its own working directory in /proc",
        code=_READ.format("'/proc/self/cwd/' + '../' * 30 + T.secret.lstrip('/')"),
        control=NATIVE,
    ),
    Attack(
        name="goes through the root or the directory of another process",
        code="""
for pid in filter(str.isdigit, os.listdir('/proc')):
    for way in ('root', 'cwd', 'task/' + pid + '/root'):
        try:
            print(open(f'/proc/{pid}/{way}/' + ('../' * 30 if way == 'cwd' else '') + T.secret.lstrip('/')).read())
        except OSError:
            continue
""",
        control=NATIVE,
    ),
    Attack(
        name="reads through a symbolic link that it made",
        code="os.symlink(T.secret, 'link')\n" + _READ.format("'link'"),
        control=NATIVE,
    ),
    Attack(
        name="reads through a chain of links and directories",
        code="""
os.makedirs('a/b')
os.symlink('/', 'a/b/up')
os.symlink('a/b/up', 'down')
print(open('down/' + T.secret.lstrip('/')).read())
""",
        control=NATIVE,
    ),
    Attack(
        name="makes a hard link to a file of the host",
        code="os.link(T.secret, T.plant)\nprint(open(T.plant).read())\nos.unlink(T.plant)",
        control=NATIVE,
    ),
    Attack(
        name="opens a file of the host by its handle",
        code=SYSCALLS
        + """
handle = ctypes.create_string_buffer(bytes.fromhex(T.handle))
for place in ('.', '/', '/usr', '/etc', sys.prefix, T.temp):
    try:
        mount = os.open(place, os.O_RDONLY)
    except OSError:
        continue
    file = call('open_by_handle_at', mount, handle, 0)
    if file >= 0:
        print(os.read(file, 100).decode())
""",
        control=Control(where="native", root=True),
    ),
    Attack(
        name="asks the kernel to open files by their handles",
        code=REACHES + "reaches('open_by_handle_at', -1, 0, 0) and breach()",
        control=without("seccomp"),
    ),
]

LOOKING = [
    Attack(
        name="finds the host's /etc/shadow",
        code="about = os.stat('/etc/shadow')\nif f'{about.st_dev}:{about.st_ino}' == T.shadow: breach()",
        control=NATIVE,
    ),
    Attack(
        name="finds root's home",
        code="about = os.stat('/root')\nif f'{about.st_dev}:{about.st_ino}' == T.root_home: breach()",
        control=NATIVE,
    ),
    Attack(
        name="sees the users of the host",
        code="import hashlib\nif hashlib.sha256(open('/etc/passwd', 'rb').read()).hexdigest() == T.passwd: breach()",
        control=NATIVE,
    ),
    Attack(
        name="lists the host's temporary directory",
        code="if os.path.basename(T.place) in os.listdir(T.temp): breach()",
        control=NATIVE,
    ),
    Attack(name="asks whether a file of the host exists", code="os.path.exists(T.secret) and breach()", control=NATIVE),
    Attack(
        name="learns the host's name",
        code="import socket\nif socket.gethostname() == T.hostname or os.uname().nodename == T.hostname: breach()",
        control=without("uts"),
    ),
    Attack(
        name="finds paths of the host in its own memory map",
        code="""
text = ''.join(open(f'/proc/self/{name}').read() for name in ('maps', 'cmdline', 'environ'))
text += ' '.join([sys.executable, sys.prefix, sys.base_prefix, *sys.path, *sys.orig_argv])
if T.packages in text or (T.prefix not in ('/usr', '/usr/local') and T.prefix in text): breach()
if any(f'{home}/' in text for home in ('/root', '/home')): breach()
if T.place in os.getcwd() or os.getcwd().startswith(T.temp): breach()
""",
        control=NATIVE,
    ),
    Attack(
        name="finds paths of the host among its mounts",
        code="""
for line in open('/proc/self/mountinfo'):
    root, place = line.split()[3:5]
    if any(path in line for path in (T.packages, T.place, '/root/', '/home/')): breach(line)
    if place == '/' and line.split()[2] == T.root_device: breach(line)
""",
        control=NATIVE,
    ),
    Attack(
        name="sees other mounts through listmount and statmount",
        code=REACHES + "reaches('statmount', 0, 0, 0, 0) and breach()",
        control=without("seccomp"),
    ),
    Attack(name="looks into /sys", code="if os.listdir('/sys'): breach()", control=NATIVE),
    Attack(
        name="reads the kernel's settings",
        code="print(open('/proc/sys/kernel/ostype').read())\nbreach()",
        control=without("proc"),
    ),
    Attack(
        name="reads what the kernel tells of the machine",
        code="""
for name in ('cmdline', 'version', 'kallsyms', 'keys', 'modules', 'partitions', 'interrupts', 'cpuinfo', 'meminfo',
             'config.gz', 'mounts/../kmsg', 'timer_list', 'sched_debug', 'iomem', 'diskstats', 'swaps', 'bus', 'irq',
             'fs', 'driver', 'sysvipc', 'tty', 'scsi', 'acpi', 'loadavg', 'uptime', 'stat', 'net/tcp', 'key-users'):
    if os.path.lexists('/proc/' + name) and name != 'net/tcp': breach(name)
""",
        control=without("proc"),
    ),
    Attack(
        name="finds the kernel's memory or its triggers",
        code="""
for path in ('/proc/kcore', '/proc/kallsyms', '/proc/kmsg', '/proc/sysrq-trigger', '/proc/kpageflags', '/proc/sys',
             '/proc/mtrr', '/dev/mem', '/dev/kmem', '/dev/port', '/dev/kmsg', '/sys/kernel', '/sys/firmware'):
    if os.path.lexists(path): breach(path)
""",
        control=without("proc"),
    ),
    Attack(
        name="finds devices of the host",
        code="""
import stat
harmless = {'null', 'zero', 'full', 'random', 'urandom', 'tty', 'ptmx'}
for folder, _, names in os.walk('/dev'):
    for name in names:
        mode = os.lstat(os.path.join(folder, name)).st_mode
        if (stat.S_ISBLK(mode) or stat.S_ISCHR(mode)) and name not in harmless and not folder.endswith('/pts'):
            breach(name)
""",
        control=NATIVE,
    ),
    Attack(
        name="sees the host's control groups",
        code="""
for line in open('/proc/self/cgroup'):
    if line.strip().split(':', 2)[2] != '/': breach(line)
if os.path.exists('/sys/fs/cgroup'): breach()
""",
        control=NATIVE,
    ),
]

_UNWRITABLE = """
def attempt(path, flags):
    'Whether it can be written to, or only permissions stand in the way: its file system is to be read-only.'
    try:
        os.close(os.open(path, flags | os.O_CLOEXEC, 0o600))
        breach(path)
        if flags & os.O_CREAT: os.unlink(path)
    except OSError as error:
        print(path, error)
    if not os.statvfs(os.path.dirname(path)).f_flag & os.ST_RDONLY: breach(path)
"""
_NEW = "os.O_WRONLY | os.O_CREAT | os.O_EXCL"

WRITING = [
    Attack(
        name="leaves a file on the host",
        code="open(T.plant, 'w').write('x')",
        control=NATIVE,
        succeeded=lambda seen: seen.planted,
    ),
    Attack(
        name="leaves a file on the host through Bash",
        language="bash",
        code='echo x > "$plant"',
        control=NATIVE,
        succeeded=lambda seen: seen.planted,
    ),
    *(
        Attack(name=f"writes to {place}", code=_UNWRITABLE + f"attempt({path}, {flags})", control=NATIVE)
        for place, path, flags in (
            ("/usr", "'/usr/redoma-' + T.token", _NEW),
            ("/etc", "'/etc/redoma-' + T.token", _NEW),
            ("the root directory", "'/redoma-' + T.token", _NEW),
            ("the programs", "os.path.realpath('/bin/sh')", "os.O_WRONLY"),
            (
                "the C library",
                "next(l.split()[-1] for l in open('/proc/self/maps') if 'libc.so' in l or 'libc-' in l)",
                "os.O_WRONLY",
            ),
            ("the interpreter", "os.path.realpath(sys.executable)", "os.O_WRONLY"),
            ("the standard library", "os.path.dirname(os.__file__) + '/redoma_' + T.token", _NEW),
        )
    ),
    Attack(
        name="plants a module in site-packages",
        code="""
import site
for place in (*site.getsitepackages(), *[p for p in sys.path if p.endswith('-packages')]):
    try:
        path = os.path.join(place, f'redoma_{T.token}.txt')
        open(path, 'x').close()
        breach(path)
        os.unlink(path)
    except OSError as error:
        print(error)
""",
        control=Control(where="native", root=True),
    ),
    Attack(
        name="finds another place to write to",
        code="""
allowed = {'/tmp', '/workspace', '/dev/shm', '/run', os.getcwd()}  # the last two: where it is, and its report
for top in ('/', '/var', '/dev', '/run', '/opt', '/usr', '/home', '/srv', '/mnt', '/proc', '/lib', '/etc', '/var/lib'):
    for place in (top, *(os.path.join(top, name) for name in (os.listdir(top) if os.path.isdir(top) else ()))):
        place = os.path.realpath(place)
        if place in allowed or place.startswith('/proc/') or not os.path.isdir(place):
            continue
        try:
            path = os.path.join(place, 'redoma-' + T.token)
            open(path, 'x').close()
            os.unlink(path)
            breach(place)
        except OSError:
            continue
""",
        control=NATIVE,
    ),
    Attack(
        name="finds a file system that is not read-only",
        code="""
private = ('/tmp', '/workspace', '/dev/shm', '/run', '/proc', os.getcwd())
for line in open('/proc/self/mountinfo'):
    place, options = line.split()[4:6]
    if 'rw' in options.split(',') and not place.startswith(private) and not place.startswith('/dev/'):
        breach(place, options)
""",
        control=NATIVE,
    ),
    Attack(
        name="finds a file system that honours setuid programs or devices",
        code="""
for line in open('/proc/self/mountinfo'):
    place, options = line.split()[4:6]
    if 'nosuid' not in options.split(','): breach(place, options)
""",
        control=NATIVE,
    ),
    Attack(
        name="makes a device",
        # Number 0:0 stands for no device at all, and is the only one that any user may make.
        code="import stat\nos.mknod('/tmp/redoma-' + T.token, stat.S_IFCHR | 0o600, os.makedev(0, 0))\n"
        "os.unlink('/tmp/redoma-' + T.token)\nbreach()",
        control=without("seccomp", "landlock"),
    ),
    Attack(
        name="makes the null device and opens it",
        code="import stat\npath = '/tmp/redoma-' + T.token\nos.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))\n"
        "try: os.close(os.open(path, os.O_WRONLY)); breach()\nfinally: os.unlink(path)",
        control=Control(where="native", root=True),
    ),
    Attack(
        name="opens a setting of the kernel for writing",
        code="""
for path in ('/proc/sys/kernel/hostname', '/proc/sys/user/max_user_namespaces', '/proc/sys/vm/drop_caches'):
    try:
        os.close(os.open(path, os.O_WRONLY))
        breach(path)
    except OSError as error:
        print(error)
""",
        control=Control(where="native", root=True),
    ),
]

ATTACKS = [*READING, *LOOKING, *WRITING]
