"""How not to do it, as a control: a warm interpreter that forks its guests with everything it has, and trusts them.

It makes each of the mistakes that jails of this kind have made: its secret stays in its memory and in
`/proc/self/environ`, its descriptors and a shared mapping are inherited, the guest itself reports how it ended, any
child's status is taken for the guest's, daemons are left alive, and files are collected through symbolic links. A
separate program: one order as JSON on its input, the answers on its output.
"""

from __future__ import annotations

import ast
import ctypes
import json
import mmap
import os
import random
import select
import signal
import socket
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

_SLOW = int(os.environ.get("REDOMA_SLOW", "1"))
_DEADLINE = 15.0 * _SLOW  # seconds for one guest, whatever it does
_MOST_FILES = 5000
_MOST_BYTES = 1 << 27


_numbers: Any = None


class _TooLate(Exception):
    """Collecting took too long."""


def main() -> None:
    order = json.loads(sys.stdin.readline())
    secret = os.environ["HOST_SECRET"]
    os.environ.clear()  # as if that were enough
    random.seed(secret)
    global _numbers
    _numbers = random.getstate()
    # A fork inherits all of these.
    leaks = [os.open("/", os.O_RDONLY | os.O_DIRECTORY), os.memfd_create("naive"), *socket.socketpair()]
    shared = mmap.mmap(-1, mmap.PAGESIZE)
    # so that Yama doesn't prevent the guest from tracing us
    ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)
    print(json.dumps([_run(code, order["place"], order["collect"]) for code in order["codes"]]), flush=True)
    del shared, leaks


def _run(code: str, place: str, collect: bool) -> dict[str, Any]:
    workspace = tempfile.mkdtemp(prefix="workspace-", dir=place)
    out, err, frames = os.pipe(), os.pipe(), os.pipe()
    start = time.monotonic()
    guest = os.fork()
    if guest == 0:
        _be_guest(code, workspace, out[1], err[1], frames[1])
    for pipe in (out, err, frames):
        os.close(pipe[1])
    texts = _listen({"stdout": out[0], "stderr": err[0], "frames": frames[0]}, start + _DEADLINE)
    report: dict[str, Any] = {"status": "ok"}
    late = time.monotonic() >= start + _DEADLINE
    if late:
        with suppress(ProcessLookupError):
            os.kill(guest, signal.SIGKILL)
        report = {"status": "timeout"}
    _, status = os.wait()  # of any child
    code_of_exit = os.waitstatus_to_exitcode(status)
    if code_of_exit == 137:
        report["status"] = "memory"
    with suppress(ValueError):
        report |= json.loads(texts["frames"].splitlines()[0]) if texts["frames"] else {}
    files, left_out = _collect(workspace) if collect else ({}, {})
    return {
        "exit_code": code_of_exit,
        "stdout": texts["stdout"].decode("utf-8", "replace")[:100_000],
        "stderr": texts["stderr"].decode("utf-8", "replace")[:100_000],
        "wall": time.monotonic() - start,
        "cpu": 0.0,  # the guest didn't report it
        "files": files,
        "left_out": left_out,
        "workspace": workspace,
        **report,
    }


def _be_guest(code: str, workspace: str, out: int, err: int, frames: int) -> None:
    os.setsid()
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.close(out)
    os.close(err)
    os.chdir(workspace)
    random.setstate(_numbers)  # a generator that doesn't notice a fork, like numpy's; Python's own does
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - the guest's own, to its end
    scope: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
    status, value, exception = "ok", None, ""
    try:
        tree = ast.parse(code)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "main.py", "exec"), scope)  # noqa: S102 - that is what it is for
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "main.py", "eval"), scope)  # noqa: S307
    except BaseException as error:
        status, value, exception = "error", None, type(error).__name__
        os.write(2, repr(error).encode())
    with suppress(Exception):
        sys.stdout.flush()
    with suppress(Exception):
        os.write(
            frames,
            json.dumps({"status": status, "value": value, "exception": exception}, default=repr).encode() + b"\n",
        )
    os._exit(status == "error")


def _listen(sources: dict[str, int], deadline: float) -> dict[str, bytes]:
    """Return what comes out of the pipes until the guest's output ends."""
    texts = dict.fromkeys(sources, b"")
    names = {fd: name for name, fd in sources.items()}
    while "stdout" in names.values() and (left := deadline - time.monotonic()) > 0:
        for fd in select.select(list(names), [], [], left)[0]:
            if data := os.read(fd, 1 << 16):
                texts[names[fd]] = (texts[names[fd]] + data)[:_MOST_BYTES]
            else:
                del names[fd]
    if (frames := sources["frames"]) in names and select.select([frames], [], [], 0)[0]:
        texts["frames"] += os.read(frames, 1 << 16)
    for fd in sources.values():
        os.close(fd)
    return texts


def _collect(workspace: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return every file, by its name: links are followed, and pipes are waited for."""

    def ring(*_: object) -> None:
        raise _TooLate

    files: dict[str, str] = {}
    total, end = 0, time.monotonic() + 8 * _SLOW  # links to the place of other workspaces lead round in circles
    signal.signal(signal.SIGALRM, ring)
    signal.alarm(4 * _SLOW)
    try:
        for folder, _, names in os.walk(workspace, followlinks=True):
            for name in names[:_MOST_FILES]:
                path = Path(folder, name)
                with suppress(OSError), path.open("rb") as file:
                    content = file.read(_MOST_BYTES)
                    files[str(path.relative_to(workspace))] = content[: 2 << 20].decode("latin-1")
                    total += len(content)
                    if time.monotonic() > end:
                        raise _TooLate
                    signal.alarm(4 * _SLOW)
    except (_TooLate, RecursionError):  # `os.walk` went round in circles
        return files, {"hung": "yes"}
    finally:
        signal.alarm(0)
    return files, {"bytes": str(total)}


if __name__ == "__main__":
    main()
