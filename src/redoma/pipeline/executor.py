"""The pipeline, to be read top to bottom in `AsyncExecutor.submit`:

    Request ─▶ policy ─▶ approval ─▶ audit(intent) ─▶ workspace ─▶ backend ─▶ output ─▶ audit(outcome) ─▶ Result

Only this file knows the order of the stages. `sync.Executor` drives the same object from ordinary code.
"""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, Unpack, cast

import msgspec

from .. import config as configuration
from .. import telemetry
from ..approval import Gate, Verdict, configuration_digest
from ..approval.store import open_store
from ..audit import AuditLog
from ..audit.inputs import Inputs
from ..backends.base import Backend, Capabilities, Control, Outcome, Prepared, Sink, unmet_needs
from ..config import Config, DockerEntry, NativeEntry
from ..lib.errors import (
    ApprovalError,
    AuditError,
    BackendError,
    BackendUnavailable,
    InvalidRequest,
    RedomaError,
    StoreError,
    Unsupported,
)
from ..models import (
    Decision,
    Evaluation,
    ExecutedFiles,
    Finding,
    Judged,
    Language,
    Limits,
    MiB,
    Request,
    Result,
    Secret,
    Status,
    Stream,
    Submission,
)
from ..models.reach import NOTHING, Reach
from ..output.artifacts import Store as Artifacts
from ..output.capture import Capture, Spool
from ..output.live import Live
from ..policy import PACKS, Policy, Reading, evaluate, level_of, secrets_in
from ..redaction import Redactor, load_redaction
from . import denial, intake, intents, results
from .entries import Entries
from .installed import Installed, warm
from .intake import Options
from .results import Attempt, WorkspaceOutcome
from .streaming import AsyncLiveRun

if TYPE_CHECKING:
    from ..approval import Approver, Ledger
    from ..environments import Environment
    from ..sessions.session import AsyncSession, SessionOptions
    from ..workspace.kept import Kept
    from .projects import Projects

AUTO = ("jail", "docker", "monty")
"""What `backend="auto"` tries, in this order: never one without a boundary."""


_MAX_IN_SCRIPTS = 200
"""Findings in the scripts of one request."""


def auto(config: Config) -> tuple[str, ...]:
    """Return what `backend="auto"` tries with this configuration: lean cells only if it allows them."""
    return (*AUTO[:-1], "lean", AUTO[-1]) if config.jail.lean else AUTO


class Closable(Protocol):
    async def aclose(self) -> None: ...


T = TypeVar("T", bound=Closable)


