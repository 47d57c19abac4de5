"""One cell, seen from outside: our descriptors of it, how it is made, and how it is ended."""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress

import msgspec

from ...lib.errors import BackendError, BackendUnavailable
from ...models import Seed, WorkspaceKind
from ..base import new_seed
from . import found, protocol
from .cgroup import Group
from .compiled import PROJECT_BYTES, CellOrder, step_names
from .configuration import PROXY_PORT, UNPRIVILEGED_ID
from .launch import Zygote
from .root import NOT_ALLOWED

_WORKSPACES = ("scratch", "read-only", "overlay")
"""In the order of `enum workspace` in c/cell.h."""


class Ahead(msgspec.Struct, frozen=True):
    """A shell that a cell starts before its run, and that waits there for the script."""

    argv: tuple[str, ...]
    rlimits: tuple[tuple[str, int], ...]


class Spec(msgspec.Struct, frozen=True):
    """What must be known when a cell is made. Cells with equal specs are interchangeable."""

    disk: int
    files: int
    workspace: WorkspaceKind = "scratch"
    project: str = ""
    """The path of the project to work in; empty if the cell has only its own workspace."""
    seed: int | None = None
    """The seed of its random numbers, to repeat a run; by default a random one."""
    network: bool = False
    """Whether it gets a socket that listens on its loopback, served from outside."""
    ahead: Ahead | None = None
    """What the cell starts before its run. Without it, the cell can run anything."""

    @property
    def plain(self) -> Spec:
        """The same with nothing started ahead."""
        return msgspec.structs.replace(self, ahead=None) if self.ahead is not None else self


def _one_way() -> tuple[int, int]:
    """Return a socket to read from, and one to write to and send descriptors with. Nothing can be sent the other way:
    descriptors that nobody receives would count against the user's limit.
    """
    reading, writing = socket.socketpair()
    writing.shutdown(socket.SHUT_RD)
    return reading.detach(), writing.detach()


def readable(*numbers: int) -> bool:
    """Return whether one of the descriptors is readable now. Uses `poll`: `select` takes no descriptor above 1023."""
    watch = select.poll()
    for number in numbers:
        watch.register(number, select.POLLIN)
    return bool(watch.poll(0))


