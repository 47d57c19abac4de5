"""Metrics of this process, for Prometheus.

    from redoma import metrics                         # pip install 'redoma[metrics]'
    metrics.text()                                     # as Prometheus reads it
    with metrics.serve("127.0.0.1:9464"): …            # for it to fetch
    prometheus_client.REGISTRY.register(metrics.COLLECTOR)   # among an application's own

They are always counted, without a library: importing `prometheus_client` takes longer than many runs, and counting a
run takes a few microseconds. The library only formats them, in our own registry, on request.

A label only has values that are ours, such as a status, or the configuration's, such as the name of a check, and the
number of series of a metric is bounded: no requester, no rule, no name that a request has chosen.
"""

from __future__ import annotations

import bisect
import itertools
import os
import threading
import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from ..lib.errors import InvalidRequest, RedomaError
from ..lib.extras import pip_install

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

T = TypeVar("T")
OTHER = "other"
"""The value of every label once a metric has its maximum number of series."""
DEFAULT_ADDRESS = "127.0.0.1:9464"
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

# Re-entrant: a run that was dropped with its loop ends when the garbage collector runs, which can be at any point.
_lock = threading.RLock()


def _in_forked_child() -> None:
    global _lock
    _lock = threading.RLock()  # the old one may be held by a thread that doesn't exist in the child


os.register_at_fork(after_in_child=_in_forked_child)


class _Metric(Generic[T]):
    """A value for each combination of labels, at most `max_series`; later ones are counted as `OTHER`."""

    def __init__(self, name: str, about: str, *labels: str, max_series: int = 100) -> None:
        self.name, self.about, self.labels, self._max_series = name, about, labels, max_series
        self._values: dict[tuple[str, ...], T] = {}

    def _new_key(self, values: tuple[str, ...]) -> tuple[str, ...]:
        """Return under which labels to count the first value of a series."""
        return values if len(self._values) < self._max_series else (OTHER,) * len(values)


class Counter(_Metric[int]):
    """A number that only goes up."""

    def add(self, *values: str, by: int = 1) -> None:
        with _lock:
            key = values if values in self._values else self._new_key(values)
            self._values[key] = self._values.get(key, 0) + by

    def value(self, *values: str) -> int:
        return self._values.get(values, 0)

    def collect(self) -> Metric:
        from prometheus_client.metrics_core import CounterMetricFamily

        family = CounterMetricFamily(self.name, self.about, labels=self.labels)
        with _lock:
            known = list(self._values.items())
        for labels, value in known:
            family.add_metric(labels, value)
        return family


class Histogram(_Metric[tuple[list[int], float]]):
    """Durations: how many in each of `_BUCKETS`, and the sum."""

    def observe(self, seconds: float, *values: str) -> None:
        with _lock:
            key = values if values in self._values else self._new_key(values)
            counts, total = self._values.get(key) or ([0] * (len(_BUCKETS) + 1), 0.0)
            counts[bisect.bisect_left(_BUCKETS, seconds)] += 1
            self._values[key] = counts, total + seconds

    def count(self, *values: str) -> int:
        return sum(self._values[values][0]) if values in self._values else 0

    def collect(self) -> Metric:
        from prometheus_client.metrics_core import HistogramMetricFamily

        family = HistogramMetricFamily(self.name, self.about, labels=self.labels)
        with _lock:
            known = [(labels, list(counts), total) for labels, (counts, total) in self._values.items()]
        for labels, counts, total in known:
            bounds = (*map(str, _BUCKETS), "+Inf")
            family.add_metric(labels, list(zip(bounds, map(float, itertools.accumulate(counts)), strict=True)), total)
        return family


class Gauge(_Metric[float]):
    """A current value."""

    def set(self, values: Mapping[tuple[str, ...], float]) -> None:
        """Replace all values."""
        with _lock:
            self._values = dict(itertools.islice(values.items(), self._max_series))

    def collect(self) -> Metric:
        from prometheus_client.metrics_core import GaugeMetricFamily

        family = GaugeMetricFamily(self.name, self.about, labels=self.labels)
        for labels, value in self._values.items():
            family.add_metric(labels, value)
        return family


