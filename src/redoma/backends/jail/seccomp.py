"""The system calls that a cell may make, as data with reasons. `program` compiles them to BPF for the kernel.

The first line that applies decides on a call:

    a foreign architecture (32-bit, x32)   the process is killed: its numbers mean other calls
    CHECKED   by its arguments             the first rule that matches, else allowed
    ALLOWED                                passed to the kernel
    REFUSED   an errno                     EPERM for what a cell must not do; a program can report it and go on
    all else  ENOSYS                       as on a kernel without the call: libraries fall back to older ones

Refused calls are never fatal, because programs probe for features. New calls of the kernel are refused until somebody
has reviewed them. The kernel reads only the low 32 bits of most arguments (commands, families, flags, ids), and so do
the conditions here: what a guest puts into the upper half makes no difference. A filter can't check paths and
structures; other layers do that.

Two calls of x86-64 bypass filters, because they are meant for the kernel itself: `uretprobe` (335, since Linux 6.14 and
in stable releases of earlier versions) and `uprobe` (336, since 6.18). They work only from a page of code that the
kernel puts into a process in which root has set a probe, and report to that probe, as its breakpoint would. Called from
anywhere else, one kills the caller with SIGILL, the other fails with ENXIO. A test looks for more such calls.

We compile the program ourselves, once for each zygote (1 ms). libseccomp can't express "these values are allowed, all
others get that errno" (2.5.4 silently drops the allowing rules), and it would be one more dependency.
"""

from __future__ import annotations

import errno
import os
import struct
import sys

ALLOWED = {
    "reading and writing": """
        read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 lseek sendfile copy_file_range
        splice tee fsync fdatasync sync_file_range fadvise64 readahead ftruncate truncate fallocate flock""",
    "files by name": """
        open openat openat2 creat close close_range dup dup2 dup3 access faccessat faccessat2 stat lstat fstat
        newfstatat statx statfs fstatfs readlink readlinkat getcwd chdir fchdir mkdir mkdirat rmdir unlink unlinkat
        rename renameat renameat2 link linkat symlink symlinkat chmod fchmod fchmodat fchmodat2 chown fchown lchown
        fchownat utime utimes utimensat futimesat umask getdents getdents64 getxattr lgetxattr fgetxattr getxattrat
        setxattr lsetxattr fsetxattr setxattrat listxattr llistxattr flistxattr listxattrat removexattr lremovexattr
        fremovexattr removexattrat inotify_init inotify_init1 inotify_add_watch inotify_rm_watch""",
    "waiting for descriptors": """
        pipe pipe2 poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2
        eventfd eventfd2 signalfd signalfd4 timerfd_create timerfd_settime timerfd_gettime""",
    "memory": """
        brk munmap mremap mprotect madvise msync mincore mlock mlock2 mlockall munlock munlockall mseal pkey_alloc
        pkey_free pkey_mprotect map_shadow_stack get_mempolicy""",
    "processes and threads": """
        fork vfork execve execveat exit exit_group wait4 waitid getpid getppid gettid getpgid getpgrp setpgid getsid
        setsid set_tid_address set_robust_list futex futex_waitv rseq membarrier pidfd_open getrlimit setrlimit
        getrusage times getpriority ioprio_get sched_yield sched_getaffinity sched_getparam sched_getscheduler
        sched_getattr sched_get_priority_min sched_get_priority_max sched_rr_get_interval getcpu restart_syscall""",
    "users": """
        getuid geteuid getgid getegid getresuid getresgid getgroups setuid setgid setreuid setregid setresuid
        setresgid setfsuid setfsgid setgroups capget capset""",  # without capabilities they change nothing
    "signals": """
        rt_sigaction rt_sigprocmask rt_sigpending rt_sigtimedwait rt_sigsuspend rt_sigreturn rt_sigqueueinfo
        rt_tgsigqueueinfo sigaltstack kill tkill tgkill pidfd_send_signal pause""",
    "time": """
        time gettimeofday clock_gettime clock_getres clock_nanosleep nanosleep alarm getitimer setitimer timer_create
        timer_settime timer_gettime timer_getoverrun timer_delete""",
    "sockets": """
        bind connect listen accept accept4 getsockname getpeername sendto recvfrom sendmsg recvmsg sendmmsg
        recvmmsg shutdown""",
    "IPC of its own namespace": """
        shmat shmdt shmctl semop semtimedop semctl msgsnd msgrcv msgctl mq_open mq_unlink mq_timedsend mq_timedreceive
        mq_notify mq_getsetattr""",
    "the machine": "uname sysinfo getrandom",
    "locking oneself in further": "landlock_create_ruleset landlock_add_rule landlock_restrict_self",
}

