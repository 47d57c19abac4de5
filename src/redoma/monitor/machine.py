"""Facts about this machine, as plain data: one function for each. The functions may hang or fail; `collect` handles
that. Nothing else imports psutil.
"""

from __future__ import annotations

import os
import platform
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ..lib.errors import RedomaError
from ..lib.extras import pip_install
from ..lib.mounts import parse_mounts, read_mounts
from ..lib.sanitise import sanitise

_MAX_ITEMS = 20  # zombies, network interfaces, sensors: enough to recognise a problem, and little data
_SAMPLE = 0.2  # seconds over which processor usage is measured
_MAX_MOUNTS = 64

# File systems that store nothing, or are always full.
_NO_STORAGE = """
    autofs bpf binfmt_misc cgroup cgroup2 configfs debugfs devpts devtmpfs efivarfs
    fuse.gvfsd-fuse fuse.lxcfs fuse.portal fusectl hugetlbfs mqueue nsfs overlay proc
    pstore ramfs rpc_pipefs securityfs selinuxfs sysfs tmpfs tracefs
    erofs iso9660 squashfs udf
"""


def require() -> Any:
    """Import psutil, which only the monitor needs. Raises `RedomaError` if it is not installed."""
    try:
        import psutil
    except ImportError:
        raise RedomaError(
            "the monitor needs psutil", why="it is not installed", next=pip_install("redoma[monitor]")
        ) from None
    return psutil


def cpu() -> dict[str, Any]:
    psutil = require()
    shares = psutil.cpu_times_percent(interval=_SAMPLE)
    usable = len(os.sched_getaffinity(0))  # a container may have fewer than the machine
    return {
        "count": usable,
        "percent": round(100 - shares.idle - getattr(shares, "iowait", 0.0), 1),
        **{name: getattr(shares, name, 0.0) for name in ("user", "system", "iowait", "steal")},
    }


def memory() -> dict[str, Any]:
    """Return the memory of the machine or, in a container with a limit, of the container."""
    machine = require().virtual_memory()
    facts = {"total": machine.total, "available": machine.available, "used": machine.total - machine.available}
    limit, used = _cgroup_memory()
    if limit is not None and limit < machine.total:
        facts = {"total": limit, "available": max(0, limit - used), "used": used}
    return {**facts, "percent": _percent(facts["used"], facts["total"]), "limited": facts["total"] != machine.total}


