"""The same rules for containers, which have no network but their own loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from network_stage import Host

from redoma import Config, Executor, Secret, Status
from redoma.config import AuditConfig

GET = """
import os, sys, urllib.request as u
for url in sys.argv[1:]:
    try:
        print(u.urlopen(u.Request(url, headers={"A": os.environ.get("TOKEN", "")}), timeout=20).read().decode())
    except Exception as error:
        print(f"failed: {error}")
"""


@pytest.fixture
def docker(engine: str, tmp_path: Path) -> Iterator[Executor]:
    with Executor(Config(audit=AuditConfig(directory=tmp_path / "audit"), state=tmp_path / "state")) as executor:
        yield executor


def test_a_container_reaches_the_host_that_it_names_and_no_other(docker: Executor, api: Host) -> None:
    urls = [f"https://{api.url}/x", "https://other.test/"]
    secrets = {"TOKEN": Secret("r34lV4lueOfIt", hosts=("api.test",))}
    result = docker.run(GET, args=urls, network=[api.rule], secrets=secrets, backend="docker", policy="none")
    assert result.status is Status.OK, result.error
    assert api.seen[0]["headers"]["a"] == "r34lV4lueOfIt"
    assert "r34lV4lueOfIt" not in result.stdout
    assert "--allow-host other.test" in result.stdout
    assert [one.decision for one in result.network] == ["allowed", "denied"]
    assert result.isolation.layers["net"] == "no network but its own loopback"
    control = docker.run(GET, args=urls, backend="docker", policy="none")
    assert "failed" in control.stdout
    assert len(api.seen) == 1


def test_so_does_a_shell_in_an_image_without_python(docker: Executor, trusted: None) -> None:
    from network_stage import hosts

    with hosts("plain.test") as (host,):
        script = f"wget -qO- http://{host.url}/x; wget -qO- http://other.test/ || echo refused"
        result = docker.run(script, "bash", network=[host.rule], backend="docker", policy="none")
    assert '"path": "/x"' in result.stdout, result.stderr
    assert "refused" in result.stdout
