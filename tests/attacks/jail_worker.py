"""Carries out attacks, several at a time, as the user who started it: names as a JSON line in, verdicts as lines out.

A separate program, so that the same attacks can be run by root and by an unprivileged user (see `jail_crew`).
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from jail_attack import CONTROLS, SLOW, STARTED, Attack, Control, Seen, met, text_of
from jail_stage import Stage, Victim
from jail_suite import ATTACKS
from lean_suite import OWN, OWN_NAMES

from redoma import Config
from redoma.backends.base import Backend
from redoma.backends.jail import JailBackend
from redoma.backends.jail.lean import LeanBackend
from redoma.backends.native.backend import NativeBackend
from redoma.config import AuditConfig
from redoma.lib.files import remove_tree
from redoma.models import Result
from redoma.pipeline.executor import AsyncExecutor

_AT_ONCE = 6 if SLOW == 1 else 3
_LOOKS = 4
"""Runs that look for what an earlier one planted: the first get cells armed before it, the others cells made after."""
_LIMITS = {"time": 45.0 * SLOW}
_WHOLE_HOST = {"cpu": 1e9, "memory": 1 << 50, "processes": 1 << 20}
"""Without its own /proc a cell's init counts the host's processes as the cell's: their usage must not matter."""
_OTHER_LOCKS = frozenset({"capabilities", "landlock", "user-namespaces"})
"""Layers that would hide a gap in the system call filter, by refusing for another reason."""
_NAIVE = Path(__file__).with_name("jail_naive.py")


