"""Environments: packages for runs, installed in a cell, kept by content, and seen read-only in cells.

`requirements` reads what is wanted, `index` finds out where packages come from, `install` is what the install cell is
told and how what it leaves is taken, and `store` keeps the result. What runs it is `pipeline.packages`.
"""

from __future__ import annotations

from .store import Environment, Package, Store, this_python

__all__ = ["Environment", "Package", "Store", "this_python"]