RUNS = Counter("redoma_runs", "Requests that have ended.", "backend", "status", "language", max_series=500)
RUN_SECONDS = Histogram(
    "redoma_run_seconds", "On a backend, the wait for a cell or a container included.", "backend", max_series=20
)
POLICY_SECONDS = Histogram("redoma_policy_seconds", "Until policy had a verdict.")
DECISIONS = Counter("redoma_decisions", "What policy said of requests.", "decision")
APPROVALS = Counter("redoma_approvals", "What came of asking a person.", "outcome")
REDACTIONS = Counter("redoma_redactions", "Secrets and personal data taken out of results.", "kind")
RECORDS = Counter("redoma_audit_records", "Records written to the audit log.", "kind")
EVENTS = Counter("redoma_events", "Events as in the log, whether or not one is kept.", "event")
CHECK_STATE = Gauge("redoma_check_state", "0 ok, 1 warning, 2 critical, 3 unknown.", "check", max_series=500)
CHECK_SECONDS = Gauge("redoma_check_seconds", "How long its rule took, the last time.", "check", max_series=500)
ROUND_TIME = Gauge("redoma_round_timestamp_seconds", "When the monitor last looked.")
_ALL = (
    *(RUNS, RUN_SECONDS, POLICY_SECONDS, DECISIONS, APPROVALS, REDACTIONS, RECORDS, EVENTS),
    *(CHECK_STATE, CHECK_SECONDS, ROUND_TIME),
)


class Pool(Protocol):
    """A pool that reports how many of its items are in each state."""

    def counts(self) -> dict[str, int]: ...


_running = 0
_pools: weakref.WeakKeyDictionary[Pool, str] = weakref.WeakKeyDictionary()


def running(change: int) -> None:
    """Count requests in progress: +1 when one begins, -1 when it ends."""
    global _running
    with _lock:
        _running += change


def watch(backend: str, pool: Pool) -> None:
    """Include a pool in the metrics for as long as it exists."""
    with _lock:
        _pools[pool] = backend


def pooled() -> dict[str, int]:
    """Return how many cells and containers all pools of this process have, by their state: armed, running …"""
    found: dict[str, int] = {}
    for (_, state), count in pool_counts().items():
        found[state] = found.get(state, 0) + count
    return found


def pool_counts() -> dict[tuple[str, str], int]:
    """Return the same by backend and state."""
    with _lock:
        pools = list(_pools.items())
    totals: dict[tuple[str, str], int] = {}
    for pool, backend in pools:  # without our lock: a pool has its own
        for state, count in pool.counts().items():
            totals[backend, state] = totals.get((backend, state), 0) + count
    return totals


class Collector:
    """The metrics as `prometheus_client` takes them, for any registry."""

    def describe(self) -> list[Metric]:
        return []  # otherwise a registry would collect everything once when this is registered

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.metrics_core import GaugeMetricFamily, InfoMetricFamily

        from .. import __version__

        for metric in _ALL:
            yield metric.collect()
        yield GaugeMetricFamily("redoma_running", "Requests on their way, waiting ones included.", value=_running)
        about = "Cells and containers: ready (armed), being made (arming) and in use; and runs that wait for one."
        pools = GaugeMetricFamily("redoma_pool", about, labels=("backend", "state"))
        for (backend, state), count in sorted(pool_counts().items()):
            pools.add_metric((backend, state), count)
        yield pools
        yield InfoMetricFamily("redoma", "This Redoma.", {"version": __version__})


COLLECTOR = Collector()


def registry() -> CollectorRegistry:
    """Return a registry with only our metrics. Raises `RedomaError` without `prometheus_client`."""
    try:
        from prometheus_client import CollectorRegistry
    except ImportError as error:
        raise RedomaError(
            "there are no metrics to show",
            why="prometheus_client is not installed",
            next=pip_install("redoma[metrics]"),
        ) from error
    ours = CollectorRegistry()
    ours.register(COLLECTOR)
    return ours


def text() -> str:
    """Return all metrics in the text format of Prometheus, also for a file of node_exporter. Raises `RedomaError`
    without `prometheus_client`.
    """
    ours = registry()
    from prometheus_client import generate_latest

    return generate_latest(ours).decode()


class Server:
    """Serves the metrics over HTTP until it is closed. `address` is where it listens; port 0 chooses a free one."""

    def __init__(self, host: str, port: int) -> None:
        ours = registry()
        from prometheus_client import start_http_server

        self._server, self._thread = start_http_server(port, host, ours)
        shown = f"[{host}]" if ":" in host else host
        self.address = f"{shown}:{self._server.server_port}"
        self.url = f"http://{self.address}/metrics"

    def close(self) -> None:
        """Stop serving. Safe to call twice."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def serve(address: str = DEFAULT_ADDRESS) -> Server:
    """Serve the metrics at `HOST:PORT` until the returned server is closed. There is no authentication: protect an
    address that others can reach. Raises `InvalidRequest` for a malformed address, `RedomaError` if it can't be served.
    """
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InvalidRequest(
            f"{address!r} is not an address",
            why="it needs a host and a port",
            next=f"use one such as {DEFAULT_ADDRESS}",
        )
    try:
        return Server(host, int(port))
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise RedomaError(f"metrics can't be served at {address}", why=why, next="use another address") from error
