"""A zygote, seen from outside: starting it, ordering cells from it, ending it."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ...lib import files
from ...lib.errors import BackendError, BackendUnavailable
from ...models import Interpreter
from ..spawn import Child
from . import protocol, start
from .changes_disk import ChangesDirectory
from .compiled import CellOrder
from .configuration import PROJECT
from .kernels import TMPFS_XATTRS

if TYPE_CHECKING:
    from .places import Places

_USER_NAMESPACES = "sys/user/max_user_namespaces"
_ANSWER = 5.0  # seconds for sending an order
_START = 60.0  # seconds for starting the interpreter and preloading modules


class ZygoteOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a zygote and of all cells forked from it."""

    watched: bool
    """Whether init watches the memory of a cell, because no control group limits it."""
    preload: tuple[str, ...] = ()
    """Modules to import ahead of time."""
    prelude: str = ""
    """A module of ours whose `arm()` every guest calls, for a backend that runs in cells."""
    passes_descriptors: bool = False
    """Whether descriptors can be sent to a run along with its input."""
    programs: dict[str, str] = {}
    """Files of the host to show inside, in `configuration.PROGRAMS`."""
    project: str = ""
    """The directory of the host to work in; a zygote has at most one."""
    hash_seed: int | None = None
    """The seed of string hashes; None for a random one."""
    changes_on_disk: bool = False
    """Whether to keep changes to the project on disk even if memory could hold them."""
    once: bool = False
    """Whether it makes only one cell: then it imports nothing that a run may not need."""
    lean: bool = False
    """Whether its cells are lean: without namespaces."""
    own_user: bool = False
    """Whether each of its lean cells has its own user."""
    environment: str = ""
    """The directory of packages that its cells have instead of those of this interpreter. Modules of it in `preload`
    are imported by the zygote itself, so their code runs outside of a cell.
    """
    interpreter: Interpreter | None = None
    """The interpreter of that environment, if it is not this one."""


def _places_of_the_interpreter() -> list[str]:
    """Return the directories that a lean cell must be able to read: this interpreter and its packages, never /."""
    paths = {"stdlib", "platstdlib", "purelib", "platlib"}
    found = [*(sysconfig.get_path(name) for name in paths), sys.executable, os.path.realpath(sys.executable)]
    found += [os.path.join(sys.base_prefix, "lib"), os.path.join(sys.base_prefix, "share")]
    found += [os.path.join(sys.prefix, name) for name in ("bin", "lib", "lib64", "pyvenv.cfg")]
    found += [path for path in sys.path if path.startswith(sys.base_prefix) and path.endswith("-packages")]
    return sorted({os.path.realpath(path) for path in found if path} - {"/"})


def is_seen_in_cells(file: str) -> bool:
    """Return whether a cell has this file: one of the system, or of this interpreter's packages. Packages from
    PYTHONPATH or from the user's own directory are not in cells.
    """
    inside = ("/usr", sys.base_prefix, sysconfig.get_path("platlib"))
    return any(Path(os.path.realpath(file)).is_relative_to(os.path.realpath(path)) for path in inside)


def _hold(environment: str) -> int:
    """Lock the packages of an environment (shared), so that they are not removed while its zygote lives. Returns the
    descriptor that holds the lock. Raises `BackendError`.
    """
    try:
        number = os.open(environment, files.OPEN_DIRECTORY)
    except OSError as error:
        raise BackendError(
            "the environment can't be used", why=f"its packages: {error.strerror}", next="create it again"
        ) from error
    if not files.lock(number, shared=True, seconds=_ANSWER):
        os.close(number)
        raise BackendError("the environment can't be used", why="it is being removed", next="create it again")
    return number


def _make_places(*, own_user: bool) -> Places:
    from .places import Places

    return Places(own_user=own_user)


