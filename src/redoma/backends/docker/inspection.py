"""What the engine reports about itself and its containers: the layers in force, and the facts for `redoma doctor`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

from ...lib.errors import BackendError, BackendUnavailable
from ...models import Isolation
from ..base import LAYER_ALIASES, Fact
from .box import HOSTS, Box
from .engine import Engine, check_engine

_ALL = (
    *("container", "pid", "mount", "net", "ipc", "uts", "cgroup", "user", "capabilities", "no_new_privs", "seccomp"),
    *("filesystem", "private", "environment", "pids", "memory"),
)
"""Every layer that a container can have. Those that are not in force are listed as missing on the result."""


def isolation(seen: Mapping[str, Any], about: Mapping[str, Any], *, direct: bool) -> Isolation:
    """Return the layers around a container, from the engine's `inspect` of it and its `info`."""
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
        ours = options.get("seccomp", "").startswith("{")  # otherwise the name of a profile, or unset
        layers["seccomp"] = "an allowlist of system calls" if ours else "the engine's filter of system calls"
    for alias, name in LAYER_ALIASES.items():
        if name in layers:
            layers.setdefault(alias, layers[name])
    return Isolation(layers=layers, missing=tuple(name for name in _ALL if name not in layers))


def is_gvisor(runtime: str | None) -> bool:
    """Return whether a runtime is gVisor. The name is all that an engine reports about a runtime."""
    return runtime is not None and ("runsc" in runtime or "gvisor" in runtime.lower())


def _options(host: Mapping[str, Any]) -> dict[str, str]:
    """Return the security options by name: `no-new-privileges`, `seccomp=unconfined`, `apparmor:name`."""
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


# --- for `redoma doctor` ---


def facts(box: Box, host: str | None) -> tuple[Fact, ...]:
    """Return what the engine offers. Empty if there is no engine: `capabilities` reports that."""
    try:
        check_engine(host)
    except BackendUnavailable:
        return ()
    found: list[Fact] = []
    # In a thread with its own event loop, because the caller may be on one.
    thread = threading.Thread(target=lambda: found.extend(asyncio.run(_look(box, host))))
    thread.start()
    thread.join()
    return tuple(found)


async def _look(box: Box, host: str | None) -> list[Fact]:
    engine = Engine(host)
    try:
        client = await engine.client()
        return [_engine(engine.info, client.api_version), *_runtime(box, engine.info), *await _images(box, engine)]
    except BackendError as error:
        return [Fact(name="docker", state="missing", what=f"{error.what}: {error.why}", fix=f"# {error.next}")]
    except Exception as error:  # unexpected, but `doctor` must still show the rest
        what = f"the engine can't be used: {type(error).__name__}: {error}"
        return [Fact(name="docker", state="missing", what=what, fix="# see DOCKER_HOST, or `docker.host`")]
    finally:
        await engine.aclose()


def _engine(about: Mapping[str, Any], version: str) -> Fact:
    groups = f"cgroup v{about.get('CgroupVersion', '1')}"
    what = (
        f"engine {about.get('ServerVersion', '?')} (interface {version}), {about.get('OperatingSystem', '?')}, {groups}"
    )
    lacking = [name for name in ("MemoryLimit", "SwapLimit", "PidsLimit") if about.get(name) is False]
    if lacking:
        return Fact(
            name="docker",
            state="degraded",
            what=f"{what}; without {', '.join(lacking)}",
            costs="runs that need those limits are refused",
            fix="# boot the engine's host with cgroup_enable=memory swapaccount=1, or with cgroup v2",
        )
    return Fact(name="docker", what=what)


def _runtime(box: Box, about: Mapping[str, Any]) -> list[Fact]:
    known = sorted(about.get("Runtimes") or ())
    if box.runtime and box.runtime not in known:
        return [
            Fact(
                name="docker runtime",
                state="missing",
                what=f"the engine has no {box.runtime}; it has {', '.join(known)}",
                costs="no container can be made",
                fix="# install it and name it under `runtimes` in the engine's daemon.json,\n"
                "# or leave `docker.runtime` out of your configuration",
            )
        ]
    runtime = box.runtime or about.get("DefaultRuntime", "?")
    return [Fact(name="docker runtime", what="gVisor" if is_gvisor(runtime) else str(runtime))]


async def _images(box: Box, engine: Engine) -> list[Fact]:
    uses: dict[str, list[str]] = {}
    for language in ("python", "bash", "command"):
        uses.setdefault(getattr(box, language), []).append(language)
    found = []
    for image, languages in uses.items():
        try:
            await engine.get(f"images/{image}/json")
            found.append(Fact(name="docker image", what=f"{image}, for {' and '.join(languages)}"))
        except BackendError as error:
            found.append(
                Fact(
                    name="docker image",
                    state="ok" if box.pull else "degraded",
                    what=f"{image} is not there" + (", and will be fetched" if box.pull else f": {error.why}"),
                    costs="" if box.pull else f"no {' and no '.join(languages)} in containers",
                    fix="" if box.pull else f"docker pull {image}",
                )
            )
    return found
