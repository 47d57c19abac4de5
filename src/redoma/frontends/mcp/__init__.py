"""Redoma as an MCP server: tools for agents, by the official SDK (`mcp`), in both eras of the protocol.

Theory of operation. A tool call is a request like any other: it goes through `AsyncExecutor.submit` (policy, approval,
the record, a cell, output), and what comes of it is written for a model.

    client ─▶ stdio, or /mcp of the service (http.py: its keys) ─▶ MCPServer ─▶ tools ─▶ tool_host ─▶ AsyncExecutor
                                                                      └─▶ approval: a person, where needed

    tools       the tools: what they take, what they call; nothing is decided here
    tool_host   where calls run: the executor, the sessions, who calls
    stdio       `LocalToolHost`, this user's machine, and the server over standard input and output
    http        `ServiceToolHost`, with the quotas and projects of the service, and the mount at /mcp
    approval    a call that needs a person, in three steps: try it, ask, try it again
    answers     what a model gets back: bounded, and free of anything that JSON can't carry
    install     the configuration of clients

A call that needs a person is first submitted without waiting, which leaves a question in the ledger, under a digest of
everything that decides what would happen. The client shows that question (elicitation), and a yes is written to the
ledger as the answer to that digest. Then the same call is submitted again: the ledger has an approval of exactly this,
good for one run. So nothing but the question travels through the client, and it works alike in the stateless era, where
the second half arrives as a request of its own. A client that can't ask gets the id to approve it by.
"""
