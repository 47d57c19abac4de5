"""How mounts are made read-only, with the system call for it and, on kernels before 5.12, without."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest
from cgroup_helpers import NOBODY, in_a_fork

from redoma.backends import linux
from redoma.backends.jail import root


def no_such_call(target: str, attributes: int) -> None:
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


@pytest.mark.parametrize("user", [0, NOBODY] if os.geteuid() == 0 else [0], ids=lambda user: f"uid {user}")
def test_an_older_kernel_restricts_the_same_mounts(user: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of a tree of mounts: one with flags of its own, one with a blank in its name, one deep down."""
    places = ("/tmp/tree", "/tmp/tree/a b", "/tmp/tree/a b/deep")

    def flags_after_restricting() -> list[Any]:
        linux.show_to_peers()  # after a change of user, /proc/self is root's
        root.enter_user_namespace(linux.CLONE_NEWNS)
        linux.mount("none", "/", "", linux.MS_REC | linux.MS_PRIVATE)
        linux.mount("tmpfs", "/tmp", "tmpfs", 0, "mode=755")
        for place, flags in zip(places, (0, linux.MS_NOEXEC, linux.MS_NODEV), strict=True):
            os.mkdir(place)
            linux.mount("tmpfs", place, "tmpfs", flags, "mode=755")
        os.mkdir("/tmp/tree2")
        attributes = linux.MS_RDONLY | linux.MOUNT_ATTR_NOSUID
        os.mkdir("/tmp/new")
        linux.mount("/tmp/tree", "/tmp/new", "", linux.MS_BIND | linux.MS_REC)
        os.chdir("/tmp")
        root.restrict("new", attributes, "/proc")
        copies = [place.replace("tree", "new") for place in places]
        return [[os.statvfs(place).f_flag & 15 for place in (*copies, *places)], os.statvfs("/tmp").f_flag & 15]

    with_the_call = in_a_fork(flags_after_restricting, user=user)
    monkeypatch.setattr(linux, "restrict_mounts", no_such_call)
    assert in_a_fork(flags_after_restricting, user=user) == with_the_call
    assert with_the_call == [[3, 11, 7, 0, 8, 4], 0], (
        "read-only and nosuid, with what was there; the originals as before"
    )
