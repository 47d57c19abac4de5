"""What a request costs beside what it runs: the stages around a backend that runs nothing, `native` beside a bare
`subprocess.run`, and what runs in an armed cell: Python, Bash and a command.

    python benchmarks/pipeline.py [--beside OTHER/src] [--rounds 200] [--only jail,bash]

With `--beside`, another source tree of Redoma takes turns with this one, in the same run. Each tree has a process of
its own; before each run everybody pauses for 30 ms, as a user does between two runs (caches and the clock rate of the
processor are then what they are for a user). Processor time is that of all threads of the process, and of the children
it has waited for; cells and their zygote are not among those. On a busy machine, `chrt -f 1` keeps others away.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

PAUSE = 0.03
HERE = Path(__file__).resolve().parents[1] / "src"
NAMES = ("fake", "native", "subprocess", "jail", "bash", "command")


def work() -> None:
    """In a process of its own: measure what each line of input names, once."""
    from redoma import Config, Executor, FakeBackend
    from redoma.backends.jail import JailBackend
    from redoma.backends.native.backend import NativeBackend
    from redoma.config import AuditConfig

    with tempfile.TemporaryDirectory(prefix="redoma-pipeline-") as place:
        config = Config(audit=AuditConfig(directory=Path(place) / "audit"), state=Path(place) / "state")
        with Executor(config, backends=[FakeBackend(), NativeBackend(), JailBackend()]) as executor:
            true = {"PATH": "/usr/bin:/bin"}
            runs: dict[str, Callable[[], object]] = {
                "fake": lambda: executor.run("print('hello')", backend="fake").ok,
                "native": lambda: executor.command(["true"], backend="native", env=true).ok,
                "subprocess": lambda: subprocess.run(["true"], env=true, capture_output=True, check=True),
                "jail": lambda: executor.run("print('hello')", backend="jail").ok,
                "bash": lambda: executor.run("echo hello", "bash", backend="jail").ok,
                "command": lambda: executor.command(["echo", "hello"], backend="jail").ok,
            }
            for line in sys.stdin:
                time.sleep(PAUSE)
                before, began = processor_time(), time.perf_counter()
                if not runs[line.strip()]():
                    raise RuntimeError(f"{line.strip()} did not end well")
                wall = time.perf_counter() - began
                print(json.dumps([wall * 1e6, (processor_time() - before) * 1e6]), flush=True)


def processor_time() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


class Tree:
    """One source tree, in its own process."""

    def __init__(self, source: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(source)}
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--work"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def measure(self, name: str) -> list[float]:
        assert self._process.stdin
        assert self._process.stdout
        print(name, file=self._process.stdin, flush=True)
        return list(json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--beside", type=Path)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--only", type=lambda text: tuple(text.split(",")), default=NAMES, help=", ".join(NAMES))
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work()
        return
    trees = {"this": Tree(HERE), **({"beside": Tree(given.beside)} if given.beside else {})}
    turns = [(tree, name) for tree in trees for name in given.only]
    taken: dict[tuple[str, str], list[list[float]]] = {turn: [] for turn in turns}
    order = random.Random(3)
    for number in range(given.rounds + 5):
        order.shuffle(turns)
        for tree, name in turns:
            measured = trees[tree].measure(name)
            if number >= 5:  # the first few are to warm up
                taken[tree, name].append(measured)
    for each in trees.values():
        each.close()
    print(f"{'µs':20}{'p10':>9}{'p50':>9}{'p90':>9}{'CPU p50':>10}")
    for (tree, name), values in taken.items():
        walls, processor = (sorted(column) for column in zip(*values, strict=True))
        at = [walls[int(len(walls) * share)] for share in (0.1, 0.5, 0.9)]
        print(
            f"{tree + ', ' + name:20}" + "".join(f"{each:9.0f}" for each in at) + f"{processor[len(walls) // 2]:10.0f}"
        )


if __name__ == "__main__":
    main()
