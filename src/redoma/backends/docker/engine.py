"""The connection to an engine: finds it, explains its errors, and removes leftovers of crashed Redoma processes."""

from __future__ import annotations

import asyncio
import grp
import importlib.util
import io
import os
import re
import secrets
import shutil
import socket
import stat
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...lib.errors import BackendError, BackendUnavailable
from ...lib.extras import pip_install, restore_tls
from ...lib.units import ENGINES, engine_problem
from ...models.request import IMAGES
from ..base import uncancellable
from ..processes import exists, start_time

if TYPE_CHECKING:
    import aiodocker

LABEL = "redoma"
_TIMEOUT = 60.0  # seconds for one request to the engine; removing a container can take several
_REMOVAL_WAIT = 5.0  # seconds that a run waits for the removal of leftovers, which are none of its own
_RETRY_AFTER = 30.0  # seconds until such a removal is tried again
_MIN_API_VERSION = (1, 40)  # of the engine's API: Docker 19.03, the first with the limits that we set
_SOCKETS = ("/run/docker.sock", "/var/run/docker.sock", "~/.docker/run/docker.sock", "$XDG_RUNTIME_DIR/docker.sock")


def address(host: str | None) -> str | None:
    """Return the address of the engine: `host`, else DOCKER_HOST, else a socket in a usual place.

    None if docker's own configuration names a context, which aiodocker reads. Raises `BackendUnavailable`.
    """
    if given := host or os.environ.get("DOCKER_HOST"):
        return given
    if os.environ.get("DOCKER_CONTEXT"):
        return None
    for path in map(os.path.expandvars, map(os.path.expanduser, _SOCKETS)):
        if _is_socket(path):
            return f"unix://{path}"
    if os.path.isdir(os.path.expanduser("~/.docker/contexts")):
        return None
    raise _no_engine("no DOCKER_HOST, and no socket in the usual places")


def check_engine(host: str | None) -> None:
    """Raise `BackendUnavailable` if the engine clearly can't be used; sends it no request."""
    _require_library()
    where = address(host)
    if where is None:
        return
    if (problem := engine_problem(where)) is not None:
        raise _bad_address(where, problem)
    if not where.startswith("unix://"):
        return
    path = where.removeprefix("unix://")
    try:
        os.stat(path)
    except PermissionError:
        raise _no_permission(path) from None
    except (OSError, ValueError) as error:  # a path that is too long, or contains NUL
        missing = isinstance(error, (FileNotFoundError, NotADirectoryError))
        raise _no_engine(f"there is no socket {path}" if missing else str(error)[:200]) from None
    if not os.access(path, os.R_OK | os.W_OK):
        raise _no_permission(path)


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False


