"""Inspects this host for `redoma doctor`: reads settings, and has a child process really take each step of making a
cell (see `host_trial`). Changes nothing and leaves nothing behind.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from ...lib.files import reason
from ...lib.mounts import read_mounts
from .. import linux
from . import seccomp
from .cgroup import find
from .cgroup_place import Unavailable, locate
from .changes_disk import ChangesDirectory

_PACKAGES = str(Path(__file__).parents[3])
_BOOT = "import sys; sys.path.append(sys.argv.pop(1)); from redoma.backends.jail.host_trial import main; main()"
_PATIENCE = 10.0  # seconds for the steps, which take about 50 ms
_SETTINGS = (
    "kernel.unprivileged_userns_clone",
    "kernel.apparmor_restrict_unprivileged_userns",
    *(f"user.max_{kind}_namespaces" for kind in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")),
)


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """What was observed. The defaults describe a host on which everything works."""

    release: str
    machine: str
    root: bool = False
    steps: dict[str, int] = {}
    """The errno of each step of `host_trial`."""
    broken: str = ""
    """Why the steps could not be tried at all."""
    closed: str = ""
    """A path of the interpreter that the unprivileged user can't read."""
    unfiltered: str = ""
    """Why there is no filter of system calls for this machine."""
    settings: dict[str, str] = {}
    container: str = ""
    service: str = ""
    """The systemd unit that we run in."""
    chrooted: bool = False
    filtered: bool = False
    """Whether we already run under a seccomp filter."""
    label: str = ""
    """Our label in AppArmor or SELinux."""
    selinux: bool = False
    landlock: int = 0
    cgroup: str | Unavailable = ""
    """How control groups limit a cell here, or why they can't."""
    modules: str = ""
    """The kernel's security modules, if they can be read."""
    bash: str | None = None
    executable: str = ""


def look() -> Observed:
    """Inspect this host. Takes about 0.1 s and leaves nothing behind."""
    report, broken = _take_steps()
    status = _read("/proc/self/status")
    return Observed(
        release=platform.release(),
        machine=platform.machine(),
        root=os.getuid() == 0,
        broken=broken,
        unfiltered=_unfiltered(),
        cgroup=_cgroup(),
        settings={name: value for name in _SETTINGS if (value := _read("/proc/sys/" + name.replace(".", "/")))},
        container=container(),
        service=_service(),
        chrooted=not _sees_a_root(),
        filtered="Seccomp:\t2" in status,
        label=_read("/proc/self/attr/current").rstrip("\0"),
        selinux=_read("/sys/fs/selinux/enforce") == "1",
        modules=_read("/sys/kernel/security/lsm"),
        bash=shutil.which("bash", path=os.defpath),
        executable=os.path.realpath(sys.executable),
        **report,
    )


def _take_steps() -> tuple[dict[str, Any], str]:
    """Return the report of the child, or why there is none."""
    prefix = os.path.realpath(sys.base_prefix)
    needed = [
        (prefix, os.path.relpath(os.path.realpath(sys.executable), prefix)),
        (prefix, os.path.relpath(os.path.realpath(os.__file__), prefix)),
        (sysconfig.get_path("purelib"), ""),
        (f"{_PACKAGES}/redoma", "__init__.py"),
    ]
    arguments = [word for pair in needed if os.path.isdir(pair[0]) for word in pair]
    changes = ChangesDirectory()
    try:
        child = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _BOOT, _PACKAGES, changes.path, *arguments],
            capture_output=True,
            timeout=_PATIENCE,
            check=False,
            cwd="/",
            env={},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {}, str(error)
    finally:
        changes.close()
    if child.returncode:
        last = child.stderr.decode(errors="replace").strip().rsplit("\n", 1)[-1]
        return {}, last or f"the child ended with status {child.returncode}"
    report: dict[str, Any] = json.loads(child.stdout)
    return report, ""


def _read(path: str) -> str:
    """Return the content of a file of the kernel; empty if it can't be read."""
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""


def _sees_a_root() -> bool:
    """Return whether something is mounted at /. In a chroot nothing is."""
    try:
        return any(mount.path == "/" for mount in read_mounts())
    except OSError:
        return False


def _unfiltered() -> str:
    try:
        seccomp.program(watched=False)
    except OSError as error:
        return reason(error)
    return ""


def _cgroup() -> str | Unavailable:
    """Return how control groups work here. In v1 by making one; in v2 only by looking, since making the first one would
    move this process to another group.
    """
    place = locate()
    if isinstance(place, Unavailable):
        return place
    if place.version == "v2":
        return f"v2 limits the memory of a cell and counts its CPU time, in {place.base}"
    groups = find()
    return groups if isinstance(groups, Unavailable) else f"v1 limits the memory of a cell, in {groups.base}"


def container() -> str:
    """Return what kind of container this looks like: a hint, for messages only. Empty if it looks like none."""
    if "bwrap" in _ancestors():
        return "bubblewrap"
    if "KUBERNETES_SERVICE_HOST" in os.environ or os.path.exists("/var/run/secrets/kubernetes.io"):
        return "kubernetes"
    named = _read("/run/systemd/container") or _read("/run/host/container-manager")
    if named == "wsl":  # what systemd calls it; a machine of its own since the second version
        return ""
    if named or os.path.exists("/run/.containerenv"):
        return named or "podman"
    if os.path.exists("/.dockerenv") and _is_confined():  # an image can be started as a machine too
        return "docker"
    groups = re.search(r"kubepods|docker|libpod|lxc", _read("/proc/self/cgroup"))
    return {"kubepods": "kubernetes", "libpod": "podman"}.get(groups.group(), groups.group()) if groups else ""


def _ancestors() -> Iterator[str]:
    """Yield the names of the programs that started this process, as far as they can be seen."""
    pid = "self"
    while pid != "0" and (status := _read(f"/proc/{pid}/status")):
        yield status.partition("\n")[0].partition("\t")[2]
        pid = status.partition("\nPPid:\t")[2].partition("\n")[0]


def _is_confined() -> bool:
    """Return whether a filter of system calls, or a lack of capabilities that none can regain, restricts us."""
    status = _read("/proc/self/status")
    capabilities = int(status.partition("\nCapBnd:\t")[2].partition("\n")[0] or "0", 16)
    return "Seccomp:\t2" in status or not capabilities & 1 << linux.CAP_SYS_ADMIN


def _service() -> str:
    """Return the systemd service that we run in; empty in a scope, such as that of a login or a terminal."""
    units = re.findall(r"/([^/\n]+\.(?:service|scope))", _read("/proc/self/cgroup"))
    return units[-1] if units and units[-1].endswith(".service") and not units[-1].startswith("user@") else ""
