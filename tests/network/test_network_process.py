"""The process of the proxies: what it has, what ends it, and what is believed of what it says."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from network_stage import AUTHORITY, Host, hosts, proxied

from leftovers import descendants
from pace import SLOW
from redoma import AsyncExecutor, Config, Executor, Secret, Status
from redoma.models.network import NetworkRequest
from redoma.network.messages import MAX_ANSWER, Broken, Ended, Ready, Recorded, frame, read_answer

FETCH = """
import sys, time, urllib.request
urllib.request.urlopen(sys.argv[1]).read()
print("read", flush=True)
time.sleep(float(sys.argv[2]))
"""


def proxy_processes() -> list[int]:
    """The processes of proxies below this one."""
    found = []
    for pid in descendants():
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"hosts_process" in command:
            found.append(pid)
    return found


@pytest.fixture
def executor(config: Config, trusted: None) -> Iterator[Executor]:
    before = set(proxy_processes())  # of the default executor, if another test has used it
    with Executor(config) as found:
        yield found
    assert set(proxy_processes()) <= before


def test_there_is_one_process_for_all_runs_and_none_without_hosts(executor: Executor, api: Host) -> None:
    before = proxy_processes()
    executor.run("1", policy="none")
    assert proxy_processes() == before
    for _ in range(3):
        result = executor.run(FETCH, args=[f"https://{api.url}/x", "0"], network=[f"GET {api.rule}"], policy="none")
        assert result.stdout == "read\n", result.stderr
    assert len(proxy_processes()) == len(before) + 1


def test_it_has_no_environment_and_no_descriptors_but_its_own(
    executor: Executor, api: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control is an ordinary child of this process, which has both."""
    monkeypatch.setenv("REDOMA_TEST_MARKER", "marker")
    before = set(proxy_processes())
    with open(os.devnull) as file:
        os.set_inheritable(file.fileno(), True)
        ordinary = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False)
        executor.run("1", network=[api.rule], policy="none")
        (process,) = set(proxy_processes()) - before
    try:
        assert b"REDOMA_TEST_MARKER" in Path(f"/proc/{ordinary.pid}/environ").read_bytes()
        assert Path(f"/proc/{process}/environ").read_bytes() == b""
        control, ours = ({os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()} for pid in
                         (ordinary.pid, process))  # fmt: skip
    finally:
        ordinary.communicate(b"\n", timeout=60)
    assert any("pytest" in name or "/" in name[1:] for name in control - {"/dev/null"}), "things of this process"
    strange = [name for name in ours if not name.startswith(("socket:", "anon_inode:")) and name != "/dev/null"]
    assert strange == []


PEEK = """
import subprocess, sys, time
from redoma.backends.hosts import ProxyProcess
def opened(pid):
    try:
        open(f"/proc/{pid}/mem", "rb").close()
        return "open"
    except OSError as error:
        return error.strerror
proxies = ProxyProcess()
proxies.warm()
process, end = proxies._started._child.pid, time.monotonic() + 60
while opened(process) == "open" and time.monotonic() < end:  # until its interpreter has started
    time.sleep(0.05)
control = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
time.sleep(0.5)
print(opened(control.pid), "/", opened(process))
control.communicate(b"\\n")
proxies.close()
"""


def test_another_process_of_the_user_can_not_read_its_memory() -> None:
    """The control is an ordinary process of the same user. (Root may trace everything, unless it gives that up.)"""
    harmless = ("setpriv", "--bounding-set=-sys_ptrace") if os.geteuid() == 0 else ()
    done = subprocess.run(
        [*harmless, sys.executable, "-c", PEEK], capture_output=True, text=True, check=False, timeout=120 * SLOW
    )
    assert done.stdout == "open / Permission denied\n", done.stderr


async def test_when_it_is_killed_its_runs_fail_clearly_and_the_next_starts_another(
    config: Config, trusted: None
) -> None:
    with hosts("api.test", tls=AUTHORITY) as (api,):
        async with AsyncExecutor(config) as executor:
            before = set(proxy_processes())
            url, rules = f"https://{api.url}/x", [f"GET {api.rule}"]
            run = asyncio.ensure_future(executor.run(FETCH, args=[url, "100"], network=rules, policy="none"))
            while not api.seen:  # noqa: ASYNC110 - a thread sets no asyncio.Event
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.5)
            (process,) = set(proxy_processes()) - before
            os.kill(process, signal.SIGKILL)
            began = time.monotonic()
            result = await run
            assert time.monotonic() - began < 20 * SLOW
            assert result.status is Status.FAILED
            assert "network proxy" in (result.error or "")
            assert [(one.host, one.status) for one in result.network] == [("api.test", 200)], "known until then"
            again = await executor.run(FETCH, args=[url, "0"], network=rules, policy="none")
            assert again.stdout == "read\n", again
            assert len(set(proxy_processes()) - before) == 1


