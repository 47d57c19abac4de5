"""Executors of every kind that supports interactive programs, for the tests next to this file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from redoma import Config, Executor, config

KINDS = {
    "native": "kind: exec.native",
    "jail": "kind: exec.jail",
    # The tests' own engine has no bridge network.
    "docker": "kind: exec.docker, image: 'python:3.11-slim', network_mode: none, auto_remove: true, host: '{engine}'",
}
"""The rest of an entry of each kind."""


def configured(directory: Path, *entries: str) -> Config:
    """Return a configuration with these entries, each the inside of a flow mapping, read from a real file."""
    file = directory / "stage.yaml"
    lines = "".join(f"  - {{{entry}}}\n" for entry in entries)
    file.write_text(f"version: '1.0'\nnamespace: app\nentries:\n{lines}audit: {{directory: {directory}/audit}}\n")
    return config.load(file, cwd=directory, env={"HOME": str(directory)})


@contextmanager
def stage(directory: Path, entry: str) -> Iterator[Executor]:
    """Yield an executor with entries of a kind: `app:shell`, `app:own` with its own defaults, and one with a short
    time.
    """
    own = "default_env: {A: entry, B: entry}, default_work_dir: /usr/lib"
    entries = f"name: shell, {entry}", f"name: own, {entry}, {own}", f"name: brief, {entry}, limits: {{time: 0.3}}"
    with Executor(configured(directory, *entries)) as executor:
        yield executor
