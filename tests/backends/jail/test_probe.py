"""What the probe in a cell takes for a name of the host, and what follows where it finds a layer missing."""

from __future__ import annotations

import ctypes

import pytest

from redoma import AsyncExecutor, Backend, Config, Status
from redoma.backends.jail import JailBackend, compiled
from redoma.backends.monty.backend import MontyBackend


def shown(mounts: list[tuple[bytes, bytes]], project: bytes) -> bytes | None:
    lines = [
        b"36 35 98:0 /host/lies/here " + place + b" ro,nosuid - " + kind + b" /dev/root rw\n" for place, kind in mounts
    ]
    found: bytes | None = compiled.load().cell_place_shown(ctypes.create_string_buffer(b"".join(lines)), project)
    return found


def test_a_project_below_opt_is_not_taken_for_ours() -> None:
    mounts = [(place, b"ext4") for place in (b"/opt/my\\040app\xff", b"/opt/my\\040app\xff/sub", b"/opt/venv")]
    mounts += [(b"/opt/python", b"overlay"), (b"/opt/tmp", b"tmpfs"), (b"/usr", b"ext4")]
    assert shown(mounts, b"/opt/my app\xff") == b"/opt/venv"
    assert shown(mounts, b"/opt/my") == b"/opt/my app\xff"
    assert shown(mounts, b"") == b"/opt/my app\xff"
    assert shown(mounts[3:], b"") is None


@pytest.mark.parametrize(
    "text", [b"", b"\n\n", b" - ", b"1 2 3 4 /opt/x", b"1 2 3 4 /opt/\\04 - ext4", b"1 - overlay /opt/x"]
)
def test_a_line_that_no_kernel_writes_is_passed_over(text: bytes) -> None:
    assert compiled.load().cell_place_shown(ctypes.create_string_buffer(text), b"") in (None, b"/opt/\\04")


async def test_no_other_backend_is_tried_where_a_layer_of_a_cell_was_not_found(config: Config) -> None:
    """What was set up and is not in force is an alarm, not a host without a jail."""
    backends: list[Backend] = [JailBackend(minimum=1, without=["seccomp"]), MontyBackend(cells=False)]
    async with AsyncExecutor(config, backends=backends) as executor:
        result = await executor.run("6 * 7")
    assert (result.status, result.backend, result.value) == (Status.FAILED, "jail", None)
