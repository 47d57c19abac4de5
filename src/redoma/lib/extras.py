"""Optional packages: how to install those that are missing, and how to do without those that a short run doesn't need.

The command line imports this first of all, so it imports next to nothing itself.
"""

from __future__ import annotations

import os
import sys


def pip_install(what: str) -> str:
    """Return the command that installs a package next to Redoma; in a virtual environment, with its pip."""
    import shlex

    own = os.path.join(sys.prefix, "bin", "pip")
    pip = shlex.quote(own) if sys.prefix != sys.base_prefix and os.path.exists(own) else "pip"
    return f"{pip} install '{what}'"


def load_small() -> None:
    """Load msgspec and asyncio as if `typing_extensions` and `ssl` were not installed, which are a tenth of what a
    short run loads. Only for the command line, before anything else is loaded: msgspec then knows only the types of the
    standard library, and asyncio makes no TLS connections until `restore_tls`.
    """
    if {"asyncio", "msgspec", "ssl", "typing_extensions"} & set(sys.modules):
        return
    absent: dict[str, None] = {"ssl": None, "typing_extensions": None}
    sys.modules.update(absent)  # type: ignore[arg-type]  # makes an import fail as if it were not installed
    try:
        import asyncio

        import msgspec

        _ = asyncio, msgspec
    finally:
        for name in absent:
            del sys.modules[name]


def restore_tls() -> None:
    """Let asyncio make TLS connections, also after `load_small`."""
    import asyncio.base_events
    import asyncio.selector_events
    import asyncio.sslproto
    import importlib
    import ssl

    if getattr(asyncio.sslproto, "ssl", None) is None:
        importlib.reload(asyncio.sslproto)
        for module in (asyncio.base_events, asyncio.selector_events):
            module.ssl = ssl  # type: ignore[attr-defined]
