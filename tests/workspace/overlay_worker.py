"""Runs over a project in real cells, as the user who starts this: each case by its name, its verdict as a line of JSON.

A separate program, since an unprivileged user must be able to run it too, with only what Redoma itself needs.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import random
import select
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import overlay_cases

from redoma.backends.base import Outcome, OverlayEntry
from redoma.backends.jail import JailBackend, changes
from redoma.lib.errors import InvalidRequest
from redoma.models import Effect, Limits, Request
from redoma.workspace.effects import effect_of
from redoma.workspace.kept import Changes
from redoma.workspace.tree import Tree

SLOW = int(os.environ.get("REDOMA_SLOW", "1"))  # how many times slower an emulated machine is

CASES: dict[str, Callable[[Bench], Awaitable[None]]] = {}


def case(work: Callable[[Bench], Awaitable[None]]) -> Callable[[Bench], Awaitable[None]]:
    CASES[work.__name__] = work
    return work


class Bench:
    """A project with a secret next to it, and runs over that project."""

    def __init__(self, jail: JailBackend, place: Path) -> None:
        self.jail, self.place, self.project = jail, place, place / "project"
        self.secret = place / "secret"
        self.secret.write_text("the host's")
        (self.project / "d" / "e").mkdir(parents=True)
        for name, text in (("a.txt", "one\n"), ("d/b.txt", "two\n"), ("d/e/c.txt", "three\n")):
            (self.project / name).write_text(text)
        (self.project / "link").symlink_to("a.txt")
        (self.project / "out").symlink_to(self.secret)
        self.stdout = ""
        self.stage: dict[str, bytes] = {}

    async def run(self, code: str, *, workspace: Any = "overlay", language: Any = "bash", **limits: Any) -> Outcome:
        request = Request(
            code=code,
            language=language,
            workspace=workspace,
            project=str(self.project) if workspace != "scratch" else None,
            cwd=str(self.project) if workspace != "scratch" else None,
            limits=Limits(**{"time": 60.0 * SLOW, **limits}),
        )
        printed = bytearray()

        def sink(stream: str, data: bytes) -> bool:
            printed.extend(data)
            return True

        with tempfile.TemporaryDirectory(dir=self.place) as stage:
            over = stage if workspace == "overlay" else None
            outcome = await self.jail.run_over(request, sink, None, over)
            self.stage = _contents(Path(stage))
        self.stdout = printed.decode("utf-8", "replace")
        return outcome

    async def entries(self, code: str, **options: Any) -> dict[str, OverlayEntry]:
        return {entry.path: entry for entry in (await self.run(code, **options)).entries or ()}

    def snapshot(self) -> dict[str, Any]:
        """Return everything that can be seen of the project from outside, including times."""
        found: dict[str, Any] = {}
        for path in sorted(self.project.rglob("*")):
            about = path.lstat()
            content: Any = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
            found[str(path)] = (
                about.st_mode,
                about.st_uid,
                about.st_mtime_ns,
                about.st_ctime_ns,
                about.st_ino,
                content,
            )
        return found


def _contents(stage: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in stage.iterdir()}


_EVERYTHING = """
echo more >> a.txt; rm d/b.txt; rm -r d/e; mkdir d/e; echo new > d/e/n; chmod 700 d; mv link moved; ln -s / root
ln a.txt hard; truncate -s 1M sparse; mkfifo pipe; touch empty; chmod 4755 empty
"""


@case
async def every_kind_of_change_is_told_and_the_project_is_as_it_was(bench: Bench) -> None:
    before = bench.snapshot()
    found = await bench.entries(_EVERYTHING)
    assert bench.snapshot() == before
    assert found["a.txt"].size == len("one\nmore\n")
    assert bench.stage[found["a.txt"].blob] == b"one\nmore\n"
    assert (found["hard"].link_of, found["hard"].blob) == ("a.txt", found["a.txt"].blob)
    assert found["d/b.txt"].kind == found["link"].kind == "removed"
    assert (found["d"].mode, found["d"].opaque) == (0o700, False)
    assert found["d/e"].opaque
    assert bench.stage[found["d/e/n"].blob] == b"new\n"
    assert (found["moved"].kind, found["moved"].target) == ("symlink", "a.txt")
    assert found["root"].target == "/"
    assert (found["sparse"].size, bench.stage[found["sparse"].blob]) == (1 << 20, bytes(1 << 20))
    assert (found["pipe"].kind, found["pipe"].why) == ("refused", "a pipe, which is not a file")
    assert found["empty"].mode == 0o4755


@case
async def it_sees_the_project_at_its_own_path_and_nothing_beside_it(bench: Bench) -> None:
    await bench.run(
        f"pwd; cat a.txt d/b.txt; ls -A ..; cat out; ls -A /.project; stat -c %U a.txt; touch ../x {bench.secret}"
    )
    lines = bench.stdout.splitlines()
    assert lines[:4] == [str(bench.project), "one", "two", "project"], lines
    assert "guest" in lines
    assert "the host's" not in bench.stdout
    assert not (bench.place / "x").exists()


@case
async def read_only_is_read_only(bench: Bench) -> None:
    before = bench.snapshot()
    tries = "cat a.txt; touch a.txt; echo x > new; rm a.txt; chmod 777 .; mkdir y; echo done"
    outcome = await bench.run(tries, workspace="read-only")
    assert {"one", "done"} <= set(bench.stdout.splitlines())  # errors are among them, in any order
    assert bench.stdout.count("Read-only file system") == 5, bench.stdout
    assert outcome.entries is None
    assert outcome.isolation.layers["workspace"].endswith("read-only")
    assert bench.snapshot() == before


_TALK = """
import errno, fcntl, os, select, socket
def tried(name, work):
    try: print(name, work())
    except OSError as error: print(name, errno.errorcode[error.errno])
