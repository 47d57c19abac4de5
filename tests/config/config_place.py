"""A home directory with configuration files, for the tests next to this file."""

from __future__ import annotations

from pathlib import Path

from redoma import config
from redoma.config import Config

RULE = """\
policy:
  rules:
    - id: app.no-deploy
      decision: forbid
      reason: deployments are done by hand
      command: [deploy]
      match: ["deploy --now"]
      not_match: ["echo deploy"]
"""


class Place:
    """A home directory, and a project below it."""

    def __init__(self, root: Path) -> None:
        self.home = root / "home"
        self.project = self.home / "code" / "app"
        self.project.mkdir(parents=True)
        self.env = {"HOME": str(self.home)}
        self.user_file = self.home / ".config" / "redoma" / "redoma.yaml"
        self.project_file = self.project / "redoma.yaml"

    def user(self, text: str) -> None:
        self.user_file.parent.mkdir(parents=True, exist_ok=True)
        self.user_file.write_text(text)

    def load(self, explicit: Path | None = None, cwd: Path | None = None) -> Config:
        return config.load(explicit, cwd=cwd or self.project, env=self.env)

    def named(self, text: str | bytes) -> Path:
        file = self.home / "named.yaml"
        file.write_bytes(text.encode() if isinstance(text, str) else text)
        return file
