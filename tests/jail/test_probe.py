"""What the probe in a cell takes for a name of the host."""

from __future__ import annotations

import os

from redoma.backends.jail.probe import places_shown


def mounted(place: bytes, kind: bytes) -> bytes:
    return b"36 35 98:0 /host/lies/here " + place + b" ro,nosuid - " + kind + b" /dev/root rw\n"


def test_a_project_below_opt_is_not_taken_for_ours() -> None:
    mounts = [mounted(place, b"ext4") for place in (b"/opt/my\\040app\xff", b"/opt/my\\040app\xff/sub", b"/opt/venv")]
    mounts += [mounted(b"/opt/python", b"overlay"), mounted(b"/usr", b"ext4")]
    assert places_shown(mounts, os.fsdecode(b"/opt/my app\xff")) == ["/opt/venv"]
    assert len(places_shown(mounts, "/opt/my")) == 3
    assert len(places_shown(mounts, "")) == 3
