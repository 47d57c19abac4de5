"""Many runs of every kind, eight at a time: what is left afterwards, and what they cost whoever keeps running them.

`REDOMA_SOAK=10000` makes it as many runs; the default is what a test suite can afford.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from jail_insides import Part, descriptors, eventually, interrupted, jail, look, pool_of, resident, run, soon, zygote_of

from redoma import AsyncExecutor, Status
from redoma.backends.jail import JailBackend

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12 warns of any thread
RUNS = int(os.environ.get("REDOMA_SOAK", "600"))  # read here: a test of its own sees none of the user's variables
AT_ONCE = 8
MiB = 1 << 20


class Soak:
    """One jail, and the kinds of run that it is put to. Each knows how it must end."""

    def __init__(self, directory: Path) -> None:
        self.executor, self.backend = jail(directory, maximum=12)
        self.ends: Counter[str] = Counter()
        self.wrong: list[str] = []

    async def ok(self, number: int) -> None:
        result = await run(self.executor, f"print({number})\n{number} * 2")
        self.check("ok", result, Status.OK, result.value == number * 2 and result.stdout == f"{number}\n")

    async def error(self, number: int) -> None:
        result = await run(self.executor, f"raise ValueError({number})")
        self.check("error", result, Status.ERROR, result.exception == "ValueError")

    async def leaves_things(self, number: int) -> None:
        """Processes that outlive it, shared memory, files, descriptors: all of it is the cell's."""
        code = (
            "import os, time, socket, multiprocessing.shared_memory as m\n"
            "kept = m.SharedMemory(create=True, size=4096)\n"
            "open('/tmp/left', 'w').write('x')\n"
            "a, b = socket.socketpair()\n"
            "for _ in range(3):\n"
            "    if os.fork() == 0:\n"
            "        os.setsid()\n"
            "        if os.fork() == 0: time.sleep(61)\n"
            "        os._exit(0)\n"
            "os._exit(3)"
        )
        result = await run(self.executor, code)
        self.check("leaves things", result, Status.ERROR, result.exit_code == 3)

    async def timeout(self, number: int) -> None:
        code, language = random.choice(
            [("while True: pass", "python"), ("import time; time.sleep(50)", "python"), ("sleep 50", "bash")]
        )
        result = await run(self.executor, code, language, limits={"time": 0.6})
        self.check("timeout", result, Status.TIMEOUT)

    async def memory(self, number: int) -> None:
        result = await run(self.executor, "x = []\nwhile True: x.append('a' * 1000000)", limits={"memory": 64 * MiB})
        self.check("memory", result, Status.MEMORY)

    async def flood(self, number: int) -> None:
        result = await run(self.executor, "while True: print('x' * 1000)", limits={"output_total": 300_000})
        self.check("flood", result, Status.OUTPUT)

    async def bash(self, number: int) -> None:
        result = await run(self.executor, f"echo {number} | (read a; echo $a; (sleep 62 &))", "bash")
        self.check("bash", result, Status.OK, result.stdout == f"{number}\n")

    async def command(self, number: int) -> None:
        result = await self.executor.command(["cat"], stdin=f"{number}", backend="jail", policy="none")
        self.check("command", result, Status.OK, result.stdout == str(number))

    async def files(self, number: int) -> None:
        given = {f"in/{name}": os.urandom(200) for name in range(20)}
        code = "import os, shutil\nshutil.copytree('in', 'out')\nos.symlink('/etc/passwd', 'out/link')"
        result = await run(self.executor, code, files=given, outputs=["out/**"])
        wanted = {name.replace("in/", "out/"): content for name, content in given.items()}
        self.check("files", result, Status.OK, result.files == wanted)

    async def odd_limits(self, number: int) -> None:
        result = await run(self.executor, "open('a', 'w').write('a' * 9000000)", limits={"disk": 8 * MiB})
        self.check("odd limits", result, Status.ERROR, "OSError" in (result.error or ""))

    async def cancelled(self, number: int) -> None:
        code, language = random.choice([("import time; time.sleep(50)", "python"), ("sleep 50", "bash")])
        task = asyncio.create_task(run(self.executor, code, language))
        await asyncio.sleep(random.choice([0, 0.001, 0.01, 0.05]))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        self.ends["cancelled: cancelled"] += 1

    def killed(self, part: Part) -> Callable[[int], Awaitable[None]]:
        async def kill(number: int) -> None:
            result = await interrupted(self.executor, self.backend, part)
            self.check(f"{part} killed", result, Status.KILLED if part == "guest" else Status.FAILED)

        return kill

    def check(self, kind: str, result: Any, status: Status, otherwise_right: bool = True) -> None:
        self.ends[f"{kind}: {result.status}"] += 1
        if result.status is not status or not otherwise_right:
            self.wrong.append(f"{kind}: {result}"[:2000])

    async def go(self, runs: int, choose: random.Random) -> None:
        kinds = {
            self.ok: 30,
            self.error: 8,
            self.leaves_things: 8,
            self.timeout: 5,
            self.memory: 5,
            self.flood: 4,
            self.bash: 8,
            self.command: 8,
            self.files: 6,
            self.odd_limits: 4,
            self.cancelled: 8,
            self.killed("init"): 3,
            self.killed("guest"): 3,
        }
        todo = iter(choose.choices(list(kinds), list(kinds.values()), k=runs))
        await asyncio.gather(*(self._work(todo) for _ in range(AT_ONCE)))

    async def _work(self, todo: Any) -> None:
        for number, kind in enumerate(todo):
            await kind(number)


