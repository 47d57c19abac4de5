"""System calls that the standard library doesn't offer. Only this file and the jail's `compiled.py` use ctypes.

It imports nothing of Redoma: the jail's zygote loads it in a bare interpreter.
"""

from __future__ import annotations

import ctypes
import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38

_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]


def _check(answer: int) -> int:
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return answer


def _syscall(number: int, *arguments: Any, name: str | None = None) -> int:
    """Make a system call that the C library has no function for. Raises OSError with `name` as its file name."""
    converted = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    answer = _libc.syscall(ctypes.c_long(number), *converted)
    if answer < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), name)
    return int(answer)


def _prctl(option: int, value: int) -> None:
    _check(_libc.prctl(option, value, 0, 0, 0))


# --- processes ---


def die_with_parent(signal: int) -> None:
    """Have the kernel send us `signal` when the thread that forked us ends."""
    _prctl(_PR_SET_PDEATHSIG, signal)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that none escapes by daemonising."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def hide_from_peers() -> None:
    """Prevent processes of the same user from tracing us or reading our memory."""
    _prctl(_PR_SET_DUMPABLE, 0)


def show_to_peers() -> None:
    """Undo `hide_from_peers`: /proc/self belongs to us again."""
    _prctl(_PR_SET_DUMPABLE, 1)


# --- privileges ---


CAP_KILL, CAP_SETGID, CAP_SETUID, CAP_SETPCAP, CAP_SYS_ADMIN = 5, 6, 7, 8, 21


def has_capabilities(*needed: int) -> bool:
    """Return whether this process has these capabilities, in its user namespace."""
    with open("/proc/self/status") as file:
        effective = next(int(line.split()[1], 16) for line in file if line.startswith("CapEff:"))
    return all(effective >> number & 1 for number in needed)


def keep_capabilities(*kept: int) -> None:
    """Drop all other capabilities from the bounding set: root then gets no more than these when it executes a
    program.
    """
    for number in range(64):
        if number not in kept:
            try:
                _prctl(_PR_CAPBSET_DROP, number)
            except OSError as error:
                if error.errno == errno.EINVAL:  # after the last capability that this kernel knows
                    return
                raise


