"""Interfaces of other systems, each a thin file over the executor."""
