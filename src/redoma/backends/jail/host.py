"""For `redoma doctor`: what this host offers the jail, what is missing, what that costs, and the command that fixes it.

`host_look` observes, `explain` describes. `explain` is pure, so tests can cover hosts that we don't have.
"""

from __future__ import annotations

import errno
import os
import platform
import shlex
import sys

import msgspec

from ..base import Fact
from ..linux import LANDLOCK_SCOPES
from . import kernels
from .cgroup_place import CONTAINER_OPTIONS
from .configuration import NAMESPACES, UNPRIVILEGED_ID
from .host_look import Observed, look

_NO_JAIL = "the jail doesn't work"
_EMPTY_PROC = "a cell has an empty /proc: programs find nothing about themselves there, and /dev/fd leads nowhere"
_ONLY_THE_FILTER = (
    "the layer `user-namespaces` is missing: only the filter of system calls keeps a run from making some, and nothing "
    "limits its file watches"
)
_REFUSED = (errno.EPERM, errno.EACCES)
_WATCHED = (
    "memory is watched instead, every 10 ms: a burst can pass its limit for a moment, "
    "and memory that belongs to no process (memfd, System V, shared anonymous) is refused"
)


def facts() -> tuple[Fact, ...]:
    """Return what this host offers. Takes about 0.1 s, needs no root, and leaves nothing behind."""
    if sys.platform != "linux":
        what = f"{platform.system()}; the jail is made of Linux namespaces"
        return (Fact(name="kernel", state="missing", what=what, costs=_NO_JAIL, fix="# run it in a Linux machine"),)
    return explain(look())


# --- describing ---


def explain(seen: Observed) -> tuple[Fact, ...]:
    """Describe what was observed. Leaves out what could not be tried because something before it is missing."""
    found = [_kernel(seen), _architecture(seen)]
    if "user" in seen.steps or seen.broken:
        found.append(_user_namespaces(seen))
    if "mount" in seen.steps:
        found.append(_other_namespaces(seen))
    if "tmpfs" in seen.steps and not seen.steps["tmpfs"]:
        found += [_root_directory(seen), _proc(seen), _overlay(seen)]
    if not seen.broken:
        found += [_seccomp(seen), _landlock(seen)]
    found += [_cgroups(seen), _bash(seen)]
    if not seen.root:
        return tuple(found)
    found.append(_root_user(seen))
    return tuple(msgspec.structs.replace(fact, fix=fact.fix.replace("sudo ", "")) for fact in found)


def _kernel(seen: Observed) -> Fact:
    what = f"Linux {seen.release}"
    if kernels.CELLS.is_missing(seen.release, root=seen.root):
        wsl1 = seen.release.endswith("-Microsoft")  # WSL 2 ends in -microsoft-standard-WSL2
        return Fact(
            name="kernel",
            state="missing",
            what=f"{what}; the jail needs {kernels.CELLS.version} or later",
            costs=kernels.CELLS.without,
            fix="# in Windows:\nwsl --set-version DISTRIBUTION 2" if wsl1 else _boot(kernels.BY_KERNEL[-1]),
        )
    lacking = [
        feature
        for feature in kernels.BY_KERNEL
        if feature.fact == "kernel" and feature.is_missing(seen.release, root=seen.root)
    ]
    if not lacking:
        return Fact(name="kernel", what=what)
    return Fact(
        name="kernel",
        state="degraded",
        what=f"{what}, without {', '.join(feature.what for feature in lacking)}",
        costs="; ".join(dict.fromkeys(feature.without for feature in lacking)),
        fix=_boot(lacking[-1]),
    )


def _architecture(seen: Observed) -> Fact:
    if not seen.unfiltered:
        return Fact(name="architecture", what=seen.machine)
    fix = "# use another backend here, or a 64-bit Python on another machine"
    return Fact(name="architecture", state="missing", what=seen.unfiltered, costs=_NO_JAIL, fix=fix)


