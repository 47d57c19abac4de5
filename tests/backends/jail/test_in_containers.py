"""Redoma in containers: lean cells where there are no user namespaces, and the jail where /proc is masked.

The containers are real, with the engine's own filter of system calls and masks. What is done inside is in
`inside_program`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

import redoma

_IMAGE, _PACKAGES = "python:3.11-slim", "/usr/local/lib/python3.11/dist-packages"
_RESTRICTED = ("--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--read-only", "--tmpfs", "/tmp")
"""As Kubernetes' restricted profile has it; /tmp is its emptyDir."""
_NAMESPACES = ("--security-opt", "seccomp=unconfined")
PLACES = {
    "default, root": ("lean", "own", "all", ()),
    "default, user": ("lean", "same", "all", ("--user", "1000")),
    "restricted, root": ("lean", "same", "some", _RESTRICTED),
    "restricted, user": ("lean", "same", "some", ("--user", "1000", *_RESTRICTED)),
    "user namespaces, root": ("jail", "own", "some", _NAMESPACES),
    "user namespaces, user": ("jail", "own", "all", ("--user", "1000", *_NAMESPACES)),
}


@pytest.fixture(scope="module")
def found(engine: str, request: pytest.FixtureRequest) -> Callable[[str], dict[str, str]]:
    """What came of each place: three at a time."""
    if sys.version_info[:2] != (3, 11):
        pytest.skip("the image has Python 3.11, and so needs packages of that version")
    calls = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    wanted = [name for name in PLACES if any(call.get("place") == name for call in calls)]
    with ThreadPoolExecutor(3) as pool:
        begun: dict[str, Future[dict[str, str]]] = {name: pool.submit(_inside, engine, name) for name in wanted}
    return lambda name: begun[name].result()


def _inside(engine: str, name: str) -> dict[str, str]:
    backend, users, checks, options = PLACES[name]
    said = _run(engine, options, "backends/jail/inside_program.py", backend, users, checks)
    answer: dict[str, str] = json.loads(said.splitlines()[-1])
    return answer


def _run(engine: str, options: tuple[str, ...], program: str, *arguments: str, told: str = "") -> str:
    """What a program of these tests prints in a container."""
    source, tests = Path(redoma.__file__).parents[1], Path(__file__).parents[2]
    mounts = {sysconfig.get_path("purelib"): _PACKAGES, str(source): "/source", str(tests): "/tests"}
    done = subprocess.run(
        [
            *("docker", "--host", engine, "run", "--rm", "--interactive", "--network", "none", *options),
            *(word for here, there in mounts.items() for word in ("--volume", f"{here}:{there}:ro")),
            *("--env", "PYTHONPATH=/source", "--env", "HOME=/tmp", "--env", "PYTHONDONTWRITEBYTECODE=1"),
            *("--env", "HOST_SECRET=hostsecret-in-a-container", _IMAGE),
            # A shell is the container's first process: it reaps what those leave that are to succeed.
            *("sh", "-c", 'python3 "$@"; exit $?', "sh", f"/tests/{program}", *arguments),
        ],
        input=told,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("place", PLACES)
def test_redoma_works_in_a_container(place: str, found: Callable[[str], dict[str, str]]) -> None:
    objections = {name: why for name, why in found(place).items() if why}
    assert not objections, "\n".join(f"{name}: {why}" for name, why in objections.items())
    assert len(found(place)) > 15


@pytest.mark.parametrize("place", ["default, root", "default, user"])
def test_lean_cells_withstand_attacks_in_a_container(place: str, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On files, processes, descriptors and the network. All of them are carried out in tests/attacks, without one."""
    if sys.version_info[:2] != (3, 11):
        pytest.skip("the image has Python 3.11, and so needs packages of that version")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "attacks"))
    import jail_descriptors
    import jail_files
    import jail_network
    import jail_processes
    import lean_suite

    _, users, _, options = PLACES[place]
    groups = (jail_files, jail_descriptors, jail_network, jail_processes)
    wanted = {attack.name for group in groups for attack in group.ATTACKS} | lean_suite.OWN_NAMES
    names = [name for name in lean_suite.applicable(own_user=users == "own") if name in wanted]
    assert len(names) > 80
    said = _run(engine, options, "attacks/jail_worker.py", "lean", told=json.dumps(names) + "\n")
    *verdicts, left = map(json.loads, said.splitlines())
    assert {verdict["name"] for verdict in verdicts} == set(names)
    present = [verdict for verdict in verdicts if "absent" not in verdict]
    assert not [verdict for verdict in present if verdict.get("broken") or not verdict["started"]]
    assert not [verdict for verdict in present if verdict["breached"]]
    assert left == {"left": {}}
