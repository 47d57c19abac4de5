"""The root directory that every cell sees, built from nothing, and the way into it. Inner: a bare interpreter.

Runs once for each zygote, as the user who started Redoma. What a guest needs is mounted here read-only, under names
that say nothing of the host; what it must not see is simply not there. Then the zygote is executed inside.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from redoma.backends import linux
from redoma.backends.jail import protocol
from redoma.backends.jail.configuration import (
    CHANGES,
    DEVICES,
    EMPTY,
    ETC_FILES,
    ETC_TREES,
    GUEST_ID,
    OVERLAY_OPTIONS,
    PACKAGE,
    PROGRAMS,
    PROJECT,
    PYTHON,
    SERVICES,
    SYSTEM,
    TEXTS,
    UNPRIVILEGED_ID,
    VENV,
    WRITABLE,
)
from redoma.lib.mounts import read_mounts

_READ_ONLY = linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV
"""The attributes of `restrict_mounts` have the same numbers."""


class Broken(Exception):
    """A step that could not be done, and why."""


_NOT_ALLOWED = {
    *(errno.EPERM, errno.EACCES, errno.EROFS, errno.EINVAL),
    *(errno.ENOSYS, errno.ENODEV, errno.EOPNOTSUPP, errno.ENOSPC),  # the last: no more namespaces may be made
}
"""Answers of a kernel that will not do it; others (no memory, no process) may be different in a moment."""


@contextmanager
def step(name: str) -> Iterator[None]:
    """Whatever goes wrong inside is told with what was being done."""
    try:
        yield
    except OSError as error:
        where = f" {error.filename!r}" if error.filename else ""
        raise Broken(f"{name}: {error.strerror or error}{where}") from error


def tell(control: socket.socket, error: BaseException) -> None:
    """The last thing that a process does which can't do its part."""
    text = str(error) if isinstance(error, Broken) else f"{type(error).__name__}: {error}"
    cause = error.__cause__
    refused = isinstance(cause, OSError) and cause.errno in _NOT_ALLOWED
    try:
        control.send(
            protocol.frame(protocol.REFUSED if refused else protocol.BROKEN, text.encode("utf-8", "replace")[:4000])
        )
    except OSError:
        return  # nobody listens any more


def main() -> NoReturn:
    """The plan is our first argument; our control socket is descriptor 3, the parent's process descriptor 4."""
    plan = json.loads(sys.argv[1])
    try:
        build(plan)
        become_unprivileged()
        enter(plan)
    except Broken as broken:
        tell(socket.socket(fileno=3), broken)
    os._exit(1)


def build(plan: dict[str, Any]) -> None:
    with step("make a mount namespace"):
        if os.geteuid() != 0 or not mounts_as_root():
            become_unprivileged()
            enter_user_namespace(linux.CLONE_NEWNS)
        linux.mount("none", "/", "", linux.MS_REC | linux.MS_PRIVATE)  # nothing we mount reaches the host
    with step("leave the host's root for an empty one"):
        linux.mount("tmpfs", "/tmp", "tmpfs", linux.MS_NOSUID, "mode=755")  # noqa: S108 - exists everywhere
        os.mkdir("/tmp/old")  # noqa: S108 - on the file system that was just mounted
        os.mkdir("/tmp/new")  # noqa: S108
        linux.mount("tmpfs", "/tmp/new", "tmpfs", linux.MS_NOSUID, "mode=755,size=16m")  # noqa: S108
        linux.pivot_root("/tmp", "/tmp/old")  # noqa: S108
        os.chdir("/new")
    populate(plan)
    with step("close the way back"):
        linux.pivot_root("/new", "/new/mnt")
        os.chdir("/")
        linux.unmount("/mnt", linux.MNT_DETACH)
        linux.mount(
            "none",
            "/",
            "",
            linux.MS_REMOUNT | linux.MS_BIND | linux.MS_NOSUID | linux.MS_NODEV | linux.MS_RDONLY,
        )


def mounts_as_root() -> bool:
    """With root's sight: the interpreter may lie where the unprivileged user can't even look. In many containers root
    may not mount; there the unprivileged user can do it for itself, if anybody can."""
    try:
        linux.unshare(linux.CLONE_NEWNS)
    except PermissionError:
        return False
    return True


