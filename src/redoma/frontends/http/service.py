"""The service's runs: accept, queue, execute, follow, cancel and store them."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import msgspec

from ...config import Config
from ...exec import AsyncOutput
from ...lib import files
from ...lib.errors import ConfigError, InvalidRequest, RedomaError, Refused, StoreError
from ...models import Chunk, Result, Status, Stream, Submission
from ...pipeline.executor import AsyncExecutor
from ...telemetry import ERROR, INFO, tell
from .bodies import Mode, ProcessBody, RunBody, SessionRunBody
from .boundary import Boundary
from .jobs import RunJob, complete, row_of
from .keys import Key, Keys
from .numbers import Numbers
from .problems import Answered, no_key, not_allowed, not_found, stopping, without_paths
from .quotas import Quotas, Ticket
from .run_table import Row, RunTable
from .sessions import OwnedSession, Sessions
from .store import open_store

if TYPE_CHECKING:
    from ...approval import Ledger
    from ...sessions.runs import AsyncSessionProcess

_FLUSH = 0.5
"""Seconds between batched writes of runs that are not durable."""
_MAX_UNWRITTEN = 1000
"""Runs that are kept in memory while the database can't be written; above it, the oldest are given up."""
_LOOK = 0.5
"""Seconds between checks for answers to the approvals that runs wait for."""
_PRUNE = 60.0
_ID = re.compile(r"[0-9a-f]{32}\Z")
_IDEMPOTENCY = re.compile(r"[\x21-\x7e]{1,200}\Z")
_STOPPED = "the server was stopped while it ran"


