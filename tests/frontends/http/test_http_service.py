"""The service's runs in this process, where a test can choose which of two things happens first."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pace import SLOW
from redoma.approval import Ledger
from redoma.config import AuditConfig, Config, ServerConfig
from redoma.frontends.http.bodies import RunBody, SomeLimits
from redoma.frontends.http.jobs import RunJob
from redoma.frontends.http.keys import Keys
from redoma.frontends.http.numbers import sample
from redoma.frontends.http.problems import Answered
from redoma.frontends.http.run_table import Row, RunTable
from redoma.frontends.http.service import Service
from redoma.lib.errors import InvalidRequest, StoreError


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    made = Service(Config(state=tmp_path / "state", audit=AuditConfig(directory=tmp_path / "audit")))
    await made.start()
    yield made
    await made.stop()


@pytest.mark.parametrize("stored", ["before", "after"])
async def test_a_run_that_is_cancelled_while_its_approval_is_read_does_not_run(
    service: Service, monkeypatch: pytest.MonkeyPatch, stored: str
) -> None:
    """The cancellation is stored before the run would go on, or only after it would have run."""
    key, _ = service.keys.create("agent", ("run",))
    requeued, go_on = threading.Event(), threading.Event()
    requeue, expire = RunTable.requeue, Ledger.expire

    def slow_requeue(table: RunTable, row: Row) -> bool:
        done = requeue(table, row)
        requeued.set()
        assert go_on.wait(30 * SLOW)
        return done

    def slow_expire(ledger: Ledger, *args: Any) -> Any:
        if stored == "after":
            go_on.set()
            threading.Event().wait(3)  # time enough to run
        return expire(ledger, *args)

    monkeypatch.setattr(RunTable, "requeue", slow_requeue)
    monkeypatch.setattr(Ledger, "expire", slow_expire)
    body = RunBody(code="print('approved run')", limits=SomeLimits(time=90), reason="it takes long")
    job, _ = await service.accept(key, body, "async")
    assert isinstance(job, RunJob)
    assert (await service.ended(job)).state == "waiting"
    ask, now = service.ledger.load(job.row.approval).ask, datetime.now(UTC)
    service.ledger.answer(
        ask.answer("approved", approver="maria", reason="fine", at=now, expires=now + timedelta(hours=1))
    )
    service.answered()
    assert await asyncio.to_thread(requeued.wait, 30 * SLOW)
    cancelled = await service.cancel(key, job.row.id)
    go_on.set()
    await asyncio.sleep(1)  # time for it to go on, if it did
    assert (cancelled.state, cancelled.status) == ("cancelled", "pending")
    stored_row = RunTable(service.store).load(job.row.id)
    assert stored_row is not None
    assert (stored_row.state, stored_row.status) == ("cancelled", "pending")


async def test_a_run_whose_key_cannot_be_read_ends(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    key, _ = service.keys.create("agent", ("run",))

    def fails(keys: Keys, id: str) -> None:  # noqa: A002 - the column's name
        raise StoreError("the database can't be read", why="the disk failed", next="try again later")

    monkeypatch.setattr(Keys, "get", fails)
    job, _ = await service.accept(key, RunBody(code="1"), "async")
    assert isinstance(job, RunJob)
    with pytest.raises(StoreError, match="can't be read"):
        await asyncio.wait_for(service.ended(job), 10 * SLOW)
    assert (job.row.state, service.quotas.waiting) == ("interrupted", 0)
    assert (await asyncio.wait_for(service.cancel(key, job.row.id), 10 * SLOW)).state == "interrupted"


async def test_a_run_waits_from_its_acceptance_until_it_has_a_slot_or_is_cancelled(service: Service) -> None:
    key, _ = service.keys.create("agent", ("run",), concurrency=1)
    async with service.turn(key):
        assert service.quotas.waiting == 0
        first, _ = await service.accept(key, RunBody(code="1"), "async")
        assert service.quotas.waiting == 1
        second, _ = await service.accept(key, RunBody(code="2"), "async")
        assert service.quotas.waiting == 2
        assert isinstance(first, RunJob)
        assert isinstance(second, RunJob)
        assert (await asyncio.wait_for(service.cancel(key, second.row.id), 10 * SLOW)).state == "cancelled"
        assert service.quotas.waiting == 1
    assert (await asyncio.wait_for(service.ended(first), 30 * SLOW)).state == "done"
    assert service.quotas.waiting == 0


async def test_the_real_path_of_a_linked_project_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "real" / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "nested").symlink_to(tmp_path / "real" / "inner")
    projects = {"app": tmp_path / "link", "inner": tmp_path / "nested"}
    audit = AuditConfig(directory=tmp_path / "audit")
    service = Service(Config(state=tmp_path / "state", audit=audit, server=ServerConfig(projects=projects)))
    try:
        hide = service.boundary.without_roots
        assert hide(f"{tmp_path}/real/a.txt, {tmp_path}/link/b.txt") == "[app]/a.txt, [app]/b.txt"
        assert hide(f"{tmp_path}/real/inner/a.txt {tmp_path}/state/x") == "[inner]/a.txt [state]/x"
    finally:
        await service.executor.aclose()


async def test_the_first_request_of_a_slow_key_is_allowed(service: Service) -> None:
    key, _ = service.keys.create("slow", ("run",), rate=0.1)
    service.quotas.take_rate(key)
    with pytest.raises(Answered, match="too many"):
        service.quotas.take_rate(key)


@pytest.mark.parametrize(
    ("limit", "said"),
    [({"memory": "900GiB"}, "5GiB at most"), ({"files": 10**7}, "100000 at most"), ({"time": 1e5}, "300 at most")],
)
async def test_a_limit_that_is_too_high_is_told_in_its_unit(service: Service, limit: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        service.boundary.must_be_within(limit)
    assert refused.value.why == f"this server allows {said}"


def test_a_process_with_a_name_that_is_not_text_is_counted() -> None:
    """A guest chooses the names of its processes."""
    named = "open('/proc/self/comm', 'wb').write(b'a) \\xff'); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", named], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert sample().cells > 0
        process.communicate(b"\n")
