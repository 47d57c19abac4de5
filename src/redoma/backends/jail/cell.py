"""One cell, seen from outside: the descriptors we hold of it, and how it comes to be and to an end."""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
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
"""By `enum workspace` of c/cell.h."""


class Spec(msgspec.Struct, frozen=True):
    """What must be known when a cell is made. Cells of one spec are interchangeable."""

    disk: int
    files: int
    workspace: WorkspaceKind = "scratch"
    project: str = ""
    """The path of the project to work in; empty for a workspace of the cell's own."""
    seed: int | None = None
    """The seed of its random numbers, to repeat a run; by default each cell has its own."""
    network: bool = False
    """Whether a socket on its own loopback listens for connections, which are served from outside."""


def _one_way() -> tuple[int, int]:
    """A socket to read from, and one to write to and pass descriptors by. Nothing can be sent the other way: what
    nobody receives would count as the user's."""
    reading, writing = socket.socketpair()
    writing.shutdown(socket.SHUT_RD)
    return reading.detach(), writing.detach()


def readable(number: int) -> bool:
    """Whether a descriptor is readable now. Uses `poll`: `select` takes no descriptor above 1023."""
    watch = select.poll()
    watch.register(number, select.POLLIN)
    return bool(watch.poll(0))


class Cell:
    """One cell. Making it only orders it from the zygote: call `advance` whenever `control` or `order` is readable,
    until it is `ready` or `broken`."""

    def __init__(self, zygote: Zygote, spec: Spec, without: frozenset[str], group: Group | None) -> None:
        self.spec, self.group = spec, group
        self._zygote = zygote
        self._changes = zygote.changes if spec.workspace == "overlay" else None
        self._layer = ""
        self.place, self._user = "", 0
        """Of a lean cell: its directory, and its user."""
        self.layer = -1
        """The directory that takes what is written to the project."""
        self.listener: socket.socket | None = None
        """What listens on its own loopback, if it was to. Whoever takes it closes it."""
        self.found: found.Found | None = None
        self.broken: str | None = None
        self.refused = False
        """Whether it broke because the kernel does not allow what a cell needs."""
        self.handle = -1
        """A pidfd of its init: readable once nothing of the cell is alive."""
        self._frames = protocol.Frames()
        self._order_frames = protocol.Frames()
        self._sockets: list[socket.socket] = []
        self.stdin = self.stdout = self.stderr = -1
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
                self._layer = self._changes.take()
            if group is not None:
                theirs += group.doors()
            zygote.order(self._ordered(drawn, without), theirs)
        except BaseException as error:
            self.close()
            self._remove_changes()
            if isinstance(error, OSError):
                raise BackendError("a cell could not be made", why=str(error), next="run it again") from error
            raise
        finally:
            for number in theirs:
                os.close(number)

    def _ordered(self, seed: int, without: frozenset[str]) -> CellOrder:
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
            layer=self._layer.encode(),
            listen=PROXY_PORT if self.spec.network else 0,
            place=os.fsencode(self.place),
            user=self._user,
        )

    def _open(self, theirs: list[int]) -> None:
        """Both ends of everything that a cell is connected with: ours are kept, `theirs` are sent to the zygote, in the
        order that c/cell.h has."""
        for _ in ("control", "order"):
            ours, their_end = socket.socketpair()
            ours.setblocking(False)
            self._sockets.append(ours)
            theirs.append(their_end.detach())
        self.control, self.order = self._sockets
        for name in ("stdin", "stdout", "stderr"):
            reading, writing = _one_way() if name == "stdin" and self._zygote.passes else os.pipe()
            near, far = (writing, reading) if name == "stdin" else (reading, writing)
            theirs.append(far)
            setattr(self, name, near)
            os.set_blocking(near, False)
            user = self._user if self.place else UNPRIVILEGED_ID
            if user and os.geteuid() == 0:  # or the guest could not open /dev/stdout, which leads to this very pipe
                os.fchown(reading, user, user)

    @property
    def keeps_changes_on_disk(self) -> bool:
        return self._changes is not None

    @property
    def beyond_this_host(self) -> dict[str, str]:
        """Layers that its zygote can't give to any cell, for what it found on this host, and why."""
        why = self._zygote.why_files_are_shared
        return {"locks": why} if why else {}

    @property
    def env(self) -> dict[str, str]:
        """Its variables, beside those of the request."""
        home = os.path.join(self.place, "tmp")
        return {**self._zygote.env, **({"HOME": home, "TMPDIR": home} if self.place else {})}

    @property
    def ready(self) -> bool:
        listens = self.listener is not None or not self.spec.network
        return self.found is not None and self.handle >= 0 and listens

    def advance(self) -> None:
        """Take in what the makers of the cell say. Afterwards it may be `ready` or `broken`."""
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
                if not descriptors:  # the kernel drops a descriptor that there is no room for
                    self.broken = "too many open files: no descriptor for its init"
                elif kind == protocol.INIT:
                    self.close_handle()
                    self.handle = descriptors.pop(0)
                elif kind == protocol.LISTENER:
                    self.close_listener()
                    self.listener = socket.socket(fileno=descriptors.pop(0))
                else:
                    self.close_layer()
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
        """Someone could not do its part: a step of c/cell.c and its errno, or in Python's words."""
        text = payload.decode("utf-8", "replace")
        step, _, number = text.rpartition(" ")
        if kind == protocol.BROKEN and step and number.isdigit():
            self.broken, self.refused = self._zygote.explain(step, int(number)), int(number) in NOT_ALLOWED
        else:
            self.broken, self.refused = text, kind == protocol.REFUSED

    def alive(self) -> bool:
        return self.handle >= 0 and not readable(self.handle)

    def waits(self) -> bool:
        """Whether it is armed and alive. A guest says nothing once it is armed: then its socket only tells its end."""
        return self.alive() and not readable(self.order.fileno())

    def kill(self) -> None:
        """Kill its init, and so everything in it: the kernel doesn't let a pid namespace outlive its first process. The
        init of a lean cell is told to end everything, and then itself."""
        if self.handle >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.handle, signal.SIGTERM if self.place else signal.SIGKILL)

    def close(self) -> None:
        """Close our descriptors, which ends it too; `handle` stays open until it is dead (`reap`)."""
        for each in self._sockets:
            each.close()
        for name in ("stdin", "stdout", "stderr"):
            if (number := getattr(self, name)) >= 0:
                setattr(self, name, -1)  # first: a child forked in between must not close what has that number by then
                os.close(number)
        self.close_layer()
        self.close_listener()

    def take_listener(self) -> socket.socket:
        """The socket that listens on its loopback, which is the caller's from now on."""
        listener, self.listener = self.listener, None
        if listener is None:
            raise BackendError("the cell has no way to the network", why="it was made without", next="report it")
        return listener

    def close_listener(self) -> None:
        if self.listener is not None:
            self.listener.close()
            self.listener = None

    def close_layer(self) -> None:
        if (number := self.layer) >= 0:
            self.layer = -1
            os.close(number)

    def close_handle(self) -> None:
        if (number := self.handle) >= 0:
            self.handle = -1
            os.close(number)

    def reap(self) -> bool:
        """Remove what is left of it once it is dead. Returns False if it is not yet: call it again."""
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
        if self._changes is not None and self._layer:
            name, self._layer = self._layer, ""
            self._changes.give_back(name)
