"""Numbers for Prometheus: what is counted, how many series there can be, and how they are fetched."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from telemetry_stage import ASKING, TALKATIVE, WORD, Broken, answer, full_of, tells

import redoma
from redoma import Answer, AsyncExecutor, Config, FakeBackend, InvalidRequest, RedomaError
from redoma.approval import Callback
from redoma.backends.jail import JailBackend
from redoma.config import PolicyConfig
from redoma.lib.extras import pip_install
from redoma.telemetry import metrics


def numbers() -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample, as Prometheus reads it."""
    families = text_string_to_metric_families(metrics.text())
    return {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}


class Since:
    """How much each number has grown: they are those of the process, and other tests ran in it."""

    def __init__(self) -> None:
        self._before = numbers()

    def __call__(self, name: str, **labels: str) -> float:
        key = name, frozenset(labels.items())
        return numbers().get(key, 0.0) - self._before.get(key, 0.0)


async def test_runs_decisions_approvals_redactions_and_records_are_counted(config: Config, tmp_path: Path) -> None:
    settings = msgspec.structs.replace(config, state=tmp_path / "state", policy=PolicyConfig(rules=(ASKING,)))
    printing = FakeBackend(Answer(stdout="mail ana@example.com and a token xyzzy-4711"))
    since = Since()
    async with AsyncExecutor(settings, backends=[printing, Broken()], approver=Callback(answer)) as executor:
        await executor.run("1", backend="fake", secrets={"TOKEN": "xyzzy-4711"})
        await executor.run("deploy", "bash", backend="fake")
        await executor.run("rm -rf /", "bash")
        await executor.run("1", backend="broken")
    runs = "redoma_runs_total"
    assert since(runs, backend="fake", status="ok", language="python") == 1
    assert since(runs, backend="fake", status="ok", language="bash") == 1
    assert since(runs, backend="none", status="forbidden", language="bash") == 1
    assert since(runs, backend="broken", status="failed", language="python") == 1
    assert [since("redoma_decisions_total", decision=one) for one in ("allow", "prompt", "forbid")] == [2, 1, 1]
    assert since("redoma_approvals_total", outcome="approved") == 1
    assert since("redoma_redactions_total", kind="known-secret") == 1
    assert since("redoma_audit_records_total", kind="intent") == 4
    assert since("redoma_audit_records_total", kind="approval.used") == 1
    assert since("redoma_run_seconds_count", backend="fake") == 2
    assert since("redoma_run_seconds_bucket", backend="fake", le="+Inf") == 2
    assert since("redoma_run_seconds_sum", backend="fake") > 0
    assert since("redoma_policy_seconds_count") == 4
    assert since("redoma_events_total", event="run.ended") == 4
    assert numbers()["redoma_running", frozenset()] == 0


async def test_what_runs_and_what_is_kept_ready_is_a_gauge(config: Config, nothing_left_behind: None) -> None:
    def pool(state: str) -> float:
        return numbers().get(("redoma_pool", frozenset({("backend", "jail"), ("state", state)})), 0.0)

    before = pool("running")
    async with AsyncExecutor(config, backends=[JailBackend(minimum=1)]) as executor:
        async with executor.stream("import time; print(1, flush=True); time.sleep(30)") as run:
            async for _ in run:
                assert numbers()["redoma_running", frozenset()] == 1
                assert pool("running") == before + 1
                break
    assert numbers()["redoma_running", frozenset()] == 0
    assert pool("running") == before


async def test_no_label_has_a_value_that_a_request_has_chosen(config: Config) -> None:
    async with AsyncExecutor(config, backends=[TALKATIVE]) as executor:
        await executor.run(f"print({WORD!r})", backend="talkative", **full_of(WORD))
        await executor.command(["deploy", WORD], backend="talkative", **full_of(WORD))
    assert not tells(metrics.text())


