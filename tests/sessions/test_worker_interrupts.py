"""Ctrl-C at any moment: no message between a session's Python and its owner is lost."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest

from pace import SLOW
from redoma.sessions.frames import CHUNK, Reader, frame
from redoma.sessions.worker import STATE, Worker

RUNS = 3000
ENOUGH = RUNS / 20  # runs that were interrupted; fewer prove nothing
SHOW = """
class Shown:
    def _repr_html_(self): return 'x' * 400_000
display(Shown())
"""


def child(program: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            program()
        finally:
            os._exit(1)
    return pid


@pytest.fixture
def line() -> Iterator[socket.socket]:
    """The line to a worker that gets a Ctrl-C again and again while it runs code, as the driver would send them."""
    with tempfile.TemporaryFile() as file:
        state = file.fileno()
        os.write(state, STATE.pack(0, False))
        orders, theirs = socket.socketpair()
        ours, far = socket.socketpair()
        parent = os.getpid()

        def work() -> NoReturn:
            orders.close()
            ours.close()
            os.dup2(os.open(os.devnull, os.O_RDWR), 2)
            Worker(theirs, far, state, 1000).serve()

        def interrupt() -> None:
            ours.close()
            while os.getppid() == parent:
                run, begun = STATE.unpack(os.pread(state, STATE.size, 0))
                if run > 1 and begun:
                    os.kill(worker, signal.SIGINT)
                    signal.sigtimedwait([], random.random() * 3e-4)

        worker = child(work)
        theirs.close()
        far.close()
        interrupter = child(interrupt)
        ours.settimeout(60 * SLOW)
        try:
            yield ours
        finally:
            for pid in (interrupter, worker):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            ours.close()
            orders.close()


@pytest.mark.parametrize("code", ["1 + 1", SHOW], ids=["short", "display"])
def test_each_run_ends_with_one_answer(line: socket.socket, code: str) -> None:
    reader, interrupted = Reader(), 0
    for number in range(1, 10 * RUNS):
        if number > RUNS and interrupted > ENOUGH:  # on a busy machine fewer signals meet a run
            break
        head = {"do": "run", "run": number, "context": "main", "value": 1000, "source": len(code)}
        line.sendall(frame(head, code.encode()))
        said: dict[str, Any] = {}
        while said.get("is") != "done":
            data = line.recv(CHUNK)
            assert data, f"the worker ended in run {number}"
            for text, _ in reader.feed(data):
                said = json.loads(text)
                if said["is"] == "display":
                    line.sendall(frame({"do": "shown"}))
        assert said["run"] == number
        interrupted += said.get("exception") == "KeyboardInterrupt"
    assert interrupted > ENOUGH
