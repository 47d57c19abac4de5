"""Real Ray nodes on this machine, started as `redoma cluster` does."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pace import SLOW
from redoma import Config
from redoma.backends.jail.cgroup import Cgroups
from redoma.backends.jail.cgroup_place import Unavailable, locate
from redoma.backends.ray.processes import NodeProcess, _family, read_node
from redoma.config import AuditConfig

REDOMA = Path(sys.executable).with_name("redoma")


class Machine:
    """One node, with a home and a state directory of its own as if it were a machine. `inside` begins the command lines
    of all that runs there."""

    def __init__(self, place: Path, settings: str = "", inside: Sequence[str] = (), address: str = "127.0.0.1") -> None:
        self.home, self._inside, self.address = place, inside, address
        (place / ".config" / "redoma").mkdir(parents=True)
        if settings:
            (place / ".config" / "redoma" / "redoma.yaml").write_text(settings)
        plain = {name: os.environ[name] for name in ("PATH", "LANG", "PYTHONPATH") if name in os.environ}
        self.environment = {**plain, "HOME": str(place)}
        self.state = place / ".local" / "state" / "redoma"

    def redoma(self, *arguments: str) -> str:
        command = [*self._inside, str(REDOMA), *arguments]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=600 * SLOW)
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

    def processes(self) -> dict[int, int]:
        """All that belong to the node now, also its cells: pid → when it was started."""
        return _family(self.node.pid) if self.node is not None else {}


class Nodes:
    """A cluster of several nodes. The first is the head."""

    def __init__(self, settings: Sequence[str]) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="ray-nodes-"))
        self.machines: list[Machine] = []
        self.killed: dict[int, int] = {}
        """The processes of nodes that were killed: nothing may be left of them either, in the end."""
        try:
            for number, one in enumerate(settings):
                self.machines.append(self._machine(number, one))
            self.head = self.machines[0]
            self.head.redoma("cluster", "start", "--host", self.head.address)
            with ThreadPoolExecutor() as pool:
                list(pool.map(self._join, self.machines[1:]))
        except BaseException:
            self.close()
            raise

    def _machine(self, number: int, settings: str) -> Machine:
        return Machine(self.place / f"m{number}", settings)

    def _join(self, machine: Machine) -> None:
        machine.redoma("cluster", "join", self.head.invitation, "--host", machine.address)

    def close(self) -> None:
        """End all nodes. Nothing may be left of them: neither a process nor Ray's directory."""
        nodes = [(machine.node, machine.processes()) for machine in self.machines]
        for machine in reversed(self.machines):
            machine.redoma("cluster", "stop")
        shutil.rmtree(self.place)
        assert not groups_of(self.killed)
        for node, processes in nodes:
            if node is not None:
                wait_until_gone(node, processes)
                assert not os.path.exists(node.temporary)
                assert not groups_of(processes)


class NodesApart(Nodes):
    """A cluster whose nodes, but for the head, are each in a network namespace of their own, on one bridge. The last is
    bound to one processor. Needs root."""

    def __init__(self, settings: Sequence[str]) -> None:
        self.name = f"rd{secrets.token_hex(2)}"
        self._subnet = f"10.{secrets.randbelow(100) + 100}.{secrets.randbelow(250)}"
        self._last, self._spaces = len(settings) - 1, list[str]()
        _call("ip", "link", "add", self.name, "type", "bridge")
        _call("ip", "address", "add", f"{self._subnet}.1/24", "dev", self.name)
        _call("ip", "link", "set", self.name, "up")
        super().__init__(settings)

    def _machine(self, number: int, settings: str) -> Machine:
        address, inside = f"{self._subnet}.{number + 1}", list[str]()
        if number:
            space, link = f"{self.name}n{number}", f"{self.name}v{number}"
            _call("ip", "netns", "add", space)
            self._spaces.append(space)
            _call("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", space)
            _call("ip", "link", "set", link, "master", self.name, "up")
            _call("ip", "-n", space, "address", "add", f"{address}/24", "dev", "eth0")
            _call("ip", "-n", space, "link", "set", "eth0", "up")
            _call("ip", "-n", space, "link", "set", "lo", "up")
            inside = ["ip", "netns", "exec", space, *(["taskset", "-c", "0"] if number == self._last else [])]
        return Machine(self.place / f"m{number}", settings, inside, address)

    def set_link(self, number: int, *, up: bool) -> None:
        """Cut the network of a node, or connect it again."""
        _call("ip", "link", "set", f"{self.name}v{number}", "up" if up else "down")

    def close(self) -> None:
        try:
            super().close()
        finally:
            for space in self._spaces:
                _call("ip", "netns", "delete", space)
            _call("ip", "link", "delete", self.name)


def _call(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=60 * SLOW)


def wait_until_gone(node: NodeProcess, processes: dict[int, int]) -> None:
    """Wait until nothing is left of a node that had these processes. Raises `AssertionError` if something stays."""
    deadline = time.monotonic() + 60 * SLOW
    while (left := left_of(node, processes)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left


def groups_of(processes: dict[int, int]) -> list[str]:
    """Return the cgroups of cells that these processes have made."""
    place = locate()
    return [] if isinstance(place, Unavailable) else Cgroups(place).of(processes)


def left_of(node: NodeProcess, processes: dict[int, int]) -> dict[int, str]:
    """Return which of a node's processes are alive, and others that use Ray's directory of it: pid → command line."""
    found = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
            state, *_ = fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        is_same = processes.get(pid) == int(fields[19]) and state != "Z"
        if is_same or node.temporary.encode() in line:
            found[pid] = line.replace(b"\0", b" ").decode()[:100]
    return found
