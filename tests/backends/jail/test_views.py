"""Overlays over read-only files: no two living cells have the same; where they can't be had, the result says so."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

from pace import SLOW
from redoma import AsyncExecutor, Config
from redoma.backends.jail import JailBackend

_DEVICES = """
import os, time
begin = time.monotonic()
time.sleep({seconds})
[[os.stat(path).st_dev for path in ('/', '/usr', '/opt/redoma/redoma')], begin, time.monotonic()]
"""
_AT_ONCE = 4

# Like a container into which a directory below /usr was mounted.
_SOMETHING_BELOW_USR = """
import json, os
from redoma.backends import linux
from redoma.backends.jail import root
if os.geteuid() == 0:
    linux.unshare(linux.CLONE_NEWNS)
else:
    root.enter_user_namespace(linux.CLONE_NEWNS)
linux.mount("none", "/", "", linux.MS_REC | linux.MS_PRIVATE)
linux.mount("tmpfs", "/usr/src", "tmpfs", 0, "size=4k")
import redoma
from pathlib import Path
from redoma.config import AuditConfig
with redoma.Executor(redoma.Config(audit=AuditConfig(enabled=False, directory=Path("/")))) as executor:
    either = [executor.run("6 * 7", backend="jail", require=require) for require in ((), ("locks",))]
print(json.dumps([[each.status.value, each.value, each.error, list(each.isolation.missing)] for each in either]))
"""


async def test_a_view_is_used_by_one_cell_at_a_time_and_then_again(config: Config) -> None:
    async with AsyncExecutor(config, backends=[JailBackend(minimum=1, maximum=_AT_ONCE)]) as executor:
        spans: list[tuple[float, float]] = []

        async def devices(seconds: float) -> tuple[int, ...]:
            code, limits = _DEVICES.format(seconds=seconds), {"time": seconds + 60 * SLOW}
            result = await executor.run(code, backend="jail", require=["locks"], limits=limits, policy="none")
            assert isinstance(result.value, list), result
            found, begin, end = result.value
            spans.append((begin, end))
            return tuple(found)

        for seconds in (1.0, 5.0, 25.0):  # until all of them were alive at one time
            spans.clear()
            together = await asyncio.gather(*(devices(seconds * SLOW) for _ in range(_AT_ONCE)))
            if max(begin for begin, _ in spans) < min(end for _, end in spans):
                break
        later = [await devices(0) for _ in range(3 * _AT_ONCE)]
    every = [device for each in together for device in each]
    assert len(set(every)) == len(every) == 3 * _AT_ONCE, "each overlay is in one cell only"
    assert len({*together, *later}) <= _AT_ONCE + 2, "and is used again: beside those that ran, some were armed"


def test_where_a_directory_has_no_overlay_cells_share_their_files_and_say_so() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SOMETHING_BELOW_USR], capture_output=True, text=True, timeout=120 * SLOW, check=False
    )
    assert done.returncode == 0, done.stderr
    told: list[Any] = json.loads(done.stdout)
    assert told[0] == ["ok", 42, None, ["locks"]]
    status, value, error, _ = told[1]
    assert (status, value) == ("failed", None)
    assert "'locks' is not available here: /usr can't be mounted through an overlay" in error
