"""The Ray backend: runs requests on the nodes of a Ray cluster.

Theory of operation
-------------------

    RayBackend ─▶ Hub (a thread) ─▶ Link, one for each node ── Ray: bytes ──▶ Node, one actor on each node ─▶ its cells

- Every node of the cluster that has the custom resource `redoma` gets one actor, which owns that node's backends and so
  its pool of cells. Ray starts nothing else: a run is never a Ray task, and its code is data in a message.
- `protocol` has all messages, and seals them with a key that Ray never sees. What comes back is bytes that are decoded
  into known types; Ray passes bytes on without unpickling anything.
- `node` is the actor without Ray: it obeys orders, keeps news for its clients, and ends the runs of a client that it
  has not heard of for a while.
- `link` is one client's connection to one node. Orders are sent in batches, one at a time and numbered, and news are
  fetched by a call that waits. So a lost call or answer can be repeated without running anything twice.
- `hub` keeps the links in a thread of its own, so that leases are kept while nobody drives the caller's event loop. It
  chooses the least loaded node that offers what a request needs, and lets the others wait.
- `backend` is all of this behind the protocol of backends. It retries what a dead node took with it, if that can have
  had no effect, and reports each run once because it alone returns the outcome.
- `engine` connects to Ray, and finds or makes the actors.
- `processes` starts and stops Ray on this machine, for `redoma cluster`.

Who trusts whom: a client trusts the nodes it has the key of; a node trusts clients that have the key. Neither trusts
what a guest produced. docs/cluster.md has the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .backend import RayBackend

__all__ = ["RayBackend"]


def __getattr__(name: str) -> Any:
    if name == "RayBackend":
        from .backend import RayBackend

        return RayBackend
    raise AttributeError(name)
