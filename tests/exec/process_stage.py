"""Executors of every kind that a program can be talked to on, for the tests beside this file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from redoma import Config, Executor, config

KINDS = {
    "native": "kind: exec.native",
    "jail": "kind: exec.jail",
    # The tests' own engine has no bridge to connect anything to.
    "docker": "kind: exec.docker, image: 'python:3.11-slim', network_mode: none, auto_remove: true, host: '{engine}'",
}
"""The rest of an entry of each kind."""


def configured(directory: Path, *entries: str) -> Config:
    """A configuration with these entries, each the inside of a flow mapping, read from a real file."""
    file = directory / "stage.yaml"
    lines = "".join(f"  - {{{entry}}}\n" for entry in entries)
    file.write_text(f"version: '1.0'\nnamespace: app\nentries:\n{lines}audit: {{directory: {directory}/audit}}\n")
    return config.load(file, cwd=directory, env={"HOME": str(directory)})


@contextmanager
def stage(directory: Path, entry: str) -> Iterator[Executor]:
    """An executor with entries of a kind: `app:shell`, `app:own` with defaults of its own, and a brief one."""
    own = "default_env: {A: entry, B: entry}, default_work_dir: /usr/lib"
    entries = f"name: shell, {entry}", f"name: own, {entry}, {own}", f"name: brief, {entry}, limits: {{time: 0.3}}"
    with Executor(configured(directory, *entries)) as executor:
        yield executor
