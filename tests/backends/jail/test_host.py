"""What the jail says of this host, and of this host made worse for real; as root and as an unprivileged user."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import redoma
from pace import SLOW
from redoma.backends.base import Fact
from redoma.backends.jail.host import facts

SOMEBODY = 65534
USERS = ["root", "somebody"] if os.getuid() == 0 else ["somebody"]
LIBRARIES = [str(Path(redoma.__file__).parents[1]), str(Path(msgspec.__file__).parents[1])]
# Scripts that run in a process of their own, made worse by what comes before them.
PRINT = """
import msgspec
from redoma.backends.jail.host import facts
print(msgspec.json.encode(facts()).decode())
"""
NEW_USER = """
import os
from redoma.backends import linux
def write(path, text):
    with open(path, "w") as file:
        file.write(text)
owner, group = os.getuid(), os.getgid()
linux.unshare(linux.CLONE_NEWUSER | linux.CLONE_NEWNS)
write("/proc/self/setgroups", "deny")
write("/proc/self/uid_map", f"1000 {owner} 1")
write("/proc/self/gid_map", f"1000 {group} 1")
"""
NONE_ALLOWED = NEW_USER + "write('/proc/sys/user/max_user_namespaces', '0')"
ONE_ALLOWED = NEW_USER + "write('/proc/sys/user/max_user_namespaces', '1')"
COVERED_PROC = NEW_USER + "linux.mount('tmpfs', '/proc/irq', 'tmpfs')"
LONELY_ROOT = NEW_USER.replace("1000 {", "0 {")
CHROOT = (
    NEW_USER
    + """
linux.mount("tmpfs", "/mnt", "tmpfs")
os.mkdir("/mnt/root")
for name in os.listdir("/"):
    if os.path.isdir("/" + name) and not os.path.islink("/" + name):
        os.mkdir("/mnt/root/" + name)
        if name != "mnt":
            linux.mount("/" + name, "/mnt/root/" + name, "", linux.MS_BIND | linux.MS_REC)
    elif os.path.islink("/" + name):
        os.symlink(os.readlink("/" + name), "/mnt/root/" + name)
os.chroot("/mnt/root")
os.chdir("/")
"""
)
# What a container's filter does: refuse system calls with EPERM. The numbers differ between architectures.
FILTER = """
import errno, struct
from redoma.backends import linux
program = struct.pack("HBBI", 0x20, 0, 0, 0)  # load the number of the call
for number in {numbers}:
    program += struct.pack("HBBI", 0x15, 0, 1, number) + struct.pack("HBBI", 0x06, 0, 0, 0x50000 | errno.EPERM)
program += struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000)
linux.allow_no_new_privileges()
linux.install_filter(program)
"""
CALLS = {
    "x86_64": {"unshare": 272, "mount": 165, "pivot_root": 155, "mount_setattr": 442, "seccomp": 317},
    "aarch64": {"unshare": 97, "mount": 40, "pivot_root": 41, "mount_setattr": 442, "seccomp": 277},
}[os.uname().machine]
REFUSING = {call: FILTER.format(numbers=[number]) for call, number in CALLS.items()}

# Tells whether the jail itself comes to the same conclusion.
RUN = """
import asyncio
from redoma import Request
from redoma.backends.jail import JailBackend
from redoma.lib.errors import BackendError
async def run():
    jail = JailBackend(minimum=1)
    try:
        await jail.run(Request(code="print(1)"), lambda stream, data: True)
        return ""
    except BackendError as error:
        return str(error)
    finally:
        await jail.aclose()
print(asyncio.run(run()))
"""

Look = Callable[..., dict[str, Fact]]


@functools.cache
def reachable_python() -> str:
    """An interpreter that an unprivileged user can start: this one, or the system's of the same version."""
    for python in (sys.executable, shutil.which(f"python3.{sys.version_info.minor}", path=os.defpath)):
        check = {"user": SOMEBODY, "group": SOMEBODY, "extra_groups": []} if os.getuid() == 0 else {}
        try:
            if python and subprocess.run([python, "-c", ""], check=False, **check).returncode == 0:  # type: ignore[call-overload]
                return python
        except PermissionError:
            continue
    pytest.skip(f"no Python 3.{sys.version_info.minor} that an unprivileged user can start")


