"""Runs that reach the hosts they name, and nothing else."""

from __future__ import annotations

import asyncio
import socket
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from network_stage import AUTHORITY, Host, hosts

import redoma
from redoma import Approval, AsyncExecutor, Config, Executor, InvalidRequest, Secret, Status
from redoma.config import ApprovalConfig, AuditConfig, NetworkConfig
from redoma.models import Request, host_rules

GET = """
import sys, urllib.request
for url in sys.argv[1:]:
    try:
        print(urllib.request.urlopen(url, timeout=20).read().decode())
    except Exception as error:
        print(f"failed: {error}")
"""


def test_without_a_name_there_is_no_way_out(jail: Executor, api: Host) -> None:
    """The control of everything here: the same code, in a cell without the rule."""
    result = jail.run(GET, args=[f"https://{api.url}/x"], policy="none")
    assert "failed" in result.stdout
    assert result.network == ()
    assert "hosts" not in result.isolation.layers
    assert not api.seen


def test_a_run_reaches_the_host_that_it_names(jail: Executor, api: Host) -> None:
    result = jail.run(GET, args=[f"https://{api.url}/x", "https://other.test/y"], network=[f"GET {api.rule}"],
                      policy="none")  # fmt: skip
    assert result.status is Status.OK
    assert '"path": "/x"' in result.stdout
    assert "--allow-host other.test" in result.stdout, "the guest's own error says what would permit it"
    allowed, denied = result.network
    assert (allowed.host, allowed.method, allowed.path, allowed.status) == ("api.test", "GET", "/x", 200)
    assert (denied.decision, denied.host, denied.rule) == ("denied", "other.test", "other.test")
    assert result.isolation.layers["net"]
    assert api.rule in result.isolation.layers["hosts"]


def test_a_run_that_fails_for_a_host_says_so(jail: Executor) -> None:
    code = "import urllib.request; urllib.request.urlopen('https://other.test/')"
    result = jail.run(code, network=["api.test"], policy="none")
    assert result.status is Status.ERROR
    assert result.denial is not None
    assert result.denial.rule == "network"
    assert "--allow-host other.test" in result.denial.allowed
    assert 'network:\n  allow:\n    - "other.test"' in result.denial.narrowest


def test_the_cell_has_no_interface_but_its_loopback_and_no_names(jail: Executor) -> None:
    code = """
import socket
for what in (lambda: socket.getaddrinfo("api.test", 443), lambda: socket.create_connection(("1.1.1.1", 443), 2),
             lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("8.8.8.8", 53)),
             lambda: socket.create_connection(("2606:4700::1111", 443), 2)):
    try:
        what()
        print("it went through")
    except OSError as error:
        print("refused")
"""
    result = jail.run(code, network=["api.test"], policy="none")
    assert result.stdout.split() == ["refused"] * 4
    assert "net" in result.isolation.layers, "a look from inside found no other interface"


def test_another_cell_does_not_have_this_ones_proxy(jail: Executor, api: Host) -> None:
    """Also not while that run goes on, nor under the same port on the host."""
    probe = "import socket\ntry:\n  socket.create_connection(('127.0.0.1', 3128), 2); print('open')\n"
    probe += "except OSError: print('closed')"
    waits = f"import time, urllib.request\nurllib.request.urlopen('https://{api.url}/x')\n{probe}\ntime.sleep(1.5)"
    found: list[redoma.Result] = []
    thread = threading.Thread(target=lambda: found.append(jail.run(waits, network=[f"GET {api.rule}"], policy="none")))
    thread.start()
    while not api.seen and thread.is_alive():
        continue
    other = jail.run(probe, policy="none")
    try:
        socket.create_connection(("127.0.0.1", 3128), 1).close()
        here = "open"
    except OSError:
        here = "closed"
    thread.join()
    assert other.stdout == "closed\n"
    assert here == "closed"
    assert found[0].stdout == "open\n", "the control: in the cell itself there is one"


