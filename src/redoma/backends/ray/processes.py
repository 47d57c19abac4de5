"""Ray on this machine: start a node of a cluster and stop it, and keep the invitation.

The directory of a node has:

    invitation.json   address, Ray's token and our key: to be copied to other machines; must be kept secret
    token             Ray's token, in the form in which Ray reads it
    node.json         the node's process: see `NodeProcess`
    ray.log           the output of Ray
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ...lib.errors import BackendError, BackendUnavailable, InvalidRequest
from ...lib.files import open_directory, open_regular, reason, require_ours
from ..jail.cgroup import Cgroups
from ..jail.cgroup_place import Unavailable, locate
from ..processes import start_time
from .engine import Invitation
from .protocol import KEY_BYTES, RESOURCE

_PORTS = range(20000, 30000)  # Ray takes 10002 to 19999 for its workers
_STARTED = "until terminated by a signal"  # `ray start --block` prints this once it has started
_START = 180.0  # seconds, on a machine that is very busy
_STOP = 60.0
_ATTEMPTS = 4
_SWEEP = 5.0
_POLL = 0.1


class NodeProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a cluster on this machine."""

    pid: int
    started: int
    """When the process was started: pids are reused."""
    head: bool
    address: str
    temporary: str
    """Ray's directory for sockets and logs."""

    @property
    def is_alive(self) -> bool:
        return start_time(self.pid) == self.started


def token_file(directory: Path) -> Path:
    return directory / "token"


def read_invitation(path: Path) -> Invitation:
    """Read an invitation from its file, or from the directory of a node. Raises `BackendUnavailable` if there is none,
    and `InvalidRequest` if it can't be used.
    """
    path = path / "invitation.json" if path.is_dir() else path
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            about = require_ours(os.fstat(file.fileno()), path, holds="the key of a cluster", error=InvalidRequest)
            if about.st_mode & 0o077:
                raise InvalidRequest(
                    f"{path} can't be used", why="others can read the key in it", next=f"chmod 600 {path}"
                )
            found = msgspec.json.decode(file.read(65536), type=Invitation)
            if len(bytes.fromhex(found.key)) != KEY_BYTES:
                raise ValueError("its key has another length")
            return found
    except FileNotFoundError as error:
        raise BackendUnavailable(
            "this machine is in no cluster",
            why=f"there is no {path}",
            next="start one with `redoma cluster start`, or join one with `redoma cluster join INVITATION`",
        ) from error
    except OSError as error:
        raise BackendUnavailable(f"{path} can't be read", why=reason(error), next="make it readable") from error
    except (msgspec.DecodeError, ValueError) as error:
        if isinstance(error, InvalidRequest):
            raise
        raise InvalidRequest(
            f"{path} is not an invitation", why=str(error), next="copy invitation.json from the head again"
        ) from error


def read_node(directory: Path) -> NodeProcess | None:
    """Return the node that was started from this directory, whether or not it is alive; None if there is none."""
    try:
        return msgspec.json.decode((directory / "node.json").read_bytes(), type=NodeProcess)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def start_head(directory: Path, *, host: str = "", port: int = 0, dashboard: bool = False) -> NodeProcess:
    """Start a new cluster with this machine as its head, and write the invitation. Raises `BackendError`."""
    host = host or _own_address()
    address = f"{host}:{port or _free_port()}"
    invitation = Invitation(address=address, token=secrets.token_hex(32), key=secrets.token_hex(KEY_BYTES))
    arguments = [
        "--head",
        f"--port={address.rpartition(':')[2]}",
        f"--node-ip-address={host}",
        f"--include-dashboard={str(dashboard).lower()}",
    ]
    return _start(directory, invitation, arguments, head=True)


def join(directory: Path, invitation: Invitation, *, host: str = "") -> NodeProcess:
    """Make this machine a node of a cluster. Raises `BackendError`."""
    arguments = [f"--address={invitation.address}", *([f"--node-ip-address={host}"] if host else [])]
    return _start(directory, invitation, arguments, head=False)


def _start(directory: Path, invitation: Invitation, arguments: list[str], *, head: bool) -> NodeProcess:
    try:
        import ray as _ray
    except ImportError as error:
        from ...lib.extras import pip_install

        raise BackendUnavailable(
            "Ray can't be used here", why="the package ray is not installed", next=pip_install("redoma[ray]")
        ) from error
    del _ray
    if (before := read_node(directory)) is not None and before.is_alive:
        raise InvalidRequest(
            "this machine is in a cluster already",
            why=f"process {before.pid} is its node, of {before.address}",
            next="stop it first: `redoma cluster stop`",
        )
    os.close(open_directory(directory, create=True))
    _write(directory / "invitation.json", json.dumps(msgspec.to_builtins(invitation), indent=2))
    _write(token_file(directory), invitation.token)
    for _ in range(_ATTEMPTS - 1):
        try:
            return _start_once(directory, invitation, arguments, head=head)
        except _TooSlow:
            continue
    return _start_once(directory, invitation, arguments, head=head)


