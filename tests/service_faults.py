"""A service under load, with its parts killed meanwhile: is every run that it accepted accounted for?

    python tests/service_faults.py [--minutes 5] [--clients 32] [--kills 2] [--zygote-every 20]

Clients send runs of every kind; a zygote is killed every so often, and the server itself by `kill -9`, and started
again. Afterwards: each accepted run is done, cancelled or reported interrupted, none has run twice, no answer was a
500, the record's chain is whole, and nothing is left. A short one is in the suite.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from leftovers import children_of, descendants
from redoma.audit.read import records
from serving import Serving

FINE = {200, 201, 202, 404, 409, 429, 503}
"""404: a session that ended with the server."""
SETTINGS = "server: {queue: 300, sessions: 40, drain: 5}\n"


class Load:
    """Clients, what they were answered, and what was accepted."""

    def __init__(self, server: Serving, clients: int) -> None:
        self.server, self.over = server, threading.Event()
        self.answers: Counter[str] = Counter()
        self.statuses: Counter[str] = Counter()
        self.accepted: dict[str, str] = {}
        self.bad: list[str] = []
        self._lock = threading.Lock()
        self.threads = [threading.Thread(target=self._client, args=(number,)) for number in range(clients)]

    @property
    def has_begun(self) -> bool:
        """Whether there is something of each kind to account for."""
        return bool(self.statuses["ok"] and self.accepted)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """One request; its JSON, or None if it was refused or lost."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        try:
            key = {"Authorization": f"Bearer {self.server.made['agent']}", **headers}
            connection.request(method, path, None if body is None else json.dumps(body), key)
            response = connection.getresponse()
            data = response.read()
        except (OSError, http.client.HTTPException):
            self.answers["lost"] += 1
            self.over.wait(0.1)
            return None
        finally:
            connection.close()
        with self._lock:
            self.answers[str(response.status)] += 1
        if response.status not in FINE:
            self.bad.append(f"{method} {path}: {response.status} {data[:300]!r}")
        if response.status in (429, 503):
            self.over.wait(random.uniform(0.05, 0.3))
        if response.status not in (200, 201, 202):
            return None
        try:
            return json.loads(data)
        except ValueError:  # events
            return data.decode()

    def _client(self, number: int) -> None:
        kinds = (self._sync, self._async, self._async, self._stream, self._session, self._cancelled)
        while not self.over.is_set():
            random.choice(kinds)()

    def _sync(self) -> None:
        done = self.ask("POST", "/v1/runs", {"code": random.choice(("print(1)", "1 / 0", "sum(range(10**5))"))})
        self._count(done)

    def _async(self) -> None:
        name = uuid.uuid4().hex
        headers = {"Idempotency-Key": name}
        for _ in range(3):  # as somebody who does not know whether it has arrived
            taken = self.ask("POST", "/v1/runs/async", {"code": "import time; time.sleep(0.05); print(2)"}, **headers)
            if taken is not None:
                self.accepted.setdefault(taken["id"], name)
                return

    def _stream(self) -> None:
        self.ask("POST", "/v1/runs/stream", {"code": "for n in range(5): print(n, flush=True)"})

    def _session(self) -> None:
        made = self.ask("POST", "/v1/sessions", {})
        if made is None:
            return
        path = f"/v1/sessions/{made['id']}"
        self._count(self.ask("POST", f"{path}/run", {"code": "x = 1"}))
        self._count(self.ask("POST", f"{path}/run", {"code": "x + 1"}))
        self.ask("GET", f"{path}/files")
        self.ask("POST", f"{path}/processes", {"command": random.choice(("echo 3", "sleep 600"))})
        for copy in (self.ask("POST", f"{path}/fork", {"n": 1}) or {"sessions": []})["sessions"]:
            self._count(self.ask("POST", f"/v1/sessions/{copy['id']}/run", {"code": "x + 2"}))
            self.ask("DELETE", f"/v1/sessions/{copy['id']}")
        self.ask("DELETE", path)

    def _cancelled(self) -> None:
        taken = self.ask("POST", "/v1/runs/async", {"code": "import time; time.sleep(5)"})
        if taken is not None:
            self.accepted.setdefault(taken["id"], "")
            self.ask("POST", f"/v1/runs/{taken['id']}/cancel")

    def _count(self, result: Any) -> None:
        if result is not None:
            with self._lock:
                self.statuses[result["status"]] += 1


def born(pids: set[int]) -> dict[int, str]:
    """When each of these processes was started: by then a number may be another's."""
    found = {}
    for pid in pids:
        with suppress(OSError):
            found[pid] = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return found


def memory(pid: int) -> int:
    """Bytes that a process has in memory."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def attempt(home: Path, *, seconds: float, clients: int, kills: int, zygote_every: float) -> dict[str, Any]:
    """Do all of it; what happened. Raises AssertionError if something is not as it should be."""
    server = Serving(home, settings=SETTINGS)
    server.key("agent", "run", concurrency=200, rate=100_000)
    server.key("auditor", "audit", rate=100_000)
    server.start()
    load = Load(server, clients)
    below: dict[int, str] = {}
    began, sizes, zygotes = time.monotonic(), [], 0
    for thread in load.threads:
        thread.start()
    try:
        when_killed = [seconds * (number + 1) / (kills + 1) for number in range(kills)]
        next_zygote = zygote_every
        while (now := time.monotonic() - began) < seconds or (now < 6 * seconds and not load.has_begun):
            assert server.process is not None
            if when_killed and now > when_killed[0]:
                when_killed.pop(0)
                below |= born(descendants([server.process.pid]))
                server.kill()
                server.start()
            if now > next_zygote:
                next_zygote += zygote_every
                for child in children_of(server.process.pid):
                    with suppress(ProcessLookupError):
                        os.kill(child, signal.SIGKILL)
                        zygotes += 1
            sizes.append(memory(server.process.pid))
            time.sleep(0.2)
    finally:
        load.over.set()
        for thread in load.threads:
            thread.join()
    return _account(server, load, below) | {
        "zygotes killed": zygotes,
        "server MiB": [size >> 20 for size in sizes[::25]],
    }


def _account(server: Serving, load: Load, below: dict[int, str]) -> dict[str, Any]:
    states: Counter[str] = Counter()
    for run in load.accepted:
        states[server.until(run, "done", "cancelled", "interrupted")["state"]] += 1
    assert server.process is not None
    below |= born(descendants([server.process.pid]))
    whole = server.ask("GET", "/v1/audit/verify", key="auditor").json
    assert server.stop() == 0
    assert load.bad == []
    log = server.log.read_text() if server.log.exists() else ""
    assert "service.bug" not in log, log[-2000:]
    assert whole["ok"], whole
    intents = Counter(record.id for record in records(server.state / "audit", kinds={"intent"}))
    twice = [run for run in load.accepted if intents[run] > 1]
    assert twice == []
    deadline = time.monotonic() + 60
    while left := born(set(below)).items() & below.items():
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
    return {"answers": dict(load.answers), "results": dict(load.statuses), "accepted": dict(states)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--zygote-every", type=float, default=20.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="service-faults-") as place:
        found = attempt(
            Path(place) / "home",
            seconds=60 * options.minutes,
            clients=options.clients,
            kills=options.kills,
            zygote_every=options.zygote_every,
        )
    for name, value in found.items():
        sys.stdout.write(f"{name}: {value}\n")


if __name__ == "__main__":
    main()