class Cell:
    """One cell. The constructor only orders it from the zygote. Then call `advance` whenever `control` or `order` is
    readable, until it is `ready` or `broken`.
    """

    def __init__(
        self, zygote: Zygote, spec: Spec, without: frozenset[str], group: Group | None, *, warm: bool = True
    ) -> None:
        self.spec, self.group = spec, group
        self._zygote = zygote
        self._changes = zygote.changes if spec.workspace == "overlay" else None
        self._layer_name = ""
        self.place, self._user = "", 0
        """Only for a lean cell: its directory, and its user."""
        self.layer = -1
        """The directory that receives what is written to the project."""
        self.listener: socket.socket | None = None
        """The socket that listens on its loopback, if requested. See `take_listener`."""
        self.found: found.Found | None = None
        self.broken: str | None = None
        self.refused = False
        """Whether it is broken because the kernel does not allow what a cell needs."""
        self.handle = -1
        """A pidfd of its init: readable when nothing of the cell is alive."""
        self._frames = protocol.Frames()
        self._order_frames = protocol.Frames()
        self._sockets: list[socket.socket] = []
        self.stdin = self.stdout = self.stderr = -1
        self.events: select.epoll | None = None
        """Readable when `stdout` or `stderr` is: an event loop watches one descriptor for both."""
        drawn = spec.seed if spec.seed is not None else new_seed()
        self.seed = Seed(random=drawn, hashes=zygote.hash_seed)
        theirs: list[int] = []
        try:
            if zygote.places is not None:
                self.place, self._user = zygote.places.take()
                self.layer = os.open(self.place, os.O_RDONLY | os.O_DIRECTORY)
            self._open(theirs)
            if spec.workspace == "overlay" and not zygote.keeps_changes:
                why = f"project: changes to it can't be kept separate on this host: {zygote.why_not}"
                raise BackendUnavailable("a cell could not be made", why=why, next="see `redoma doctor`")
            if self._changes is not None:
                self._layer_name = self._changes.take()
            if group is not None:
                theirs += group.doors()
            zygote.order(self._ordered(drawn, without, warm), theirs)
            if spec.ahead is not None:
                self._start_ahead(spec.ahead)
        except BaseException as error:
            self.close()
            self._remove_changes()
            if isinstance(error, OSError):
                raise BackendError("a cell could not be made", why=str(error), next="run it again") from error
            raise
        finally:
            for number in theirs:
                os.close(number)

    def _ordered(self, seed: int, without: frozenset[str], warm: bool) -> CellOrder:
        project = os.fsencode(self.spec.project)
        if len(project) >= PROJECT_BYTES:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), self.spec.project)
        bits = sum(1 << step_names().index(name) for name in without - {"memory"}) if without else 0
        return CellOrder(
            disk=self.spec.disk,
            files=self.spec.files,
            seed=seed,
            without=bits,
            workspace=_WORKSPACES.index(self.spec.workspace),
            project=project,
            layer=self._layer_name.encode(),
            listen=PROXY_PORT if self.spec.network else 0,
            place=os.fsencode(self.place),
            user=self._user,
            ahead=self.spec.ahead is not None,
            warm=warm,
        )

    def _start_ahead(self, ahead: Ahead) -> None:
        """Tell the guest what to start. It reads this when it has been made."""
        shell = {"argv": list(ahead.argv), "env": self.env, "rlimits": dict(ahead.rlimits), "cwd": None}
        self.order.sendall(protocol.order(shell))

    def _open(self, theirs: list[int]) -> None:
        """Open both ends of the cell's sockets and pipes. Ours are kept; theirs are appended to `theirs`, in the order
        of c/cell.h, and sent to the zygote.
        """
        for _ in ("control", "order"):
            ours, their_end = socket.socketpair()
            ours.setblocking(False)
            self._sockets.append(ours)
            theirs.append(their_end.detach())
        self.control, self.order = self._sockets
        for name in ("stdin", "stdout", "stderr"):
            reading, writing = _one_way() if name == "stdin" and self._zygote.passes_descriptors else os.pipe()
            near, far = (writing, reading) if name == "stdin" else (reading, writing)
            theirs.append(far)
            setattr(self, name, near)
            os.set_blocking(near, False)
            user = self._user if self.place else UNPRIVILEGED_ID
            if user and os.geteuid() == 0:  # or the guest could not open /dev/stdout, which is this pipe
                os.fchown(reading, user, user)
        self.events = select.epoll()
        for number in (self.stdout, self.stderr):
            self.events.register(number, select.EPOLLIN)

    @property
    def keeps_changes_on_disk(self) -> bool:
        """Whether changes to the project are on disk, not in memory."""
        return self._changes is not None

    @property
    def beyond_this_host(self) -> dict[str, str]:
        """Layers that its zygote can't give to any cell on this host → why."""
        why = self._zygote.why_files_are_shared
        return {"locks": why} if why else {}

    @property
    def env(self) -> dict[str, str]:
        """Its environment variables, besides those of the request."""
        home = os.path.join(self.place, "tmp")
        return {**self._zygote.env, **({"HOME": home, "TMPDIR": home} if self.place else {})}

    def besides_those_of_the_zygote(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return those of some environment variables that the zygote does not have, or with another value."""
        return {name: value for name, value in env.items() if self._zygote.env.get(name) != value}

    @property
    def ready(self) -> bool:
        """Whether it is armed: it has been probed, and we have all its descriptors."""
        listens = self.listener is not None or not self.spec.network
        return self.found is not None and self.handle >= 0 and listens

    def advance(self) -> None:
        """Receive what the maker and the guest have sent. Afterwards it may be `ready` or `broken`."""
        try:
            self._hear_the_maker()
            self._hear_the_guest()
        except (protocol.Malformed, msgspec.DecodeError, ValueError, BackendError, OSError) as error:
            self.broken = str(error)

    def _hear_the_maker(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self.control, 1 << 12, 4, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError as error:
            self.broken = str(error)
            return
        if not data:
            self.broken = self.broken or "it ended while it was being made"
        for kind, payload in self._frames.feed(data):
            if kind in (protocol.INIT, protocol.LAYER, protocol.LISTENER):
                if not descriptors:  # the kernel drops descriptors beyond our limit
                    self.broken = "too many open files: no descriptor for its init"
                elif kind == protocol.INIT:
                    self.close_handle()
                    self.handle = descriptors.pop(0)
                elif kind == protocol.LISTENER:
                    self._close_listener()
                    self.listener = socket.socket(fileno=descriptors.pop(0))
                else:
                    self._close("layer")
                    self.layer = descriptors.pop(0)
            else:
                self._break(kind, payload)
        for number in descriptors:
            os.close(number)

    def _hear_the_guest(self) -> None:
        try:
            data = self.order.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError as error:
            self.broken = str(error)
            return
        for kind, payload in self._order_frames.feed(data):
            if kind == protocol.ARMED:
                self.found = found.read(
                    payload,
                    disk=self.spec.disk,
                    files=self.spec.files,
                    project=self.spec.project,
                    writable=self.spec.workspace == "overlay",
                    on_disk=self._changes is not None,
                    lean=bool(self.place),
                )
            else:
                self._break(kind, payload)
        if not data and self.found is None:
            self.broken = self.broken or "its guest ended while it was being made"

    def _break(self, kind: bytes, payload: bytes) -> None:
        """Note why it can't be made: the payload is a step of c/cell.c and its errno, or a message from Python."""
        text = payload.decode("utf-8", "replace")
        step, _, number = text.rpartition(" ")
        if kind == protocol.BROKEN and step and number.isdigit():
            self.broken, self.refused = self._zygote.explain(step, int(number)), int(number) in NOT_ALLOWED
        else:
            self.broken, self.refused = text, kind == protocol.REFUSED

    def alive(self) -> bool:
        """Return whether its init is alive."""
        return self.handle >= 0 and not readable(self.handle)

    def waits(self) -> bool:
        """Return whether it is armed and alive. An armed guest sends nothing, so a readable socket means its end."""
        return self.handle >= 0 and not readable(self.handle, self.order.fileno())

    def kill(self) -> None:
        """Kill its init, and so everything in it: the kernel ends a pid namespace with its first process. The init of a
        lean cell is told to kill everything and then itself.
        """
        if self.handle >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.handle, signal.SIGTERM if self.place else signal.SIGKILL)

    def close(self) -> None:
        """Close our descriptors, which also ends the cell. `handle` stays open until `reap` finds it dead."""
        if self.events is not None:
            self.events.close()
        for each in self._sockets:
            each.close()
        for name in ("stdin", "stdout", "stderr", "layer"):
            self._close(name)
        self._close_listener()

    def take_listener(self) -> socket.socket:
        """Return the socket that listens on its loopback. The caller closes it."""
        listener, self.listener = self.listener, None
        if listener is None:
            raise BackendError("the cell has no way to the network", why="it was made without", next="report it")
        return listener

    def _close_listener(self) -> None:
        if self.listener is not None:
            self.listener.close()
            self.listener = None

    def close_handle(self) -> None:
        """Close the pidfd of its init."""
        self._close("handle")

    def _close(self, name: str) -> None:
        if (number := getattr(self, name)) >= 0:
            setattr(self, name, -1)  # first: a child forked in between must not close a reused number
            os.close(number)

    def reap(self) -> bool:
        """Remove what is left of a dead cell. Returns False if it is not dead yet: call it again."""
        if self.handle >= 0:
            if self.alive():
                return False
            self.close_handle()
        self._remove_changes()
        return self.group is None or self.group.remove()

    def _remove_changes(self) -> None:
        if self.place and self._zygote.places is not None:
            place, self.place = self.place, ""
            self._zygote.places.give_back(place)
        if self._changes is not None and self._layer_name:
            name, self._layer_name = self._layer_name, ""
            self._changes.give_back(name)