def look_as(who: str, preamble: str = "") -> dict[str, Fact]:
    """The facts as a user sees them, after a preamble."""
    return {fact.name: fact for fact in msgspec.json.decode(printed_as(who, preamble + PRINT), type=list[Fact])}


def printed_as(who: str, script: str) -> str:
    drop = who == "somebody" and os.getuid() == 0
    options: dict[str, Any] = {"user": SOMEBODY, "group": SOMEBODY, "extra_groups": []} if drop else {}
    command = [reachable_python(), "-I", "-c", f"import sys; sys.path[:0] = {LIBRARIES!r}\n{script}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60 * SLOW, check=False, cwd="/", **options)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


looked_as = functools.cache(look_as)  # several tests are about one look


@pytest.fixture(params=USERS)
def look(request: pytest.FixtureRequest) -> Look:
    return functools.partial(looked_as, request.param)


@pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")
def test_what_started_this_process_is_recognised() -> None:
    """The image that a machine was made of doesn't count, and bubblewrap does."""
    script = f"import sys; sys.path[:0] = {LIBRARIES!r}\nfrom redoma.backends.jail.host_look import container\n"
    command = [reachable_python(), "-I", "-c", script + "print(container())"]
    outer = ["bwrap", "--dev-bind", "/", "/", "--unshare-user"]
    kinds = [subprocess.check_output([*before, *command], text=True).strip() for before in ([], outer)]
    assert kinds[0] != "bubblewrap"
    assert kinds[1] == "bubblewrap"


@pytest.mark.parametrize("who", USERS)
def test_everything_that_was_tried_here_works(who: str, nothing_left_behind: None) -> None:
    found = look_as(who)
    assert {name for name, fact in found.items() if fact.state == "missing"} == set(), found
    assert found.keys() >= {"kernel", "user namespaces", "namespaces", "root directory", "/proc", "overlayfs"}
    assert found.keys() >= {"architecture", "seccomp", "Landlock", "cgroup", "bash"}


def test_looking_leaves_this_process_as_it_was(nothing_left_behind: None) -> None:
    def standing() -> tuple[str, list[str], tuple[int, int, int]]:
        links = [os.readlink(f"/proc/self/ns/{name}") for name in sorted(os.listdir("/proc/self/ns"))]
        return Path("/proc/self/mountinfo").read_text(), links, os.getresuid()

    before = standing()
    facts()
    assert standing() == before


def test_a_limit_of_no_user_namespaces_is_found_and_named(look: Look) -> None:
    found = look(NONE_ALLOWED)["user namespaces"]
    assert (found.state, found.what) == ("missing", "user.max_user_namespaces is 0")
    assert "user.max_user_namespaces = 15000" in found.fix


def test_a_proc_with_covered_parts_can_not_be_mounted_anew(look: Look) -> None:
    found = look(COVERED_PROC)
    assert found["user namespaces"].state == "ok"
    if found["/proc"].state == "ok" and tuple(map(int, os.uname().release.split(".")[:2])) > (6, 18):
        return  # seen on 7.2, which mounts one with processes only whatever is covered in another
    assert found["/proc"].state == "degraded"  # a cell has an empty one then
    assert "covered" in found["/proc"].what
    assert "an empty /proc" in found["/proc"].costs


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("unshare", "user namespaces"),
        ("mount", "user namespaces"),
        ("pivot_root", "root directory"),
        ("mount_setattr", "root directory"),
    ],
)
def test_a_filter_that_refuses_what_a_cell_is_made_of_is_found(look: Look, call: str, name: str) -> None:
    found = look(REFUSING[call])[name]
    assert found.state == "missing"
    # Where the host looks like a container, that is who set the filter.
    assert "seccomp=unconfined" in found.fix or "RestrictNamespaces=no" in found.fix


def test_a_chroot_is_found_and_named(look: Look) -> None:
    found = look(CHROOT)["user namespaces"]
    assert found.state == "missing"
    assert "chroot" in found.what


def test_root_of_a_namespace_without_other_users_is_told_so(look: Look) -> None:
    found = look(LONELY_ROOT)
    assert found["root"].state == "missing"
    assert "can't become" in found["root"].what
    assert "user namespaces" not in found  # they were not tried as the user that counts


def test_one_user_namespace_is_not_enough(look: Look) -> None:
    """An unprivileged user's zygote is in one, and each cell in another."""
    found = look(ONE_ALLOWED)["user namespaces"]
    assert (found.state, found.what) == ("missing", "user.max_user_namespaces is 1, and used up here or further out")


