"""The service's runs: accept, queue, execute, follow, cancel and store them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, nullcontext, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from ...approval import Ledger
from ...audit import AuditLog
from ...backends.base import Backend
from ...config import Config
from ...exec import AsyncOutput
from ...lib import files
from ...lib.errors import ConfigError, InvalidRequest, RedomaError, Refused
from ...lib.sqlite import NAME as APPROVALS
from ...lib.sqlite import Store
from ...models import Chunk, Display, Limits, Result, Status, Stream, Submission
from ...pipeline.executor import AsyncExecutor
from ...pipeline.intake import Options
from ...telemetry import ERROR, INFO, tell
from ..shapes import result_json
from .bodies import Mode, ProcessBody, RunBody, RunState, SessionRunBody, SomeLimits, content
from .keys import Key, Keys
from .numbers import Numbers
from .problems import Answered, no_key, not_allowed, not_found, too_many, without_paths
from .sessions import Held, Sessions
from .store import open_store

if TYPE_CHECKING:
    import sqlite3

    from ...sessions.session import AsyncSessionProcess, AsyncSessionRun

_FLUSH = 0.5
"""Seconds between batched writes of runs that are not durable."""
_LOOK = 0.5
"""Seconds between checks for answers to the approvals that runs wait for."""
_PRUNE = 60.0
MAX_KEPT = 1 << 30
"""Maximum bytes of stored requests and results; above it, the oldest ended runs are deleted."""
_ID = re.compile(r"[0-9a-f]{32}\Z")
_IDEMPOTENCY = re.compile(r"[\x21-\x7e]{1,200}\Z")
_FACTOR = 10
"""A caller may request up to this many times a configured limit, unless `server.max_limits` sets another maximum."""
_STOPPED = "the server was stopped while it ran"
_MAX_HELD = 8
"""The runs of one key that wait may together be this many times as large as `server.max_body`."""
_MAX_LISTED = 16 << 10
"""Maximum bytes of a request that a list reads whole; of a larger one, it reads only the fields that it shows."""
_ENDED: tuple[RunState, ...] = ("done", "cancelled", "interrupted")


_TEXT = "CAST(body AS TEXT)"
_SHORT = f"""CASE WHEN length(body) <= {_MAX_LISTED} THEN body ELSE json_object(
    'label', coalesce(json_extract({_TEXT}, '$.label'), ''),
    'code', substr(coalesce(json_extract({_TEXT}, '$.code'), ''), 1, 1000),
    'argv', json_array(substr(coalesce(json_extract({_TEXT}, '$.argv[0]'), ''), 1, 1000)),
    'language', coalesce(json_extract({_TEXT}, '$.language'), 'python'),
    'workspace', coalesce(json_extract({_TEXT}, '$.workspace'), 'scratch')) END"""
"""SQL for a run's request, cut to what a list shows, because callers choose how long a request is."""


class Row(msgspec.Struct, kw_only=True):
    """A run as stored in the database."""

    id: str
    key: str
    mode: Mode
    state: RunState = "queued"
    status: str = ""
    created: float
    started: float | None = None
    ended: float | None = None
    body: RunBody
    secrets: tuple[str, ...] = ()
    """Names only; the values are not stored."""
    result: bytes | None = None
    approval: str = ""
    note: str = ""
    session: str = ""
    idempotency: str = ""
    digest: str = ""

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return self.state in _ENDED


class Job:
    """A run that this process executes, or that waits for an approval."""

    def __init__(self, row: Row, *, durable: bool, secrets: dict[str, str]) -> None:
        self.row, self.durable, self.secrets = row, durable, secrets
        self.size = _size(row.body)
        self.turn: AsyncSessionRun | None = None
        """The run's handle, if it is a run in a session."""
        self.process: AsyncSessionProcess | None = None
        """The run's handle, if it is a background process of a session."""
        self.has_begun = False
        """Whether `process` was started."""
        self.events: list[Chunk | Display] = []
        self.task: asyncio.Task[None] | None = None
        self.error: RedomaError | None = None
        self.why = ""
        """Why the service cancelled the run; empty if it did not."""
        self.signal = asyncio.Event()
        """Set at the next change and then replaced by a new event."""

    def touch(self) -> None:
        """Wake every task that waits for a change of this run."""
        changed, self.signal = self.signal, asyncio.Event()
        changed.set()

    async def changed(self) -> None:
        """Wait for the next change. To miss none, await nothing between reading the run's state and calling this."""
        await self.signal.wait()


