"""Works with recorded runs: rebuilds them, searches them, evaluates another policy on them, and runs them again."""
