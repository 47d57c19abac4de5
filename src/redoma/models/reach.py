"""What a run could really touch.

A backend declares what it lets through, the workspace narrows that, and policy weighs each finding by it: a finding
about the network prompts nobody for a cell without one.
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

Resource = Literal["files", "network", "system"]
"""Files of the host; other machines; the host's processes, services, devices and users."""

Files = Literal["none", "later", "effect", "host"]
"""No files; those of a project, later, when the changes of an overlay are applied; those of a project, now, with the
effect shown to the person who decides; any that the user can access.
"""

_FILES: tuple[Files, ...] = get_args(Files)

NO_NETWORK = "no network"
NAME_THE_HOST = ", or name the host: --allow-host HOST"
"""Advice for a run that has no network, behind another."""
_LACKING: dict[Resource, str] = {
    "files": "no files of the host",
    "network": NO_NETWORK,
    "system": "no processes or services of the host",
}


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """What a run could touch besides what it was given. The values of each field are ordered, weakest first."""

    files: Files = "none"
    network: bool = False
    system: bool = False
    hosts: bool = False
    """Whether it can reach the hosts that its request names, through a proxy that permits no others. Separate rules
    (`hosts.*`) decide on those, so rules about the network in general don't apply.
    """

    def holds(self, resource: Resource) -> bool:
        """Return whether a run with this reach could touch that resource now."""
        match resource:
            case "files":
                return self.files in ("effect", "host")
            case "network":
                return self.network
            case "system":
                return self.system

    def within(self, other: Reach) -> bool:
        """Return whether it is no more than the other."""
        return self == other or self | other == other

    def __or__(self, other: Reach) -> Reach:
        """Return what either of the two could touch."""
        return Reach(
            files=max(self.files, other.files, key=_FILES.index),
            network=self.network or other.network,
            system=self.system or other.system,
            hosts=self.hosts or other.hosts,
        )

    def over(self, workspace: str, *, hosts: bool = False) -> Reach:
        """Return the reach with a workspace of this kind, and with named hosts. If a backend isolates files, only an
        overlay's changes reach the host, later.
        """
        later = workspace == "overlay"
        return self | Reach(files="later" if later else "none", hosts=hosts) if later or hosts else self

    def lacks(self, resources: tuple[Resource, ...]) -> str:
        """Return a description of what this sandbox lacks of these; empty if it has one of them."""
        if any(map(self.holds, resources)):
            return ""
        lacking = {**_LACKING, "network": "no network but the hosts that it names"} if self.hosts else _LACKING
        return " and ".join(lacking[resource] for resource in resources)

    @property
    def words(self) -> str:
        """A description of everything it could touch."""
        files = {
            "none": "",
            "later": "a project, when its changes are applied",
            "effect": "a project, as was shown",
            "host": "files of the host",
        }[self.files]
        system = "processes and services of the host" if self.system else ""
        network = "the network" if self.network else "the hosts that it names" if self.hosts else ""
        parts = [files, system, network]
        return ", ".join(filter(None, parts)) or "nothing outside"


LATER = "nothing happens before its changes are applied"
"""Why a finding about a project doesn't decide about a run in an overlay."""

NOTHING = Reach()
EFFECT = Reach(files="effect")
"""For changes that are about to be applied: everything else the run did stayed in its cell."""
HOST = Reach(files="host", network=True, system=True)