def test_what_a_run_leaves_behind_has_no_way_out_when_its_rule_has_ended(jail: Executor, api: Host) -> None:
    code = f"""
import os, time, urllib.request
if os.fork() == 0:
    os.setsid()
    for _ in range(100):
        time.sleep(0.1)
        urllib.request.urlopen('https://{api.url}/late')
urllib.request.urlopen('https://{api.url}/early')
"""
    import time

    result = jail.run(code, network=[f"GET {api.rule}"], policy="none")
    assert result.status is Status.OK
    assert "/early" in [one["path"] for one in api.seen]
    time.sleep(0.2)  # what had left the cell by then may still arrive
    seen = len(api.seen)
    time.sleep(0.5)
    assert len(api.seen) == seen


def test_the_variables_are_those_that_programs_look_at(jail: Executor) -> None:
    code = "import os; print(*sorted(f'{k}={v}' for k, v in os.environ.items() if 'proxy' in k.lower()), sep='\\n')"
    result = jail.run(code, network=["api.test"], policy="none")
    found = dict(line.split("=", 1) for line in result.stdout.split())
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        assert found[name] == "http://127.0.0.1:3128"
    assert found["SOCKS_PROXY"] == found["socks_proxy"] == "socks5h://127.0.0.1:3128"
    assert found["NO_PROXY"] == found["no_proxy"] == ""


def test_limits_on_bytes_hold_for_the_run(jail: Executor, api: Host) -> None:
    result = jail.run(GET, args=[f"https://{api.url}/large?size=500000", f"https://{api.url}/x"],
                      network=[f"GET {api.rule}"], limits={"network_bytes": 100_000}, policy="none")  # fmt: skip
    assert [one.decision for one in result.network] == ["denied", "denied"]
    assert "100000 bytes of network" in result.network[1].why


# --- secrets ---

TOKEN = "ghp_r34lV4lueOfTheToken"


LOOKS_EVERYWHERE = """
import os, re, sys, urllib.request
token = os.environ["TOKEN"]
for path in ("echo", "pieces", "header"):
    request = urllib.request.Request(f"https://{sys.argv[1]}/{path}", headers={"Authorization": f"Bearer {token}"})
    answer = urllib.request.urlopen(request)
    answer.read(), str(answer.headers)
needle = re.compile(b"[g]hp_r34lV4lueOfTheToken")  # which is not itself what it finds
for line in open("/proc/self/maps"):
    start, end = (int(part, 16) for part in line.split()[0].split("-"))
    if line.split()[1].startswith("r") and "[v" not in line:
        with open("/proc/self/mem", "rb", buffering=0) as memory:
            memory.seek(start)
            if needle.search(memory.read(end - start)):
                print("found in memory")
for top in ("/run", "/tmp", "/workspace", "/proc/self"):
    for place, _, names in os.walk(top) if top != "/proc/self" else [(top, [], ["environ", "cmdline"])]:
        for name in names:
            if needle.search(open(os.path.join(place, name), "rb").read()):
                print("found in a file")
print("looked everywhere")
"""


def test_the_value_of_a_secret_is_nowhere_in_the_cell(jail: Executor, api: Host) -> None:
    outside = {"TOKEN": Secret(TOKEN, hosts=("api.test",))}
    result = jail.run(LOOKS_EVERYWHERE, args=[api.url], network=[api.rule], secrets=outside, policy="none")
    control = jail.run(LOOKS_EVERYWHERE, args=[api.url], network=[f"GET {api.rule}"], secrets={"TOKEN": TOKEN},
                       policy="none")  # fmt: skip
    assert api.seen[0]["headers"]["authorization"] == f"Bearer {TOKEN}", "the host did get it"
    assert result.stdout == "looked everywhere\n", result.stderr
    assert "found in memory" in control.stdout
    assert TOKEN not in repr(result)


