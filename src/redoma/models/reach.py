"""What a run could really touch.

A backend says what it lets through, the workspace narrows that, and policy weighs each finding by it: a finding about
the network asks nobody in a cell that has none.
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

Resource = Literal["files", "network", "system"]
"""Files of the host; other machines; its processes, services, devices and users."""

Files = Literal["none", "later", "effect", "host"]
"""None; those of a project, when what was done in an overlay is applied; those of a project, now that the effect is
shown to whoever decides; any that the user has."""

_FILES: tuple[Files, ...] = get_args(Files)

_LACKING: dict[Resource, str] = {
    "files": "no files of the host",
    "network": "no network",
    "system": "no processes or services of the host",
}


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """What a run could touch beyond what it was given. Weakest first, and each field by itself."""

    files: Files = "none"
    network: bool = False
    system: bool = False

    def holds(self, resource: Resource) -> bool:
        """Whether a run with this reach could touch that resource, now."""
        match resource:
            case "files":
                return self.files in ("effect", "host")
            case "network":
                return self.network
            case "system":
                return self.system

    def within(self, other: Reach) -> bool:
        """Whether it is no more than the other."""
        return self | other == other

    def __or__(self, other: Reach) -> Reach:
        """Whatever one of the two could touch."""
        return Reach(
            files=max(self.files, other.files, key=_FILES.index),
            network=self.network or other.network,
            system=self.system or other.system,
        )

    def over(self, workspace: str) -> Reach:
        """With a workspace of this kind. What a backend keeps from the host, only an overlay brings there, later."""
        return self | Reach(files="later") if workspace == "overlay" else self

    def lacks(self, resources: tuple[Resource, ...]) -> str:
        """What this sandbox doesn't have of these, in words; empty if it has one of them."""
        if any(map(self.holds, resources)):
            return ""
        return " and ".join(_LACKING[resource] for resource in resources)

    @property
    def words(self) -> str:
        """All of it, for reading."""
        files = {
            "none": "",
            "later": "a project, when its changes are applied",
            "effect": "a project, as was shown",
            "host": "files of the host",
        }[self.files]
        system = "processes and services of the host" if self.system else ""
        parts = [files, system, "the network" if self.network else ""]
        return ", ".join(filter(None, parts)) or "nothing outside"


LATER = "nothing happens before its changes are applied"
"""Why a finding about a project decides nothing of a run in an overlay."""

NOTHING = Reach()
EFFECT = Reach(files="effect")
"""Of changes that are about to be applied: what else the run did has stayed in its cell."""
HOST = Reach(files="host", network=True, system=True)
