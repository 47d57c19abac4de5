"""The whole configuration of a cell as data: who the guest is, what it sees, where it may write, and which isolation
layers it is promised. Also loaded inside cells.

`root` and c/cell.c build what is written here; then c/probes.h probes from inside whether it is in force. Not here are
the system calls (`seccomp`), the limits that come with a request (`run`), and what is fixed in c/cell.c: rights of
Landlock (`only_these_files`), securebits (`no_capabilities`), and limits on inotify (`no_more_user_namespaces`).
"""

from __future__ import annotations

from redoma.backends import linux

# --- who it is ---

GUEST_ID = 1000
"""User and group id of the guest inside the cell."""
UNPRIVILEGED_ID = 65530
"""User and group id of the guest on the host, if root starts Redoma: an id that nobody has, so it owns no file and no
process. (systemd assigns ids up to 65519 to services; 65534 is `nobody`.)
"""
HOST_NAME = "redoma"
NAMESPACES = {
    "mount": linux.CLONE_NEWNS,
    "pid": linux.CLONE_NEWPID,
    "net": linux.CLONE_NEWNET,
    "ipc": linux.CLONE_NEWIPC,
    "uts": linux.CLONE_NEWUTS,
    "cgroup": linux.CLONE_NEWCGROUP,
}
"""The namespaces that each cell has, besides a user namespace."""
ENVIRONMENT = {
    "HOME": "/tmp",  # noqa: S108 - inside the cell
    "LANG": "C.UTF-8",
    "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
}
"""Environment variables of every run, besides those of the request."""
VARIABLES = (*ENVIRONMENT, "LD_LIBRARY_PATH", "PYTHONHASHSEED")
"""The only variables that a zygote may be executed with: every process forked from it can read them in /proc."""
RLIMITS = {"RLIMIT_CORE": 0, "RLIMIT_MEMLOCK": 64 << 10}
"""Resource limits of every process, besides those that follow from the limits of the request."""
PROXY_PORT = 3128
"""The port on the cell's own loopback at which it reaches the proxy, if the request names hosts. The proxy itself runs
outside.
"""

# --- what it sees of the host, read-only ---

