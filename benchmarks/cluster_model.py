"""How much a cluster can do: measure small ones here, check a simulation against them, and let it tell of larger ones.

    python benchmarks/cluster_model.py --measure measured.json    with 1, 2 and 3 local nodes; as root
    python benchmarks/cluster_model.py measured.json [--plot capacity.svg]

Measured for each cluster, number of runs at a time and kind of work: runs a second, latency, memory, and processor
time, of the client's process and of everything else that belongs to the cluster (by a control group, so that other work
on the machine is not counted).

The simulation is of discrete events. A machine has processors that its work shares equally. A client is one thread: it
works on one run at a time, before it is sent and after it came back. A node runs as many as its capacity, and each of
them takes its processor time and its pauses. Four numbers come from the smallest measurement (one node, runs that do
nothing): from many at a time, processor time of the client and of the node for a run, and how much of the processors
other work on the machine left; from one at a time, the time on the way. Everything else that was measured is compared
with what the simulation says.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import heapq
import itertools
import json
import os
import random
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from processor_time import counted

from ray_nodes import Nodes

PAUSE = 0.05
KINDS = {"nothing": "1", "pauses": f"import time; time.sleep({PAUSE})"}
"""What runs do: nothing, or wait for something that is not a processor."""
AT_A_TIME = (1, 4, 16)
NODES = (1, 2, 3)
CAPACITY = 16


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    nodes: int
    at_a_time: int
    kind: str
    rate: float
    """Runs a second."""
    p50: float
    p95: float
    client: float
    """Seconds of processor time of the client's process for a run."""
    rest: float
    """The same of everything else in the cluster."""
    processors: float
    """How many of them all of this had."""
    memory: float
    """Bytes that a node uses, with the cells that it keeps ready; shared pages in parts."""


# --- measuring ---


def memory(nodes: Nodes) -> float:
    """Return the bytes that a node uses: the mean of all."""
    total = 0
    for pid in {pid for machine in nodes.machines for pid in machine.processes()}:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / len(nodes.machines)


async def measure_one(
    executor: Any, nodes: Nodes, used: Callable[[], float], at_a_time: int, kind: str, seconds: float
) -> Measured:
    times: list[float] = []
    until = time.monotonic() + seconds

    async def worker() -> None:
        while time.monotonic() < until:
            began = time.perf_counter()
            result = await executor.run(KINDS[kind], backend="ray")
            if not result.ok:
                raise RuntimeError(f"a run did not end well: {result.error}")
            times.append(time.perf_counter() - began)

    began, own, everything = time.perf_counter(), time.process_time(), used()
    await asyncio.gather(*(worker() for _ in range(at_a_time)))
    taken, own, everything = time.perf_counter() - began, time.process_time() - own, used() - everything
    cuts = statistics.quantiles(times, n=20)
    return Measured(
        nodes=len(nodes.machines),
        at_a_time=at_a_time,
        kind=kind,
        rate=len(times) / taken,
        p50=statistics.median(times),
        p95=cuts[18],
        client=own / len(times),
        rest=(everything - own) / len(times),
        processors=everything / taken,
        memory=memory(nodes),
    )


def measure(seconds: float) -> list[Measured]:
    import redoma

    found: list[Measured] = []
    with counted() as used:
        for count in NODES:
            nodes = Nodes([f"cluster: {{capacity: {CAPACITY}}}\n"] * count)

            async def all_of(nodes: Nodes = nodes) -> None:
                async with redoma.AsyncExecutor(nodes.head.config) as executor:
                    await executor.run("1", backend="ray")  # to connect
                    for at_a_time in AT_A_TIME:
                        for kind in KINDS:
                            await measure_one(executor, nodes, used, at_a_time, kind, seconds / 4)  # to warm up
                            found.append(await measure_one(executor, nodes, used, at_a_time, kind, seconds))
                            print(found[-1], flush=True)

            try:
                asyncio.run(all_of())
            finally:
                nodes.close()
    return found


# --- simulating ---