def connect(kind):
    with socket.socket(socket.AF_UNIX, kind) as one:
        one.connect("socket" if kind == socket.SOCK_STREAM else "datagrams")
    return "connected"
def write():
    os.write(os.open("pipe", os.O_WRONLY | os.O_NONBLOCK), b"from the cell")
    return "written"
def lock(path, how):
    with open(path) as file: how(file)
    return "free"
tried("stream", lambda: connect(socket.SOCK_STREAM))
tried("datagram", lambda: connect(socket.SOCK_DGRAM))
tried("pipe", write)
tried("flock", lambda: lock("a.txt", lambda file: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)))
tried("record", lambda: lock("d/b.txt", lambda file: fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)))
"""
_WATCH = """
import ctypes, os, select, time
libc = ctypes.CDLL(None)
watch = libc.inotify_init1(os.O_NONBLOCK)
assert libc.inotify_add_watch(watch, PATH, 0x20) > 0  # IN_OPEN
print("seen" if select.select([watch], [], [], 0.7)[0] else "quiet")
"""


@case
async def nothing_but_contents_of_a_project_reaches_a_run(bench: Bench) -> None:
    """Sockets, pipes, locks and watches are the host's: a run that may only read the files must not find them."""
    names = {socket.SOCK_STREAM: "socket", socket.SOCK_DGRAM: "datagrams"}
    with contextlib.ExitStack() as held:
        for kind, name in names.items():
            listener = held.enter_context(socket.socket(socket.AF_UNIX, kind))
            here = os.getcwd()
            os.chdir(bench.project)  # the path of a socket must be short
            listener.bind(name)
            os.chdir(here)
            if kind == socket.SOCK_STREAM:
                listener.listen()
        os.mkfifo(bench.project / "pipe")
        pipe = os.open(bench.project / "pipe", os.O_RDWR | os.O_NONBLOCK)
        held.callback(os.close, pipe)
        for name in ("socket", "datagrams", "pipe"):
            (bench.project / name).chmod(0o666)
        fcntl.flock(held.enter_context((bench.project / "a.txt").open()), fcntl.LOCK_EX)
        fcntl.lockf(held.enter_context((bench.project / "d/b.txt").open("r+")), fcntl.LOCK_EX)
        for workspace in ("read-only", "overlay"):
            await bench.run(_TALK, workspace=workspace, language="python")
            told = dict(line.split(" ", 1) for line in bench.stdout.splitlines())
            assert told == {
                "stream": "ECONNREFUSED",
                "datagram": "ECONNREFUSED",
                "pipe": "ENXIO",  # this one has no reader
                "flock": "free",
                "record": "free",
            }, (workspace, bench.stdout)
            assert not select.select([pipe], [], [], 0)[0], workspace