READ_ONLY = ("/", "/usr", "/etc", "/opt/redoma/redoma")
"""Directories that every cell probes to be read-only."""
SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""Directories of programs besides /usr; on most systems they are links into it."""
DEVICES = ("null", "zero", "full", "random", "urandom")
ETC_FILES = ("ld.so.cache", "mime.types", "protocols", "services", "ssl/openssl.cnf")
ETC_TREES = ("alternatives", "fonts", "ssl/certs", "terminfo")
"""Directories of /etc that are shown, besides Java's, which has a version in its name."""
TEXTS = {
    "etc/passwd": f"root:x:0:0:root:/root:/bin/false\nguest:x:{GUEST_ID}:{GUEST_ID}:guest:/tmp:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/:/bin/false\n",
    "etc/group": f"root:x:0:\nguest:x:{GUEST_ID}:\nnogroup:x:65534:\n",
    "etc/hosts": f"127.0.0.1 localhost {HOST_NAME}\n::1 localhost\n",
    "etc/hostname": f"{HOST_NAME}\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
"""Files that we write ourselves, because the host's would name its users and its network."""
SERVICES = b"ssh 22/tcp\ndomain 53/tcp\ndomain 53/udp\nhttp 80/tcp\nhttps 443/tcp\n"
"""The content of /etc/services if the host has none."""
PYTHON, VENV, PACKAGE, PROGRAMS = "/opt/python", "/opt/venv", "/opt/redoma", "/opt/programs"
"""Paths in the cell: of the interpreter, its packages, Redoma, and programs that another backend brings along."""
ENVIRONMENT_PREFIX = "/opt/environment"
"""Path in the cell of the packages of an environment; `bin` and `lib` are below."""
PROJECT = "/.project"
"""Where the zygote mounts a project of the host, read-only. A cell sees the project at its own path."""
PARTS = "/.parts"
"""Where the zygote mounts the host's directories from which each cell gets its own view. Not visible in cells."""
EMPTY = "/.empty"
"""An empty directory: a read-only overlay needs a second lower layer."""

# --- what it may write to ---

WRITABLE = ("/tmp", "/workspace", "/dev/shm", "/run")  # noqa: S108 - names inside the cell, each a private mount
"""Where each cell mounts its own file systems. The first three share one, whose size `disk` and `files` limit."""
WORKSPACE, HOME = "/workspace", "/home/user"
"""The working directory, and a link to it for code that has paths of other sandboxes in it."""
RUN_BYTES = 16 << 20
"""Size of /run, which holds the code and the report."""
CHANGES = "/.changes"
"""Where the zygote mounts a directory on disk for what cells write to the project, if memory can't hold it."""
OVERLAY_OPTIONS = "userxattr,volatile"
"""`volatile`: nobody needs the layer after a crash, and without it each unmount would flush the whole disk."""
WRITABLE_DEVICES = ("null", "full", "random", "urandom", "pts")
"""Without /dev/zero: a shared mapping of it is memory of no process, so a watcher would not count it."""

# --- lean cells: what they may read and write, and which layers they have ---

LEAN_WRITABLE = ("/tmp", "/workspace", "/run")  # noqa: S108 - below the directory of the cell
LEAN_READABLE = (
    # Not all of /usr: many container images have their application in /usr/src.
    *(f"{place}/{name}" for place in ("", "/usr", "/usr/local") for name in (*SYSTEM, "libexec", "share", "include")),
    *(f"/etc/{name}" for name in (*ETC_FILES, *ETC_TREES)),
    *(f"/etc/{name}" for name in ("nsswitch.conf", "localtime", "os-release")),
    "/dev/zero",
    # Of /proc, only what is about the process itself. Its namespaces are the host's.
    *(f"/proc/self/{name}" for name in ("fd", "fdinfo", "maps", "status", "stat", "statm", "cmdline", "environ")),
    *(f"/proc/self/{name}" for name in ("limits", "comm", "io", "auxv", "schedstat", "smaps_rollup")),
)
"""What the guest of a lean cell may read and execute, besides the interpreter and its packages."""
LEAN_DEVICES = ("null", "full", "random", "urandom")
LEAN_LAYERS = {
    "user": "a user id of its own, which owns nothing else",
    "user-namespaces": "the filter of system calls refuses to make any",
    "capabilities": "none",
    "no_new_privs": "no program gains privileges",
    "seccomp": "an allowlist of system calls",
    "landlock": "files and signals kept to the cell",
    "files": "reads the system's programs and the interpreter's packages, and writes to its own directories only",
    "network": "no sockets, but for pairs of its own",
    "ipc": "no shared memory, semaphores or queues of the host's",
    "signals": "reach its own processes only",
    "private": "its own directories, watched in bytes and files",
    "descriptors": "none inherited",
    "environment": "only the variables of the request",
    "init": "the process that reports can't be traced, read or signalled",
}
"""The layers of a lean cell. They are probed like those of a jail."""
LEAN_MISSING = {
    "pid": "it can find out which process ids are in use",
    "mount": "it has the mounts of whoever started Redoma",
    "net": "sockets are refused, but the network is not another one",
    "uts": "the host's name shows",
    "cgroup": "memory is watched, and nothing limits it",
    "filesystem": "whether a file exists, and its size and owner, can be seen",
    "proc": "its children can't read about themselves in /proc",
    "names": "those of the host show",
    "locks": "other cells see its locks on files of the system",
}
"""The layers of a jail that a lean cell can't have, and what that means."""

# --- which layers it is promised ---

LAYERS = {
    "user": "a user of its own, without privileges on the host",
    "pid": "sees and signals its own processes only",
    "mount": "mounts of its own",
    "net": "no network but its own loopback",
    "ipc": "shared memory and queues of its own",
    "uts": "a host name of its own",
    "cgroup": "does not see the host's control groups",
    "user-namespaces": "no further ones can be made",
    "capabilities": "none",
    "no_new_privs": "no program gains privileges",
    "seccomp": "an allowlist of system calls",
    "landlock": "files, signals and abstract sockets kept to the cell",
    "filesystem": "a root built from nothing, read-only",
    "private": "its own /tmp, /dev/shm and workspace, capped in bytes and files",
    "descriptors": "none inherited",
    "environment": "only the variables of the request",
    "proc": "the cell's processes only, and none of the kernel's knobs",
    "init": "the process that reports can't be traced or read",
    "names": "those of the host and its users don't show",
    "locks": "on files that are only read they are its own, and so are watches; devices aside",
}
"""The isolation layers. Every cell is probed for them from inside before it runs anything."""
