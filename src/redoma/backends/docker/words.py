"""What the engine's errors mean, in words that say what to do."""

from __future__ import annotations

import grp
import importlib.util
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ...lib.errors import BackendError, BackendUnavailable
from ...lib.extras import pip_install
from ...lib.units import ENGINES


class CannotStart(BackendError):
    """The program of a container is not in its image, or can't be started."""


class CannotRemove(BackendError):
    """A container of ours may still run, and has to be removed by hand."""


def closed() -> BackendError:
    return BackendError("docker is closed", why="its executor was", next="make a new executor")


def library() -> None:
    """Raise if the library that speaks with engines is not installed."""
    try:
        found = importlib.util.find_spec("aiodocker")
    except ValueError:  # somebody has forbidden it, which is what `None` among the loaded modules means
        found = None
    if found is None:
        raise BackendUnavailable(
            "docker can't be used", why="aiodocker is not installed", next=pip_install("redoma[docker]")
        )


def no_engine(why: str, next: str = "") -> BackendUnavailable:  # noqa: A002 - as in the errors
    if not next:
        start = "start it (`sudo systemctl start docker`)"
        if shutil.which("dockerd", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin") is None:
            start = "install one (`sudo apt install docker.io`)"
        next = f"{start}, or set DOCKER_HOST"  # noqa: A001
    return BackendUnavailable("no Docker engine answers", why=why, next=next)


def bad_address(url: str, problem: str) -> BackendUnavailable:
    next_step = f"write it with one of {', '.join(ENGINES)}"
    if url.startswith("ssh://"):
        forward = "ssh -nNT -L /tmp/engine.sock:/var/run/docker.sock"
        next_step = f"bring its socket here (`{forward} {url.removeprefix('ssh://')}`) and use unix:///tmp/engine.sock"
    return no_engine(f"{url!r} is no engine that can be used: {problem}", next_step)


def no_permission(path: str) -> BackendUnavailable:
    """Joining a group is only advised where that would help, and is not the same as becoming root."""
    why = f"this user can't open {path}"
    next_step = "use another engine (set DOCKER_HOST; a rootless one is your own), or Redoma as a user who may"
    try:
        about = os.stat(path)
    except OSError:
        why = f"this user may not enter the directory of {path}"
    else:
        if about.st_gid and about.st_mode & 0o060 == 0o060:
            with suppress(KeyError):  # a group without a name can't be joined by it
                group = grp.getgrgid(about.st_gid).gr_name
                why += f", which belongs to the group {group!r}"
                next_step = (
                    f"sudo usermod -aG {group} $USER, then log in again; note that this group is as powerful as root"
                )
    return BackendUnavailable("the Docker engine may not be used", why=why, next=next_step)


@contextmanager
def explained(**about: str) -> Iterator[None]:
    """Turn what aiodocker raises into an error of ours. `about`: image, runtime, user, program, where they matter."""
    import aiodocker
    import aiohttp

    try:
        yield
    except aiodocker.DockerError as error:
        raise explain(error.status, str(error.message), **about) from error
    except TimeoutError as error:
        raise BackendError("the Docker engine does not answer", why="it took too long", next="see its log") from error
    except (aiohttp.ClientError, OSError) as error:
        raise BackendUnavailable(
            "the Docker engine was lost", why=str(error) or type(error).__name__, next="see if it runs: `docker info`"
        ) from error


def explain(status: int, message: str, **about: str) -> BackendError:
    image, program = about.get("image", ""), about.get("program", "")
    if status == 900:  # aiodocker's own number
        why = re.sub(r"^Cannot connect to Docker Engine via ", "", message)
        if "Permission denied" in message and (path := re.search(r"unix://(\S+)", message)):
            return no_permission(path[1])
        return no_engine(why)
    if re.search(r"no such image|manifest unknown|pull access denied|not found: manifest", message, re.IGNORECASE):
        return BackendUnavailable(
            f"the image {image!r} is not there",
            why=message
            if "pull" in message or "manifest" in message
            else "no image is fetched unless that is asked for",
            next=f"docker pull {image}, or set `pull: true`",
        )
    if re.search(r"unknown (or invalid )?runtime", message, re.IGNORECASE):
        return BackendUnavailable(
            f"the engine has no runtime {about.get('runtime', '')!r}",
            why=message,
            next="install it and name it under `runtimes` in the engine's daemon.json, or leave `runtime` out",
        )
    if "unable to find user" in message or "unable to find group" in message:
        return BackendError(
            f"the user {about.get('user', '')!r} is not in the image {image!r}",
            why="its /etc/passwd and /etc/group don't name it",
            next="use a number such as 1000:1000",
        )
    if re.search(r"mount config|bind source path|invalid volume|includes invalid characters|mount path", message):
        return BackendError(
            "a volume can't be mounted", why=message, next="mend `volumes`: /host/path:/container/path:ro"
        )
    if program and is_missing(message):
        return CannotStart(
            f"the image {image!r} can't be used",
            why=f"it has no {program}",
            next=f"use one that has, such as {'python:3.11-slim' if program == 'python3' else 'bash:5.2-alpine'}",
        )
    return BackendError("the Docker engine refused", why=message, next="see its log, and `docker info`")


def is_missing(message: str) -> bool:
    """Whether the engine says that the program of a container can't be found or started."""
    return bool(
        re.search(r"executable file not found|no such file or directory|permission denied|exec format", message)
    )
