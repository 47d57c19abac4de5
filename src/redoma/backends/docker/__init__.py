"""Docker: runs in containers of an engine, for its images and for hosts where the jail can't be built.

Theory of operation
-------------------

    host ──HTTP──▶ engine: create, attach, start, signal, stats, wait, remove
      └───one hijacked connection (attach): input ─▶ container, stdout and stderr ◀─ container

- `box` is a container as data: what somebody wants, and the engine's JSON for it.
- `engine` is the connection; it says what the engine's errors mean, and sweeps what a Redoma that died has left.
- `container` is one container, from its creation to its removal. It has a name of ours before it exists, so it can be
  removed even if the answer to its creation never came.
- `stub`, `guest.py` and `stub.sh` are what waits inside. A warm container is one whose stub waits for its order; a
  fresh one goes the same way. The order comes first on the input, what the program is to read follows. After the
  program the stub may send a word of its own and the files, behind a number that the program was not told.
- `run` takes one request through one container; `received` reads, within bounds, what is sent back: the boundary.
- `inspection` says what the engine itself reports to be in force, and what `redoma doctor` shows of it.
- `pool` keeps containers warm. Each is used once.

A container that is configured (`Box.plain`, the `exec.docker` entries) runs the command itself instead of a stub, with
exactly the settings that were written down.

What may be believed: the engine, and so exit code, memory and the container's end. Not what comes out of the container:
the stub has the same rights as the program, which can forge its own files and its own last word, and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .backend import DockerBackend
    from .box import Box

__all__ = ["Box", "DockerBackend"]


def __getattr__(name: str) -> Any:
    if name == "DockerBackend":
        from .backend import DockerBackend

        return DockerBackend
    if name == "Box":
        from .box import Box

        return Box
    raise AttributeError(name)