REFUSED = {
    "the file system's shape: how jails are left": "mount umount2 pivot_root chroot",
    "the new mount API does the same under other names": """
        open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick mount_setattr statmount listmount""",
    "a new namespace gives capabilities over kernel code that nobody else reaches": "unshare setns",
    "another process's memory, registers and descriptors, its init's first of all": """
        ptrace process_vm_readv process_vm_writev process_madvise process_mrelease kcmp pidfd_getfd""",
    "files by inode number, past every directory": "open_by_handle_at name_to_handle_at",
    "a cell installs no filter: compiled code in the kernel, and listeners that answer for others": "seccomp",
    "keyrings belong to the user, not to the cell": "add_key request_key keyctl",
    "programs in the kernel, and its counters": "bpf perf_event_open lookup_dcookie",
    "stopping the kernel in the middle of a copy: half of every exploit of a race": "userfaultfd",
    "watching whole file systems": "fanotify_init fanotify_mark",
    "other processes' pages, and the placement of one's own": """
        move_pages migrate_pages mbind set_mempolicy set_mempolicy_home_node""",
    "the machine: its kernel": "kexec_load kexec_file_load init_module finit_module delete_module reboot syslog",
    "the machine: its ports, segments and terminals": "iopl ioperm modify_ldt vhangup",
    "the machine: its disks": "swapon swapoff quotactl quotactl_fd acct",
    "the machine: its clock and names": """
        settimeofday clock_settime adjtimex clock_adjtime sethostname setdomainname""",
}

# Refused with ENOSYS, which is the default anyway: listed for their reasons, and for tests.
ABSENT = {
    "its flags are in memory, where no filter sees them; libraries fall back to clone": "clone3",
    "does what other calls do, past the filter": "io_uring_setup io_uring_enter io_uring_register",
    "its contexts come out of a pool of the whole machine": "io_setup io_submit io_getevents io_cancel io_destroy",
    "a page lent to a pipe outlives its mapping, and holds 2 MB; forks have read each other's": "vmsplice",
    "memory that nobody can count": "memfd_secret",
    "tells what other processes have read": "cachestat",
}

# Memory that is not in the resident set of a process: a watcher can't see it. A cgroup counts it.
ABSENT_WHEN_WATCHED = {"memory without a process": "memfd_create shmget semget msgget"}

# A lean cell shares its pid, IPC and network namespaces with whoever started Redoma.
ABSENT_WHEN_LEAN = {
    "shared memory, semaphores and queues of everybody": """
        shmget shmat shmdt shmctl semget semop semtimedop semctl msgget msgsnd msgrcv msgctl mq_open mq_unlink
        mq_timedsend mq_timedreceive mq_notify mq_getsetattr""",
}
# Landlock doesn't restrict changing modes, owners and times. A guest with Redoma's own user id could change those of
# Redoma's files. So these calls succeed and do nothing, as on file systems that don't store them.
PRETENDED_WITHOUT_OWN_USER = """
    chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes utimensat futimesat"""
UNSUPPORTED_WITHOUT_OWN_USER = """
    setxattr lsetxattr fsetxattr setxattrat removexattr lremovexattr fremovexattr removexattrat"""
# Nor does it restrict watching a directory, which reveals the names of new files, or attributes of files.
REFUSED_WHEN_LEAN = "inotify_init inotify_init1"
UNSUPPORTED_WHEN_LEAN = "getxattr lgetxattr getxattrat listxattr llistxattr listxattrat"

# A file system on disk has no size limit, and is only checked from time to time. One call could fill the disk before.
# (The C library then writes zeros instead.)
UNSUPPORTED_ON_DISK = "fallocate"

