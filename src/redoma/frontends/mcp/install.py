"""The configuration of clients: what would be written, and writing it. Nothing here needs the SDK."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from ...lib.errors import ConfigError
from ...workspace.atomic import atomic_write

NAME = "redoma"


class Client(NamedTuple):
    """Where a client has its configuration, and how it is written there."""

    path: str
    """Below the home if it begins with `~`, else below the current directory."""
    section: str
    next: str
    """What to do afterwards."""
    kind: bool = False
    """Whether an entry says that it is a program (`type`)."""


CLIENTS = {
    "claude-code": Client(".mcp.json", "mcpServers", "Start claude in this directory, and see /mcp."),
    "cursor": Client("~/.cursor/mcp.json", "mcpServers", "See it under Settings, MCP."),
    "vscode": Client(".vscode/mcp.json", "servers", "Open this folder, and start the server in that file.", kind=True),
    "codex": Client("~/.codex/config.toml", "mcp_servers", "Start codex, and see /mcp."),
}


class Plan(NamedTuple):
    """What would be written."""

    path: Path
    shown: str
    """The part that is ours."""
    text: str
    """The whole file."""
    is_there: bool
    next: str

    def write(self) -> None:
        """Write it, all or nothing. Raises `NotWritten`."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(self.path, self.text)


def plan(client: str, project: str | None) -> Plan:
    """What a client's configuration would have to be. Raises `ConfigError` if there is one that can't be read."""
    known = CLIENTS[client]
    path = Path(os.path.realpath(os.path.expanduser(known.path)))  # a link to a file elsewhere stays one
    try:
        before = path.read_text()
    except FileNotFoundError:
        before = ""
    except (OSError, UnicodeDecodeError) as error:
        raise _unusable(path, str(error)) from error
    make = _toml if path.suffix == ".toml" else _json
    shown, text = make(path, before, known, _entry(known, project))
    return Plan(path, shown, text, text == before, known.next)


def _entry(client: Client, project: str | None) -> dict[str, Any]:
    args = ["mcp", *(["--project", os.path.abspath(project)] if project is not None else [])]
    return {**({"type": "stdio"} if client.kind else {}), "command": _program(), "args": args}


def _program() -> str:
    """How clients start us: by name if that finds this very program, else by its path. In a virtual environment always
    by its path: the shell that has activated it finds the name, and a client that is started elsewhere doesn't.
    """
    own = Path(sys.executable).with_name(NAME)
    found = shutil.which(NAME)
    if not own.exists():
        return found or NAME
    if sys.prefix != sys.base_prefix:
        return str(own)
    return NAME if found and os.path.realpath(found) == os.path.realpath(own) else str(own)


def _json(path: Path, before: str, client: Client, entry: dict[str, Any]) -> tuple[str, str]:
    try:
        whole = json.loads(before) if before.strip() else {}
        section = whole.setdefault(client.section, {})
        if section.get(NAME) == entry:
            return "", before
        section[NAME] = entry
    except (ValueError, AttributeError, TypeError, RecursionError) as error:  # comments, or something else altogether
        raise _unusable(path, str(error)) from error
    shown = json.dumps({client.section: {NAME: entry}}, indent=2)
    return shown, json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def _toml(path: Path, before: str, client: Client, entry: dict[str, Any]) -> tuple[str, str]:
    try:
        found = tomllib.loads(before).get(client.section, {}).get(NAME)
    except (tomllib.TOMLDecodeError, AttributeError) as error:
        raise _unusable(path, str(error)) from error
    if found == entry:
        return "", before
    if found is not None:  # there is no writer of TOML that keeps comments among what we have
        raise _unusable(path, f"it has another [{client.section}.{NAME}]")
    lines = [f"[{client.section}.{NAME}]", *(f"{name} = {json.dumps(value)}" for name, value in entry.items())]
    shown = "\n".join(lines)
    gap = "" if not before else "\n" if before.endswith("\n") else "\n\n"
    return shown, f"{before}{gap}{shown}\n"


def _unusable(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{path} can't be changed by us", why=why, next="add it by hand: docs/mcp.md has what to write for each client"
    )