def _user_namespaces(seen: Observed) -> Fact:
    for step in ("user", "map", "nested", "tmpfs"):
        if number := seen.steps.get(step, 0):
            what, fix = _why_no_user_namespace(seen, step, number)
            costs = f"{_NO_JAIL}, and what is built on it could not be tried"
            return Fact(name="user namespaces", state="missing", what=what, costs=costs, fix=fix)
    if seen.broken:
        what, fix = f"could not be tried: {seen.broken}", "# try again; if it stays, please report it"
        return Fact(name="user namespaces", state="missing", what=what, costs=_NO_JAIL, fix=fix)
    return Fact(name="user namespaces", what="anybody may make one, and has capabilities in it")


def _why_no_user_namespace(seen: Observed, step: str, number: int) -> tuple[str, str]:
    """Return why a step was refused, and commands that would change that. The surest cause is checked first."""
    if number == errno.ENOSPC:
        return _used_up(seen, "user")
    if number in (errno.EINVAL, errno.ENOSYS) and step == "user":
        return "this kernel was built without them", "# boot a kernel that has CONFIG_USER_NS=y"
    if number not in _REFUSED:
        return f"the step {step!r} failed: {os.strerror(number)}", _LAST_RESORT
    if step == "user" and seen.settings.get("kernel.unprivileged_userns_clone") == "0":
        return "kernel.unprivileged_userns_clone is 0", _sysctl(seen, "kernel.unprivileged_userns_clone", 1)
    if step == "user" and seen.chrooted:
        return "this process is in a chroot, where Linux allows none", "# run it outside, or in a container"
    if seen.container and (seen.filtered or _confined(seen)):
        return f"refused by the {seen.container} container that this runs in", _container_fix(seen)
    if seen.settings.get("kernel.apparmor_restrict_unprivileged_userns") == "1" and not _confined(seen):
        return "AppArmor takes their capabilities away, as Ubuntu does since 23.10", _apparmor_fix(seen)
    if seen.filtered:
        return "refused by a seccomp filter that this process was started under", _service_fix(seen)
    if seen.selinux:
        return f"refused, probably by SELinux (this process is {seen.label})", _SELINUX_FIX
    if _confined(seen):
        profile = seen.label.removesuffix(" (enforce)")
        return f"refused, probably by the AppArmor profile {profile}", f"sudo aa-complain {shlex.quote(profile)}"
    return f"refused by something that says no more than {os.strerror(number)!r}", _LAST_RESORT


def _used_up(seen: Observed, kind: str) -> tuple[str, str]:
    setting = f"user.max_{kind}_namespaces"
    if seen.container == "bubblewrap":
        return (
            f"{setting} is used up, as after bwrap's --disable-userns",
            "# start it by bwrap without --disable-userns",
        )
    allowed = seen.settings.get(setting, "")
    if allowed == "0":
        return f"{setting} is 0", _sysctl(seen, setting, 15000)
    more = 2 * int(allowed) if allowed.isdecimal() else 15000
    return f"{setting} is {allowed or 'unknown'}, and used up here or further out", _sysctl(seen, setting, more)


def _other_namespaces(seen: Observed) -> Fact:
    failed = {name: number for name in NAMESPACES if (number := seen.steps.get(name, 0))}
    if not failed:
        return _setup_of_namespaces(seen)
    name, number = next(iter(failed.items()))
    what, fix = f"no namespace of {', '.join(failed)}: {os.strerror(number)}", _LAST_RESORT
    if number == errno.ENOSPC:
        reason, fix = _used_up(seen, "mnt" if name == "mount" else name)
        what = f"no namespace of {', '.join(failed)}: {reason}"
    elif number == errno.EINVAL:
        fix = f"# boot a kernel that has CONFIG_{'' if name == 'mount' else name.upper() + '_'}NS=y"
    elif number in _REFUSED:
        _, fix = _why_no_user_namespace(seen, name, number)
    return Fact(name="namespaces", state="missing", what=what, costs=_NO_JAIL, fix=fix)


def _setup_of_namespaces(seen: Observed) -> Fact:
    """Describe what a cell does in its namespaces: systemd and rootless engines may refuse just that."""
    setup = {
        "hostname": ("no host name can be set in a new one", "ProtectHostname=no"),
        "loopback": ("no socket for the loopback can be opened", "RestrictAddressFamilies=AF_UNIX AF_INET AF_NETLINK"),
    }
    for step, (what, directive) in setup.items():
        if number := seen.steps.get(step, 0):
            fix = _container_fix(seen) if seen.container else _service_fix(seen, directive)
            what = f"{what}: {os.strerror(number)}"
            return Fact(name="namespaces", state="missing", what=what, costs=_NO_JAIL, fix=fix)
    return Fact(name="namespaces", what=", ".join(NAMESPACES))


