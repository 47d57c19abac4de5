"""What the jail says of hosts that we don't have: described to it by what would be observed there."""

from __future__ import annotations

import errno
import itertools
import subprocess
from typing import Any

import pytest

from redoma.backends.base import Fact
from redoma.backends.jail.cgroup_place import Unavailable
from redoma.backends.jail.configuration import NAMESPACES
from redoma.backends.jail.host import change_for_the_jail, explain
from redoma.backends.jail.host_look import Observed
from redoma.backends.jail.kernels import (
    BY_KERNEL,
    CELLS,
    COUNTED_PROCESSES,
    IDMAPPED_OVERLAYS,
    MEMORY_PEAK,
    TMPFS_XATTRS,
    USER_OVERLAYS,
    Feature,
    version_of,
)

STEPS = (
    *("user", "map", "nested", *NAMESPACES, "hostname", "loopback", "tmpfs", "attributes"),
    *("overlay", "overlay-write", "overlay-disk", "proc", "knobs", "pivot", "seccomp"),
)
WORKS = dict.fromkeys(STEPS, 0)


def host(**changes: Any) -> Observed:
    """A host where everything is as it should be, but for the changes."""
    usual: dict[str, Any] = {
        "release": "6.12.1",
        "machine": "x86_64",
        "steps": WORKS,
        "landlock": 6,
        "bash": "/usr/bin/bash",
        "executable": "/usr/bin/python3.12",
    }
    return Observed(**{**usual, **changes})


def stopped_at(step: str, number: int) -> dict[str, int]:
    """The steps as they go when one fails: what needs it isn't tried."""
    return {**dict.fromkeys(STEPS[: STEPS.index(step)], 0), step: number, "seccomp": 0}


def told(name: str, **changes: Any) -> Fact:
    return next(fact for fact in explain(host(**changes)) if fact.name == name)


def test_ubuntu_24_04_takes_the_capabilities_away_and_a_profile_gives_them_back() -> None:
    fact = told(
        "user namespaces",
        steps=stopped_at("map", errno.EPERM),
        settings={"kernel.apparmor_restrict_unprivileged_userns": "1"},
        label="unconfined",
    )
    assert fact.state == "missing"
    assert "AppArmor" in fact.what
    # The lines are what a shell would write to the profile, and load.
    printed = shell('sudo() { if [ $1 = tee ]; then cat; else echo RUN "$@"; fi; }\n' + fact.fix)
    assert printed.splitlines() == [
        "abi <abi/4.0>,",
        'profile redoma "/usr/bin/python3.12" flags=(unconfined) { userns, }',
        "RUN apparmor_parser -r /etc/apparmor.d/redoma",
        "kernel.apparmor_restrict_unprivileged_userns = 0",
        "RUN sysctl -p /etc/sysctl.d/60-redoma.conf",
    ]


@pytest.mark.parametrize(
    "step", ["user", "tmpfs"]
)  # 23.10 before the profile existed; a kernel that maps, then refuses
def test_the_other_ways_in_which_apparmor_refuses_are_known_too(step: str) -> None:
    settings = {"kernel.apparmor_restrict_unprivileged_userns": "1"}
    fact = told("user namespaces", steps=stopped_at(step, errno.EACCES), settings=settings)
    assert "/etc/apparmor.d/redoma" in fact.fix


def test_a_profile_that_is_loaded_but_unconfined_is_no_confinement() -> None:
    settings = {"kernel.apparmor_restrict_unprivileged_userns": "1"}
    steps = stopped_at("map", errno.EPERM)
    assert "AppArmor takes" in told("user namespaces", steps=steps, settings=settings, label="x (unconfined)").what


def test_debian_with_its_own_switch_off() -> None:
    settings = {"kernel.unprivileged_userns_clone": "0"}
    fact = told("user namespaces", steps=stopped_at("user", errno.EPERM), settings=settings)
    assert fact.what == "kernel.unprivileged_userns_clone is 0"
    assert fact.fix.splitlines() == [
        "echo 'kernel.unprivileged_userns_clone = 1' | sudo tee -a /etc/sysctl.d/60-redoma.conf",
        "sudo sysctl -p /etc/sysctl.d/60-redoma.conf",
    ]


def test_a_switch_that_is_on_is_not_blamed() -> None:
    settings = {"kernel.unprivileged_userns_clone": "1", "kernel.apparmor_restrict_unprivileged_userns": "0"}
    fact = told("user namespaces", steps=stopped_at("user", errno.EPERM), settings=settings)
    assert "kernel." not in fact.what + fact.fix
    assert "dmesg" in fact.fix