class AsyncExecutor:
    """Runs requests. Use it as an asynchronous context manager, or call `aclose` when done."""

    def __init__(
        self,
        config: Config | None = None,
        *,
        backends: Iterable[Backend] | Installed | None = None,
        approver: Approver | None = None,
    ) -> None:
        """`approver` is asked instead of the configured one if a person must approve."""
        self.config = config or configuration.load()
        backends = Installed(self.config) if backends is None else backends
        self.backends: Mapping[str, Backend] = (
            backends if isinstance(backends, Installed) else {backend.name: backend for backend in backends}
        )
        if not (isinstance(backends, Installed) and backends.once):
            load_redaction()  # now: later this process may have no descriptor left to load it with
        self.user = intake.user()
        self.on_progress: Callable[[str], None] | None = None
        """Told what pip prints while packages are installed that a run needs; at the end an empty text."""
        self._entries = Entries(self.config, self.backends)
        self._policies: dict[str | None, Policy] = {}
        self._digests: dict[str, str] = {}
        self._kept: dict[str, Closable] = {}
        audit, state, approval = self.config.audit, self.config.state, self.config.approval
        self.audit = AuditLog.configured(audit)
        """The audit log; nothing is written to it if `audit.enabled` is false."""
        self._artifacts = Artifacts(state / "artifacts") if state else None
        self.inputs = Inputs.within(state, days=audit.retention_days, fsync=audit.fsync)
        settings = {**msgspec.structs.asdict(approval), **({"approver": approver} if approver else {})}
        database = open_store(state) if state else None
        self._gate = Gate.configured(database, self._record, user=self.user, **settings) if database else None

    @property
    def ledger(self) -> Ledger | None:
        """Questions to people and their answers; None if there is no state directory."""
        return self._gate.ledger if self._gate else None

    def warm(self) -> None:
        """Begin to start the jail, if this executor has it, so that the first run waits less. Errors are left to it."""
        warm(self.backends.get("jail"))

    @functools.cached_property
    def projects(self) -> Projects:
        """Runs in projects, and their changes."""
        from .projects import Projects

        return Projects(
            self.config.state,
            self._record,
            self.check,
            user=self.user,
            home=configuration.home(),
            separate=self.config.approval.separate,
            own=[self.config.audit.directory],
        )

    async def run(self, code: str, language: Language = "python", **options: Unpack[Options]) -> Result:
        """Run source text and return its `Result`. Takes the options of `redoma.run`, and raises the same."""
        return await self._run(self.prepare_code(code, language, options), options)

    async def command(self, argv: Iterable[str], *, entry: str | None = None, **options: Unpack[Options]) -> Result:
        """Run a program with its arguments, without a shell, and return the `Result`.

        `argv` is a list such as `["git", "status"]`; `entry` names a configured executor such as `app:shell`, which
        also accepts a single text. Takes the options of `redoma.run`.
        """
        return await self._run(self.prepare(argv, entry, options), options)

    async def create_environment(
        self,
        name: str,
        packages: Iterable[str],
        *,
        hosts: Iterable[str] = (),
        preload: Iterable[str] = (),
        python: str | None = None,
        reason: str = "",
    ) -> Environment:
        """Install packages, in a cell that reaches the package index alone, and call the result `name`: runs have it
        with `environment=name`. Nobody is asked.

        Args:
            name: What to call it. If it has these packages already, nothing happens.
            packages: Requirements as pip reads them, such as `pandas>=2`.
            hosts: Further hosts that the index of pip's configuration has its files on.
            preload: Modules that are imported ahead of time, outside of cells: only what you trust.
            python: Another interpreter for its runs, as a path or the name of a program: CPython 3.11 or later.
            reason: Why, for the record.

        Returns:
            The `Environment`, with its packages, their hashes, and its digest.

        Raises:
            InvalidRequest: A package is none, the name has other packages already, or cells can't run on `python`.
            EnvironmentProblem: They can't be installed; whatever the name had before, it still has.
        """
        from ..environments.requirements import requirements
        from .packages import Installer

        installer = Installer(self, progress=self.on_progress)
        wanted = requirements(packages)
        return await installer.create(name, wanted, hosts=hosts, preload=tuple(preload), python=python, reason=reason)

    async def update_environment(self, name: str, *, hosts: Iterable[str] = (), reason: str = "") -> Environment:
        """Install the packages of an environment again, in the newest versions that fit, for the interpreter that is
        there now. Runs that have it keep what they have. Takes, returns and raises what `create_environment` does.
        """
        from .packages import Installer

        return await Installer(self, progress=self.on_progress).update(name, hosts=hosts, reason=reason)

    def session(self, **options: Unpack[SessionOptions]) -> AsyncSession:
        """Return a Python that keeps its variables, in its own cell: see `redoma.AsyncSession`."""
        from ..sessions.session import AsyncSession

        return AsyncSession(self, **options)

    def stream(self, code: str, language: Language = "python", **options: Unpack[Options]) -> AsyncLiveRun:
        """Run source text and follow its output: `async with … as run`, `async for` over it, then `run.result`."""
        return self._stream(self.prepare_code(code, language, options), options)

    def stream_command(
        self, argv: Iterable[str], *, entry: str | None = None, **options: Unpack[Options]
    ) -> AsyncLiveRun:
        """Run a program with its arguments and follow its output. Takes the options of `redoma.run`."""
        return self._stream(self.prepare(argv, entry, options), options)

    def follow(self, submission: Submission, *, whole: bool = False) -> AsyncLiveRun:
        """Run a submission and follow its output: with `whole` all of it, else as much as the result keeps."""
        live = Live(submission.request.limits, Redactor(submission.request.secrets.values()), whole=whole)
        return AsyncLiveRun(live, lambda live: self.submit(submission, live=live))

    def prepare_code(self, code: str, language: Language, options: Options) -> Submission:
        """Return source text as a submission. Raises `InvalidRequest`."""
        request = intake.build(self.config, self.backends, intake.with_path(options), code=code, language=language)
        return intake.submission(request, options)

    def prepare(
        self, command: str | Iterable[str], entry: str | None, options: Options, control: Control | None = None
    ) -> Submission:
        """Return a command as a submission; for a configured executor it may also be a single text. Raises
        `InvalidRequest`.
        """
        if entry is not None:
            return self._entries.prepare(entry, command, options, control)
        argv = intake.words("argv", command)
        request = intake.build(self.config, self.backends, intake.with_path(options), argv=argv, language="command")
        live_input = control is not None and control.takes_input
        return intake.submission(request, options, control=control, live_input=live_input, unread_input=live_input)

    async def _run(self, submission: Submission, options: Options) -> Result:
        on_output = options.get("on_output")
        if on_output is None:
            return await self.submit(submission)
        async with self.follow(submission) as run:
            return await run.deliver(on_output)

    def _stream(self, submission: Submission, options: Options) -> AsyncLiveRun:
        if options.get("on_output") is not None:
            raise InvalidRequest("on_output was given to a stream", why="it would get nothing", next="leave it out")
        return self.follow(submission, whole=options.get("whole_output", False))

    @telemetry.run
    async def submit(self, submission: Submission, live: Live | None = None) -> Result:
        """Take one request through the whole path and return its result. Raises neither for what the code did nor for
        what Redoma could not do. `live` also receives the output.
        """
        redactor = live.redactor if live else Redactor(submission.request.secrets.values())
        judged, verdict = self.judge(submission), Verdict()
        prepared: Prepared | None = None
        try:
            try:
                judged, verdict = await self._decide(judged)
                prepared = self._prepare(judged, verdict)  # while the intent is recorded; nothing of it runs yet
                await self._record_intent(judged, verdict, redactor)
            except (AuditError, StoreError) as error:  # what can't be recorded doesn't run
                return results.failed(Attempt(judged, verdict), error, redactor)
            return await self._carry_out(judged, verdict, redactor, live, prepared)
        finally:
            if prepared is not None:
                prepared.discard()

    async def _carry_out(
        self, judged: Judged, verdict: Verdict, redactor: Redactor, live: Live | None, prepared: Prepared | None
    ) -> Result:
        """Run or refuse what is on record, and record how that ended."""
        result: Result | None = None
        try:
            if verdict.status is None:
                result = await self._execute(judged, verdict, redactor, live, prepared)
            else:
                result = self._refused(judged, verdict, redactor)
        finally:  # also after an error or a cancellation: then the record says which
            if result is None:
                result = results.broken_off(Attempt(judged, verdict), sys.exception(), redactor)
            try:
                self._record("outcome", result.id, results.outcome_record(result, redactor))
            except AuditError as error:
                result = results.unrecorded(result, error, redactor)
        return results.with_safe_names(result, redactor)

    def refuse(self, submission: Submission) -> Result:
        """Submit what policy forbids, without an event loop, and return the refusal.

        Nothing that `submit` does for a forbidden submission may wait: `exec` refuses commands where no loop runs. If
        something does, this raises `AssertionError`.
        """
        work = self.submit(submission)
        try:
            work.send(None)
        except StopIteration as done:
            result: Result = done.value
            return result
        work.close()
        raise AssertionError("a request that is refused waited for something")

    # --- judging ---

    def check(
        self,
        request: Request,
        policy: str | None = None,
        *,
        reach: Reach | None = None,
        live_input: bool = False,
        entry: str = "",
    ) -> Evaluation:
        """Evaluate a request without running it. Returns the `Evaluation`, with its findings and its decision.

        `policy` names the pack that judges; by default the configured one. `reach` is what the run could touch; by
        default what it could where it would run. For the others see `evaluate`. Raises `InvalidRequest` for an unknown
        policy.
        """
        submission = Submission(request, policy=policy, entry=entry, live_input=live_input)
        reach = self._reach(submission, self._first(submission)) if reach is None else reach
        return self._evaluate(submission, Reading(request), reach)[1]

    @telemetry.policy
    def judge(self, submission: Submission) -> Judged:
        """Evaluate a submission where it would run, and determine its level."""
        reading = Reading(submission.judged)
        first = self._first(submission)
        submission, evaluation = self._evaluate(submission, reading, self._reach(submission, first))
        level = level_of(reading.request, evaluation, reading=reading)
        return Judged(
            submission=submission,
            evaluation=evaluation,
            level=level.level,
            level_why=level.why,
            backend=first,
            reading=reading,
            configuration_digest=self._digest_for(submission.entry),
        )

    def _evaluate(self, submission: Submission, reading: Reading, reach: Reach) -> tuple[Submission, Evaluation]:
        """Evaluate a submission and the scripts that it names. Returns it with the findings in these as objections, and
        the evaluation with all objections."""
        evaluation = evaluate(
            self._policy(submission.policy),
            reading.request,
            reach=reach,
            live_input=submission.live_input,
            entry=submission.entry,
            reading=reading,
        )
        if found := self._in_scripts(submission, reading, reach):
            submission = msgspec.structs.replace(submission, objections=submission.objections + found)
        if submission.objections:
            findings = submission.objections + evaluation.findings
            evaluation = msgspec.structs.replace(evaluation, findings=findings)
        return submission, evaluation

    def _in_scripts(self, submission: Submission, reading: Reading, reach: Reach) -> tuple[Finding, ...]:
        """Return what the scripts that a request names would do, where that could touch anything: `python3 x.py` is
        judged like the program in x.py. Not for a whitelisted command: whoever listed it knows what it runs.
        """
        entry = self.config.entries.get(submission.entry)
        listed = entry is not None and entry.command_whitelist is not None
        policy = self._policy(submission.policy)
        if listed or not policy.rules or not (reach.files != "none" or reach.network or reach.system):
            return ()
        if not reading.names_scripts():
            return ()
        from . import executed_files

        request, found = submission.judged, []
        view = executed_files.visible_to(submission.request, self._volumes(submission.entry))
        for script in executed_files.scripts(request, view, reading):
            inside = msgspec.structs.replace(request, stdin=b"", limits=Limits(), **script.judged_as)
            for finding in evaluate(policy, inside, reach=reach).findings:
                where = f"{script.name}:{finding.line}: {finding.text}" if finding.line else script.name
                place = {"line": 0, "column": 0, "text": where, "script": script.name}
                found.append(msgspec.structs.replace(finding, **place))
        return tuple(found[:_MAX_IN_SCRIPTS])

    def _volumes(self, entry: str) -> Sequence[str]:
        """Return the volumes of a configured container; those of a remote engine are on that machine."""
        config = self.config.entries.get(entry)
        if not isinstance(config, DockerEntry):
            return ()
        return config.volumes if config.host is None or config.host.startswith("unix:") else ()

    def _digest_for(self, entry: str) -> str:
        if entry not in self._digests:
            self._digests[entry] = digest_for(self.config, entry)
        return self._digests[entry]

    def place(self, submission: Submission) -> str:
        """Return the name of the backend that would be tried first, without trying it; empty if none can run it."""
        first = self._first(submission)
        return first.name if first else ""

    def _first(self, submission: Submission) -> Backend | None:
        return next((each for each in self._candidates(submission) if _can_run(each, submission)), None)

    def _reach(self, submission: Submission, first: Backend | None) -> Reach:
        """Return what it could touch on the backend that is tried first; if none can run it, on any of them."""
        if first is not None:
            return _reach_of(first, submission.request)
        reaches = (_reach_of(backend, submission.request) for backend in self._candidates(submission))
        return functools.reduce(Reach.__or__, reaches, NOTHING)

    def _candidates(self, submission: Submission) -> Iterator[Backend]:
        """Yield the backends to try, in order; one that is not reached is not loaded."""
        if submission.own_backend is not None:
            yield submission.own_backend
            return
        for name in auto(self.config) if submission.request.backend == "auto" else (submission.request.backend,):
            if name in self.backends:
                yield self.backends[name]

    def _advice(self, request: Request) -> str:
        """Return what this host could run as it is, and after one change; empty if that would not help."""
        if request.backend != "auto" or self.config.jail.lean or "lean" not in self.backends:
            return ""
        from ..backends.jail.lean import advice

        return advice()

    def _policy(self, pack: str | None) -> Policy:
        if pack is not None:
            intake.must_be_one_of("policy", pack, PACKS)
        if pack not in self._policies:
            self._policies[pack] = self.config.load_policy(pack)
        return self._policies[pack]

    # --- deciding ---

    @telemetry.decided
    async def _decide(self, judged: Judged) -> tuple[Judged, Verdict]:
        """Decide whether it may run, by policy or by a person. Returns it, with its executed files if the verdict
        depends on them, and the verdict.

        Changes that stay in an overlay need no approval yet: a person decides on the effect, when it is applied.
        """
        gate, decision = self._gate, judged.evaluation.decision
        try:
            if gate is None:
                refused = {Decision.PROMPT: Status.DENIED, Decision.FORBID: Status.FORBIDDEN}
                return judged, Verdict(status=refused.get(decision))
            if decision is Decision.FORBID:
                return self._forbid(judged, gate)
            if self._needs_executed_files(judged, gate):
                judged = await asyncio.to_thread(self._with_executed_files, judged)
            if judged.submission.resumes:
                # Even if no approval is needed any more: it must still be exactly what was asked about.
                return judged, await gate.redeem(judged.submission.resumes, judged)
            if decision is Decision.PROMPT:
                return judged, await gate.ask(judged, wait=judged.submission.wait)
            return judged, gate.pin_alarm(judged) or Verdict()
        except ApprovalError as error:  # it is unknown whether it may run, so it may not
            return judged, Verdict(status=Status.DENIED, error=str(error))

    def _forbid(self, judged: Judged, gate: Gate) -> tuple[Judged, Verdict]:
        """Do the same as `_decide` for what policy forbids. Not asynchronous: see `refuse`."""
        if self._needs_executed_files(judged, gate):
            judged = self._with_executed_files(judged)
        return judged, gate.pin_alarm(judged) or Verdict(status=Status.FORBIDDEN)

    def _needs_executed_files(self, judged: Judged, gate: Gate) -> bool:
        """Return whether an approval depends on the executed files. Finding and hashing them is slow."""
        evaluation = judged.evaluation
        asked_later = evaluation.reach.files == "later" and evaluation.findings  # when the effect is applied
        asks = judged.submission.resumes or evaluation.decision is Decision.PROMPT or asked_later
        return bool(asks) or gate.has_pin(judged.request)

    def _with_executed_files(self, judged: Judged) -> Judged:
        return msgspec.structs.replace(judged, executed=self._executed_files(judged))

    def _executed_files(self, judged: Judged) -> ExecutedFiles:
        from . import executed_files

        submission = judged.submission
        visible = executed_files.visible_to(submission.request, self._volumes(submission.entry))
        # The request that runs may differ from the one that was judged and parsed.
        reading = judged.reading if submission.view is None else None
        return executed_files.find(submission.request, visible, live_input=submission.unread_input, reading=reading)

    def _refused(self, judged: Judged, verdict: Verdict, redactor: Redactor) -> Result:
        """Return the refusal: of the gate, if this is not what was pinned or asked about; otherwise of the policy, or
        of the person that it asked.
        """
        evaluation, submission, status = judged.evaluation, judged.submission, verdict.status or Status.DENIED
        # A forbidden request is reported as forbidden, pinned or not.
        alarm = verdict.alarm and evaluation.decision is Decision.PROMPT
        if alarm or evaluation.decision is Decision.ALLOW:
            no = denial.of_pin(judged.request, redactor) if verdict.alarm else None
            return results.ended(Attempt(judged, verdict), status=status, error=verdict.error, denial=no)
        answer = "" if verdict.nobody else verdict.error
        no = denial.of_policy(judged, self._policy(submission.policy), redactor, status, answer)
        error = results.refusal(evaluation.deciding[0], status, verdict.error)
        return results.ended(Attempt(judged, verdict), status=status, error=error, denial=no)

    # --- recording ---

    async def _record_intent(self, judged: Judged, verdict: Verdict, redactor: Redactor) -> None:
        """Record what is about to run, or was refused, and keep its inputs; without secrets, including those that the
        policy has recognised in its text.
        """
        if not self.config.audit.enabled:
            return
        submission, request = judged.submission, judged.request
        policy = self._policy(submission.policy)
        if embedded := secrets_in(policy, submission.judged):
            redactor = Redactor([*request.secrets.values(), *embedded])
        wanted = self.config.audit.inputs
        keep = functools.partial(intents.keep, submission, policy, redactor, self.inputs, wanted=wanted)
        large = verdict.status is None and len(request.stdin) + sum(map(len, request.files.values())) > MiB
        kept = await asyncio.to_thread(keep) if large else keep()  # `refuse` can't wait
        self._record("intent", request.id, intents.intent_record(judged, verdict.approval, kept, redactor))

    def _record(self, kind: str, run: str, data: Mapping[str, Any]) -> None:
        if self.config.audit.enabled:
            self.audit.append(kind, run, data)

    # --- executing ---

    def _prepare(self, judged: Judged, verdict: Verdict) -> Prepared | None:
        """Let the backend get ready for what may run. Returns None if that can't begin at once. An error is left to
        `_execute`, which will meet it again and report it.
        """
        backend, request = judged.backend, judged.request
        if verdict.status is not None or backend is None or judged.submission.control is not None:
            return None
        if (request.uses and not request.uses.digest) or intake.treatment(request, judged.evaluation) != "none":
            return None
        try:
            prepare = backend.capabilities().prepare
            return prepare(request) if prepare is not None else None
        except RedomaError:
            return None
        except Exception as error:
            telemetry.tell(telemetry.WARNING, "run.unprepared", backend=backend.name, error=type(error).__name__)
            return None

    async def _execute(
        self, judged: Judged, verdict: Verdict, redactor: Redactor, live: Live | None, prepared: Prepared | None
    ) -> Result:
        """Run it on the first backend that can. One that raises `Unsupported` has run nothing, so the next is tried."""
        submission, request = judged.submission, judged.request
        passed_over: dict[str, str] = {}
        refusals: dict[str, BackendError] = {}
        name = ""
        for backend in self._candidates(submission):
            name = backend.name
            attempt = Attempt(judged, verdict, name, dict(passed_over))
            capture = Capture(request.limits, redactor, live.feed if live else None, self._spool(request, redactor))
            try:
                _must_offer(name, backend.capabilities(), submission)
                _must_reach_no_further(backend, judged)
                if judged.executed and (changed := await self._changed(judged, judged.executed, verdict.id)):
                    no = denial.of_pin(request, redactor) if changed.alarm else None
                    return results.ended(attempt, status=Status.DENIED, error=changed.error, denial=no)
                to_run = await self._protected(judged) if name == "native" else request
                ready = prepared if backend is judged.backend else None
                outcome, workspace = await self._run_on(backend, to_run, capture.feed, judged, redactor, ready)
            except (Unsupported, BackendUnavailable) as error:
                refusals[name] = error
                passed_over[name] = redactor.redact(f"{error.what}: {error.why}")[0]
            except Exception as error:  # also a backend's bug: the output is kept, and the record says what failed
                return results.failed(attempt, error, redactor, capture.finish())
            else:
                finish = functools.partial(
                    results.finished,
                    attempt,
                    outcome,
                    capture.finish(),
                    redactor,
                    denial=denial.of_limit(
                        outcome, request, self.config.limits, redactor, in_session=bool(submission.session)
                    )
                    or denial.of_network(outcome, redactor),
                    workspace=workspace,
                    capabilities=backend.capabilities,
                )
                # In a thread, because other runs depend on this event loop for their time limits.
                shown = [display.data for display in outcome.displays]
                return await asyncio.to_thread(finish) if results.is_large([outcome.value, shown]) else finish()
            finally:
                capture.close()
        unable = _no_backend(request, refusals, self._advice(request))
        return results.ended(
            Attempt(judged, verdict, name, passed_over),
            status=Status.FAILED,
            error=results.failure(unable, redactor),
            denial=denial.of_backend(unable, request, redactor),
        )

    @telemetry.backend
    async def _run_on(
        self,
        backend: Backend,
        request: Request,
        sink: Sink,
        judged: Judged,
        redactor: Redactor,
        prepared: Prepared | None,
    ) -> tuple[Outcome, WorkspaceOutcome]:
        """Run it in its workspace. Returns the outcome, and what became of the workspace."""
        if prepared is not None:
            return await prepared.run(sink), WorkspaceOutcome()
        control = judged.submission.control
        if request.uses is not None and not request.uses.digest:
            from .packages import Installer

            use = await Installer(self, progress=self.on_progress).ensure(request.uses, f"wanted by run {request.id}")
            request = msgspec.structs.replace(request, uses=use)
        treatment = intake.treatment(request, judged.evaluation)
        if treatment == "none":  # most runs: they don't load what projects need
            return await backend.run(request, sink, control), WorkspaceOutcome()
        return await self.projects.run(
            backend, request, sink, control, treatment=treatment, judged=judged, redactor=redactor
        )

    async def _changed(self, judged: Judged, before: ExecutedFiles, approval: str) -> Verdict | None:
        """Return the refusal of a run whose executed files have changed since the decision. In an overlay that matters
        only if something is pinned: otherwise the effect is what is decided on.
        """
        if self._gate is None or (judged.request.workspace == "overlay" and not self._gate.has_pin(judged.request)):
            return None
        now = await asyncio.to_thread(self._executed_files, judged)
        if now.files == before.files:
            return None
        return self._gate.refuse_changed(msgspec.structs.replace(judged, executed=now), approval)

    async def _protected(self, judged: Judged) -> Request:
        """Return a request for the host in which Git runs nothing that a repository configures, unless the executor
        trusts it.
        """
        submission, reading = judged.submission, judged.reading
        entry = self.config.entries.get(submission.entry)
        if isinstance(entry, NativeEntry) and entry.trust_repository:
            return submission.request
        listed = entry is not None and entry.command_whitelist is not None
        if reading is None or reading.request is not submission.request:  # policy saw a part of it
            reading = Reading(submission.request)
        if not reading.may_run_version_control():
            return submission.request
        from . import foreign_repositories

        return await foreign_repositories.protected(reading, listed=listed)

    def _spool(self, request: Request, redactor: Redactor) -> Callable[[Stream], Spool] | None:
        """Return where to keep the whole of an output that is too long for the result."""
        if self._artifacts is None:
            return None
        return functools.partial(
            self._artifacts.spool, request.id, redactor=redactor, max_bytes=request.limits.output_total
        )

    # --- later ---

    async def resume(
        self,
        id: str,  # noqa: A002 - the id of the question
        *,
        secrets: Mapping[str, str | Secret] | None = None,
        expect: Any = None,
        writes: Iterable[str] | None = None,
    ) -> Result:
        """Run what was `pending`, if a person has approved it since.

        Args:
            id: `result.approval_id` of the pending result.
            secrets: The same as before: they were not kept.
            expect, writes: As in `redoma.run`; they were not kept either, and need no approval.

        Returns:
            The `Result`, which is still `pending` if there is no answer.

        Raises:
            ApprovalError: Nothing waits under that id, or the secrets differ.
        """
        return await self.submit(await self.recall(id, secrets=secrets, expect=expect, writes=writes))

    async def recall(
        self,
        id: str,  # noqa: A002 - the id of the question
        *,
        secrets: Mapping[str, str | Secret] | None = None,
        expect: Any = None,
        writes: Iterable[str] | None = None,
    ) -> Submission:
        """Return what was `pending`, to submit or follow it: see `resume`."""
        if self._gate is None:
            raise ApprovalError("nothing waits here", why="the configuration names no state directory", next="give one")
        options: Options = {"expect": expect, "writes": writes}
        # before the approval is used up, in case these are invalid
        expected, within = intake.expected(options), intake.writes(options)
        values = {name: one.value if isinstance(one, Secret) else one for name, one in (secrets or {}).items()}
        ask = await asyncio.to_thread(self._gate.recall, id, values)
        return Submission(request=ask.request, policy=ask.policy, resumes=id, expectation=expected, writes=within)

    async def apply(
        self,
        id: str,  # noqa: A002 - of the run
        *,
        paths: Iterable[str] | None = None,
        named: Iterable[str] = (),
        exact: bool = False,
        by_hand: bool = False,
        wait: bool = True,
    ) -> Kept:
        """Apply what a run did in an overlay to its project, all or nothing.

        Args:
            id: The id of the run: `result.id`.
            paths: Apply only what is at these paths or below; by default everything.
            named: Protected paths, or globs, to apply too.
            exact: Apply only what is at `paths` itself.
            by_hand: A person has seen the effect and approves it by this call.
            wait: Whether to wait for a person who must approve; they are shown the effect.

        Returns:
            The kept changes of the run, with what was applied and what was left.

        Raises:
            ApprovalError: A person must approve and has not.
            Conflict: The project has changed since in the same places; nothing was applied.
            WorkspaceError: There is nothing of that run to apply, or it can't be applied.
        """
        return await self.projects.apply(
            self._gate, id, paths=paths, named=tuple(named), exact=exact, by_hand=by_hand, wait=wait
        )

    async def discard(self, id: str) -> Kept:  # noqa: A002
        """Discard what the run with that `id` did in an overlay. Raises `WorkspaceError` if there is nothing of it."""
        return await self.projects.discard(id)

    async def undo(self, id: str) -> Kept:  # noqa: A002
        """Undo exactly what was applied of that run. Raises `WorkspaceError` if it has changed since."""
        return await self.projects.undo(id)

    def kept(self, name: str, make: Callable[[], T]) -> T:
        """Return something that belongs to this executor: made on first use, and closed with it."""
        return cast("T", self._kept.get(name) or self._kept.setdefault(name, make()))

    async def aclose(self) -> None:
        """Release what the backends keep warm."""
        for each in list(self._kept.values()):
            await each.aclose()
        await self._entries.aclose()
        used = self.backends.made if isinstance(self.backends, Installed) else self.backends
        for backend in list(used.values()):
            await backend.aclose()
        self.audit.close()

    async def __aenter__(self) -> AsyncExecutor:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()