def _root_directory(seen: Observed) -> Fact:
    calls = {"mount_setattr": seen.steps.get("attributes", 0), "pivot_root": seen.steps.get("pivot", 0)}
    failed = {call: number for call, number in calls.items() if number}
    if not failed:
        return Fact(name="root directory", what="can be left for one made from nothing")
    call, number = next(iter(failed.items()))
    what, fix = f"can't be left for one made from nothing: {call}: {os.strerror(number)}", _LAST_RESORT
    if seen.container and seen.filtered:
        fix = _container_fix(seen)
    elif seen.filtered and number in _REFUSED:
        fix = _service_fix(seen)
    elif call == "pivot_root" and number == errno.EINVAL:
        fix = "# if it is the initramfs, Linux can't: switch_root to another file system first, or use a container"
    return Fact(name="root directory", state="missing", what=what, costs=_NO_JAIL, fix=fix)


def _proc(seen: Observed) -> Fact:
    number = seen.steps.get("proc", 0)
    knobs = seen.steps.get("knobs", 0)
    if not number and knobs:
        what = f"/proc/sys/user can't be written to in a user namespace: {os.strerror(knobs)}"
        fix = _unmask(seen) if seen.container else "sudo mount -o remount,rw /proc/sys"
        if knobs == errno.EROFS:
            return Fact(name="/proc", state="degraded", what=what, costs=_ONLY_THE_FILTER, fix=fix)
        return Fact(name="/proc", state="missing", what=what, costs=_NO_JAIL, fix=fix)
    if not number:
        return Fact(name="/proc", what="can be mounted in a new pid namespace")
    what, fix = f"can't be mounted in a new pid namespace: {os.strerror(number)}", _LAST_RESORT
    if number in _REFUSED:
        what = "can't be mounted anew, as parts of the one here are covered"
        fix = _unmask(seen) if seen.container else "# see what covers it, and run outside of that:\n" + _COVERS
    if number == errno.EPERM and knobs in (0, errno.EROFS):
        costs = "; ".join([_EMPTY_PROC, *([_ONLY_THE_FILTER] if knobs else [])])
        return Fact(name="/proc", state="degraded", what=what, costs=costs, fix=fix)
    return Fact(name="/proc", state="missing", what=what, costs=_NO_JAIL, fix=fix)


def _overlay(seen: Observed) -> Fact:
    """Describe overlays: one hides the interpreter's path, a writable one receives what a run changes in a project."""
    if number := seen.steps.get("overlay", 0):
        return _no_overlay(seen, number)
    on_tmpfs = seen.steps.get("overlay-write", 0)
    if not on_tmpfs:
        return Fact(name="overlayfs", what="can be mounted in a user namespace, also for writing")
    # Without them no project can be written to, and `_kernel` says so.
    if kernels.IDMAPPED_OVERLAYS.is_missing(seen.release, root=seen.root):
        return Fact(name="overlayfs", what="can be mounted in a user namespace")
    fix = f"{_boot(kernels.TMPFS_XATTRS)}, built with CONFIG_TMPFS_XATTR=y"
    on_disk = seen.steps.get("overlay-disk", errno.EOPNOTSUPP)
    if not on_disk:
        what = f"can be written to on disk, but not on a tmpfs: {os.strerror(on_tmpfs)}"
        return Fact(name="overlayfs", state="degraded", what=what, costs=kernels.TMPFS_XATTRS.without, fix=fix)
    tmpfs, disk = os.strerror(on_tmpfs), os.strerror(on_disk)
    what = f"can be written to neither on a tmpfs ({tmpfs}) nor in /var/tmp ({disk})"
    fix = f"# mount a file system at /var/tmp that can hold an overlay's upper layer: ext4, XFS or Btrfs; or\n{fix}"
    return Fact(name="overlayfs", state="degraded", what=what, costs=kernels.NO_OVERLAYS, fix=fix)