# Flushing disks slows the whole machine down, and nothing that a cell writes needs it: succeeds and does nothing.
PRETENDED = "sync syncfs"

_KILL, _ALLOW, _ERRNO = 0x80000000, 0x7FFF0000, 0x00050000  # the last two bytes are the errno


class Condition:
    """Holds if the low 32 bits of an argument, under a mask, are among these values (or not: `wanted`)."""

    __slots__ = ("argument", "mask", "values", "wanted")

    def __init__(self, argument: int, values: tuple[int, ...], mask: int = 0xFFFFFFFF, wanted: bool = True) -> None:
        self.argument, self.values, self.mask, self.wanted = argument, values, mask, wanted

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Condition) and all(
            getattr(self, name) == getattr(other, name) for name in self.__slots__
        )

    def __hash__(self) -> int:
        return hash(self._parts)

    @property
    def _parts(self) -> tuple[object, ...]:
        return self.argument, self.values, self.mask, self.wanted


class Rule:
    """The errno for a call if all conditions hold."""

    __slots__ = ("conditions", "errno")

    def __init__(self, errno: int, conditions: tuple[Condition, ...]) -> None:
        self.errno, self.conditions = errno, conditions


def _is(argument: int, *values: int, mask: int = 0xFFFFFFFF) -> Condition:
    return Condition(argument, values, mask)


def _is_not(argument: int, *values: int, mask: int = 0xFFFFFFFF) -> Condition:
    return Condition(argument, values, mask, wanted=False)


def _has(argument: int, flags: int) -> Condition:
    return Condition(argument, (0,), flags, wanted=False)


def _refuse(*conditions: Condition, by: int = errno.EPERM) -> Rule:
    return Rule(by, conditions)


_CLONE_NEW = 0x7E020000  # cgroup, uts, ipc, user, pid, net; mount. The time namespace has no flag in clone.
_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10
_STREAM_DGRAM_SEQPACKET = (1, 2, 5)
_SOCKET_TYPE = 0xF  # the rest are flags
_MAP_ANONYMOUS, _MAP_HUGETLB = 0x20, 0x40000
_INIT = 1  # the cell's init, which has the guest's user id

_TERMINAL = (
    *range(0x5401, 0x5405),  # TCGETS, TCSETS, TCSETSW, TCSETSF
    *range(0x5409, 0x5412),  # TCSBRK … TIOCSCTTY, TIOCGPGRP, TIOCSPGRP, TIOCOUTQ
    *(0x5413, 0x5414),  # TIOCGWINSZ, TIOCSWINSZ
    *(0x5420, 0x5422, 0x5424, 0x5425, 0x5429),  # TIOCPKT, TIOCNOTTY, TIOCGETD, TCSBRKP, TIOCGSID
    *(0x802C542A, 0x402C542B, 0x402C542C, 0x402C542D),  # TCGETS2, TCSETS2, TCSETSW2, TCSETSF2
    *(0x80045430, 0x40045431, 0x80045438, 0x80045439, 0x5441),  # TIOCGPTN, TIOCSPTLCK, and their like
)
_FILE = (
    *(0x541B, 0x5421, 0x5450, 0x5451, 0x5452, 0x5460),  # FIONREAD, FIONBIO, FIONCLEX, FIOCLEX, FIOASYNC, FIOQSIZE
    *(0x40049409, 0x4020940D),  # FICLONE, FICLONERANGE
    *(2, 0x80086601, 0x801C581F),  # FIGETBSZ, FS_IOC_GETFLAGS, FS_IOC_FSGETXATTR
)
_INTERFACE = (
    *(0x8905, 0x8910, 0x8912, 0x8913, 0x8915, 0x8917),  # SIOCATMARK, SIOCGIFNAME, …CONF, …FLAGS, …ADDR, …DSTADDR
    *(0x8919, 0x891B, 0x891D, 0x8921, 0x8927, 0x8933, 0x8942),  # BRDADDR, NETMASK, METRIC, MTU, HWADDR, INDEX, TXQLEN
)
_PRCTL = (
    *(1, 2, 3, 4, 7, 8, 15, 16),  # parent's death signal, dumpable, keep capabilities, name
    *(21, 23, 24, 27, 29, 30, 36, 37),  # get seccomp, bounding set, get secure bits, timer slack, subreaper
    *(38, 39, 41, 42, 47, 52),  # no_new_privs, huge pages, ambient capabilities, get speculation control
    *(50, 51, 54, 55, 56, 60, 61, 63, 64),  # SVE and SME vectors, pointer keys, tagged addresses (ARM)
    *(65, 66, 0x53564D41),  # deny writable code, names of mappings
)
_ARCH_PRCTL = (0x1001, 0x1002, 0x1003, 0x1004, 0x1011, 0x1021, 0x1022, 0x1023, 0x3001, *range(0x5001, 0x5006))

