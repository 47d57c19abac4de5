"""A container as data, and the engine's JSON for it."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import msgspec

from ...lib.errors import InvalidRequest
from ...models import Language, Limits
from ...models.reach import Reach
from ...models.request import IMAGES
from ..base import MAX_LIMIT
from . import stub, syscalls

HOSTS = "/etc/hosts"
NOBODY = "65534:65534"
"""By number, because an image may have no user of that name."""
_TELLING = """
    acpi asound buddyinfo bus cmdline config.gz consoles crypto device-tree devices diskstats dma driver dynamic_debug
    execdomains fb fs interrupts iomem ioports irq kallsyms kcore key-users keys kmsg kpagecgroup kpagecount kpageflags
    latency_stats locks mdstat misc modules mtrr pagetypeinfo partitions pressure sched_debug schedstat scsi slabinfo
    softirqs swaps sys sysrq-trigger sysvipc timer_list timer_stats tty version vmallocinfo zoneinfo"""
"""Files in /proc that reveal the machine, its kernel or its other tenants; includes the engine's own list. Files that
programs commonly read stay visible: cpuinfo, meminfo, stat, loadavg, uptime, filesystems, mounts.
"""
_HIDDEN = ("/sys", "/dev/mqueue", *(f"/proc/{name}" for name in _TELLING.split()))
_SHM = 64 << 20  # the engine's default


class Box(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a container. The defaults are hardened, for code that nobody has reviewed.

    The fields are those of an `exec.docker` entry. There 0 means no limit. In a hardened box the limits of the request
    apply, and these only where they are lower.
    """

    python: str = IMAGES["python"]
    bash: str = IMAGES["bash"]
    command: str = IMAGES["command"]
    javascript: str = IMAGES["javascript"]
    network_mode: str = "none"
    volumes: tuple[str, ...] = ()
    """`host:container[:ro]`; a source that doesn't begin with / is a named volume of the engine."""
    user: str | None = NOBODY
    memory_limit: int = 0
    cpu_quota: int = 0
    """In the engine's units: 100000 is one processor."""
    auto_remove: bool = True
    read_only_rootfs: bool = True
    no_new_privileges: bool = True
    cap_drop: tuple[str, ...] = ("ALL",)
    cap_add: tuple[str, ...] = ()
    pids_limit: int = 0
    tmpfs: dict[str, str] = {}
    seccomp: Literal["redoma", "engine"] = "redoma"
    """Which system call filter to use: the jail's, or the engine's laxer one. gVisor has its own."""
    runtime: str | None = None
    """`runsc` for gVisor; None uses the engine's default."""
    pull: bool = False
    """Whether to pull a missing image."""
    direct: bool = False
    """Whether the container runs the command directly, without a stub."""

    def __post_init__(self) -> None:
        for volume in self.volumes:
            _mount(volume)
        for name in ("memory_limit", "cpu_quota", "pids_limit"):
            if not 0 <= getattr(self, name) < MAX_LIMIT:
                raise InvalidRequest(
                    f"{name} is {getattr(self, name)}", why="it is a positive number, or 0 for none", next="correct it"
                )

    @classmethod
    def plain(cls, image: str, **fields: Any) -> Box:
        """Return the settings of a configured container (`exec.docker`): the engine's defaults, except for `fields`."""
        engine: dict[str, Any] = {
            **dict.fromkeys(IMAGES, image),
            **dict.fromkeys(("auto_remove", "read_only_rootfs", "no_new_privileges"), False),
            "network_mode": "bridge",
            "user": None,
            "seccomp": "engine",
            "cap_drop": (),
        }
        return cls(direct=True, **engine | fields)

    @property
    def reach(self) -> Reach:
        """What a program in the container could touch: writable volumes, the network, and whatever added capabilities,
        a shared network or a host socket give it.
        """
        mounts = [_mount(volume) for volume in self.volumes]
        shared = self.network_mode not in ("none", "bridge")  # with the host or with another container
        return Reach(
            files="host" if any(not mount["ReadOnly"] for mount in mounts) else "none",
            network=self.network_mode != "none",
            # A socket accepts requests through a read-only mount too, and a directory of the host may contain one.
            system=shared or bool(self.cap_add) or any(mount["Type"] == "bind" for mount in mounts),
        )

    def image(self, language: Language) -> str:
        """The image that has its interpreter; a language of the configuration is a command like any other."""
        images = {"python": self.python, "bash": self.bash, "javascript": self.javascript}
        return images.get(language, self.command)


class ContainerSpec(NamedTuple):
    """What is fixed when a container is created. A warm container fits every request with the same spec."""

    image: str
    python: bool
    """Whether the Python stub waits in it, rather than the shell stub."""
    memory: int
    processes: int
    disk: int
    files: int
    file_size: int
    open_files: int
    cpu: float


def spec(box: Box, language: Language, limits: Limits) -> ContainerSpec:
    """Return the spec of the container that a request needs."""
    return ContainerSpec(
        image=box.image(language),
        python=language == "python",
        memory=min(limits.memory, box.memory_limit or limits.memory),
        processes=min(limits.processes, box.pids_limit or limits.processes),
        disk=limits.disk,
        files=limits.files,
        file_size=limits.file_size,
        open_files=limits.open_files,
        cpu=limits.cpu,
    )