def test_a_metric_has_a_bounded_number_of_series_whatever_it_is_given() -> None:
    counter = metrics.Counter("some", "thing", "one", "two", max_series=10)
    histogram = metrics.Histogram("some", "time", "one", max_series=10)
    for number in range(1000):
        counter.add(f"{number}", "x")
        histogram.observe(number, f"{number}")
    assert len(counter.collect().samples) == 11
    assert (counter.value("0", "x"), counter.value("other", "other")) == (1, 990)
    assert len({sample.labels["one"] for sample in histogram.collect().samples}) == 11
    assert histogram.count("other") == 990


def test_a_hostile_label_is_one_sample_and_not_two(monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = 'x"} 1\nredoma_runs_total{backend="forged'
    monkeypatch.setattr(metrics.RUNS, "_values", {})
    metrics.RUNS.add(hostile, "ok", "python")
    (sample,) = [key for key in numbers() if key[0] == "redoma_runs_total"]
    assert dict(sample[1])["backend"] == hostile


def test_buckets_add_up() -> None:
    histogram = metrics.Histogram("some", "time")
    for seconds in (0.0005, 0.001, 0.3, 1000.0):
        histogram.observe(seconds)
    buckets = {one.labels["le"]: one.value for one in histogram.collect().samples if one.name.endswith("_bucket")}
    assert (buckets["0.001"], buckets["0.25"], buckets["0.5"], buckets["300.0"], buckets["+Inf"]) == (2, 2, 3, 3, 4)


def test_prometheus_fetches_them_until_the_server_is_closed() -> None:
    with redoma.metrics.serve("127.0.0.1:0") as server:
        with urllib.request.urlopen(server.url) as answer:  # noqa: S310 - ours
            text = answer.read().decode()
        assert server.address.startswith("127.0.0.1:")
        with pytest.raises(RedomaError, match="can't be served"):
            redoma.metrics.serve(server.address)
    assert f'redoma_info{{version="{redoma.__version__}"}} 1.0' in text
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(server.url, timeout=5)  # noqa: S310 - ours
    server.close()
    redoma.metrics.serve(server.address).close()  # the port is free again


@pytest.mark.parametrize("address", ["", "9464", ":9464", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:65536", "a:²"])
def test_what_is_no_address_is_told(address: str) -> None:
    with pytest.raises(InvalidRequest, match="is not an address"):
        redoma.metrics.serve(address)


def test_an_application_can_have_them_among_its_own() -> None:
    theirs = CollectorRegistry(auto_describe=True)
    theirs.register(redoma.metrics.COLLECTOR)
    assert b"redoma_runs_total" in generate_latest(theirs)


def test_without_the_library_runs_are_counted_and_showing_them_says_what_to_install(config: Config) -> None:
    script = f"""
import sys
from pathlib import Path
sys.modules["prometheus_client"] = None
import redoma
from redoma.config import AuditConfig
config = redoma.Config(audit=AuditConfig(directory=Path({str(config.audit.directory)!r})))
with redoma.Executor(config, backends=[redoma.FakeBackend()]) as executor:
    print(executor.run("1", backend="fake").status.value, redoma.metrics.RUNS.value("fake", "ok", "python"))
for show in (redoma.metrics.text, redoma.metrics.serve):
    try:
        show()
    except redoma.RedomaError as error:
        print(error.next)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["ok 1", *[pip_install("redoma[metrics]")] * 2]


def test_a_child_that_was_forked_while_somebody_counted_can_count() -> None:
    script = """
import os, threading
from redoma.telemetry import metrics
held, done = threading.Event(), threading.Event()
def hold():
    with metrics._lock:
        held.set()
        done.wait()
threading.Thread(target=hold, daemon=True).start()
held.wait()
child = os.fork()
if child == 0:
    metrics.RUNS.add("a", "b", "c")
    os._exit(0)
print(os.waitpid(child, 0)[1])
done.set()
"""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script]
    assert subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout == "0\n"
