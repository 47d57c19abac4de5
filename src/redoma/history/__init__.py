"""Working with the record: runs are rebuilt from it, searched, judged by another policy, and run again."""
