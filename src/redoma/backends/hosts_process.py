"""The process of the proxies, from its start: it gives up what it doesn't need, then serves (`network/process.py`)."""

from __future__ import annotations

import resource

from . import linux
from .spawn import PARENT, SOCKET


def main() -> None:
    """Serve the proxies of an executor's runs. Descriptors and environment are those of `spawn`."""
    linux.hide_from_peers()  # it will have the values of secrets
    linux.allow_no_new_privileges()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # two for each connection of each run
    from ..network.process import main as serve  # only now: whatever it imports is imported without these

    serve(SOCKET, PARENT)