class _TooSlow(BackendError):
    """Ray didn't start in time. It gives up if its processes aren't up after 30 seconds, which can't be configured."""


def _start_once(directory: Path, invitation: Invitation, arguments: list[str], *, head: bool) -> NodeProcess:
    # A short path: Ray creates sockets several directories below it, and a socket's path has at most 107 characters.
    temporary = tempfile.mkdtemp(prefix="ray-of-redoma-", dir="/tmp")
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"),
        *("--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0"),
        *(f"--resources={json.dumps({RESOURCE: 1})}", f"--temp-dir={temporary}", "--object-store-memory=209715200"),
        *arguments,
    ]
    log = directory / "ray.log"
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            env=_environment(os.environ, directory),
            start_new_session=True,
        )
    node = NodeProcess(
        pid=process.pid,
        started=start_time(process.pid) or 0,
        head=head,
        address=invitation.address,
        temporary=temporary,
    )
    _write(directory / "node.json", msgspec.json.encode(node).decode())
    deadline = time.monotonic() + _START
    try:
        while _STARTED not in (said := log.read_text(errors="replace")):
            if process.poll() is not None:
                last = next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "it said nothing")
                kind = _TooSlow if "timed out during startup" in said else BackendError
                raise kind("Ray could not be started", why=last[:300], next=f"see {log}")
            if time.monotonic() > deadline:
                raise _TooSlow("Ray could not be started", why=f"not ready after {_START:g} s", next=f"see {log}")
            time.sleep(_POLL)
    except BaseException:
        stop(directory)
        raise
    return node


def _environment(environment: Mapping[str, str], directory: Path) -> dict[str, str]:
    """Return the environment variables of a node: ours, without other settings of Ray, and with authentication on."""
    plain = {name: value for name, value in environment.items() if not name.startswith("RAY_")}
    return {
        **plain,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token_file(directory)),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",  # else it waits for our actor, which never ends by itself
        "RAY_DISABLE_IMPORT_WARNING": "1",
    }


def stop(directory: Path) -> NodeProcess | None:
    """End the node that was started from this directory, with all its descendants. Returns it; None if there is none.

    Other Ray processes on this machine are left alone; `ray stop` would end them.
    """
    node = read_node(directory)
    if node is None:
        return None
    family = dict[int, int]()
    if node.is_alive:
        family = _family(node.pid)
        os.kill(node.pid, signal.SIGTERM)
        _wait({node.pid: node.started}, _STOP)
        for pid, started in family.items():
            if start_time(pid) == started:
                os.kill(pid, signal.SIGKILL)
        _wait(family, _STOP)
    _sweep_groups(family)
    shutil.rmtree(node.temporary, ignore_errors=True)
    (directory / "node.json").unlink(missing_ok=True)
    return node


def _sweep_groups(processes: Mapping[int, int]) -> None:
    """Remove the cgroups of cells that these processes, or others that were killed, have left behind."""
    place = locate()
    if isinstance(place, Unavailable):
        return
    groups, deadline = Cgroups(place), time.monotonic() + _SWEEP
    groups.sweep()
    while groups.of(processes) and time.monotonic() < deadline:  # the kernel is still removing processes of a cell
        time.sleep(_POLL)
        groups.sweep()


def _family(pid: int) -> dict[int, int]:
    """Return a process and all its descendants, with their start times."""
    found, todo = dict[int, int](), [pid]
    while todo:
        one = todo.pop()
        if (started := start_time(one)) is None:
            continue
        found[one] = started
        try:
            for thread in os.listdir(f"/proc/{one}/task"):
                todo.extend(map(int, Path(f"/proc/{one}/task/{thread}/children").read_text().split()))
        except OSError:
            continue
    return found


def _wait(processes: Mapping[int, int], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while any(_runs(pid, started) for pid, started in processes.items()) and time.monotonic() < deadline:
        time.sleep(_POLL)


def _runs(pid: int, started: int) -> bool:
    """Return whether a process exists and is not a zombie; reap it if it is a child of ours that has ended."""
    if start_time(pid) != started:
        return False
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


def _write(path: Path, text: str) -> None:
    """Replace a file by one that only this user can read."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(text)


def _own_address() -> str:
    """Return the address by which others reach this machine, as far as its routes show; else 127.0.0.1."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def _free_port() -> int:
    for _ in range(200):
        port = secrets.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise BackendError("no port is free", why=f"{_PORTS.start} to {_PORTS.stop} were tried", next="name one: --port")
