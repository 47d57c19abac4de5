"""How long the first answer takes: `redoma --help` and `import redoma`, beside a bare `python3 -c pass`, in one run.

python benchmarks/startup.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

ROUNDS = 40
BAR = 2.5

COMMANDS = {
    "python3 -c pass": [sys.executable, "-c", "pass"],
    "redoma --help": [str(Path(sys.executable).with_name("redoma")), "--help"],
    "import redoma": [sys.executable, "-c", "import redoma"],
    "import click": [sys.executable, "-c", "import click"],
    "redoma eval '2 + 2'": [str(Path(sys.executable).with_name("redoma")), "eval", "2 + 2"],
}


def measure() -> dict[str, list[float]]:
    """Milliseconds of each, interleaved: whatever else the machine does hits all of them alike."""
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(ROUNDS):
        for name, command in COMMANDS.items():
            start = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            times[name].append((time.perf_counter() - start) * 1000)
    return times


def main() -> None:
    times = measure()
    base = statistics.median(times["python3 -c pass"])
    for name, values in times.items():
        p50 = statistics.median(values)
        print(
            f"{name:22} p50 {p50:7.1f} ms   p95 {sorted(values)[int(len(values) * 0.95)]:7.1f} ms   {p50 / base:5.2f}x"
        )
    ratio = statistics.median(times["redoma --help"]) / base
    print(
        f"\nredoma --help is {ratio:.2f}x of python3 -c pass; the bar is {BAR}x: {'met' if ratio <= BAR else 'MISSED'}"
    )


if __name__ == "__main__":
    main()
