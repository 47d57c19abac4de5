"""Starting a zygote: what this interpreter needs to be found inside, and the process that will be it."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import msgspec

from ...lib.errors import BackendError, BackendUnavailable
from . import protocol
from .changes_disk import ChangesDirectory
from .configuration import ENVIRONMENT, PYTHON, VENV
from .kernels import TMPFS_XATTRS

_PACKAGE = Path(__file__).parents[2]
_BOOT = (
    "import fcntl, os, sys; sys.path.append(sys.argv.pop(1)); "
    "numbers = [fcntl.fcntl(int(sys.argv.pop(1)), fcntl.F_DUPFD, 10) for _ in range(2)]; "
    "[os.dup2(number, 3 + place) for place, number in enumerate(numbers)]; os.closerange(5, 1 << 16); "
    "from redoma.backends.jail.root import main; main()"
)
MAX_HASH_SEED = 2**32 - 1
"""The largest PYTHONHASHSEED; 0 would switch the randomness off."""
_ANSWER = 5.0  # seconds for each order after that
_START = 60.0  # seconds for the interpreter and whatever it preloads


class ZygoteOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a zygote, and each cell that is forked from it, is to have."""

    watched: bool
    """Whether the cell's init watches its memory, since no control group limits it."""
    preload: tuple[str, ...] = ()
    """Modules that are loaded ahead of time."""
    prelude: str = ""
    """A module of ours whose `arm()` every guest calls, for a backend that runs in cells."""
    programs: dict[str, str] = {}
    """Files of the host to have inside, in `configuration.PROGRAMS`."""
    project: str = ""
    """The directory of the host to work in; a zygote has one at most."""
    hash_seed: int | None = None
    """The seed of the hashes of strings; None draws one."""
    changes_on_disk: bool = False
    """Whether to keep what runs change in the project on disk, whatever memory can hold."""


def plan(options: ZygoteOptions, hash_seed: int, changes: ChangesDirectory | None) -> dict[str, Any]:
    """Where everything is on the host, and what it is called inside: for `root`. `changes` is the directory on disk for
    what runs change in the project."""
    base = os.path.realpath(sys.base_prefix)
    below_usr = base == "/usr" or base.startswith("/usr/")
    virtual = sys.prefix != sys.base_prefix
    # Of a virtual environment the one that it was made with: its own may be a copy (`venv --copies`), and not a link.
    executable_here = os.path.realpath(sys._base_executable if virtual else sys.executable)  # type: ignore[attr-defined]
    base_executable, library, env = executable_here, "", dict(ENVIRONMENT)
    if not below_usr:
        base_executable = os.path.join(PYTHON, os.path.relpath(executable_here, base))
        env["PATH"] = f"{PYTHON}/bin:{env['PATH']}"
        if (found := _library(executable_here)) is None:
            env["LD_LIBRARY_PATH"] = f"{PYTHON}/lib"
        else:
            library = found
    executable = base_executable
    if virtual:
        executable, env["PATH"] = f"{VENV}/bin/python", f"{VENV}/bin:{env['PATH']}"
    return {
        "package": str(_PACKAGE),
        "prefix": "" if below_usr else base,
        "library": library,
        "packages": os.path.realpath(sysconfig.get_path("purelib")) if virtual else "",
        "system_packages": virtual and _shares_system_packages(),
        "version": f"python{sys.version_info[0]}.{sys.version_info[1]}",
        "base_executable": base_executable,
        "executable": executable,
        "env": env,
        "hashes": hash_seed,
        "programs": {name: os.path.realpath(path) for name, path in options.programs.items()},
        "project": options.project,
        "layers": {
            "layers": changes.path if changes is not None else "",
            "why": changes.why if changes is not None else "",
            "on_disk": options.changes_on_disk,
        },
        "zygote": {
            "preload": [*options.preload, *([options.prelude] if options.prelude else [])],
            "watched": options.watched,
            "prelude": options.prelude,
            "changes": "",
            "why": "",
        },
    }


def _library(executable: str) -> str | None:
    """The path in which the interpreter looks for its own shared library, to be replaced by the one inside. Empty if
    there is nothing to replace, None if that can't be done."""
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

    def __init__(self, options: ZygoteOptions) -> None:
        # Chosen at random, but by us: a run can be repeated only where the order of its sets can be had again.
        seed = options.hash_seed
        self.hash_seed = seed if seed is not None else 1 + secrets.randbelow(MAX_HASH_SEED)
        on_disk = options.changes_on_disk or TMPFS_XATTRS.is_missing(os.uname().release, root=os.geteuid() == 0)
        self.changes = ChangesDirectory(options.project) if options.project and on_disk else None
        try:
            self._start(plan(options, self.hash_seed, self.changes))
        except BaseException:
            self._forget_changes()
            raise

    def _start(self, told: dict[str, Any]) -> None:
        self.env: dict[str, str] = told["env"]
        self.socket, far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        us = os.pidfd_open(os.getpid())
        numbers = far_end.fileno(), us
        # A bare interpreter with nothing of our environment: what it knew first stays readable for ever.
        command = [sys.executable, "-I", "-S", "-B", "-c", _BOOT]
        try:
            self._process = subprocess.Popen(
                [*command, str(_PACKAGE.parent), *map(str, numbers), json.dumps(told)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=numbers,
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
        self.socket.settimeout(_START)
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
            self._forget_changes()

    def _forget_changes(self) -> None:
        if self.changes is not None:
            self.changes.close()
            self.changes = None

    def fileno(self) -> int:
        return self.socket.fileno()

    def order(self, spec: dict[str, Any], descriptors: list[int]) -> None:
        """Ask for a cell. Raises OSError if the zygote is gone or far behind."""
        socket.send_fds(self.socket, [json.dumps(spec).encode()], descriptors)

    def close(self) -> None:
        """End the zygote, and every cell with it."""
        self.socket.close()
        try:
            self._process.wait(2)
        except subprocess.TimeoutExpired:  # busy with an import, say
            self._process.kill()
            self._process.wait()
        if self.changes is not None:
            self.changes.close()  # it goes with the last of the cells
