"""The same rules for containers, which have no network but their own loopback."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
from network_stage import Host
from test_network_clients import COMMANDS, PYTHON, run

from redoma import Config, Executor, Secret, Status
from redoma.backends.docker import DockerBackend
from redoma.backends.docker.box import Box
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


@pytest.fixture(scope="module")
def equipped(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    """Containers that have the programs of this machine, and the packages of this interpreter."""
    programs = [f"{path}:{path}:ro" for path in ("/usr/bin", "/usr/lib", "/usr/share")]
    packages = f"{sysconfig.get_path('purelib')}:/opt/packages:ro"
    backend, place = DockerBackend(Box(volumes=(*programs, packages)), host=engine), tmp_path_factory.mktemp("state")
    config = Config(audit=AuditConfig(directory=place / "audit"), state=place / "state")
    with Executor(config, backends=[backend]) as executor:
        yield executor


@pytest.mark.parametrize("name", [name for name in (*PYTHON, *COMMANDS) if "node's https" not in name])
def test_programs_in_containers_get_through_unchanged(equipped: Executor, api: Host, name: str) -> None:
    """The same as in cells: a rule with a method, so TLS is read on the way."""
    result = run(equipped, name, api, [f"GET {api.rule}"], backend="docker", packages="/opt/packages")
    assert '"path": "/x"' in result.stdout, result.stderr + str(result.network) + str(result.error)
    assert [(one.host, one.path, one.status) for one in result.network] == [("api.test", "/x", 200)]
    refused = run(equipped, name, api, ["GET other.test"], backend="docker", packages="/opt/packages")
    assert '"path": "/x"' not in refused.stdout
    assert {one.decision for one in refused.network} == {"denied"}