async def test_many_runs_of_every_kind_end_as_they_must_leave_nothing_and_cost_no_memory(tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    choose = random.Random(seed)
    soak = Soak(tmp_path)
    before = look()
    await soak.go(max(RUNS // 6, 100), choose)  # warm-up: caches and pools of the parent have grown to their size
    warm = {"parent": resident(os.getpid()), "zygote": resident(zygote_of(soak.backend))}
    zygote = zygote_of(soak.backend)
    await soak.go(RUNS, choose)

    assert zygote_of(soak.backend) == zygote  # none of it could end the zygote
    grown = {
        "parent": resident(os.getpid()) - warm["parent"],
        "zygote": resident(zygote) - warm["zygote"],
    }
    assert await soon(lambda: pool_of(soak.backend).counts()["arming"] == 0)  # else it holds those of a cell
    idle = pool_of(soak.backend).counts()
    own = descriptors(zygote) if os.access(f"/proc/{zygote}/fd", os.R_OK) else {}
    await soak.executor.aclose()
    print(f"seed {seed}; {dict(sorted(soak.ends.items()))}; grown {grown} from {warm}; {idle}; zygote's own {len(own)}")

    assert not soak.wrong
    assert before.left_in_the_end() == {}
    assert grown["parent"] < 12 * MiB  # the allocator's slack; a leak of 2 KiB a run shows in 10,000
    assert grown["zygote"] < 1 * MiB
    assert len(own) < 12 + 2 * 16  # two for each view that cells have had at one time


async def test_a_zygote_killed_again_and_again_leaves_nothing(tmp_path: Path) -> None:
    executor, backend = jail(tmp_path, maximum=6)
    before = look()
    await run(executor)
    done = asyncio.Event()

    async def kill() -> None:
        while not done.is_set():
            await asyncio.sleep(random.uniform(0.05, 0.3))
            if (pid := pool_of(backend).zygote_pid) is not None:
                with suppress(ProcessLookupError):  # it is dead already, and its pool hasn't noticed
                    os.kill(pid, signal.SIGKILL)

    async def work() -> list[Status]:
        return [(await run(executor, "import time; time.sleep(0.01)")).status for _ in range(15)]

    killer = asyncio.create_task(kill())
    statuses = [status for each in await asyncio.gather(*(work() for _ in range(4))) for status in each]
    done.set()
    await killer
    assert set(statuses) <= {Status.OK, Status.FAILED}
    assert await first_ok(executor)
    await executor.aclose()
    assert before.left_in_the_end() == {}


async def first_ok(executor: AsyncExecutor) -> bool:
    """The last kill may still be on its way to the cells."""
    for _ in range(10):
        if (await run(executor)).status is Status.OK:
            return True
    return False


def test_backends_that_are_dropped_without_being_closed_end_with_the_process(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        backend = JailBackend()
        from redoma import Request

        asyncio.run(backend.run(Request(code="1"), lambda *_: True))
        os.write(os.open(tmp_path / "zygote", os.O_CREAT | os.O_WRONLY), str(zygote_of(backend)).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    zygote = int((tmp_path / "zygote").read_text())
    assert eventually(lambda: not os.path.exists(f"/proc/{zygote}"))
