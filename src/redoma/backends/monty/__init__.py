"""Runs on Monty, a Python subset without system calls: on worker threads, or inside a cell."""
