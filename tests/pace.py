"""How slow this machine is, for the deadlines of tests."""

from __future__ import annotations

import os

SLOW = int(os.environ.get("REDOMA_SLOW", "1"))
"""How many times slower this machine is than an ordinary one; more than 1 for an emulated one."""