@pytest.mark.parametrize(
    ("container", "more", "fix"),
    [
        ("docker", {}, "docker run --security-opt seccomp=unconfined IMAGE"),
        ("docker", {"label": "docker-default (enforce)"}, "--security-opt apparmor=unconfined IMAGE"),
        ("docker", {"selinux": True, "label": "u:r:container_t:s0"}, "--security-opt label=disable IMAGE"),
        ("podman", {}, "podman run --security-opt seccomp=unconfined IMAGE"),
        ("kubernetes", {}, "seccompProfile: {type: Unconfined}"),
        ("lxc", {}, "security.nesting=true"),
    ],
)
def test_a_container_that_refuses_is_named_with_its_own_options(container: str, more: dict[str, Any], fix: str) -> None:
    steps = stopped_at("user", errno.EPERM)
    fact = told("user namespaces", steps=steps, container=container, filtered=True, **more)
    assert container in fact.what
    assert fix in fact.fix


@pytest.mark.parametrize(
    ("more", "change"),
    [
        ({"container": "docker"}, "`docker run --security-opt seccomp=unconfined`"),
        ({"container": "podman"}, "`podman run --security-opt seccomp=unconfined`"),
        ({"container": "kubernetes"}, "`securityContext: {seccompProfile: {type: Unconfined}}` in the pod"),
        ({"service": "agent.service"}, "`RestrictNamespaces=no` in agent.service"),
        ({"container": "containerd"}, "what `redoma doctor` prints under `user namespaces` "),
        ({}, "what `redoma doctor` prints under `user namespaces` "),
    ],
)
def test_the_one_change_fits_what_is_around_us(more: dict[str, Any], change: str) -> None:
    seen = host(steps=stopped_at("user", errno.EPERM), filtered=True, **more)
    assert change_for_the_jail(seen).startswith(change)
    engines = {name for name in ("docker", "podman") if any(f"{name} run" in fact.fix for fact in explain(seen))}
    assert engines == {"docker", "podman"} & {seen.container}
    assert change_for_the_jail(host(**more)) == ""


def test_root_without_capabilities_is_told_to_be_another_user_in_the_terms_of_what_is_around_it() -> None:
    changes = {
        kind: change_for_the_jail(host(root=True, steps={**WORKS, "drop": errno.EPERM}, filtered=True, container=kind))
        for kind in ("docker", "kubernetes", "bubblewrap")
    }
    assert changes == {
        "docker": "`docker run --user 1000 --security-opt seccomp=unconfined`",
        "kubernetes": "`securityContext: {runAsUser: 1000, seccompProfile: {type: Unconfined}}` in the pod",
        "bubblewrap": "start bwrap as an ordinary user, not as root",
    }


@pytest.mark.parametrize(
    ("step", "directive"), [("hostname", "ProtectHostname=no"), ("loopback", "RestrictAddressFamilies=AF_UNIX AF_INET")]
)
def test_a_cell_that_could_not_set_up_its_namespaces_is_no_jail(step: str, directive: str) -> None:
    steps = {**WORKS, step: errno.EPERM}
    assert told("namespaces", steps=steps).state == "missing"
    assert directive in told("namespaces", steps=steps, service="agent.service").fix
    assert "podman run" in told("namespaces", steps=steps, container="podman", filtered=True).fix


def test_read_only_groups_are_explained_by_what_is_around_us() -> None:
    unavailable = Unavailable("read-only", "docker run …\npodman run …", in_container=True)
    fixes = {kind: told("cgroup", cgroup=unavailable, container=kind).fix for kind in ("docker", "kubernetes", "")}
    assert "podman" not in fixes["docker"]
    assert "docker" not in fixes["kubernetes"]
    assert fixes[""] == unavailable.fix
    assert "ProtectControlGroups=no" in told("cgroup", cgroup=unavailable, service="agent.service").fix


def test_a_container_on_ubuntu_is_blamed_before_the_host_under_it() -> None:
    fact = told(
        "user namespaces",
        steps=stopped_at("user", errno.EPERM),
        container="docker",
        filtered=True,
        settings={"kernel.apparmor_restrict_unprivileged_userns": "1"},
    )
    assert "docker run" in fact.fix


def test_a_setting_that_only_the_outside_can_change_says_where() -> None:
    settings = {"kernel.unprivileged_userns_clone": "0"}
    steps = stopped_at("user", errno.EPERM)
    assert (
        "runs this docker container" in told("user namespaces", steps=steps, settings=settings, container="docker").fix
    )


