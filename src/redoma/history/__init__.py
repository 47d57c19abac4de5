"""Works with the record: rebuilds runs from it, searches them, evaluates another policy on them, and runs them
again.
"""
