"""Really takes each step of making a cell once, in a child process that ends right after. Standard library only.

Settings say what should work. Whether it does depends on security modules and filters that nobody can read. So each
step is taken once, in the order of `root` and c/cell.c, and its errno is noted. A step that depends on a failed one is
not tried. Everything happens in namespaces of the child, and ends with it.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from redoma.backends import linux
from redoma.backends.jail import seccomp
from redoma.backends.jail.configuration import GUEST_ID, NAMESPACES, UNPRIVILEGED_ID
from redoma.backends.jail.root import restrict

_PLACE = "/tmp"  # noqa: S108 - covered, as in `root`, by a tmpfs that only this child sees


def main() -> None:
    """Take the steps and print the result as JSON. Arguments: a directory on disk to write to, or an empty string; then
    pairs of a directory and a path in it that a guest must be able to read.
    """
    _, layers, *needed = sys.argv
    os.write(1, json.dumps(take(layers, needed)).encode())


def take(layers: str, needed: list[str]) -> dict[str, Any]:
    """Take all steps. Returns the errno of each, and the first path that a guest could not read."""
    steps, closed = Steps(layers), ""
    if os.getuid() == 0:
        directories, paths = needed[::2], needed[1::2]
        if not steps.take("sight", linux.unshare, linux.CLONE_NEWNS):
            paths = [os.path.join(*pair).strip("/") for pair in zip(directories, paths, strict=True)]
            directories = ["/"] * len(paths)
        # Root that may mount binds the interpreter before it drops its rights: directories above it don't matter then.
        opened = [os.open(directory, os.O_PATH | os.O_DIRECTORY) for directory in directories]
        if steps.take("drop", become_unprivileged):
            closed = next(filter(None, map(obstacle, opened, directories, paths)), "")
    if not steps.taken.get("drop"):
        steps.build()
    steps.take("seccomp", _filter)  # last: it can't be undone
    return {"steps": steps.taken, "closed": closed, "landlock": linux.landlock_abi()}


def become_unprivileged() -> None:
    """Become the user that root drops to: what works for root may not work for it."""
    os.setgroups([])
    os.setresgid(UNPRIVILEGED_ID, UNPRIVILEGED_ID, UNPRIVILEGED_ID)
    os.setresuid(UNPRIVILEGED_ID, UNPRIVILEGED_ID, UNPRIVILEGED_ID)
    linux.show_to_peers()  # changing the user made /proc/self root's, and the id maps are written there


def obstacle(opened: int, directory: str, path: str) -> str:
    """Return the first part of a path in a directory that can't be entered (the last: read); empty if all can."""
    parts = path.split("/") if path else []
    for end in range(len(parts) + 1):
        part = "/".join(parts[:end])
        wanted = os.R_OK if end == len(parts) and parts else os.R_OK | os.X_OK
        if not os.access(part or ".", wanted, dir_fd=opened):
            return os.path.join(directory, part) if part else directory
    return ""


class Steps:
    """Takes steps and notes the errno of each: 0 if it worked."""

    def __init__(self, layers: str) -> None:
        self.taken: dict[str, int] = {}
        self._layers = layers

    def build(self) -> None:
        """Take the steps of building a root and a cell."""
        user, group = os.getuid(), os.getgid()
        if not (self.take("user", linux.unshare, linux.CLONE_NEWUSER) and self.take("map", _map, user, group)):
            return
        # The zygote of an unprivileged user is in a user namespace, and each of its cells in a nested one.
        self.take("nested", _in_child, linux.unshare, linux.CLONE_NEWUSER)
        namespaces = [self.take(name, linux.unshare, flag) for name, flag in NAMESPACES.items()]
        if all(namespaces):
            self.take("hostname", socket.sethostname, "cell")
            self.take("loopback", _loopback)
        if all(namespaces) and self.take("tmpfs", _cover, self._layers):
            self.take("attributes", restrict, _PLACE, linux.MOUNT_ATTR_NODEV, "/proc")
            self.take("overlay", _overlay)
            self.take("overlay-write", _overlay_for_writing, f"{_PLACE}/memory")
            self.take("overlay-disk", _overlay_for_writing, f"{_PLACE}/disk/try")
            self.take("proc", _in_child, _proc)  # in pid 1 of the new namespace, which ends with it
            self.take("knobs", _write, "/proc/sys/user/max_user_namespaces", "0")
            self.take("pivot", linux.pivot_root, _PLACE, f"{_PLACE}/old")

    def take(self, name: str, step: Callable[..., None], *arguments: Any) -> bool:
        """Take a step and note its errno. Returns whether it worked."""
        try:
            step(*arguments)
        except OSError as error:
            self.taken[name] = error.errno or errno.EIO
            return False
        self.taken[name] = 0
        return True


def _in_child(step: Callable[..., None], *arguments: Any) -> None:
    child = os.fork()
    if child == 0:
        number = errno.EIO
        try:
            linux.die_with_parent(signal.SIGKILL)
            step(*arguments)
            number = 0
        except OSError as error:
            number = error.errno or errno.EIO
        finally:
            os._exit(number)
    _, status = os.waitpid(child, 0)
    if number := os.waitstatus_to_exitcode(status):
        raise OSError(number, "the child could not")


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _map(user: int, group: int) -> None:
    """Write the id maps. Needs CAP_SYS_ADMIN in the new namespace: if AppArmor removes it, this step fails first."""
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{GUEST_ID} {user} 1")
    _write("/proc/self/gid_map", f"{GUEST_ID} {group} 1")


def _loopback() -> None:
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close()


def _cover(layers: str) -> None:
    linux.mount("none", "/", "", linux.MS_REC | linux.MS_PRIVATE)
    disk = os.open(layers, os.O_PATH | os.O_DIRECTORY) if layers else None
    linux.mount("tmpfs", _PLACE, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=0755")
    for name in ("proc", "one/d", "two", "merged", "disk", "old"):
        os.makedirs(f"{_PLACE}/{name}")
    _write(f"{_PLACE}/one/d/file", "")
    if disk is not None:
        linux.mount(f"/proc/self/fd/{disk}", f"{_PLACE}/disk", "", linux.MS_BIND)
    else:
        os.rmdir(f"{_PLACE}/disk")  # so that it is not tried


def _overlay() -> None:
    layers = f"lowerdir={_PLACE}/one:{_PLACE}/two"
    linux.mount("overlay", f"{_PLACE}/merged", "overlay", linux.MS_RDONLY, layers)


def _overlay_for_writing(place: str) -> None:
    """Try an overlay, and replace a directory in it: that needs an xattr, which tmpfs supports since Linux 6.6."""
    os.mkdir(place)
    for name in ("upper", "work"):
        os.mkdir(f"{place}/{name}")
    layers = f"lowerdir={_PLACE}/one:{_PLACE}/two,upperdir={place}/upper,workdir={place}/work,userxattr"
    linux.mount("overlay", f"{_PLACE}/merged", "overlay", 0, layers)
    os.unlink(f"{_PLACE}/merged/d/file")
    os.rmdir(f"{_PLACE}/merged/d")
    os.mkdir(f"{_PLACE}/merged/d")
    if os.listdir(f"{_PLACE}/merged/d"):
        raise OSError(errno.EOPNOTSUPP, "what was deleted shows through")


def _proc() -> None:
    flags = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
    linux.mount("proc", f"{_PLACE}/proc", "proc", flags, "subset=pid")


def _filter() -> None:
    linux.allow_no_new_privileges()
    linux.install_filter(seccomp.program(watched=False))
