"""What is really in force in a cell, seen from inside and with the guest's own rights. Inner.

Each layer is looked for by its effect, or in what the kernel says of us; none is taken from what the set-up meant.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from redoma.backends import linux
from redoma.backends.jail.configuration import GUEST_ID, HOST_NAME, WRITABLE
from redoma.lib.mounts import Mount, read_mounts

_LAYER = {"memory": "", "disk": "; on disk, where its size is watched"}
_SPACES = {"user": "user", "pid": "pid", "mount": "mnt", "net": "net", "ipc": "ipc", "uts": "uts", "cgroup": "cgroup"}


class Missing(Exception):
    """A layer that is not there, and how we know."""


def look(spec: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Layers in force with a word on each, and those that are missing with the reason."""
    layers: dict[str, str] = {}
    missing: dict[str, str] = {}
    status = _status()
    checks: dict[str, Callable[[], str]] = {
        **{name: partial(_namespace, name, spec) for name in _SPACES},
        "user-namespaces": lambda: _user_namespaces(spec),
        "capabilities": lambda: _capabilities(status),
        "no_new_privs": lambda: _flag(status, "NoNewPrivs", "1", "no program gains privileges"),
        "seccomp": lambda: _flag(status, "Seccomp", "2", "an allowlist of system calls"),
        "landlock": lambda: _landlock(spec),
        "filesystem": lambda: _root(spec),
        "private": lambda: _private(spec),
        "descriptors": lambda: _descriptors(spec),
        "environment": _environment,
        "proc": _proc,
        "init": _init,
        "names": lambda: _names(spec),
        **({"workspace": lambda: _workspace(spec)} if spec["project"] else {}),
    }
    for name, check in checks.items():
        try:
            layers[name] = check()
        except (Missing, OSError) as error:
            missing[name] = str(error)
    return {"layers": layers, "missing": missing}


def _status() -> dict[str, str]:
    with open("/proc/self/status") as file:
        return {key: text.strip() for key, _, text in (line.partition(":") for line in file)}


def _namespace(name: str, spec: Mapping[str, Any]) -> str:
    kind = _SPACES[name]
    own = os.readlink(f"/proc/self/ns/{kind}")
    if own == spec["outside"][kind]:
        raise Missing(f"the {name} namespace is the host's")
    # As init has seen them: the guest is refused netlink, and on 5.10 its /proc has no `net`.
    if name == "net" and spec["interfaces"] != {"lo"}:
        raise Missing("there are network interfaces beside the cell's own loopback")
    return "a namespace of its own"


def _user_namespaces(spec: Mapping[str, Any]) -> str:
    """As init read it back from the kernel: the guest's own /proc doesn't show it."""
    if spec["user_namespaces"]:
        raise Missing(f"{spec['user_namespaces']} more user namespaces can be made")
    return "no further ones can be made"


