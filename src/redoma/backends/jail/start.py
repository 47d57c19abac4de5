"""Starts the bare interpreter that builds a root and becomes a zygote, and sends it the plan of that root: see `root`.

It imports very little, so that the command line can start the interpreter first (`ahead`) and import the rest of Redoma
meanwhile. The zygote gets its other settings later, from `launch`.
"""

from __future__ import annotations

import marshal
import os
import sys

from ..spawn import spawn
from . import protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ...models import Interpreter

PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
"""The directory of Redoma itself."""
MAX_HASH_SEED = 2**32 - 1
"""The largest PYTHONHASHSEED. 0 would disable hash randomisation."""
_BOOT = "sys.path.append(sys.argv.pop(1)); from redoma.backends.jail.root import main; main()"


class Started:
    """An interpreter that was started, and our end of its socket."""

    def __init__(self) -> None:
        """Start it. Raises OSError."""
        self.plan: dict[str, Any] | None = None
        """What it was told to build; None if nothing yet."""
        self.pid, self.descriptor = spawn(_BOOT, os.path.dirname(PACKAGE))

    def tell(self, content: dict[str, Any]) -> None:
        """Send it a message. Raises OSError if it is gone."""
        os.write(self.descriptor, marshal.dumps(content, protocol.MARSHAL))

    def build(self, plan: dict[str, Any]) -> None:
        """Tell it what to build. Raises OSError if it is gone."""
        self.plan = plan
        self.tell(plan)


_ahead: tuple[int, Started] | None = None
"""The interpreter that was started ahead, with the id of the process that started it."""


def ahead(programs: Callable[[], dict[str, str]] = dict, preload: tuple[str, ...] = ()) -> None:
    """Start an interpreter before a run needs it. It builds the root of a run without a project.

    `programs` is called once it has been started, and returns the programs of another backend; `preload` names modules
    that this backend needs. Failures are ignored here; `take` meets them again.
    """
    global _ahead
    try:
        started = Started()
        _ahead = os.getpid(), started
        started.build(plan(hash_seed=new_hash_seed(), programs=programs(), preload=preload))
    except (OSError, ImportError):
        return


def take(programs: dict[str, str] | None) -> Started:
    """Return an interpreter that has no plan yet; or the one started ahead, if it builds what is wanted: a root without
    a project, with these programs. None for `programs` means any other root. Raises OSError.
    """
    global _ahead
    found, _ahead = _ahead, None
    if found is not None and found[0] == os.getpid():
        started = found[1]
        if started.plan is None or (programs is not None and started.plan["programs"] == _real(programs)):
            return started
        os.close(started.descriptor)  # which ends it
    return Started()


def _real(programs: dict[str, str]) -> dict[str, str]:
    return {name: os.path.realpath(path) for name, path in programs.items()}


def new_hash_seed() -> int:
    """Return a random seed for hashes. We choose it, since repeating a run needs the same order of sets."""
    return 1 + int.from_bytes(os.urandom(8), "little") % MAX_HASH_SEED


def plan(
    *,
    hash_seed: int,
    project: str = "",
    programs: dict[str, str] | None = None,
    preload: tuple[str, ...] = (),
    layers: dict[str, Any] | None = None,
    lean: bool = False,
    own_user: bool = False,
    environment: str = "",
    environment_preloaded: bool = False,
    interpreter: Interpreter | None = None,
) -> dict[str, Any]:
    """Return the plan for `root`: where everything is on the host, and its paths inside.

    `programs` are files of the host to show inside. `preload` are modules that the zygote imports while it waits for
    its settings, which may name more. `layers` says where on disk changes to the project can be kept, or
    why nowhere. A `lean` zygote keeps the host's root, and with `own_user` the right to change users. `environment` is
    a directory of packages that replaces those of this interpreter; the zygote itself sees them only if modules of it
    are preloaded. `interpreter` is another one than this, for an environment that was made for it.
    """
    from .configuration import ENVIRONMENT, ENVIRONMENT_PREFIX, PYTHON, VENV

    virtual = sys.prefix != sys.base_prefix
    if interpreter is not None:
        base, executable_here, version = interpreter.prefix, interpreter.executable, interpreter.version
        shared_library = interpreter.library
    else:
        base, version = os.path.realpath(sys.base_prefix), f"python{sys.version_info[0]}.{sys.version_info[1]}"
        # In a virtual environment, take the base interpreter: the environment's own may be a copy (`venv --copies`).
        executable_here = os.path.realpath(sys._base_executable if virtual else sys.executable)  # type: ignore[attr-defined]
        shared_library = _shared_library()
    below_usr = base == "/usr" or base.startswith("/usr/")
    base_executable, library, env = executable_here, "", dict(ENVIRONMENT)
    if not below_usr:
        base_executable = os.path.join(PYTHON, os.path.relpath(executable_here, base))
        env["PATH"] = f"{PYTHON}/bin:{env['PATH']}"
        if (found := _library(executable_here, shared_library)) is None:
            env["LD_LIBRARY_PATH"] = f"{PYTHON}/lib"
        else:
            library = found
    executable = base_executable
    if lean:  # the root is the host's, so all paths are, too
        executable, library, env = sys.executable, "", dict(ENVIRONMENT)
        env["PATH"] = f"{os.path.dirname(sys.executable)}:{env['PATH']}"
    elif environment:
        executable, env["PATH"] = f"{VENV}/bin/python", f"{VENV}/bin:{ENVIRONMENT_PREFIX}/bin:{env['PATH']}"
    elif virtual:
        executable, env["PATH"] = f"{VENV}/bin/python", f"{VENV}/bin:{env['PATH']}"
    return {
        "package": PACKAGE,
        "prefix": "" if below_usr else base,
        "library": library,
        "packages": os.path.realpath(_packages()) if virtual else "",
        "system_packages": virtual and not environment and _shares_system_packages(),
        "environment": environment,
        "environment_preloaded": environment_preloaded,
        "version": version,
        "base_executable": base_executable,
        "executable": executable,
        "env": env,
        "hashes": hash_seed,
        "programs": _real(programs or {}),
        "preload": preload,
        "project": project,
        "lean": lean,
        "own_user": own_user,
        "layers": layers or {"layers": "", "why": "", "on_disk": False},
    }


def _packages() -> str:
    import sysconfig

    return sysconfig.get_path("purelib")


def _shared_library() -> str:
    """Return the directory of this interpreter's shared library; empty if it has none."""
    import sysconfig

    return str(sysconfig.get_config_var("LIBDIR")) if sysconfig.get_config_var("Py_ENABLE_SHARED") else ""


def _library(executable: str, library: str) -> str | None:
    """Return the path at which an interpreter looks for its shared library, so that it can be replaced by the one
    inside. Empty if there is nothing to replace; None if it can't be replaced.
    """
    from .configuration import PYTHON

    if not library:
        return ""
    with open(executable, "rb") as file:
        content = file.read()
    if b"$ORIGIN" in content:
        return ""  # relative to the program, so it works anywhere
    return library if os.fsencode(library) + b"\0" in content and len(library) >= len(PYTHON) + 4 else None


def _shares_system_packages() -> bool:
    try:
        with open(os.path.join(sys.prefix, "pyvenv.cfg"), encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError:
        return False
    return any(line.replace(" ", "").lower() == "include-system-site-packages=true" for line in lines)
