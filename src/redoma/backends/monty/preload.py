"""Loads Monty's package, in the zygote. It imports asyncio, which takes half of that time, for a function that no run
calls."""

from __future__ import annotations

from redoma.backends.monty.worker import PACKAGE
from redoma.lib.extras import import_without

import_without(PACKAGE, unused=("asyncio", "shutil"))
