"""The Docker backend: runs requests in containers, for their images and for hosts where the jail can't be built.

Theory of operation
-------------------

    host ──HTTP──▶ engine: create, attach, start, signal, stats, wait, remove
      └───one hijacked connection (attach): input ─▶ container, stdout and stderr ◀─ container

- `box` describes a container as data and turns it into the engine's JSON.
- `engine` is the connection. It explains the engine's errors and removes what crashed Redoma processes left behind.
- `container` is one container, from creation to removal. Redoma chooses its name before creating it, so the container
  can be removed even if the engine's answer to the creation never arrived.
- `stub` starts `guest.py` or `stub.sh` inside the container. The stub waits for one order on its input; the program's
  own input follows the order. Warm and fresh containers work the same way. When the program has ended, the stub may
  send a final message and the output files, prefixed with a secret number (nonce) that the program is not given.
- `run` takes one request through one container. `received` parses, within bounds, what the container sends back: it is
  the trust boundary.
- `inspection` reports which layers the engine says are in force, and the facts for `redoma doctor`.
- `pool` keeps containers warm. Each is used once.

A configured container (`Box.plain`, the `exec.docker` entries) runs the command directly instead of a stub, with
exactly the configured settings.

What is trusted: the engine, and therefore the exit code, the memory verdict and the container's end. Output of the
container is not trusted: the stub has the same rights as the program, so the program can forge its own files and its
own final message, but nothing else.
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