def populate(plan: dict[str, Any]) -> None:
    """Our working directory is the new root, the host's is at /old."""
    for name in ("usr", "etc/ssl", "dev", "opt", "proc", "mnt", "var", "home", "root"):
        os.makedirs(name)
    for path in (*WRITABLE, EMPTY):
        os.makedirs(path[1:])
    with step("bring in the system's programs"):
        show("usr", "usr")
        for name in SYSTEM:
            if os.path.islink(f"/old/{name}"):
                os.symlink(os.readlink(f"/old/{name}"), name)
            elif os.path.isdir(f"/old/{name}"):
                os.mkdir(name)
                show(name, name)
    with step("bring in the interpreter"):
        interpreter(plan)
    with step("bring in programs of ours"):
        for name, path in plan["programs"].items():
            program(name, path)
    if plan["project"]:
        project(plan["project"])
        plan["zygote"] |= place_for_changes(**plan["layers"])
    with step("make /etc"):
        for path, text in TEXTS.items():
            write(path, text.encode())
        for name in ETC_FILES:
            if (content := read(f"/old/etc/{name}")) is not None:
                write(f"etc/{name}", content)
        if not os.path.exists("etc/services"):
            write("etc/services", SERVICES)
        os.symlink("../usr/lib/os-release", "etc/os-release")
        for name in (*ETC_TREES, *(name for name in os.listdir("/old/etc") if name.startswith("java-"))):
            if os.path.isdir(f"/old/etc/{name}"):
                os.mkdir(f"etc/{name}")
                show(f"etc/{name}", f"etc/{name}")
    with step("make /dev"):
        for name in DEVICES:
            if name == "zero" and not linux.landlock_abi():
                continue  # see `setup.only_these_files`: nothing else can keep it from being written to
            write(f"dev/{name}", b"")
            linux.mount(f"/old/dev/{name}", f"dev/{name}", "", linux.MS_BIND)
            restrict(f"dev/{name}", linux.MOUNT_ATTR_NOSUID | linux.MOUNT_ATTR_NOEXEC)
        os.mkdir("dev/pts")
        os.symlink("pts/ptmx", "dev/ptmx")
        os.symlink("/proc/self/fd", "dev/fd")
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            os.symlink(f"/proc/self/fd/{number}", f"dev/{name}")
    with step("bring in /proc"):
        # For the zygote's eyes only: a cell mounts its own over it. A user namespace may mount a fresh /proc only where
        # it can see a whole one already.
        linux.mount("/old/proc", "proc", "", linux.MS_BIND | linux.MS_REC)
        attributes = linux.MOUNT_ATTR_NOSUID | linux.MOUNT_ATTR_NODEV | linux.MOUNT_ATTR_NOEXEC
        restrict("proc", attributes)
    with step("give the zygote a place to write to"):
        # Some modules write when they are first imported. A cell mounts its own over these.
        for path in WRITABLE[:-1]:
            linux.mount("tmpfs", path[1:], "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=1777,size=64m")
    if not os.path.isdir("var/tmp"):  # or the project is there
        os.symlink("/tmp", "var/tmp")  # noqa: S108 - inside the cell


def interpreter(plan: dict[str, Any]) -> None:
    """The interpreter's prefix and packages, unless they are below /usr, where they are already."""
    os.makedirs("." + PACKAGE + "/redoma")
    show(plan["package"], "." + PACKAGE + "/redoma")
    if plan["prefix"]:
        os.mkdir("." + PYTHON)
        show(plan["prefix"], "." + PYTHON)
        if plan["library"]:
            find_library(plan)
    if plan["packages"]:
        # A virtual environment of our own making: the user's says where it lies on the host.
        library = f".{VENV}/lib/{plan['version']}"
        os.makedirs(f".{VENV}/bin")
        os.makedirs(f"{library}/site-packages")
        os.symlink("lib", f".{VENV}/lib64")
        for name in ("python", "python3", plan["version"]):
            os.symlink(plan["base_executable"], f".{VENV}/bin/{name}")
        shared = "true" if plan["system_packages"] else "false"
        home = os.path.dirname(plan["base_executable"])
        write(f".{VENV}/pyvenv.cfg", f"home = {home}\ninclude-system-site-packages = {shared}\n".encode())
        show(plan["packages"], f"{library}/site-packages")


def find_library(plan: dict[str, Any]) -> None:
    """An interpreter built with a shared library holds that library's path on the host. A copy of the program with the
    path inside the cell in its place is laid over it. (A variable would not do: a child may have none.)"""
    program = "." + plan["base_executable"]
    content = read(program) or b""
    old, new = os.fsencode(plan["library"]) + b"\0", PYTHON.encode() + b"/lib"
    write("./opt/program", content.replace(old, new.ljust(len(old), b"\0")))
    os.chmod("./opt/program", 0o555)  # noqa: S103 - to be executed by the guest
    linux.mount("./opt/program", program, "", linux.MS_BIND)
    restrict(program, _READ_ONLY)


def program(name: str, path: str) -> None:
    """One file, by way of its directory, because only a directory can be had without telling where it lies."""
    os.makedirs("." + PROGRAMS, exist_ok=True)
    around, there = "./mnt", f".{PROGRAMS}/{name}"
    write(there, b"")
    show(os.path.dirname(path), around)
    linux.mount(f"{around}/{os.path.basename(path)}", there, "", linux.MS_BIND)
    linux.unmount(around, linux.MNT_DETACH)
    restrict(there, _READ_ONLY)


