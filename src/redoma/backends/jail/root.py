"""Builds the root directory that every cell sees, and executes the zygote in it. Runs in a bare interpreter.

It runs once for each zygote, as the user who started Redoma. What a guest needs is mounted read-only, under names that
reveal nothing of the host. What it must not see is not there at all.
"""

from __future__ import annotations

import errno
import marshal
import os

from redoma.backends import linux
from redoma.backends.jail import protocol
from redoma.backends.jail.configuration import (
    CHANGES,
    DEVICES,
    EMPTY,
    ENVIRONMENT_PREFIX,
    ETC_FILES,
    ETC_TREES,
    GUEST_ID,
    HOME,
    OVERLAY_OPTIONS,
    PACKAGE,
    PARTS,
    PROGRAMS,
    PROJECT,
    PYTHON,
    SERVICES,
    SYSTEM,
    TEXTS,
    UNPRIVILEGED_ID,
    VENV,
    WORKSPACE,
    WRITABLE,
)
from redoma.lib.mounts import read_mounts

TYPE_CHECKING = False  # importing `typing` would take longer than everything that is done here
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, NoReturn

_READ_ONLY = linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV
"""As flags of mount(2). The attributes that `restrict_mounts` takes have the same numbers."""


class Broken(Exception):
    """A step that could not be done, and why."""

    kind = protocol.BROKEN


class Unloaded(Broken):
    """A module that was to be preloaded can't be imported."""

    kind = protocol.UNLOADED


