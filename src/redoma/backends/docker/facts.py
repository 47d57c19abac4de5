"""What an engine offers, what is missing there, what that costs, and the command that fixes it: for `redoma doctor`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

from ...lib.errors import BackendError, BackendUnavailable
from ..jail.host import Fact
from . import verdict
from .box import Box
from .engine import Engine, must_be_there


def facts(box: Box, host: str | None) -> tuple[Fact, ...]:
    """Asks the engine. Where there is none, `capabilities` says all there is to say."""
    try:
        must_be_there(host)
    except BackendUnavailable:
        return ()
    found: list[Fact] = []
    # A loop of its own: whoever asks may be on one, and doesn't wait on it.
    thread = threading.Thread(target=lambda: found.extend(asyncio.run(_look(box, host))))
    thread.start()
    thread.join()
    return tuple(found)


async def _look(box: Box, host: str | None) -> list[Fact]:
    engine = Engine(host)
    try:
        client = await engine.client()
        return [_engine(engine.about, client.api_version), *_runtime(box, engine.about), *await _images(box, engine)]
    except BackendError as error:
        return [Fact(name="docker", state="missing", what=f"{error.what}: {error.why}", fix=f"# {error.next}")]
    except Exception as error:  # not foreseen, and no reason to keep back what is known of the rest of this host
        what = f"the engine can't be used: {type(error).__name__}: {error}"
        return [Fact(name="docker", state="missing", what=what, fix="# see DOCKER_HOST, or `docker.host`")]
    finally:
        await engine.aclose()


def _engine(about: Mapping[str, Any], version: str) -> Fact:
    groups = f"cgroup v{about.get('CgroupVersion', '1')}"
    what = (
        f"engine {about.get('ServerVersion', '?')} (interface {version}), {about.get('OperatingSystem', '?')}, {groups}"
    )
    lacking = [name for name in ("MemoryLimit", "SwapLimit", "PidsLimit") if about.get(name) is False]
    if lacking:
        return Fact(
            name="docker",
            state="degraded",
            what=f"{what}; without {', '.join(lacking)}",
            costs="runs that need those limits are refused",
            fix="# boot the engine's host with cgroup_enable=memory swapaccount=1, or with cgroup v2",
        )
    return Fact(name="docker", what=what)


def _runtime(box: Box, about: Mapping[str, Any]) -> list[Fact]:
    known = sorted(about.get("Runtimes") or ())
    if box.runtime and box.runtime not in known:
        return [
            Fact(
                name="docker runtime",
                state="missing",
                what=f"the engine has no {box.runtime}; it has {', '.join(known)}",
                costs="no container can be made",
                fix="# install it and name it under `runtimes` in the engine's daemon.json,\n"
                "# or leave `docker.runtime` out of your configuration",
            )
        ]
    runtime = box.runtime or about.get("DefaultRuntime", "?")
    return [Fact(name="docker runtime", what="gVisor" if verdict.is_gvisor(runtime) else str(runtime))]


async def _images(box: Box, engine: Engine) -> list[Fact]:
    uses: dict[str, list[str]] = {}
    for language in ("python", "bash", "command"):
        uses.setdefault(getattr(box, language), []).append(language)
    found = []
    for image, languages in uses.items():
        try:
            await engine.get(f"images/{image}/json")
            found.append(Fact(name="docker image", what=f"{image}, for {' and '.join(languages)}"))
        except BackendError as error:
            found.append(
                Fact(
                    name="docker image",
                    state="ok" if box.pull else "degraded",
                    what=f"{image} is not there" + (", and will be fetched" if box.pull else f": {error.why}"),
                    costs="" if box.pull else f"no {' and no '.join(languages)} in containers",
                    fix="" if box.pull else f"docker pull {image}",
                )
            )
    return found
