"""What a session's Python does with messages that it doesn't expect."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from redoma.sessions.frames import CHUNK, Reader, frame
from redoma.sessions.worker import STATE, Worker


class _Running(NamedTuple):
    pid: int
    orders: socket.socket
    line: socket.socket

    def run(self, code: str) -> dict[str, Any]:
        head = {"do": "run", "run": 1, "context": "main", "value": 1000, "source": len(code)}
        self.line.sendall(frame(head, code.encode()))
        reader = Reader()
        while data := self.line.recv(CHUNK):
            for text, _ in reader.feed(data):
                said: dict[str, Any] = json.loads(text)
                return said
        return {}

    def status(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def worker() -> Iterator[_Running]:
    with tempfile.TemporaryFile() as state:
        os.write(state.fileno(), STATE.pack(0, False))
        orders, theirs = socket.socketpair()
        line, far = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            try:
                orders.close()
                line.close()
                os.dup2(os.open(os.devnull, os.O_RDWR), 2)
                Worker(theirs, far, state.fileno(), 1000).serve()
            finally:
                os._exit(77)
        theirs.close()
        far.close()
        with orders, line:
            line.settimeout(30)
            yield _Running(pid, orders, line)


@pytest.mark.parametrize("way", ["orders", "line"])
def test_an_unknown_message_ends_it(worker: _Running, way: str) -> None:
    assert worker.run("1")["is"] == "done"
    getattr(worker, way).sendall(frame({"do": "something else"}))
    assert worker.status() == 1


def test_an_answer_to_a_display_that_no_longer_waits_is_dropped(worker: _Running) -> None:
    worker.line.sendall(frame({"do": "shown"}))
    assert worker.run("1")["is"] == "done"
    worker.orders.close()
    assert worker.status() == 0