class Engine:
    """An engine, as used by one event loop."""

    def __init__(self, host: str | None) -> None:
        self._host = host
        self._client: aiodocker.Docker | None = None
        self._connector: Any = None
        self._opening, self._writing = asyncio.Lock(), asyncio.Lock()
        self.info: Mapping[str, Any] = {}
        """The engine's description of itself (`docker info`)."""
        self.names: set[str] = set()
        """Names of the containers that this process created and has not removed."""
        self.to_remove: set[str] = set()
        """Names of containers whose removal has failed so far."""
        self._volumes_to_remove: set[str] = set()
        self._stuck: dict[str, float] = {}
        """When to retry the removals that timed out, by name."""
        self._volume: str | None = None
        self._hosts: str | None = None
        self.without_init = False
        """Whether the engine lacks `docker-init`, its own small pid 1."""
        self.closing = asyncio.Event()
        """Set while closing: no new work is accepted; containers are removed, then the connection is closed."""

    async def client(self) -> aiodocker.Docker:
        """Return the client, connected on first use. Raises `BackendError` if the backend is closed or the engine
        unusable.
        """
        if self.closing.is_set():
            raise closed()
        client = await self._opened()
        if self.closing.is_set():  # closed while connecting
            raise closed()
        return client

    async def _opened(self) -> aiodocker.Docker:
        async with self._opening:
            if self._client is None:
                self._client = await self._open()
        return self._client

    async def _open(self) -> aiodocker.Docker:
        check_engine(self._host)
        restore_tls()
        import aiodocker
        import aiohttp

        where = address(self._host)
        if where is not None and where.startswith("unix://"):
            # No limit on connections: every waiting or running container holds one. And no keep-alive: a new connection
            # to a socket costs almost nothing, and descriptors that come and go look like a leak.
            self._connector = aiohttp.UnixConnector(where.removeprefix("unix://"), limit=0, force_close=True)
            where = "unix://localhost"  # aiodocker's own name for an engine behind a socket
        try:
            client = aiodocker.Docker(
                url=where, connector=self._connector, timeout=aiohttp.ClientTimeout(total=_TIMEOUT, connect=10.0)
            )
        except (aiodocker.DockerError, AssertionError, ImportError, ValueError, OSError) as error:
            # aiodocker reads docker's configuration only here; it may name a protocol that needs another library.
            raise _no_engine(str(error) or "docker's context leads nowhere") from error
        try:
            with readable_errors():
                about = await client.system.info()
                await self._check_version(client)
                self.info = about
                await self._sweep(client)
        except BaseException as error:
            await self._shut(client)
            if isinstance(error, (AttributeError, LookupError, TypeError, ValueError)):  # the answer is not an engine's
                why = f"what answers there is not a Docker engine ({type(error).__name__}: {error})"
                raise _no_engine(why, "see DOCKER_HOST, or `docker.host`") from error
            raise
        return client

    async def _check_version(self, client: aiodocker.Docker) -> None:
        version = client.api_version.removeprefix("v")
        if tuple(map(int, version.split("."))) < _MIN_API_VERSION:
            raise BackendUnavailable(
                f"the engine is too old: it speaks version {version}",
                why=f"{_MIN_API_VERSION[0]}.{_MIN_API_VERSION[1]} is the first with all that is needed",
                next="use Docker 19.03 or later",
            )

    @asynccontextmanager
    async def requests(self, **about: str) -> AsyncIterator[aiodocker.Docker]:
        """Yield the client. Errors of the engine become a `BackendError` that says what to do; `about` has the names
        for it.
        """
        client = await self.client()
        with readable_errors(**about):
            yield client

    @asynccontextmanager
    async def requests_while_closing(self) -> AsyncIterator[aiodocker.Docker]:
        """Yield the client for removals, which also work while closing."""
        client = await self._opened()
        with readable_errors():
            yield client

    async def get(self, path: str, **params: str | int) -> Any:
        """GET a path of the engine's API that aiodocker has no method for."""
        async with self.requests() as client:
            return await client._query_json(path, params=params)

    async def pull(self, image: str) -> None:
        """Pull an image, without a time limit. Raises `BackendError` if the backend is closed meanwhile."""
        async with self.requests(image=image) as client:
            pulling = asyncio.ensure_future(client.images.pull(image))
            closing = asyncio.ensure_future(self.closing.wait())
            try:
                await asyncio.wait([pulling, closing], return_when=asyncio.FIRST_COMPLETED)
                if not pulling.done():
                    raise closed()
                pulling.result()
            finally:
                for task in (pulling, closing):
                    task.cancel()
                await asyncio.gather(pulling, closing, return_exceptions=True)

    async def hosts(self, image: str) -> str | None:
        """Return the path, on the engine's host, of an /etc/hosts with only localhost; None if it can't be made.

        The file is in a volume of ours, written through a container that is never started.
        """
        async with self._writing:
            if self._hosts is None:
                self._volume = f"{LABEL}-{secrets.token_hex(8)}"
                try:
                    await uncancellable(self._write_hosts(image, self._volume))
                except BackendError:
                    self._remove_volume_later()
        return self._hosts

    async def _write_hosts(self, image: str, volume: str) -> None:
        async with self.requests() as client:
            about = {"Name": volume, "Labels": labels()}
            made = await client._query_json("volumes/create", method="POST", data=about)
            mount = {"Type": "volume", "Source": volume, "Target": "/hosts"}
            settings: dict[str, Any] = {"Image": image, "Cmd": ["none"], "HostConfig": {"Mounts": [mount]}}
            settings["Labels"] = labels()
            container = await client.containers.create(settings)
            try:
                named = _archive("hosts", b"127.0.0.1 localhost\n::1 localhost\n")
                await container.put_archive("/hosts", named)  # type: ignore[no-untyped-call]
            finally:
                if not await _removed(client, f"containers/{container.id}"):
                    self.to_remove.add(container.id)
        self._hosts = f"{made['Mountpoint']}/hosts"

    async def forget_hosts(self, failed: str | None = None) -> None:
        """Remove the hosts file: only if it is still the `failed` one, or any if None is given."""
        async with self._writing:  # otherwise it could be removed between the creation of the volume and its use
            if failed in (None, self._hosts):  # several runs fail together, and the first has already made a new one
                self._remove_volume_later()
        with suppress(BackendError):
            await self.remove_leftovers()

    def _remove_volume_later(self) -> None:
        if self._volume is not None:
            self._volumes_to_remove.add(self._volume)
        self._volume = self._hosts = None

    def take_over(self, other: Engine) -> None:
        """Take over the removal of what another engine object left. Its event loop is closed, so it can't do so
        itself.
        """
        self.to_remove |= other.names | other.to_remove
        self._volumes_to_remove |= other._volumes_to_remove | ({other._volume} if other._volume else set())

    async def remove_leftovers(self) -> None:
        """Try again to remove what could not be removed before."""
        if self.to_remove or self._volumes_to_remove:
            await self._remove_leftovers(await self._opened())

    async def _remove_leftovers(self, client: aiodocker.Docker) -> None:
        for kind, owed in (("containers", self.to_remove), ("volumes", self._volumes_to_remove)):
            names = [name for name in owed if self._stuck.get(name, 0.0) <= time.monotonic()]
            # All at once, so that one that the engine can't remove delays no other.
            gone = await asyncio.gather(*(_removed(client, f"{kind}/{name}") for name in names))
            owed.difference_update(name for name, is_gone in zip(names, gone, strict=True) if is_gone)
            later = time.monotonic() + _RETRY_AFTER
            self._stuck.update((name, later) for name, is_gone in zip(names, gone, strict=True) if is_gone is None)

    async def _sweep(self, client: aiodocker.Docker) -> None:
        """Remove the containers and volumes of Redoma processes that have died. What can't be removed now is tried
        again later.
        """
        ours = {"filters": f'{{"label": ["{LABEL}"]}}'}
        containers = await client._query_json("containers/json", params={"all": "1", **ours})
        volumes = (await client._query_json("volumes", params=ours)).get("Volumes") or ()
        self.to_remove |= {one["Id"] for one in containers if orphaned(one["Labels"])}
        self._volumes_to_remove |= {one["Name"] for one in volumes if orphaned(one.get("Labels") or {})}
        await self._remove_leftovers(client)

    async def kill_all(self) -> None:
        """Kill all our containers. Some may not be started yet, so call it until nothing runs."""
        if (client := self._client) is not None:
            await asyncio.gather(*(_kill(client, name) for name in self.names))

    async def aclose(self) -> None:
        await self.forget_hosts()  # what can't be removed now is swept after this process has ended
        async with self._opening:
            client, self._client = self._client, None
            if client is not None:
                await self._shut(client)

    async def _shut(self, client: aiodocker.Docker) -> None:
        await client.close()
        if self._connector is not None:
            await self._connector.close()
            self._connector = None


