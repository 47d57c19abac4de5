"""Scripts run as by a user, through the whole pipeline, on one executor and one pool of cells."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec

from redoma import Result, config
from redoma.backends.jail import JailBackend
from redoma.backends.lua import host
from redoma.backends.lua.backend import LuaBackend, in_cell
from redoma.config import AuditConfig
from redoma.frontends.lua import Broker, Scripts
from redoma.pipeline.intake import Options
from redoma.pipeline.sync import Executor

ENTRIES = """\
version: "1.0"
namespace: app
entries:
  - name: shell
    kind: exec.native
    default_work_dir: {directory}
    default_env: {{GREETING: hello}}
  - name: listed
    kind: exec.native
    default_work_dir: {directory}
    command_whitelist: ["git status", "cat"]
  - name: cell
    kind: exec.jail
"""


class Stage:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        file = directory / "redoma.yaml"
        file.write_text(ENTRIES.format(directory=directory))
        audit = AuditConfig(directory=directory / "audit")
        self.executor = Executor(msgspec.structs.replace(config.load(file, cwd=directory), audit=audit))
        self.scripts = Scripts(self.executor.core)

    def run(self, source: str, *arguments: str, **options: Any) -> Result:
        asked = self.scripts.ask(source, ("script.lua", *arguments), cast(Options, options))
        return self.executor.wait(self.executor.core.submit(asked))

    def impostor(self, code: str, **options: Any) -> Result:
        """Run Python in place of our host inside the cell, as if it had taken over everything there."""
        asked = self.scripts.ask("", ("script.lua",), cast(Options, options))
        boot: Callable[[host.ScriptJob], str] = lambda _: _TALKING + code  # noqa: E731
        assert self.scripts._cells is not None
        on = LuaBackend(self.scripts._cells, Broker(self.executor.core), boot)
        return self.executor.wait(self.executor.core.submit(msgspec.structs.replace(asked, own_backend=on)))

    def watched(self, source: str, **options: Any) -> Result:
        """Run in a cell without a control group."""
        asked = self.scripts.ask(source, ("script.lua",), cast(Options, options))
        cells = JailBackend(minimum=0, preload=("lupa.lua54",), prelude=host.__name__, without=("memory",))
        try:
            on = LuaBackend(cells, Broker(self.executor.core), in_cell)
            return self.executor.wait(self.executor.core.submit(msgspec.structs.replace(asked, own_backend=on)))
        finally:
            self.executor.wait(cells.aclose())

    def records(self) -> list[dict[str, Any]]:
        lines = [
            line
            for path in sorted(self.executor.core.config.audit.directory.glob("*.jsonl"))
            for line in path.read_bytes().splitlines()
        ]
        return [msgspec.json.decode(line) for line in lines]

    def close(self) -> None:
        self.executor.wait(self.scripts.aclose())
        self.executor.close()


_TALKING = """
import json, os, struct, sys, time

def send(data):
    while data:
        data = data[os.write(1, data):]

def frame(message):
    payload = message if isinstance(message, bytes) else json.dumps(message).encode()
    send(struct.pack("!I", len(payload)) + payload)

def say(text):
    frame({"do": "print", "text": text})

def ask(**message):
    frame(message)
    (size,) = struct.unpack("!I", os.read(0, 4))
    return json.loads(os.read(0, size))

"""