def test_a_nested_container_whose_proc_is_masked_gets_the_option_that_unmasks_it() -> None:
    steps = {**WORKS, "proc": errno.EPERM}
    assert "systempaths=unconfined" in told("/proc", steps=steps, container="docker").fix
    assert "unmask=ALL" in told("/proc", steps=steps, container="podman").fix
    assert "procMount: Unmasked" in told("/proc", steps=steps, container="kubernetes").fix


def test_a_service_of_systemd_is_named() -> None:
    fact = told("user namespaces", steps=stopped_at("user", errno.EPERM), filtered=True, service="agent.service")
    assert "/etc/systemd/system/agent.service.d/redoma.conf" in fact.fix


@pytest.mark.parametrize("step", ["attributes", "pivot"])
def test_a_filter_outside_of_any_container_is_blamed_for_the_root_too(step: str) -> None:
    fact = told("root directory", steps=stopped_at(step, errno.EPERM), filtered=True)
    assert "RestrictNamespaces=no" in fact.fix


def test_selinux_and_a_profile_of_apparmor_are_named() -> None:
    steps = stopped_at("user", errno.EACCES)
    assert "SELinux" in told("user namespaces", steps=steps, selinux=True, label="user_u:user_r:user_t:s0").what
    assert told("user namespaces", steps=steps, label="my agent (enforce)").fix == "sudo aa-complain 'my agent'"


def test_namespaces_that_are_used_up_get_twice_as_many() -> None:
    steps = stopped_at("user", errno.ENOSPC)
    assert "= 200" in told("user namespaces", steps=steps, settings={"user.max_user_namespaces": "100"}).fix
    fact = told("namespaces", steps={**WORKS, "net": errno.ENOSPC}, settings={"user.max_net_namespaces": "0"})
    assert (fact.state, fact.what) == ("missing", "no namespace of net: user.max_net_namespaces is 0")


def test_a_kernel_without_a_kind_of_namespace() -> None:
    assert "CONFIG_USER_NS" in told("user namespaces", steps=stopped_at("user", errno.EINVAL)).fix
    assert "CONFIG_IPC_NS" in told("namespaces", steps={**WORKS, "ipc": errno.EINVAL}).fix


@pytest.mark.parametrize(
    ("kernel", "state", "root"),
    [
        ("4.4.0-19041-Microsoft", "missing", "missing"),
        ("4.18.0-553.el8", "missing", "missing"),
        ("5.10.0-28-amd64", "degraded", "degraded"),
        ("5.13.0", "degraded", "degraded"),
        ("5.14.0-427.el9", "ok", "degraded"),
        ("6.1.0-18-amd64", "ok", "ok"),
        ("7.2.0", "ok", "ok"),
    ],
)
def test_what_a_kernel_is_too_old_for(kernel: str, state: str, root: str) -> None:
    steps = {"user": errno.EPERM} if state == "missing" else WORKS
    for fact, expected in (
        (told("kernel", release=kernel, steps=steps), state),
        (told("kernel", release=kernel, steps=steps, root=True), root),
    ):
        assert fact.state == expected
        assert bool(fact.costs) == bool(fact.fix) == (expected != "ok")


def test_root_on_an_old_kernel_is_told_all_that_it_lacks_at_once() -> None:
    fact = told("kernel", release="5.10.0", root=True)
    lacking = (COUNTED_PROCESSES, IDMAPPED_OVERLAYS)
    assert fact.costs == "; ".join(feature.without for feature in lacking)
    assert fact.fix == "# boot Linux 5.19 or later"


def on(version: tuple[int, int], *, root: bool) -> dict[str, Any]:
    """What would be observed on this version of Linux, of what depends on it."""
    xattrs = errno.EOPNOTSUPP if version < (6, 6) else 0
    steps = {**WORKS, "overlay": errno.EPERM, "overlay-write": errno.EPERM, "overlay-disk": errno.EPERM}
    return {
        "release": f"{version[0]}.{version[1]}.0",
        "steps": steps if version < (5, 11) else {**WORKS, "overlay-write": xattrs},
        "landlock": 0 if version < (5, 19) else 2 if version < (6, 12) else 6,
        "cgroup": "v2 limits the memory of a cell",
        "root": root,
    }