def waiting(box: Box, wanted: ContainerSpec, *, gvisor: bool = False, hosts: str | None = None) -> dict[str, Any]:
    """Return the engine's JSON for a container in which a stub waits for an order.

    `hosts` is a file on the engine's host to mount as /etc/hosts. With it, a container without a network needs none of
    the engine's network set-up, which otherwise writes that file and takes longer than everything else.
    """
    # One more for the stub. gVisor's own threads count too, about five for each process inside (measured: 38 for
    # itself, 196 with 30 more processes, 502 with 90); without them its kernel gives up.
    tasks = 6 * wanted.processes + 64 if gvisor else wanted.processes + 1
    # All that the run writes goes to one file system, whose size is thus the limit on all of it. Shared memory can't be
    # part of it, so it gets a share of that size: the default of 64 MiB would come on top of the limit.
    shm = min(_SHM, wanted.disk // 8)
    # Writable by any user, since each container has only one. The mode applies if the image has no such directory;
    # otherwise the image's mode does. Two of the inodes are the root and the workspace.
    own = f"mode=1777,exec,size={wanted.disk - shm},nr_inodes={wanted.files + 2}"
    limits = {
        "fsize": wanted.file_size,
        "nofile": wanted.open_files,
        "core": 0,
        "cpu": min(math.ceil(wanted.cpu) + 1, 2**31),  # per process; the total is watched by `run`
    }
    return {
        **_streams(),
        "Image": wanted.image,
        "Entrypoint": [],
        "Cmd": stub.command("python" if wanted.python else "command"),
        "User": box.user or "",
        "WorkingDir": "/",
        "StopSignal": "SIGKILL",
        "NetworkDisabled": hosts is not None,
        "HostConfig": {
            **_host(box),
            "Mounts": [*map(_mount, box.volumes), *([_mount(f"{hosts}:{HOSTS}:ro")] if hosts else [])],
            "IpcMode": "private",
            "CgroupnsMode": "private",
            "MaskedPaths": list(_HIDDEN),
            "Memory": min(wanted.memory, MAX_LIMIT),
            "MemorySwap": min(wanted.memory, MAX_LIMIT),  # memory and swap together: no swap
            "PidsLimit": min(tasks, 2**31),
            "ShmSize": max(shm, 1),
            "Tmpfs": {
                "/tmp": own,  # noqa: S108 - inside the container
                "/run/redoma": f"mode=1777,size={stub.RUN_BYTES},nr_inodes=16",
                **box.tmpfs,
            },
            "Ulimits": [
                {"Name": name, "Soft": min(value, MAX_LIMIT), "Hard": min(value, MAX_LIMIT)}
                for name, value in limits.items()
            ],
            # Nothing reads the engine's log, and a flood of output would fill the engine's disk.
            "LogConfig": {"Type": "none"},
        },
    }


def direct(box: Box, argv: tuple[str, ...], env: dict[str, str], cwd: str | None, init: bool) -> dict[str, Any]:
    """Return the engine's JSON for a container that runs a command with exactly the configured settings.

    With `init`, the engine's own init is pid 1. Without it the program is pid 1, and the kernel drops every signal that
    the program has no handler for, so even SIGTERM would have no effect.
    """
    host = {
        **_host(box),
        "Memory": box.memory_limit,
        "MemorySwap": box.memory_limit,
        "PidsLimit": box.pids_limit or None,
        "AutoRemove": box.auto_remove,
        # An auto-removed container's log can't be read afterwards; it would only fill the engine's disk.
        **({"LogConfig": {"Type": "none"}} if box.auto_remove else {}),
        "Tmpfs": box.tmpfs,
    }
    return {
        **_streams(),
        "Image": box.command,
        "Entrypoint": [],
        "Cmd": list(argv),
        "Env": [f"{name}={value}" for name, value in env.items()],
        "User": box.user or "",
        "WorkingDir": cwd or "",
        "HostConfig": {**host, "Init": True} if init else host,
    }


def _streams() -> dict[str, Any]:
    return {
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "OpenStdin": True,
        "StdinOnce": True,  # the container's input ends with our connection, so a waiting stub ends when Redoma does
        "Tty": False,
    }


def _host(box: Box) -> dict[str, Any]:
    return {
        "NetworkMode": box.network_mode,
        "Mounts": [_mount(volume) for volume in box.volumes],
        "CpuQuota": box.cpu_quota,
        "CpuPeriod": 100_000 if box.cpu_quota else 0,
        "ReadonlyRootfs": box.read_only_rootfs,
        "SecurityOpt": [
            *(["no-new-privileges"] if box.no_new_privileges else []),
            *([f"seccomp={syscalls.profile()}"] if box.seccomp == "redoma" else []),
        ],
        "CapDrop": list(box.cap_drop),
        "CapAdd": list(box.cap_add),
        **({"Runtime": box.runtime} if box.runtime else {}),
    }


def _mount(volume: str) -> dict[str, Any]:
    """Return the volume as a mount, not a "bind": for binds the engine creates a missing directory, as root."""
    source, _, rest = volume.partition(":")
    target, _, mode = rest.partition(":")
    if not source or not target.startswith("/") or mode not in ("", "ro", "rw"):
        raise InvalidRequest(
            f"the volume {volume!r} can't be used",
            why="it is not host:container or host:container:ro",
            next="write it as /srv/data:/data:ro",
        )
    kind = "bind" if source.startswith("/") else "volume"
    return {"Type": kind, "Source": source, "Target": target, "ReadOnly": mode == "ro"}
