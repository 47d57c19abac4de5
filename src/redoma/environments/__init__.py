"""Environments: packages for runs, installed in a cell, kept by content, and seen read-only in cells.

`requirements` reads and checks requirements, `index` finds the package index, `install` has the code of the install
cell and takes the files it leaves, and `store` keeps them. `pipeline.packages` runs it all.
"""

from __future__ import annotations

from .store import Environment, Package, Store, this_python

__all__ = ["Environment", "Package", "Store", "this_python"]