def test_a_secret_for_a_host_that_can_not_be_reached_is_a_mistake(jail: Executor) -> None:
    with pytest.raises(InvalidRequest, match="which the run can't reach"):
        jail.run("1", secrets={"TOKEN": Secret(TOKEN, hosts=("api.test",))})
    with pytest.raises(InvalidRequest, match="which the run can't reach"):
        jail.run("1", network=["test"], secrets={"TOKEN": Secret(TOKEN, hosts=("apitest",))})


def test_placeholders_sent_elsewhere_are_on_the_result(jail: Executor, api: Host) -> None:
    with hosts("other.test", tls=AUTHORITY) as (other,):
        code = f"""
import os, urllib.request
request = urllib.request.Request("https://{other.url}/x", headers={{"X": os.environ["TOKEN"]}})
try:
    urllib.request.urlopen(request)
except Exception as error:
    print(error)
"""
        secrets = {"TOKEN": Secret(TOKEN, hosts=("api.test",))}
        result = jail.run(code, network=[api.rule, f"GET {other.rule}"], secrets=secrets, policy="none")
    assert "which it does not belong to" in result.stdout
    assert not other.seen
    assert [one.decision for one in result.network] == ["denied"]


# --- policy, approval, record ---


def test_a_host_is_asked_about_unless_the_configuration_allows_it(tmp_path: Path, api: Host) -> None:
    config = Config(audit=AuditConfig(directory=tmp_path / "audit"), state=tmp_path / "state")
    allowed = NetworkConfig(allow=(f"GET {api.rule}",))
    with Executor(config) as executor:
        asked = executor.run(GET, args=[f"https://{api.url}/x"], network=[f"GET {api.rule}"])
    with Executor(Config(audit=config.audit, state=config.state, network=allowed)) as executor:
        ran = executor.run(GET, args=[f"https://{api.url}/x"], network=[f"GET {api.rule}"])
        more = executor.run(GET, args=[f"https://{api.url}/x"], network=[api.rule])
    assert asked.status is Status.DENIED
    assert {finding.rule for finding in asked.evaluation.deciding} == {"hosts.read", "hosts.private"}
    assert asked.denial is not None
    assert f'- "GET {api.rule}"' in asked.denial.narrowest
    assert ran.status is Status.OK
    assert '"path": "/x"' in ran.stdout
    assert more.status is Status.DENIED
    assert "hosts.write" in {finding.rule for finding in more.evaluation.deciding}


def test_reading_and_writing_are_told_apart(jail: Executor) -> None:
    def rules(*network: str) -> set[str]:
        request = Request(code="1", network=host_rules(network))
        return {finding.rule for finding in jail.check(request).deciding}

    assert rules("GET,HEAD x.org") == {"hosts.read"}
    assert rules("x.org") == {"hosts.write"}
    assert rules("POST x.org", "GET y.org") == {"hosts.read", "hosts.write"}
    assert rules("GET 10.0.0.1") == {"hosts.read", "hosts.private"}


def test_configured_hosts_are_there_for_every_run_and_can_be_left_out(tmp_path: Path, api: Host) -> None:
    network = NetworkConfig(hosts=(api.rule,))
    with Executor(Config(audit=AuditConfig(directory=tmp_path / "a"), state=tmp_path, network=network)) as executor:
        result = executor.run("import os; print(os.environ.get('HTTP_PROXY'))")
        without = executor.run("import os; print(os.environ.get('HTTP_PROXY'))", network=[])
    assert result.stdout == "http://127.0.0.1:3128\n"
    assert without.stdout == "None\n"