def project(path: str) -> None:
    """A directory of the host for guests to work in, and the empty one at its own path that a cell mounts it on."""
    with step(f"bring in the project {path}"):
        os.mkdir("." + PROJECT)
        if os.geteuid() == 0:
            # The guest is to be its owner; and root's own files are not to be had by becoming root.
            with owners(os.stat(f"/old/{path}")) as namespace:
                linux.mount_with_owners(f"/old/{path}", "." + PROJECT, namespace)
        else:
            linux.mount(f"/old/{path}", "." + PROJECT, "", linux.MS_BIND | linux.MS_REC)
        restrict("." + PROJECT, _READ_ONLY)
        if not path.startswith(tuple(f"{place}/" for place in WRITABLE)):  # those are new in each cell
            os.makedirs(f".{path}", exist_ok=True)


def place_for_changes(layers: str, why: str, *, on_disk: bool) -> dict[str, str]:
    """Find where a cell can keep what it writes to the project: in `memory` (unless `on_disk`), on `disk` (`layers` is
    a directory of the host for that; if it is empty, `why` says why there is none), or nowhere, and why."""
    if not on_disk:
        try:
            with step("mount an overlay over the project"):
                hold_changes("./mnt/memory", "." + PROJECT)
        except Broken as broken:
            why = f"{broken}; {why}" if why else str(broken)
        else:
            return {"changes": "memory", "why": ""}
    if not layers:
        return {"changes": "", "why": why}
    try:
        with step(f"mount an overlay over the project with its upper layer in {os.path.dirname(layers)}"):
            os.mkdir("." + CHANGES)
            linux.mount(f"/old/{layers}", "." + CHANGES, "", linux.MS_BIND)
            restrict("." + CHANGES, linux.MOUNT_ATTR_NOSUID | linux.MOUNT_ATTR_NODEV)
            hold_changes("." + CHANGES + "/0", "." + PROJECT)
    except Broken as broken:
        return {"changes": "", "why": str(broken)}
    return {"changes": "disk", "why": ""}