def _no_overlay(seen: Observed, number: int) -> Fact:
    what, costs, fix = f"can't be mounted in a user namespace: {os.strerror(number)}", kernels.USER_OVERLAYS.without, ""
    if number == errno.ENODEV:
        what, fix = "this kernel has none, or its module is not loaded", "sudo modprobe overlay"
    needed = kernels.USER_OVERLAYS
    if seen.root and not fix:  # root mounts it before it drops its rights
        needed, costs = kernels.IDMAPPED_OVERLAYS, kernels.NO_PROJECTS
    elif kernels.version_of(seen.release) >= kernels.USER_OVERLAYS.since:  # such kernels should have the layer `names`
        costs += "; a run has to name the layers that it requires, without `names`"
    fix = fix or (_boot(needed) if needed.is_missing(seen.release, root=seen.root) else _LAST_RESORT)
    costs = f"{costs}; {kernels.OWN_OVERLAYS.without}"
    return Fact(name="overlayfs", state="degraded", what=what, costs=costs, fix=fix)


def _seccomp(seen: Observed) -> Fact:
    number = seen.steps.get("seccomp", errno.ENOSYS)
    if not number:
        return Fact(name="seccomp", what="a filter of system calls can be set")
    what, fix = f"no filter of system calls can be set: {os.strerror(number)}", _LAST_RESORT
    if number in (errno.EINVAL, errno.ENOSYS):
        fix = "# boot a kernel that has CONFIG_SECCOMP_FILTER=y"
    elif number in _REFUSED and seen.container:
        fix = _container_fix(seen)
    return Fact(name="seccomp", state="missing", what=what, costs=_NO_JAIL, fix=fix)


def _landlock(seen: Observed) -> Fact:
    if seen.landlock >= LANDLOCK_SCOPES:
        return Fact(name="Landlock", what=f"version {seen.landlock}")
    if seen.landlock:
        return Fact(
            name="Landlock",
            state="degraded",
            what=f"version {seen.landlock}; signals and abstract sockets came with {LANDLOCK_SCOPES}",
            costs=kernels.LANDLOCK_SIGNALS.without,
            fix=_boot(kernels.LANDLOCK_SIGNALS),
        )
    fix = f"{_boot(kernels.LANDLOCK_SIGNALS)}, built with CONFIG_SECURITY_LANDLOCK=y"
    if seen.modules and "landlock" not in seen.modules.split(","):
        fix = (
            "# if this kernel has it, it is switched off: add to GRUB_CMDLINE_LINUX in /etc/default/grub\n"
            f"#   lsm=landlock,{seen.modules}\n"
            "# and then: update-grub && reboot"
        )
    return Fact(
        name="Landlock",
        state="degraded",
        what="this kernel has none, or it is switched off",
        costs=f"{kernels.LANDLOCK_FILES.without}; {kernels.LANDLOCK_SIGNALS.without}",
        fix=fix,
    )


def _cgroups(seen: Observed) -> Fact:
    if not isinstance(seen.cgroup, str):
        fix = _cgroup_fix(seen, seen.cgroup.fix) if seen.cgroup.in_container else seen.cgroup.fix
        return Fact(name="cgroup", state="degraded", what=seen.cgroup.reason, costs=_WATCHED, fix=fix)
    if seen.cgroup.startswith("v2") and kernels.MEMORY_PEAK.is_missing(seen.release, root=seen.root):
        costs, fix = kernels.MEMORY_PEAK.without, _boot(kernels.MEMORY_PEAK)
        return Fact(name="cgroup", state="degraded", what=seen.cgroup, costs=costs, fix=fix)
    return Fact(name="cgroup", what=seen.cgroup)


def _bash(seen: Observed) -> Fact:
    if seen.bash:
        return Fact(name="bash", what=seen.bash)
    fix = "sudo apt-get install bash   # or dnf install, apk add, pacman -S"
    return Fact(name="bash", state="degraded", what="not in /bin or /usr/bin", costs="no Bash can be run", fix=fix)