async def _kill(client: aiodocker.Docker, name: str) -> None:
    # it has ended or not begun, or the engine is lost, which the next request to it will report
    with suppress(BackendError):
        with readable_errors():
            await client.containers.container(name).kill(signal="SIGKILL")


# --- ownership of containers ---


def labels() -> dict[str, str]:
    """Return labels that name the process a container belongs to."""
    return {LABEL: "", **{f"{LABEL}.{name}": value for name, value in owner().items()}}


def owner() -> dict[str, str]:
    return {"pid": str(os.getpid()), "started": str(start_time(os.getpid()) or ""), **_machine()}


@cache
def _machine() -> dict[str, str]:
    return {
        "host": f"{socket.gethostname()} {_line('/etc/machine-id')}".strip(),
        "boot": _line("/proc/sys/kernel/random/boot_id"),
        "namespace": os.readlink("/proc/self/ns/pid") if os.path.exists("/proc/self/ns/pid") else "",
    }


def _line(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def orphaned(labelled: Mapping[str, str]) -> bool:
    """Return whether the process that a container belongs to has died. False if unknown."""
    theirs = {name.removeprefix(f"{LABEL}."): value for name, value in labelled.items()}
    ours = _machine()
    if theirs.get("host") != ours["host"] or not theirs.get("pid", "").isdigit():
        return False
    if theirs.get("boot") != ours["boot"]:
        return True  # this host has been rebooted since
    if theirs.get("namespace") != ours["namespace"]:
        return False  # we can't see the processes of that namespace
    pid, then = int(theirs["pid"]), theirs.get("started")
    now = start_time(pid) if then else None  # unknown without /proc, or if /proc hides other users' processes
    return not exists(pid) if now is None else str(now) != then


async def _removed(client: aiodocker.Docker, path: str) -> bool | None:
    """Remove something and return whether it is gone; None if the engine took too long."""
    import aiodocker
    import aiohttp

    try:
        async with asyncio.timeout(_REMOVAL_WAIT):
            async with client._query(path, method="DELETE", params={"force": "1", "v": "1"}):
                return True
    except aiodocker.DockerError as error:
        return error.status == 404
    except TimeoutError:
        return None
    except (aiohttp.ClientError, OSError):
        return False  # the next request to the engine will report that it is lost


def _archive(name: str, content: bytes) -> bytes:
    import tarfile

    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        about = tarfile.TarInfo(name)
        about.size, about.mode = len(content), 0o444
        archive.addfile(about, io.BytesIO(content))
    return stream.getvalue()


# --- errors of the engine, and what to do about them ---


class NoImage(BackendUnavailable):
    """The engine doesn't have the image of a container."""


class NoInit(BackendError):
    """The engine has no `docker-init`, which a container was to have as pid 1."""


class NoHosts(BackendError):
    """Our file for /etc/hosts is gone, because somebody removed the volume it was in."""


class CannotStart(BackendError):
    """The program of a container is not in its image, or can't be started."""


class CannotRemove(BackendError):
    """A container of ours may still run and must be removed by hand."""


def closed() -> BackendError:
    """Return the error for requests made after the backend was closed."""
    return BackendError("docker is closed", why="its executor was", next="make a new executor")


def _require_library() -> None:
    """Raise `BackendUnavailable` if aiodocker is not installed."""
    try:
        found = importlib.util.find_spec("aiodocker")
    except ValueError:  # the import is blocked: `sys.modules` has None for it
        found = None
    if found is None:
        raise BackendUnavailable(
            "docker can't be used", why="aiodocker is not installed", next=pip_install("redoma[docker]")
        )


def _no_engine(why: str, next: str = "") -> BackendUnavailable:  # noqa: A002 - as in the errors
    if not next:
        start = "start it (`sudo systemctl start docker`)"
        if shutil.which("dockerd", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin") is None:
            start = "install one (`sudo apt install docker.io`)"
        next = f"{start}, or set DOCKER_HOST"  # noqa: A001
    return BackendUnavailable("no Docker engine answers", why=why, next=next)


def _bad_address(url: str, problem: str) -> BackendUnavailable:
    next_step = f"write it with one of {', '.join(ENGINES)}"
    if url.startswith("ssh://"):
        forward = "ssh -nNT -L /tmp/engine.sock:/var/run/docker.sock"
        next_step = f"bring its socket here (`{forward} {url.removeprefix('ssh://')}`) and use unix:///tmp/engine.sock"
    return _no_engine(f"{url!r} is not an engine that can be used: {problem}", next_step)


def _no_permission(path: str) -> BackendUnavailable:
    """Return an error that advises joining the socket's group only if that would help and the group is not root's."""
    why = f"this user can't open {path}"
    next_step = "use another engine (set DOCKER_HOST; a rootless one is your own), or Redoma as a user who may"
    try:
        about = os.stat(path)
    except OSError:
        why = f"this user may not enter the directory of {path}"
    else:
        if about.st_gid and about.st_mode & 0o060 == 0o060:
            with suppress(KeyError):  # a group without a name can't be joined by name
                group = grp.getgrgid(about.st_gid).gr_name
                why += f", which belongs to the group {group!r}"
                next_step = (
                    f"sudo usermod -aG {group} $USER, then log in again; note that this group is as powerful as root"
                )
    return BackendUnavailable("the Docker engine may not be used", why=why, next=next_step)


@contextmanager
def readable_errors(**about: str) -> Iterator[None]:
    """Turn exceptions of aiodocker into a `BackendError`. `about` (image, runtime, user, program, hosts, init) is used
    to tell which, and in its message.
    """
    import aiodocker
    import aiohttp

    try:
        yield
    except aiodocker.DockerError as error:
        raise _explain(error.status, str(error.message), **about) from error
    except TimeoutError as error:
        raise BackendError("the Docker engine does not answer", why="it took too long", next="see its log") from error
    except (aiohttp.ClientError, OSError) as error:
        raise BackendUnavailable(
            "the Docker engine was lost", why=str(error) or type(error).__name__, next="see if it runs: `docker info`"
        ) from error


def _explain(status: int, message: str, **about: str) -> BackendError:
    image, program, hosts = (about.get(name, "") for name in ("image", "program", "hosts"))
    if status == 900:  # aiodocker's code for "cannot connect"
        why = re.sub(r"^Cannot connect to Docker Engine via ", "", message)
        if "Permission denied" in message and (path := re.search(r"unix://(\S+)", message)):
            return _no_permission(path[1])
        return _no_engine(why)
    if hosts and hosts in message:
        return NoHosts("the file for /etc/hosts is gone", why=message, next="run it again")
    if about.get("init") and "docker-init" in message:
        return NoInit("the engine has no init", why=message, next="install docker-init beside it")
    if re.search(r"no such image|manifest unknown|pull access denied|not found: manifest", message, re.IGNORECASE):
        return NoImage(
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
            "a volume can't be mounted", why=message, next="correct `volumes`: /host/path:/container/path:ro"
        )
    if program and _cannot_start(message):
        return CannotStart(
            f"the image {image!r} can't be used",
            why=f"it has no {program}",
            next=f"use one that has, such as {IMAGES['python' if program == 'python3' else 'bash']}",
        )
    return BackendError("the Docker engine refused", why=message, next="see its log, and `docker info`")


def _cannot_start(message: str) -> bool:
    """Return whether the message says that the program of a container can't be found or started."""
    return bool(
        re.search(r"executable file not found|no such file or directory|permission denied|exec format", message)
    )
