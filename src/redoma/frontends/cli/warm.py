"""The command line's end of the user's own service (`redoma serve --user`), where there is one.

The service has Redoma loaded and an interpreter for a cell started. A command that it takes is carried out by a process
of the service that becomes, as far as that can be told, the one that was called: our words, environment, working
directory, standard streams and terminal. We wait for its exit status, and pass signals on. What it does not take, since
something about us can't be had there (see `user_service`), is carried out here, as if there were no service.

This loads next to nothing: it is what makes a short command short.
"""

from __future__ import annotations

import _locale
import _signal
import _socket
import marshal
import os
import sys

VARIABLE = "REDOMA_USER_SOCKET"
COMMANDS = ("run", "eval")
_HERE = ("--backend", "--workspace", "--project", "--cwd", "--checkpoint", "-h", "--help")
"""Options about this machine, or that are answered sooner here."""
_PRIVATE = ("/dev/fd", "/dev/std", "/dev/tty", "/proc")
"""Paths that mean something else in every process."""
_PASSED_ON = (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP)
_DONT_WRITE_BYTECODE, _UTF8_MODE = 4, 14
"""Positions in `sys.flags`."""
TAKEN, NOT_TAKEN = b"Y", b"N"
GONE = 125

inside = False
"""Whether this process is one of the service's own."""


def socket_path() -> str:
    """Where the service listens; empty if there is no place for it."""
    if (named := os.environ.get(VARIABLE)) is not None:
        return named
    if runtime := os.environ.get("XDG_RUNTIME_DIR", ""):
        return f"{runtime}/redoma/user.sock"
    home = os.environ.get("HOME", "")
    return f"{home}/.local/state/redoma/user.sock" if home.startswith("/") else ""


def fits(words: list[str]) -> bool:
    """Whether the service may be asked to carry out these words."""
    if not words or words[0] not in COMMANDS or inside or "REDOMA_SERVER" in os.environ:
        return False
    return not any(word.startswith(_HERE) or any(path in word for path in _PRIVATE) for word in words[1:])


def run(words: list[str]) -> int | None:
    """Have the service carry out a command, and return its exit status. None if it was not: nothing has happened."""
    path = socket_path()
    if not path or not fits(words):
        return None
    service = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    # A signal waits until it is known who takes it: the command may begin before we know that it was taken.
    before = _signal.pthread_sigmask(_signal.SIG_BLOCK, _PASSED_ON)
    try:
        service.connect(path)
        if not _ask(service, words):
            return None
        _pass_signals_on(service)
    except OSError:
        service.close()
        return None
    finally:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, before)
    return _wait(service)


def _ask(service: _socket.socket, words: list[str]) -> bool:
    """Send the command; whether it was taken. Raises OSError if there is nobody to take it."""
    peer = service.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
    if int.from_bytes(peer[4:8], sys.byteorder) != os.geteuid():
        return False  # it gets our environment, so it has to be ours
    streams = (sys.stdin, sys.stdout, sys.stderr)
    if [stream.fileno() for stream in streams] != [0, 1, 2]:
        return False
    directory = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        message = marshal.dumps(
            {
                "words": words,
                "environment": dict(os.environb),
                "streams": [(stream.encoding, stream.errors) for stream in streams],
                "python": python(),
            }
        )
        descriptors = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2, directory))
        rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, descriptors)]
        service.sendmsg([len(message).to_bytes(4, "big")], rights)
        service.sendall(message)
    finally:
        os.close(directory)
    return service.recv(1) == TAKEN


def python() -> list[str]:
    """What has to be the same at both ends: the interpreter, how it was started, and which Redoma this is."""
    import redoma

    # Not `dont_write_bytecode`, which changes no run. A service of systemd often has no locale, and then Python turns
    # its UTF-8 mode on: only the encoding has to be the same.
    flags = [each for at, each in enumerate(sys.flags) if at not in (_DONT_WRITE_BYTECODE, _UTF8_MODE)]
    encodings = sys.getfilesystemencoding(), "utf-8" if sys.flags.utf8_mode else _locale.getencoding().lower()
    started = (flags, sys.warnoptions, sorted(sys._xoptions.items()), *encodings)
    return [sys.executable, sys.prefix, redoma.__file__, redoma.__version__, repr(started)]


def _pass_signals_on(service: _socket.socket) -> None:
    """From now on, send signals to the process that carries out the command."""

    def pass_on(number: int, frame: object) -> None:
        try:
            service.send(bytes([number]))
        except OSError:  # it has ended just now
            return

    for number in _PASSED_ON:
        if _signal.getsignal(number) is not _signal.SIG_IGN:
            _signal.signal(number, pass_on)


def _wait(service: _socket.socket) -> int:
    """Wait for the exit status."""
    said = service.recv(1)
    if said:
        return said[0]
    sys.stderr.write("redoma: the service that ran this has ended: how it ended is not known\n")
    sys.stderr.write("  next: see `redoma audit tail`, and `redoma serve --user`\n")
    return GONE
