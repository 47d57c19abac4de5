"""Finds the program of Monty's workers without importing the package, which would take as long as a run."""

from __future__ import annotations

import importlib.util
import os

PROGRAM = "monty"
"""The name of the worker's program inside a cell, in `jail.configuration.PROGRAMS`."""


def find() -> str:
    """Return the path of the program. Raises `ImportError` if the package is not installed, and `FileNotFoundError` if
    the program is missing.

    Loads the package's `_binary.py`, which is documented to need no other part of the package.
    """
    package = importlib.util.find_spec("pydantic_monty")
    if package is None or package.origin is None:
        raise ImportError("No module named 'pydantic_monty'")
    file = os.path.join(os.path.dirname(package.origin), "_binary.py")
    about = importlib.util.spec_from_file_location("redoma_monty_binary", file)
    if about is None or about.loader is None:
        raise ImportError(f"{file} can't be loaded")
    module = importlib.util.module_from_spec(about)
    about.loader.exec_module(module)
    path: str = module.find_monty_binary()
    return path


def programs() -> dict[str, str]:
    """Return the programs that a cell for Monty contains: see `JailBackend`."""
    return {PROGRAM: find()}