def test_the_record_has_every_request_and_no_value(tmp_path: Path, api: Host) -> None:
    from redoma.audit import AuditLog
    from redoma.audit.records import read_intent, read_outcome

    audit = AuditConfig(directory=tmp_path / "audit")
    with Executor(Config(audit=audit, state=tmp_path / "state")) as executor:
        code = "import os, urllib.request as u; h = {'A': os.environ['TOKEN']}\n"
        code += "u.urlopen(u.Request('https://%s/x?q=1', headers=h))"
        result = executor.run(code % api.url, network=[f"GET {api.rule}"], policy="none",
                              secrets={"TOKEN": Secret(TOKEN, hosts=("api.test",))})  # fmt: skip
    intent, outcome = AuditLog(audit.directory).records()
    assert [str(rule) for rule in read_intent(intent).network] == [f"GET {api.rule}"]
    assert read_intent(intent).held["TOKEN"].hosts == ("api.test",)
    assert read_outcome(outcome).network == result.network
    assert [(one.path, one.status) for one in result.network] == [("/x", 200)]
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or TOKEN.encode() not in file.read_bytes(), file


def test_an_effect_covers_its_requests(tmp_path: Path, jail: Executor, api: Host) -> None:
    project = tmp_path / "project"
    project.mkdir()
    command = [
        "python3",
        "-c",
        f"import urllib.request as u; open('got', 'wb').write(u.urlopen('https://{api.url}/x').read())",
    ]
    result = jail.command(command, workspace="overlay", project=project, network=[f"GET {api.rule}"], policy="none")
    assert result.status is Status.OK, result.stderr
    assert result.effect is not None
    assert [one.path for one in result.effect.network] == ["/x"]
    from msgspec.structs import replace

    assert replace(result.effect, network=()).digest != result.effect.digest
    other = replace(result.effect.network[0], path="/y")
    assert replace(result.effect, network=(other,)).digest != result.effect.digest


def test_in_an_overlay_hosts_are_asked_about_before_it_runs(tmp_path: Path, jail: Executor) -> None:
    project = tmp_path / "project"
    project.mkdir()
    result = jail.command(["true"], workspace="overlay", project=project, network=["x.org"])
    assert result.status is Status.DENIED
    assert result.evaluation.deciding[0].rule == "hosts.write"


def test_an_approval_is_for_these_hosts_and_this_use_of_secrets(tmp_path: Path) -> None:
    from redoma.approval.ask import digest_of
    from redoma.models import Judged, Submission

    def digest(executor: Executor, **more: Any) -> str:
        request = Request(code="1", id="same", **{"network": host_rules(["GET x.org"]), **more})
        evaluation = executor.check(request)
        return digest_of(Judged(submission=Submission(request), evaluation=evaluation), b"key")[1]

    with Executor(Config(audit=AuditConfig(directory=tmp_path / "audit"), state=tmp_path / "state")) as executor:
        secrets = {"TOKEN": TOKEN}
        use = Secret(TOKEN, hosts=("x.org",)).use
        digests = [
            digest(executor),
            digest(executor, network=host_rules(["GET y.org"])),
            digest(executor, network=host_rules(["x.org"])),
            digest(executor, secrets=secrets),
            digest(executor, secrets=secrets, held={"TOKEN": use}),
            digest(executor, secrets=secrets, held={"TOKEN": Secret(TOKEN, hosts=("x.org",), body=True).use}),
        ]
        assert len({*digests}) == len(digests)
        assert digest(executor) == digests[0]


def test_a_person_is_shown_the_hosts_and_the_run_reaches_them_when_they_say_yes(tmp_path: Path, api: Host) -> None:
    from redoma.approval import Ask
    from redoma.approval.show import describe

    config = Config(audit=AuditConfig(directory=tmp_path / "audit"), state=tmp_path / "state")
    secrets = {"TOKEN": Secret(TOKEN, hosts=("api.test",))}
    code = "import os, urllib.request as u; print(u.urlopen(u.Request(%r, headers={'A': os.environ['TOKEN']})).status)"
    shown: list[str] = []

    class Somebody:
        async def decide(self, ask: Ask) -> Approval | None:
            shown.append(describe(ask).text)
            return ask.answer("approved", approver="somebody", reason="fine", at=datetime.now(UTC))

    with Executor(config, approver=Somebody()) as executor:
        result = executor.run(code % f"https://{api.url}/x", network=[f"GET {api.rule}"], secrets=secrets)
    assert result.stdout == "200\n", result.error
    assert api.seen[0]["headers"]["a"] == TOKEN
    assert f"network:  GET {api.rule}" in shown[0]
    assert "TOKEN stays outside, and is sent to api.test" in shown[0]
    assert TOKEN not in shown[0]


