"""Real Ray nodes on this machine, started as `redoma cluster` does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pace import SLOW
from redoma import Config
from redoma.backends.ray.processes import NodeProcess, read_node
from redoma.config import AuditConfig

REDOMA = Path(sys.executable).with_name("redoma")


class Machine:
    """One node, with a home and a state directory of its own as if it were a machine."""

    def __init__(self, place: Path, settings: str = "") -> None:
        self.home = place
        (place / ".config" / "redoma").mkdir(parents=True)
        if settings:
            (place / ".config" / "redoma" / "redoma.yaml").write_text(settings)
        plain = {name: os.environ[name] for name in ("PATH", "LANG", "PYTHONPATH") if name in os.environ}
        self.environment = {**plain, "HOME": str(place)}
        self.state = place / ".local" / "state" / "redoma"

    def redoma(self, *arguments: str) -> str:
        done = subprocess.run(
            [str(REDOMA), *arguments], env=self.environment, capture_output=True, text=True, timeout=600 * SLOW
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def config(self) -> Config:
        """The configuration of a client on this machine."""
        return Config(audit=AuditConfig(directory=self.state / "audit"), state=self.state)

    @property
    def invitation(self) -> str:
        return str(self.state / "cluster" / "invitation.json")

    @property
    def node(self) -> NodeProcess | None:
        return read_node(self.state / "cluster")


class Nodes:
    """A cluster of several nodes. The first is the head."""

    def __init__(self, settings: list[str]) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="ray-nodes-"))
        self.machines = [Machine(self.place / f"m{number}", one) for number, one in enumerate(settings)]
        self.head = self.machines[0]
        try:
            self.head.redoma("cluster", "start", "--host", "127.0.0.1")
            with ThreadPoolExecutor() as pool:
                list(pool.map(lambda one: one.redoma("cluster", "join", self.head.invitation), self.machines[1:]))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End all nodes. Nothing may be left of them: neither a process nor Ray's directory."""
        processes = [machine.node for machine in self.machines]
        for machine in reversed(self.machines):
            machine.redoma("cluster", "stop")
        shutil.rmtree(self.place)
        for node in filter(None, processes):
            deadline = time.monotonic() + 60 * SLOW
            while left_of(node) and time.monotonic() < deadline:
                time.sleep(0.05)
            assert left_of(node) == []
            assert not os.path.exists(node.temporary)


def left_of(node: NodeProcess) -> list[int]:
    """Return the processes that still use Ray's directory of a node, by their command lines."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if node.temporary.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(int(pid))
        except OSError:
            continue
    return found
