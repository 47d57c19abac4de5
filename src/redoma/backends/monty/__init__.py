"""Runs on Monty, an interpreter of a Python subset without system calls: in a cell, or on worker threads."""
