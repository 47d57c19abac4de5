"""The Ray backend: runs requests on the nodes of a Ray cluster.

Theory of operation
-------------------

    RayBackend ─▶ Hub (a thread) ─▶ Link, one for each node ── bytes ──▶ Node, one actor on each node ─▶ its cells

- Every node of the cluster that has the custom resource `redoma` gets one actor, which owns that node's backends and so
  its pool of cells. Ray starts nothing else: a run is never a Ray task, and its code is data in a message.
- `protocol` defines all messages, and seals them with a key that Ray never sees. Answers are bytes, which are decoded
  into known types; Ray passes bytes on without unpickling anything.
- `node` is the actor without Ray: it obeys orders, keeps news for its clients, and ends the runs of a client that it
  hasn't heard from for a while.
- `arrivals` are the environments that clients send to a node that doesn't have them.
- `link` is one client's connection to one node. Orders are sent in batches, one at a time and numbered, and news is
  fetched by a call that waits for it. So a lost call or answer can be repeated without running anything twice.
- `line` is a direct connection for these calls. Without one, Ray carries them, at ten times the cost.
- `hub` keeps the links in a thread of its own, so that leases are renewed even while the caller's event loop
  doesn't run. It sends each run to the least loaded node that offers what it needs; while none has room, runs wait.
- `backend` makes this a backend. It retries a run that was lost with its node if the run can't have had any effect.
  It alone returns outcomes, so each run is reported once.
- `engine` connects to Ray, and finds or creates the actors.
- `processes` starts and stops Ray on this machine, for `redoma cluster`.

Who trusts whom: a client trusts nodes that have the cluster's key; a node trusts clients that have it. Neither trusts
what a guest produced. docs/cluster.md has the rest.
"""