@pytest.mark.parametrize("feature", BY_KERNEL, ids=lambda feature: feature.what)
def test_each_feature_is_told_by_its_fact_to_whom_it_concerns_and_before_its_version_alone(feature: Feature) -> None:
    major, minor = feature.since
    for root in (False, True):
        before = told(feature.fact, **on((major, minor - 1), root=root))
        since = told(feature.fact, **on((major, minor), root=root))
        concerned = feature.whom == "everybody" or (feature.whom == "root") == root
        assert (feature.without in before.costs) == concerned
        assert feature.without not in since.costs
        if concerned:
            assert before.state == ("missing" if feature is CELLS else "degraded")
            assert [version_of(version) >= feature.since for version in before.fix.split("Linux ")[1:]] == [True]


def test_a_new_kernel_lacks_nothing() -> None:
    for root in (False, True):
        assert [fact.costs for fact in explain(host(**on((7, 2), root=root))) if fact.state != "ok"] == []


def test_the_table_is_in_the_order_of_versions() -> None:
    assert list(BY_KERNEL) == sorted(BY_KERNEL, key=lambda feature: feature.since)


def test_the_first_version_of_cgroups_has_a_peak_on_every_kernel() -> None:
    assert told("cgroup", release="5.10.0", cgroup="v1 limits the memory of a cell").state == "ok"
    assert told("cgroup", release="5.10.0", cgroup="v2 limits the memory of a cell").costs == MEMORY_PEAK.without


def test_another_architecture_has_no_filter() -> None:
    fact = told("architecture", machine="riscv64", unfiltered="there is none for riscv64")
    assert (fact.state, fact.what) == ("missing", "there is none for riscv64")


@pytest.mark.parametrize(
    ("version", "modules", "state", "words"),
    [
        (6, "", "ok", "version 6"),
        (3, "", "degraded", "signals"),
        (0, "lockdown,yama,apparmor", "degraded", "lsm=landlock,lockdown,yama,apparmor"),
        (0, "", "degraded", "CONFIG_SECURITY_LANDLOCK"),
    ],
)
def test_landlock_of_each_age(version: int, modules: str, state: str, words: str) -> None:
    fact = told("Landlock", landlock=version, modules=modules)
    assert fact.state == state
    assert words in fact.what + fact.fix


def test_an_overlay_is_written_to_on_disk_where_it_can_not_be_on_a_tmpfs() -> None:
    assert told("overlayfs", steps={**WORKS, "overlay-disk": errno.EOPNOTSUPP}).state == "ok"  # nobody needs it
    fact = told("overlayfs", steps={**WORKS, "overlay-write": errno.EOPNOTSUPP}, release="6.1.0")
    assert (fact.state, fact.costs) == ("degraded", TMPFS_XATTRS.without)
    assert "Linux 6.6 or later" in fact.fix


@pytest.mark.parametrize("steps", [{"overlay-disk": errno.EOPNOTSUPP}, {}], ids=["it fails", "it was not tried"])
def test_where_no_disk_will_do_either_another_one_is_asked_for(steps: dict[str, int]) -> None:
    tried = {name: number for name, number in WORKS.items() if name != "overlay-disk"}
    fact = told("overlayfs", steps={**tried, "overlay-write": errno.EOPNOTSUPP, **steps}, release="6.1.0")
    assert (fact.state, fact.costs) == ("degraded", "no project overlays (`redoma try`)")
    assert "at /var/tmp" in fact.fix


def test_a_kernel_without_overlays_lacks_names() -> None:
    none = {**WORKS, "overlay": errno.ENODEV, "overlay-write": errno.ENODEV, "overlay-disk": errno.ENODEV}
    for root in (False, True):
        fact = told("overlayfs", steps=none, root=root)
        assert "modprobe" in fact.fix
        assert fact.costs.startswith(USER_OVERLAYS.without)
        assert "without `names`" in fact.costs  # as a cell on this kernel is expected to have it


def test_overlays_that_a_new_enough_kernel_refuses_need_no_newer_one() -> None:
    assert "dmesg" in told("overlayfs", steps={**WORKS, "overlay": errno.EPERM}).fix


def test_a_host_without_bash_runs_the_rest() -> None:
    assert told("bash", bash=None).state == "degraded"


def test_tries_that_could_not_be_made_are_no_success() -> None:
    found = {fact.name: fact for fact in explain(host(steps={}, broken="it took 10 seconds"))}
    assert found["user namespaces"].state == "missing"
    assert "it took 10 seconds" in found["user namespaces"].what
    assert not {"namespaces", "/proc", "overlayfs", "seccomp", "Landlock"} & set(found)


