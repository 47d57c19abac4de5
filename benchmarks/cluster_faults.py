"""Run thousands of mixed requests on a cluster of local Ray nodes while it is being damaged: see tests/ray_faults.py.

    python benchmarks/cluster_faults.py [--runs 5000] [--cut 20]

The link of one node is cut for some seconds, one node is killed and one is drained. Every run must have exactly one
result and one outcome in the record, the node that was cut off must work again, and nothing may be left on any node.
Needs root, for the network namespaces, and some minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import redoma
from ray_faults import SETTINGS, Report, faults
from ray_nodes import NodesApart


async def run(nodes: NodesApart, runs: int, cut: float) -> Report:
    async with redoma.AsyncExecutor(nodes.head.config) as executor:
        return await faults(nodes, executor, runs, cut)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5000)
    parser.add_argument("--cut", type=float, default=20.0)
    options = parser.parse_args()
    nodes = NodesApart(SETTINGS)
    try:
        report = asyncio.run(run(nodes, options.runs, options.cut))
        print(nodes.head.redoma("cluster", "status"))
    finally:
        nodes.close()  # which fails if anything is left
    rate = report.runs / report.seconds
    print(f"load average {os.getloadavg()[0]:.1f}; {report.runs} runs in {report.seconds:.0f} s ({rate:.0f}/s)")
    print(f"{report.statuses}; not as expected: {report.unexpected or 'none'}; {report.ids} different results")
    print(f"the record has {report.records}, and is {'intact' if report.intact else 'DAMAGED'}")
    print("; ".join(f"{phase}: {found:.0f}/s" for phase, found in report.rates.items()))
    print(f"the node that was cut off made {report.after_cut} runs afterwards; nothing is left of any node")
    print("every run is accounted for once" if report.good else "NOT every run is accounted for as expected")
    return 0 if report.good else 1


if __name__ == "__main__":
    sys.exit(main())
