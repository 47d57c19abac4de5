"""All facts of one round: every collector at once, each bounded and failing alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Mapping
from typing import Any

import msgspec

from ..lib.sanitise import sanitise
from ..pipeline.executor import AsyncExecutor
from . import machine
from .aside import Aside, Late
from .model import CommandProbe, Facts, Probe
from .probes import probe

_SECONDS = 5.0  # for a fact of the machine, which takes milliseconds
_MOUNT_SECONDS = 2.0
_MORE = 5.0  # beyond its own time: what a command needs to be started and ended
_MOST_BYTES = 256 * 1024  # of one fact
_LONGEST_PROBLEM = 300


async def collect(probes: Mapping[str, Probe], executor: AsyncExecutor, aside: Aside) -> tuple[Facts, dict[str, str]]:
    """Facts by name, and why some of them are None."""
    machine.require()
    jobs: dict[str, Awaitable[Any]] = {name: aside.run(name, work, _SECONDS) for name, work in machine.FACTS.items()}
    jobs["mounts"] = _mounts(aside)
    for name, given in probes.items():
        work = probe(name, given, aside, executor)
        jobs[name] = _within(given.timeout + _MORE, work) if isinstance(given, CommandProbe) else work
    found = await asyncio.gather(*jobs.values(), return_exceptions=True)
    facts: Facts = {"now": time.time(), "host": machine.host()}
    problems: dict[str, str] = {}
    for name, fact in zip(jobs, found, strict=True):
        if isinstance(fact, BaseException) and not isinstance(fact, Exception):
            raise fact  # we are told to end
        problem = str(fact) or type(fact).__name__ if isinstance(fact, Exception) else _unfit(fact)
        facts[name] = None if problem else fact
        if problem:
            problems[name] = sanitise(problem)[:_LONGEST_PROBLEM]
    mounts = facts["mounts"]
    facts["disk"] = mounts and [space for mount in mounts if (space := mount.pop("space")) is not None]
    if mounts is None:
        problems["disk"] = problems["mounts"]
    return facts, problems


def _unfit(fact: Any) -> str:
    """Why it can't be carried around as data; empty if it can."""
    try:
        return "it is too large" if len(msgspec.json.encode(fact)) > _MOST_BYTES else ""
    except (ValueError, TypeError) as error:  # a name of bytes that are no text
        return f"it is no plain data ({error})"


async def _mounts(aside: Aside) -> list[dict[str, Any]]:
    """One that doesn't answer, as one whose server is gone, says nothing of the others."""
    mounts = await aside.run("mounts", machine.stored, _SECONDS)

    async def look(mount: machine.Mount) -> dict[str, Any]:
        space, answers, error = None, True, ""
        try:
            space = await aside.run(f"mount {mount.path}", lambda: machine.space(mount), _MOUNT_SECONDS)
        except (OSError, Late) as failure:
            # In a directory that is not ours to enter, or below another mount: not for us to look at, and no failure.
            answers, error = isinstance(failure, PermissionError | FileNotFoundError), sanitise(str(failure))
        return {
            **{"mount": sanitise(mount.path), "kind": mount.kind, "broke": mount.broke},
            **{"answers": answers, "error": error or None, "space": space},
        }

    return list(await asyncio.gather(*map(look, mounts)))


async def _within(seconds: float, work: Awaitable[Any]) -> Any:
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        raise Late(f"it has not ended within {seconds:g} s") from None
