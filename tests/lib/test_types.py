"""Types that several threads use for the first time at once."""

from __future__ import annotations

import subprocess
import sys

from pace import SLOW

FIRST = """
import sys, threading
from pathlib import Path
from redoma.config import AuditConfig, Config
from redoma.pipeline import intake

config, begin, made = Config(audit=AuditConfig(directory=Path("/nowhere"))), threading.Barrier(8), []
def build():
    begin.wait()
    sys.setswitchinterval(1e-6)
    options = {"args": ["a"], "network": ["api.test"]}
    made.append(intake.build(config, ("jail",), options, code="1", language="python").argv)
threads = [threading.Thread(target=build) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(made == [("a",)] * 8)
"""


def test_the_first_requests_of_a_process_can_be_made_by_many_threads() -> None:
    """Without `resolved`, every other try ended with a segmentation fault of msgspec."""
    for _ in range(4):
        done = subprocess.run(
            [sys.executable, "-c", FIRST], capture_output=True, text=True, check=False, timeout=60 * SLOW
        )
        assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
