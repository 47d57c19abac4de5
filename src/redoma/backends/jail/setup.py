"""How a cell is made: the steps, in their order, each named by the layer that it puts up. Inner.

`keeper`, `init` and `guest` each go down their own list; every later process inherits what an earlier one gave up. A
step that fails breaks the cell: nothing runs with a layer less than was asked for. `without` leaves steps out, for the
tests that must see an attack succeed first.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import select
import signal
import socket
import stat
import struct
from collections.abc import Callable
from typing import Any

from redoma.backends import linux
from redoma.backends.jail.configuration import (
    CHANGES,
    EMPTY,
    HOST_NAME,
    NAMESPACES,
    OVERLAY_OPTIONS,
    PROJECT,
    RUN_BYTES,
    WRITABLE,
    WRITABLE_DEVICES,
)
from redoma.backends.jail.root import enter_user_namespace, put, step, why_no_overlay

Spec = dict[str, Any]
Step = tuple[str, Callable[[Spec], None]]

_PRIVATE = linux.MS_NOSUID | linux.MS_NODEV


def take(steps: tuple[Step, ...], spec: Spec) -> None:
    for name, do in steps:
        if name not in spec["without"]:
            with step(name):
                do(spec)


# --- the keeper: namespaces ---

_OPTIONAL = [name for name in NAMESPACES if name not in ("mount", "pid")]
"""Those that a test may leave out."""


def namespaces(spec: Spec) -> None:
    wanted = 0
    for name, flag in NAMESPACES.items():
        if name not in _OPTIONAL or name not in spec["without"]:
            wanted |= flag
    enter_user_namespace(wanted)


KEEPER: tuple[Step, ...] = (("user", namespaces),)


# --- init, as pid 1: what a cell sees ---


USER_NAMESPACES = "/proc/sys/user/max_user_namespaces"


def no_more_user_namespaces(spec: Spec) -> None:
    """The classic way back to kernel surface. The filter refuses it too; this holds where a filter has a gap."""
    put(USER_NAMESPACES, b"0")


def private_files(spec: Spec) -> None:
    """One file system, capped, behind /tmp, /workspace and /dev/shm; and a small one for /run, so that a guest which
    has filled its disk can still report."""
    size = f"mode=755,size={spec['disk']},nr_inodes={spec['files'] + 8}"
    linux.mount("cell", "/run", "tmpfs", _PRIVATE, size)
    for number, path in enumerate(WRITABLE[:-1]):
        os.mkdir(f"/run/{number}", 0o700)
        linux.mount(f"/run/{number}", path, "", linux.MS_BIND)
    if spec["project"]:
        with step("project"):
            project(spec)
    linux.mount("cell", "/run", "tmpfs", _PRIVATE | linux.MS_NOEXEC, f"mode=755,size={RUN_BYTES},nr_inodes=16")


def project(spec: Spec) -> None:
    """The project at its own path: to be read, or beneath a layer that takes what is written.

    That layer can only be reached by the descriptor that init keeps. In memory it is on the cell's own file system, and
    the limits on that hold for both; on disk, init looks after its size.

    Always through an overlay: its sockets, pipes and locks are not those of the host, as they would be in a bind mount.
    """
    path = spec["project"]
    os.makedirs(path, exist_ok=True)
    if spec["workspace"] == "overlay":
        if not spec["changes"]:
            raise OSError(errno.EOPNOTSUPP, f"changes to it can't be kept separate on this host: {spec['why']}")
        place = f"{CHANGES}/{spec['layer']}" if spec["changes"] == "disk" else "/run/layer"
        os.mkdir(place, 0o700)
        os.mkdir(f"{place}/above", 0o755)
        os.mkdir(f"{place}/work", 0o700)
        options = f"lowerdir={PROJECT},upperdir={place}/above,workdir={place}/work,{OVERLAY_OPTIONS}"
        linux.mount("project", path, "overlay", _PRIVATE, options)
        os.chmod(f"{place}/above", stat.S_IMODE(os.stat(PROJECT).st_mode))
        spec["above"] = os.open(f"{place}/above", os.O_RDONLY | os.O_DIRECTORY)
    else:
        try:
            linux.mount("project", path, "overlay", _PRIVATE | linux.MS_RDONLY, f"lowerdir={PROJECT}:{EMPTY}")
        except OSError as error:
            why = why_no_overlay(error, PROJECT, "/proc")
            raise OSError(error.errno, f"it can't be mounted through an overlay on this host: {why}") from error
    for place in (PROJECT, *([CHANGES] if spec["changes"] == "disk" else [])):
        linux.mount("cell", place, "tmpfs", _PRIVATE | linux.MS_RDONLY, "mode=0,size=4k,nr_inodes=2")


def own_terminals(spec: Spec) -> None:
    """Terminals that nobody else is at. For pty.fork, script, pexpect."""
    options = "newinstance,ptmxmode=0666,mode=600"
    linux.mount("devpts", "/dev/pts", "devpts", linux.MS_NOSUID | linux.MS_NOEXEC, options)


def own_processes(spec: Spec) -> None:
    """/proc with the cell's processes and nothing else: neither the kernel's knobs nor its statistics (Linux 5.8)."""
    linux.mount("proc", "/proc", "proc", _PRIVATE | linux.MS_NOEXEC, "subset=pid")


def own_name(spec: Spec) -> None:
    if "uts" not in spec["without"]:
        socket.sethostname(HOST_NAME)
        linux.set_domain("")


_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1


def own_loopback(spec: Spec) -> None:
    """A cell may talk to itself."""
    if "net" not in spec["without"]:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            request = struct.pack("16sh14x", b"lo", _IFF_UP)
            fcntl.ioctl(any_socket, _SIOCSIFFLAGS, request)


def no_capabilities(spec: Spec) -> None:
    linux.drop_capabilities()


def no_new_privileges(spec: Spec) -> None:
    linux.allow_no_new_privileges()


def own_memory(spec: Spec) -> None:
    """The guest runs as the same user: without this it could trace its init, or take descriptors from it."""
    linux.hide_from_peers()


def die_with_the_zygote(spec: Spec) -> None:
    """After the last change of credentials, which would clear it; and once the keeper has gone, which makes us a child
    of the zygote: the signal comes with the death of whoever is the parent by then."""
    select.select([spec["keeper_handle"]], [], [])
    linux.die_with_parent(signal.SIGKILL)
    if select.select([spec["zygote_handle"]], [], [], 0)[0]:
        os._exit(1)  # it had died before we asked
    os.close(spec["keeper_handle"])
    os.close(spec["zygote_handle"])


INIT: tuple[Step, ...] = (
    ("user-namespaces", no_more_user_namespaces),
    ("private", private_files),
    ("terminals", own_terminals),
    ("proc", own_processes),
    ("names", own_name),
    ("loopback", own_loopback),
    ("capabilities", no_capabilities),
    ("no_new_privs", no_new_privileges),
    ("memory-of-init", own_memory),
    ("lifeline", die_with_the_zygote),
)


def filtered(spec: Spec) -> None:
    linux.install_filter(spec["filter"])


INIT_AFTER_FORK: tuple[Step, ...] = (("seccomp", filtered),)


# --- the guest: what it may do ---


def own_session(spec: Spec) -> None:
    os.setsid()
    linux.show_to_peers()  # or not even /proc/self would be its own
    put("/proc/self/oom_score_adj", b"1000")  # if memory runs out, the guest goes first, and init stays to say so
    # What is ignored or blocked is inherited: some from Python, others from who started Redoma (nohup).
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGINT}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def only_these_files(spec: Spec) -> None:
    abi = spec["landlock"]
    if not abi:
        return  # the mounts say the same; `probe` tells that this second layer isn't there
    everything = linux.landlock_rights(abi) & ~(linux.ACCESS_MAKE_CHAR | linux.ACCESS_MAKE_BLOCK)
    look = linux.ACCESS_EXECUTE | linux.ACCESS_READ_FILE | linux.ACCESS_READ_DIR
    device = linux.ACCESS_READ_FILE | linux.ACCESS_WRITE_FILE | linux.ACCESS_IOCTL_DEV
    devices = [f"/dev/{name}" for name in WRITABLE_DEVICES]
    writable = [*WRITABLE, *([spec["project"]] if spec["workspace"] == "overlay" else [])]
    linux.landlock(
        abi,
        {
            "/": look,
            **dict.fromkeys(devices, device),
            **dict.fromkeys(writable, everything & ~linux.ACCESS_IOCTL_DEV),
        },
    )


def only_its_streams(spec: Spec) -> None:
    """Nothing inherited but the three streams, and for now the order socket, which closes before any code runs."""
    keep = spec["order"]
    os.closerange(3, keep)
    os.closerange(keep + 1, 1 << 20)


GUEST: tuple[Step, ...] = (
    ("session", own_session),
    ("landlock", only_these_files),
    ("seccomp", filtered),
    ("descriptors", only_its_streams),
)

LAYERS = tuple(dict.fromkeys([*_OPTIONAL, *(name for name, _ in (*KEEPER, *INIT, *GUEST))]))
"""Every name that `without` may have."""


# --- and, once the order is there, how much of it ---


def limit(limits: dict[str, int]) -> None:
    """Resource limits by name, soft and hard alike; never above what we are under ourselves."""
    for name, value in limits.items():
        which = getattr(resource, name)
        hard = resource.getrlimit(which)[1]
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (bound, bound))
