"""What `latency.py` measures the jail against: what one would use instead, each as its own manual says to use it.

Each is one function that returns what can be measured here, or raises `NotHere` with what would have to be installed.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

PYTHON_CODE, BASH_CODE, ARGV = "print('hello')", "echo hello", ["echo", "hello"]
PYTHON = os.path.realpath(sys.executable)
"""The interpreter itself, without a version manager's shim in front of it."""
BARE_PROGRAM = (PYTHON, "-I", "-S", "-c", PYTHON_CODE)

BARE, WRAPPED, WRAPPED_BASH = "python3 -I -S -c", "bubblewrap, python3 -I -S", "bubblewrap, bash"


class NotHere(Exception):
    """It can't be measured; the message says what is missing, and what to do."""


@dataclass(frozen=True)
class Contender:
    name: str
    once: Callable[[], Awaitable[float]]
    """Runs it once and returns the milliseconds it took, without those of whoever drives it."""
    every: int = 1
    """Takes part in every so manieth round: some are so slow that the others would wait for them all day."""


class Threads:
    """For contenders that block."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool

    def blocking(self, work: Callable[[], str | bytes]) -> Callable[[], Awaitable[float]]:
        """On a thread, and timed there: the way to it and back is not the contender's."""

        def timed() -> float:
            start = time.perf_counter()
            said = work()
            elapsed = time.perf_counter() - start
            if said not in ("hello\n", b"hello\n"):  # a failure is quick, and no measurement
                raise RuntimeError(f"it said {said!r}")
            return elapsed * 1000

        return lambda: asyncio.get_running_loop().run_in_executor(self._pool, timed)

    def process(self, *command: str) -> Callable[[], Awaitable[float]]:
        return self.blocking(
            lambda: subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True).stdout
        )


def interpreters(threads: Threads) -> list[Contender]:
    """No sandbox at all: what a new interpreter costs.

    The second loads `site`. With that of our virtual environment: the base interpreter's may hold packages that hook
    into every start, and would make us look better.
    """
    return [
        Contender(BARE, threads.process(*BARE_PROGRAM)),
        Contender("python3 -c", threads.process(sys.executable, "-c", PYTHON_CODE)),
    ]


def bubblewrap(threads: Threads) -> list[Contender]:
    if not (wrap := shutil.which("bwrap")):
        raise NotHere("it is not installed; apt-get install bubblewrap")
    words = [wrap, "--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
    words += ["--ro-bind", "/usr", "/usr"]
    for place in ("/bin", "/lib", "/lib64"):
        if os.path.islink(place):
            words += ["--symlink", os.readlink(place), place]
        elif os.path.isdir(place):
            words += ["--ro-bind", place, place]
    base = os.path.realpath(sys.base_prefix)
    if not (base + "/").startswith("/usr/"):
        words += ["--ro-bind", base, base]
    words += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--chdir", "/tmp", "--"]
    return [
        Contender(WRAPPED, threads.process(*words, *BARE_PROGRAM)),
        Contender(WRAPPED_BASH, threads.process(*words, shutil.which("bash") or "bash", "-c", BASH_CODE)),
    ]


def sandlock(threads: Threads) -> list[Contender]:
    """Version 0.9. One of its sandboxes runs one thing at a time and is meant to be kept: one for each thread."""
    try:
        module: Any = importlib.import_module("sandlock")
    except ImportError as error:
        raise NotHere(f"{error}; pip install sandlock") from error
    places = ["/usr", "/lib", "/lib64", "/bin", "/etc", "/proc", "/dev", os.path.realpath(sys.base_prefix)]
    mine = threading.local()

    def work() -> bytes:
        if not hasattr(mine, "sandbox"):
            mine.sandbox = module.Sandbox(
                fs_readable=[place for place in places if os.path.exists(place)],
                fs_writable=["/tmp"],
                clean_env=True,
                max_memory="512M",
                max_processes=100,
            )
        result = mine.sandbox.run(list(BARE_PROGRAM), timeout=30)
        return bytes(result.stdout) if result.success else f"{result.error} {result.stderr}".encode()

    return [Contender("sandlock, python3 -I -S", threads.blocking(work))]


def docker(threads: Threads, stack: AsyncExitStack, image: str) -> list[Contender]:
    """`run` makes a container for each run; `exec` enters one that is kept, and so shares it between runs."""

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["docker", *words], capture_output=True, text=True, check=False, timeout=120)

    if not shutil.which("docker") or call("info").returncode:
        raise NotHere("no engine is up: `docker info` fails")
    if call("image", "inspect", image).returncode:
        raise NotHere(f"the image is not here; docker pull {image}, or name another one with --image")
    kept = call("run", "--detach", "--rm", "--network", "none", image, "sleep", "infinity")
    if kept.returncode:
        raise NotHere(f"its container does not start: {kept.stderr.strip()}")
    container = kept.stdout.strip()
    stack.callback(call, "rm", "--force", container)
    program = ("python3", *BARE_PROGRAM[1:])
    return [
        Contender(
            "docker run", threads.process("docker", "run", "--rm", "--network", "none", image, *program), every=10
        ),
        Contender("docker exec, warm container", threads.process("docker", "exec", container, *program), every=5),
    ]
