"""Unix sockets that only this user can connect to."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

from .errors import ConfigError


def listen_private(path: Path) -> socket.socket:
    """Bind a Unix socket that only this user can connect to. One that nobody listens on any more is replaced.

    Raises `ConfigError` if the name is taken, and OSError if it can't be bound.
    """
    if path.exists() or path.is_symlink():
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise ConfigError(
                f"{path} is not a socket", why="something else has this name", next="choose another path with --socket"
            )
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()
            else:
                raise ConfigError(
                    f"a service runs already at {path}",
                    why="it answers there",
                    next="use that one, end it first, or choose another path with --socket",
                )
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listening.bind(str(path))
    except BaseException:
        listening.close()
        raise
    finally:
        os.umask(before)
    return listening
