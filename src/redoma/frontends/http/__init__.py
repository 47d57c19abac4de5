"""The service: Redoma over HTTP, for callers that are not in this process.

Theory of operation. One process, one event loop, one `AsyncExecutor`: whatever a caller wants run goes through
`AsyncExecutor.submit`, as anybody else's request does, with the caller's key as its requester.

    uvicorn ─▶ server.Connection (time and size of a request)
      └─▶ litestar ─▶ access.Access (who is it, what may they do) ─▶ routes/ ─▶ service.Service ─▶ AsyncExecutor
                                                                       │            └─▶ store: runs, in SQLite
                                                                       └─▶ dashboard/: the same, as pages

    store      the tables: keys, logins, runs
    keys       API keys: made, found, revoked; nothing here needs litestar, so the command line uses it too
    access     a request's key, its scopes, its rate; and what it may not ask for over HTTP
    service    runs: accepted, queued, driven, followed, cancelled, recovered after a crash
    sessions   sessions, their copies and their processes: whose they are, and when they end
    bodies     what comes in and what goes out, as structs
    problems   errors as answers: what, why, next; no path, no secret, no traceback
    app        the routes put together, with the OpenAPI document
    mounts     other interfaces with an address of their own, such as /mcp
    server     listening: where, with which limits, and stopping
    routes/    one file for each thing that has an address under /v1: a new one is a file, and a line in `app.ROUTES`

A run that was accepted (`POST /v1/runs/async`, or any run with an `Idempotency-Key`) is a row before it is answered.

    queued ──▶ running ──▶ done          running when the process ends in any way: interrupted, at the next start
      │  ▲        ├──────▶ cancelled     queued then: run after the next start, but not with secrets: they are not kept
      │  └ waiting┘
      └─────────────────▶ cancelled      waiting: for a person; it goes on when they answer, also after a restart

`queued → running` is committed before anything runs, and no run goes back from `running` to `queued`: so none runs
twice. One process owns the database (a lock on a file), so that what it finds running at its start is nobody's.
"""
