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
    ("modules", "needed"),
    [("threading, random, json", False), ("logging", True), ("concurrent.futures.thread", True)],
)
def test_what_a_module_registers_is_noted(modules: str, needed: bool) -> None:
    package = str(Path(forks.__file__).parents[3])
    code = (
        f"import sys; sys.path.append({package!r})\n"
        "from redoma.backends.jail import forks\n"
        f"with forks.Registered() as registered:\n    import {modules}\n"
        "import os; print(registered.needed, os.register_at_fork.__name__)"
    )
    told = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True).stdout
    assert told == f"{needed} register_at_fork\n"


def test_a_version_of_python_that_nobody_has_looked_at_is_told_of_every_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    registered = forks.Registered()
    assert not registered.needed
    monkeypatch.setattr(forks, "_KNOWN", (3, 10))
    assert registered.needed


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
