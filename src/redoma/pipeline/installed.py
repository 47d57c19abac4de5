"""The backends of a configuration, each loaded and made on first use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ..lib.errors import RedomaError

if TYPE_CHECKING:
    from ..backends.base import Backend
    from ..backends.jail import JailBackend
    from ..config import Config

_NAMES = ("jail", "docker", "monty", "lean", "ray", "native")


_ahead: tuple[dict[str, Any], Backend] | None = None
"""A jail that was made ahead, and its settings."""


def make_jail_ahead(config: Config) -> None:
    """Make a jail and arm a cell, before the configuration of this process's only run is known. The run uses it if its
    configuration has the same settings for the jail.
    """
    global _ahead
    backend = _make("jail", config, once=True)
    if warm(backend):
        _ahead = _jail_settings(config), backend


def warm(backend: Backend | None) -> bool:
    """Begin to start a backend, if it can start ahead of a run. Return whether that worked: the run reports why not."""
    from ..backends.base import Warmable

    if not isinstance(backend, Warmable):
        return False
    try:
        backend.warm()
    except RedomaError:
        return False
    return True


def _take_jail(settings: dict[str, Any]) -> Backend | None:
    global _ahead
    found, _ahead = _ahead, None
    return found[1] if found is not None and found[0] == settings else None


class Installed(Mapping[str, "Backend"]):
    """All backends by name. Most requests need one of them, and loading all would take longer than a run."""

    def __init__(self, config: Config, *, once: bool = False) -> None:
        """`once`: this process makes one run and ends."""
        self._config, self.once = config, once
        self.made: dict[str, Backend] = {}
        """The backends that were used."""

    def __getitem__(self, name: str) -> Backend:
        if (found := self.made.get(name)) is not None:
            return found
        # If two threads race, both get the first one's.
        return self.made.setdefault(name, _make(name, self._config, once=self.once))

    def warm(self, name: Literal["jail", "monty"]) -> None:
        """Start a backend that a run is about to need, so that the run waits less."""
        warm(self[name])

    def __iter__(self) -> Iterator[str]:
        return iter(_NAMES)

    def __len__(self) -> int:
        return len(_NAMES)


def _jail_settings(config: Config) -> dict[str, Any]:
    return {**config.jail.options(), "environments": environments(config)}


def session_cells(config: Config, maximum: int) -> JailBackend:
    """Return cells for so many sessions: they have the driver loaded, and can be copied."""
    from ..backends.jail import JailBackend

    return JailBackend(
        minimum=1,
        maximum=maximum,
        queue=maximum,
        idle=config.jail.idle,
        preload=config.jail.preload,
        prelude="redoma.sessions.driver",
        environments=environments(config),
        passes_descriptors=True,
    )


def environments(config: Config) -> Path | None:
    """The directory with the packages of environments."""
    return config.state / "environments" / "content" if config.state else None


def _make(name: str, config: Config, *, once: bool) -> Backend:
    match name:
        case "jail":
            from ..backends.jail import JailBackend

            settings = _jail_settings(config)
            if once and (ready := _take_jail(settings)) is not None:
                return ready
            return JailBackend(**{**settings, "minimum": 0} if once else settings, once=once)
        case "lean":
            from ..backends.jail.lean import LeanBackend

            return LeanBackend(**config.jail.options())
        case "docker":
            from ..backends.docker import DockerBackend

            return DockerBackend.configured(**msgspec.structs.asdict(config.docker))
        case "monty":
            from ..backends.monty.backend import MontyBackend

            return MontyBackend(once=once)
        case "ray":
            from . import cluster

            return cluster.backend(config)
        case "native":
            from ..backends.native.backend import NativeBackend

            return NativeBackend()
    raise KeyError(name)