class Quota:
    """How much of its rate and concurrency a key has used."""

    def __init__(self, key: Key, places: int) -> None:
        self.concurrency = key.concurrency
        self.slots = asyncio.Semaphore(key.concurrency)
        self.places = asyncio.Semaphore(places)
        """The part of the slots shared by all keys that this key may take."""
        self.active = 0
        self._tokens, self._at = 2 * key.rate, time.monotonic()

    def take(self, rate: float) -> float:
        """Count one request against the rate. Return 0, or the seconds until the next request is allowed."""
        now = time.monotonic()
        self._tokens = min(max(2 * rate, 1.0), self._tokens + (now - self._at) * rate)
        self._at = now
        if self._tokens < 1:
            return (1 - self._tokens) / rate
        self._tokens -= 1
        return 0.0


class Service:
    """The logic behind the routes. Call `start` and `stop` on the event loop that serves them."""

    def __init__(self, config: Config, *, backends: Iterable[Backend] | None = None) -> None:
        self.store = open_store(config.state)
        self.keys = Keys(self.store)
        approval = msgspec.structs.replace(config.approval, approver="queue", separate=True)
        self.config = msgspec.structs.replace(config, approval=approval)
        self.settings = config.server
        self.executor = AsyncExecutor(self.config, backends=backends)
        audit = config.audit
        self.audit = AuditLog(audit.directory, retention_days=audit.retention_days, fsync=audit.fsync)
        record = self.audit.append if audit.enabled else lambda kind, run, data: None
        state = self.store.path.parent
        self.ledger = Ledger(Store(state / APPROVALS), record, separate=True)
        self.running = self.settings.running or 4 * (os.cpu_count() or 1)
        self.draining = False
        self.stopping = asyncio.Event()
        """Set when the service drains, so that event streams end."""
        self.failure = ""
        """Why the service could not start."""
        self.waiting = 0
        """Number of runs that wait for a slot."""
        self._slots = asyncio.Semaphore(self.running)
        self._jobs: dict[str, Job] = {}
        self._quotas: dict[str, Quota] = {}
        self._unwritten: list[Job] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._answered = asyncio.Event()
        self._lock: int | None = None
        self.sessions = Sessions(self)
        self.numbers = Numbers()
        self._roots = {str(path): f"[{name}]" for name, path in self.settings.projects.items()}
        self._roots[str(state)] = "[state]"
        self._max = _max_limits(config.limits, self.settings.max_limits)

    # --- start and stop ---

    async def start(self) -> None:
        """Lock the state directory, mark the runs that a crash interrupted, and continue with queued and waiting ones.

        Raises `RedomaError` and stores the reason in `failure`.
        """
        try:
            self._own()
            left = await asyncio.to_thread(self._recover)
        except RedomaError as error:
            self.failure = f"{error.what}: {error.why}"
            raise
        for row in left:
            job = Job(row, durable=True, secrets={})
            self._jobs[row.id] = job
            if row.state == "queued":
                self._begin(job, None)
        own = (self._write_down(), self._look_for_answers(), self._prune())
        for work in (*own, self.sessions.sweep(), self.numbers.collect()):
            self._tasks.add(asyncio.create_task(work))
        backend = self.executor.backends.get("jail")
        warm = getattr(backend, "warm", None)
        if warm is not None:
            with suppress(RedomaError):  # the first run reports what is wrong
                warm()
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

    def _recover(self) -> list[Row]:
        """Mark lost runs as interrupted and return those to continue with.

        Lost are runs that were running when the last process ended, and those with secrets, which are not stored.
        """
        stopped, lost = "the server ended while it ran", "the server was restarted, and its secrets were not kept"
        now = time.time()
        with self.store.writing() as db:
            db.execute(
                "UPDATE runs SET state = 'interrupted', ended = ?, note = ? WHERE state = 'running'", (now, stopped)
            )
            db.execute(
                "UPDATE runs SET state = 'interrupted', ended = ?, note = ?"
                " WHERE state IN ('queued', 'waiting') AND secrets <> ''",
                (now, lost),
            )
            rows = db.execute("SELECT * FROM runs WHERE state IN ('queued', 'waiting') ORDER BY created, id").fetchall()
        return [_row(row) for row in rows]

    def drain(self) -> None:
        """Stop accepting runs, end event streams, and cancel background processes.

        Durable queued runs stay queued for the next start.
        """
        self.draining = True
        self.stopping.set()
        for job in list(self._jobs.values()):
            if job.row.state == "queued" and job.durable and job.task is not None:
                job.task.cancel()
            elif job.process is not None and job.task is not None:  # it may never end by itself
                job.why = _STOPPED
                job.task.cancel()
            job.touch()

    def give_up(self) -> None:
        """Cancel all runs now, without waiting for them to end by themselves."""
        for job in list(self._jobs.values()):
            if job.task is not None and not job.task.done():
                job.why = _STOPPED
                job.task.cancel()

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
        await self.executor.aclose()
        self.audit.close()
        if self._lock is not None:
            files.unlock(self._lock)
            os.close(self._lock)
            self._lock = None

    @property
    def busy(self) -> int:
        """Number of runs in the state `running`."""
        return sum(job.row.state == "running" for job in self._jobs.values())

    # --- accepting ---

    async def accept(self, key: Key, body: RunBody, mode: Mode, idempotency: str = "") -> tuple[Job | Row, bool]:
        """Accept a run. Return it and whether it is new: if the idempotency key is known, return the earlier run.

        Raises `InvalidRequest` if the request is invalid, `Answered` if it is refused.
        """
        if idempotency and not _IDEMPOTENCY.match(idempotency):
            raise InvalidRequest(
                "the idempotency key can't be used",
                why="it has up to 200 visible ASCII characters",
                next="use a random one, such as a UUID",
            )
        submission = self.prepare(key, body)
        digest = _digest(body, mode) if idempotency else ""
        if idempotency and (known := await asyncio.to_thread(self._known, key, idempotency, digest)) is not None:
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
        job = Job(row, durable=mode == "async" or bool(idempotency), secrets=dict(body.secrets))
        self._jobs[row.id] = job  # before the row is stored: a request that finds the row must find this job
        if job.durable:
            try:
                other = await asyncio.to_thread(self._insert, row)
            except BaseException:
                self._jobs.pop(row.id, None)
                raise
            if other is not None:  # a request with the same key was stored meanwhile
                self._jobs.pop(row.id, None)
                return await self._as_it_is(other), False
        self._begin(job, submission)
        return job, True

    def accept_in(self, key: Key, held: Held, body: SessionRunBody, mode: Mode) -> Job:
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

    def accept_process(self, key: Key, held: Held, body: ProcessBody) -> Job:
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
        held: Held,
        key: Key,
        id: str,  # noqa: A002 - the row's field name
        mode: Mode,
        asked: dict[str, Any],
        body: SessionRunBody | ProcessBody,
    ) -> Job:
        body_of_run = RunBody(**asked, reason=body.reason, label=body.label or held.label)
        row = Row(id=id, key=key.id, mode=mode, created=time.time(), body=body_of_run, session=held.id)
        self._jobs[id] = job = Job(row, durable=False, secrets={})
        return job

    def processes(self, held: Held) -> list[Job]:
        """Return the background processes of a session that have not ended, oldest first."""
        jobs = [job for job in self._jobs.values() if job.process is not None and job.row.session == held.id]
        return [job for job in jobs if job.task is not None]

    async def begun(self, job: Job) -> Row:
        """Wait until a process was started, or has ended without a start. Raises the error that ended it."""
        while job.task is not None and not job.has_begun:
            await job.changed()
        return job.row if job.has_begun else await self.ended(job)

    async def _as_it_is(self, row: Row) -> Job | Row:
        """Return the current state of a run that was read from the database; it may have ended since."""
        if (job := self._jobs.get(row.id)) is not None:
            return job
        now = None if row.is_over else await asyncio.to_thread(self._load, row.id)
        return now or row

    def prepare(self, key: Key, body: RunBody) -> Submission:
        """Turn a caller's request into a submission. Raises `InvalidRequest`, or `Answered` if it is not allowed."""
        options = self._options(key, body)
        if body.language == "command":
            if body.code:
                raise InvalidRequest("a command has no code", why="argv is the command", next="leave code out")
            return self.executor.prepare(list(body.argv), None, options)
        if not body.code:
            raise InvalidRequest("there is nothing to run", why="code is empty", next='send {"code": "print(6 * 7)"}')
        return self.executor.prepare_code(body.code, body.language, {**options, "args": body.argv})

    def policy_for(self, key: Key, policy: str | None) -> str | None:
        """Return the policy that a caller named. Raises `Answered` if the key may not choose one."""
        if policy is not None and not key.may("admin"):
            raise not_allowed("admin, which choosing a policy needs")
        return policy

    def limits_of(self, given: SomeLimits) -> dict[str, Any]:
        """Return the limits that a caller named. Raises `InvalidRequest` if one is above the allowed maximum."""
        limits = {name: value for name in Limits.__struct_fields__ if (value := getattr(given, name)) is not None}
        if limits:
            self.must_be_within(limits)
        return limits

    def _options(self, key: Key, body: RunBody) -> Options:
        options: Options = {
            "backend": body.backend,
            "policy": self.policy_for(key, body.policy),
            "limits": self.limits_of(body.limits),
            "stdin": content(body.stdin),
            "env": body.env,
            "secrets": body.secrets,
            "network": body.network or None,
            "environment": body.environment or None,
            "packages": body.packages or None,
            "files": {name: content(given) for name, given in body.files.items()},
            "outputs": body.outputs,
            "require": body.require,
            "expect": body.expect,
            "reason": body.reason,
            "label": body.label,
            "requester": key.requester,
            "wait": False,
        }
        if project := self.project_for(body.workspace, body.project):
            options["workspace"], options["project"], options["cwd"] = body.workspace, project, project
        return options

    def project_for(self, workspace: str, name: str) -> str:
        """Return the directory of the workspace's project; empty for `scratch`. Raises `InvalidRequest`."""
        if workspace == "scratch":
            if name:
                why, step = "scratch has none", 'add "workspace": "read-only"'
                raise InvalidRequest("a project was named without a workspace", why=why, next=step)
            return ""
        if name not in self.settings.projects:
            raise InvalidRequest(
                f"there is no project {name!r}",
                why=f"the server offers {', '.join(self.settings.projects) or 'none'}",
                next="name one of those; `server.projects` of its redoma.yaml lists them",
            )
        return os.path.realpath(self.settings.projects[name])

    def must_be_within(self, limits: dict[str, Any]) -> None:
        """Raise `InvalidRequest` if a limit is above the maximum that callers may request."""
        # `Limits` turns texts such as `256MiB` into numbers.
        wanted = msgspec.structs.replace(self.config.limits, **limits)
        for name in limits:
            if getattr(wanted, name) > self._max[name]:
                raise InvalidRequest(
                    f"the limit {name} is {limits[name]!r}",
                    why=f"this server allows {self._max[name]:g} at most",
                    next="ask for less, or have `server.max_limits` raised",
                )

    def _admit(self, key: Key, mode: Mode) -> None:
        """Raise `Answered` if the server is stopping, the key has too many runs, or the queue is full."""
        if self.draining:
            raise Answered(503, "the server is stopping", next="try again later", retry=5)
        quota = self.quota(key)
        if mode != "async" and quota.active >= key.concurrency:
            raise too_many(f"this key may have {key.concurrency} runs at one time")
        if self.waiting >= self.settings.queue:
            raise too_many(f"{self.waiting} runs wait already", retry=2)
        own = [job for job in self._jobs.values() if job.row.key == key.id and job.row.state in ("queued", "waiting")]
        if len(own) >= _all_but_some(self.settings.queue):
            raise too_many(f"{len(own)} runs of this key wait already, for their turn or for a person", retry=2)
        if sum(job.size for job in own) > _MAX_HELD * self.settings.max_body:
            raise too_many("the runs of this key that wait are too large together", retry=2)

    @asynccontextmanager
    async def turn(self, key: Key) -> AsyncIterator[None]:
        """Count other work of this key, such as a call through `/mcp`, as a run: wait for a slot and hold it.

        Raises `Answered` if there are too many.
        """
        self._admit(key, "sync")
        quota = self.quota(key)
        quota.active += 1
        self.waiting += 1
        waits = True
        try:
            async with quota.slots, quota.places, self._slots:
                self.waiting -= 1
                waits = False
                yield
        finally:
            self.waiting -= waits
            quota.active -= 1

    def quota(self, key: Key) -> Quota:
        """Return the quota of a key; a new one if its concurrency has changed."""
        found = self._quotas.get(key.id)
        if found is None or found.concurrency != key.concurrency:
            found = self._quotas[key.id] = Quota(key, _all_but_some(self.running))
        return found

    def take_rate(self, key: Key) -> None:
        """Count a request. Raises `Answered` (429) if the key has sent too many."""
        if seconds := self.quota(key).take(key.rate):
            raise too_many(f"this key may send {key.rate:g} requests a second", retry=int(seconds) + 1)

    # --- executing ---

    def _begin(self, job: Job, submission: Submission | None) -> None:
        self.waiting += 1
        job.touch()
        job.task = asyncio.create_task(self._drive(job, submission))

    async def _drive(self, job: Job, submission: Submission | None) -> None:
        """Take a run from `queued` to its end or to `waiting`. Raises nothing: errors go to the job and its row."""
        row, queued = job.row, True
        key = self.keys.get(row.key)
        quota = self.quota(key) if key else None
        try:
            if key is None or quota is None:
                raise no_key()
            quota.active += 1
            # In a session, a run needs no shared slot: sessions are limited in number and have one run at a time.
            places = (nullcontext(), nullcontext()) if row.session else (quota.places, self._slots)
            async with quota.slots, places[0], places[1]:
                self.waiting -= 1
                queued = False
                if job.durable and not await asyncio.to_thread(self._claim, row):
                    return
                row.state, row.started = "running", row.started or time.time()
                job.touch()
                self._ended(job, await self._run(job, submission, key))
        except asyncio.CancelledError:
            if row.state == "queued" and not job.why:
                row.note = ""  # it stays queued for the next start
            else:
                row.state = "interrupted" if job.why.startswith("the server") else "cancelled"
                row.note, row.ended = job.why or "it was cancelled", time.time()
        except RedomaError as error:
            job.error = error
            row.state, row.note, row.ended = "interrupted", without_paths(f"{error.what}: {error.why}"), time.time()
        except Exception as error:  # a bug in the service must not leave a run without an end
            tell(ERROR, "service.bug", run=row.id, error=type(error).__name__)
            row.state, row.note, row.ended = "interrupted", "the server failed", time.time()
        finally:
            if queued:
                self.waiting -= 1
            if quota is not None and key is not None:
                quota.active -= 1
            job.task = None
            await self._keep(job)
            job.touch()

    async def _run(self, job: Job, submission: Submission | None, key: Key) -> Result:
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
            return await self.executor.resume(row.approval, secrets=job.secrets, expect=row.body.expect)
        if submission is None:  # accepted before a restart
            submission = self.prepare(key, row.body)
            request = msgspec.structs.replace(submission.request, id=row.id)
            submission = msgspec.structs.replace(submission, request=request)
        if row.mode == "sync":
            return await self.executor.submit(submission)
        async with self.executor.follow(submission) as live:
            async for chunk in live:
                job.events.append(chunk)
                job.touch()
            return live.result

    async def _run_process(self, job: Job, process: AsyncSessionProcess) -> Result:
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

    def _ended(self, job: Job, result: Result) -> None:
        row = job.row
        if row.mode != "sync":
            _complete(job.events, result)
        row.result, row.status = self.encoded(result, row.id), result.status.value
        if result.status is Status.PENDING:
            row.state, row.approval = "waiting", result.approval_id
        else:
            row.state, row.ended = "done", time.time()

    async def _keep(self, job: Job) -> None:
        """Store the state of a run: at once if it is durable, otherwise with the next flush."""
        row = job.row
        if job.durable:
            try:
                await asyncio.to_thread(self._save, [row])
            except RedomaError as error:  # the next start marks it as interrupted
                tell(ERROR, "service.unwritten", run=row.id, error=type(error).__name__)
        elif row.state == "waiting":  # from now on it must survive a restart
            await asyncio.to_thread(self._save, [row])
            job.durable = True
        else:
            self._unwritten.append(job)
            return
        if row.is_over:
            self._jobs.pop(row.id, None)

    async def _write_down(self) -> None:
        while True:
            await asyncio.sleep(_FLUSH)
            await self._flush()

    async def _flush(self) -> None:
        jobs, self._unwritten = self._unwritten, []
        if not jobs:
            return
        try:
            await asyncio.to_thread(self._save, [job.row for job in jobs])
        except RedomaError as error:
            tell(ERROR, "service.unwritten", runs=len(jobs), error=type(error).__name__)
        for job in jobs:
            self._jobs.pop(job.row.id, None)

    async def _look_for_answers(self) -> None:
        """Continue runs that wait for an approval once it was answered, here or with `redoma approvals`."""
        takers: dict[str, Job] = {}
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
                    if row.state != "waiting" or not await asyncio.to_thread(self._requeue, row):
                        continue
                    if answer.state == "used":
                        row.approval = ""  # an identical run used it: this one asks for its own
                    takers[row.approval] = job
                    row.state = "queued"
                    self._begin(job, None)
                except RedomaError as error:
                    tell(ERROR, "service.failed", run=job.row.id, error=type(error).__name__)

    def answered(self) -> None:
        """Check for answers now, because one was just given."""
        self._answered.set()

    async def _prune(self) -> None:
        while True:
            try:
                await asyncio.to_thread(self._forget)
            except RedomaError as error:
                tell(ERROR, "service.failed", error=type(error).__name__)
            await asyncio.sleep(_PRUNE)

    # --- finding, cancelling ---

    async def find(self, key: Key, id: str) -> Job | Row:  # noqa: A002 - the row's field name
        """Return a run that this key may see. Raises `Answered` (404)."""
        found: Job | Row | None = None
        if _ID.match(id):
            found = self._jobs.get(id) or await asyncio.to_thread(self._load, id)
        if found is None or not _may_see(key, row_of(found)):
            raise not_found("run")
        return found

    async def newest(self, key: Key, *, before: float, limit: int, state: str = "") -> list[Row]:
        """Return this key's runs, or with the scope `audit` those of all keys, newest first."""
        owner = None if key.may("audit") else key.id
        rows = await asyncio.to_thread(self._list, owner, before, limit, state)
        known = {row.id: row for row in rows}
        for job in self._jobs.values():
            row = job.row
            if row.created < before and (owner is None or row.key == owner):
                known[row.id] = row
        chosen = [row for row in known.values() if not state or row.state == state]
        return sorted(chosen, key=lambda row: (row.created, row.id), reverse=True)[:limit]

    async def cancel(self, key: Key, id: str) -> Row:  # noqa: A002 - the row's field name
        """Cancel a run in any state and return it; one that has ended stays as it is. Raises `Answered`."""
        found = await self.find(key, id)
        row = row_of(found)
        if row.key != key.id and not key.may("admin"):
            raise not_allowed("admin, as another key has asked for this run")
        if isinstance(found, Job) and found.task is not None:
            found.why = f"it was cancelled by {key.name}"
            found.task.cancel()
            while found.task is not None:
                await found.changed()
        elif isinstance(found, Job) and row.state == "waiting":
            row.state, row.ended, row.note = "cancelled", time.time(), f"it was cancelled by {key.name}"
            others = [job for job in self._jobs.values() if job is not found and job.row.approval == row.approval]
            if not others:
                with suppress(RedomaError):
                    await asyncio.to_thread(self.ledger.expire, row.approval)
            await self._keep(found)
            found.touch()
        return row

    async def ended(self, job: Job) -> Row:
        """Wait until a run has ended or waits for an approval, and return it. Raises the error that ended it."""
        while job.task is not None or (job.row.state == "queued" and not self.draining):
            await job.changed()
        if job.error is not None:
            raise job.error
        return job.row

    async def follow(self, found: Job | Row, *, until_over: bool = True) -> AsyncIterator[tuple[str, Any]]:
        """Yield the events of a run as pairs of a name (`state`, `output`, `display`, `result`) and data.

        With `until_over=False`, also stop when the run begins to wait for an approval.
        """
        row = row_of(found)
        state, sent = "", 0
        while True:
            # Take the signal before reading the state: the reader may be slow, and must not miss a change.
            signal = found.signal if isinstance(found, Job) else None
            if row.state != state:
                state = row.state
                yield "state", {"id": row.id, "state": row.state, "note": row.note, "approval_id": row.approval}
            if isinstance(found, Job):
                for event in found.events[sent:]:
                    sent += 1
                    if isinstance(event, Display):
                        yield "display", event
                    else:
                        yield "output", {"stream": event.stream, "text": event.text}
            over = row.is_over or (row.state == "waiting" and not until_over)
            if (over and row.state == state) or signal is None or self.draining:
                break
            await signal.wait()
        if row.result is None or row.state not in ("done", "waiting"):
            return
        if isinstance(found, Row):  # it had ended before it was followed: send the same from its result
            for name, data in _as_events(row.result):
                yield name, data
        yield "result", msgspec.Raw(row.result)

    def encoded(self, result: Result, id: str) -> bytes:  # noqa: A002 - the row's field name
        """Return a result as JSON, without paths of this host."""
        shape = result_json(result) | {"id": id}
        if result.effect is not None:
            shape["effect"]["project"] = self.project_name(result.effect.project)
        layers = result.isolation.layers
        shape["isolation"]["layers"] = {name: without_paths(said) for name, said in layers.items()}
        shape["passed_over"] = {name: without_paths(why) for name, why in result.passed_over.items()}
        if result.error:
            shape["error"] = self.without_roots(result.error)
        if result.denial is not None:
            shape["denial"] = {
                name: self.without_roots(value) if isinstance(value, str) else value
                for name, value in shape["denial"].items()
            }
        return encode(shape)

    def project_name(self, path: str) -> str:
        """Return the name that callers use for the project at this path."""
        for name, directory in self.settings.projects.items():
            if os.path.realpath(directory) == path:
                return name
        return "(another project)"

    def without_roots(self, text: str) -> str:
        """Return the text with the paths of projects and of the state directory replaced by names in brackets."""
        for path, name in self._roots.items():
            text = text.replace(path, name)
        return text

    # --- the database ---

    def _known(self, key: Key, idempotency: str, digest: str) -> Row | None:
        with self.store.reading() as db:
            found = db.execute("SELECT * FROM runs WHERE key = ? AND idempotency = ?", (key.id, idempotency)).fetchone()
        return _same(found, digest)

    def _insert(self, row: Row) -> Row | None:
        with self.store.writing() as db:
            if row.idempotency:
                found = db.execute(
                    "SELECT * FROM runs WHERE key = ? AND idempotency = ?", (row.key, row.idempotency)
                ).fetchone()
                if (known := _same(found, row.digest)) is not None:
                    return known
            _put(db, row)
        return None

    def _claim(self, row: Row) -> bool:
        """Commit the step from `queued` to `running`. Return False if the run is no longer queued."""
        with self.store.writing() as db:
            now = time.time()
            done = "UPDATE runs SET state = 'running', started = coalesce(started, ?) WHERE id = ? AND state = 'queued'"
            return db.execute(done, (now, row.id)).rowcount == 1

    def _requeue(self, row: Row) -> bool:
        with self.store.writing() as db:
            return (
                db.execute("UPDATE runs SET state = 'queued' WHERE id = ? AND state = 'waiting'", (row.id,)).rowcount
                == 1
            )

    def _save(self, rows: list[Row]) -> None:
        with self.store.writing() as db:
            for row in rows:
                _put(db, row)

    def _load(self, id: str) -> Row | None:  # noqa: A002 - the column's name
        with self.store.reading() as db:
            found = db.execute("SELECT * FROM runs WHERE id = ?", (id,)).fetchone()
        return None if found is None else _row(found)

    def _list(self, owner: str | None, before: float, limit: int, state: str) -> list[Row]:
        query = (
            f"SELECT id, key, mode, state, status, created, started, ended, {_SHORT} AS body, secrets,"  # noqa: S608 - our own SQL
            " NULL AS result, approval,"
            " note, session, idempotency, digest FROM runs WHERE created < :before AND (:owner IS NULL OR key = :owner)"
            " AND (:state = '' OR state = :state) ORDER BY created DESC, id DESC LIMIT :limit"
        )
        with self.store.reading() as db:
            found = db.execute(query, {"before": before, "owner": owner, "state": state, "limit": limit}).fetchall()
        return [_row(row) for row in found]

    def _forget(self) -> None:
        """Delete ended runs created before the retention period, and the oldest while all are too large together."""
        ended = "state IN ('done', 'cancelled', 'interrupted')"
        with self.store.writing() as db:
            old = time.time() - 86400 * self.settings.retention_days
            db.execute(f"DELETE FROM runs WHERE {ended} AND created < ?", (old,))  # noqa: S608 - our own SQL
            size = "SELECT total(length(result) + length(body)) AS size FROM runs"
            for _ in range(100):
                if db.execute(size).fetchone()["size"] <= MAX_KEPT:
                    break
                oldest = f"SELECT id FROM runs WHERE {ended} ORDER BY created LIMIT 500"  # noqa: S608 - the same
                if not db.execute(f"DELETE FROM runs WHERE id IN ({oldest})").rowcount:  # noqa: S608 - the same
                    break


