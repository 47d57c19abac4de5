"""Starting a zygote: what this interpreter needs to be found inside, and the process that will be it."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...lib.errors import BackendError, BackendUnavailable
from . import protocol
from .kernels import TMPFS_XATTRS
from .layers import Layers
from .root import PYTHON, VENV

_PACKAGE = Path(__file__).parents[2]
_BOOT = (
    "import fcntl, os, sys; sys.path.append(sys.argv.pop(1)); "
    "numbers = [fcntl.fcntl(int(sys.argv.pop(1)), fcntl.F_DUPFD, 10) for _ in range(2)]; "
    "[os.dup2(number, 3 + place) for place, number in enumerate(numbers)]; os.closerange(5, 1 << 16); "
    "from redoma.backends.jail.root import main; main()"
)
_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
MAX_HASH_SEED = 2**32 - 1
"""The largest PYTHONHASHSEED; 0 would switch the randomness off."""
_ANSWER = 5.0
_SECONDS = 60.0  # for the interpreter and whatever it preloads


def plan(
    preload: Iterable[str],
    watched: bool,
    prelude: str,
    programs: Mapping[str, str],
    project: str,
    layers: Mapping[str, Any],
    hashes: int,
) -> dict[str, Any]:
    """Where everything is on the host, and what it is called inside."""
    base = os.path.realpath(sys.base_prefix)
    below_usr = base == "/usr" or base.startswith("/usr/")
    virtual = sys.prefix != sys.base_prefix
    # Of a virtual environment the one that it was made with: its own may be a copy (`venv --copies`), and not a link.
    executable_here = os.path.realpath(sys._base_executable if virtual else sys.executable)  # type: ignore[attr-defined]
    executable = executable_here
    library: str | None = ""
    if not below_usr:
        executable = os.path.join(PYTHON, os.path.relpath(executable, base))
    base_executable = executable
    env = {"HOME": "/tmp", "LANG": "C.UTF-8", "PATH": _PATH}  # noqa: S108 - inside the cell
    if not below_usr:
        env["PATH"] = f"{PYTHON}/bin:{_PATH}"
        library = _library(executable_here)
        if library is None:
            env["LD_LIBRARY_PATH"] = f"{PYTHON}/lib"
    if virtual:
        executable, env["PATH"] = f"{VENV}/bin/python", f"{VENV}/bin:{env['PATH']}"
    return {
        "package": str(_PACKAGE),
        "prefix": "" if below_usr else base,
        "library": library or "",
        "packages": os.path.realpath(sysconfig.get_path("purelib")) if virtual else "",
        "system_packages": virtual and _shares_system_packages(),
        "version": f"python{sys.version_info[0]}.{sys.version_info[1]}",
        "base_executable": base_executable,
        "executable": executable,
        "env": env,
        "hashes": hashes,
        "programs": {name: os.path.realpath(path) for name, path in programs.items()},
        "project": project,
        "layers": layers,
        "zygote": {
            "preload": [*preload, *([prelude] if prelude else [])],
            "watched": watched,
            "prelude": prelude,
            "changes": "",
            "why": "",
        },
    }


def _library(executable: str) -> str | None:
    """The path that the interpreter looks for its own shared library in: to be replaced, since it is not there inside.
    Empty if there is nothing to replace, None if that can't be done."""
    if not sysconfig.get_config_var("Py_ENABLE_SHARED"):
        return ""
    library = str(sysconfig.get_config_var("LIBDIR"))
    content = Path(executable).read_bytes()
    if b"$ORIGIN" in content:
        return ""  # relative to the program: it is found wherever both are
    return library if os.fsencode(library) + b"\0" in content and len(library) >= len(PYTHON) + 4 else None


def is_seen_in_cells(file: str) -> bool:
    """Whether a cell has this file, too: one of the system's, or of the packages of this interpreter. Those that come
    from PYTHONPATH or from a user's own directory are not there."""
    inside = ("/usr", sys.base_prefix, sysconfig.get_path("platlib"))
    return any(Path(os.path.realpath(file)).is_relative_to(os.path.realpath(path)) for path in inside)