CHECKED: dict[str, tuple[Rule, ...]] = {
    "clone": (_refuse(_has(0, _CLONE_NEW)),),
    "socket": (
        _refuse(_is_not(0, _AF_UNIX, _AF_INET, _AF_INET6), by=errno.EAFNOSUPPORT),  # netlink, packet, vsock, alg …
        _refuse(_is_not(1, *_STREAM_DGRAM_SEQPACKET, mask=_SOCKET_TYPE)),  # raw, packet
        # SCTP, L2TP, MPTCP, UDP-Lite: naming one makes the kernel load its module.
        _refuse(_is_not(0, _AF_UNIX), _is_not(2, 0, 6, 17), by=errno.EPROTONOSUPPORT),
    ),
    "socketpair": (
        _refuse(_is_not(0, _AF_UNIX), by=errno.EAFNOSUPPORT),
        _refuse(_is_not(1, *_STREAM_DGRAM_SEQPACKET, mask=_SOCKET_TYPE)),
    ),
    "setsockopt": (
        _refuse(_is(1, 1), _is(2, 26, 50, 51, 52)),  # BPF on a socket, classic and extended
        _refuse(_is(1, 6), _is(2, 31)),  # TCP_ULP: TLS in the kernel, a rich vein of bugs
        _refuse(_is(1, 1), _is(2, 76), by=errno.ENOPROTOOPT),  # SO_PASSPIDFD: see getsockopt
    ),
    "getsockopt": (
        # SO_PEERGROUPS and SO_PEERPIDFD: they would reveal who made the socket that a session gets its input from.
        _refuse(_is(1, 1), _is(2, 59, 77), by=errno.ENOPROTOOPT),
    ),
    "ioctl": (
        _refuse(_is(1, 0x5412, 0x541C, 0x541D, 0x5423)),  # TIOCSTI, TIOCLINUX, TIOCCONS, TIOCSETD
        _refuse(_is_not(1, *_TERMINAL, *_FILE, *_INTERFACE), by=errno.ENOTTY),  # as a device without that command
    ),
    "fcntl": (
        _refuse(_is(1, 1024, 1040)),  # a lease on a file of the host stops its writers for 45 s
        _refuse(_is(1, 1026)),  # F_NOTIFY tells what others do in a directory; inotify does the same, and is counted
        _refuse(_is(1, 1036, 1038)),  # F_SET_RW_HINT and F_SET_FILE_RW_HINT: a note on a file, for whoever asks later
    ),
    "mmap": (_refuse(_has(3, _MAP_HUGETLB), by=errno.ENOMEM),),  # a pool of the whole machine, in nobody's count
    "memfd_create": (_refuse(_has(1, 4), by=errno.ENOMEM),),  # MFD_HUGETLB
    "shmget": (_refuse(_has(2, 0o4000), by=errno.ENOMEM),),  # SHM_HUGETLB
    "semget": (),
    "msgget": (),
    "mknod": (_refuse(_is(1, 0o020000, 0o060000, mask=0o170000)),),  # devices; 0:0 would be an overlay's deletion
    "mknodat": (_refuse(_is(2, 0o020000, 0o060000, mask=0o170000)),),
    "personality": (_refuse(_is_not(0, 0, 0xFFFFFFFF)),),  # no randomisation, executable data; -1 asks
    "prctl": (
        _refuse(_is(0, 22)),  # PR_SET_SECCOMP: see seccomp
        _refuse(_is_not(0, *_PRCTL), by=errno.EINVAL),  # as an option this kernel doesn't know
    ),
    "arch_prctl": (_refuse(_is_not(0, *_ARCH_PRCTL), by=errno.EINVAL),),  # all but CRIU's mapping of vDSOs
    "prlimit64": (_refuse(_is_not(0, 0)),),
    # A guest must not slow its init down, which counts what the cell uses.
    "sched_setaffinity": (_refuse(_is(0, _INIT)),),
    "sched_setscheduler": (_refuse(_is(0, _INIT)),),
    "sched_setparam": (_refuse(_is(0, _INIT)),),
    "sched_setattr": (_refuse(_is(0, _INIT)),),
    "setpriority": (_refuse(_is_not(0, 0)), _refuse(_is(1, _INIT))),  # nor by group or user
    "ioprio_set": (_refuse(_is_not(0, 1)), _refuse(_is(1, _INIT))),
}