class Worker:
    """`lean`: attack lean cells, and none with a layer left out: the jail's suite has seen each attack succeed."""

    def __init__(self, *, lean: bool = False) -> None:
        self._lean = lean
        self._stage = Stage()
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._executors: dict[str | frozenset[str], AsyncExecutor] = {}

    async def verdict(self, attack: Attack) -> dict[str, Any]:
        """Return how the attack went in the jail, and how without its layer."""
        if why := attack.absent():
            return {"name": attack.name, "absent": why}
        async with self._places:
            start = time.monotonic()
            guarded = await self._attempt(attack, Control(), attack.limits)
            admitted = attack.kernels_own and all("not counted" in seen.memory_layer for seen in guarded)
            report: dict[str, Any] = {
                "name": attack.name,
                "started": all(STARTED in seen.stdout for seen in guarded),
                "breached": succeeded(attack, guarded) and not admitted,
                "guarded": " | ".join(map(str, guarded)),
            }
            if attack.beside and not all(seen.met for seen in guarded):
                report["broken"] = f"the two runs were not alive at the same time: {report['guarded']}"
            if self._lean and attack.name not in OWN_NAMES:
                return {**report, "seconds": time.monotonic() - start}
            if "seccomp" in attack.control.without and not attack.control.limits and not self._lean:
                alone = await self._attempt(attack, Control(without=_OTHER_LOCKS), attack.limits)
                report |= {"filter": succeeded(attack, alone), "alone": " | ".join(map(str, alone))}
            if (CONTROLS == "all" or attack.control.limits) and (not attack.control.root or os.getuid() == 0):
                bare = await self._attempt(attack, attack.control, {**attack.limits, **attack.control.limits})
                report |= {"control": succeeded(attack, bare), "bare": " | ".join(map(str, bare))}
            return {**report, "seconds": time.monotonic() - start}

    async def _attempt(self, attack: Attack, control: Control, limits: Any) -> list[Seen]:
        """Return every run that looks, in order. The run that plants something is not included."""
        codes = [attack.code] * (2 if attack.alike else 1)
        if attack.before:
            codes = [attack.before, *[attack.code] * (_LOOKS if control.where == "jail" else 1)]
        if attack.before and control.where == "reused":
            codes = [attack.before + "\n" + attack.code]
        if attack.victim:
            async with _only_victim():
                return await self._look(attack, control, limits, codes)
        return await self._look(attack, control, limits, codes)

    async def _look(self, attack: Attack, control: Control, limits: Any, codes: list[str]) -> list[Seen]:
        token, before = secrets.token_hex(12), frozenset(os.listdir("/proc"))
        victim = Victim(token) if attack.victim else None
        targets = self._stage.targets(token, victim)
        codes = [text_of(code, attack.language, targets) for code in codes]
        if control.where == "naive":
            seen = await self._naive(codes, token, bool(attack.outputs))
        else:
            executor = self._executor(control)
            if attack.beside:
                codes.append(text_of(attack.beside, attack.language, targets))
                for _ in range(6):  # on a busy machine one may be over before the other has begun
                    runs = [_run(executor, attack, code, limits, control) for code in codes]
                    look, other = await asyncio.gather(*runs)
                    seen = [replace(look, met=met(look, other))]
                    if seen[0].met:
                        break
            else:
                seen = [await _run(executor, attack, code, limits, control) for code in codes]
        survivors, planted = _survivors(token, before), self._stage.plant(token).exists()
        hits = tuple(victim.end()) if victim else ()
        planter_ran = len(seen) > 1 and STARTED in seen[0].stdout
        looks = seen[1:] if attack.before and planter_ran else seen
        return [replace(one, survivors=survivors, planted=planted, hits=hits) for one in looks]

    def _executor(self, control: Control) -> AsyncExecutor:
        key = control.without if control.where != "native" else "native"
        if key not in self._executors:
            cells = LeanBackend if self._lean else JailBackend
            backend: Backend = NativeBackend() if key == "native" else cells(minimum=1, without=control.without)
            config = Config(audit=AuditConfig(enabled=False, directory=Path(tempfile.gettempdir())))
            self._executors[key] = AsyncExecutor(config, backends=[backend])
        return self._executors[key]

    async def _naive(self, codes: list[str], token: str, collect: bool) -> list[Seen]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", str(_NAIVE), token),  # what it leaves is found, and ended, by this token
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={"HOST_SECRET": os.environ["HOST_SECRET"], "PATH": os.defpath, "REDOMA_SLOW": str(SLOW)},
            start_new_session=True,
            limit=1 << 28,
        )
        order = {"codes": codes, "place": str(self._stage.plant(token).parent), "collect": collect}
        out, err = await process.communicate(json.dumps(order).encode() + b"\n")
        if not out:
            return [Seen(status="failed", stderr=err.decode(errors="replace"))]
        seen = []
        for report in json.loads(out):
            remove_tree(Path(report.pop("workspace")))
            files = {name: content.encode("latin-1") for name, content in report.pop("files").items()}
            seen.append(Seen(files=files, **report))
        return seen

    async def close(self) -> None:
        for executor in self._executors.values():
            await executor.aclose()
        self._stage.close()


@asynccontextmanager
async def _only_victim() -> AsyncIterator[None]:
    """Wait until this machine has no other victim: some controls signal every pid, also those of other workers, which
    may be other users'. The lock is an abstract socket, which every user can take and which goes with its owner.
    """
    with socket.socket(socket.AF_UNIX) as lock:
        while True:
            try:
                lock.bind("\0redoma-test-victim")
                break
            except OSError:
                await asyncio.sleep(0.02)
        yield


def succeeded(attack: Attack, seen: list[Seen]) -> bool:
    if attack.alike:
        return len({one.stdout for one in seen}) < len(seen)
    return any(attack.succeeded(one) for one in seen)


async def _run(executor: AsyncExecutor, attack: Attack, code: str, limits: Any, control: Control) -> Seen:
    (backend,) = executor.backends
    result = await executor.run(
        code,
        attack.language,
        backend=backend,
        policy="none",
        limits={**_LIMITS, **(_WHOLE_HOST if "proc" in control.without else {}), **limits},
        outputs=attack.outputs,
        # With layers left out on purpose, a run must declare that it accepts fewer.
        require=("descriptors",) if control.without else (),
        # Native passes only the variables of the request.
        env={"PATH": os.defpath} if backend == "native" else {},
    )
    return _seen(result)