def test_root_that_can_not_drop_its_rights_is_told_to_be_another_user() -> None:
    fact = told("root", root=True, steps={"sight": errno.EPERM, "drop": errno.EPERM, **WORKS}, container="docker")
    assert fact.state == "missing"
    assert fact.fix.endswith("docker run --user 1000")
    steps = {"sight": errno.EPERM, "drop": errno.EPERM}
    fact = told("root", root=True, filtered=True, steps=steps, container="docker")
    assert fact.fix.endswith("docker run --user 1000 --security-opt seccomp=unconfined")


def test_root_that_may_not_mount_has_the_jail_all_the_same() -> None:
    assert told("root", root=True, steps={"sight": errno.EPERM, "drop": 0, **WORKS}).state == "ok"


def test_root_is_told_what_to_open() -> None:
    assert told("root", root=True, closed="/opt/my python").fix == "chmod -R o+rX '/opt/my python'"
    assert "root" not in {fact.name for fact in explain(host())}


@pytest.mark.parametrize(
    ("steps", "more", "words"),
    [
        ({"pivot": errno.EINVAL}, {}, "initramfs"),
        ({"pivot": errno.EPERM}, {"container": "docker", "filtered": True}, "seccomp=unconfined"),
        ({"attributes": errno.ENOSYS}, {"container": "docker", "filtered": True}, "mount_setattr"),
    ],
)
def test_a_root_that_can_not_be_left(steps: dict[str, int], more: dict[str, Any], words: str) -> None:
    fact = told("root directory", steps={**WORKS, **steps}, **more)
    assert fact.state == "missing"
    assert words in fact.fix


@pytest.mark.parametrize(
    ("steps", "costs"),
    [
        ({"proc": errno.EPERM}, "an empty /proc"),
        ({"knobs": errno.EROFS}, "`user-namespaces` is missing"),
        ({"proc": errno.EPERM, "knobs": errno.EROFS}, "`user-namespaces` is missing"),
    ],
)
def test_the_jail_works_with_a_proc_that_is_masked_or_read_only(steps: dict[str, int], costs: str) -> None:
    fact = told("/proc", steps={**WORKS, **steps}, container="docker")
    assert fact.state == "degraded"
    assert costs in fact.costs


def test_a_proc_that_fails_in_another_way_is_no_jail() -> None:
    assert told("/proc", steps={**WORKS, "proc": errno.EINVAL}).state == "missing"
    assert told("/proc", steps={**WORKS, "knobs": errno.EACCES}).state == "missing"


def test_a_proc_whose_settings_are_read_only() -> None:
    steps = {**WORKS, "knobs": errno.EROFS}
    assert "remount,rw" in told("/proc", steps=steps).fix
    assert "systempaths=unconfined" in told("/proc", steps=steps, container="docker").fix


def test_a_group_that_can_be_used_is_named() -> None:
    assert told("cgroup", cgroup="v2 limits").state == "ok"
    fact = told("cgroup", cgroup=Unavailable("this user may not", "systemd-run redoma"))
    assert (fact.state, fact.what, fact.fix) == ("degraded", "this user may not", "systemd-run redoma")


def test_root_is_not_told_to_use_sudo() -> None:
    steps = stopped_at("user", errno.ENOSPC)
    assert "sudo" in told("user namespaces", steps=steps).fix
    assert "sudo" not in told("user namespaces", steps=steps, root=True).fix


def shell(script: str) -> str:
    return subprocess.run(["sh", "-ec", script], capture_output=True, text=True, check=True, timeout=30).stdout


def test_every_fix_can_be_pasted_into_a_shell() -> None:
    fixes = set()
    numbers = (errno.EPERM, errno.ENOSPC, errno.EINVAL, errno.ENOSYS, errno.ENODEV)
    variants: list[dict[str, Any]] = [
        {},
        {"filtered": True},
        {"selinux": True},
        {"root": True, "closed": "/a b"},
    ]
    for container, number, step, more in itertools.product(
        ("", "docker", "kubernetes", "lxc", "bubblewrap", "other"), numbers, STEPS, variants
    ):
        steps = stopped_at(step, number) if step in ("user", "map", "nested", "tmpfs") else {**WORKS, step: number}
        for fact in explain(host(steps=steps, container=container, landlock=0, bash=None, **more)):
            assert bool(fact.costs) == (fact.state != "ok"), fact
            fixes.add(fact.fix)
    for fix in fixes:
        subprocess.run(["sh", "-nc", fix], check=True, timeout=30)
