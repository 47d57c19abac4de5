"""Run thousands of mixed requests on a cluster of three local Ray nodes while it is being damaged.

    python benchmarks/cluster_faults.py [--runs 5000] [--cut 20]

Each node is in a network namespace of its own, on one bridge. One node is killed in the middle, one is drained, and the
link of the third is cut for some seconds. At the end every run must have exactly one result and one outcome in the
record, and nothing may be left on any node. Needs root, for the namespaces, and some minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import redoma
from redoma.audit import AuditLog
from redoma.backends.ray.processes import read_node
from redoma.config import AuditConfig
from redoma.pipeline.batch import as_they_end

REDOMA = Path(sys.executable).with_name("redoma")
PROGRAMS = [
    ("print(6 * 7)", "python", "ok"),
    ("import time; time.sleep(0.1); print('late')", "python", "ok"),
    ("exit 3", "bash", "error"),
    ("seq 500", "bash", "ok"),
    ("raise ValueError('boom')", "python", "error"),
]


def call(*words: str, **options: Any) -> str:
    return str(subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, **options).stdout)


class Stage:
    """A bridge in this namespace, and a namespace for each further node. The first node, the head, is here."""

    def __init__(self, count: int) -> None:
        self.name = f"rd{secrets.token_hex(2)}"
        self.place = Path(tempfile.mkdtemp(prefix="cluster-faults-"))
        self.homes = [self.place / f"m{number}" for number in range(count)]
        self.subnet = f"10.{secrets.randbelow(100) + 100}.{secrets.randbelow(250)}"
        self.made: list[int] = []

    def __enter__(self) -> Stage:
        call("ip", "link", "add", self.name, "type", "bridge")
        call("ip", "address", "add", f"{self.subnet}.1/24", "dev", self.name)
        call("ip", "link", "set", self.name, "up")
        for number, home in enumerate(self.homes):
            (home / ".config" / "redoma").mkdir(parents=True)
            (home / ".config" / "redoma" / "redoma.yaml").write_text(f"cluster: {{capacity: {4 + 2 * number}}}\n")
            if number:
                self._namespace(number)
        self.redoma(0, "cluster", "start", "--host", f"{self.subnet}.1")
        for number in range(1, len(self.homes)):
            invitation = self.state(0) / "cluster" / "invitation.json"
            self.redoma(number, "cluster", "join", str(invitation), "--host", f"{self.subnet}.{number + 1}")
        return self

    def _namespace(self, number: int) -> None:
        space, link = f"{self.name}n{number}", f"{self.name}v{number}"
        call("ip", "netns", "add", space)
        self.made.append(number)
        call("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", space)
        call("ip", "link", "set", link, "master", self.name, "up")
        call("ip", "-n", space, "address", "add", f"{self.subnet}.{number + 1}/24", "dev", "eth0")
        call("ip", "-n", space, "link", "set", "eth0", "up")
        call("ip", "-n", space, "link", "set", "lo", "up")

    def state(self, number: int) -> Path:
        return self.homes[number] / ".local" / "state" / "redoma"

    def redoma(self, number: int, *words: str) -> str:
        inside = ("ip", "netns", "exec", f"{self.name}n{number}") if number else ()
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.homes[number])}
        return call(*inside, str(REDOMA), *words, env=environment)

    def cut(self, number: int, *, up: bool) -> None:
        call("ip", "link", "set", f"{self.name}v{number}", "up" if up else "down")

    def __exit__(self, *exc: object) -> None:
        for number in reversed(range(len(self.homes))):
            if number == 0 or number in self.made:
                self.redoma(number, "cluster", "stop")
        for number in self.made:
            call("ip", "netns", "delete", f"{self.name}n{number}")
        call("ip", "link", "delete", self.name)
        shutil.rmtree(self.place)


async def damage(stage: Stage, done: Counter[str], runs: int, cut: float) -> None:
    async def until(share: float) -> None:
        while done.total() < share * runs:  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    await until(0.2)
    print(f"{done.total()} done: the link of node 3 is cut for {cut:g} s")
    await asyncio.to_thread(stage.cut, 3, up=False)
    await asyncio.sleep(cut)
    await asyncio.to_thread(stage.cut, 3, up=True)
    await until(0.4)
    print(f"{done.total()} done: node 2 is killed")
    if (node := read_node(stage.state(2) / "cluster")) is not None:
        os.kill(node.pid, signal.SIGKILL)
    await until(0.6)
    status = json.loads(await asyncio.to_thread(stage.redoma, 0, "cluster", "status", "--json"))
    drained = next(each["id"] for each in status if each["address"] == f"{stage.subnet}.2" and each["alive"])
    print(f"{done.total()} done: node 1 is drained")
    await asyncio.to_thread(stage.redoma, 0, "cluster", "drain", drained)


async def run(stage: Stage, runs: int, cut: float) -> bool:
    state = stage.state(0)
    config = redoma.Config(audit=AuditConfig(directory=state / "audit"), state=state)
    done: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    ids: set[str] = set()
    began = time.monotonic()
    async with redoma.AsyncExecutor(config) as executor:

        async def one(number: int) -> None:
            code, language, expected = PROGRAMS[number % len(PROGRAMS)]
            result = await executor.run(code, language, backend="ray", policy="none", limits={"time": 120})
            done[result.status.value] += 1
            ids.add(result.id)
            if result.status.value != expected:
                wrong[f"{result.status.value}: {result.error}"] += 1

        damaging = asyncio.create_task(damage(stage, done, runs, cut))
        async for _ in as_they_end(one, range(runs), 48):
            pass
        await damaging
    seconds = time.monotonic() - began
    log = AuditLog(config.audit.directory)
    records = Counter(record.kind for record in log.records())
    intact = log.verify().ok
    print(f"{runs} runs in {seconds:.0f} s ({runs / seconds:.0f}/s): {dict(done)}; not as expected: {dict(wrong)}")
    print(f"{len(ids)} different results; the record: {dict(records)}, {'intact' if intact else 'DAMAGED'}")
    print(stage.redoma(0, "cluster", "status"))
    return len(ids) == runs == records["intent"] == records["outcome"] and intact and not wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5000)
    parser.add_argument("--cut", type=float, default=20.0)
    options = parser.parse_args()
    with Stage(4) as stage:  # the head, and three further nodes
        good = asyncio.run(run(stage, options.runs, options.cut))
    left = [name for name in os.listdir("/tmp") if name.startswith("ray-of-redoma-")]
    print("every run is accounted for once" if good else "NOT every run is accounted for as expected")
    print(f"left in /tmp: {left or 'nothing'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
