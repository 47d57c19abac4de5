"""How long the command line takes to start and answer, and `native` in the library, beside a bare Python and a bare
subprocess, all in one run. At the end each bar, with a verdict.

    python benchmarks/startup.py [--rounds 20] [--beside SRC]

`--beside` names the `src` directory of another version of Redoma, which is then measured in the same rounds. Wall-clock
time depends on what else the machine does; CPU time, of the process and all that it has waited for, much less so. On a
busy machine root can measure as if it were quiet: `chrt -f 1 python benchmarks/startup.py`.

The bars in milliseconds are for a machine on which `python3 -c pass` takes 11 to 20. A slower one is told by the ratio:
the same bar, as a multiple of 20 ms.
"""

from __future__ import annotations

import argparse
import compileall
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

BARE = "python3 -I -S -c 'print(1)'"
PLAIN = "python3 -c pass"
BARS = {
    "redoma run 'print(1)'": 120.0,
    "redoma eval '2 + 2'": 150.0,
    "redoma exec --backend native -- true": 90.0,
}
"""Milliseconds that each may take on a quiet machine, where `python3 -c pass` takes 11 to 20."""
SLOWEST = 20.0
HELP_BAR = 2.5
"""Times as long as `python3 -c pass` that `redoma --help` may take."""
LIBRARY_BAR = 3.0
"""Times as long as a bare subprocess that `true` may take on `native`, in a process that has loaded Redoma."""
SUBPROCESS, LIBRARY = "subprocess.run(['true'])", "executor.command(['true'], backend='native')"
IN_ONE_PROCESS = """
import subprocess, sys, time
from redoma import Executor
with Executor() as executor:
    def ours():
        assert executor.command(["true"], backend="native").ok
    def bare():
        subprocess.run(["true"], check=True, stdin=subprocess.DEVNULL, capture_output=True)
    for call in (ours, bare) * 20:
        call()
    for _ in range(int(sys.argv[1])):
        for call in (bare, ours):
            begun = time.perf_counter()
            call()
            print((time.perf_counter() - begun) * 1000, end=" ")
"""
CALLS = {
    "redoma --help": ["-m", "redoma", "--help"],
    "import redoma": ["-c", "import redoma"],
    "redoma run 'print(1)'": ["-m", "redoma", "run", "print(1)"],
    "redoma eval '2 + 2'": ["-m", "redoma", "eval", "2 + 2"],
    "redoma exec --backend native -- true": ["-m", "redoma", "exec", "--backend", "native", "--", "true"],
}


class Sample(NamedTuple):
    wall: float
    cpu: float


def once(command: list[str], environment: dict[str, str]) -> Sample:
    """Milliseconds that a command takes."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command} exited with {process.returncode}")
    return Sample(wall * 1000, (usage.ru_utime + usage.ru_stime) * 1000)


def measure(versions: dict[str, str], state: str, rounds: int) -> dict[tuple[str, str], list[Sample]]:
    """Samples of each call with each version, interleaved: whatever else the machine does hits all of them alike."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    work = [(BARE, "", [sys.executable, "-I", "-S", "-c", "print(1)"], plain)]
    work.append((PLAIN, "", [sys.executable, "-c", "pass"], plain))
    for version, source in versions.items():
        compileall.compile_dir(source, quiet=2)
        environment = {**plain, "PYTHONPATH": source, "REDOMA_STATE_DIR": f"{state}/{version}"}
        work += [(name, version, [sys.executable, *words], environment) for name, words in CALLS.items()]
    samples: dict[tuple[str, str], list[Sample]] = {(name, version): [] for name, version, _, _ in work}
    for number in range(rounds + 1):
        for name, version, command, environment in work:
            sample = once(command, environment)
            if number:  # the first one fills the caches
                samples[name, version].append(sample)
    return samples


def in_the_library(source: str, state: str, rounds: int) -> tuple[list[float], list[float]]:
    """Milliseconds of a bare subprocess and of `native` for the same command, by turns in one process."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment = {**plain, "PYTHONPATH": source, "REDOMA_STATE_DIR": f"{state}/library"}
    command = [sys.executable, "-c", IN_ONE_PROCESS, str(rounds)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    times = [float(word) for word in done.stdout.split()]
    return times[::2], times[1::2]


def verdict(what: str, taken: str, bar: str, *, met: bool) -> None:
    print(f"{'met' if met else 'MISSED':7} {what:45} {taken:28} bar: {bar}")


def p50(samples: list[Sample]) -> Sample:
    return Sample(*(statistics.median(values) for values in zip(*samples, strict=True)))


def p10(samples: list[Sample]) -> Sample:
    return Sample(*(sorted(values)[len(values) // 10] for values in zip(*samples, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--beside", type=Path, metavar="SRC")
    given = parser.parse_args()
    versions = {"before": str(given.beside.resolve())} if given.beside else {}
    versions["now"] = str(Path(__file__).resolve().parent.parent / "src")
    with tempfile.TemporaryDirectory() as state:
        samples = measure(versions, state, given.rounds)
        bare_calls, library_calls = in_the_library(versions["now"], state, 10 * given.rounds)
    bare, plain = p50(samples[BARE, ""]), p50(samples[PLAIN, ""])
    print(f"{'':37} {'':6}  wall p10, p50       min-max           CPU p10, p50        wall p10, p50 / bare Python")
    for (name, version), values in samples.items():
        low, middle, walls = p10(values), p50(values), [sample.wall for sample in values]
        spread = f"{min(walls):.0f}-{max(walls):.0f}"
        ratio = f"{low.wall / p10(samples[BARE, '']).wall:5.1f}x {middle.wall / bare.wall:5.1f}x"
        wall, cpu = f"{low.wall:6.1f} {middle.wall:6.1f} ms", f"{low.cpu:6.1f} {middle.cpu:6.1f} ms"
        print(f"{name:37} {version:6} {wall}  {spread:12} ms {cpu}   {ratio}")
    load = os.getloadavg()[0]
    print(f"\n{PLAIN} takes {plain.wall:.1f} ms; the load is {load:.1f}. All are p50 of the wall-clock time.")
    for name, bar in BARS.items():
        middle = p50(samples[name, "now"])
        allowed = bar * max(1.0, plain.wall / SLOWEST)
        taken = f"{middle.wall:.0f} ms, {middle.wall / plain.wall:.1f}x python3"
        verdict(
            name, taken, f"{bar:.0f} ms, or {bar / SLOWEST:.1f}x where python3 is slower", met=middle.wall <= allowed
        )
    ratio_of_help = p50(samples["redoma --help", "now"]).wall / plain.wall
    verdict("redoma --help", f"{ratio_of_help:.2f}x python3", f"{HELP_BAR}x", met=ratio_of_help <= HELP_BAR)
    ours, theirs = statistics.median(library_calls), statistics.median(bare_calls)
    taken = f"{ours:.2f} ms, {ours / theirs:.2f}x {theirs:.2f} ms"
    verdict(LIBRARY, taken, f"{LIBRARY_BAR:.0f}x {SUBPROCESS}", met=ours <= LIBRARY_BAR * theirs)


if __name__ == "__main__":
    main()
