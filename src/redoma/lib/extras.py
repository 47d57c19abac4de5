"""How to install optional packages."""

from __future__ import annotations

import os
import shlex
import sys


def pip_install(what: str) -> str:
    """The command that installs a package where Redoma itself is: in a virtual environment, by the pip of that."""
    own = os.path.join(sys.prefix, "bin", "pip")
    pip = shlex.quote(own) if sys.prefix != sys.base_prefix and os.path.exists(own) else "pip"
    return f"{pip} install '{what}'"
