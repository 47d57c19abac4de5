"""Determines where control groups can be made: in our own group or the one above it, never in anybody else's.

    v1   <our group of the memory controller>/redoma-<pid>-…        and the same in cpuacct, where that is writable
    v2   <base>/redoma-<pid>-…       with Redoma itself in <base>, or in <base>/redoma-main

So the limits on Redoma itself also hold for its cells. In v2, a group that contains processes can't pass controllers to
the groups in it (except the root group), and Redoma is always in some group. Therefore:

- The base is the parent of our group if the parent is clearly meant for that: systemd marked it as delegated (a service
  with `DelegateSubgroup=`), it is the topmost group that a container sees, or our own group is called `redoma-main`.
- Otherwise the base is our own group, if it contains only this process and its descendants. They are moved to a new
  group `redoma-main` in it. Their limits stay the same, and processes that we start later start there.
- Processes of others are never moved. If there are some, the answer is `Unavailable`, with a command that moves them,
  for a person to decide on. This is so if Redoma was started by `uv run`, or by hand in the scope of a shell.
- A group of a systemd unit is used only if systemd delegated it. In other units systemd may revoke the controller, and
  the limits with it, at its next reload. The system manager marks delegated groups with an xattr. A user manager
  doesn't, so we ask it (`systemctl --user show`). systemd before 251 shows the mark only to root; for other users we
  then rely on being able to write. If a controller is revoked all the same, reading from the group fails: no run is
  reported as limited when it was not.

`locate` only reads; `enable` makes changes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
from typing import Literal

import msgspec

from ...lib.mounts import Mount, read_mounts
from ...lib.patterns import lazy_pattern

MAIN = "redoma-main"
_UNIT = lazy_pattern(r"\.(service|scope|slice)$")
_MARKS = ("user.delegate", "trusted.delegate")  # the second is older, and only root can read it
_USER_MANAGER = lazy_pattern(r"/user@(\d+)\.service/")
_ROUNDS = 100
_SYSTEM_PATH = "/usr/bin:/bin"  # not the user's PATH, which may contain a directory of an unreviewed project
_PATIENCE = 5.0  # seconds for an answer of systemd; it takes milliseconds


class Unavailable(msgspec.Struct, frozen=True):
    """Why no group can be made here, and shell commands that would change that."""

    reason: str
    fix: str
    in_container: bool = False
    """Whether our group can't be seen or is read-only, as in most containers. `fix` then covers several kinds."""


class Place(msgspec.Struct, frozen=True):
    """Where groups can probably be made. Nothing has been tried yet."""

    version: Literal["v1", "v2"]
    base: str
    cpu: str | None = None
    """v1: our group in the hierarchy that counts CPU time, if we may write to it."""
    move: bool = False
    """v2: whether our own processes must leave the base first."""


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
    """Return controller → our group in its hierarchy. The key of v2 is empty."""
    with open(f"{proc}/cgroup", encoding="utf-8", errors="surrogateescape") as file:
        lines = [line.rstrip("\n").split(":", 2) for line in file]
    return {controller: path for _, controllers, path in lines for controller in controllers.split(",")}


def _is_read_only(mount: Mount) -> bool:
    return "ro" in mount.options


