"""Whether a module of ours is there in a cell, too."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path


def is_seen_in_cells(file: str) -> bool:
    """A cell has the packages of this interpreter, but not those of PYTHONPATH or of a user's own directory."""
    inside = ("/usr", sys.base_prefix, sysconfig.get_path("platlib"))
    return any(Path(os.path.realpath(file)).is_relative_to(os.path.realpath(path)) for path in inside)
