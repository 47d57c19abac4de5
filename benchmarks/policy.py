"""How long a verdict takes, side by side with the cheapest thing that could be done instead.

    python benchmarks/policy.py

Python sources stand beside `ast.parse` alone, Bash sources beside `bash -n` in a process of its own, in the same
run. The promise is a median under 1 ms for a typical script.

"all stages" is what a request costs on its way to a person: evaluation, level, embedded secrets and executed files,
which share one reading of the source. CPU time of this thread.
"""

from __future__ import annotations

import ast
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable

from redoma.models import Language, Request
from redoma.models.reach import NOTHING
from redoma.policy import Policy, Reading, evaluate, level_of, load, secrets_in
from redoma.policy.executed import executes

PYTHON_REPORT = """\
import csv
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Row:
    name: str
    amount: float


def read(path: Path) -> list[Row]:
    with path.open(newline="") as handle:
        return [Row(line["name"], float(line["amount"])) for line in csv.DictReader(handle)]


def summarise(rows: list[Row]) -> dict[str, float]:
    totals: Counter[str] = Counter()
    for row in rows:
        totals[row.name] += row.amount
    return {name: round(total, 2) for name, total in totals.most_common(10)}


if __name__ == "__main__":
    rows = read(Path("data.csv"))
    print(json.dumps(summarise(rows), indent=2))
    print(f"{len(rows)} rows, {sum(row.amount for row in rows):.2f} in all")
"""

PYTHON_TOOLS = """\
import os
import subprocess
import sys


def changed(base):
    done = subprocess.run(["git", "diff", "--name-only", base], capture_output=True, text=True, check=True)
    return [name for name in done.stdout.splitlines() if name.endswith(".py")]


def main():
    base = sys.argv[1] if len(sys.argv) > 1 else "HEAD~1"
    files = changed(base)
    if not files:
        print("nothing changed")
        return 0
    os.makedirs("build", exist_ok=True)
    with open(os.path.join("build", "changed.txt"), "w") as handle:
        handle.write("\\n".join(files))
    return subprocess.run(["ruff", "check", *files]).returncode


sys.exit(main())
"""

BASH_BUILD = """\
#!/usr/bin/env bash
set -euo pipefail
cd "$(dirname "$0")/.."
out=build/report
mkdir -p "$out"
for file in src/*.txt; do
  name=$(basename "$file" .txt)
  if [[ -s $file ]]; then
    sort "$file" | uniq -c | sort -rn | head -20 > "$out/$name.top"
  else
    echo "empty: $file" >&2
  fi
done
count=$(find "$out" -name '*.top' | wc -l)
if (( count == 0 )); then
  echo "nothing to do"
  exit 1
fi
tar -czf "$out.tar.gz" -C build report
echo "wrote $count files"
"""

SOURCES: dict[str, tuple[Language, str]] = {
    "python, 30 lines, data": ("python", PYTHON_REPORT),
    "python, 25 lines, subprocess": ("python", PYTHON_TOOLS),
    "bash, 20 lines": ("bash", BASH_BUILD),
    "bash, one line": ("bash", "git status --short | grep '^ M' | cut -c4-"),
}


def timed(action: Callable[[], object], repeat: int, *, clock: Callable[[], float] = time.perf_counter) -> list[float]:
    """Milliseconds of each of `repeat` calls, after a few to warm up."""
    for _ in range(3):
        action()
    times = []
    for _ in range(repeat):
        start = clock()
        action()
        times.append((clock() - start) * 1000)
    return sorted(times)


def all_stages(policy: Policy, request: Request) -> None:
    """Everything that the pipeline asks policy about one request, in a cell."""
    reading = Reading(request)
    evaluation = evaluate(policy, request, reach=NOTHING, reading=reading)
    level_of(request, evaluation, reading=reading)
    secrets_in(policy, request)
    executes(request, reading=reading)


def main() -> None:
    policy = load("standard")
    bash = shutil.which("bash")
    print(f"{'source':32}{'p50 ms':>9}{'p95 ms':>9}{'all stages':>12}   beside")
    for name, (language, source) in SOURCES.items():
        request = Request(code=source, language=language)
        times = timed(lambda request=request: evaluate(policy, request), 300)  # type: ignore[misc]
        median, late = statistics.median(times), times[int(len(times) * 0.95)]
        every = timed(lambda request=request: all_stages(policy, request), 300, clock=time.thread_time)  # type: ignore[misc]
        if language == "python":
            other = statistics.median(timed(lambda source=source: ast.parse(source), 300))  # type: ignore[misc]
            beside = f"ast.parse {other:.3f} ms, {median / other:.1f} times as long"
        elif bash:
            command = [bash, "-n", "-c", source]
            other = statistics.median(timed(lambda command=command: subprocess.run(command, check=False), 30))  # type: ignore[misc]
            beside = f"bash -n {other:.3f} ms, {other / median:.1f} times faster than it"
        else:
            beside = "bash is not here"
        print(f"{name:32}{median:9.3f}{late:9.3f}{statistics.median(every):12.3f}   {beside}")


if __name__ == "__main__":
    main()