@case
async def a_run_does_not_see_who_opens_files_of_a_project(bench: Bench) -> None:
    with opening(bench.project / "a.txt"):
        for workspace in ("read-only", "overlay"):
            await bench.run(f"PATH = b'a.txt'\n{_WATCH}", workspace=workspace, language="python")
            assert bench.stdout == "quiet\n", (workspace, bench.stdout)


@case
async def a_run_neither_finds_locks_on_files_of_the_system_nor_sees_who_opens_them(bench: Bench) -> None:
    system = Path("/usr/bin/env")
    code = f"import fcntl\nfcntl.flock(open('{system}'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    with opening(system):
        await bench.run(code, workspace="scratch", language="python")
        assert bench.stdout == "", bench.stdout
        await bench.run(f"PATH = b'/usr/bin/env'\n{_WATCH}", workspace="scratch", language="python")
        assert bench.stdout == "quiet\n", bench.stdout


@contextlib.contextmanager
def opening(path: Path) -> Iterator[None]:
    """A file that the host has locked, and opens again and again."""
    done = threading.Event()

    def again() -> None:
        while not done.wait(0.02):
            path.open().close()

    thread = threading.Thread(target=again)
    thread.start()
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            yield
    finally:
        done.set()
        thread.join()


_FORGE = """
import os, stat
for name, value in (("user.overlay.opaque", b"y"), ("user.overlay.redirect", b"/"), ("user.overlay.metacopy", b"")):
    for path in ("d", "a.txt"):
        try: os.setxattr(path, name, value)
        except OSError as error: print(error.strerror)
try: os.mknod("d/b.txt2", stat.S_IFCHR | 0o600, 0)
except OSError as error: print("mknod", error.strerror)
open("d/touched", "w").close()
"""


@case
async def the_marks_of_a_removal_cannot_be_forged(bench: Bench) -> None:
    found = await bench.entries(_FORGE, language="python")
    assert "d/touched" in found, bench.stdout
    assert not found["d"].opaque
    assert all(entry.kind != "removed" for entry in found.values()), found
    assert "d/b.txt2" not in found


@case
async def names_and_modes_of_any_kind_come_through(bench: Bench) -> None:
    odd = rb"""
import os
for name in (b"\xff\xfe", b"new\nline", b"-rf", "a\u202eb".encode(), b"x" * 255, b"semi;colon", b"\\"):
    open(name, "w").close()
os.mkdir("closed"); open("closed/in", "w").write("kept"); os.chmod("closed/in", 0); os.chmod("closed", 0)
""".decode("latin-1")
    found = await bench.entries(odd, language="python")
    for name in (b"\xff\xfe", b"new\nline", b"-rf", "a\u202eb".encode(), b"x" * 255, b"semi;colon", b"\\"):
        assert found[os.fsdecode(name)].kind == "file", (name, list(found))
    assert (found["closed"].mode, found["closed/in"].mode) == (0, 0)
    assert bench.stage[found["closed/in"].blob] == b"kept"


@case
async def a_tree_too_deep_is_refused_from_there_on(bench: Bench) -> None:
    code = "import os\nfor n in range(400): os.mkdir('n'); os.chdir('n')\nopen('deepest', 'w').close()"
    found = await bench.entries(code, language="python")
    refused = [entry for entry in found.values() if entry.kind == "refused"]
    assert len(refused) == 1, refused
    assert "nested deeper" in refused[0].why


@case
async def its_limits_hold_for_what_it_writes_there(bench: Bench) -> None:
    code = "head -c 30000000 /dev/zero > big; echo $?; stat -c %s big"
    outcome = await bench.run(code, disk=8 << 20)
    assert "No space left" in bench.stdout or was_ended(outcome), outcome
    found = {entry.path: entry for entry in outcome.entries or ()}
    assert found["big"].kind == "refused" or found["big"].size <= 8 << 20
    (bench.project / "large").write_bytes(bytes(12 << 20))
    outcome = await bench.run("echo x >> large; echo $?", disk=8 << 20)  # it would have to be copied first
    refused = "1" in bench.stdout.splitlines()  # the order of the two streams is random
    assert refused or was_ended(outcome), bench.stdout
    assert (bench.project / "large").stat().st_size == 12 << 20


