"""Interfaces of other systems, each a thin layer over the executor."""
