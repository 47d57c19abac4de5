"""The table of Linux features that the jail uses: since which version, and what is different without each. `redoma
doctor` uses it and docs/kernels.md shows it.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec


class Feature(msgspec.Struct, frozen=True, kw_only=True):
    """A feature of Linux that the jail uses."""

    since: tuple[int, int]
    """The first version that has it. Distributions backport some, so what can be tried is tried."""
    what: str
    whom: Literal["everybody", "ordinary users", "root"] = "everybody"
    """Whom it matters to."""
    without: str
    """What is different without it."""
    fact: str
    """The name of the fact in `redoma doctor` that reports it. `kernel` depends on the version only."""

    def is_missing(self, release: str, *, root: bool) -> bool:
        """Return whether root, or else an ordinary user, lacks it on this release of Linux."""
        concerned = self.whom == "everybody" or (self.whom == "root") == root
        return concerned and version_of(release) < self.since

    @property
    def version(self) -> str:
        """The first version, as text."""
        return ".".join(map(str, self.since))


NO_OVERLAYS = "no project overlays (`redoma try`)"
NO_PROJECTS = "no projects, not even to be read"

CELLS = Feature(
    since=(5, 10),
    what="what every cell needs: namespaces, a filter of system calls, a `/proc` with processes only",
    without="the jail doesn't work; `auto` takes the next backend",
    fact="kernel",
)
USER_OVERLAYS = Feature(
    since=(5, 11),
    what="overlays in user namespaces",
    whom="ordinary users",
    without="the layer `names` is missing: a guest can read where the interpreter lies on this host; locks that it "
    f"takes on files of the system are seen by the host; {NO_PROJECTS}",
    fact="overlayfs",
)
OWN_OVERLAYS = Feature(
    since=(5, 11),
    what="overlays in user namespaces, one for each cell",
    without="the layer `locks` is missing: cells that run at the same time see each other's locks and watches on files "
    "of the system",
    fact="overlayfs",
)
LANDLOCK_FILES = Feature(
    since=(5, 19),
    what="Landlock for files (its first version, in 5.13, refuses to move files between directories)",
    without="the layer `landlock` is missing: files have no second lock",
    fact="Landlock",
)
COUNTED_PROCESSES = Feature(
    since=(5, 14),
    what="processes counted by user namespace",
    without="exceeding the limit on processes ends the run instead of failing the fork",
    fact="kernel",
)
MEMORY_PEAK = Feature(
    since=(5, 19),
    what="`memory.peak` in cgroup v2",
    without="`usage.memory` is what was in use at the end, not the peak",
    fact="cgroup",
)
IDMAPPED_OVERLAYS = Feature(
    since=(5, 19),
    what="overlays over mounts with other owners (idmapped)",
    whom="root",
    without=NO_PROJECTS,
    fact="kernel",
)
TMPFS_XATTRS = Feature(
    since=(6, 6),
    what="user xattrs on tmpfs",
    without="what a run changes in a project is kept in a private directory in `/var/tmp` while it runs; its size "
    "is watched, not capped",
    fact="overlayfs",
)
LANDLOCK_SIGNALS = Feature(
    since=(6, 12),
    what="Landlock for signals and abstract sockets",
    without="namespaces alone keep signals and abstract sockets inside",
    fact="Landlock",
)
BY_KERNEL = (
    CELLS,
    USER_OVERLAYS,
    OWN_OVERLAYS,
    COUNTED_PROCESSES,
    LANDLOCK_FILES,
    MEMORY_PEAK,
    IDMAPPED_OVERLAYS,
    TMPFS_XATTRS,
    LANDLOCK_SIGNALS,
)
"""The features by version. The first is required, the others are optional. docs/kernels.md has the same table."""


def version_of(release: str) -> tuple[int, int]:
    """Return the major and minor version of a release of Linux; (0, 0) if it can't be parsed."""
    numbers = re.match(r"(\d+)\.(\d+)", release)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
