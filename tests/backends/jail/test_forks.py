"""What a guest's interpreter must know of its fork, and what is left out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from jail_insides import jail, run, zygote_of

from redoma.backends.jail import forks


@pytest.mark.parametrize(
    ("before", "reported"),
    [
        ("import threading, random, json", False),
        ("import logging", True),
        ("import concurrent.futures.thread", True),
        ("import os; os.register_at_fork(before=lambda: None)", True),
        ("import os; os.register_at_fork(after_in_child=lambda: None)", True),
        ("import os; os.register_at_fork(after_in_parent=lambda: None)", True),
    ],
)
def test_forks_are_reported_if_anything_was_registered_that_may_need_it(before: str, reported: bool) -> None:
    package = str(Path(forks.__file__).parents[3])
    code = f"""if True:
        {before}  # as a .pth file of the interpreter may, before anything of ours
        import os, sys; sys.path.append({package!r})
        from redoma.backends.jail import forks
        known = sorted(map(str, forks._registered_by()))
        print(forks.are_reported(), known == sorted(map(str, forks._registered_by())))
    """
    told = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True).stdout
    assert told == f"{reported} True\n"


def test_a_version_of_python_that_nobody_has_looked_at_is_told_of_every_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_registered_by", set)
    assert not forks.are_reported()
    monkeypatch.setattr(forks, "_KNOWN", (3, 10))
    assert forks.are_reported()


@pytest.mark.parametrize("preload", [(), ("logging",)], ids=["not told", "told"])
async def test_threads_locks_and_forks_work(tmp_path: Path, preload: tuple[str, ...]) -> None:
    code = (
        "import os, random, threading\n"
        "def work(): done.append(threading.get_native_id())\n"
        "done, lock = [], threading.Lock()\n"
        "threads = [threading.Thread(target=work) for _ in range(3)]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()\n"
        "before = random.getstate()\n"
        "def child():\n"
        "    reading, writing = os.pipe()\n"
        "    if os.fork() == 0:\n"
        "        tell = lambda: os.write(writing, b'same' if random.getstate() == before else b'other')\n"
        "        more = threading.Thread(target=tell)\n"
        "        more.start(); more.join(); os._exit(0)\n"
        "    os.wait(); return os.read(reading, 10)\n"
        "threading.Thread(target=lambda: print('after', flush=True)).start()\n"
        "native = threading.main_thread().native_id\n"
        "[len(set(done)), native == os.getpid(), threading.current_thread() is threading.main_thread(), child()]\n"
    )
    executor, _ = jail(tmp_path, minimum=1, preload=preload)
    async with executor:
        for _ in range(2):
            result = await run(executor, code)
            assert result.value == [3, True, True, b"other"], result
            assert result.stdout == "after\n"


async def test_an_interrupt_of_the_zygote_reaches_no_guest(tmp_path: Path) -> None:
    executor, backend = jail(tmp_path, minimum=1)
    async with executor:
        assert (await run(executor)).value == 2
        zygote = zygote_of(backend)
        os.kill(zygote, signal.SIGINT)
        for _ in range(5):
            assert (await run(executor)).value == 2
        assert zygote_of(backend) == zygote
        assert (await run(executor, "import os, signal; os.kill(os.getpid(), signal.SIGINT)")).exit_code == 130
