"""Whoever follows a run gets all of it and its end, however slowly they read."""

from __future__ import annotations

import asyncio

import msgspec

from redoma.frontends.http.bodies import RunBody
from redoma.frontends.http.jobs import RunJob, follow
from redoma.frontends.http.run_table import Row
from redoma.models import Chunk


async def test_what_happens_while_a_slow_reader_reads_is_not_missed() -> None:
    job = RunJob(
        Row(id="a" * 32, key="k", mode="stream", created=0.0, body=RunBody(code="1")), durable=False, secrets={}
    )
    seen = []
    async with asyncio.timeout(10):
        async for name, data in follow(job, asyncio.Event()):
            seen.append((name, data if name == "result" else data.get("state") or data["text"]))
            # All of it happens between two looks of the reader.
            if data == {"id": "a" * 32, "state": "queued", "note": "", "approval_id": ""}:
                job.row.state = "running"
                job.touch()
            elif name == "state" and data["state"] == "running":
                job.events.append(Chunk("stdout", "one"))
                job.touch()
                job.row.state, job.row.result = "done", b"{}"
                job.touch()
    assert seen == [
        ("state", "queued"),
        ("state", "running"),
        ("output", "one"),
        ("state", "done"),
        ("result", msgspec.Raw(b"{}")),
    ]
