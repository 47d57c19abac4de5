"""Finds the parts of Monty's package without importing it, which would take as long as a run."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import sys

PACKAGE = "pydantic_monty"
PRELOAD = "redoma.backends.monty.preload"
"""The module that a zygote imports: it loads the package."""

PROGRAM = "monty"
"""The name of the worker's program inside a cell, in `jail.configuration.PROGRAMS`."""


def find() -> str:
    """Return the path of the program. Raises `ImportError` if the package is not installed, and `FileNotFoundError` if
    the program is missing.

    If it is not next to this interpreter, the package's `_binary.py` finds it, which is documented to need no other
    part of the package.
    """
    package = os.path.dirname(location())
    usual = os.path.join(sys.prefix, "bin", PROGRAM)
    if "MONTY_BIN" not in os.environ and os.path.isfile(usual):
        return usual
    file = os.path.join(package, "_binary.py")
    about = importlib.util.spec_from_file_location("redoma_monty_binary", file)
    if about is None or about.loader is None:
        raise ImportError(f"{file} can't be loaded")
    module = importlib.util.module_from_spec(about)
    about.loader.exec_module(module)
    path: str = module.find_monty_binary()
    return path


@functools.cache
def location() -> str:
    """Return the file of the package. Raises `ImportError` if it is not installed."""
    package = importlib.util.find_spec(PACKAGE)
    if package is None or package.origin is None:
        raise ImportError(f"No module named {PACKAGE!r}")
    return package.origin


@functools.cache
def version() -> str:
    """Return the version that is installed. Raises `ImportError` if there is none."""
    packages = os.path.dirname(os.path.dirname(location()))
    for name in os.listdir(packages):
        if found := re.fullmatch(rf"{PACKAGE}-(.+)\.dist-info", name):
            return found[1]
    import pydantic_monty  # its metadata is elsewhere

    return pydantic_monty.__version__


def programs() -> dict[str, str]:
    """Return the programs that a cell for Monty contains: see `JailBackend`."""
    return {PROGRAM: find()}
