"""The direct line to a session's Python: a socket for runs and their results, and the two pipes that everything in the
session prints to.

A message takes one hop this way; through the driver it would take two. The driver gets the far ends when the session is
opened, and only supervises: it starts, interrupts and ends what is there. What is read here may come from an attacker;
`channel` checks it. Descriptors that the session sends are dropped by the kernel, since none are asked for.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import sys
import termios
from collections.abc import Callable

from ..models import Stream
from . import frames

_MAX_LAST = 16 << 20
"""Bytes of messages that are still read when the session has ended: more than one display and one result have."""


class Line:
    """Our ends. `take_messages` gets what the session's Python sends. `take_output` gets what is printed, and returns
    whether it has been read, so that there is room for more."""

    def __init__(self, take_messages: Callable[[bytes], None], take_output: Callable[[Stream, bytes], bool]) -> None:
        self._take_messages, self._take_output = take_messages, take_output
        self._loop = asyncio.get_running_loop()
        self._pipes: dict[Stream, int] = {}
        self._paused = set[Stream]()
        self._waiting = bytearray()  # bytes to be sent
        self._unread = 0
        self._running = False
        self._socket, self._far = _pair()
        self._old: socket.socket | None = None
        writing: list[int] = []
        try:
            for stream in ("stdout", "stderr"):
                reading, far = os.pipe()
                self._pipes[stream] = reading
                writing.append(far)
                os.set_blocking(reading, False)
            socket.send_fds(self._socket, [b"p"], writing)
        except BaseException:
            self.close()
            raise
        finally:
            for number in writing:
                os.close(number)
        self._loop.add_reader(self._socket.fileno(), self._receive)
        for stream, number in self._pipes.items():
            self._loop.add_reader(number, self._printed, stream)

    @property
    def far_end(self) -> int:
        """The end of the socket that the driver must get, until `connected` is called."""
        return self._far.fileno()

    def connected(self) -> None:
        """Close the far end here: the driver has it."""
        self._far.close()
        if self._old is not None:
            self._old.close()
            self._old = None

    def renew(self) -> None:
        """Connect again, for a new Python. What is on its way to or from the old one is dropped, but its socket stays
        open until `connected`: at its end the old one would exit, and the driver take that for the session's end."""
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        if self._old is not None:  # the last one was not connected
            self._socket.close()
        else:
            self._old = self._socket
        self._far.close()
        self._waiting.clear()
        self._socket, self._far = _pair()
        self._loop.add_reader(self._socket.fileno(), self._receive)

    # --- in ---

    def send(self, message: bytes) -> None:
        """Send a message, now as far as there is room, and the rest later."""
        if not self._waiting:
            try:
                message = message[self._socket.send(message) :]
            except BlockingIOError:
                pass
            except OSError:
                return  # it has ended, which the driver tells
        if message:
            self._waiting += message
            self._loop.add_writer(self._socket.fileno(), self._send_rest)

    def _send_rest(self) -> None:
        try:
            del self._waiting[: self._socket.send(self._waiting)]
        except BlockingIOError:
            return
        except OSError:
            self._waiting.clear()
        if not self._waiting:
            self._loop.remove_writer(self._socket.fileno())

    # --- out ---

    def begin(self) -> None:
        """A run begins: read what is printed."""
        self._running = True
        self._resume()

    def end(self) -> None:
        """The run has ended: what is printed from now on stays in the pipes for the next one."""
        self._running = False

    def read(self, size: int) -> None:
        """Count so many bytes of output as read."""
        self._unread -= size
        self._resume()

    def drain(self) -> None:
        """Take what has been printed so far, and no more: something may print without end."""
        for stream, number in self._pipes.items():
            left = _readable(number)
            while left > 0 and (got := self._read(stream, min(left, frames.CHUNK))):
                left -= got

    def discard(self) -> None:
        """Drop what has been printed so far."""
        for number in self._pipes.values():
            left = _readable(number)
            while left > 0 and (data := _read_some(number, min(left, frames.CHUNK))):
                left -= len(data)

    def _receive(self) -> None:
        data = self._received()
        if data:
            self._take_messages(data)
        elif data is not None:
            self._loop.remove_reader(self._socket.fileno())

    def _received(self) -> bytes | None:
        """Return what can be read now: None if there is nothing yet, empty at the end."""
        try:
            return self._socket.recv(frames.CHUNK)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def _printed(self, stream: Stream) -> None:
        if not self._running or self._unread >= frames.WINDOW:
            self._pause(stream)
        elif self._read(stream, frames.CHUNK) == 0:
            self._pause(stream)  # everybody who could print has ended

    def _read(self, stream: Stream, size: int) -> int | None:
        """Pass some output on. Returns how much: 0 at the end, None if there is nothing now."""
        data = _read_some(self._pipes[stream], size)
        if data and not self._take_output(stream, data):
            self._unread += len(data)
        return data if data is None else len(data)

    def _pause(self, stream: Stream) -> None:
        self._paused.add(stream)
        self._loop.remove_reader(self._pipes[stream])

    def _resume(self) -> None:
        if self._paused and self._running and self._unread < frames.WINDOW:
            for stream in self._paused:
                self._loop.add_reader(self._pipes[stream], self._printed, stream)
            self._paused.clear()

    # --- the end ---

    def finish(self) -> None:
        """Take what the session has said and printed before it ended, and close."""
        left = _MAX_LAST
        while left > 0 and (data := self._received()):
            self._take_messages(data)
            left -= len(data)
        if self._running:
            self.drain()
        self.close()

    def close(self) -> None:
        for number in (self._socket.fileno(), *self._pipes.values()):
            if number >= 0:
                self._loop.remove_reader(number)
                self._loop.remove_writer(number)
        for each in (self._socket, self._far, self._old):
            if each is not None:
                each.close()
        for number in self._pipes.values():
            os.close(number)
        self._pipes.clear()
        self._paused.clear()


def _pair() -> tuple[socket.socket, socket.socket]:
    ours, far = socket.socketpair()
    ours.setblocking(False)
    return ours, far


def _readable(number: int) -> int:
    """Return how many bytes can be read now."""
    return int.from_bytes(fcntl.ioctl(number, termios.FIONREAD, b"\0\0\0\0"), sys.byteorder)


def _read_some(number: int, size: int) -> bytes | None:
    """Return what can be read now: None if there is nothing yet, empty at the end."""
    try:
        return os.read(number, size)
    except BlockingIOError:
        return None
