"""How to install optional packages."""

from __future__ import annotations

import os
import shlex
import sys


def pip_install(what: str) -> str:
    """Return the command that installs a package next to Redoma; in a virtual environment, with its pip."""
    own = os.path.join(sys.prefix, "bin", "pip")
    pip = shlex.quote(own) if sys.prefix != sys.base_prefix and os.path.exists(own) else "pip"
    return f"{pip} install '{what}'"
