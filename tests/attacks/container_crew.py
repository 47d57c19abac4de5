"""Carries out the attacks on the jail in containers: those that only look share a container, others run one by one."""

from __future__ import annotations

import asyncio
import json
import secrets
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jail_attack import STARTED, Attack, Control, Seen, text_of
from jail_suite import ATTACKS
from jail_worker import Worker, succeeded

from redoma import Config
from redoma.backends.docker import Box, DockerBackend
from redoma.config import AuditConfig
from redoma.pipeline.executor import AsyncExecutor

_AT_ONCE = 3
_TOGETHER = 30
_LOOKS = 3
"""Containers that look for what an earlier one has planted: made before it and after it."""
_SAYS_SO = Attack.__dataclass_fields__["succeeded"].default
_EACH = """
import json, os, select, signal, sys, time

def attempt(language, code):
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.dup2(theirs, 1)
        os.dup2(theirs, 2)
        os.closerange(3, 200)
        if language == 'bash':
            os.execvp('bash', ['bash', '--noprofile', '--norc', '-c', code])
        try:
            exec(compile(code, 'main.py', 'exec'), {'__name__': '__main__'})
        except BaseException as error:
            print(repr(error))
        sys.stdout.flush()
        os._exit(0)
    os.close(theirs)
    text, end = b'', time.monotonic() + 30
    while select.select([ours], [], [], max(0, end - time.monotonic()))[0]:
        piece = os.read(ours, 65536)
        if not piece:
            break
        text = (text + piece)[-20000:] if len(text) > 20000 else text + piece
    os.close(ours)
    try: os.killpg(child, signal.SIGKILL)
    except OSError: pass
    os.waitpid(child, 0)
    return text.decode('utf-8', 'replace')

for name, language, code in json.load(open('attacks.json')):
    text = attempt(language, code)
    print(json.dumps([name, text[:300] + text[-300:], 'BREACH-4711' in text]), flush=True)
"""


def only_looks(attack: Attack) -> bool:
    """Return whether it reports success itself, and disturbs no other attack beside it."""
    own = attack.limits or attack.outputs or attack.victim or attack.alike or attack.succeeded is not _SAYS_SO
    return not own and attack.name not in _DISTURBING


_DISTURBING = {"sees a process of the host", "takes its own network interface down"}


class Containers(Worker):
    """The containers of one kind of box."""

    def __init__(self, box: Box, *, place: bool = False) -> None:
        super().__init__()
        if place:  # the place that attacks target, if it is on the host
            volume = f"{self._stage.place}:{self._stage.place}"
            box = Box(**{name: getattr(box, name) for name in box.__struct_fields__} | {"volumes": (volume,)})
        self._places = asyncio.Semaphore(_AT_ONCE)
        config = Config(audit=AuditConfig(enabled=False, directory=Path(tempfile.gettempdir())))
        self._docker = AsyncExecutor(config, backends=[DockerBackend(box)])
        self._pooled = AsyncExecutor(config, backends=[DockerBackend(box, minimum=1)])

    def _executor(self, control: Control) -> AsyncExecutor:
        return self._docker

    async def carry_out(self, names: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return for each whether it began, whether it succeeded, and what was seen."""
        attacks = [ATTACKS[name] for name in names if not ATTACKS[name].absent()]
        looking = [attack for attack in attacks if only_looks(attack) and not attack.before]
        sharing = [attack for attack in attacks if only_looks(attack) and attack.before]
        work = [
            *(self._together(looking[start : start + _TOGETHER]) for start in range(0, len(looking), _TOGETHER)),
            *([self._one_after_the_other(sharing)] if sharing else []),
            *(self._alone(attack) for attack in attacks if not only_looks(attack)),
        ]
        return {name: seen for part in await asyncio.gather(*work) for name, seen in part.items()}

    async def _alone(self, attack: Attack) -> dict[str, dict[str, Any]]:
        async with self._places:
            seen = await self._attempt(attack, Control(), attack.limits)
        return {
            attack.name: {
                "started": all(STARTED in one.stdout or STARTED in one.stderr for one in seen),
                "breached": succeeded(attack, seen),
                "seen": " | ".join(map(str, seen)),
            }
        }

    async def _together(self, attacks: list[Attack]) -> dict[str, dict[str, Any]]:
        async with self._places:
            return await self._each(attacks, [attack.code for attack in attacks])

    async def _one_after_the_other(self, attacks: list[Attack]) -> dict[str, dict[str, Any]]:
        async with self._places:
            token = secrets.token_hex(12)
            planted = await self._each(attacks, [attack.before for attack in attacks], token, self._pooled)
            found = dict(planted)
            for _ in range(_LOOKS):
                looks = await self._each(attacks, [attack.code for attack in attacks], token, self._pooled)
                for name, look in looks.items():
                    if not found[name]["breached"]:
                        found[name] = {**look, "started": look["started"] and planted[name]["started"]}
            return found

    async def _each(
        self, attacks: list[Attack], codes: list[str], token: str = "", executor: AsyncExecutor | None = None
    ) -> dict[str, dict[str, Any]]:
        targets = self._stage.targets(token or secrets.token_hex(12), None)
        listed = [
            (attack.name, attack.language, text_of(code, attack.language, targets))
            for attack, code in zip(attacks, codes, strict=True)
        ]
        result = await (executor or self._docker).run(
            _EACH,
            backend="docker",
            policy="none",
            limits={"time": 900.0, "output_bytes": 4 << 20, "output_lines": 10_000},
            files={"attacks.json": json.dumps(listed)},
            require=("container",),
        )
        seen = Seen(status=result.status.value, stderr=result.stderr, error=result.error)
        found = {
            name: {"started": False, "breached": False, "seen": f"it never came to it: {seen}"} for name, *_ in listed
        }
        for line in result.stdout.splitlines():
            name, text, breached = json.loads(line)
            found[name] = {"started": STARTED in text, "breached": breached, "seen": text}
        return found

    async def close(self) -> None:
        await self._docker.aclose()
        await self._pooled.aclose()
        await super().close()
