"""What can be wrong with an executor beyond its types: what would otherwise be found out when it is used."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator

import msgspec

from ..lib.errors import InvalidRequest
from ..lib.units import ENGINES, engine_problem, format_size
from ..models import Limits, MiB, Request
from .model import DockerEntry, Entry, JailEntry, MontyEntry
from .reader import Reader, nearest

_CAPABILITIES = """
ALL AUDIT_CONTROL AUDIT_READ AUDIT_WRITE BLOCK_SUSPEND BPF CHECKPOINT_RESTORE CHOWN DAC_OVERRIDE
DAC_READ_SEARCH FOWNER FSETID IPC_LOCK IPC_OWNER KILL LEASE LINUX_IMMUTABLE MAC_ADMIN MAC_OVERRIDE
MKNOD NET_ADMIN NET_BIND_SERVICE NET_BROADCAST NET_RAW PERFMON SETFCAP SETGID SETPCAP SETUID SYSLOG
SYS_ADMIN SYS_BOOT SYS_CHROOT SYS_MODULE SYS_NICE SYS_PACCT SYS_PTRACE SYS_RAWIO SYS_RESOURCE
SYS_TIME SYS_TTY_CONFIG WAKE_ALARM"""
_MIN_QUOTA = 1000  # of 100000: the kernel takes no less than a millisecond
_MIN_MEMORY = 6 * MiB  # Docker takes no less


def checked(reader: Reader, path: str, entry: Entry) -> Entry:
    """The entry as it is used, with every path on the host written out."""
    _check_variables(reader, path, entry)
    _check_commands(reader, path, entry)
    for name, value in entry.limits.items():
        try:
            msgspec.structs.replace(Limits(), **{name: value})
        except InvalidRequest as error:
            reader.report_at(f"{path}.limits.{name}", f"{error.what}: {error.why}", error.next)
    if isinstance(entry, (DockerEntry, JailEntry)) and entry.default_work_dir is not None:
        _check_inside(reader, f"{path}.default_work_dir", entry.default_work_dir)
    return _checked_container(reader, path, entry) if isinstance(entry, DockerEntry) else entry


def check_engine(reader: Reader, place: str, host: str | None) -> None:
    if host is not None and (problem := engine_problem(host)) is not None:
        reader.report_at(place, f"{host!r} is no engine: {problem}", f"write it with one of {', '.join(ENGINES)}")


def _check_variables(reader: Reader, path: str, entry: Entry) -> None:
    named = [(f"default_env.{name}", name, value) for name, value in entry.default_env.items()]
    named += [(f"caller_env[{number}]", name, "") for number, name in enumerate(entry.caller_env)]
    for place, name, value in named:
        try:
            Request(env={name: value})
        except InvalidRequest as error:
            reader.report_at(f"{path}.{place}", f"{error.what}: {error.why}", error.next)


def _check_commands(reader: Reader, path: str, entry: Entry) -> None:
    for number, command in enumerate(entry.command_whitelist or ()):
        place = f"{path}.command_whitelist[{number}]"
        try:
            if not (command.split() if isinstance(entry, MontyEntry) else shlex.split(command)):
                reader.report_at(place, "it holds no command", "write a command, or remove it")
        except ValueError as error:
            message = f"it can't be split into words ({error})"
            reader.report_at(place, message, "close every quote, and put a character after every backslash")


def _check_inside(reader: Reader, place: str, path: str) -> bool:
    if path.startswith("/") and ".." not in path.split("/"):
        return True
    reader.report_at(place, f"{path!r} is no path inside", "write an absolute path, such as /workspace")
    return False


def _checked_container(reader: Reader, path: str, entry: DockerEntry) -> DockerEntry:
    check_engine(reader, f"{path}.host", entry.host)
    if 0 < entry.cpu_quota < _MIN_QUOTA:
        reader.report_at(f"{path}.cpu_quota", "it is too little for anything to run", "100000 is one processor")
    for field, size in (("memory_limit", entry.memory_limit), ("limits.memory", entry.limits.get("memory", 0))):
        if 0 < size < _MIN_MEMORY:
            least = format_size(_MIN_MEMORY)
            message = f"{size} bytes are too little memory: Docker takes no less than {least}"
            reader.report_at(f"{path}.{field}", message, f"write {least} or more, such as 256MiB, or leave it out")
    for inside in entry.tmpfs:
        _check_inside(reader, f"{path}.tmpfs.{inside}", inside)
    capabilities = _CAPABILITIES.split()
    for field in ("cap_drop", "cap_add"):
        for number, name in enumerate(getattr(entry, field)):
            known = name.upper().removeprefix("CAP_")
            if known not in capabilities:
                message = f"there is no capability {name!r}"
                reader.report_at(f"{path}.{field}[{number}]", message, nearest(known, capabilities))
    return msgspec.structs.replace(entry, volumes=tuple(_volumes(reader, path, entry)))


def _volumes(reader: Reader, path: str, entry: DockerEntry) -> Iterator[str]:
    for number, volume in enumerate(entry.volumes):
        place = f"{path}.volumes[{number}]"
        host, inside, *mode = [*volume.split(":"), ""][: max(3, volume.count(":") + 1)]
        if not host or mode not in ([""], ["ro"]):
            reader.report_at(place, f"{volume!r} is no volume", "write it as host:container or host:container:ro")
        elif _check_inside(reader, place, inside):
            resolved = reader.resolved(host)
            if resolved is None or os.sep not in host:
                hint = "write an absolute path, one below `~/`, or one that begins with `./`"
                reader.report_at(place, f"{host!r} is no path on the host", hint)
            else:
                yield ":".join([str(resolved), inside, *filter(None, mode)])