def test_what_was_pending_can_be_resumed_with_its_secret(tmp_path: Path, api: Host) -> None:
    approval = ApprovalConfig(approver="queue")
    config = Config(audit=AuditConfig(directory=tmp_path / "audit"), state=tmp_path / "state", approval=approval)
    secrets = {"TOKEN": Secret(TOKEN, hosts=("api.test",))}
    with Executor(config) as executor:
        asked = executor.run("1", network=[f"GET {api.rule}"], secrets=secrets, wait=False)
        assert asked.status is Status.PENDING
        assert executor.resume(asked.approval_id, secrets=secrets).status is Status.PENDING


@pytest.mark.parametrize("backend", ["monty", "native"])
def test_a_backend_that_can_not_keep_to_the_names_is_not_used(jail: Executor, backend: str) -> None:
    result = jail.run("1 + 1", network=["x.org"], backend=backend, policy="none")
    assert result.status is Status.FAILED
    assert "named hosts of the network" in (result.error or "")


def test_what_is_no_rule_is_refused_before_anything_runs(jail: Executor) -> None:
    with pytest.raises(InvalidRequest, match="names a host, not a URL"):
        jail.run("1", network=["https://x.org"])
    with pytest.raises(InvalidRequest, match="takes a list of hosts"):
        jail.run("1", network="x.org")


async def test_runs_at_the_same_time_have_proxies_of_their_own(config: Config, trusted: None) -> None:
    with hosts("one.test", "two.test", tls=AUTHORITY) as (one, two):
        async with AsyncExecutor(config) as executor:
            asks = [
                executor.run(
                    GET,
                    args=[f"https://{one.url}/x", f"https://{two.url}/x"],
                    network=[f"GET {own.rule}"],
                    policy="none",
                )
                for own in (one, two) * 3
            ]
            results = await asyncio.gather(*asks)
    for own, result in zip((one, two) * 3, results, strict=True):
        decided = {record.host: record.decision for record in result.network}
        assert decided == {"one.test": "denied", "two.test": "denied"} | {own.name: "allowed"}


async def test_a_run_that_is_cancelled_has_its_requests_on_record(config: Config, trusted: None) -> None:
    from redoma.audit import AuditLog
    from redoma.audit.records import read_outcome

    with hosts("one.test", tls=AUTHORITY) as (one,):
        async with AsyncExecutor(config) as executor:
            code = f"import time, urllib.request as u; u.urlopen('https://{one.url}/x'); time.sleep(20)"
            run = asyncio.ensure_future(executor.run(code, network=[f"GET {one.rule}"], policy="none"))
            while not one.seen:  # noqa: ASYNC110 - a thread sets no asyncio.Event
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)
    outcome = read_outcome([*AuditLog(config.audit.directory).records()][-1])
    assert outcome.status is Status.KILLED
    assert [(request.host, request.path) for request in outcome.network] == [("one.test", "/x")]


def test_without_the_packages_it_needs_nothing_runs_and_the_error_says_how_to_get_them(
    jail: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    for name in [name for name in sys.modules if name.startswith(("h11", "redoma.network"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "h11", None)
    result = jail.run("print('it ran')", network=["x.org"], backend="jail", policy="none")
    assert result.status is Status.FAILED
    assert result.stdout == ""
    assert "redoma[network]" in (result.error or "")
