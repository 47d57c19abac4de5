"""What the engine reports: which layers are in force around a container, and how it ended. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...models import Isolation
from .box import HOSTS

ALIASES = {"process": "pid", "network": "net", "kernel": "seccomp"}
"""Names that other backends use too, for whoever asks for a layer without minding which backend provides it."""
_ALL = (
    *("container", "pid", "mount", "net", "ipc", "uts", "cgroup", "user", "capabilities", "no_new_privs", "seccomp"),
    *("filesystem", "private", "environment", "pids", "memory"),
)


def isolation(seen: Mapping[str, Any], about: Mapping[str, Any], *, direct: bool) -> Isolation:
    """The layers around a container, from the engine's own account of it (`inspect`) and of itself (`info`)."""
    host, config = seen["HostConfig"], seen["Config"]
    runtime = host.get("Runtime") or about.get("DefaultRuntime") or "the engine's runtime"
    gvisor = is_gvisor(runtime)
    privileged = bool(host.get("Privileged"))
    layers = {
        "container": f"{runtime}, image {config['Image']}",
        "mount": "mounts of its own",
        **_namespaces(host),
        **_rights(host, config, about),
        **_places(seen, host),
        "environment": "the variables of the image and of the request"
        if direct
        else "only the variables of the request",
        **_limits(host, about),
    }
    options = _options(host)
    if gvisor:
        layers["kernel"] = "gVisor: a kernel of its own, in user space"
        layers["seccomp"] = "gVisor's own: what its kernel may ask of the host's"
    elif not privileged and options.get("seccomp", "") != "unconfined" and _has_seccomp(about):
        ours = options.get("seccomp", "").startswith("{")  # else it is the name of a profile, or not said
        layers["seccomp"] = "an allowlist of system calls" if ours else "the engine's filter of system calls"
    for alias, name in ALIASES.items():
        if name in layers:
            layers.setdefault(alias, layers[name])
    return Isolation(layers=layers, missing=tuple(name for name in _ALL if name not in layers))


def is_gvisor(runtime: str | None) -> bool:
    """By its name: an engine says no more of its runtimes."""
    return runtime is not None and ("runsc" in runtime or "gvisor" in runtime.lower())


def _options(host: Mapping[str, Any]) -> dict[str, str]:
    """`no-new-privileges`, `seccomp=unconfined`, `apparmor:name`: by their names."""
    pairs = (option.replace(":", "=", 1).partition("=") for option in host.get("SecurityOpt") or ())
    return {name: value for name, _, value in pairs}


def _has_seccomp(about: Mapping[str, Any]) -> bool:
    known = about.get("SecurityOptions")
    return known is None or any("seccomp" in option and "unconfined" not in option for option in known)


def _namespaces(host: Mapping[str, Any]) -> dict[str, str]:
    layers = {}
    if not host.get("PidMode"):
        layers["pid"] = "sees and signals its own processes only"
    if host.get("NetworkMode") == "none":
        layers["net"] = "no network but its own loopback"
    if host.get("IpcMode") in ("private", "none"):
        layers["ipc"] = "shared memory and queues of its own"
    if not host.get("UTSMode"):
        layers["uts"] = "a host name of its own"
    if host.get("CgroupnsMode") == "private":
        layers["cgroup"] = "does not see the host's control groups"
    return layers


def _rights(host: Mapping[str, Any], config: Mapping[str, Any], about: Mapping[str, Any]) -> dict[str, str]:
    layers = {}
    user, privileged = config.get("User") or "", bool(host.get("Privileged"))
    if user and user.split(":")[0] not in ("0", "root"):
        layers["user"] = f"{user}, without privileges"
    elif any("name=userns" in one or "name=rootless" in one for one in about.get("SecurityOptions") or ()):
        layers["user"] = "root of a user namespace, nobody on the host"
    dropped = {name.upper().removeprefix("CAP_") for name in host.get("CapDrop") or ()}
    if "ALL" in dropped and not host.get("CapAdd") and not privileged:
        layers["capabilities"] = "none"
    if _options(host).get("no-new-privileges", "false") in ("", "true") and not privileged:
        layers["no_new_privs"] = "no program gains privileges"
    return layers


def _places(seen: Mapping[str, Any], host: Mapping[str, Any]) -> dict[str, str]:
    mounts = [
        f"{one.get('Source') or one.get('Name')} at {one['Destination']}{'' if one.get('RW', True) else ', read-only'}"
        for one in seen.get("Mounts") or ()
        if one.get("Type") != "tmpfs" and one["Destination"] != HOSTS
    ]
    root = (
        "the image, read-only" if host.get("ReadonlyRootfs") else "the image, with changes that go with the container"
    )
    layers = {"filesystem": root + "".join(f"; {mount}" for mount in mounts)}
    options = (host.get("Tmpfs") or {}).get("/tmp", "")  # noqa: S108 - inside the container
    if "size=" in options and "nr_inodes=" in options and host.get("ReadonlyRootfs"):
        layers["private"] = "its own /tmp with the workspace in it, and /dev/shm, capped in bytes and files"
    return layers


def _limits(host: Mapping[str, Any], about: Mapping[str, Any]) -> dict[str, str]:
    layers = {}
    if (host.get("PidsLimit") or 0) > 0 and about.get("PidsLimit", True):
        layers["pids"] = "a limit of the container's control group"
    if (memory := host.get("Memory") or 0) > 0 and about.get("MemoryLimit", True):
        swap = host.get("MemorySwap") == memory and about.get("SwapLimit", True)
        version = about.get("CgroupVersion", "")
        layers["memory"] = f"cgroup v{version or '1'}" + (", without swap" if swap else "; swap is not limited")
    return layers
