"""Child processes for experiments: joining a group, or dropping rights, changes the process that does it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from redoma.backends.jail.cgroup import Group

NOBODY = 65432


def put_in(group: Group, pid: int) -> None:
    """Put a process into every hierarchy of the group."""
    for path in group.paths:
        Path(path, "cgroup.procs").write_text(str(pid))


def in_a_fork(work: Callable[[], Any], *, user: int = 0, join: str = "") -> Any:
    """Return what `work` returns in a child, as JSON. The child is put in the group `join` first."""
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        answer: Any = "it raised"
        try:
            if join:
                Path(join, "cgroup.procs").write_text(str(os.getpid()))
            if user:
                os.setgroups([])
                os.setresgid(user, user, user)
                os.setresuid(user, user, user)
            answer = work()
        except BaseException as error:
            answer = repr(error)
        finally:
            os.write(tell, json.dumps(answer).encode())
            os._exit(0)
    os.close(tell)
    with os.fdopen(told, "rb") as pipe:
        answer = json.loads(pipe.read() or b'"it died"')
    os.waitpid(pid, 0)
    return answer


def as_nobody(work: Callable[[Callable[[str], None]], Any]) -> Any:
    """Return what `work` returns without rights. It gets a function that makes root run the last line of a fix.

    The line runs as shown, except for `sudo`, and for the shell's own pid, which stands for the child here.
    """
    question, ask = os.pipe()
    done, tell = os.pipe()
    root = os.fork()
    if root == 0:
        os.close(ask)  # so that it ends if it gets no request
        if asked := os.read(question, 8192).decode():
            pid, _, fix = asked.partition("\n")
            run_fix(fix, pid)
            os.write(tell, b"x")
        os._exit(0)

    def have_it_fixed(fix: str) -> None:
        os.write(ask, f"{os.getpid()}\n{fix}".encode())
        os.read(done, 1)

    try:
        return in_a_fork(lambda: work(have_it_fixed), user=NOBODY)
    finally:
        for fd in (question, ask, done, tell):
            os.close(fd)
        os.waitpid(root, 0)


def run_fix(fix: str, pid: str = "") -> None:
    command = fix.splitlines()[-1].removeprefix("sudo ").replace("$$", pid)
    subprocess.run(["sh", "-c", command], check=False)


def remove_groups(top: str) -> None:
    """Remove a group and those in it, whatever a failed test left."""
    for directory, _, _ in os.walk(top, topdown=False):
        os.rmdir(directory)
