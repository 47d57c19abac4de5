"""The lean backend: cells without namespaces, for hosts where none can be made (most containers).

It uses the zygote, pool, protocol and guest of the jail. A run is isolated by Landlock, the filter of system calls and,
if Redoma is root and may change users, its own user id; c/cell.c has the steps under "the lean cell". It promises that
a guest can't reach the process, memory, environment and files of Redoma, nor another guest. If a kernel can't ensure
that, there are no lean cells on it.

It is weaker than the jail: `configuration.LEAN_MISSING` says what it lacks, and every result lists it. So it is never
chosen automatically: a request or the configuration must name it.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import ClassVar

from ...lib.errors import BackendUnavailable
from ...lib.files import reason
from ...models import EnvironmentUse, Isolation
from .. import linux
from ..base import Capabilities, Fact
from . import seccomp
from .backend import JailBackend
from .cgroup import Cgroups
from .configuration import LEAN_LAYERS, LEAN_MISSING
from .launch import Zygote, ZygoteOptions
from .places import may_change_users

_ALIASES = {"kernel": "seccomp"}


class LeanBackend(JailBackend):
    """Takes the options of `JailBackend`; those about projects and environments are ignored."""

    name = "lean"
    aliases: ClassVar[dict[str, str]] = _ALIASES

    def _look(self) -> Capabilities:
        own_user = sys.platform == "linux" and "user" not in self._without and may_change_users()
        if why := why_not(own_user=own_user):
            raise BackendUnavailable("lean cells are not available on this host", why=why, next="see `redoma doctor`")
        layers = dict(LEAN_LAYERS)
        layers["landlock"] = linux.landlock_promise(linux.landlock_abi())
        missing = tuple(sorted([*LEAN_MISSING, *([] if own_user else ["user"])]))
        if not own_user:
            del layers["user"]
        layers |= {alias: layers[name] for alias, name in _ALIASES.items()}
        self._own_user = own_user
        return self._offered(Isolation(layers=layers, missing=missing))

    def facts(self) -> tuple[Fact, ...]:
        """Return what this host offers lean cells, for `redoma doctor`."""
        own_user = may_change_users()
        if why := why_not(own_user=own_user):
            costs = "the backend `lean` doesn't work"
            fix = (
                "# boot Linux 6.12 or later, with Landlock; in a systemd service with a SystemCallFilter=, add to it:\n"
                "#   seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self"
            )
            return (Fact(name="lean cells", state="missing", what=why, costs=costs, fix=fix),)
        user = "each with a user id of its own" if own_user else "with Redoma's own user id"
        return (
            Fact(name="lean cells", what=f"work, {user}; they have no namespaces, so nothing takes them by itself"),
        )

    def _start(self, project: str, hash_seed: int | None, uses: EnvironmentUse | None) -> tuple[Zygote, Cgroups | None]:
        self.capabilities()
        zygote = Zygote(
            ZygoteOptions(
                watched=True,
                preload=self._preload,
                prelude=self._prelude,
                programs=self._programs,
                hash_seed=hash_seed,
                lean=True,
                own_user=self._own_user,
            )
        )
        return zygote, None

    def _counts_processes_by_rlimit(self) -> bool:
        return self._own_user  # the kernel counts processes by user


@functools.cache
def advice() -> str:
    """Return two lines for a host on which the jail can't work: what works as it is, and what one change would add.
    Empty if the jail works, or if this is not Linux. The first call takes about 0.1 s.
    """
    if sys.platform != "linux":
        return ""
    from .host import change_for_the_jail
    from .host_look import look

    change = change_for_the_jail(look())
    if not change:
        return ""
    if why := why_not(own_user=may_change_users()):
        works = f"Monty, for a subset of Python; no lean cells, as {why}"
    else:
        works = "`--backend lean`, weaker than the jail; `jail: {lean: true}` in redoma.yaml makes it the default"
    return f"works here as it is:   {works}\none change would add:  the jail: {change}"


def why_not(*, own_user: bool) -> str:
    """Return why a lean cell can't keep its promises on this host; empty if it can."""
    if sys.platform != "linux":
        return "it is made of Linux's Landlock and seccomp"
    try:
        seccomp.program(watched=True)
    except OSError as error:
        return reason(error)
    version = linux.landlock_abi()
    if not version:
        return (
            "this kernel has no Landlock, it is switched off, or a filter that Redoma was started under refuses it: "
            "nothing would keep files out of reach"
        )
    if version < linux.LANDLOCK_SCOPES and not own_user:
        return (
            f"Landlock of version {version} doesn't keep signals inside ({linux.LANDLOCK_SCOPES}, Linux 6.12, does), "
            "and only root can give each run a user id of its own instead"
        )
    if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
        return "this kernel doesn't tell the children of a process (CONFIG_PROC_CHILDREN): they could not be counted"
    return ""
