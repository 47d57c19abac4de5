"""Named hosts on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from network_stage import Host

from redoma.models.network import NetworkRequest
from redoma.network.learn import learned

Redoma = Callable[..., tuple[int, str, str]]


def test_a_host_is_named_by_an_option_and_refused_without_somebody_to_ask(redoma: Redoma, api: Host) -> None:
    code = f"import urllib.request as u; print(u.urlopen('https://{api.url}/x').status)"
    status, _, said = redoma("run", "--allow-host", f"GET {api.rule}", code)
    assert status == 126
    assert "it wants to read from a host of the network" in said
    assert f'- "GET {api.rule}"' in said, "the lines that permit it"
    Path("redoma.yaml").write_text(f'network:\n  allow:\n    - "GET {api.rule}"\n')
    status, out, said = redoma("--config", "redoma.yaml", "run", "--allow-host", f"GET {api.rule}", code)
    assert (status, out) == (0, "200\n"), said


def test_what_was_refused_is_said_with_the_option_that_permits_it(redoma: Redoma) -> None:
    code = "import urllib.request as u\ntry: u.urlopen('https://other.test/x')\nexcept OSError: pass"
    status, _, said = redoma("run", "--policy", "none", "--allow-host", "api.test", code)
    assert status == 0
    assert "CONNECT other.test denied" in said
    assert "--allow-host other.test permits it" in said


def test_a_secret_for_a_host_stays_outside(redoma: Redoma, api: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "r34lV4lueOfIt")
    code = f"import os, urllib.request as u; t = os.environ['TOKEN']; url = 'https://{api.url}/x'"
    code += "; u.urlopen(u.Request(url, headers={'A': t})); print(t)"
    status, out, said = redoma("run", "--policy", "none", "--allow-host", api.rule, "--secret", "TOKEN@api.test", code)
    assert status == 0, said
    assert out.startswith("redoma_placeholder_")
    assert api.seen[0]["headers"]["a"] == "r34lV4lueOfIt"


def test_a_mistake_in_a_rule_is_told_without_a_traceback(redoma: Redoma) -> None:
    status, _, said = redoma("run", "--allow-host", "https://x.org", "1")
    assert status == 2 or status == 125
    assert "names a host, not a URL" in said
    assert "Traceback" not in said
    Path("redoma.yaml").write_text("network:\n  allow:\n    - '*.org'\n")
    status, _, said = redoma("--config", "redoma.yaml", "run", "1")
    assert "redoma.yaml:3" in said
    assert "whole country or registry" in said


def test_a_projects_file_that_names_hosts_has_to_be_trusted(redoma: Redoma) -> None:
    Path("redoma.yaml").write_text("network:\n  hosts:\n    - x.org\n")
    _, out, said = redoma("run", "import os; print(os.environ.get('HTTP_PROXY'))")
    assert "changes network.hosts" in said
    assert out == "None\n"


def test_try_shows_requests_beside_changes(redoma: Redoma, api: Host) -> None:
    code = f"import urllib.request as u; open('got','wb').write(u.urlopen('https://{api.url}/x').read())"
    status, _, said = redoma(
        "try", "--project", ".", "--keep", "--policy", "none", "--allow-host", f"GET {api.rule}", "python3", "-c", code
    )
    assert status == 0, said
    assert f"network  GET {api.url}/x 200" in said
    assert "+ got" in said


def test_learning_proposes_the_narrowest_rules_and_reaches_nothing(redoma: Redoma, api: Host) -> None:
    code = f"""
import urllib.request as u
for url in ('https://{api.url}/x', 'http://plain.test/a', 'http://plain.test/b'):
    try: u.urlopen(url)
    except OSError: pass
"""
    status, out, said = redoma("network", "learn", "--", "python3", "-c", code)
    assert status == 0, said
    assert out == f'network:\n  allow:\n    - "{api.url}"\n    - "GET plain.test/a"\n    - "GET plain.test/b"\n'
    assert not api.seen
    status, out, _ = redoma("network", "learn", "--json", "--", "python3", "-c", "1")
    assert json.loads(out)["allow"] == []


def test_learning_says_that_a_command_failed(redoma: Redoma) -> None:
    assert redoma("network", "learn", "--", "no-such-program") == (
        127,
        "",
        "redoma: failed: could not start no-such-program: No such file or directory (exit status 127); "
        "it made no request to any host\n",
    )
    status, out, said = redoma("network", "learn", "--", "sh", "-c", "echo out; echo why >&2; exit 3")
    assert (status, out) == (3, "out\n")
    assert said == "why\nredoma: failed: the command failed (exit status 3); it made no request to any host\n"
    status, out, _ = redoma("network", "learn", "--json", "--", "no-such-program")
    assert (status, json.loads(out)["exit_code"]) == (127, 127)
    assert redoma("network", "learn", "--", "true") == (0, "", "It made no request to any host.\n")


def test_learning_proposes_rules_also_for_a_command_that_failed_without_its_hosts(redoma: Redoma) -> None:
    code = "import urllib.request as u; u.urlopen('http://plain.test/a')"
    status, out, said = redoma("network", "learn", "--", "python3", "-c", code)
    assert (status, "GET plain.test/a" in out) == (0, True)
    assert "failed: the command failed (exit status 1); perhaps because its hosts were not reached" in said


def test_what_was_reached_is_narrowed_too() -> None:
    requests = [
        NetworkRequest(host="x.org", port=443, method="GET", path="/a"),
        NetworkRequest(host="x.org", port=443, method="POST", path="/a"),
        NetworkRequest(host="y.org", port=8443, method="CONNECT"),
        NetworkRequest(host="", decision="denied"),
        *[NetworkRequest(host="z.org", port=80, method="GET", path=f"/{number}") for number in range(20)],
    ]
    assert [str(rule) for rule in learned(requests)] == ["GET,POST x.org/a", "y.org:8443", "GET z.org"]