def _capabilities(status: Mapping[str, str]) -> str:
    held = [name for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb") if int(status[name], 16)]
    if held:
        raise Missing(f"{', '.join(held)} not empty")
    return "none, and none to be had"


def _flag(status: Mapping[str, str], name: str, wanted: str, meaning: str) -> str:
    if status.get(name) != wanted:
        raise Missing(f"{name} is {status.get(name, 'unknown')}")
    return meaning


def _landlock(spec: Mapping[str, Any]) -> str:
    """By its effect. /dev/zero can be opened for reading, and only Landlock keeps it from being opened for writing: the
    mounts and its mode allow that. Only Landlock keeps a signal from init, which has the guest's own user."""
    if not spec["landlock"]:
        raise Missing("this kernel has no Landlock, or it is switched off")
    os.close(os.open("/dev/zero", os.O_RDONLY))
    try:
        os.close(os.open("/dev/zero", os.O_WRONLY))
    except PermissionError:
        pass
    else:
        raise Missing("files can be written to that should not be")
    if spec["landlock"] >= linux.LANDLOCK_SCOPES:
        try:
            os.kill(1, 0)
        except PermissionError:
            pass
        else:
            raise Missing("signals reach processes outside")
    return linux.landlock_promise(spec["landlock"])


def _root(spec: Mapping[str, Any]) -> str:
    for path in ("/", "/usr", "/etc", "/opt/redoma/redoma"):
        if not os.statvfs(path).f_flag & os.ST_RDONLY:
            raise Missing(f"{path} is writable")
    seen = set(os.listdir("/"))
    for place in ("/home", "/mnt"):
        # On the way to the project there is nothing else.
        known = {spec["project"].removeprefix(f"{place}/").split("/")[0]} if spec["project"] else set()
        if "sys" in seen or set(os.listdir(place)) - known:
            raise Missing("the host's directories are there")
    if os.getcwd() != "/workspace":
        raise Missing(f"the working directory is {os.getcwd()}")
    if not _is_overlay("/usr"):
        return "built from nothing, read-only; locks on files of the system are seen by the host, and its are seen here"
    return "built from nothing, read-only"


def _workspace(spec: Mapping[str, Any]) -> str:
    path = spec["project"]
    if not _is_overlay(path):
        raise Missing(f"{path} is not an overlay: its sockets, pipes and locks are the host's")
    if spec["workspace"] == "read-only":
        if not os.statvfs(path).f_flag & os.ST_RDONLY:
            raise Missing(f"{path} is writable")
        return f"{path}, read-only"
    return f"{path}, beneath a layer of its own that takes what is written{_LAYER[spec['changes']]}"


def _is_overlay(path: str) -> bool:
    mounts = [mount for mount in read_mounts() if mount.path == path]
    return bool(mounts) and mounts[-1].kind == "overlay"


def _private(spec: Mapping[str, Any]) -> str:
    for path in WRITABLE:
        facts = os.statvfs(path)
        if not facts.f_blocks or facts.f_blocks * facts.f_frsize > max(spec["disk"], 16 << 20) + 4096:
            raise Missing(f"{path} has no limit")
        if not facts.f_files or not facts.f_flag & os.ST_NOSUID:
            raise Missing(f"{path} takes any number of files, or setuid programs")
    return f"{spec['disk']} bytes and {spec['files']} files of its own"


def _descriptors(spec: Mapping[str, Any]) -> str:
    listing = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY)
    try:
        held = {int(name) for name in os.listdir(listing)} - {0, 1, 2, listing, spec["order"]}
        held = {number for number in held if _is_open(number)}  # listing it opened one more
    finally:
        os.close(listing)
    if held:
        raise Missing(f"descriptors {sorted(held)} are open")
    return "three streams and nothing inherited"


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _proc() -> str:
    names = {name for name in os.listdir("/proc") if not name.isdigit()}
    if names - {"self", "thread-self"}:
        raise Missing(f"/proc shows {', '.join(sorted(names))[:200]}")
    processes = {name for name in os.listdir("/proc") if name.isdigit()}
    if processes - {"1", str(os.getpid())}:
        raise Missing("/proc shows other processes")
    return "the cell's processes only"


def _init() -> str:
    try:
        os.listdir("/proc/1/fd")
    except PermissionError:
        return "can't be traced or read"
    raise Missing("the guest can look into its init")


def _environment() -> str:
    """As it was when the zygote was executed: that stays readable, whatever is done to `os.environ`."""
    with open("/proc/self/environ", "rb") as file:
        names = {entry.split(b"=")[0] for entry in file.read().split(b"\0") if entry}
    if odd := names - {b"HOME", b"LANG", b"PATH", b"LD_LIBRARY_PATH", b"PYTHONHASHSEED"}:
        raise Missing(f"variables of the host are there: {sorted(odd)}")
    return "none of the host's variables"


def _names(spec: Mapping[str, Any]) -> str:
    if shown := places_shown(read_mounts(), spec["project"]):
        raise Missing(f"where {shown[0]} lies on the host shows in /proc/self/mountinfo")
    if (os.uname().nodename, os.getuid(), os.getgid()) != (HOST_NAME, GUEST_ID, GUEST_ID):
        raise Missing("the name of the host or of its user shows")
    return "those of the host don't show"


def places_shown(mounts: Iterable[Mount], project: str) -> list[str]:
    """What is ours below /opt and tells where it lies on the host. A project has the path that it has there anyhow."""
    return [
        mount.path
        for mount in mounts
        if mount.path.startswith("/opt/")
        and mount.kind not in ("overlay", "tmpfs")
        and not (project and f"{mount.path}/".startswith(f"{project}/"))
    ]
