"""A real service in a separate process, and a small client for it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pace import SLOW
from redoma.frontends.http.keys import Key, Keys
from redoma.frontends.http.store import open_store

PROGRAM = Path(sys.executable).with_name("redoma")


class Answer:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status, self.headers, self.body = response.status, response.headers, response.read()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Serving:
    """`redoma serve` with a state directory; keys are made in it as by `redoma keys`."""

    def __init__(self, home: Path, *, settings: str = "", options: Iterable[str] = ()) -> None:
        self.home, self.state, self.options = home, home / "state", tuple(options)
        home.mkdir(exist_ok=True)
        (home / "redoma.yaml").write_text(settings)
        self.keys = Keys(open_store(self.state))
        self.log = home / "errors.log"
        self.process: subprocess.Popen[str] | None = None
        self.url, self.port, self.e2b_url = "", 0, ""
        self.made: dict[str, str] = {}

    def key(self, name: str, *scopes: str, **options: Any) -> str:
        """Return the text of a key, made on first use."""
        if name not in self.made:
            self.made[name] = self.keys.create(name, scopes or ("run",), **{"rate": 5000, **options})[1]
        return self.made[name]

    def row(self, name: str) -> Key:
        return next(key for key in self.keys.list() if key.name == name)

    def start(self) -> Serving:
        env = {**os.environ, "REDOMA_STATE_DIR": str(self.state), "HOME": str(self.home)}
        log = ["--log-level", "error", "--log-file", str(self.log)]
        config = ["--config", str(self.home / "redoma.yaml")]
        command = [str(PROGRAM), *config, *log, "serve", "--port", "0", *self.options]
        self.process = subprocess.Popen(
            command, env=env, cwd=self.home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self.process.stdout is not None
        said = []
        for line in self.process.stdout:
            said.append(line)
            if line.startswith("E2B's interface is at "):
                self.e2b_url = line.removeprefix("E2B's interface is at ").strip()
            if line.startswith("Redoma serves at "):
                self.url = line.removeprefix("Redoma serves at ").strip()
                self.port = int(self.url.rpartition(":")[2]) if self.url.startswith("http") else 0
                return self
        self.process.wait()
        self._closed()
        raise AssertionError("".join(said))

    def kill(self) -> None:
        """Kill it, as in a power cut: it gets no notice."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self._closed()

    def stop(self) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(60 * SLOW)
        self._closed()
        return status

    def _closed(self) -> None:
        if self.process is not None and self.process.stdout is not None:
            self.process.stdout.close()

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        key: str | None = "agent",
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """Send one request. `key` is the name of one, or None for none."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60 * SLOW)
        try:
            given = dict(headers or {})
            if key is not None:
                given["Authorization"] = f"Bearer {self.made.get(key, key)}"
            data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            connection.request(method, path, data, given)
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def run(self, code: str, *, key: str = "agent", **more: Any) -> Any:
        answer = self.ask("POST", "/v1/runs", {"code": code, **more}, key=key)
        assert answer.status in (200, 202), answer.body
        return answer.json

    def events(self, path: str, body: Any = None, *, key: str = "agent") -> Iterator[tuple[str, Any]]:
        """Yield the events of a stream, until it ends."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60 * SLOW)
        try:
            headers = {"Authorization": f"Bearer {self.made[key]}"}
            method = "GET" if body is None else "POST"
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response, name = connection.getresponse(), ""
            assert response.status == 200, response.read()
            for line in response:
                text = line.decode().rstrip("\n")
                if text.startswith("event: "):
                    name = text.removeprefix("event: ")
                elif text.startswith("data: "):
                    yield name, json.loads(text.removeprefix("data: "))
        finally:
            connection.close()

    def until(self, run: str, *states: str, key: str = "agent") -> Any:
        """Wait until a run is in one of these states."""
        deadline = time.monotonic() + 60 * SLOW
        while time.monotonic() < deadline:
            found = self.ask("GET", f"/v1/runs/{run}", key=key).json
            if found.get("state") in states:
                return found
            time.sleep(0.03)
        raise AssertionError(f"{run} is {found}")