def _shares_system_packages() -> bool:
    try:
        text = Path(sys.prefix, "pyvenv.cfg").read_text()
    except OSError:
        return False
    return any(line.replace(" ", "").lower() == "include-system-site-packages=true" for line in text.splitlines())


class Zygote:
    """The process, and our end of its socket."""

    def __init__(
        self,
        preload: Iterable[str],
        watched: bool,
        prelude: str = "",
        programs: Mapping[str, str] | None = None,
        project: str = "",
        hashes: int | None = None,
        changes_on_disk: bool = False,
    ) -> None:
        # Chosen at random, but by us: a run can be repeated only where the order of its sets can be had again.
        self.hashes = hashes if hashes is not None else 1 + secrets.randbelow(MAX_HASH_SEED)
        on_disk = changes_on_disk or TMPFS_XATTRS.is_missing(os.uname().release, root=os.geteuid() == 0)
        self.layers = Layers(project) if project and on_disk else None
        try:
            self._start(preload, watched, prelude, programs or {}, project, changes_on_disk)
        except BaseException:
            self._forget_layers()
            raise

    def _start(
        self,
        preload: Iterable[str],
        watched: bool,
        prelude: str,
        programs: Mapping[str, str],
        project: str,
        changes_on_disk: bool,
    ) -> None:
        layers: dict[str, Any] = {"layers": "", "why": "", "on_disk": changes_on_disk}
        if self.layers is not None:
            layers |= {"layers": self.layers.path, "why": self.layers.why}
        told = plan(preload, watched, prelude, programs, project, layers, self.hashes)
        self.env: dict[str, str] = told["env"]
        self.socket, far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        us = os.pidfd_open(os.getpid())
        numbers = [str(far_end.fileno()), str(us)]
        try:
            self._process = subprocess.Popen(
                # A bare interpreter with nothing of our environment: what it knew first stays readable for ever.
                [sys.executable, "-I", "-S", "-B", "-c", _BOOT, str(_PACKAGE.parent), *numbers, json.dumps(told)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(far_end.fileno(), us),
                env={},
                cwd="/",
                start_new_session=True,  # a Ctrl-C at our terminal is ours to handle
            )
        except OSError as error:
            self.socket.close()
            raise BackendError("the jail could not be started", why=str(error), next="free some processes") from error
        finally:
            os.close(us)
            far_end.close()
        self.pid = self._process.pid
        try:
            self._await()
        except BaseException:
            self.close()
            raise

    def _await(self) -> None:
        self.socket.settimeout(_SECONDS)
        try:
            answer = self.socket.recv(1 << 16)
        except OSError as error:
            raise BackendError("the jail did not start", why=str(error), next="run it again") from error
        self.socket.settimeout(_ANSWER)  # one that was stopped takes no orders any more
        kind, text = next(protocol.Frames().feed(answer), (b"", b"its first process ended without a word"))
        if kind != protocol.ARMED:
            why = text.decode("utf-8", "replace")
            if why.startswith("preload "):
                raise BackendError("the jail could not be warmed", why=why, next="check `preload`")
            raise BackendUnavailable("the jail can't be had on this host", why=why, next="see `redoma doctor`")
        if json.loads(text)["changes"] != "disk":
            self._forget_layers()

    def _forget_layers(self) -> None:
        if self.layers is not None:
            self.layers.close()
            self.layers = None

    def fileno(self) -> int:
        return self.socket.fileno()

    def order(self, spec: dict[str, Any], descriptors: list[int]) -> None:
        """Ask for a cell. Raises OSError if the zygote is gone or far behind."""
        socket.send_fds(self.socket, [json.dumps(spec).encode()], descriptors)

    def close(self) -> None:
        """It goes, and every cell with it."""
        self.socket.close()
        try:
            self._process.wait(2)
        except subprocess.TimeoutExpired:  # busy with an import, say
            self._process.kill()
            self._process.wait()
        if self.layers is not None:
            self.layers.close()  # it goes with the last of the cells
