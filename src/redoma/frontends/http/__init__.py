"""The service: Redoma over HTTP, for callers that are not in this process.

Theory of operation. There is one process, one event loop and one `AsyncExecutor`. Every run goes through that executor,
as runs of the library do, with the caller's key as its requester.

    uvicorn ─▶ server.Connection (one clear request at a time; its time and size)
      └─▶ litestar ─▶ access (the request's key and its scopes)   ─▶ routes/ ─▶ service.Service ─▶ AsyncExecutor
                                                                       │            └─▶ store: runs, in SQLite
                                                                       └─▶ dashboard/: the same, as pages

    store      the tables: keys, logins, runs
    keys       create, find and revoke API keys; it does not need litestar, so the command line uses it too
    access     a request's key, its scopes and its rate
    service    accept, queue, execute and cancel runs, and recover them after a crash
    boundary   a caller's request as a submission, and a result as a caller may see it
    quotas     how much a key may do, and who gets the next slot
    jobs       a run in this process, and following its events
    run_table  runs in the database
    sessions   sessions, their copies and their processes: who owns them, and when they end
    bodies     requests and answers as structs
    problems   errors as answers: what, why, next; no path, no secret, no traceback
    app        the application: all routes, and the OpenAPI document
    mounts     other interfaces with their own address, such as /mcp
    server     listen with limits, and stop
    client     the other end, for `redoma.connect`: client_transport, client_shapes and client_sessions are parts of it
    routes/    one file for each kind of resource under /v1; to add one, add a file and its entry in `app.ROUTES`

A durable run (`POST /v1/runs/async`, or any run with an `Idempotency-Key`) is stored before the request is answered.

    queued ──▶ running ──▶ done          running when the process ends in any way: interrupted at the next start
      │  ▲        ├──────▶ cancelled     queued then: run after the next start, unless it has secrets: they are not kept
      │  └ waiting┘
      └─────────────────▶ cancelled      waiting for an approval: continues once answered; at a restart like queued

The step from `queued` to `running` is committed before anything runs, and no run goes back from `running` to `queued`,
so none runs twice. One process owns the database (by a lock on a file), so a run that it finds in the state `running`
at its start belongs to no other process.
"""
