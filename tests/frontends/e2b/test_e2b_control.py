"""Sandboxes: made, found, kept, ended; and whose they are."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from e2b import (
    AuthenticationException,
    NotFoundException,
    RateLimitException,
    SandboxException,
    SandboxQuery,
    SandboxState,
    TimeoutException,
)
from e2b_code_interpreter import AsyncSandbox, Sandbox

from pace import SLOW
from serving import Serving

pytestmark = pytest.mark.usefixtures("pointed")


def test_a_sandbox_says_what_it_is(sandbox: Sandbox) -> None:
    info = sandbox.get_info()
    assert (info.sandbox_id, info.state, info.template_id) == (
        sandbox.sandbox_id,
        SandboxState.RUNNING,
        "code-interpreter-v1",
    )
    assert timedelta(seconds=290) < info.end_at - info.started_at <= timedelta(seconds=301)
    assert (info.memory_mb, info.allow_internet_access) == (244, False)
    assert Sandbox.get_info(sandbox.sandbox_id).sandbox_id == sandbox.sandbox_id
    assert sandbox.is_running()


def test_a_killed_sandbox_is_gone_for_every_call(service: Serving) -> None:
    sandbox = Sandbox.create()
    assert sandbox.kill() is True
    assert sandbox.is_running() is False
    assert sandbox.kill() is False
    assert Sandbox.kill(sandbox.sandbox_id) is False
    with pytest.raises(NotFoundException):
        sandbox.get_info()
    with pytest.raises(NotFoundException):
        Sandbox.connect(sandbox.sandbox_id)
    with pytest.raises(NotFoundException):
        sandbox.set_timeout(10)
    uses: list[Callable[[], object]] = [
        lambda: sandbox.run_code("1"),
        lambda: sandbox.commands.run("true"),
        lambda: sandbox.files.list("."),
        lambda: sandbox.files.read("x"),
        lambda: sandbox.commands.list(),
    ]
    for use in uses:
        with pytest.raises(TimeoutException, match="was not found"):
            use()


def test_the_end_of_a_sandbox_can_be_moved_and_kills_it(sandbox: Sandbox) -> None:
    sandbox.set_timeout(500)
    later = sandbox.get_info().end_at - datetime.now(UTC)
    assert timedelta(seconds=450) < later < timedelta(seconds=501)
    process = sandbox.commands.run("sleep 1000", background=True, timeout=0)
    sandbox.set_timeout(1)
    deadline = time.monotonic() + 30 * SLOW
    while sandbox.is_running() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not sandbox.is_running()
    with pytest.raises((TimeoutException, SandboxException)):
        process.wait()


def test_no_sandbox_lives_for_longer_than_is_configured(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxException, match="600 s at most"):
        Sandbox.create(timeout=601)
    with pytest.raises(SandboxException, match="600 s at most"):
        sandbox.set_timeout(601)
    sandbox.set_timeout(600)
    info = sandbox.get_info()
    assert info.end_at - info.started_at <= timedelta(seconds=600)


def test_connecting_finds_the_same_sandbox_and_only_ever_lengthens_its_life(sandbox: Sandbox) -> None:
    sandbox.run_code("x = 41")
    before = sandbox.get_info().end_at
    same = Sandbox.connect(sandbox.sandbox_id, timeout=5)
    assert same.run_code("x + 1").text == "42"
    assert sandbox.get_info().end_at == before
    sandbox.connect(timeout=550)
    assert sandbox.get_info().end_at > before


def test_lists_have_pages_filters_and_an_order(service: Serving) -> None:
    key: Any = {"api_key": service.key("lister")}
    made = [Sandbox.create(metadata={"n": str(n), "for a": "ü=&"}, template="base", **key) for n in range(3)]
    try:
        ids = [each.sandbox_id for each in made]
        pages, found = Sandbox.list(limit=2, order="asc", **key), []
        while pages.has_next:
            page = pages.next_items()
            assert len(page) <= 2
            found += [each.sandbox_id for each in page]
        assert found == ids
        newest = Sandbox.list(limit=1, **key)
        assert [newest.next_items()[0].sandbox_id for _ in range(3)] == ids[::-1]

        def listed(**query: Any) -> list[str]:
            return [each.sandbox_id for each in Sandbox.list(SandboxQuery(**query), order="asc", **key).next_items()]

        assert listed(metadata={"n": "1", "for a": "ü=&"}) == ids[1:2]
        assert listed(metadata={"n": "9"}) == []
        assert listed(state=[SandboxState.RUNNING, SandboxState.PAUSED]) == ids
        assert listed(state=[SandboxState.PAUSED]) == []
        assert listed(template="base") == ids
        assert listed(template="code-interpreter-v1") == []
        assert listed(started_after=datetime.now(UTC) + timedelta(minutes=1)) == []
        assert listed(started_after=datetime.now(UTC) - timedelta(minutes=1)) == ids
        assert Sandbox.list(**key).next_items()[0].metadata == {"n": "2", "for a": "ü=&"}
    finally:
        for each in made:
            each.kill()


def test_one_key_does_not_see_or_touch_the_sandboxes_of_another(service: Serving, sandbox: Sandbox) -> None:
    other: Any = {"api_key": service.key("other")}
    assert sandbox.sandbox_id not in [each.sandbox_id for each in Sandbox.list(**other).next_items()]
    with pytest.raises(NotFoundException):
        Sandbox.get_info(sandbox.sandbox_id, **other)
    with pytest.raises(NotFoundException):
        Sandbox.connect(sandbox.sandbox_id, **other)
    assert Sandbox.kill(sandbox.sandbox_id, **other) is False
    assert sandbox.is_running()


def test_a_wrong_key_is_an_authentication_error(service: Serving) -> None:
    for wrong in ("e2b_" + "0" * 40, "rdm_000000000000_" + "A" * 43, "nonsense"):
        with pytest.raises(AuthenticationException):
            Sandbox.create(api_key=wrong)
    with pytest.raises(SandboxException, match="lacks the scope run"):
        Sandbox.create(api_key=service.key("maria", "approve"))


def test_a_key_in_the_form_that_older_sdks_insist_on_is_the_same_key(service: Serving) -> None:
    form = "e2b_" + service.key("agent").encode().hex()
    with Sandbox.create(api_key=form) as sandbox:
        assert sandbox.run_code("6 * 7").text == "42"


def test_a_revoked_key_ends_the_use_of_its_sandboxes(service: Serving) -> None:
    sandbox = Sandbox.create(api_key=service.key("leaver"))
    assert sandbox.run_code("1").text == "1"
    service.keys.revoke("leaver")
    deadline = time.monotonic() + 30 * SLOW
    while sandbox.is_running() and time.monotonic() < deadline:
        time.sleep(0.1)
    with pytest.raises(TimeoutException):
        sandbox.run_code("1")
    service.key("boss", "admin")
    boss: Any = {"api_key": service.key("boss")}
    while sandbox.sandbox_id in [each.sandbox_id for each in Sandbox.list(**boss).next_items()]:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_key_has_as_many_sandboxes_as_it_may(service: Serving) -> None:
    small: Any = {"api_key": service.key("small")}
    sandbox = Sandbox.create(**small)
    try:
        with pytest.raises(RateLimitException, match="1 sandboxes"):
            Sandbox.create(**small)
    finally:
        sandbox.kill()
    Sandbox.create(**small).kill()


def test_what_this_server_does_not_have_is_refused_in_words(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxException, match="pausing"):
        sandbox.pause()
    with pytest.raises(SandboxException, match="pausing"):
        Sandbox.create(lifecycle={"on_timeout": "pause"})
    with pytest.raises(SandboxException, match="no template 'desktop'"):
        Sandbox.create("desktop")
    with pytest.raises(SandboxException, match="no network"):
        Sandbox.create(allow_internet_access=True)
    with pytest.raises(SandboxException, match="no network"):
        Sandbox.create(network={"allow_out": ["example.com"]})
    with pytest.raises(SandboxException, match="volumes"):
        Sandbox.create(volume_mounts={"/mnt": "data"})
    with pytest.raises(SandboxException, match="snapshots"):
        sandbox.create_snapshot()
    with pytest.raises(SandboxException, match="forks"):
        sandbox.fork()
    Sandbox.create(allow_internet_access=False).kill()


def test_a_port_of_the_code_can_not_be_reached(service: Serving, sandbox: Sandbox) -> None:
    host = sandbox.get_host(3000)
    refused = httpx.get(f"{service.url}/e2b/anything", headers={"Host": host}, timeout=60 * SLOW)
    assert refused.status_code == 502
    assert "port is not open" in refused.json()["message"]


def test_metrics_are_what_the_sandbox_uses(sandbox: Sandbox) -> None:
    sandbox.run_code("data = bytearray(60_000_000); sum(range(10**6)); open('f', 'wb').write(bytes(5_000_000))")
    metric = sandbox.get_metrics()[-1]
    assert metric.mem_used > 60_000_000
    assert metric.disk_used >= 5_000_000
    assert metric.cpu_used_pct > 0
    assert metric.mem_total == 256_000_000
    assert metric.disk_total > metric.disk_used
    assert sandbox.get_metrics(start=datetime.now(UTC) + timedelta(hours=1)) == []


def test_the_same_idempotency_key_makes_one_sandbox() -> None:
    one = Sandbox.create(idempotency_key="made-once-1", metadata={"a": "1"})
    try:
        assert Sandbox.create(idempotency_key="made-once-1", metadata={"a": "1"}).sandbox_id == one.sandbox_id
        with pytest.raises(SandboxException, match="another request"):
            Sandbox.create(idempotency_key="made-once-1", metadata={"a": "2"})
    finally:
        one.kill()


async def test_the_same_calls_without_blocking(service: Serving) -> None:
    sandbox = await AsyncSandbox.create(timeout=100, metadata={"kind": "async"}, envs={"A": "1"})
    try:
        assert (await sandbox.get_info()).metadata == {"kind": "async"}
        await sandbox.set_timeout(200)
        same = await AsyncSandbox.connect(sandbox.sandbox_id)
        assert await same.is_running()
        found = await AsyncSandbox.list(SandboxQuery(metadata={"kind": "async"})).next_items()
        assert [each.sandbox_id for each in found] == [sandbox.sandbox_id]
        assert (await sandbox.get_metrics())[0].mem_used > 0
        with pytest.raises(SandboxException, match="pausing"):
            await sandbox.pause()
        with pytest.raises(AuthenticationException):
            await AsyncSandbox.create(api_key="e2b_0000")
    finally:
        assert await sandbox.kill()
    assert not await sandbox.is_running()
