"""One cell, seen from outside: the descriptors we hold of it, and how it comes to be and to an end."""

from __future__ import annotations

import os
import select
import signal
import socket
from contextlib import suppress

import msgspec

from ...lib.errors import BackendError
from ...models import Seed, WorkspaceKind
from ..base import new_seed
from . import protocol
from .cgroup import Group
from .configuration import UNPRIVILEGED_ID
from .launch import Zygote


class Found(msgspec.Struct, frozen=True):
    """What the probe in the guest found, before it was given any code: layers in force, and why others are missing."""

    layers: dict[str, str]
    missing: dict[str, str]


class Spec(msgspec.Struct, frozen=True):
    """What must be known when a cell is made. Cells of one spec are interchangeable."""

    disk: int
    files: int
    workspace: WorkspaceKind = "scratch"
    project: str = ""
    """The path of the project to work in; empty for a workspace of the cell's own."""
    seed: int | None = None
    """The seed of its random numbers, to repeat a run; by default each cell has its own."""


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
        self._changes = zygote.changes if spec.workspace == "overlay" else None
        self._layer = ""
        self.found: Found | None = None
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
            self._open(theirs)
            if self._changes is not None:
                self._layer = self._changes.take()
            told = {**msgspec.structs.asdict(spec), "seed": drawn, "layer": self._layer}
            zygote.order({**told, "without": sorted(without), "cgroup": group is not None}, theirs)
        except OSError as error:
            self.close()
            self._remove_changes()
            raise BackendError("a cell could not be made", why=str(error), next="run it again") from error
        finally:
            for number in theirs:
                os.close(number)

    def _open(self, theirs: list[int]) -> None:
        """Both ends of everything that a cell is connected with: ours are kept, `theirs` are sent to the zygote in the
        order of `zygote.DESCRIPTORS`."""
        for _ in ("control", "order"):
            ours, their_end = socket.socketpair()
            ours.setblocking(False)
            self._sockets.append(ours)
            theirs.append(their_end.detach())
        self.control, self.order = self._sockets
        for name in ("stdin", "stdout", "stderr"):
            reading, writing = os.pipe()
            near, far = (writing, reading) if name == "stdin" else (reading, writing)
            theirs.append(far)
            setattr(self, name, near)
            os.set_blocking(near, False)
            if os.geteuid() == 0:  # or the guest could not open /dev/stdout, which leads to this very pipe
                os.fchown(reading, UNPRIVILEGED_ID, UNPRIVILEGED_ID)

    @property
    def ready(self) -> bool:
        return self.found is not None and self.handle >= 0

    def advance(self) -> None:
        """Take in what the makers of the cell say. Afterwards it may be `ready` or `broken`."""
        try:
            self._hear_the_keeper()
            self._hear_the_guest()
        except (protocol.Malformed, msgspec.DecodeError, ValueError, BackendError, OSError) as error:
            self.broken = str(error)

    def _hear_the_keeper(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self.control, 1 << 12, 1)
        except BlockingIOError:
            return
        except OSError as error:
            self.broken = str(error)
            return
        for number in descriptors:
            self.close_handle()
            self.handle = number
        if not data:
            self.broken = self.broken or "it ended while it was being made"
        for kind, payload in self._frames.feed(data):
            if kind == protocol.BORN and self.group is not None:
                self.group.add(int(payload))
                self.control.send(protocol.GO)
            elif kind in (protocol.BROKEN, protocol.REFUSED):
                self._break(kind, payload)
            elif kind == protocol.INIT and self.handle < 0:  # the kernel drops a descriptor that there is no room for
                self.broken = "too many open files: no descriptor for its init"

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
                self.found = msgspec.json.decode(payload, type=Found)
                if self.handle < 0:  # the keeper has left before, and if all went well it has spoken before
                    self._hear_the_keeper()
                if self.handle < 0:
                    self.broken = self.broken or "its keeper was killed while it was being made"
            else:
                self._break(kind, payload)
        if not data and self.found is None:
            self.broken = self.broken or "its guest ended while it was being made"

    def _break(self, kind: bytes, why: bytes) -> None:
        self.broken, self.refused = why.decode("utf-8", "replace"), kind == protocol.REFUSED

    def alive(self) -> bool:
        return self.handle >= 0 and not readable(self.handle)

    def kill(self) -> None:
        """Kill its init, and so everything in it: the kernel doesn't let a pid namespace outlive its first process."""
        if self.handle >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.handle, signal.SIGKILL)

    def close(self) -> None:
        """Close our descriptors, which ends it too; `handle` stays open until it is dead (`reap`)."""
        for each in self._sockets:
            each.close()
        for name in ("stdin", "stdout", "stderr"):
            if (number := getattr(self, name)) >= 0:
                setattr(self, name, -1)  # first: a child forked in between must not close what has that number by then
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
        if self._changes is not None and self._layer:
            name, self._layer = self._layer, ""
            self._changes.give_back(name)