def _root_user(seen: Observed) -> Fact:
    """Describe whether root can drop its rights: that needs capabilities, and an interpreter that others can read."""
    user = f"uid {UNPRIVILEGED_ID}, which root drops to,"
    what, fix = f"{user} can read the interpreter", ""
    if number := seen.steps.get("drop", 0):
        what = f"root can't become {user[:-1]}: {os.strerror(number)}"
        fix = f"# {_as_another_user(seen)}"
    elif seen.closed:
        what, fix = f"{user} can't read {seen.closed}", f"chmod -R o+rX {shlex.quote(seen.closed)}"
    costs = "the jail doesn't work for root" if fix else ""
    return Fact(name="root", state="missing" if fix else "ok", what=what, costs=costs, fix=fix)


# --- fixes ---

_LAST_RESORT = "# the kernel's log may say who refused it:\nsudo dmesg | tail -20"
_PROFILE = "docs/deploy/seccomp.json of Redoma's source"
_LXC = "lxc config set CONTAINER security.nesting=true && lxc restart CONTAINER"
_COVERS = "grep ' /proc/' /proc/self/mountinfo"
_SELINUX_FIX = (
    "# what was refused, and a module that allows it:\n"
    "sudo ausearch -m avc,user_avc -ts recent\n"
    "sudo ausearch -m avc,user_avc -ts recent | audit2allow -M redoma && sudo semodule -i redoma.pp"
)


def _boot(feature: kernels.Feature) -> str:
    return f"# boot Linux {feature.version} or later"


def _confined(seen: Observed) -> bool:
    """Return whether AppArmor or SELinux restricts us, as in a container. Complain mode doesn't count."""
    return seen.label.endswith("(enforce)") or (seen.selinux and ":unconfined_t:" not in seen.label)


def _sysctl(seen: Observed, name: str, value: int) -> str:
    """Return commands that change a setting now and at every boot."""
    file = "/etc/sysctl.d/60-redoma.conf"
    where = f"# on the machine that runs this {seen.container} container:\n" if seen.container else ""
    return f"{where}echo '{name} = {value}' | sudo tee -a {file}\nsudo sysctl -p {file}"


def _apparmor_fix(seen: Observed) -> str:
    profile = f'profile redoma "{seen.executable}" flags=(unconfined) {{ userns, }}'
    return (
        "# for this interpreter, with a profile as Ubuntu recommends:\n"
        f"printf '%s\\n' 'abi <abi/4.0>,' {shlex.quote(profile)} | sudo tee /etc/apparmor.d/redoma\n"
        f"sudo apparmor_parser -r /etc/apparmor.d/redoma\n"
        "# or for every program on this host:\n" + _sysctl(seen, "kernel.apparmor_restrict_unprivileged_userns", 0)
    )


def _service_fix(seen: Observed, directive: str = "RestrictNamespaces=no") -> str:
    if not seen.service:
        return (
            "# whatever started this process has set a filter of system calls; allow what namespaces need:\n"
            f"# in a systemd unit, {directive} (and @mount, if it has a SystemCallFilter=);\n"
            f"# in a container, a seccomp profile such as {_PROFILE}"
        )
    folder = f"/etc/systemd/system/{seen.service}.d"
    return (
        "# if the unit has a SystemCallFilter=, that one must leave in @mount too:\n"
        f"sudo mkdir -p {folder}\n"
        f"printf '[Service]\\n{directive}\\n' | sudo tee {folder}/redoma.conf\n"
        f"sudo systemctl daemon-reload && sudo systemctl restart {seen.service}"
    )


def _cgroup_fix(seen: Observed, otherwise: str) -> str:
    """Return how to get a writable tree of control groups from what was detected around us."""
    if seen.container in CONTAINER_OPTIONS:
        return CONTAINER_OPTIONS[seen.container]
    if seen.container == "kubernetes":
        return "# Kubernetes has no setting for this: the control groups of its containers are read-only"
    if seen.container == "bubblewrap":
        return "# start it by bwrap with --bind /sys/fs/cgroup /sys/fs/cgroup"
    if seen.service and not seen.container:
        return f"# in the file of {seen.service}, under [Service]:\n#   ProtectControlGroups=no\n#   Delegate=yes"
    return otherwise