CHECKED_WHEN_WATCHED: dict[str, tuple[Rule, ...]] = {
    # Shared memory without a file stays allocated when all but one page of it is unmapped.
    "mmap": (_refuse(_has(3, _MAP_ANONYMOUS), _is(3, 1, 3, mask=0xF)),),
}


CHECKED_WHEN_LEAN: dict[str, tuple[Rule, ...]] = {
    # The network is the container's, so no sockets but pairs: none can be reached by path or by sending.
    "socket": (_refuse(),),
    "socketpair": (_refuse(_is_not(1, 1, 5, mask=_SOCKET_TYPE)),),  # a datagram can be sent to any address
    "prctl": (_refuse(_is(0, 1)),),  # PR_SET_PDEATHSIG: the guest ends with its init
    # Only for the process itself: other processes may have the same user.
    "sched_setaffinity": (_refuse(_is_not(0, 0)),),
    "sched_setscheduler": (_refuse(_is_not(0, 0)),),
    "sched_setparam": (_refuse(_is_not(0, 0)),),
    "sched_setattr": (_refuse(_is_not(0, 0)),),
    "setpriority": (_refuse(_is_not(1, 0)),),
    "ioprio_set": (_refuse(_is_not(1, 0)),),
}


def program(
    watched: bool,
    machine: str | None = None,
    *,
    changes_on_disk: bool = False,
    lean: bool = False,
    own_user: bool = True,
) -> bytes:
    """Return the filter as BPF, for `linux.install_filter`.

    `watched`: init adds up the memory of the processes, so there must be no memory outside of them.
    `changes_on_disk`: changes to the project are on a file system without a fixed size.
    `lean`: the cell has no namespaces; `own_user`: but its own user.
    `machine` is for tests: the architecture to compile for.
    """
    machine = machine or os.uname().machine
    if machine not in _ARCHITECTURES or sys.maxsize < 1 << 32:
        known = " and ".join(_ARCHITECTURES)
        raise OSError(errno.ENOSYS, f"there is a system call filter for 64-bit {known} only, not for {machine}")
    architecture, column = _ARCHITECTURES[machine]
    numbers: dict[str, int] = {}
    for line in _NUMBERS.split(","):
        name, *columns = line.split()
        if columns[column] != "-":
            numbers[name] = int(columns[column])
    found = _answers(watched, changes_on_disk, lean, own_user)
    answers = {numbers[name]: code for name, code in found.items() if name in numbers}
    load_architecture = [(_LOAD, 0, 0, 4), (_JUMP_EQUAL, 1, 0, architecture), _answer(_KILL), (_LOAD, 0, 0, 0)]
    return b"".join(struct.pack("=HBBI", *step) for step in [*load_architecture, *_search(_ranges(answers, machine))])


# --- the compiler ---

_Step = tuple[int, int, int, int]  # operation, how far to jump if true, and if false, operand
_Code = list[_Step]

_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_JUMP, _JUMP_EQUAL, _JUMP_AT_LEAST = 0x05, 0x15, 0x35
_X32 = 0x40000000


def _answer(action: int) -> _Step:
    return _RETURN, 0, 0, action


