"""The configuration in force, the executor for a command, and exit statuses."""

from __future__ import annotations

import functools
import gc
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from .emit import is_interactive, note, show_progress

if TYPE_CHECKING:
    from pathlib import Path

    from redoma.config import Config
    from redoma.frontends.http.client import Client
    from redoma.pipeline.sync import Executor

close_later: list[Callable[[], None]] | None = None
"""In a process of the user's own service: how to let go of what was made for a run, once its caller has the status. The
run has ended by then, and its cell is gone; that an interpreter ends is nothing to wait for."""
FAILED = 125
USAGE = 2
"""Wrong usage. `check` exits with `UNKNOWN` instead: its 2 is a verdict."""
READER_GONE = 141
"""128 + SIGPIPE, as for any program whose reader is gone."""
UNKNOWN = 3
"""The exit status of monitoring plugins for an unknown state. Monitoring systems don't know 125."""


class State:
    """The options before the command: which configuration file, and how to log."""

    def __init__(
        self,
        config_file: Path | None,
        log: Mapping[str, Any],
        *,
        server: str | None = None,
        no_server: Exception | None = None,
    ) -> None:
        self._file, self._log = config_file, log
        self.server = server
        """The URL of the service to use instead of this machine, if one was named."""
        self._no_server = no_server
        """The error of a command that can't use that service: it must not use this machine in its place."""

    def client(self) -> Client:
        """Return a client of the named service. Raises `InvalidRequest` if there is no key for it."""
        from redoma.frontends.http.client import connect
        from redoma.lib.errors import InvalidRequest

        key = os.environ.get("REDOMA_KEY", "")  # not an option: every user of this machine can read those
        if not key:
            raise InvalidRequest(
                "there is no key for the service", why="REDOMA_KEY is not set", next="set it; `redoma keys` makes one"
            )
        return connect(self.server or "", key)

    @functools.cached_property
    def config(self) -> Config:
        """The configuration, loaded when a command first needs it; its notices are printed then."""
        from redoma.config import load, with_log

        if self._no_server is not None:
            raise self._no_server
        config = with_log(load(self._file), self._log, "the command line")
        if config.log.level != "off":
            from redoma.telemetry import logs

            logs.write(config.log.level, config.log.format, config.log.file)
        for notice in config.notices:
            note(notice)
        return config

    @property
    def attended(self) -> Config:
        """The configuration for a command that a person waits for: at a terminal that person is asked for approval,
        unless the configuration names another approver.
        """
        import msgspec

        config = self.config
        if config.approval.approver != "auto" or not is_interactive():
            return config
        return msgspec.structs.replace(config, approval=msgspec.structs.replace(config.approval, approver="console"))

    def executor(self, backend: str = "", *, attended: bool = True) -> Executor:
        """Return an executor for one run, with no cells kept for a second one. If the run will be on `backend`, that is
        started at once, while the rest of Redoma is loaded. `attended` selects the property of that name.
        """
        from redoma.pipeline.installed import Installed

        config = self.attended if attended else self.config
        installed = Installed(config, once=True)
        if backend in ("auto", "jail", "monty"):
            installed.warm("monty" if backend == "monty" else "jail")
        from redoma.pipeline.sync import Executor

        gc.freeze()  # loaded modules stay: collecting garbage among them would only take time
        gc.enable()
        executor = Executor(config, backends=installed)
        executor.core.on_progress = show_progress if sys.stderr.isatty() else None
        if close_later is not None:
            close_later.append(executor.close)
            executor.close = lambda: None  # type: ignore[method-assign]
        return executor