class Clock:
    """Events in the order of their times."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), what))

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, what = heapq.heappop(self._events)
            what()
        self.now = until


class Machine:
    """Processors that are shared equally by all work on them; each piece of work uses one at the most."""

    def __init__(self, clock: Clock, processors: float) -> None:
        self._clock, self._processors = clock, processors
        self._work: list[tuple[float, int, Callable[[], None]]] = []
        """When each piece ends, in seconds of service that a piece has had since the beginning."""
        self._served = self._seen = 0.0
        self._numbers, self._version = itertools.count(), 0

    def _share(self) -> float:
        return min(1.0, self._processors / len(self._work)) if self._work else 0.0

    def _advance(self) -> None:
        self._served += (self._clock.now - self._seen) * self._share()
        self._seen = self._clock.now

    def do(self, seconds: float, then: Callable[[], None]) -> None:
        """Call `then` when so much processor time was had."""
        self._advance()
        heapq.heappush(self._work, (self._served + seconds, next(self._numbers), then))
        self._plan()

    def _plan(self) -> None:
        self._version += 1
        if not self._work:
            return
        version, left = self._version, max(0.0, self._work[0][0] - self._served)

        def ends() -> None:
            if version == self._version:
                self._advance()
                _, _, then = heapq.heappop(self._work)
                self._plan()
                then()

        self._clock.at(self._clock.now + left / self._share(), ends)


class Client:
    """One thread on a machine: does one piece of work after the other."""

    def __init__(self, machine: Machine) -> None:
        self._machine, self._waiting, self._busy = machine, deque[tuple[float, Callable[[], None]]](), False

    def do(self, seconds: float, then: Callable[[], None]) -> None:
        self._waiting.append((seconds, then))
        if not self._busy:
            self._next()

    def _next(self) -> None:
        self._busy = bool(self._waiting)
        if self._busy:
            seconds, then = self._waiting.popleft()

            def done() -> None:
                self._next()
                then()

            self._machine.do(seconds, done)


class Node:
    """Runs as many as its capacity; the others wait."""

    def __init__(self, clock: Clock, machine: Machine) -> None:
        self._clock, self._machine = clock, machine
        self.given, self._running, self._waiting = 0, 0, deque[tuple[float, float, Callable[[], None]]]()

    def run(self, seconds: float, pause: float, then: Callable[[], None]) -> None:
        self._waiting.append((seconds, pause, then))
        self._fill()

    def _fill(self) -> None:
        while self._waiting and self._running < CAPACITY:
            seconds, pause, then = self._waiting.popleft()
            self._running += 1

            def ends(then: Callable[[], None] = then) -> None:
                self._running -= 1
                self._fill()
                then()

            def pauses(pause: float = pause, ends: Callable[[], None] = ends) -> None:
                self._clock.at(self._clock.now + pause, ends)

            self._machine.do(seconds, pauses)


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    client: float
    """Processor time of the client for a run, in seconds."""
    node: float
    processors: float
    """How many of the processors of the measured machine there were for this."""
    way: float
    """Seconds from the client to a node and back in which nobody works on the run."""
    poll: float = 0.0
    """Processor time of the client for each question that is waiting at a node, asked anew every 5 s."""

    def client_of(self, nodes: int) -> float:
        """Processor time of a client for a run, if it also has to ask so many nodes for news."""
        return self.client / max(0.01, 1.0 - nodes * self.poll / 5.0)


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What the simulation says of a cluster."""

    rate: float
    p50: float
    p95: float


def simulate(
    costs: Costs,
    *,
    nodes: int,
    clients: int,
    at_a_time: int,
    pause: float,
    shared: bool,
    processors: float,
    runs: int = 4000,
) -> Said:
    """Simulate `at_a_time` runs for each of some clients. `shared`: all are on one machine, as in the measurements."""
    clock, chance = Clock(), random.Random(1)
    one = Machine(clock, processors)
    made = [Node(clock, one if shared else Machine(clock, processors)) for _ in range(nodes)]
    times: list[float] = []
    ends: list[float] = []
    half_of_client = costs.client_of(0 if shared else nodes) / 2

    def begin(client: Client) -> None:
        began = clock.now

        def sent() -> None:
            # A client knows what it has sent itself, and what others had there when it last heard of it.
            few = chance.sample(made, min(nodes, 8))
            node = min(few, key=lambda node: node.given)
            node.given += 1

            def came_back() -> None:
                node.given -= 1
                client.do(half_of_client, done)

            def arrived() -> None:
                exact = chance.expovariate(1 / costs.node)  # no two runs are alike
                node.run(exact, pause, lambda: clock.at(clock.now + costs.way / 2, came_back))

            clock.at(clock.now + costs.way / 2, arrived)

        def done() -> None:
            times.append(clock.now - began)
            ends.append(clock.now)
            begin(client)

        client.do(half_of_client, sent)

    for _ in range(clients):
        client = Client(one if shared else Machine(clock, processors))
        for _ in range(at_a_time):
            begin(client)
    step = 0.1
    while len(times) < runs and clock.now < 600:
        clock.run(clock.now + step)
    half = len(times) // 2  # the beginning is not like the rest
    times, ends = times[half:], ends[half:]
    cuts = statistics.quantiles(times, n=20)
    return Said(rate=(len(times) - 1) / (ends[-1] - ends[0]), p50=statistics.median(times), p95=cuts[18])


