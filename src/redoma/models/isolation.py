"""What stood between a run and the host."""

from __future__ import annotations

import msgspec


class Isolation(msgspec.Struct, frozen=True, kw_only=True):
    """What stood between the run and the host, layer by layer, and what did not."""

    layers: dict[str, str] = {}
    missing: tuple[str, ...] = ()

    def lacking(self, required: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(layer for layer in required if layer not in self.layers)