class Parts:
    """The mounts that the root consists of, in order. c/views.h builds each cell's own view from them."""

    def __init__(self) -> None:
        self.all: list[tuple[str, str, str]] = []
        """Source (where the zygote has a directory of the host), a file in it or nothing, and the path inside: the
        fields of `struct part` in c/views.h.
        """
        self.bound = ""
        """A directory that could only be bound, because it can't be mounted through an overlay."""

    def prepare(self) -> None:
        """Make the directory for the sources. The working directory must be the new root."""
        os.mkdir("." + PARTS)
        linux.mount("tmpfs", "." + PARTS, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=755,size=1m")
        for name in ("empty", "root"):
            os.mkdir(f".{PARTS}/{name}")
        linux.mount(".", f".{PARTS}/root", "", linux.MS_BIND)
        restrict(f".{PARTS}/root", _READ_ONLY)

    def keep(self, source: str, target: str, file: str = "") -> None:
        """Add a directory of the host, or one `file` in it, to be shown at `target`."""
        place = f"{PARTS}/{len(self.all)}"
        os.mkdir("." + place)
        linux.mount(f"/old/{source}", "." + place, "", linux.MS_BIND)
        restrict("." + place, _READ_ONLY)
        self.all.append((place, file, inside(target)))

    def lay_over(self, file: str, target: str) -> None:
        """Add a file of the root that is mounted over another one."""
        self.all.append(("/", inside(file), inside(target)))

    def take_over(self, target: str) -> None:
        """Add a mount of the zygote that cells get unchanged."""
        self.all.append(("", "", inside(target)))


def inside(path: str) -> str:
    """Return the path inside of a path in the new root, which is our working directory."""
    return os.path.normpath("/" + path)


NOT_ALLOWED = {
    *(errno.EPERM, errno.EACCES, errno.EROFS, errno.EINVAL),
    *(errno.ENOSYS, errno.ENODEV, errno.EOPNOTSUPP, errno.ENOSPC),  # the last: the limit on namespaces
}
"""Errors that mean that this kernel will not do it. Others (no memory, no process) may pass."""


class step:  # noqa: N801 - reads like a statement
    """Context manager: raises an OSError of its block as `Broken`, with the name of the step."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if isinstance(error, OSError):
            where = f" {error.filename!r}" if error.filename else ""
            raise Broken(f"{self._name}: {error.strerror or error}{where}") from error


def tell(control: int, error: BaseException) -> None:
    """Report why this process can't do its part. It ends afterwards."""
    text = str(error) if isinstance(error, Broken) else f"{type(error).__name__}: {error}"
    kind, cause = error.kind if isinstance(error, Broken) else protocol.BROKEN, error.__cause__
    if kind == protocol.BROKEN and isinstance(cause, OSError) and cause.errno in NOT_ALLOWED:
        kind = protocol.REFUSED
    said = protocol.frame(kind, text.encode("utf-8", "replace")[:4000])
    try:
        os.write(control, said)
    except OSError:
        return  # the reader is gone


SOCKET = 3
"""Descriptor of our control socket. Descriptor 4 is a pidfd of the parent."""


_BUILT = 5
"""Descriptor of a file with what `build` returned. Not an argument of the zygote: every guest could read that."""


def found_built() -> dict[str, Any]:
    """In the zygote: return what `build` returned before it was executed."""
    content: dict[str, Any] = marshal.loads(os.read(_BUILT, 1 << 20))  # noqa: S302 - our own, as below
    os.close(_BUILT)
    return content


def received() -> dict[str, Any]:
    """Return the next message from Redoma. Ends the process if Redoma is gone."""
    data = os.read(SOCKET, 1 << 20)
    if not data:
        os._exit(0)
    content: dict[str, Any] = marshal.loads(data)  # noqa: S302 - written by Redoma, on the safe side
    return content


def main() -> NoReturn:
    """Receive a plan, build the root, and become the zygote in it."""
    plan = received()
    try:
        built: dict[str, Any] = {"changes": "", "why": "", "parts": [], "bound": ""}
        if not plan["lean"]:
            built = build(plan)
            become_unprivileged()
        elif plan["own_user"]:
            with step("keep the capabilities to change the user"):
                linux.keep_capabilities(linux.CAP_SETUID, linux.CAP_SETGID, linux.CAP_KILL, linux.CAP_SETPCAP)
        enter(plan, built | {"lean": plan["lean"], "preload": plan["preload"]})
    except Broken as broken:
        tell(SOCKET, broken)
    os._exit(1)


def build(plan: dict[str, Any]) -> dict[str, Any]:
    """Build the root and move into it. Returns what the zygote must know of it."""
    with step("make a mount namespace"):
        if os.geteuid() != 0 or not mounts_as_root():
            become_unprivileged()
            linux.show_to_peers()  # changing the user made /proc/self root's, and the id maps are written there
            enter_user_namespace(linux.CLONE_NEWNS)
        linux.mount("none", "/", "", linux.MS_REC | linux.MS_PRIVATE)  # our mounts must not propagate to the host
    if plan["environment"]:
        with step("make a network namespace"):
            # Before the zygote's interpreter starts: if modules of an environment are preloaded, their code runs in it.
            linux.unshare(linux.CLONE_NEWNET)
    with step("leave the host's root for an empty one"):
        linux.mount("tmpfs", "/tmp", "tmpfs", linux.MS_NOSUID, "mode=755")  # noqa: S108 - exists everywhere
        os.mkdir("/tmp/old")  # noqa: S108 - on the file system that was just mounted
        os.mkdir("/tmp/new")  # noqa: S108
        linux.mount("tmpfs", "/tmp/new", "tmpfs", linux.MS_NOSUID, "mode=755,size=16m")  # noqa: S108
        linux.pivot_root("/tmp", "/tmp/old")  # noqa: S108
        os.chdir("/new")
    built = populate(plan)
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
    return built


def mounts_as_root() -> bool:
    """Enter a mount namespace as root, if we may, and return whether we did.

    Root can bind an interpreter that is in a directory closed to other users. In many containers root may not mount;
    then the unprivileged user does it in its own user namespace.
    """
    try:
        linux.unshare(linux.CLONE_NEWNS)
    except PermissionError:
        return False
    return True


def populate(plan: dict[str, Any]) -> dict[str, Any]:
    """Fill the new root, which is our working directory; the host's is at /old.

    Returns what `place_for_changes` returns and, as `parts` and `bound`, what `Parts` holds.
    """
    built: dict[str, Any] = {"changes": "", "why": ""}
    for name in ("usr", "etc/ssl", "dev", "opt", "proc", "mnt", "var", "home", "root"):
        os.makedirs(name)
    for path in (*WRITABLE, EMPTY):
        os.makedirs(path[1:])
    parts = Parts()
    parts.prepare()
    with step("bring in the system's programs"):
        system_programs(parts)
    with step("bring in the interpreter"):
        interpreter(plan, parts)
    with step("bring in programs of ours"):
        for name, path in plan["programs"].items():
            program(name, path, parts)
    if plan["project"]:
        project(plan["project"])
        parts.take_over(PROJECT)
        built |= place_for_changes(**plan["layers"])
        if built["changes"] == "disk":
            parts.take_over(CHANGES)
    if not os.path.lexists("." + HOME):  # it exists if the project is there
        os.symlink(WORKSPACE, "." + HOME)
    with step("make /etc"):
        etc(parts)
    with step("make /dev"):
        dev(parts)
    with step("bring in /proc"):
        # Only for the zygote: a cell mounts its own over it. But the kernel lets a user namespace mount a fresh /proc
        # only where a complete one is visible already.
        linux.mount("/old/proc", "proc", "", linux.MS_BIND | linux.MS_REC)
        restrict("proc", linux.MOUNT_ATTR_NOSUID | linux.MOUNT_ATTR_NODEV | linux.MOUNT_ATTR_NOEXEC)
        parts.take_over("proc")
    with step("give the zygote a place to write to"):
        # Some modules write when they are first imported. A cell mounts its own over these.
        for path in WRITABLE[:-1]:
            linux.mount("tmpfs", path[1:], "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=1777,size=64m")
    if not os.path.isdir("var/tmp"):  # it exists if the project is there
        os.symlink("/tmp", "var/tmp")  # noqa: S108 - inside the cell
    return built | {"parts": parts.all, "bound": parts.bound}


def system_programs(parts: Parts) -> None:
    """Show /usr and the directories beside it, which are links into it on most systems."""
    show("usr", "usr", parts)
    for name in SYSTEM:
        if os.path.islink(f"/old/{name}"):
            os.symlink(os.readlink(f"/old/{name}"), name)
        elif os.path.isdir(f"/old/{name}"):
            os.mkdir(name)
            show(name, name, parts)


def etc(parts: Parts) -> None:
    """Write our own files, copy single files of the host, and show some of its directories."""
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
            show(f"etc/{name}", f"etc/{name}", parts)


def dev(parts: Parts) -> None:
    """Bind the host's harmless devices, and make the links that programs expect."""
    for name in DEVICES:
        if name == "zero" and not linux.landlock_abi():
            continue  # only Landlock can keep it from being written to: see `only_these_files` in c/cell.c
        write(f"dev/{name}", b"")
        linux.mount(f"/old/dev/{name}", f"dev/{name}", "", linux.MS_BIND)
        restrict(f"dev/{name}", linux.MOUNT_ATTR_NOSUID | linux.MOUNT_ATTR_NOEXEC)
        parts.take_over(f"dev/{name}")
    os.mkdir("dev/pts")
    os.symlink("pts/ptmx", "dev/ptmx")
    os.symlink("/proc/self/fd", "dev/fd")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.symlink(f"/proc/self/fd/{number}", f"dev/{name}")


def interpreter(plan: dict[str, Any], parts: Parts) -> None:
    """Show Redoma, the interpreter's prefix and its packages, except for what is in /usr already."""
    os.makedirs("." + PACKAGE + "/redoma")
    show(plan["package"], "." + PACKAGE + "/redoma", parts)
    if plan["prefix"]:
        os.mkdir("." + PYTHON)
        show(plan["prefix"], "." + PYTHON, parts)
        if plan["library"]:
            find_library(plan, parts)
    if plan["packages"] or plan["environment"]:
        # We make our own virtual environment: the files of the user's contain its path on the host.
        library = f".{VENV}/lib/{plan['version']}"
        os.makedirs(f".{VENV}/bin")
        os.makedirs(library)
        os.symlink("lib", f".{VENV}/lib64")
        for name in ("python", "python3", plan["version"]):
            os.symlink(plan["base_executable"], f".{VENV}/bin/{name}")
        shared = "true" if plan["system_packages"] else "false"
        home = os.path.dirname(plan["base_executable"])
        write(f".{VENV}/pyvenv.cfg", f"home = {home}\ninclude-system-site-packages = {shared}\n".encode())
        if plan["environment"]:
            environment(plan, library, parts)
            return
        os.mkdir(f"{library}/site-packages")
        show(plan["packages"], f"{library}/site-packages", parts)


def environment(plan: dict[str, Any], library: str, parts: Parts) -> None:
    """Show the packages of an environment, in cells only.

    They are unreviewed, and the zygote is not in a cell: it must not find them, since a `.pth` file runs code when an
    interpreter starts. Unless modules of the environment are to be preloaded.
    """
    os.mkdir("." + ENVIRONMENT_PREFIX)
    os.symlink(f"{ENVIRONMENT_PREFIX}/lib/{plan['version']}/site-packages", f"{library}/site-packages")
    for name in ("share", "etc", "include"):
        os.symlink(f"{ENVIRONMENT_PREFIX}/{name}", f".{VENV}/{name}")
    if plan["environment_preloaded"]:
        show(plan["environment"], "." + ENVIRONMENT_PREFIX, parts)
    else:
        parts.keep(plan["environment"], "." + ENVIRONMENT_PREFIX)


def find_library(plan: dict[str, Any], parts: Parts) -> None:
    """Patch the path of the interpreter's shared library.

    An interpreter built with one has the library's path on the host in its program file. A copy with the path inside
    the cell is mounted over it. (LD_LIBRARY_PATH is not enough: a child may be started without variables.)
    """
    program = "." + plan["base_executable"]
    content = read(program) or b""
    old, new = os.fsencode(plan["library"]) + b"\0", PYTHON.encode() + b"/lib"
    write("./opt/program", content.replace(old, new.ljust(len(old), b"\0")))
    os.chmod("./opt/program", 0o555)  # noqa: S103 - to be executed by the guest
    linux.mount("./opt/program", program, "", linux.MS_BIND)
    restrict(program, _READ_ONLY)
    parts.lay_over("opt/program", program)


def program(name: str, path: str, parts: Parts) -> None:
    """Show one file of the host. It goes through an overlay of its directory, since a bind mount of the file would
    reveal its path.
    """
    os.makedirs("." + PROGRAMS, exist_ok=True)
    around, there = "./mnt", f".{PROGRAMS}/{name}"
    write(there, b"")
    show(os.path.dirname(path), around, parts, there, os.path.basename(path))
    linux.mount(f"{around}/{os.path.basename(path)}", there, "", linux.MS_BIND)
    linux.unmount(around, linux.MNT_DETACH)
    restrict(there, _READ_ONLY)


def project(path: str) -> None:
    """Mount a project of the host at `PROJECT`, and make the empty directory at its own path for cells to mount on."""
    with step(f"bring in the project {path}"):
        os.mkdir("." + PROJECT)
        if os.geteuid() == 0:
            # The guest is to own the project's files. Becoming root inside must not give it the files of root.
            with owners(os.stat(f"/old/{path}")) as namespace:
                linux.mount_with_owners(f"/old/{path}", "." + PROJECT, namespace)
        else:
            linux.mount(f"/old/{path}", "." + PROJECT, "", linux.MS_BIND | linux.MS_REC)
        restrict("." + PROJECT, _READ_ONLY)
        if not path.startswith(tuple(f"{place}/" for place in WRITABLE)):  # each cell mounts those anew
            os.makedirs(f".{path}", exist_ok=True)


def place_for_changes(layers: str, why: str, *, on_disk: bool) -> dict[str, str]:
    """Find out where cells can keep what they write to the project.

    Returns `changes`: "memory" (not if `on_disk`), "disk", or "" if neither works; then `why` is the reason. `layers`
    is a directory of the host for keeping them on disk; if it is empty, `why` says why there is none.
    """
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
    """Try an overlay over `lower` with its upper layer in the new directory `upper`.

    Raises OSError if it can't be mounted, or if a directory in it can't be removed and made again: that needs an xattr,
    which a tmpfs supports since Linux 6.6.
    """
    linux.mount("try", "./mnt", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=755,size=1m")
    name = os.urandom(16).hex()  # a name that the project doesn't have
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


class owners:  # noqa: N801 - reads like a statement
    """Context manager: a user namespace that maps the owner of a directory to the unprivileged user, for an id-mapped
    mount. It belongs to a child process that lives as long as the block.
    """

    def __init__(self, about: os.stat_result) -> None:
        self._about = about
        self._open: list[int] = []

    def __enter__(self) -> int:
        held, let_go = os.pipe()
        ready, tell_ready = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(let_go)
            linux.unshare(linux.CLONE_NEWUSER)
            os.write(tell_ready, b"r")
            os.read(held, 1)
            os._exit(0)
        os.close(held)
        os.close(tell_ready)
        self._open += [ready, let_go]
        try:
            if not os.read(ready, 1):
                raise OSError("no user namespace could be made")
            for name, number in (("uid_map", self._about.st_uid), ("gid_map", self._about.st_gid)):
                put(f"/old/proc/{self._pid}/{name}", f"{number} {UNPRIVILEGED_ID} 1".encode())
            namespace = os.open(f"/old/proc/{self._pid}/ns/user", os.O_RDONLY)
        except BaseException:
            self.__exit__()
            raise
        self._open.append(namespace)
        return namespace

    def __exit__(self, *exc: object) -> None:
        for number in self._open:
            os.close(number)
        os.waitpid(self._pid, 0)


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
    """Return the mounts at a path and below it, with their flags.

    A remount clears the flags that it doesn't name, and clearing them is refused in a user namespace. (The mode of
    access times stays if it isn't named.)
    """
    return [
        (mount.path, sum(flag for name, flag in _FLAGS.items() if name in mount.options))
        for mount in read_mounts(f"{proc}/self")
        if f"{mount.path}/".startswith(f"{target}/")
    ]


def other_mounts(target: str, proc: str) -> list[str]:
    """Return the paths of mounts below a path, which an overlay over it would not contain."""
    return [place for place, _ in mounts_below(target, proc) if place != target]


def why_no_overlay(error: OSError, target: str, proc: str) -> str:
    """Return why an overlay over a directory could not be mounted. `proc` is where /proc is mounted."""
    if error.errno == errno.EINVAL and (mounts := other_mounts(os.path.abspath(target), proc)):
        return f"something is mounted below it, at {os.path.relpath(mounts[0], os.path.abspath(target))}"
    return error.strerror or str(error)


def show(source: str, target: str, parts: Parts, of: str = "", file: str = "") -> None:
    """Mount a directory of the host read-only, through an overlay. Cells get it at the same path; with `of` and `file`,
    they get that one file at the path `of`.

    With a bind mount a guest could take locks that the host sees, watch who opens a file, and read the directory's path
    in /proc/self/mountinfo. An overlay shares only contents, and mountinfo shows its layers as they were given: as ".".
    Overlays need Linux 5.11 in a user namespace, and a source that is not already two overlays deep; they don't contain
    mounts below the source. Where that fails the directory is bound, and the probe reports it.
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
        parts.take_over(of or target)
        parts.bound = parts.bound or inside(of or target)
    else:
        os.chdir(here)
        parts.keep(source, of or target, file)
    finally:
        os.chdir(here)


def read(path: str) -> bytes | None:
    """Return the content of a file; None if there is none or it can't be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except (FileNotFoundError, PermissionError):
        return None


def write(path: str, content: bytes) -> None:
    """Write a file that can only be read."""
    with open(path, "wb") as file:
        file.write(content)
    os.chmod(path, 0o444)


def enter_user_namespace(others: int) -> None:
    """Enter a new user namespace, and the namespaces `others`. In it we have the guest's id and all capabilities; on
    the host we stay the same user.
    """
    user, group = os.geteuid(), os.getegid()
    linux.unshare(linux.CLONE_NEWUSER | others)
    for name, text in (
        ("setgroups", "deny"),  # or the kernel refuses the group map: leaving a group may also give access
        ("uid_map", f"{GUEST_ID} {user} 1"),
        ("gid_map", f"{GUEST_ID} {group} 1"),
    ):
        put(f"/proc/self/{name}", text.encode())


def put(path: str, text: bytes) -> None:
    """Write to a file of the kernel, in one call."""
    file = os.open(path, os.O_WRONLY)
    try:
        os.write(file, text)
    finally:
        os.close(file)


def become_unprivileged() -> None:
    """Give up root: become the user that owns nothing, without groups."""
    if os.geteuid() == 0:
        with step("give up root"):
            os.setgroups([])
            os.setresgid(UNPRIVILEGED_ID, UNPRIVILEGED_ID, UNPRIVILEGED_ID)
            os.setresuid(UNPRIVILEGED_ID, UNPRIVILEGED_ID, UNPRIVILEGED_ID)


def enter(plan: dict[str, Any], built: dict[str, Any]) -> NoReturn:
    """Execute the zygote. That replaces the memory and the environment that this process was started with."""
    file = os.memfd_create("built")
    os.write(file, marshal.dumps(built, protocol.MARSHAL))
    os.lseek(file, 0, os.SEEK_SET)
    os.dup2(file, _BUILT)
    os.set_inheritable(_BUILT, True)
    package = os.path.dirname(plan["package"]) if plan["lean"] else PACKAGE
    boot = (
        f"import sys; sys.path.append({package!r}); from redoma.backends.jail import zygote; "
        f"sys.path.remove({package!r}); zygote.main()"
    )
    # Like `-I`, but it reads PYTHON variables: only PYTHONHASHSEED can set the seed of hashes, and it is the only one.
    options = ["-P", "-s", "-B", "-X", "utf8"]
    arguments = [plan["executable"], *options, "-c", boot]
    env = {**plan["env"], "PYTHONHASHSEED": str(plan["hashes"])}
    with step(f"start the interpreter as user {os.geteuid()}"):
        os.execve(plan["executable"], arguments, env)  # noqa: S606 - without a shell is the point
    raise AssertionError