# --- what follows ---


def costs_of(found: list[Measured]) -> Costs:
    def measured(at_a_time: int) -> Measured:
        return next(m for m in found if (m.nodes, m.at_a_time, m.kind) == (1, at_a_time, "nothing"))

    many, alone = measured(AT_A_TIME[-1]), measured(1)
    # One alone doesn't wait for what a node does after it has answered: to make the next cell.
    before_answer = 0.35 * many.rest
    way = max(0.0, alone.p50 - alone.client - before_answer)
    return Costs(client=many.client, node=many.rest, processors=many.processors, way=way, poll=many.client / 4)


def compare(found: list[Measured], costs: Costs) -> None:
    print(f"client {1000 * costs.client:.2f} ms, node {1000 * costs.node:.2f} ms of processor time a run, ", end="")
    print(f"{1000 * costs.way:.2f} ms on the way; {costs.processors:.2f} processors were to be had\n")
    print("nodes  at a time  kind     runs a second: measured  simulated  error   p50 ms: measured  simulated")
    for each in found:
        pause = PAUSE if each.kind == "pauses" else 0.0
        said = simulate(
            costs,
            nodes=each.nodes,
            clients=1,
            at_a_time=each.at_a_time,
            pause=pause,
            shared=True,
            processors=costs.processors,
        )
        print(
            f"{each.nodes:5}  {each.at_a_time:9}  {each.kind:8} {each.rate:23.1f} {said.rate:10.1f} "
            f"{100 * (said.rate / each.rate - 1):+5.0f} %  {1000 * each.p50:16.1f} {1000 * said.p50:10.1f}"
        )


def larger(costs: Costs) -> list[tuple[int, int, str, Said]]:
    """Clusters whose nodes are machines with 4 processors, and whose clients are machines of their own."""
    found = []
    print("\nnodes (4 processors each)  clients  kind     runs a second    p50 ms    p95 ms")
    for nodes in (1, 3, 10, 30, 100, 300, 1000):
        for clients in sorted({1, max(1, nodes // 4), nodes}):
            for kind in KINDS if nodes <= 10 else ("nothing",):
                said = simulate(
                    costs,
                    nodes=nodes,
                    clients=clients,
                    at_a_time=min(512, max(16, CAPACITY * nodes // clients)),
                    pause=PAUSE if kind == "pauses" else 0.0,
                    shared=False,
                    processors=4,
                    runs=max(4000, 20 * nodes),
                )
                found.append((nodes, clients, kind, said))
                rates = f"{said.rate:14.0f} {1000 * said.p50:9.1f} {1000 * said.p95:9.1f}"
                print(f"{nodes:25}  {clients:7}  {kind:8} {rates}", flush=True)
    return found


def plot(rows: list[tuple[int, int, str, Said]], costs: Costs, target: str) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    styles = {"one client": "o-", "a client for 4 nodes": "s-", "a client for each node": "^-"}
    for name, style in styles.items():
        divide = {"one client": 0, "a client for 4 nodes": 4, "a client for each node": 1}[name]
        points = [
            (nodes, said.rate)
            for nodes, clients, kind, said in rows
            if kind == "nothing" and clients == (max(1, nodes // divide) if divide else 1)
        ]
        axes.plot(*zip(*sorted(set(points)), strict=True), style, label=name, linewidth=1.5, markersize=4)
    counts = sorted({nodes for nodes, *_ in rows})
    axes.plot(counts, [nodes * 4 / costs.node for nodes in counts], ":", color="gray", label="what the nodes could do")
    axes.set(xscale="log", yscale="log", xlabel="nodes with 4 processors", ylabel="runs a second (simulated)")
    axes.grid(visible=True, which="major", linewidth=0.3)
    axes.legend(frameon=False)
    figure.savefig(target, metadata={"Date": None})
    print(f"\nwrote {target}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", help="what was measured")
    parser.add_argument("--measure", metavar="FILE", help="measure, and write it to this file")
    parser.add_argument("--seconds", type=float, default=8.0, help="for each measurement")
    parser.add_argument("--plot", metavar="FILE.svg", help="draw runs a second against nodes")
    options = parser.parse_args()
    if options.measure:
        print(f"load average before: {os.getloadavg()[0]:.1f}")
        Path(options.measure).write_bytes(msgspec.json.format(msgspec.json.encode(measure(options.seconds))))
        return 0
    if not options.file:
        parser.error("name the file with what was measured, or use --measure")
    found = msgspec.convert(json.loads(Path(options.file).read_text()), list[Measured])
    costs = costs_of(found)
    compare(found, costs)
    rows = larger(costs)
    if options.plot:
        plot(rows, costs, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
