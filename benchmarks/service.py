"""What HTTP adds to a run: the same run in the library and over a service on this machine, taking turns.

    python benchmarks/service.py [--rounds 200] [--clients 8] [--seconds 5] [--calls 20]

One client first: before each run everybody pauses for 10 ms. Then several clients at once, each way for some seconds.
Then `redoma run 'print(1)'` with the user's own service (`redoma serve --user`) and without, beside `python -c`: whole
processes, taking turns, with a pause before each in which the service makes its next cell.

It ends with a verdict on each bar, and with status 1 if one is missed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import redoma
from redoma.config import AuditConfig
from redoma.frontends.http.keys import Keys
from redoma.frontends.http.store import open_store

CODE = "print(6 * 7)"
PAUSE = 0.01
MAX_ADDED = 2.0
"""Milliseconds that HTTP may add to the median, at one client."""
MIN_SHARE = 0.7
"""Part of the library's throughput that HTTP must keep, at several clients."""
MAX_TIMES = 2.5
"""How many times `python -c` a `redoma run` may take, with the user's own service."""


def one(run: Callable[[], redoma.Result]) -> float:
    time.sleep(PAUSE)
    began = time.perf_counter()
    if not run().ok:
        raise RuntimeError("a run did not end well")
    return 1000 * (time.perf_counter() - began)


def many(make: Callable[[], Callable[[], redoma.Result]], clients: int, seconds: float) -> float:
    """Runs a second, by several clients at once."""
    until, done = time.monotonic() + seconds, [0] * clients

    def work(number: int) -> None:
        run = make()
        while time.monotonic() < until:
            if not run().ok:
                raise RuntimeError("a run did not end well")
            done[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(clients)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / (time.monotonic() - began)


def command_line(place: Path, calls: int) -> float:
    """`redoma run` as a process, with and without the user's own service, beside the interpreter alone.

    Returns how many times as long as the interpreter it took, with the service.
    """
    redoma_run = [str(Path(sys.executable).with_name("redoma")), "run", "print(1)"]
    env = {**os.environ, "HOME": str(place), "REDOMA_USER_SOCKET": str(place / "user.sock")}
    ways = {
        "python -c": ([sys.executable, "-c", "print(1)"], env),
        "redoma run, with the service": (redoma_run, env),
        "redoma run, without": (redoma_run, {**env, "REDOMA_USER_SOCKET": ""}),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    with subprocess.Popen([*redoma_run[:1], "serve", "--user"], env=env, stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        service.stdout.readline()
        try:
            for _ in range(calls):
                for name, (words, variables) in ways.items():
                    time.sleep(0.5)
                    began = time.perf_counter()
                    subprocess.run(words, env=variables, check=True, stdout=subprocess.DEVNULL)
                    times[name].append(1000 * (time.perf_counter() - began))
        finally:
            service.terminate()
    bare = statistics.median(times["python -c"])
    for name, found in times.items():
        middle = statistics.median(found)
        print(f"{name:28} p50 {middle:6.1f} ms  {middle / bare:5.2f} of `python -c`")
    return statistics.median(times["redoma run, with the service"]) / bare


def verdict(bars: list[tuple[str, bool]]) -> int:
    """Print whether each bar is met. Return the status of the process."""
    one, _, _ = os.getloadavg()
    print(f"Verdict (load average {one:.1f}, {os.cpu_count()} processors):")
    for about, is_met in bars:
        print(f"  {'met   ' if is_met else 'MISSED'} {about}")
    return 0 if all(is_met for _, is_met in bars) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--calls", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="redoma-service-") as place:
        state = Path(place) / "state"
        _, key = Keys(open_store(state)).create("bench", ["run"], rate=100_000, concurrency=64)
        program = [str(Path(sys.executable).with_name("redoma")), "serve", "--port", "0"]
        env = {**os.environ, "REDOMA_STATE_DIR": str(state)}
        with subprocess.Popen(program, env=env, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            url = server.stdout.readline().split()[-1]
            config = redoma.Config(audit=AuditConfig(directory=Path(place) / "audit"), state=Path(place) / "library")
            try:
                with redoma.Executor(config) as library, redoma.connect(url, key) as client:
                    ways = {"library": lambda: library.run(CODE), "http": lambda: client.run(CODE)}
                    times: dict[str, list[float]] = {name: [] for name in ways}
                    for _ in range(options.rounds):
                        for name, run in ways.items():
                            times[name].append(one(run))
                    for name, found in times.items():
                        middle = statistics.median(found)
                        print(f"{name:8} p50 {middle:6.2f} ms  p90 {statistics.quantiles(found, n=10)[8]:6.2f} ms")
                    added = statistics.median(times["http"]) - statistics.median(times["library"])
                    print(f"HTTP adds {added:.2f} ms to the median")

                    def fresh() -> Callable[[], redoma.Result]:
                        own = redoma.connect(url, key)
                        return lambda: own.run(CODE)

                    made = {"library": lambda: ways["library"], "http": fresh}
                    rates = {name: many(make, options.clients, options.seconds) for name, make in made.items()}
                    share = rates["http"] / rates["library"]
                    print(
                        f"{options.clients} clients: library {rates['library']:.0f}/s, http {rates['http']:.0f}/s "
                        f"({100 * share:.0f}%)"
                    )
            finally:
                server.terminate()
        times_bare = command_line(Path(place), options.calls)
    return verdict(
        [
            (f"HTTP adds {added:.2f} ms to the median at one client; at most {MAX_ADDED:g}", added <= MAX_ADDED),
            (
                f"{options.clients} clients get {100 * share:.0f}% of the library's rate; at least {MIN_SHARE:.0%}",
                share >= MIN_SHARE,
            ),
            (
                f"`redoma run` with the service takes {times_bare:.2f} times `python -c`; at most {MAX_TIMES:g}",
                times_bare <= MAX_TIMES,
            ),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
