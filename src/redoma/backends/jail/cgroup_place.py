"""Where groups of processes can be made: our own group, or the one above it, and never anybody else's.

    v1   <our group of the memory controller>/redoma-<pid>-…        and the same in cpuacct, where that is writable
    v2   <base>/redoma-<pid>-…       with Redoma itself in <base>, or in <base>/redoma-main

Cells stay under whatever limit Redoma itself is under. In v2 a group that holds processes can't hand controllers to the
groups in it (only the root of all can), and Redoma is always in some group. What was decided about that:

- The base is the parent of our group where the parent was plainly meant for it: systemd marked it as delegated (a
  service with `DelegateSubgroup=`), it is the top of what a container sees, or our own group is called `redoma-main`.
- Else the base is our own group, if nobody but ourselves and what we started is in it. We move these to a new group
  `redoma-main` in it: what they may use together stays the same, and what we start from then on starts there.
- Processes of others are never moved. Where some are in the way, the answer is `Unavailable`, with the command that
  moves them for a person who wants that. A Redoma started by `uv run`, or by hand in the scope of a shell, is a case.
- A group of a systemd unit is used only if systemd delegated it: in any other unit systemd may take the controller back
  at its next reload, and the limits with it. The system's manager marks the groups it delegates with an xattr; a user's
  manager marks none, so it is asked (`systemctl --user show`). Systemd before 251 shows the mark to root alone; there,
  for others, being able to write has to do. Should a controller be taken back all the same, reading from the cell
  fails: a run is never said to have been limited when it was not.

`locate` only looks; `enable` acts.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
from typing import Literal

import msgspec

from ...lib.mounts import Mount, read_mounts
from ...lib.patterns import pattern

MAIN = "redoma-main"
_UNIT = pattern(r"\.(service|scope|slice)$")
_MARKS = ("user.delegate", "trusted.delegate")  # the second is older, and shown to root alone
_USER_MANAGER = pattern(r"/user@(\d+)\.service/")
_ROUNDS = 100
_SYSTEM_PATH = "/usr/bin:/bin"  # not the user's: it may lead into a project that nobody has reviewed
_PATIENCE = 5.0  # seconds for systemd's answer, which takes milliseconds


class Unavailable(msgspec.Struct, frozen=True):
    """Why no group can be made here, and lines for a shell that would change it."""

    reason: str
    fix: str


class Place(msgspec.Struct, frozen=True):
    """Where groups can be made, as far as looking can tell."""

    version: Literal["v1", "v2"]
    base: str
    cpu: str | None = None
    """v1: our group in the hierarchy that counts CPU time, where we may write to it."""
    move: bool = False
    """v2: our own processes have to leave the base first."""


# --- looking ---


def locate(proc: str = "/proc/self", controller: str = "memory") -> Place | Unavailable:
    """Find where groups could be made. Changes nothing."""
    try:
        groups = _groups(proc)
        mounts = read_mounts(proc)
    except OSError as error:
        return Unavailable(f"/proc doesn't tell our cgroup: {error.strerror}", "# boot a kernel with CONFIG_CGROUPS=y")
    if controller in groups:
        return _locate_v1(groups, mounts, controller)
    if "" not in groups or not any(mount.kind == "cgroup2" for mount in mounts):
        return Unavailable("no cgroup file system is mounted", "sudo mount -t cgroup2 none /sys/fs/cgroup")
    return _locate_v2(groups[""], mounts, controller)


def _groups(proc: str) -> dict[str, str]:
    """Controller → our group in its hierarchy. The one of v2 has no name."""
    with open(f"{proc}/cgroup", encoding="utf-8", errors="surrogateescape") as file:
        lines = [line.rstrip("\n").split(":", 2) for line in file]
    return {controller: path for _, controllers, path in lines for controller in controllers.split(",")}


def _is_read_only(mount: Mount) -> bool:
    return "ro" in mount.options


def _visible(group: str, mounts: list[Mount]) -> tuple[str, Mount] | None:
    """The directory of a group of ours. A container may see a part of the tree that our group isn't in.

    That we are really in it is checked: a mount may be covered by another, or come from another cgroup namespace.
    """
    for mount in sorted(mounts, key=_is_read_only):
        below = os.path.relpath(group, mount.root)
        if ".." in (*below.split("/"), *group.split("/"), *mount.root.split("/")):
            continue
        directory = os.path.normpath(f"{mount.path}/{below}")
        if os.getpid() in _processes(directory):
            return directory, mount
    return None


def _locate_v1(groups: dict[str, str], mounts: list[Mount], controller: str) -> Place | Unavailable:
    def ours(name: str) -> tuple[str, Mount] | None:
        if name not in groups:
            return None
        hierarchies = [mount for mount in mounts if mount.kind == "cgroup" and name in mount.file_system_options]
        return _visible(groups[name], hierarchies)

    found = ours(controller)
    if not found:
        return Unavailable(f"our group of the {controller} controller, {groups[controller]}, can't be seen", _V1_FIX)
    directory, mount = found
    if _is_read_only(mount):
        return Unavailable(f"{mount.path} is mounted read-only, as containers have it", _V1_FIX)
    if not _writable(directory):
        return Unavailable(f"this user may not make groups in {directory}", _shell_in_v1(directory))
    cpu = ours("cpuacct")
    return Place("v1", directory, cpu=cpu[0] if cpu and not _is_read_only(cpu[1]) and _writable(cpu[0]) else None)


def _locate_v2(group: str, mounts: list[Mount], controller: str) -> Place | Unavailable:
    found = _visible(group, [mount for mount in mounts if mount.kind == "cgroup2"])
    if not found:
        return Unavailable(f"our group, {group}, can't be seen in any mounted cgroup2 file system", _CONTAINER_FIX)
    own, mount = found
    if _is_read_only(mount):
        return Unavailable(f"{mount.path} is mounted read-only, as containers have it", _CONTAINER_FIX)
    top, parent = os.path.normpath(mount.path), os.path.dirname(own)
    answer = _consider(own, top, controller)
    if own == top or (isinstance(answer, Place) and not answer.move):
        return answer
    meant = os.path.basename(own) == MAIN or _marked(parent) or (parent == top and not _is_root(parent))
    if not meant and _UNIT.search(parent) and not _UNIT.search(own):  # a subgroup of a unit that we are in
        meant = _delegated_by_users_manager(parent)
    other = _consider(parent, top, controller) if meant else answer
    return other if isinstance(other, Place) else answer


def _consider(directory: str, top: str, controller: str) -> Place | Unavailable:
    """Whether groups can be made in this directory: the place, or why not."""
    passed = controller in _words(f"{directory}/cgroup.subtree_control")
    if controller not in _words(f"{directory}/cgroup.controllers"):
        if _is_root(directory):
            fix = f"# boot with cgroup_enable={controller}, and without cgroup_disable={controller}"
            return Unavailable(f"this kernel offers no {controller} controller in cgroup v2", fix)
        return Unavailable(f"{directory} is not given the {controller} controller", _given(directory, top, controller))
    if not _writable(directory) or not (passed or _may_write(f"{directory}/cgroup.subtree_control")):
        return Unavailable(f"this user may not make groups in {directory}", _delegate(top, controller))
    if (unit := _unit(directory, top)) and not _delegated(unit, top):
        return Unavailable(f"systemd keeps {os.path.basename(unit)} for itself: not delegated", _systemd_run(unit))
    if passed or _is_root(directory):
        return Place("v2", directory)
    if "threaded" in _words(f"{directory}/cgroup.type"):
        return Unavailable(f"{directory} is threaded, and memory is not counted by thread", _delegate(top, controller))
    processes = _processes(directory)
    if others := [pid for pid in processes if not _is_ours(pid)]:
        names = ", ".join(sorted({_name(pid) for pid in others}))
        reason = f"{directory} also holds processes that are not Redoma's ({names}), and v2 wants it empty"
        return Unavailable(reason, _move_down(directory))
    return Place("v2", directory, move=bool(processes))


def _is_root(directory: str) -> bool:
    """Whether it is the root of all groups: the only one without a type, and free to have both processes and groups."""
    return not os.path.exists(f"{directory}/cgroup.type")


def _writable(directory: str) -> bool:
    return _may_write(directory) and _may_write(f"{directory}/cgroup.procs")


def _may_write(path: str) -> bool:
    return os.access(path, os.W_OK, effective_ids=True)


def _unit(directory: str, top: str) -> str:
    """The unit of systemd that a group belongs to: itself, or the nearest further up; empty where there is none."""
    while directory != top and not _UNIT.search(directory):
        directory = os.path.dirname(directory)
    return directory if directory != top else ""


def _delegated(unit: str, top: str) -> bool:
    """Whether systemd left a unit to its processes. Marks anywhere above mean that ours would be seen if it were."""
    if _marked(unit):
        return True
    if _USER_MANAGER.search(unit):
        return _delegated_by_users_manager(unit)
    marks_are_seen = os.geteuid() == 0
    while unit != top:
        unit = os.path.dirname(unit)
        marks_are_seen = marks_are_seen or _marked(unit)
    return not marks_are_seen


def _delegated_by_users_manager(unit: str) -> bool:
    """Ask our `systemd --user`, if the unit is one of its own: it marks nothing, only the system's manager does."""
    found = _USER_MANAGER.search(unit)
    if not found or int(found[1]) != os.geteuid():
        return False
    import shutil
    import subprocess

    program = shutil.which("systemctl", path=_SYSTEM_PATH)
    if program is None:
        return False
    try:
        answer = subprocess.run(
            [program, "--user", "show", "--property=Delegate", "--value", "--", os.path.basename(unit)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd="/",
            env={"XDG_RUNTIME_DIR": f"/run/user/{os.geteuid()}"},  # where systemd has it, also for cron and sudo
            timeout=_PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0 and answer.stdout.strip() == b"yes"


def _marked(directory: str) -> bool:
    for mark in _MARKS:
        with contextlib.suppress(OSError):
            if os.getxattr(directory, mark) == b"1":
                return True
    return False


def _processes(directory: str) -> list[int]:
    """Process ids in a group; 0 stands for one that our pid namespace doesn't show."""
    return [int(pid) for pid in _words(f"{directory}/cgroup.procs")]


def _is_ours(pid: int) -> bool:
    """Whether a process is ourselves, or was started by us or by what we started."""
    while pid > 1 and pid != os.getpid():
        try:
            with open(f"/proc/{pid}/stat", "rb") as stat:
                pid = int(stat.read().rpartition(b")")[2].split()[1])
        except OSError:
            return False
    return pid == os.getpid()


def _name(pid: int) -> str:
    return " ".join(_words(f"/proc/{pid}/comm")) or "one that can't be seen"


def _words(path: str) -> list[str]:
    """The words in a file of the kernel; none if it doesn't exist or isn't shown."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().split()
    except OSError:
        return []


# --- making it so ---


def enable(place: Place, controller: str = "memory") -> Unavailable | None:
    """Hand the controller to the groups below the base, after moving ourselves out of it if need be. All or nothing.
    Returns why not, or None."""
    control = f"{place.base}/cgroup.subtree_control"
    if place.version == "v1":
        return None
    leaf = f"{place.base}/{MAIN}" if place.move else ""
    try:
        if controller not in _words(control):
            if leaf:
                _move_ours(place.base, leaf)
            write(control, f"+{controller}".encode())
    except OSError as error:
        if leaf:
            with contextlib.suppress(OSError):
                _move_ours(leaf, place.base)
                os.rmdir(leaf)
        reason = f"the {controller} controller can't be handed to groups in {place.base}: {error.strerror}"
        return Unavailable(reason, _move_down(place.base))
    return None


def _move_ours(source: str, target: str) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(target, 0o755)
    for _ in range(_ROUNDS):  # they may fork meanwhile
        ours = [pid for pid in _processes(source) if _is_ours(pid)]
        if not ours:
            return
        for pid in ours:
            with contextlib.suppress(ProcessLookupError):
                write(f"{target}/cgroup.procs", b"%d" % pid)
    raise OSError(errno.EBUSY, "processes are started faster than they can be moved")


def write(path: str, value: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value)
    finally:
        os.close(fd)


# --- what to do about it ---

_CONTAINER_FIX = (
    "# give the container a writable cgroup tree of its own (Docker 28 or later, or podman):\n"
    "docker run --security-opt writable-cgroups=true <image>\n"
    "podman run --security-opt unmask=/sys/fs/cgroup <image>"
)
_V1_FIX = (
    "# boot the host with cgroup v2 (systemd.unified_cgroup_hierarchy=1); then, for the container:\n"
    + (_CONTAINER_FIX.partition("\n")[2])
)


def _systemd_run(unit: str = "") -> str:
    user = "" if os.geteuid() == 0 else "--user "
    command = f"systemd-run {user}--scope -p Delegate=yes redoma doctor  # and so with any other command"
    if not unit.endswith(".service"):
        return command
    return f"# in the file of {os.path.basename(unit)}, under [Service]:\n#   Delegate=yes\n# or on its own:\n{command}"


def _by_systemd() -> bool:
    return os.path.isdir("/run/systemd/system")


def _delegate(top: str, controller: str) -> str:
    """Commands that make a group for this user and put this shell in it."""
    if _by_systemd():
        return _systemd_run()
    user = os.geteuid()
    group = f"{top}/redoma-of-{user}"
    steps = (
        f"echo +{controller} > {top}/cgroup.subtree_control",
        f"mkdir -p {group}/{MAIN}",
        f"chown {user} {group} {group}/cgroup.procs {group}/cgroup.subtree_control {group}/{MAIN}/cgroup.procs",
        f"echo $0 > {group}/{MAIN}/cgroup.procs",
    )
    return f"# a group for this user, and this shell in it:\nsudo sh -c {shlex.quote(' && '.join(steps))} $$"


def _shell_in_v1(directory: str) -> str:
    user = os.geteuid()
    group = f"{directory}/redoma-of-{user}"
    steps = f"mkdir -p {group} && chown {user} {group} {group}/cgroup.procs && echo $0 > {group}/cgroup.procs"
    return f"# a group for this user, and this shell in it:\nsudo sh -c {shlex.quote(steps)} $$"


def _given(directory: str, top: str, controller: str) -> str:
    if directory == top:
        return f"# start the container so that it is given the {controller} controller"
    if not _by_systemd():
        parent = os.path.dirname(directory)
        return f"sudo sh -c {shlex.quote(f'echo +{controller} > {parent}/cgroup.subtree_control')}"
    if os.geteuid() == 0:
        return _systemd_run()
    folder = "/etc/systemd/system/user@.service.d"
    return (
        f"{_systemd_run()}\n"
        "# if that is not enough, the user's own systemd has to be given it first; log in again afterwards:\n"
        f"sudo mkdir -p {folder}\n"
        f"printf '[Service]\\nDelegate=cpu memory pids\\n' | sudo tee {folder}/delegate.conf\n"
        "sudo systemctl daemon-reload"
    )


def _move_down(directory: str) -> str:
    leaf = shlex.quote(f"{directory}/{MAIN}")
    procs = shlex.quote(f"{directory}/cgroup.procs")
    return (
        "# let Redoma be alone in a group (systemd-run does that), or move everything in this one a level down:\n"
        f"mkdir -p {leaf}; for pid in $(cat {procs}); do echo $pid > {leaf}/cgroup.procs; done"
    )