def hold_changes(upper: str, lower: str) -> None:
    """Try an overlay with its upper layer in a directory that this makes: raise OSError if it can't be mounted, or if a
    directory can't be removed and made again. That needs an xattr, which a tmpfs has since Linux 6.6."""
    linux.mount("try", "./mnt", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=755,size=1m")
    name = os.urandom(16).hex()  # nothing of the project's
    try:
        for path in (f"./mnt/lower/{name}/below", "./mnt/merged", f"{upper}/above", f"{upper}/work"):
            os.makedirs(path)
        layers = f"lowerdir=./mnt/lower:{lower},upperdir={upper}/above,workdir={upper}/work,{OVERLAY_OPTIONS}"
        try:
            linux.mount("try", "./mnt/merged", "overlay", linux.MS_NOSUID | linux.MS_NODEV, layers)
        except OSError as error:
            raise OSError(error.errno, why_no_overlay(error, lower, "/old/proc")) from error
        os.rmdir(f"./mnt/merged/{name}/below")
        os.rmdir(f"./mnt/merged/{name}")
        os.mkdir(f"./mnt/merged/{name}")
        if os.listdir(f"./mnt/merged/{name}"):
            raise OSError(errno.EOPNOTSUPP, "what was removed shows through")
    finally:
        linux.unmount("./mnt", linux.MNT_DETACH)


@contextmanager
def owners(about: os.stat_result) -> Iterator[int]:
    """A user namespace that says who the owner of a directory is, for the files of a mount: the unprivileged user. It
    belongs to a child that does nothing else."""
    held, let_go = os.pipe()
    ready, tell_ready = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(let_go)
        linux.unshare(linux.CLONE_NEWUSER)
        os.write(tell_ready, b"r")
        os.read(held, 1)
        os._exit(0)
    os.close(held)
    os.close(tell_ready)
    try:
        if not os.read(ready, 1):
            raise OSError("no user namespace could be made")
        for name, number in (("uid_map", about.st_uid), ("gid_map", about.st_gid)):
            put(f"/old/proc/{pid}/{name}", f"{number} {UNPRIVILEGED_ID} 1".encode())
        namespace = os.open(f"/old/proc/{pid}/ns/user", os.O_RDONLY)
        try:
            yield namespace
        finally:
            os.close(namespace)
    finally:
        os.close(ready)
        os.close(let_go)
        os.waitpid(pid, 0)


def restrict(target: str, attributes: int, proc: str = "/old/proc") -> None:
    """Set flags on a mount and on all mounts below it. `proc` is where /proc is mounted."""
    try:
        linux.restrict_mounts(target, attributes)
    except OSError as error:
        if error.errno != errno.ENOSYS:  # Linux before 5.12
            raise
        for place, flags in mounts_below(os.path.abspath(target), proc):
            linux.mount("none", place, "", linux.MS_REMOUNT | linux.MS_BIND | flags | attributes)


_FLAGS = {"ro": linux.MS_RDONLY, "nosuid": linux.MS_NOSUID, "nodev": linux.MS_NODEV, "noexec": linux.MS_NOEXEC}


def mounts_below(target: str, proc: str) -> list[tuple[str, int]]:
    """Every mount at a path and below it, with the flags that it has: a remount takes away those that it doesn't name,
    and in a user namespace that is refused. (How access times are kept stays as it is, if nothing is said of it.)"""
    return [
        (mount.path, sum(flag for name, flag in _FLAGS.items() if name in mount.options))
        for mount in read_mounts(f"{proc}/self")
        if f"{mount.path}/".startswith(f"{target}/")
    ]


def other_mounts(target: str, proc: str) -> list[str]:
    """Paths of the mounts below a path: none of them would be in an overlay over it."""
    return [place for place, _ in mounts_below(target, proc) if place != target]


def why_no_overlay(error: OSError, target: str, proc: str) -> str:
    """Why an overlay over a directory could not be mounted. `proc` is where /proc is mounted."""
    if error.errno == errno.EINVAL and (mounts := other_mounts(os.path.abspath(target), proc)):
        return f"something is mounted below it, at {os.path.relpath(mounts[0], os.path.abspath(target))}"
    return error.strerror or str(error)


def show(source: str, target: str) -> None:
    """Mount a directory of the host to be read: an overlay that has contents, and nothing else, in common with it.

    Through a bind mount a guest would take locks that the host sees, watch who opens a file, and read in
    /proc/self/mountinfo where the directory lies; an overlay shows its layers as they were given, and "." says nothing.
    It needs Linux 5.11 in a user namespace, and a source that is not itself two overlays deep. Mounts below the source
    would not be in it. Else the directory is bound, and `probe` tells.
    """
    here, there = os.getcwd(), os.path.abspath(target)
    os.chdir(f"/old/{source}")
    try:
        if other_mounts(os.getcwd(), "/old/proc"):
            raise OSError(errno.EINVAL, "there are mounts below it")
        linux.mount("redoma", there, "overlay", _READ_ONLY, f"lowerdir=.:{here}{EMPTY}")
    except OSError:
        os.chdir(here)
        linux.mount(f"/old/{source}", target, "", linux.MS_BIND | linux.MS_REC)
        restrict(target, _READ_ONLY)
    finally:
        os.chdir(here)


def read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except (FileNotFoundError, PermissionError):
        return None


def write(path: str, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
    os.chmod(path, 0o444)


def enter_user_namespace(others: int) -> None:
    """A new user namespace: in it we have the guest's number and all rights; on the host we stay who we are."""
    user, group = os.geteuid(), os.getegid()
    linux.unshare(linux.CLONE_NEWUSER | others)
    for name, text in (
        ("setgroups", "deny"),  # without this the kernel refuses the group map: groups may also take rights away
        ("uid_map", f"{GUEST_ID} {user} 1"),
        ("gid_map", f"{GUEST_ID} {group} 1"),
    ):
        put(f"/proc/self/{name}", text.encode())


def put(path: str, text: bytes) -> None:
    """Into a file of the kernel's, which takes it in one piece."""
    file = os.open(path, os.O_WRONLY)
    try:
        os.write(file, text)
    finally:
        os.close(file)


def become_unprivileged() -> None:
    if os.geteuid() == 0:
        with step("give up root"):
            os.setgroups([])
            os.setresgid(UNPRIVILEGED_ID, UNPRIVILEGED_ID, UNPRIVILEGED_ID)
            os.setresuid(UNPRIVILEGED_ID, UNPRIVILEGED_ID, UNPRIVILEGED_ID)


def enter(plan: dict[str, Any]) -> NoReturn:
    """Become the zygote. Executing it replaces the memory and the environment that we were started with."""
    boot = (
        f"import sys; sys.path.append({PACKAGE!r}); from redoma.backends.jail import zygote; "
        f"sys.path.remove({PACKAGE!r}); zygote.main(sys.argv.pop())"
    )
    # As `-I`, but that it reads its environment, of which all is here: nothing else can be told a seed of the hashes.
    arguments = [plan["executable"], "-P", "-s", "-B", "-X", "utf8", "-c", boot, json.dumps(plan["zygote"])]
    env = {**plan["env"], "PYTHONHASHSEED": str(plan["hashes"])}
    with step(f"start the interpreter as user {os.geteuid()}"):
        os.execve(plan["executable"], arguments, env)  # noqa: S606 - without a shell is the point
    raise AssertionError