def _answers(watched: bool, changes_on_disk: bool, lean: bool, own_user: bool) -> dict[str, _Code]:
    """Return the code for each call by name. The first list that has a call decides: refusals come first."""
    found: dict[str, _Code] = {}

    def add(names: str, action: int) -> None:
        for name in names.split():
            found.setdefault(name, [_answer(action)])

    if watched:
        for names in ABSENT_WHEN_WATCHED.values():
            add(names, _ERRNO | errno.ENOSYS)
    if lean:
        for names in ABSENT_WHEN_LEAN.values():
            add(names, _ERRNO | errno.ENOSYS)
        add(REFUSED_WHEN_LEAN, _ERRNO | errno.EMFILE)
        add(UNSUPPORTED_WHEN_LEAN, _ERRNO | errno.EOPNOTSUPP)
    if lean and not own_user:
        add(PRETENDED_WITHOUT_OWN_USER, _ERRNO | 0)
        add(UNSUPPORTED_WITHOUT_OWN_USER, _ERRNO | errno.EOPNOTSUPP)
    if changes_on_disk:
        add(UNSUPPORTED_ON_DISK, _ERRNO | errno.EOPNOTSUPP)
    for names in ABSENT.values():
        add(names, _ERRNO | errno.ENOSYS)
    for names in REFUSED.values():
        add(names, _ERRNO | errno.EPERM)
    add(PRETENDED, _ERRNO | 0)
    for name, rules in CHECKED.items():
        more = CHECKED_WHEN_WATCHED.get(name, ()) if watched else ()
        more += CHECKED_WHEN_LEAN.get(name, ()) if lean else ()
        found.setdefault(name, [step for rule in (*more, *rules) for step in _rule(rule)] + [_answer(_ALLOW)])
    for names in ALLOWED.values():
        add(names, _ALLOW)
    return found


def _rule(rule: Rule) -> _Code:
    """Return code that answers if all conditions hold, and otherwise continues after itself."""
    code = [_answer(_ERRNO | rule.errno)]
    for condition in reversed(rule.conditions):
        code = [*_condition(condition, len(code)), *code]
    return code


def _condition(condition: Condition, skip: int) -> _Code:
    """Return code that continues after itself if the condition holds, and otherwise skips `skip` instructions."""
    code: _Code = [(_LOAD, 0, 0, 16 + 8 * condition.argument)]  # the low half: both architectures are little-endian
    if condition.mask != 0xFFFFFFFF:
        code.append((_AND, 0, 0, condition.mask))
    found, none = (0, skip) if condition.wanted else (skip, 0)
    for left, value in zip(reversed(range(len(condition.values))), condition.values, strict=True):
        code.append((_JUMP_EQUAL, left + found, 0 if left else none, value))
    return code


def _ranges(answers: dict[int, _Code], machine: str) -> list[tuple[int, _Code]]:
    """Return pairs: the first number of a range of calls, and its code. Neighbours with equal code are merged."""
    absent = [_answer(_ERRNO | errno.ENOSYS)]
    starts = {0: absent}
    for number in sorted(answers):
        starts[number] = answers[number]
        starts.setdefault(number + 1, absent)
    if machine == "x86_64":  # numbers of x32 have this bit set; with the sign bit, too, it is not a call
        starts[_X32], starts[_X32 << 1] = [_answer(_KILL)], absent
    found: list[tuple[int, _Code]] = []
    for number, code in sorted(starts.items()):
        if not found or found[-1][1] != code:
            found.append((number, code))
    return found


def _search(ranges: list[tuple[int, _Code]]) -> _Code:
    """Return code that finds the range by bisection. The kernel can then tell by the number what is always allowed."""
    if len(ranges) == 1:
        return ranges[0][1]
    middle = len(ranges) // 2
    below, above = _search(ranges[:middle]), _search(ranges[middle:])
    number = ranges[middle][0]
    if len(below) < 256:
        return [(_JUMP_AT_LEAST, len(below), 0, number), *below, *above]
    return [(_JUMP_AT_LEAST, 0, 1, number), (_JUMP, 0, 0, len(below)), *below, *above]  # conditions can't jump far


# --- the numbers ---

_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}  # AUDIT_ARCH value; column of the table below

