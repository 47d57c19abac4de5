"""The section `docker` of a configuration, and who may write it."""

from __future__ import annotations

from pathlib import Path

import pytest

from redoma import AsyncExecutor, Config, config
from redoma.backends.docker import Box, DockerBackend
from redoma.config import AuditConfig, InvalidFile

_FILE = """\
version: "1.0"
docker:
  host: unix:///run/other.sock
  runtime: runsc
  python: registry.example/python:1
  minimum: 3
"""


def test_what_a_user_has_written_is_what_the_backend_gets(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(_FILE)
    executor = AsyncExecutor(config.load(tmp_path / "mine.yaml", cwd=tmp_path))
    backend = executor.backends["docker"]
    assert isinstance(backend, DockerBackend)
    assert backend.box == Box(runtime="runsc", python="registry.example/python:1")  # hardened all the same
    assert backend._host == "unix:///run/other.sock"
    assert list(executor.backends) == ["jail", "docker", "monty", "lean", "ray", "native"]


@pytest.mark.parametrize(
    "line",
    [
        *("host: tcp://evil.example:2375", "runtime: runc", "python: evil/python:1", "bash: evil/bash:1"),
        *("command: evil/command:1", "pull: true", "minimum: 5", "maximum: 500"),
    ],
)
def test_a_project_that_nobody_has_trusted_changes_none_of_it(tmp_path: Path, line: str) -> None:
    (tmp_path / "redoma.yaml").write_text(f'version: "1.0"\ndocker:\n  {line}\n')
    found = config.load(cwd=tmp_path)
    assert found.docker == Config(audit=AuditConfig(directory=tmp_path)).docker
    assert f"line 3 changes docker.{line.split(':')[0]}" in found.notices[0]


def test_what_makes_no_sense_is_named_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text('version: "1.0"\ndocker:\n  minimum: -1\n  image: x\n  host: foo\n')
    with pytest.raises(InvalidFile) as told:
        config.load(tmp_path / "mine.yaml", cwd=tmp_path)
    assert [(problem.key, problem.line) for problem in told.value.problems] == [
        ("docker.minimum", 3),
        ("docker.image", 4),
        ("docker.host", 5),
    ]
