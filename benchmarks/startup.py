"""How long the command line takes to start and answer, beside a bare Python, all in one run.

    python benchmarks/startup.py [--rounds 20] [--beside SRC]

`--beside` names the `src` directory of another version of Redoma, which is then measured in the same rounds. Wall-clock
time depends on what else the machine does; CPU time, of the process and all that it has waited for, much less so. On a
busy machine root can measure as if it were quiet: `chrt -f 1 python benchmarks/startup.py`.
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
"""Milliseconds that each may take on a quiet machine, where a bare Python takes 11 to 20."""
HELP_BAR = 2.5
"""Times as long as `python3 -c pass` that `redoma --help` may take."""
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
    bare, plain = p50(samples[BARE, ""]), p50(samples[PLAIN, ""])
    print(f"{'':37} {'':6}  wall p10, p50       min-max           CPU p10, p50        wall p10, p50 / bare Python")
    for (name, version), values in samples.items():
        low, middle, walls = p10(values), p50(values), [sample.wall for sample in values]
        spread = f"{min(walls):.0f}-{max(walls):.0f}"
        bar = f"  at most {BARS[name]:.0f} ms" if name in BARS else ""
        ratio = f"{low.wall / p10(samples[BARE, '']).wall:5.1f}x {middle.wall / bare.wall:5.1f}x{bar}"
        wall, cpu = f"{low.wall:6.1f} {middle.wall:6.1f} ms", f"{low.cpu:6.1f} {middle.cpu:6.1f} ms"
        print(f"{name:37} {version:6} {wall}  {spread:12} ms {cpu}   {ratio}")
    ratio_of_help = p50(samples["redoma --help", "now"]).wall / plain.wall
    met = "met" if ratio_of_help <= HELP_BAR else "MISSED"
    print(f"\nredoma --help takes {ratio_of_help:.2f} times as long as {PLAIN}; the bar is {HELP_BAR}: {met}")


if __name__ == "__main__":
    main()