def test_where_no_group_can_be_made_memory_is_said_to_be_watched(look: Look) -> None:
    found = look(NEW_USER + "linux.mount('tmpfs', '/sys/fs/cgroup', 'tmpfs')")["cgroup"]
    assert found.state == "degraded"
    assert "watched" in found.costs
    assert found.fix


@pytest.mark.parametrize(
    ("who", "preamble"),
    [
        *(pytest.param(who, "", id=f"{who}-here") for who in USERS),
        *(pytest.param(who, REFUSING[call], id=f"{who}-{call}") for who in USERS for call in REFUSING),
        # Not as root: it would stay the host's root, behind the number of an ordinary user.
        pytest.param("somebody", NEW_USER, id="nested"),
        pytest.param("somebody", NONE_ALLOWED, id="none"),
        pytest.param("somebody", ONE_ALLOWED, id="one"),
        pytest.param("somebody", COVERED_PROC, id="proc"),
        pytest.param("somebody", CHROOT, id="chroot"),
        pytest.param("somebody", LONELY_ROOT, id="lonely"),
    ],
)
def test_the_jail_starts_exactly_where_nothing_is_said_to_be_missing(who: str, preamble: str) -> None:
    missing = [fact for fact in looked_as(who, preamble).values() if fact.state == "missing"]
    refused = printed_as(who, preamble + RUN).strip()
    assert bool(refused) == bool(missing), (refused, missing)


@pytest.mark.skipif(os.getuid() != 0, reason="only root drops to another user")
def test_an_interpreter_that_only_root_can_read_is_found(tmp_path: Path) -> None:
    """What is above it doesn't matter, since root binds it: tests run in a directory that others can't enter."""
    boot = f"import sys; sys.path.append({LIBRARIES[0]!r}); from redoma.backends.jail.host_trial import main; main()"
    (tmp_path / "lib" / "python3").mkdir(parents=True)
    (tmp_path / "lib" / "python3" / "os.py").touch()

    def closed() -> str:
        command = [sys.executable, "-I", "-S", "-c", boot, "", str(tmp_path), "lib/python3/os.py"]
        report = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=60 * SLOW).stdout)
        return str(report["closed"])

    tmp_path.chmod(0o755)
    tmp_path.parent.chmod(0o700)
    assert closed() == ""
    (tmp_path / "lib" / "python3" / "os.py").chmod(0o600)
    assert closed() == str(tmp_path / "lib/python3/os.py")
    (tmp_path / "lib").chmod(0o700)
    assert closed() == str(tmp_path / "lib")
    tmp_path.chmod(0o700)
    assert closed() == str(tmp_path)


def in_a_namespace(command: list[str]) -> str:
    """The output of a command as root of a user namespace with many users, which only root can make from outside."""
    process = subprocess.Popen(
        ["unshare", "--user", "--mount", "sh", "-c", 'read go; exec "$@"', "sh", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
    )
    ours = os.readlink("/proc/self/ns/user")
    while process.poll() is None and os.readlink(f"/proc/{process.pid}/ns/user") == ours:
        time.sleep(0.01)
    for kind in ("uid", "gid"):
        Path(f"/proc/{process.pid}/{kind}_map").write_text("0 0 100000")
    output, errors = process.communicate("go\n", timeout=60 * SLOW)
    assert process.returncode == 0, errors
    return output


@pytest.mark.skipif(os.getuid() != 0, reason="only root can map many users")
def test_the_command_that_is_shown_does_fix_it() -> None:
    script = """
import subprocess, sys
sys.path[:0] = {libraries!r}
from pathlib import Path
from redoma.backends import linux
from redoma.backends.jail.host import facts
def standing():
    return next(fact for fact in facts() if fact.name == "user namespaces")
linux.mount("tmpfs", "/etc/sysctl.d", "tmpfs")
Path("/proc/sys/user/max_user_namespaces").write_text("0")
before = standing()
subprocess.run(["sh", "-ec", before.fix.replace("sysctl -p", "sysctl -qp")], check=True, stdout=sys.stderr)
print(before.state, standing().state, sep="\\n")
"""
    output = in_a_namespace([reachable_python(), "-I", "-c", script.format(libraries=LIBRARIES)])
    assert output.split() == ["missing", "ok"]
