"""Describes what a cell's probe found: which layers are in force, and why others are missing.

c/probes.h probes from inside, with the guest's own rights, and sends a line for each layer: its name if it is in force;
its name, a space and the reason if it is not. Lines that begin with `=` are further facts.
"""

from __future__ import annotations

import msgspec

from ..linux import landlock_promise
from .configuration import LAYERS, LEAN_LAYERS, LEAN_MISSING

_NAMESPACES = ("user", "pid", "mount", "net", "ipc", "uts", "cgroup")
_IN_FORCE = {
    **dict.fromkeys(_NAMESPACES, "a namespace of its own"),
    "user-namespaces": "no further ones can be made",
    "capabilities": "none, and none to be had",
    "no_new_privs": "no program gains privileges",
    "seccomp": "an allowlist of system calls",
    "filesystem": "built from nothing, read-only",
    "descriptors": "three streams and nothing inherited",
    "environment": "none of the host's variables",
    "proc": "the cell's processes only",
    "init": "can't be traced or read",
    "names": "those of the host don't show",
    "locks": "on files that are only read they are its own, and so are watches; devices aside",
}
_EMPTY_PROC = "empty: this host lets a user namespace have no /proc of its own"
_SHARED_LOCKS = "; locks on files of the system are seen by the host, and its are seen here"


class Found(msgspec.Struct, frozen=True):
    """Layer → description, for those in force; layer → reason, for those missing."""

    layers: dict[str, str]
    missing: dict[str, str]


def read(
    payload: bytes, *, disk: int, files: int, project: str, writable: bool, on_disk: bool, lean: bool = False
) -> Found:
    """Return what the cell reports. Raises ValueError if a layer is not in the report, or an unknown one is."""
    lines = payload.decode("utf-8", "replace").splitlines()
    facts = dict(line[1:].split(" ", 1) for line in lines if line.startswith("="))
    words = {
        **_IN_FORCE,
        "landlock": landlock_promise(int(facts["landlock"])),
        "private": f"{disk} bytes and {files} files of its own",
        "workspace": _workspace(project, writable, on_disk),
    }
    if lean:
        words |= LEAN_LAYERS | {"landlock": words["landlock"], "private": f"{words['private']}, watched every 10 ms"}
    elif facts["proc"] == "0":
        words["proc"] = _EMPTY_PROC
    if not lean and facts["overlay"] == "0":
        words["filesystem"] += _SHARED_LOCKS
    layers: dict[str, str] = {}
    missing: dict[str, str] = {}
    for line in lines:
        name, _, why = line.partition(" ")
        if why and not name.startswith("="):
            missing[name] = why
        elif not name.startswith("="):
            layers[name] = words[name]
    expected = {*(LEAN_LAYERS if lean else LAYERS), *(["workspace"] if project else [])}
    if unknown := expected ^ {*layers, *missing}:
        raise ValueError(f"the cell was not looked over: {', '.join(sorted(unknown))}")
    if lean:
        missing = LEAN_MISSING | missing
    return Found(layers, missing)


def _workspace(project: str, writable: bool, on_disk: bool) -> str:
    if not writable:
        return f"{project}, read-only"
    where = "; on disk, where its size is watched" if on_disk else ""
    return f"{project}, beneath a layer of its own that takes what is written{where}"
