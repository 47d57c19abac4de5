"""The record as something to work with: runs rebuilt from it, to be judged again or run again."""
