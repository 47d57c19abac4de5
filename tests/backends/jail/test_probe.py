"""What the probe in a cell takes for a name of the host, and what follows where it finds a layer missing."""

from __future__ import annotations

import os

from redoma import AsyncExecutor, Backend, Config, Status
from redoma.backends.jail import JailBackend
from redoma.backends.jail.probe import places_shown
from redoma.backends.monty.backend import MontyBackend
from redoma.lib.mounts import Mount, parse_mounts


def mounted(place: bytes, kind: bytes) -> Mount:
    line = b"36 35 98:0 /host/lies/here " + place + b" ro,nosuid - " + kind + b" /dev/root rw\n"
    (mount,) = parse_mounts(os.fsdecode(line))
    return mount


def test_a_project_below_opt_is_not_taken_for_ours() -> None:
    mounts = [mounted(place, b"ext4") for place in (b"/opt/my\\040app\xff", b"/opt/my\\040app\xff/sub", b"/opt/venv")]
    mounts += [mounted(b"/opt/python", b"overlay"), mounted(b"/usr", b"ext4")]
    assert places_shown(mounts, os.fsdecode(b"/opt/my app\xff")) == ["/opt/venv"]
    assert len(places_shown(mounts, "/opt/my")) == 3
    assert len(places_shown(mounts, "")) == 3


async def test_no_other_backend_is_tried_where_a_layer_of_a_cell_was_not_found(config: Config) -> None:
    """What was set up and is not in force is an alarm, not a host without a jail."""
    backends: list[Backend] = [JailBackend(minimum=1, without=["seccomp"]), MontyBackend(cells=False)]
    async with AsyncExecutor(config, backends=backends) as executor:
        result = await executor.run("6 * 7")
    assert (result.status, result.backend, result.value) == (Status.FAILED, "jail", None)