class Zygote:
    """A zygote: the process, and our end of its socket. The constructor starts it. Raises `BackendError` if that fails,
    `BackendUnavailable` if it can't work on this host.
    """

    def __init__(self, options: ZygoteOptions) -> None:
        on_disk = options.changes_on_disk or TMPFS_XATTRS.is_missing(os.uname().release, root=os.geteuid() == 0)
        self.changes = ChangesDirectory(options.project) if options.project and on_disk else None
        self.places = _make_places(own_user=options.own_user) if options.lean else None
        self._packages = _hold(options.environment) if options.environment else -1
        self.passes_descriptors = options.passes_descriptors
        try:
            self._start(options)
        except BaseException:
            self._let_packages_go()
            self._forget_changes()
            if self.places is not None:
                self.places.close()
            raise

    def _start(self, options: ZygoteOptions) -> None:
        try:
            plain = not (options.project or options.lean or options.environment) and options.hash_seed is None
            started = start.take(options.programs if plain else None)
        except OSError as error:
            raise BackendError("the jail could not be started", why=str(error), next="free some processes") from error
        self.socket = socket.socket(fileno=started.descriptor)
        self.pid = started.pid
        try:
            self._child = Child(self.pid)
            plan = started.plan or self._plan(options)
            self.env: dict[str, str] = plan["env"]
            self.hash_seed: int = plan["hashes"]
            with suppress(BrokenPipeError, ConnectionResetError):  # it ended, and has sent the reason
                if started.plan is None:
                    started.build(plan)
                started.tell(
                    {
                        "preload": [*options.preload, *([options.prelude] if options.prelude else [])],
                        "watched": options.watched,
                        "prelude": options.prelude,
                        "once": options.once,
                        "own_user": options.own_user,
                        "readable": _places_of_the_interpreter() if options.lean else [],
                    }
                )
            self._await()
            if options.environment and not options.preload and self.why_files_are_shared:
                raise BackendUnavailable(
                    "an environment can't be used on this host",
                    why=f"its packages can't be mounted in cells alone: {self.why_files_are_shared}",
                    next="use Linux 5.11 or later, and see `redoma doctor`",
                )
        except BaseException:
            self.close()
            raise

    def _plan(self, options: ZygoteOptions) -> dict[str, Any]:
        return start.plan(
            hash_seed=options.hash_seed if options.hash_seed is not None else start.new_hash_seed(),
            project=options.project,
            programs=options.programs,
            lean=options.lean,
            own_user=options.own_user,
            environment=options.environment,
            environment_preloaded=bool(options.environment and options.preload),
            interpreter=options.interpreter,
            layers={
                "layers": self.changes.path if self.changes is not None else "",
                "why": self.changes.why if self.changes is not None else "",
                "on_disk": options.changes_on_disk,
            },
        )

    def _await(self) -> None:
        self.socket.settimeout(_START)
        try:
            answer = self._hear()
        except OSError as error:
            raise BackendError("the jail did not start", why=str(error), next="run it again") from error
        self.socket.settimeout(_ANSWER)  # a zygote that was stopped (SIGSTOP) accepts no orders
        kind, text = next(protocol.Frames().feed(answer), (b"", b"its first process ended without a word"))
        if kind != protocol.ARMED:
            why = text.decode("utf-8", "replace")
            if kind == protocol.UNLOADED:
                raise BackendError("the jail could not be warmed", why=why, next="check `preload`")
            raise BackendUnavailable("the jail is not available on this host", why=why, next="see `redoma doctor`")
        armed = json.loads(text)
        self.mounts_below: list[str] = armed["below"]
        self.why_files_are_shared: str = armed["shared"]
        self.keeps_changes: str = armed["changes"]
        self.why_not: str = armed["why"]
        if self.keeps_changes != "disk":
            self._forget_changes()

    def _hear(self) -> bytes:
        try:
            return self.socket.recv(1 << 16)
        except ConnectionResetError:  # it ended with unread input: the kernel reports that before its last message
            return self.socket.recv(1 << 16)

    def _forget_changes(self) -> None:
        if self.changes is not None:
            self.changes.close()
            self.changes = None

    def fileno(self) -> int:
        """Return the descriptor of the socket, for `select`."""
        return self.socket.fileno()

    def order(self, cell: CellOrder, descriptors: list[int]) -> None:
        """Order a cell. Raises OSError if the zygote is gone or too slow."""
        socket.send_fds(self.socket, [bytes(cell)], descriptors)

    def explain(self, step: str, number: int) -> str:
        """Return a message for a step of making a cell that failed with this errno."""
        if step == "project":
            if number == errno.EINVAL and self.mounts_below:
                where = os.path.relpath(self.mounts_below[0], PROJECT)
                return f"project: something is mounted below it, at {where}"
            return f"project: it can't be mounted through an overlay on this host: {os.strerror(number)}"
        where = f" '/proc/{_USER_NAMESPACES}'" if step == "user-namespaces" else ""
        return f"{step}: {os.strerror(number)}{where}"

    def hang_up(self) -> None:
        """Make the zygote end, and every cell with it. `close` waits for that."""
        self.socket.close()

    def close(self, *, wait: bool = True) -> None:
        """End the zygote, and every cell with it, and wait for its end. `wait=False` is for a process that ends now: if
        only the kernel is left to clean up after the zygote, that takes longer than many a run.
        """
        self.hang_up()
        patient = wait or self.changes is not None or self.places is not None
        self._child.end(2000 if patient else 0, reap=patient)  # it may be busy with an import, for example
        self._let_packages_go()
        if self.changes is not None:
            self.changes.close()  # removed with the last cell
        if self.places is not None:
            self.places.close()

    def _let_packages_go(self) -> None:
        number, self._packages = self._packages, -1
        if number >= 0:
            files.unlock(number)
            os.close(number)

    def forget(self) -> None:
        """In a forked child: close our copies of the parent's descriptors."""
        self.socket.close()
        self._child.forget()
        if self._packages >= 0:
            os.close(self._packages)
