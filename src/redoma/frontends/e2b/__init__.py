"""E2B's HTTP interface over sessions. The packages `e2b` and `e2b-code-interpreter` work with it unchanged.

    client ─▶ app ─┬─ control       the control plane: POST /v2/sandboxes and others, with an API key
                   ├─ code          /execute, /contexts: code that keeps its variables
                   ├─ processes     process.Process/*: commands and terminals
                   ├─ filesystem    filesystem.Filesystem/*: names, directories, watches
                   └─ transfer      /files: contents, also by signed URLs
                          │
                      sandboxes     one session each, with an owner and an expiry

- `wire` is the trust boundary: it limits every part of a request, and defines the formats of answers and errors.
- A sandbox is a session of the service's executor. So policy, approval, limits, redaction and the audit log apply to
  its runs as to all others. The requester is `key:NAME e2b`, with the name of the key.
- The control plane needs an API key with the scope `run`, which sees only its own sandboxes (with `admin`: all). The
  data plane needs the tokens of the sandbox, which are valid only while its key is.

docs/e2b.md lists what is supported, and why the rest is not.
"""