class Service:
    """The logic behind the routes. Call `start` and `stop` on the event loop that serves them."""

    def __init__(self, config: Config) -> None:
        self.store = open_store(config.state)
        self.keys = Keys(self.store)
        approval = msgspec.structs.replace(config.approval, approver="queue", separate=True)
        self.config = msgspec.structs.replace(config, approval=approval)
        self.settings = config.server
        self.executor = AsyncExecutor(self.config)
        self.ledger: Ledger = self.executor.ledger  # type: ignore[assignment] # there is a state directory
        self.boundary = Boundary(self.config, self.executor)
        self.quotas = Quotas(self.settings)
        self.stopping = asyncio.Event()
        """Set when the service drains, so that event streams end."""
        self.can_store = True
        """Whether the last write to the database succeeded."""
        self.failure = ""
        """Why the service could not start."""
        self._table = RunTable(self.store)
        self._jobs: dict[str, RunJob] = {}
        self._unwritten: list[RunJob] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._answered = asyncio.Event()
        self._lock: int | None = None
        self.sessions = Sessions(self)
        self.numbers = Numbers()

    @property
    def draining(self) -> bool:
        """Whether the service no longer accepts runs."""
        return self.stopping.is_set()

    # --- start and stop ---

    async def start(self) -> None:
        """Lock the state directory, mark the runs that a crash interrupted, and continue with queued and waiting ones.

        Raises `RedomaError` and stores the reason in `failure`.
        """
        try:
            self._own()
            left = await asyncio.to_thread(self._table.recover)
        except RedomaError as error:
            self.failure = f"{error.what}: {error.why}"
            raise
        for row in left:
            job = RunJob(row, durable=True, secrets={})
            self._jobs[row.id] = job
            if row.state == "queued":
                self._begin(job, None)
        own = (self._write_down(), self._look_for_answers(), self._prune())
        for work in (*own, self.sessions.sweep(), self.numbers.collect()):
            self._tasks.add(asyncio.create_task(work))
        self.executor.warm()
        tell(INFO, "service.started", queued=len(left))

    def _own(self) -> None:
        path = self.store.path.with_name("service.lock")
        with files.closing(files.open_own_directory(path.parent, holds="the service's lock", error=ConfigError)) as at:
            fd = files.open_regular(path.name, os.O_RDWR | os.O_CREAT, dir_fd=at)
        if not files.lock(fd):
            os.close(fd)
            raise ConfigError(
                "the service can't be started",
                why="another one runs with the same state directory",
                next="stop that one, or set another REDOMA_STATE_DIR",
            )
        self._lock = fd

    def drain(self) -> None:
        """Stop accepting runs, end event streams, and cancel background processes.

        Durable queued runs stay queued for the next start.
        """
        self.stopping.set()
        for job in list(self._jobs.values()):
            if job.row.state == "queued" and job.durable and job.task is not None:
                job.task.cancel()
            elif job.process is not None:  # it may never end by itself
                job.cancel(_STOPPED, interrupted=True)
            job.touch()

    def give_up(self) -> None:
        """Cancel all runs now, without waiting for them to end by themselves."""
        for job in list(self._jobs.values()):
            job.cancel(_STOPPED, interrupted=True)

    async def stop(self) -> None:
        """Wait up to `server.drain` seconds for runs to end, then cancel them. Nothing runs when this returns."""
        self.drain()
        running = [job.task for job in self._jobs.values() if job.task is not None and not job.task.done()]
        if running:
            await asyncio.wait(running, timeout=self.settings.drain)
        self.give_up()
        if running:
            await asyncio.wait(running)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.sessions.close()
        await self._flush()
        if self._unwritten:
            tell(ERROR, "service.lost", runs=len(self._unwritten))
        await self.executor.aclose()
        if self._lock is not None:
            files.unlock(self._lock)
            os.close(self._lock)
            self._lock = None

    @property
    def busy(self) -> int:
        """Number of runs in the state `running`."""
        return sum(job.row.state == "running" for job in self._jobs.values())

    def is_running(self, id: str) -> bool:
        """Return whether a run is in the state `running`."""
        return id in self._jobs and self._jobs[id].row.state == "running"

    # --- accepting ---

    async def accept(self, key: Key, body: RunBody, mode: Mode, idempotency: str = "") -> tuple[RunJob | Row, bool]:
        """Accept a run. Return it and whether it is new: if the idempotency key is known, return the earlier run.

        Raises `InvalidRequest` if the request is invalid, `Answered` if it is refused.
        """
        if idempotency and not _IDEMPOTENCY.match(idempotency):
            raise InvalidRequest(
                "the idempotency key can't be used",
                why="it has up to 200 visible ASCII characters",
                next="use a random one, such as a UUID",
            )
        submission = self.boundary.prepare(key, body)
        digest = _digest(body, mode) if idempotency else ""
        if idempotency:
            known = await asyncio.to_thread(self._table.known, key.id, idempotency, digest)
            if known is not None:
                return await self._as_it_is(known), False
        self._admit(key, mode)
        row = Row(
            id=submission.request.id,
            key=key.id,
            mode=mode,
            created=time.time(),
            body=msgspec.structs.replace(body, secrets={}),
            secrets=tuple(sorted(body.secrets)),
            idempotency=idempotency,
            digest=digest,
        )
        job = RunJob(row, durable=mode == "async" or bool(idempotency), secrets=dict(body.secrets))
        self._jobs[row.id] = job  # before the row is stored: a request that finds the row must find this job
        if job.durable:
            try:
                other = await asyncio.to_thread(self._table.insert, row)
            except BaseException as error:
                self._jobs.pop(row.id, None)
                self.can_store = self.can_store and not isinstance(error, StoreError)
                raise
            if other is not None:  # a request with the same key was stored meanwhile
                self._jobs.pop(row.id, None)
                return await self._as_it_is(other), False
        self._begin(job, submission)
        return job, True

    def accept_in(self, key: Key, held: OwnedSession, body: SessionRunBody, mode: Mode) -> RunJob:
        """Accept a run in a session. It starts at once, or when the run before it has ended.

        Raises `InvalidRequest` if the request is invalid, `Answered` if it is refused.
        """
        self._admit(key, mode)
        turn = held.turn(self, key, body)
        asked = {name: getattr(body, name) for name in ("code", "argv", "language", "limits", "stdin", "env", "expect")}
        job = self._job_in(held, key, turn.submission.request.id, mode, asked, body)
        job.turn = turn
        self._begin(job, None)
        return job

    def accept_process(self, key: Key, held: OwnedSession, body: ProcessBody) -> RunJob:
        """Accept a background process of a session: a run that lasts until the process or the session ends.

        Raises `InvalidRequest` if the request is invalid, `Answered` if it is refused.
        """
        self._admit(key, "stream")
        process = held.process(self, key, body)
        is_line = isinstance(body.command, str)
        asked = {"language": "bash" if is_line else "command", "code" if is_line else "argv": body.command}
        job = self._job_in(held, key, process.id, "stream", {**asked, "env": body.env}, body)
        job.process = process
        self._begin(job, None)
        return job

    def _job_in(
        self,
        held: OwnedSession,
        key: Key,
        id: str,
        mode: Mode,
        asked: dict[str, Any],
        body: SessionRunBody | ProcessBody,
    ) -> RunJob:
        body_of_run = RunBody(**asked, reason=body.reason, label=body.label)
        row = Row(id=id, key=key.id, mode=mode, created=time.time(), body=body_of_run, session=held.id)
        self._jobs[id] = job = RunJob(row, durable=False, secrets={})
        return job

    def processes(self, held: OwnedSession) -> list[RunJob]:
        """Return the background processes of a session that have not ended, oldest first."""
        jobs = [job for job in self._jobs.values() if job.process is not None and job.row.session == held.id]
        return [job for job in jobs if job.task is not None]

    async def begun(self, job: RunJob) -> Row:
        """Wait until a process was started, or has ended without a start. Raises the error that ended it."""
        while job.task is not None and not job.has_begun:
            await job.changed()
        return job.row if job.has_begun else await self.ended(job)

    async def _as_it_is(self, row: Row) -> RunJob | Row:
        """Return the current state of a run that was read from the database; it may have ended since."""
        if (job := self._jobs.get(row.id)) is not None:
            return job
        now = None if row.is_over else await asyncio.to_thread(self._table.load, row.id)
        return now or row

    def _admit(self, key: Key, mode: Mode) -> None:
        """Raise `Answered` if the server is stopping, the key has too many runs, or the queue is full."""
        if self.draining:
            raise stopping()
        own = [job for job in self._jobs.values() if job.row.key == key.id and job.row.state in ("queued", "waiting")]
        self.quotas.admit(key, mode, [job.size for job in own])

    @asynccontextmanager
    async def turn(self, key: Key) -> AsyncIterator[None]:
        """Count other work of this key, such as a call through `/mcp`, as a run: wait for a slot and hold it.

        Raises `Answered` if there are too many.
        """
        self._admit(key, "sync")
        async with self.quotas.slot(key, self.quotas.enqueue()):
            yield

    # --- executing ---

    def _begin(self, job: RunJob, submission: Submission | None) -> None:
        ticket = self.quotas.enqueue()  # before the task begins: the next request is admitted by this count
        job.touch()
        job.task = asyncio.create_task(self._drive(job, submission, ticket))

    async def _drive(self, job: RunJob, submission: Submission | None, ticket: Ticket) -> None:
        """Take a run from `queued` to its end or to `waiting`. Raises nothing: errors go to the job and its row."""
        row, kept = job.row, False
        try:
            if (key := self.keys.get(row.key)) is None:
                raise no_key()
            # In a session, a run needs no shared slot: sessions are limited in number and have one run at a time.
            async with self.quotas.slot(key, ticket, shared=not row.session):
                if job.durable and not await asyncio.to_thread(self._table.claim, row):
                    return
                row.state, row.started = "running", row.started or time.time()
                job.touch()
                self._ended(job, await self._run(job, submission, key))
                await self._keep(job)  # before another run gets the slot: a kill interrupts only runs that have one
                kept = True
        except asyncio.CancelledError:
            if row.state == "queued" and not job.why:
                row.note = ""  # it stays queued for the next start
            elif not row.is_over:
                row.state = "interrupted" if job.interrupted else "cancelled"
                row.note, row.ended = job.why or "it was cancelled", time.time()
        except RedomaError as error:
            job.error = error
            row.state, row.note, row.ended = "interrupted", without_paths(f"{error.what}: {error.why}"), time.time()
        except Exception as error:  # a bug in the service must not leave a run without an end
            tell(ERROR, "service.bug", run=row.id, error=type(error).__name__)
            row.state, row.note, row.ended = "interrupted", "the server failed", time.time()
        finally:
            ticket.leave()  # it may have failed before it waited for a slot
            job.task = None
            if not kept:
                await self._keep(job)
            job.touch()

    async def _run(self, job: RunJob, submission: Submission | None, key: Key) -> Result:
        row = job.row
        if job.turn is not None:
            async with job.turn as turn:
                async for event in turn:
                    job.events.append(event)
                    job.touch()
                return turn.result
        if job.process is not None:
            return await self._run_process(job, job.process)
        if row.approval:
            submission = await self.executor.recall(row.approval, secrets=job.secrets, expect=row.body.expect)
        elif submission is None:  # accepted before a restart
            submission = self.boundary.prepare(key, row.body)
            request = msgspec.structs.replace(submission.request, id=row.id)
            submission = msgspec.structs.replace(submission, request=request)
        if not row.is_followed:
            return await self.executor.submit(submission)
        async with self.executor.follow(submission) as live:
            async for chunk in live:
                job.events.append(chunk)
                job.touch()
            return live.result

    async def _run_process(self, job: RunJob, process: AsyncSessionProcess) -> Result:
        async def pass_on(stream: Stream, output: AsyncOutput) -> None:
            async for text in output:
                job.events.append(Chunk(stream, text))
                job.touch()

        try:
            await process.start()
            job.has_begun = True
            job.touch()
            await asyncio.gather(pass_on("stdout", process.stdout_stream()), pass_on("stderr", process.stderr_stream()))
            return await process.started()
        except Refused as error:
            return error.result
        finally:
            await process.close()

    def _ended(self, job: RunJob, result: Result) -> None:
        row = job.row
        if row.is_followed:
            complete(job.events, result)
        row.result, row.status = self.boundary.encoded(result, row.id), result.status.value
        if result.status is Status.PENDING:
            row.state, row.approval = "waiting", result.approval_id
        else:
            row.state, row.ended = "done", time.time()

    async def _keep(self, job: RunJob) -> None:
        """Store the state of a run: at once if it must survive a restart, otherwise with the next flush."""
        if job.durable or job.row.state == "waiting":
            await self._store([job])
        else:
            self._unwritten.append(job)

    async def _write_down(self) -> None:
        while True:
            await asyncio.sleep(_FLUSH)
            if self._unwritten or not self.can_store:
                await self._flush()

    async def _flush(self) -> None:
        jobs, self._unwritten = self._unwritten, []
        await self._store(jobs)

    async def _store(self, jobs: list[RunJob]) -> None:
        """Write runs to the database. If that fails, they stay in memory and are written by a later flush."""
        try:
            await asyncio.to_thread(self._table.save, [job.row for job in jobs])
        except RedomaError as error:
            if self.can_store:
                tell(ERROR, "service.unwritten", runs=len(jobs), error=type(error).__name__)
            self.can_store = False
            jobs, self._unwritten = [], [*jobs, *self._unwritten]
            while len(self._unwritten) > _MAX_UNWRITTEN:
                jobs.append(self._unwritten.pop(0))
            if jobs:
                tell(ERROR, "service.lost", runs=len(jobs), error=type(error).__name__)
        else:
            self.can_store = True
        for job in jobs:
            if job.row.is_over:
                self._jobs.pop(job.row.id, None)
            else:
                job.durable = True

    async def _look_for_answers(self) -> None:
        """Continue runs that wait for an approval once it was answered, here or with `redoma approvals`."""
        takers: dict[str, RunJob] = {}
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK):
                    await self._answered.wait()
            self._answered.clear()
            takers = {approval: job for approval, job in takers.items() if not job.row.is_over}
            waiting = [job for job in self._jobs.values() if job.row.state == "waiting" and job.task is None]
            for job in waiting if not self.draining else ():
                row = job.row
                try:
                    if await asyncio.to_thread(self.ledger.is_open, row.approval):
                        continue
                    answer = await asyncio.to_thread(self.ledger.load, row.approval)
                    if answer.state == "approved" and row.approval in takers:
                        continue  # an identical run is about to use it; this one would take it away
                    if not self._still_waits(row) or not await asyncio.to_thread(self._table.requeue, row):
                        continue
                    if not self._still_waits(row):  # cancelled meanwhile, which is stored over `queued`; or drained
                        continue
                    if answer.state == "used":
                        row.approval = ""  # an identical run used it: this one asks for its own
                    takers[row.approval] = job
                    row.state = "queued"
                    self._begin(job, None)
                except RedomaError as error:
                    tell(ERROR, "service.failed", run=job.row.id, error=type(error).__name__)

    def _still_waits(self, row: Row) -> bool:
        return row.state == "waiting" and not self.draining

    def answered(self) -> None:
        """Check for answers now, because one was just given."""
        self._answered.set()

    async def _prune(self) -> None:
        while True:
            try:
                await asyncio.to_thread(self._table.forget, self.settings.retention_days)
            except RedomaError as error:
                tell(ERROR, "service.failed", error=type(error).__name__)
            await asyncio.sleep(_PRUNE)

    # --- finding, cancelling ---

    async def find(self, key: Key, id: str) -> RunJob | Row:
        """Return a run that this key may see. Raises `Answered` (404)."""
        found: RunJob | Row | None = None
        if _ID.match(id):
            found = self._jobs.get(id) or await asyncio.to_thread(self._table.load, id)
        if found is None or not _may_see(key, row_of(found)):
            raise not_found("run")
        return found

    async def run_of(self, key: Key, approval: str) -> str:
        """Return the id of the run that waits, or has waited, for an approval; empty if this key may see none."""
        held = [job.row.id for job in self._jobs.values() if job.row.approval == approval]
        for each in held or list(await asyncio.to_thread(self._table.waiting_for, approval)):
            with suppress(Answered):
                return row_of(await self.find(key, each)).id
        return ""

    async def newest(self, key: Key, *, before: float, limit: int, state: str = "") -> list[Row]:
        """Return this key's runs, or with the scope `audit` those of all keys, newest first."""
        owner = None if key.may("audit") else key.id
        rows = await asyncio.to_thread(self._table.list, owner, before=before, limit=limit, state=state)
        known = {row.id: row for row in rows}
        for job in self._jobs.values():
            row = job.row
            if row.created < before and (owner is None or row.key == owner):
                known[row.id] = row
        chosen = [row for row in known.values() if not state or row.state == state]
        return sorted(chosen, key=lambda row: (row.created, row.id), reverse=True)[:limit]

    async def cancel(self, key: Key, id: str) -> Row:
        """Cancel a run in any state and return it; one that has ended stays as it is. Raises `Answered`."""
        found = await self.find(key, id)
        row = row_of(found)
        if row.key != key.id and not key.may("admin"):
            raise not_allowed("admin, as another key has asked for this run")
        if isinstance(found, RunJob) and found.task is not None:
            found.cancel(f"it was cancelled by {key.name}")
            while found.task is not None:
                await found.changed()
        elif isinstance(found, RunJob) and row.state == "waiting":
            row.state, row.ended, row.note = "cancelled", time.time(), f"it was cancelled by {key.name}"
            others = [job for job in self._jobs.values() if job is not found and job.row.approval == row.approval]
            if not others:
                with suppress(RedomaError):
                    await asyncio.to_thread(self.ledger.expire, row.approval)
            await self._keep(found)
            found.touch()
        return row

    async def ended(self, job: RunJob) -> Row:
        """Wait until a run has ended or waits for an approval, and return it. Raises the error that ended it."""
        while job.task is not None or (job.row.state == "queued" and not self.draining):
            await job.changed()
        if job.error is not None:
            raise job.error
        return job.row


def _may_see(key: Key, row: Row) -> bool:
    """Return whether a key may see a run.

    It may see its own runs, all with `audit`, and with `approve` those that have an approval or ran in an overlay.
    """
    decides = key.may("approve") and bool(row.approval or row.body.workspace == "overlay")
    return row.key == key.id or key.may("audit") or decides


def _digest(body: RunBody, mode: Mode) -> str:
    return hashlib.sha256(msgspec.json.encode([body, mode == "async"], order="sorted")).hexdigest()