def digest_for(config: Config, entry: str) -> str:
    """Return the digest of the configuration, besides the policy, that decides what a request does: part of an
    approval.
    """
    docker = msgspec.structs.replace(config.docker, minimum=0, maximum=None, queue=0, idle=0.0)
    return configuration_digest(docker, config.jail.preload, config.entries.get(entry))


def _can_run(backend: Backend, submission: Submission) -> bool:
    try:
        _must_offer(backend.name, backend.capabilities(), submission)
    except (Unsupported, BackendUnavailable):
        return False
    return True


def _reach_of(backend: Backend, request: Request) -> Reach:
    """Return what a request could touch there."""
    return backend.reach.over(request.workspace, hosts=bool(request.network))


def _must_reach_no_further(backend: Backend, judged: Judged) -> None:
    """Raise `Unsupported` if another backend than the judged one reaches further than what was judged."""
    reach, weighed = _reach_of(backend, judged.request), judged.evaluation.reach
    if not reach.within(weighed):
        raise Unsupported(
            f"{backend.name} can't run this request",
            why=f"there it could touch {reach.words}, and it was judged as what touches {weighed.words}",
            next=f"ask for it by its name: backend={backend.name}",
        )


def _must_offer(name: str, can: Capabilities, submission: Submission) -> None:
    """Refuse, before anything runs, what the backend could only do in part. Raises `Unsupported`."""
    controlled, inside = submission.control is not None, submission.own_backend is not None
    if unmet := unmet_needs(can, submission.request, controlled=controlled, inside=inside):
        instead = _instead(can, submission.request)
        raise Unsupported(f"{name} can't run this request", why=f"it doesn't offer {', '.join(unmet)}", next=instead)


def _instead(can: Capabilities, request: Request) -> str:
    """Return what to ask for instead of what a backend doesn't offer; empty if there is nothing to say."""
    if can.isolation.lacking(request.require):
        return "see `redoma doctor`, which lists the layers that this host has"
    if request.workspace == "direct":
        return "only the backend `native` works in a project itself; `redoma try` shows first what would change"
    if request.cwd and not request.project:
        return 'work in a project: workspace="read-only", project="…" (--workspace read-only --project …)'
    return ""


def _no_backend(request: Request, refusals: dict[str, BackendError], advice: str) -> BackendError:
    """Return the error for a request that every backend refused. `advice` says what works on this host: then the
    reasons are given in short, so that a person sees it. Otherwise the advice is that of the backend tried first.
    """
    if request.backend != "auto" and refusals:
        return next(iter(refusals.values()))
    what = f"no isolating backend on this host can run this {request.language} request"
    if advice:
        why = ", ".join(f"{name} ({error.why})" for name, error in refusals.items())
        return Unsupported(what, why=why, next=advice)
    return Unsupported(
        what,
        why="; ".join(f"{error.what}: {error.why}" for error in refusals.values()) or "none is here",
        next=next((error.next for error in refusals.values()), "") or "see `redoma doctor`",
    )
