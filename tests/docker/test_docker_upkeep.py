"""What a Redoma leaves in an engine, or finds there: whose it is, and that it goes, whatever else doesn't."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from redoma.backends.docker.engine import labels

_JUDGE = """
import json, os, sys
from redoma.backends.docker.engine import orphaned
os.setgroups([]); os.setgid(65534); os.setuid(65534)
assert not os.path.exists(f"/proc/{os.getppid()}/stat"), "it is not hidden"
print([orphaned(each) for each in json.load(sys.stdin)])
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a /proc that hides processes")
def test_a_process_that_proc_hides_is_alive_all_the_same() -> None:
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    ours = labels()
    hidden = 'mount -t proc -o hidepid=2 proc /proc && exec "$@"'
    told = subprocess.run(
        ["unshare", "--mount", "sh", "-c", hidden, "sh", sys.executable, "-c", _JUDGE],
        input=json.dumps([ours, {**ours, "redoma.pid": str(gone.pid)}, {**ours, "redoma.pid": "9" * 30}]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (told.stdout, told.stderr) == ("[False, True, True]\n", "")
