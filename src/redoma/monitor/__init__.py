"""Health checks: facts of this machine, judged by rules that run in a sandbox.

    monitor.yaml ─▶ collect ─▶ rules, in the sandbox ─▶ states ─▶ history ─▶ table, report, notices, remedies

A rule is somebody's code, so it is run like everybody's: on Monty, and in a cell where it needs more. What it is told
are facts as plain data; what it answers is looked at as data. One that fails, hangs or eats memory is `unknown`, and
the others don't notice.
"""
