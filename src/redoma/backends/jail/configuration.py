"""The whole configuration of a cell: who the guest is, what it finds there, and what it is promised. Data only. Inner.

What it may ask of the kernel is the other half, in `seccomp`. `root` and c/cell.c build what is written here, and the
latter looks, from inside, whether it is so.
"""

from __future__ import annotations

from redoma.backends import linux

# --- who it is ---

GUEST_ID = 1000
"""Who the guest is, inside."""
UNPRIVILEGED_ID = 65530
"""Who it is on the host, when root starts Redoma: a number that belongs to nobody, and so owns no file or process.
(Up to 65519 systemd gives numbers to services, 65534 is nobody's.)"""
HOST_NAME = "redoma"
NAMESPACES = {
    "mount": linux.CLONE_NEWNS,
    "pid": linux.CLONE_NEWPID,
    "net": linux.CLONE_NEWNET,
    "ipc": linux.CLONE_NEWIPC,
    "uts": linux.CLONE_NEWUTS,
    "cgroup": linux.CLONE_NEWCGROUP,
}
"""Namespaces of its own, within a user namespace of its own."""
ENVIRONMENT = {
    "HOME": "/tmp",  # noqa: S108 - inside the cell
    "LANG": "C.UTF-8",
    "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
}
"""Its variables, beside those of the request."""
VARIABLES = (*ENVIRONMENT, "LD_LIBRARY_PATH", "PYTHONHASHSEED")
"""Those that a zygote may have been executed with: they stay readable for all that is forked from it."""

PROXY_PORT = 3128
"""Of its own loopback: where a cell that may reach named hosts finds the proxy, which is served from outside."""

# --- what it sees of the host, read-only ---

READ_ONLY = ("/", "/usr", "/etc", "/opt/redoma/redoma")
"""Places that are looked at, in every cell, for whether they can be written to."""
SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""Beside /usr; links into it on most systems."""
DEVICES = ("null", "zero", "full", "random", "urandom")
ETC_FILES = ("ld.so.cache", "mime.types", "protocols", "services", "ssl/openssl.cnf")
ETC_TREES = ("alternatives", "fonts", "ssl/certs", "terminfo")
"""And that of Java, which has a version in its name."""
TEXTS = {
    "etc/passwd": f"root:x:0:0:root:/root:/bin/false\nguest:x:{GUEST_ID}:{GUEST_ID}:guest:/tmp:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/:/bin/false\n",
    "etc/group": f"root:x:0:\nguest:x:{GUEST_ID}:\nnogroup:x:65534:\n",
    "etc/hosts": f"127.0.0.1 localhost {HOST_NAME}\n::1 localhost\n",
    "etc/hostname": f"{HOST_NAME}\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
"""Files that are ours, so that those of the host don't show."""
SERVICES = b"ssh 22/tcp\ndomain 53/tcp\ndomain 53/udp\nhttp 80/tcp\nhttps 443/tcp\n"
"""Where the host has no list of its own."""
PYTHON, VENV, PACKAGE, PROGRAMS = "/opt/python", "/opt/venv", "/opt/redoma", "/opt/programs"
"""Where the interpreter is inside, its packages, Redoma, and programs that another backend brings along."""
ENVIRONMENT_PREFIX = "/opt/environment"
"""Where the packages of an environment are, below which are `bin` and `lib`."""
PROJECT = "/.project"
"""Where the zygote has a project of the host, read-only. A cell sees it at its own path."""
PARTS = "/.parts"
"""Where the zygote has the directories of the host from which each cell has a view of its own. Not in cells."""
EMPTY = "/.empty"
"""An overlay that is only read needs a second layer."""

# --- what it may write to ---

WRITABLE = ("/tmp", "/workspace", "/dev/shm", "/run")  # noqa: S108 - names inside the cell, each a private mount
"""Where each cell mounts what is its own. The first three share a file system, capped by `disk` and `files`."""
WORKSPACE, HOME = "/workspace", "/home/user"
"""The working directory, and another name for it: a link, for code that has the paths of other sandboxes."""
RUN_BYTES = 16 << 20
"""Of /run: the code and the report."""
CHANGES = "/.changes"
"""Where the zygote has a directory on disk for what cells write to the project, if they can't keep it in memory."""
OVERLAY_OPTIONS = "userxattr,volatile"
"""Volatile: nobody needs the layer after a crash, and without it every unmount would flush the whole disk."""
WRITABLE_DEVICES = ("null", "full", "random", "urandom", "pts")
"""Not /dev/zero: a shared mapping of it is memory that belongs to no process, and so escapes a watcher."""

# --- what it is promised ---

LEAN_WRITABLE = ("/tmp", "/workspace", "/run")  # noqa: S108 - below the directory of the cell
LEAN_READABLE = (
    # Not all of /usr: many images have the application itself in /usr/src.
    *(f"{place}/{name}" for place in ("", "/usr", "/usr/local") for name in (*SYSTEM, "libexec", "share", "include")),
    *(f"/etc/{name}" for name in (*ETC_FILES, *ETC_TREES)),
    *(f"/etc/{name}" for name in ("nsswitch.conf", "localtime", "os-release")),
    "/dev/zero",
    # Of /proc, what concerns the process alone, and not its namespaces: those are the host's.
    *(f"/proc/self/{name}" for name in ("fd", "fdinfo", "maps", "status", "stat", "statm", "cmdline", "environ")),
    *(f"/proc/self/{name}" for name in ("limits", "comm", "io", "auxv", "schedstat", "smaps_rollup")),
)
"""What the guest of a lean cell may read and execute, beside the interpreter and its packages."""
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
"""The layers of a lean cell, probed like the others."""
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
"""What a jail has and a lean cell can't have, and what that means."""

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
"""Isolation layers that every cell is probed for, from inside, before it runs anything."""