def row_of(found: Job | Row) -> Row:
    """Return the row of a run, whether this process holds it as a job or it was read from the database."""
    return found.row if isinstance(found, Job) else found


def _may_see(key: Key, row: Row) -> bool:
    """Return whether a key may see a run.

    It may see its own runs, all with `audit`, and with `approve` those that have an approval or ran in an overlay.
    """
    decides = key.may("approve") and bool(row.approval or row.body.workspace == "overlay")
    return row.key == key.id or key.may("audit") or decides


def _all_but_some(places: int) -> int:
    """Return how many of the shared slots one key may take: a tenth (one, if there are 4 to 9) stays for other keys."""
    return places - max(places // 10, int(places > 3))


def _size(body: RunBody) -> int:
    """Return roughly how many bytes a request takes."""
    contents = [body.stdin, *body.files.values()]
    sizes = [len(given) if isinstance(given, str) else len(given.base64) for given in contents]
    return len(body.code) + sum(map(len, body.argv)) + sum(sizes)


def encode(shape: Any) -> bytes:
    """Return JSON, even if it has file names that are not UTF-8 (as lone surrogates)."""
    try:
        return msgspec.json.encode(shape)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(shape)).encode()


def moment(seconds: float | None) -> datetime | None:
    """Return a Unix time as a `datetime` in UTC; None for None."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def _digest(body: RunBody, mode: Mode) -> str:
    return hashlib.sha256(msgspec.json.encode([body, mode == "async"], order="sorted")).hexdigest()


def _max_limits(configured: Limits, given: dict[str, int | float]) -> dict[str, float]:
    values = msgspec.structs.asdict(configured)
    return {name: given.get(name, _FACTOR * value) for name, value in values.items()}


def _complete(events: list[Chunk | Display], result: Result) -> None:
    """Add what was not streamed: displays of a run outside of a session, and everything of a run that was approved
    later. A follower gets the same events while the run is in memory and after that (`_as_events`).
    """
    if not events:
        texts: tuple[tuple[Stream, str], ...] = (("stdout", result.stdout), ("stderr", result.stderr))
        events += [Chunk(stream, text) for stream, text in texts if text]
    if not any(isinstance(event, Display) for event in events):
        events += result.displays


def _as_events(result: bytes) -> Iterator[tuple[str, Any]]:
    """Yield `output` and `display` events from a stored result."""
    shape = msgspec.json.decode(result)
    for stream in ("stdout", "stderr"):
        if text := shape.get(stream):
            yield "output", {"stream": stream, "text": text}
    for display in shape.get("displays", ()):
        yield "display", display


def _same(found: sqlite3.Row | None, digest: str) -> Row | None:
    if found is None:
        return None
    if found["digest"] != digest:
        raise Answered(
            409,
            "this idempotency key was used for another request",
            why="a key stands for one request",
            next="use a new key, or send the same request again",
        )
    return _row(found)


def _put(db: sqlite3.Connection, row: Row) -> None:
    db.execute(
        "INSERT OR REPLACE INTO runs (id, key, mode, state, status, created, started, ended, body, secrets, result,"
        " approval, note, session, idempotency, digest) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(row.id, row.key, row.mode, row.state, row.status, row.created, row.started, row.ended),
            *(msgspec.json.encode(row.body), " ".join(row.secrets), row.result),
            *(row.approval, row.note, row.session, row.idempotency, row.digest),
        ),
    )


def _row(found: sqlite3.Row) -> Row:
    return Row(
        **{name: found[name] for name in ("id", "key", "mode", "state", "status", "created", "started", "ended")},
        **{name: found[name] for name in ("result", "approval", "note", "session", "idempotency", "digest")},
        body=msgspec.json.decode(found["body"], type=RunBody),
        secrets=tuple(found["secrets"].split()),
    )