def _visible(group: str, mounts: list[Mount]) -> tuple[str, Mount] | None:
    """Return the directory of our group, and its mount; None if it isn't visible, as in some containers.

    Checks that we are really in it: a mount may be covered by another, or come from another cgroup namespace.
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
        return Unavailable(
            f"our group of the {controller} controller, {groups[controller]}, can't be seen", _V1_FIX, in_container=True
        )
    directory, mount = found
    if _is_read_only(mount):
        return Unavailable(f"{mount.path} is mounted read-only, as containers have it", _V1_FIX, in_container=True)
    if not _writable(directory):
        return Unavailable(f"this user may not make groups in {directory}", _shell_in_v1(directory))
    cpu = ours("cpuacct")
    return Place("v1", directory, cpu=cpu[0] if cpu and not _is_read_only(cpu[1]) and _writable(cpu[0]) else None)


def _locate_v2(group: str, mounts: list[Mount], controller: str) -> Place | Unavailable:
    found = _visible(group, [mount for mount in mounts if mount.kind == "cgroup2"])
    if not found:
        return Unavailable(
            f"our group, {group}, can't be seen in any mounted cgroup2 file system", _CONTAINER_FIX, in_container=True
        )
    own, mount = found
    if _is_read_only(mount):
        return Unavailable(
            f"{mount.path} is mounted read-only, as containers have it", _CONTAINER_FIX, in_container=True
        )
    top, parent = os.path.normpath(mount.path), os.path.dirname(own)
    answer = _consider(own, top, controller)
    if own == top or (isinstance(answer, Place) and not answer.move):
        return answer
    meant = os.path.basename(own) == MAIN or _marked(parent) or (parent == top and not _is_root(parent))
    if not meant and _UNIT.search(parent) and not _UNIT.search(own):  # we are in a subgroup of a unit
        meant = _delegated_by_users_manager(parent)
    other = _consider(parent, top, controller) if meant else answer
    return other if isinstance(other, Place) else answer


def _consider(directory: str, top: str, controller: str) -> Place | Unavailable:
    """Return a `Place` if groups can be made in this directory, else why not."""
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
    """Return whether it is the root group: the only one without a type, which may contain processes and groups."""
    return not os.path.exists(f"{directory}/cgroup.type")


def _writable(directory: str) -> bool:
    return _may_write(directory) and _may_write(f"{directory}/cgroup.procs")


def _may_write(path: str) -> bool:
    return os.access(path, os.W_OK, effective_ids=True)


def _unit(directory: str, top: str) -> str:
    """Return the group of the systemd unit that a group belongs to: itself or the nearest above it; empty if none."""
    while directory != top and not _UNIT.search(directory):
        directory = os.path.dirname(directory)
    return directory if directory != top else ""


def _delegated(unit: str, top: str) -> bool:
    """Return whether systemd delegated a unit. If a group above has a mark, we can see marks: a missing one counts."""
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
    """Ask our `systemd --user`, if the unit is one of its own: unlike the system manager, it sets no marks."""
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
            env={"XDG_RUNTIME_DIR": f"/run/user/{os.geteuid()}"},  # cron and sudo don't set it
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
    """Return the ids of processes in a group; 0 for one outside of our pid namespace."""
    return [int(pid) for pid in _words(f"{directory}/cgroup.procs")]


def _is_ours(pid: int) -> bool:
    """Return whether a process is this one or a descendant."""
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
    """Return the words in a file of the kernel; none if it can't be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().split()
    except OSError:
        return []


# --- changing ---


def enable(place: Place, controller: str = "memory") -> Unavailable | None:
    """Enable the controller for groups in the base, after moving our processes out of it if needed. All or nothing.
    Returns None, or why it is impossible.
    """
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
    for _ in range(_ROUNDS):  # they may fork while we move them
        ours = [pid for pid in _processes(source) if _is_ours(pid)]
        if not ours:
            return
        for pid in ours:
            with contextlib.suppress(ProcessLookupError):
                write(f"{target}/cgroup.procs", b"%d" % pid)
    raise OSError(errno.EBUSY, "processes are started faster than they can be moved")


def write(path: str, value: bytes) -> None:
    """Write to a file of the kernel. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value)
    finally:
        os.close(fd)


# --- advice ---

CONTAINER_OPTIONS = {
    "docker": "docker run --security-opt writable-cgroups=true IMAGE   # Docker 28 or later, on a host with cgroup v2",
    "podman": "podman run --security-opt unmask=/sys/fs/cgroup IMAGE   # on a host with cgroup v2",
}
_CONTAINER_FIX = "\n".join(["# give the container a writable cgroup tree of its own:", *CONTAINER_OPTIONS.values()])
_V1_FIX = "\n".join(
    [
        "# boot the host with cgroup v2 (systemd.unified_cgroup_hierarchy=1); then, for the container:",
        *CONTAINER_OPTIONS.values(),
    ]
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
    """Return commands that make a group for this user and put this shell in it."""
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