def _seen(result: Result) -> Seen:
    return Seen(
        status=result.status.value,
        exit_code=result.exit_code,
        stdout=result.stdout,
        stderr=result.stderr,
        value=result.value,
        exception=result.exception,
        error=result.error,
        wall=result.usage.wall,
        cpu=result.usage.cpu,
        files=result.files,
        left_out=result.left_out,
        memory_layer=result.isolation.layers.get("memory", ""),
    )


def _survivors(token: str, before: frozenset[str]) -> int:
    """Return how many processes have the token among their arguments, and end them: a control leaves nothing behind.
    Those that were there before are not read: there are hundreds, hundreds of times."""
    found = 0
    for process in filter(str.isdigit, set(os.listdir("/proc")) - before):
        with (
            suppress(OSError),
            open(f"/proc/{process}/cmdline", "rb", buffering=0) as file,
        ):
            words = file.readall()
            if token.encode() in words and b"victim-" not in words:
                found += 1
                os.kill(int(process), signal.SIGKILL)
    return found


def _traces() -> dict[str, set[str]]:
    """Return everything on the host that a run could leave something in."""
    children, todo = set[str](), [os.getpid()]
    while todo:
        with suppress(OSError):
            for thread in Path(f"/proc/{todo.pop()}/task").iterdir():
                below = set((thread / "children").read_text().split())
                todo.extend(int(child) for child in below - children)
                children |= below
    groups = {  # `os.walk` ignores directories that vanish meanwhile: other tests may have cells
        os.path.join(place, name)
        for place, names, _ in os.walk("/sys/fs/cgroup")
        for name in names
        if name.startswith(f"redoma-{os.getpid()}-")
    }
    return {
        "processes": children,
        "mounts": set(Path("/proc/self/mountinfo").read_text().splitlines()),
        "directories": {
            entry.name
            for entry in os.scandir(tempfile.gettempdir())
            if entry.name.startswith(("redoma", "jail-")) and _is_ours(entry)
        },
        # Other tests that run at the same time use this prefix.
        "shared memory": {name for name in os.listdir("/dev/shm") if not name.startswith("redoma-test-")}
        | _identifiers("shm"),
        "message queues": _identifiers("msg"),
        "control groups": groups,
    }


def _is_ours(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.stat(follow_symlinks=False).st_uid == os.getuid()
    except FileNotFoundError:  # another test has removed it meanwhile
        return False


def _identifiers(kind: str) -> set[str]:
    return {line.split()[1] for line in Path(f"/proc/sysvipc/{kind}").read_text().splitlines()[1:]}


async def _told(worker: Worker, attack: Attack) -> dict[str, Any]:
    try:
        return await worker.verdict(attack)
    except Exception:  # a bug in this harness: the other attacks continue
        return {"name": attack.name, "broken": traceback.format_exc()}


async def main() -> None:
    wanted: list[str] = json.loads(sys.stdin.readline())
    before = _traces()
    attacks = ATTACKS | {attack.name: attack for attack in OWN}
    worker = Worker(lean="lean" in sys.argv[1:])
    try:
        begun = [asyncio.create_task(_told(worker, attacks[name])) for name in wanted]  # in the order of the request
        for verdict in asyncio.as_completed(begun):
            print(json.dumps(await verdict), flush=True)
    finally:
        await worker.close()
    print(json.dumps({"left": _left(before)}), flush=True)


def _left(before: dict[str, set[str]]) -> dict[str, list[str]]:
    """Return what is there that wasn't. The host's init reaps orphans of the controls, which may take a moment; what
    other tests have made meanwhile goes when they end."""
    deadline = time.monotonic() + 120
    while True:
        left = {kind: sorted(there - before[kind]) for kind, there in _traces().items() if there - before[kind]}
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)


if __name__ == "__main__":
    asyncio.run(main())
