"""The isolation between a run and the host."""

from __future__ import annotations

import msgspec


class Isolation(msgspec.Struct, frozen=True, kw_only=True):
    """The isolation between the run and the host: the layers in force, and those that are missing."""

    layers: dict[str, str] = {}
    missing: tuple[str, ...] = ()

    def lacking(self, required: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(layer for layer in required if layer not in self.layers)