def _unmask(seen: Observed) -> str:
    """Return how to start a container with an unmasked /proc. Few will grant that, and cells work without it."""
    match seen.container:
        case "kubernetes":
            return (
                "# in the pod's specification:\n"
                "#   hostUsers: false\n"
                "#   containers: [{securityContext: {procMount: Unmasked}}]"
            )
        case "podman":
            return "podman run --security-opt unmask=ALL IMAGE   # beside the options that it has"
        case "docker":
            return "docker run --security-opt systempaths=unconfined IMAGE   # beside the options that it has"
    return "# see what covers it, and start the container without that:\n" + _COVERS


def _container_fix(seen: Observed) -> str:
    match seen.container:
        case "kubernetes":
            return (
                "# in the pod's specification:\n"
                f"#   containers: [{{{_security_context(seen)}}}]\n"
                f"# or, after copying {_PROFILE} to the nodes, in it:\n"
                "#   seccompProfile: {type: Localhost, localhostProfile: seccomp.json}"
            )
        case "lxc" | "lxc-libvirt":
            return _LXC
        case "docker" | "podman":
            return (
                f"{_run_options(seen)} IMAGE\n"
                "# instead of seccomp=unconfined, a profile that also allows clone, clone3, unshare, setns, mount,\n"
                f"# umount2, mount_setattr, pivot_root, sethostname and setdomainname will do, such as {_PROFILE},\n"
                "# which still refuses what is dangerous: --security-opt seccomp=seccomp.json"
            )
        case "bubblewrap":
            return "# start it by bwrap without the filter (--seccomp, --add-seccomp-fd)"
    return (
        f"# start this {seen.container} container with a seccomp profile that allows what namespaces need, such as\n"
        f"# {_PROFILE}"
    )


# --- one line ---


def change_for_the_jail(seen: Observed) -> str:
    """Return the change to the container, the service or the host that would allow the jail, in a line. Empty if
    nothing is missing.
    """
    missing = [fact for fact in explain(seen) if fact.state == "missing"]
    if not missing:
        return ""
    blamed = seen.filtered or _confined(seen) or missing[0].name == "root"
    if seen.container == "bubblewrap":
        return _as_another_user(seen) if missing[0].name == "root" else missing[0].fix.removeprefix("# ")
    if seen.container == "kubernetes" and blamed:
        return f"`{_security_context(seen)}` in the pod"
    if seen.container in ("docker", "podman") and blamed:
        return f"`{_run_options(seen)}`"
    if seen.container.startswith("lxc") and blamed:
        return f"`{_LXC}`"
    if seen.service and "[Service]" in missing[0].fix:
        directive = missing[0].fix.partition("[Service]\\n")[2].partition("\\n")[0]
        return f"`{directive}` in {seen.service}"
    return f"what `redoma doctor` prints under `{missing[0].name}` ({missing[0].what})"


def _as_another_user(seen: Observed) -> str:
    """Return how to start Redoma as another user, for a root that can't drop its rights."""
    match seen.container:
        case "bubblewrap":
            return "start bwrap as an ordinary user, not as root"
        case "docker" | "podman":
            return f"start Redoma as another user: {_run_options(seen)}"
        case "kubernetes":
            return f"start Redoma as another user: {_security_context(seen)}"
    return "start Redoma as another user" + (f": User= in {seen.service}" if seen.service else "")


def _run_options(seen: Observed) -> str:
    """Return the command that starts a Docker or podman container in which the jail works. A root that can't drop its
    rights needs another user; the filter most likely refuses namespaces as well, which could not be tried then.
    """
    options = ["--user 1000"] if seen.steps.get("drop") else []
    if seen.filtered or not options:
        options.append("--security-opt seccomp=unconfined")
    if seen.selinux:
        options.append("--security-opt label=disable")
    elif _confined(seen) and seen.container == "docker":
        options.append("--security-opt apparmor=unconfined")
    return " ".join([seen.container, "run", *options])


def _security_context(seen: Observed) -> str:
    fields = ["runAsUser: 1000"] if seen.steps.get("drop") else []
    if seen.filtered or not fields:
        fields.append("seccompProfile: {type: Unconfined}")
    if _confined(seen) and not seen.selinux:
        fields.append("appArmorProfile: {type: Unconfined}")
    return f"securityContext: {{{', '.join(fields)}}}"