def _cgroup_memory(group: Path = Path("/sys/fs/cgroup")) -> tuple[int | None, int]:
    """Return the memory limit of our control group, as a container sees it, and the memory used without caches. The
    limit is None if there is none.
    """
    for folder, most, now, cache in (
        (group, "memory.max", "memory.current", "inactive_file"),
        (group / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            limit = int((folder / most).read_text())  # "max" means no limit
            used = int((folder / now).read_text())
            counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            return limit, max(0, used - int(counts.get(cache, 0)))
        except (OSError, ValueError):
            continue
    return None, 0


def swap() -> dict[str, Any]:
    usage = require().swap_memory()
    return {"total": usage.total, "used": usage.used, "percent": usage.percent}


def load() -> dict[str, Any]:
    one, five, fifteen = os.getloadavg()
    count = len(os.sched_getaffinity(0))
    return {"one": one, "five": five, "fifteen": fifteen, "per_cpu": round(five / count, 2)}


def network() -> list[dict[str, Any]]:
    psutil = require()
    up = psutil.net_if_stats()
    return [
        {
            "name": sanitise(name),
            "up": name in up and up[name].isup,
            "sent": each.bytes_sent,
            "received": each.bytes_recv,
            "errors": each.errin + each.errout,
            "dropped": each.dropin + each.dropout,
        }
        for name, each in sorted(psutil.net_io_counters(pernic=True).items())
        if name != "lo"
    ][:_MAX_ITEMS]


def processes() -> dict[str, Any]:
    psutil = require()
    states: Counter[str] = Counter()
    zombies, others = [], []
    for process in psutil.process_iter(["pid", "ppid", "name", "status", "memory_info"]):
        info = process.info
        states[info["status"]] += 1
        name = sanitise(info["name"] or "")[:40]
        if info["status"] == psutil.STATUS_ZOMBIE:
            zombies.append({"pid": info["pid"], "parent": info["ppid"], "name": name})
        elif info["memory_info"] is not None:
            others.append({"pid": info["pid"], "name": name, "memory": info["memory_info"].rss})
    return {
        "total": sum(states.values()),
        "most": int(Path("/proc/sys/kernel/pid_max").read_text()),
        "running": states[psutil.STATUS_RUNNING],
        "blocked": states[psutil.STATUS_DISK_SLEEP],
        "zombie": states[psutil.STATUS_ZOMBIE],
        "zombies": zombies[:_MAX_ITEMS],
        "largest": sorted(others, key=lambda each: -each["memory"])[:5],
    }


def uptime() -> dict[str, Any]:
    booted = require().boot_time()
    return {"seconds": round(time.time() - booted), "booted": round(booted)}


def temperatures() -> list[dict[str, Any]]:
    """Return the temperatures; empty without sensors, as in most virtual machines and containers."""
    sensors: dict[str, list[Any]] = getattr(require(), "sensors_temperatures", dict)()
    return [
        {
            "sensor": sanitise(f"{chip} {each.label}".strip())[:60],
            "current": each.current,
            "high": each.high,
            "critical": each.critical,
        }
        for chip, readings in sensors.items()
        for each in readings
        if -50 < each.current < 200  # an unconnected sensor returns nonsense
    ][:_MAX_ITEMS]


FACTS: dict[str, Callable[[], Any]] = {
    each.__name__: each for each in (cpu, memory, swap, load, network, processes, uptime, temperatures)
}
"""The facts by name, except `disk` and `mounts`, which `collect` adds."""
ALWAYS = ("now", "host", "disk", "mounts", *FACTS)
"""Every name that rules know without any configuration."""


def host() -> str:
    return sanitise(platform.node()) or "localhost"


# --- file systems ---


class Mount(NamedTuple):
    """A file system at its mount point."""

    path: str
    device: str
    kind: str
    broke: bool
    """Whether an error made it read-only: it is mounted read-write, but the file system itself is read-only."""


def storage_mounts(text: str | None = None) -> list[Mount]:
    """Return each file system that stores something, once: at the mount point with the shortest path."""
    mounts: dict[str, Mount] = {}
    for mount in read_mounts() if text is None else parse_mounts(text):
        if mount.kind in _NO_STORAGE.split() and not (mount.path == "/" and mount.kind == "overlay"):
            continue  # an overlay at / is the root of a container, where its files are
        if mount.root != "/" and mount.path.startswith("/etc/"):
            continue  # /etc/hosts and the like, which are bind-mounted into a container
        if mount.device not in mounts or len(mount.path) < len(mounts[mount.device].path):
            broke = "rw" in mount.options and "ro" in mount.file_system_options
            mounts[mount.device] = Mount(mount.path, sanitise(mount.source), mount.kind, broke)
    return sorted(mounts.values())[:_MAX_MOUNTS]


def space(mount: Mount) -> dict[str, Any] | None:
    """Return how full a file system is; None if it has no size. May block forever if its server is gone."""
    about = os.statvfs(mount.path)
    if not about.f_blocks:
        return None
    used = about.f_blocks - about.f_bfree
    inodes = about.f_files - about.f_ffree
    return {
        "mount": sanitise(mount.path),
        "device": mount.device,
        "kind": mount.kind,
        "total": about.f_blocks * about.f_frsize,
        "free": about.f_bavail * about.f_frsize,
        "percent": _percent(used, used + about.f_bavail),  # like `df`: blocks reserved for root are not free
        # Some file systems (btrfs, vfat) have no fixed number of inodes: then they can't run out.
        "inodes_percent": _percent(inodes, inodes + about.f_favail) if about.f_files else 0.0,
    }


def _percent(part: float, whole: float) -> float:
    return round(100 * part / whole, 1) if whole > 0 else 0.0