def allow_no_new_privileges() -> None:
    """Set no_new_privs: from now on, no program gains privileges by being setuid or having file capabilities."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


# --- namespaces and mounts ---

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

MOUNT_ATTR_NOSUID = 2
MOUNT_ATTR_NODEV = 4
MOUNT_ATTR_NOEXEC = 8
_MOUNT_ATTR_IDMAP = 0x00100000
_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_AT_RECURSIVE = 0x8000
_OPEN_TREE_CLONE, _MOVE_MOUNT_F_EMPTY_PATH = 1, 4
_SYS_OPEN_TREE, _SYS_MOVE_MOUNT = 428, 429
_SYS_MOUNT_SETATTR = 442  # the same on every architecture, like all system calls since Linux 5.1


def unshare(flags: int) -> None:
    """Move into new namespaces of our own (`os.unshare` came with Python 3.12)."""
    _check(_libc.unshare(ctypes.c_int(flags)))


def enter(namespace: int, kind: int) -> None:
    """Move the calling thread into a namespace, given by its descriptor."""
    _check(_libc.setns(namespace, kind))


def mount(source: str, target: str, kind: str, flags: int = 0, data: str = "") -> None:
    """Call mount(2). Raises OSError."""
    _check(
        _libc.mount(
            os.fsencode(source), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), os.fsencode(data) or None
        )
    )


def unmount(target: str, flags: int = 0) -> None:
    """Call umount2(2). Raises OSError."""
    _check(_libc.umount2(os.fsencode(target), ctypes.c_int(flags)))


def pivot_root(new: str, old: str) -> None:
    """Call pivot_root(2). Raises OSError."""
    _check(_libc.pivot_root(os.fsencode(new), os.fsencode(old)))


def restrict_mounts(target: str, attributes: int) -> None:
    """Set flags on a mount and everything below it (Linux 5.12). Unlike a remount it keeps the flags already there."""
    _mount_setattr(_AT_FDCWD, target, _AT_RECURSIVE, attributes)


def _mount_setattr(directory: int, target: str, flags: int, attributes: int, namespace: int = 0) -> None:
    wanted = (ctypes.c_uint64 * 4)(attributes, 0, 0, namespace)
    _syscall(_SYS_MOUNT_SETATTR, directory, os.fsencode(target), flags, wanted, ctypes.sizeof(wanted))


def mount_with_owners(source: str, target: str, namespace: int) -> None:
    """Bind-mount a directory with its files owned by others, as this user namespace maps them (an idmapped mount).
    Needs root, and a file system that supports it (Linux 5.12: ext4, XFS, Btrfs; later also tmpfs).
    """
    tree = _syscall(_SYS_OPEN_TREE, _AT_FDCWD, os.fsencode(source), _OPEN_TREE_CLONE | os.O_CLOEXEC)
    try:
        _mount_setattr(tree, "", _AT_EMPTY_PATH, _MOUNT_ATTR_IDMAP, namespace)
        _syscall(_SYS_MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH)
    finally:
        os.close(tree)


# --- timers ---


class _TimerSpec(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("every_s", "every_ns", "after_s", "after_ns")]


def timer() -> int:
    """Return a descriptor that becomes readable at a set time; at first, none is set."""
    return _check(_libc.timerfd_create(1, os.O_CLOEXEC | os.O_NONBLOCK))  # CLOCK_MONOTONIC


def set_timer(descriptor: int, after: float) -> None:
    """Make a timer readable after some seconds; 0 means at once. An earlier setting is replaced."""
    if (spec := _timer_specs.get(after)) is None:
        nanoseconds = max(1, int(after * 1e9))
        spec = _timer_specs[after] = _TimerSpec(0, 0, nanoseconds // 10**9, nanoseconds % 10**9)
    _check(_libc.timerfd_settime(descriptor, 0, ctypes.byref(spec), None))


_timer_specs: dict[float, _TimerSpec] = {}
"""By their seconds, of which there are a few constants: making one takes longer than setting the timer."""


# --- files ---

RESOLVE_NO_XDEV, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH = 1, 2, 4, 8
_SYS_OPENAT2 = 437


def openat2(directory: int, path: str, flags: int, *, resolve: int) -> int:
    """Open a path below a directory. The kernel ensures that its resolution obeys `resolve` (Linux 5.6)."""
    how = (ctypes.c_uint64 * 3)(flags | os.O_CLOEXEC, 0, resolve)
    return _syscall(_SYS_OPENAT2, directory, os.fsencode(path), how, ctypes.sizeof(how), name=path)


RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2
_SYS_RENAMEAT2 = {"x86_64": 316, "aarch64": 276}.get(os.uname().machine, -1)


def renameat2(source: str, target: str, source_directory: int, target_directory: int, flags: int) -> None:
    """Rename without replacing anything (`RENAME_NOREPLACE`), or exchange both (`RENAME_EXCHANGE`)."""
    paths = (source_directory, os.fsencode(source), target_directory, os.fsencode(target))
    _syscall(_SYS_RENAMEAT2, *paths, flags, name=target)


EXT, XFS, BTRFS = 0xEF53, 0x58465342, 0x9123683E
"""Types of file systems, as `file_system` returns them."""


def file_system(descriptor: int) -> int:
    """Return the type of the file system that an open file is on."""
    answer = (ctypes.c_long * 32)()  # struct statfs has at most 15 longs; the type is the first
    _check(_libc.fstatfs(ctypes.c_int(descriptor), answer))
    return int(answer[0]) & 0xFFFFFFFF


_SYS_STATX = {"x86_64": 332, "aarch64": 291}.get(os.uname().machine, -1)
_STATX_BTIME = 0x800
_AT_SYMLINK_NOFOLLOW = 0x100


def born(directory: int, name: str) -> int | None:
    """Return when a file was created, in ns since the epoch; None if the file system doesn't record it. Unlike its
    other times this can't be set, and moving the file doesn't change it. Links are not followed.
    """
    answer = (ctypes.c_uint64 * 32)()
    _syscall(_SYS_STATX, directory, os.fsencode(name), _AT_SYMLINK_NOFOLLOW, _STATX_BTIME, answer)
    known = answer[0] & 0xFFFFFFFF & _STATX_BTIME
    return int(answer[10] * 10**9 + (answer[11] & 0xFFFFFFFF)) if known else None


# --- Landlock ---

_SYS_LANDLOCK_CREATE_RULESET = 444
_LANDLOCK_VERSION = 1

LANDLOCK_SCOPES = 6
"""The first version that confines signals and abstract sockets (Linux 6.12)."""


def landlock_abi() -> int:
    """Return the version of Landlock that this kernel has; 0 if there is none, it is of no use, or it is switched off.

    Version 1 (Linux 5.13 to 5.18) is of no use: it refuses every move of a file to another directory.
    """
    answer = _libc.syscall(
        ctypes.c_long(_SYS_LANDLOCK_CREATE_RULESET), None, ctypes.c_size_t(0), ctypes.c_uint32(_LANDLOCK_VERSION)
    )
    return int(answer) if answer > 1 else 0


def landlock_promise(abi: int) -> str:
    """Return a description of what Landlock confines to the cell with this version."""
    return f"files{', signals and abstract sockets' if abi >= LANDLOCK_SCOPES else ''} kept to the cell"


# --- seccomp ---

# other architectures have no filter program either
_SYS_SECCOMP = {"x86_64": 317, "aarch64": 277}.get(os.uname().machine, -1)
_SECCOMP_SET_MODE_FILTER = 1
_SECCOMP_FILTER_FLAG_TSYNC = 1


class _FilterProgram(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]  # points into the bytes: no copy


def install_filter(program: bytes) -> None:
    """Install a filter (see `jail.seccomp`) for every later system call of ours and of all our children. It can't be
    removed.

    It applies to all threads of the process, or fails: a thread left out would be a way around it.
    """
    instructions = _FilterProgram(len(program) // 8, program)  # an instruction has 8 bytes
    flags = _SECCOMP_FILTER_FLAG_TSYNC
    thread = _syscall(_SYS_SECCOMP, _SECCOMP_SET_MODE_FILTER, flags, ctypes.byref(instructions))
    if thread:
        raise OSError(f"thread {thread} could not be put under the system call filter")