def was_ended(outcome: Outcome) -> bool:
    """A layer in memory is full at its limit; one on disk exceeds it, and then the run is ended."""
    told = outcome.status.value == "killed" and "wrote more than 8388608 bytes" in (outcome.error or "")
    return told and "on disk" in outcome.isolation.layers["workspace"]


@case
async def its_limits_hold_on_how_many_files_it_writes_there(bench: Bench) -> None:
    # Slower once there are too many: on disk they are counted now and then, and on a busy machine later.
    code = "import time\nfor n in range(300): open(f'{n}', 'w').close(); time.sleep(0.01 if n < 110 else 0.2)"
    outcome = await bench.run(code, language="python", files=100)
    assert outcome.status.value in ("error", "killed"), outcome
    assert len(outcome.entries or ()) < 250


@case
async def files_without_a_name_count_too(bench: Bench) -> None:
    """In memory they are limited like the rest; on disk only the free space reveals them."""
    code = """
import os, time
held = []
for number in range(40):
    held.append(os.open(f'{number}', os.O_CREAT | os.O_WRONLY))
    os.unlink(f'{number}')
    for _ in range(8):
        os.write(held[-1], bytes(1 << 20))
time.sleep(30)
print('never')
"""
    allowed = changes._OTHERS_BYTES
    changes._OTHERS_BYTES = 64 << 20  # not a gigabyte, which would be missing to the runs of others on this machine
    try:
        outcome = await bench.run(code, language="python", disk=8 << 20, file_size=64 << 20)
    finally:
        changes._OTHERS_BYTES = allowed
    assert "never" not in bench.stdout, outcome
    assert outcome.status.value in ("error", "killed"), outcome


@case
async def what_a_directory_hides_counts_too(bench: Bench) -> None:
    """One directory that can't be entered, and one deeper than is measured."""
    deep = "; ".join(["mkdir n && cd n || exit"] * 300)
    for hidden in ("mkdir -m 700 h; cd h", deep):
        big = "head -c 40000000 /dev/zero > big || { echo failed; exit; }"
        outcome = await bench.run(f"{hidden}; {big}; chmod 0 .; sleep 30; echo never", disk=8 << 20)
        assert "never" not in bench.stdout, outcome
        assert "failed" not in bench.stdout or "No space left" in bench.stdout, outcome


@case
async def a_file_that_is_all_holes_is_refused_and_holds_nobody_up(bench: Bench) -> None:
    found = await bench.entries("truncate -s 1T huge; echo x > small", file_size=2 << 40)
    assert found["huge"].kind == "refused"
    assert "holes" in found["huge"].why
    assert bench.stage[found["small"].blob] == b"x\n"


@case
async def a_run_that_is_ended_still_tells_what_it_has_changed(bench: Bench) -> None:
    code = "echo partial > p; (while :; do echo x >> busy; done) & until [ -s busy ]; do :; done; echo begun; sleep 90"
    for seconds in (1, 10, 60):  # on a busy machine it may not have got that far in so short a time
        outcome = await bench.run(code, time=1.0 * seconds * SLOW)
        assert outcome.status.value == "timeout"
        if "begun" in bench.stdout:
            break
    found = {entry.path: entry for entry in outcome.entries or ()}
    assert bench.stage[found["p"].blob] == b"partial\n"
    assert len(bench.stage[found["busy"].blob]) == found["busy"].size


@case
async def another_directory_at_its_path_is_another_project(bench: Bench) -> None:
    await bench.run("cat a.txt")
    bench.project.rename(bench.place / "old")
    bench.project.mkdir()
    (bench.project / "a.txt").write_text("another\n")
    await bench.run("cat a.txt")
    assert bench.stdout == "another\n"


@case
async def what_changes_in_the_project_is_seen_by_the_next_run(bench: Bench) -> None:
    await bench.run("cat a.txt; ls")
    (bench.project / "a.txt").write_text("changed\n")
    (bench.project / "later").write_text("")
    (bench.project / "d" / "b.txt").unlink()
    await bench.run("cat a.txt; ls . d")
    assert bench.stdout.startswith("changed\n")
    assert "later" in bench.stdout
    assert "b.txt" not in bench.stdout


