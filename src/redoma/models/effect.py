"""What a run did to a project, or would do, path by path."""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

from .network import NetworkRequest


class Version(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one path of a project was, or will be."""

    kind: Literal["file", "directory", "symlink"]
    mode: int = 0
    """Permission bits, including set-user-id, set-group-id and sticky."""
    size: int = 0
    sha256: str = ""
    """The hash of a file's content."""
    target: str = ""
    """The target of a symbolic link, as written in it."""


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One path that a run added, changed or removed. Bytes of names that are not UTF-8 are lone surrogates."""

    path: str
    """Relative to the project, with `/` between names."""
    before: Version | None = None
    after: Version | None = None
    old_path: str = ""
    """The earlier path, if it was only moved."""
    diff: str = ""
    """Unified, if both sides are text (or missing) and not too long."""
    protected: str = ""
    """Why it is applied only if it is named; empty if it is not protected."""

    @property
    def kind(self) -> Literal["added", "modified", "deleted", "renamed", "mode", "symlink"]:
        if self.old_path:
            return "renamed"
        if self.before is None:
            return "added"
        if self.after is None:
            return "deleted"
        if self.after.kind == "symlink":
            return "symlink"
        if msgspec.structs.replace(self.before, mode=self.after.mode) == self.after:
            return "mode"
        return "modified"


class Effect(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that a run did to a project. With an overlay, the project itself has not changed yet."""

    project: str
    """The directory, as an absolute path without links."""
    changes: tuple[Change, ...] = ()
    """Sorted by path; at most one for each."""
    refused: dict[str, str] = {}
    """Path → why what the run left there can't be applied: a device, a socket, a file that is too large."""
    conflicts: dict[str, str] = {}
    """Path of a change → what another program did there during the run. Such a change is not applied."""
    network: tuple[NetworkRequest, ...] = ()
    """The requests that the run made to hosts. Unlike its changes, they have already happened."""

    @property
    def digest(self) -> str:
        """SHA-256 of exactly this effect: an approval of it applies to nothing else."""
        facts = [(change.path, change.old_path, change.before, change.after) for change in self.changes]
        told: list[object] = [self.project, facts]
        if self.network:
            told.append(self.network)
        return hashlib.sha256(ascii(told).encode()).hexdigest()
