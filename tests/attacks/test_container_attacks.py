"""The attacks on the jail fail in containers, with runc and with gVisor. In a container without walls they succeed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from container_crew import Containers, only_looks
from container_suite import applicable
from jail_suite import ATTACKS

from redoma.backends.docker import Box

_OPEN = Box(
    network_mode="host",
    user="0",
    read_only_rootfs=False,
    no_new_privileges=False,
    cap_drop=(),
    cap_add=("NET_ADMIN", "NET_RAW", "SYS_ADMIN", "SYS_PTRACE", "MKNOD", "DAC_READ_SEARCH", "SYS_CHROOT", "SYSLOG"),
    seccomp="engine",
)
"""As people start containers when something doesn't work."""

Verdicts = dict[str, dict[str, Any]]


def _carry_out(box: Box, names: list[str], *, place: bool = False) -> Verdicts:
    async def work() -> Verdicts:
        containers = Containers(box, place=place)
        try:
            return await containers.carry_out(names)
        finally:
            await containers.close()

    return asyncio.run(work())


@pytest.fixture(scope="module")
def verdicts(request: pytest.FixtureRequest, engine: str) -> Callable[[str], Verdicts]:
    """Of a runtime: all at once, for the attacks that were selected."""
    calls = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]

    @cache
    def of(runtime: str) -> Verdicts:
        names = [call["name"] for call in calls if call.get("runtime") == runtime and "name" in call]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HOST_SECRET", "hostsecret-of-the-container-attacks")
            return _carry_out(Box(runtime=runtime), names)

    return of


@pytest.mark.parametrize(
    ("runtime", "name"), [(runtime, name) for runtime in ("runc", "runsc") for name in applicable(runtime)]
)
def test_the_attack_fails_in_a_container(runtime: str, name: str, verdicts: Callable[[str], Verdicts]) -> None:
    if why := ATTACKS[name].absent():
        pytest.skip(why)
    verdict = verdicts(runtime)[name]
    assert verdict["started"], f"the attack never ran: {verdict['seen']}"
    assert not verdict["breached"], f"the container is broken: {verdict['seen']}"


def test_most_of_them_succeed_in_a_container_without_walls(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that don't even there have been seen to succeed without any: see test_jail_attacks.py."""
    monkeypatch.setenv("HOST_SECRET", "hostsecret-of-the-container-attacks")
    names = [name for name in applicable("runc") if only_looks(ATTACKS[name]) and not ATTACKS[name].before]
    verdicts = _carry_out(_OPEN, names, place=True)
    fail = [name for name, verdict in verdicts.items() if not verdict["breached"]]
    assert len(verdicts) - len(fail) > 95, fail