_NUMBERS = """
    accept 43 202, accept4 288 242, access 21 -, acct 163 89, add_key 248 217, adjtimex 159 171, alarm 37 -,
    arch_prctl 158 -, bind 49 200, bpf 321 280, brk 12 214, cachestat 451 451, capget 125 90, capset 126 91,
    chdir 80 49, chmod 90 -, chown 92 -, chroot 161 51, clock_adjtime 305 266, clock_getres 229 114,
    clock_gettime 228 113, clock_nanosleep 230 115, clock_settime 227 112, clone 56 220, clone3 435 435, close 3 57,
    close_range 436 436, connect 42 203, copy_file_range 326 285, creat 85 -, delete_module 176 106, dup 32 23,
    dup2 33 -, dup3 292 24, epoll_create 213 -, epoll_create1 291 20, epoll_ctl 233 21, epoll_pwait 281 22,
    epoll_pwait2 441 441, epoll_wait 232 -, eventfd 284 -, eventfd2 290 19, execve 59 221, execveat 322 281, exit 60 93,
    exit_group 231 94, faccessat 269 48, faccessat2 439 439, fadvise64 221 223, fallocate 285 47, fanotify_init 300 262,
    fanotify_mark 301 263, fchdir 81 50, fchmod 91 52, fchmodat 268 53, fchmodat2 452 452, fchown 93 55,
    fchownat 260 54, fcntl 72 25, fdatasync 75 83, fgetxattr 193 10, finit_module 313 273, flistxattr 196 13,
    flock 73 32, fork 57 -, fremovexattr 199 16, fsconfig 431 431, fsetxattr 190 7, fsmount 432 432, fsopen 430 430,
    fspick 433 433, fstat 5 80, fstatfs 138 44, fsync 74 82, ftruncate 77 46, futex 202 98, futex_waitv 449 449,
    futimesat 261 -, get_mempolicy 239 236, getcpu 309 168, getcwd 79 17, getdents 78 -, getdents64 217 61,
    getegid 108 177, geteuid 107 175, getgid 104 176, getgroups 115 158, getitimer 36 102, getpeername 52 205,
    getpgid 121 155, getpgrp 111 -, getpid 39 172, getppid 110 173, getpriority 140 141, getrandom 318 278,
    getresgid 120 150, getresuid 118 148, getrlimit 97 163, getrusage 98 165, getsid 124 156, getsockname 51 204,
    getsockopt 55 209, gettid 186 178, gettimeofday 96 169, getuid 102 174, getxattr 191 8, getxattrat 464 464,
    init_module 175 105, inotify_add_watch 254 27, inotify_init 253 -, inotify_init1 294 26, inotify_rm_watch 255 28,
    io_cancel 210 3, io_destroy 207 1, io_getevents 208 4, io_setup 206 0, io_submit 209 2, io_uring_enter 426 426,
    io_uring_register 427 427, io_uring_setup 425 425, ioctl 16 29, ioperm 173 -, iopl 172 -, ioprio_get 252 31,
    ioprio_set 251 30, kcmp 312 272, kexec_file_load 320 294, kexec_load 246 104, keyctl 250 219, kill 62 129,
    landlock_add_rule 445 445, landlock_create_ruleset 444 444, landlock_restrict_self 446 446, lchown 94 -,
    lgetxattr 192 9, link 86 -, linkat 265 37, listen 50 201, listmount 458 458, listxattr 194 11, listxattrat 465 465,
    llistxattr 195 12, lookup_dcookie 212 18, lremovexattr 198 15, lseek 8 62, lsetxattr 189 6, lstat 6 -,
    madvise 28 233, map_shadow_stack 453 453, mbind 237 235, membarrier 324 283, memfd_create 319 279,
    memfd_secret 447 447, migrate_pages 256 238, mincore 27 232, mkdir 83 -, mkdirat 258 34, mknod 133 -,
    mknodat 259 33, mlock 149 228, mlock2 325 284, mlockall 151 230, mmap 9 222, modify_ldt 154 -, mount 165 40,
    mount_setattr 442 442, move_mount 429 429, move_pages 279 239, mprotect 10 226, mq_getsetattr 245 185,
    mq_notify 244 184, mq_open 240 180, mq_timedreceive 243 183, mq_timedsend 242 182, mq_unlink 241 181, mremap 25 216,
    mseal 462 462, msgctl 71 187, msgget 68 186, msgrcv 70 188, msgsnd 69 189, msync 26 227, munlock 150 229,
    munlockall 152 231, munmap 11 215, name_to_handle_at 303 264, nanosleep 35 101, newfstatat 262 79, open 2 -,
    open_by_handle_at 304 265, open_tree 428 428, open_tree_attr 467 467, openat 257 56, openat2 437 437, pause 34 -,
    perf_event_open 298 241, personality 135 92, pidfd_getfd 438 438, pidfd_open 434 434, pidfd_send_signal 424 424,
    pipe 22 -, pipe2 293 59, pivot_root 155 41, pkey_alloc 330 289, pkey_free 331 290, pkey_mprotect 329 288, poll 7 -,
    ppoll 271 73, prctl 157 167, pread64 17 67, preadv 295 69, preadv2 327 286, prlimit64 302 261,
    process_madvise 440 440, process_mrelease 448 448, process_vm_readv 310 270, process_vm_writev 311 271,
    pselect6 270 72, ptrace 101 117, pwrite64 18 68, pwritev 296 70, pwritev2 328 287, quotactl 179 60,
    quotactl_fd 443 443, read 0 63, readahead 187 213, readlink 89 -, readlinkat 267 78, readv 19 65, reboot 169 142,
    recvfrom 45 207, recvmmsg 299 243, recvmsg 47 212, removexattr 197 14, removexattrat 466 466, rename 82 -,
    renameat 264 38, renameat2 316 276, request_key 249 218, restart_syscall 219 128, rmdir 84 -, rseq 334 293,
    rt_sigaction 13 134, rt_sigpending 127 136, rt_sigprocmask 14 135, rt_sigqueueinfo 129 138, rt_sigreturn 15 139,
    rt_sigsuspend 130 133, rt_sigtimedwait 128 137, rt_tgsigqueueinfo 297 240, sched_get_priority_max 146 125,
    sched_get_priority_min 147 126, sched_getaffinity 204 123, sched_getattr 315 275, sched_getparam 143 121,
    sched_getscheduler 145 120, sched_rr_get_interval 148 127, sched_setaffinity 203 122, sched_setattr 314 274,
    sched_setparam 142 118, sched_setscheduler 144 119, sched_yield 24 124, seccomp 317 277, select 23 -, semctl 66 191,
    semget 64 190, semop 65 193, semtimedop 220 192, sendfile 40 71, sendmmsg 307 269, sendmsg 46 211, sendto 44 206,
    set_mempolicy 238 237, set_mempolicy_home_node 450 450, set_robust_list 273 99, set_tid_address 218 96,
    setdomainname 171 162, setfsgid 123 152, setfsuid 122 151, setgid 106 144, setgroups 116 159, sethostname 170 161,
    setitimer 38 103, setns 308 268, setpgid 109 154, setpriority 141 140, setregid 114 143, setresgid 119 149,
    setresuid 117 147, setreuid 113 145, setrlimit 160 164, setsid 112 157, setsockopt 54 208, settimeofday 164 170,
    setuid 105 146, setxattr 188 5, setxattrat 463 463, shmat 30 196, shmctl 31 195, shmdt 67 197, shmget 29 194,
    shutdown 48 210, sigaltstack 131 132, signalfd 282 -, signalfd4 289 74, socket 41 198, socketpair 53 199,
    splice 275 76, stat 4 -, statfs 137 43, statmount 457 457, statx 332 291, swapoff 168 225, swapon 167 224,
    symlink 88 -, symlinkat 266 36, sync 162 81, sync_file_range 277 84, syncfs 306 267, sysinfo 99 179, syslog 103 116,
    tee 276 77, tgkill 234 131, time 201 -, timer_create 222 107, timer_delete 226 111, timer_getoverrun 225 109,
    timer_gettime 224 108, timer_settime 223 110, timerfd_create 283 85, timerfd_gettime 287 87, timerfd_settime 286 86,
    times 100 153, tkill 200 130, truncate 76 45, umask 95 166, umount2 166 39, uname 63 160, unlink 87 -,
    unlinkat 263 35, unshare 272 97, userfaultfd 323 282, utime 132 -, utimensat 280 88, utimes 235 -, vfork 58 -,
    vhangup 153 58, vmsplice 278 75, wait4 61 260, waitid 247 95, write 1 64, writev 20 66
"""