def test_one_that_was_killed_between_runs_is_started_again(executor: Executor, api: Host) -> None:
    before = set(proxy_processes())
    for _ in range(2):
        result = executor.run(FETCH, args=[f"https://{api.url}/x", "0"], network=[f"GET {api.rule}"], policy="none")
        assert result.stdout == "read\n", result
        (process,) = set(proxy_processes()) - before
        os.kill(process, signal.SIGKILL)
        time.sleep(0.1)


PARENT = """
import os, sys, time
from redoma.backends.hosts import ProxyProcess
proxies = ProxyProcess()
proxies.warm()
if os.fork() == 0:  # which has all descriptors of this process, and outlives it
    time.sleep(float(sys.argv[1]))
    os._exit(0)
print(proxies._started._child.pid, flush=True)
time.sleep(60)
"""


def test_it_ends_with_redoma_however_that_ends() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, "10"], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        process = int(parent.stdout.readline())
        assert Path(f"/proc/{process}").exists()
        parent.kill()
        end = time.monotonic() + 8
        while _lives(process) and time.monotonic() < end:
            time.sleep(0.01)
        assert not _lives(process)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def heard(*data: bytes) -> list[object]:
    """What is understood of these bytes; an error ends it."""
    reader, found = asyncio.StreamReader(), list[object]()
    reader.feed_data(b"".join(data))
    reader.feed_eof()
    while True:
        try:
            found.append(await read_answer(reader))
        except Broken as error:
            return [*found, str(error)]


async def test_what_it_says_is_typed_and_bounded() -> None:
    request = NetworkRequest(host="api.test", status=200)
    good: list[Ready | Recorded | Ended] = [Ready(b"x"), Recorded(request), Ended()]
    assert await heard(*[frame(each) for each in good]) == [*good, "the connection ended"]
    for bad in (
        (MAX_ANSWER + 1).to_bytes(4, "big") + b"x" * 10,
        b"\0\0\0\x01\xc1",
        frame(Ended()).replace(b"Ended", b"Other"),
        _packed({"type": "Recorded", "request": {"host": "x", "decision": "maybe"}}),
        _packed({"type": "Recorded", "request": {"host": ["x"]}}),
        _packed({"type": "Ready", "certificate": 1}),
        _packed([1, 2]),
    ):
        assert await heard(bad) in ([f"a message of {MAX_ANSWER + 1} bytes"], ["it is not a message"])


def _packed(value: object) -> bytes:
    data = msgspec.msgpack.encode(value)
    return len(data).to_bytes(4, "big") + data


async def test_what_a_guest_sends_does_not_fill_the_record() -> None:
    async with proxied(["api.test"]) as served:
        await served.say(b"GET http://api.test/ HTTP/1.1\r\nbad header " + b"x" * 60000 + b"\r\n\r\n")
        await served.recorded(1)
        assert len(served.proxy.records[0].why) <= 500


def test_the_authority_of_an_executor_is_its_own_and_its_key_is_in_no_cell(config: Config, api: Host) -> None:
    """A run that took the key, or is trusted by the runs of another executor, could pose as any host there."""
    code = "import os; print(open(os.environ['SSL_CERT_FILE']).read())"
    found = list[str]()
    for _ in range(2):
        with Executor(config) as executor:
            told = [executor.run(code, network=[f"GET {api.rule}"], policy="none").stdout for _ in range(2)]
        assert told[0] == told[1] != "", "all runs of one executor trust the same"
        assert "PRIVATE" not in told[0]
        found.append(told[0].partition("-----END CERTIFICATE-----")[0])
    assert found[0] != found[1]


def test_a_secret_is_not_in_what_can_be_seen_of_the_process(executor: Executor, api: Host) -> None:
    """Neither its arguments nor its environment, which everybody may read, nor its representation in a traceback."""
    from redoma.network.credentials import Held

    secret = Secret("s3cr3tV4lue", hosts=("api.test",))
    before = set(proxy_processes())
    result = executor.run("1", network=[api.rule], secrets={"TOKEN": secret}, policy="none")
    assert result.status is Status.OK, result
    (process,) = set(proxy_processes()) - before
    for name in ("cmdline", "environ"):
        assert b"s3cr3t" not in Path(f"/proc/{process}/{name}").read_bytes()
    assert "s3cr3t" not in repr(Held("TOKEN", b"s3cr3tV4lue", b"placeholder", secret.use))
