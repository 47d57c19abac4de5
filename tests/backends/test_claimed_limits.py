"""Which limits each backend says it enforces: those that were named for it, and no others."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from redoma import Limits

OUTSIDE = {"time", "output_lines", "output_bytes", "output_total"}
NOT_ENFORCED = {
    "jail": set(),
    "docker": set(),
    "docker with gVisor": {"files", "processes"},
    "docker, direct": set(Limits.__struct_fields__) - OUTSIDE,
    "native": {"disk", "files"},
    "monty": {"files"},
    "session": set(),
    "process of a session": set(),
}
"""The limits that a backend doesn't enforce. Whoever adds a limit adds it here, or to what the backend enforces."""

ADD_A_LIMIT = """
import redoma.models, redoma.models.request as request

class More(request.Limits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    brand_new: int = 1

request.Limits = redoma.models.Limits = More
"""
SAY = """
import json, types
from redoma.backends.docker import Box, DockerBackend
from redoma.backends.jail import JailBackend
from redoma.backends.monty.backend import MontyBackend
from redoma.backends.native.backend import NativeBackend
from redoma.models import Isolation, Limits
from redoma.models.reach import NOTHING
from redoma.sessions.turn import ProcessTurn, Turn

home = types.SimpleNamespace(name="session", reach=NOTHING, isolation=Isolation())
backends = {
    "jail": JailBackend(),
    "docker": DockerBackend(),
    "docker with gVisor": DockerBackend(Box(runtime="runsc")),
    "docker, direct": DockerBackend(Box.plain("python:3.11-slim")),
    "native": NativeBackend(),
    "monty": MontyBackend(),
    "session": Turn(home, context=""),
    "process of a session": ProcessTurn(home, pty=False),
}
said = {name: sorted(backend.capabilities().limits) for name, backend in backends.items()}
print(json.dumps([list(Limits.__struct_fields__), said]))
"""


def claimed(before: str = "") -> tuple[set[str], dict[str, set[str]]]:
    """Return all limits, and for each backend those that it claims to enforce, in a process of its own."""
    done = subprocess.run([sys.executable, "-c", before + SAY], capture_output=True, text=True, check=True)
    every, said = json.loads(done.stdout)
    return set(every), {name: set(limits) for name, limits in said.items()}


@pytest.mark.usefixtures("engine")
def test_every_limit_is_enforced_by_a_backend_or_named_as_not_enforced() -> None:
    every, said = claimed()
    assert every == set(Limits.__struct_fields__)
    assert said == {name: every - left_out for name, left_out in NOT_ENFORCED.items()}


@pytest.mark.usefixtures("engine")
def test_a_new_limit_is_claimed_by_no_backend() -> None:
    every, said = claimed(ADD_A_LIMIT)
    assert "brand_new" in every
    assert [name for name, limits in said.items() if "brand_new" in limits] == []