@case
async def many_projects_keep_only_a_few_sets_of_cells(bench: Bench) -> None:
    first = bench.project
    for number in range(12):
        bench.project = bench.place / f"project-{number}"
        bench.project.mkdir()
        await bench.run("echo here > x")
        assert not (bench.project / "x").exists()
    assert len(bench.jail._pools) <= 9, len(bench.jail._pools)
    bench.project = first


@case
async def a_project_that_is_gone_is_told(bench: Bench) -> None:
    shutil.rmtree(bench.project)
    told = ""
    try:
        await bench.run("ls")
    except InvalidRequest as error:
        told = str(error)
    assert "can't be used: No such file" in told


_TREES, _ROUNDS = int(os.environ.get("REDOMA_TREES", "60")), int(os.environ.get("REDOMA_ROUNDS", "6"))
"""Small trees in one project, and runs over such a project."""


def _kept(bench: Bench) -> Changes:
    return Changes(bench.place / "changes")


async def _changed(bench: Bench, chance: random.Random) -> tuple[dict[str, Any], dict[str, Any], Effect]:
    """Return a project full of random trees, its state if random operations are done directly, and their effect."""
    shutil.rmtree(bench.project)
    bench.project.mkdir()
    wanted: list[tuple[str, str, Any]] = []
    for number in range(_TREES):
        overlay_cases.plant(bench.project / str(number), chance)
        wanted += overlay_cases.operations(str(number), chance)
    before = overlay_cases.look(bench.project)
    copy = bench.place / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(bench.project, copy, symlinks=True)
    code = f"{overlay_cases.PERFORM}\nperform({wanted!a})"
    _directly(code, copy)
    request = Request(
        code=code, language="python", workspace="overlay", project=str(bench.project), cwd=str(bench.project)
    )
    with tempfile.TemporaryDirectory(dir=bench.place) as stage:
        began = time.time()
        outcome = await bench.jail.run_over(request, lambda stream, data: True, None, stage)
        assert outcome.status.value == "ok", outcome
        with Tree(bench.project) as tree:
            effect = effect_of(tree, outcome.entries or (), Path(stage), began)
        assert not effect.refused, effect.refused
        _kept(bench).keep("run", effect, Path(stage), {})
    return before, overlay_cases.look(copy), effect


def _must_be(place: Path, wanted: dict[str, Any], seed: int) -> None:
    found = overlay_cases.look(place)
    different = [
        (bytes.fromhex(key), found.get(key), wanted.get(key))
        for key in sorted({*found, *wanted})
        if found.get(key) != wanted.get(key)
    ]
    assert not different, (seed, different)


def _directly(code: str, place: Path) -> None:
    subprocess.run([sys.executable, "-I", "-c", code], cwd=place, check=True)


@case
async def what_is_applied_is_what_a_direct_run_does_and_undo_takes_it_back(bench: Bench) -> None:
    first = 1000 * os.geteuid() + 100 * bench.jail._changes_on_disk  # other trees for everybody
    for seed in range(first, first + _ROUNDS):
        before, after, effect = await _changed(bench, random.Random(seed))
        _must_be(bench.project, before, seed)
        named = [change.path for change in effect.changes]
        if seed % 4 == 0:
            _kept(bench).discard("run")
            _must_be(bench.project, before, seed)
        else:
            _kept(bench).apply("run", named=named)
            _must_be(bench.project, after, seed)
            _kept(bench).undo("run")
            _must_be(bench.project, before, seed)
        shutil.rmtree(bench.place / "changes")


async def main(place: str, kept_in: str) -> None:
    jail = JailBackend(minimum=1, changes_on_disk=kept_in == "disk")
    try:
        for name, work in CASES.items():
            wrong = ""
            with tempfile.TemporaryDirectory(dir=place) as own:
                try:
                    await work(Bench(jail, Path(own)))
                except Exception:
                    wrong = traceback.format_exc()
            print(json.dumps({"name": name, "wrong": wrong}), flush=True)
    finally:
        await jail.aclose()


if __name__ == "__main__":
    os.umask(0o022)
    assert stat.S_ISDIR(os.stat(sys.argv[1]).st_mode)
    asyncio.run(main(*sys.argv[1:]))
