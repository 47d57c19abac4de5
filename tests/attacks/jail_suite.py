"""Every attack on the jail, by its name."""

from __future__ import annotations

import jail_descriptors
import jail_files
import jail_forging
import jail_kernel
import jail_limits
import jail_memory
import jail_network
import jail_outputs
import jail_processes
import jail_sharing
from jail_attack import Attack

_GROUPS = (
    *(jail_files, jail_descriptors, jail_network, jail_processes, jail_memory, jail_limits),
    *(jail_kernel, jail_forging, jail_sharing, jail_outputs),
)
_EVERY: list[Attack] = [attack for group in _GROUPS for attack in group.ATTACKS]

ATTACKS = {attack.name: attack for attack in _EVERY}
assert len(ATTACKS) == len(_EVERY), "two attacks have one name"
