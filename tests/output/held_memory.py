"""Measures how much memory a test's own objects hold."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def held_memory() -> Iterator[Callable[[], int]]:
    """Count what is allocated in the block and not freed. Yields a function that returns the bytes."""
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
