"""Health checks: facts about this machine, judged by rules that run in a sandbox.

    monitor.yaml ─▶ collect ─▶ rules, in the sandbox ─▶ history, states ─▶ table, report, notices, remedies

A rule is code that nobody has reviewed, so it runs in a sandbox: on Monty, or in a cell if it needs more. It gets facts
as plain data, and its answer is read as plain data. If a rule fails, hangs or uses too much memory, its check is
`unknown`, and no other check is affected.
"""
