"""The pipeline, to be read top to bottom in `AsyncExecutor.submit`:

    Request ─▶ policy ─▶ approval ─▶ audit(intent) ─▶ workspace ─▶ backend ─▶ output ─▶ audit(outcome) ─▶ Result

Only this file knows the order of the stages. `sync.Executor` drives the same object from ordinary code.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Unpack

import msgspec

from .. import config as configuration
from .. import telemetry
from ..approval import NOBODY, Approver, Case, Gate, Verdict, setting_of
from ..audit import AuditLog
from ..audit.inputs import Inputs
from ..backends.base import Backend, Capabilities, Control
from ..config import Config, DockerEntry, NativeEntry
from ..lib.errors import (
    ApprovalError,
    AuditError,
    BackendError,
    BackendUnavailable,
    InvalidRequest,
    StoreError,
    Unsupported,
)
from ..lib.sqlite import NAME as DATABASE
from ..lib.sqlite import Store
from ..models import Decision, Evaluation, Language, Limits, MiB, Request, Result, Status, Stream
from ..models.reach import NOTHING, Reach
from ..output.artifacts import Store as Artifacts
from ..output.capture import Capture, Spool
from ..output.expectations import Expectation, expectation
from ..output.live import Live
from ..policy import PACKS, Leveled, Policy, Reading, evaluate, level_of, secrets_in
from ..redaction import Redactor
from ..workspace.kept import Kept
from . import denial, executed_files, foreign_repositories, intake, results
from .entries import Entries
from .intake import Options
from .projects import Projects
from .streaming import AsyncLiveRun
from .submission import Asked as Asked
from .submission import intent, keep

AUTO = ("jail", "docker", "monty")
"""What `backend="auto"` tries, in this order: never one without a boundary."""


class AsyncExecutor:
    """Runs requests. Use it as an asynchronous context manager, or call `aclose` when done."""

    def __init__(
        self,
        config: Config | None = None,
        *,
        backends: Iterable[Backend] | None = None,
        approver: Approver | None = None,
    ) -> None:
        """`approver` is asked where a person has to say yes, instead of the configured one."""
        self.config = config or configuration.load()
        self.backends = {
            backend.name: backend for backend in (_installed(self.config) if backends is None else backends)
        }
        self._entries = Entries(self.config, self.backends)
        self._policies: dict[str | None, Policy] = {}
        audit, state, approval = self.config.audit, self.config.state, self.config.approval
        self._audit = AuditLog(audit.directory, retention_days=audit.retention_days, fsync=audit.fsync)
        self._artifacts = Artifacts(state / "artifacts") if state else None
        self.inputs = Inputs.within(state, days=audit.retention_days, fsync=audit.fsync)
        user = intake.user()
        settings = {**msgspec.structs.asdict(approval), **({"approver": approver} if approver else {})}
        self._gate = Gate.configured(Store(state / DATABASE), self._record, user=user, **settings) if state else None
        self.projects = Projects(
            *(state, self._record, self.check),
            user=user,
            home=configuration.home(),
            separate=approval.separate,
            own=[audit.directory],
        )

    async def run(self, code: str, language: Language = "python", **options: Unpack[Options]) -> Result:
        """Run source text and return its `Result`. Options are those of `redoma.run`; so is what it raises."""
        return await self._run(self._source(code, language, options), options)

    async def command(self, argv: Iterable[str], *, entry: str | None = None, **options: Unpack[Options]) -> Result:
        """Run a program with its arguments, without a shell; `entry` names a configured executor such as `app:shell`.
        Options are those of `redoma.run`."""
        return await self._run(self.ask(argv, entry, options), options)

    def stream(self, code: str, language: Language = "python", **options: Unpack[Options]) -> AsyncLiveRun:
        """Run source text and follow its output: `async with … as run`, `async for` over it, then `run.result`."""
        return self._live(self._source(code, language, options), options)

    def stream_command(
        self, argv: Iterable[str], *, entry: str | None = None, **options: Unpack[Options]
    ) -> AsyncLiveRun:
        """Run an argument vector and follow its output."""
        return self._live(self.ask(argv, entry, options), options)

    def follow(self, asked: Asked, *, whole: bool = False) -> AsyncLiveRun:
        """Run what was asked and follow its output: with `whole` all of it, else as much as the result keeps."""
        live = Live(asked.request.limits, Redactor(asked.request.secrets.values()), whole=whole)
        return AsyncLiveRun(live, lambda live: self.submit(asked, live=live))

    def _source(self, code: str, language: Language, options: Options) -> Asked:
        request = intake.build(self.config, self.backends, intake.with_path(options), code=code, language=language)
        asked = Asked(request, options.get("policy"), wait=options.get("wait", True), writes=_writes(options))
        return asked._replace(expectation=_expectation(options))

    def ask(
        self, command: str | Iterable[str], entry: str | None, options: Options, control: Control | None = None
    ) -> Asked:
        """A command as it would be run, with what speaks against it. A configured executor also takes one text."""
        live_input = unread_input = control is not None and control.takes_input
        if entry is not None:
            request, judged, objections, on = self._entries.prepare(entry, command, options)
            if self.config.entries[entry].command_whitelist is not None:
                live_input = False  # what may be said to a listed program was for its owner to consider
            if not options.get("wait", True):
                raise InvalidRequest(
                    f"{entry} can't wait for an approval without its caller",
                    why="what runs later is what was asked for, and an executor may be configured anew until then",
                    next="leave `wait` out",
                )
            asked = Asked(request, options.get("policy"), objections, on, control, judged, entry=entry)
        else:
            argv = intake.words("argv", command)
            request = intake.build(self.config, self.backends, intake.with_path(options), argv=argv, language="command")
            asked = Asked(request, options.get("policy"), control=control, wait=options.get("wait", True))
        asked = asked._replace(live_input=live_input, unread_input=unread_input)
        return asked._replace(expectation=_expectation(options), writes=_writes(options))

    async def _run(self, asked: Asked, options: Options) -> Result:
        on_output = options.get("on_output")
        if on_output is None:
            return await self.submit(asked)
        async with self.follow(asked) as run:
            return await run.deliver(on_output)

    def _live(self, asked: Asked, options: Options) -> AsyncLiveRun:
        if options.get("on_output") is not None:
            raise InvalidRequest("on_output was given to a stream", why="it would get nothing", next="leave it out")
        return self.follow(asked, whole=options.get("whole_output", False))

    def check(
        self,
        request: Request,
        policy: str | None = None,
        *,
        reach: Reach | None = None,
        live_input: bool = False,
        entry: str = "",
    ) -> Evaluation:
        """What policy says of a request where it would run, without running it; or of one that could touch what
        `reach` says. See `evaluate`."""
        reach = self.reach(Asked(request)) if reach is None else reach
        return evaluate(self._policy(policy), request, reach=reach, live_input=live_input, entry=entry)

    @telemetry.policy
    def judge(self, asked: Asked) -> Evaluation:
        """What speaks against it, in one list."""
        shown, reach = asked.judged or asked.request, self.reach(asked)
        evaluation = evaluate(
            self._policy(asked.policy),
            shown,
            reach=reach,
            live_input=asked.live_input,
            entry=asked.entry,
            reading=asked.reading,
        )
        return msgspec.structs.replace(evaluation, findings=asked.objections + evaluation.findings)

    def reach(self, asked: Asked) -> Reach:
        """What it could touch on the backend that would be the first to be tried. If none can run it, what it could on
        any of them."""
        candidates = self._candidates(asked)
        first = next((backend for backend in candidates if _can_run(backend, asked)), None)
        tried = candidates if first is None else [first]
        return functools.reduce(Reach.__or__, (_reach(backend, asked.request) for backend in tried), NOTHING)

    def _policy(self, pack: str | None) -> Policy:
        if pack is not None:
            intake.must_be_one_of("policy", pack, PACKS)
        if pack not in self._policies:
            self._policies[pack] = self.config.load_policy(pack)
        return self._policies[pack]

    def place(self, asked: Asked) -> str:
        """The backend that would be the first to be tried, without trying it; empty if none can do it."""
        return next((backend.name for backend in self._candidates(asked) if _can_run(backend, asked)), "")

    @telemetry.run
    async def submit(self, asked: Asked, live: Live | None = None) -> Result:
        """The whole path of one request. Raises neither for what the code did nor for what we could not do.

        Whoever follows the run gets its output through `live`, too."""
        asked = asked._replace(reading=Reading(asked.judged or asked.request))
        request, evaluation = asked.request, self.judge(asked)
        redactor = live.redactor if live else Redactor(request.secrets.values())
        level = level_of(asked.judged or request, evaluation, reading=asked.reading)
        case = Case(request, evaluation, level.level, None, asked.policy, asked.entry, _env_of(asked.judged))
        case = case._replace(setting=setting(self.config, asked.entry), live_input=asked.unread_input)
        result = Result(id=request.id, status=Status.KILLED, error="it was cancelled", evaluation=evaluation)
        result = msgspec.structs.replace(result, level=level.level, level_why=level.why)
        try:
            try:
                case = await self._bound(asked, case)
                verdict = await self._decided(asked, case)
            except ApprovalError as error:  # it can't be known whether it may run, so it may not
                verdict = Verdict(status=Status.DENIED, error=str(error))
            result = msgspec.structs.replace(result, approval=verdict.approval, approval_id=verdict.id)
            await self._record_intent(asked, evaluation, level, verdict, redactor)
        except (AuditError, StoreError) as error:
            return results.failed(result, error, redactor)  # what can't be recorded doesn't run
        try:
            if verdict.status is None:
                result = await self._execute(asked, case, result, redactor, live)
            else:
                result = self._refused(asked, result, verdict, verdict.status, redactor)
        finally:  # also when we are cancelled: the record then says so
            try:
                self._record("outcome", request.id, results.outcome(result, redactor))
            except AuditError as error:
                result = results.failed(result, error, redactor, ran=True)
        return results.with_safe_names(result, redactor)

    async def _bound(self, asked: Asked, case: Case) -> Case:
        """With the files that it would execute, where somebody's yes counts: to read them takes time."""
        decision = case.evaluation.decision
        later = case.evaluation.reach.files == "later" and case.evaluation.findings  # asked when it is to be applied
        asks = asked.redeems or decision is Decision.PROMPT or later
        if self._gate is None or not (asks or self._gate.watches(case.request)):
            return case
        refused = decision is Decision.FORBID  # which needs no event loop: see `Gate.watch`
        found = self._executes(asked) if refused else await asyncio.to_thread(self._executes, asked)
        return case._replace(**found._asdict())

    def _executes(self, asked: Asked) -> executed_files.Bound:
        entry = self.config.entries.get(asked.entry)
        # Those of another machine's engine are that machine's.
        here = isinstance(entry, DockerEntry) and (entry.host is None or entry.host.startswith("unix:"))
        volumes = entry.volumes if isinstance(entry, DockerEntry) and here else ()
        seen = executed_files.seen_by(asked.request, volumes)
        reading = asked.reading if asked.judged is None else None  # of what runs, which may be more than was judged
        return executed_files.bind(asked.request, seen, live_input=asked.unread_input, reading=reading)

    @telemetry.decided
    async def _decided(self, asked: Asked, case: Case) -> Verdict:
        """Whether it may run: by policy, or by a person. What only an overlay would change asks nobody yet: there a
        person decides on the effect, when it is to be applied."""
        decision = case.evaluation.decision
        if asked.redeems and self._gate is not None and decision is not Decision.FORBID:
            return await self._gate.redeem(asked.redeems, case)  # also where nobody need be asked any more: see there
        if decision is not Decision.PROMPT:
            alarm = await self._gate.watch(case) if self._gate else None
            return alarm or Verdict(status=Status.FORBIDDEN if decision is Decision.FORBID else None)
        if self._gate is None:
            return Verdict(status=Status.DENIED)
        return await self._gate.ask(case, wait=asked.wait)

    async def _record_intent(
        self, asked: Asked, evaluation: Evaluation, level: Leveled, verdict: Verdict, redactor: Redactor
    ) -> None:
        """What is about to run, or was refused, with what it was given; without the secrets that the policy has
        recognised, too."""
        if not self.config.audit.enabled:
            return
        policy = self._policy(asked.policy)
        if embedded := secrets_in(policy, asked.judged or asked.request):
            redactor = Redactor([*asked.request.secrets.values(), *embedded])
        if not self.config.audit.inputs:
            asked = asked._replace(keeps=False)
        given = asked, policy, redactor, self.inputs
        large = verdict.status is None and asked.size > MiB  # what is refused needs no event loop
        kept = await asyncio.to_thread(keep, *given) if large else keep(*given)
        told = intent(asked, evaluation, level, redactor, verdict.approval, kept)
        self._record("intent", asked.request.id, told)

    def _refused(self, asked: Asked, result: Result, verdict: Verdict, status: Status, redactor: Redactor) -> Result:
        """By the gate alone where it is not what was pinned or asked about; else by the policy, or who it asks."""
        evaluation = result.evaluation
        alarm = verdict.alarm and evaluation.decision is Decision.PROMPT  # what is forbidden is so under any label
        if alarm or evaluation.decision is Decision.ALLOW:
            no = denial.of_pin(asked.request, redactor) if verdict.alarm else None
            return msgspec.structs.replace(result, status=status, error=verdict.error, denial=no)
        said = "" if verdict.error == NOBODY else verdict.error
        by = evaluation, asked.judged or asked.request, self._policy(asked.policy), redactor, status, said
        no = denial.of_policy(*by, live_input=asked.live_input, entry=asked.entry)
        return results.refused(result, no, status, said)

    async def _changed(self, asked: Asked, case: Case, id: str) -> Verdict | None:  # noqa: A002 - of the approval
        """The refusal of what executes other files than when it was decided on. In an overlay it matters only where it
        has to be what is pinned: there the effect is what is decided on."""
        if case.scripts is None or self._gate is None:
            return None
        if case.request.workspace == "overlay" and not self._gate.watches(case.request):
            return None
        now = case._replace(**(await asyncio.to_thread(self._executes, asked))._asdict())
        return None if now.scripts == case.scripts else self._gate.refuse_changed(now, id)

    async def _execute(self, asked: Asked, case: Case, result: Result, redactor: Redactor, live: Live | None) -> Result:
        """On the first backend that can. One that raises `Unsupported` has run nothing, so the next may be tried."""
        request, control = asked.request, asked.control
        refusals: list[BackendError] = []
        for backend in self._candidates(asked):
            result = msgspec.structs.replace(result, backend=backend.name)
            capture = Capture(request.limits, redactor, live.feed if live else None, self._keep(request, redactor))
            try:
                _require(backend.name, backend.capabilities(), asked)
                _must_be_judged(backend, request, result.evaluation)
                if (changed := await self._changed(asked, case, result.approval_id)) is not None:
                    no = denial.of_pin(request, redactor) if changed.alarm else None
                    return msgspec.structs.replace(result, status=Status.DENIED, error=changed.error, denial=no)
                outcome, more = await self.projects.run(
                    backend, await self._kept_to_itself(backend, asked), capture.feed, control, case, redactor
                )
            except (Unsupported, BackendUnavailable) as error:
                refusals.append(error)
                passed_over = {**result.passed_over, backend.name: redactor.redact(f"{error.what}: {error.why}")[0]}
                result = msgspec.structs.replace(result, passed_over=passed_over)
            except Exception as error:  # a backend's own bug too: the output is kept, and the record says what broke
                return results.failed(result, error, redactor, captured=capture.finish())
            else:
                no = denial.of_limit(outcome, request, self.config.limits, redactor)
                result = results.with_effect(msgspec.structs.replace(result, denial=no, **more), asked.writes)
                finish = functools.partial(
                    results.finished, result, outcome, capture.finish(), redactor, request.limits, asked.expectation
                )
                # Other runs end by the clock of this event loop.
                return await asyncio.to_thread(finish) if results.is_large(outcome.value) else finish()
            finally:
                capture.close()
        unable = _no_backend(request, refusals)
        result = msgspec.structs.replace(result, denial=denial.of_backend(unable, request, redactor))
        return results.failed(result, unable, redactor)

    async def _kept_to_itself(self, backend: Backend, asked: Asked) -> Request:
        """On the host Git runs nothing that a repository configures, unless the executor trusts it."""
        entry = self.config.entries.get(asked.entry)
        if backend.name != "native" or (isinstance(entry, NativeEntry) and entry.trust_repository):
            return asked.request
        listed = entry is not None and entry.command_whitelist is not None
        return await foreign_repositories.protected(asked.request, listed=listed)

    def _keep(self, request: Request, redactor: Redactor) -> Callable[[Stream], Spool] | None:
        """Where all of an output goes that is too long for the result."""
        if self._artifacts is None:
            return None
        return functools.partial(
            self._artifacts.spool, request.id, redactor=redactor, max_bytes=request.limits.output_total
        )

    def _candidates(self, asked: Asked) -> list[Backend]:
        if asked.on is not None:
            return [asked.on]
        names = AUTO if asked.request.backend == "auto" else (asked.request.backend,)
        return [self.backends[name] for name in names if name in self.backends]

    def _record(self, kind: str, run: str, data: Mapping[str, Any]) -> None:
        if self.config.audit.enabled:
            self._audit.append(kind, run, data)

    async def resume(
        self,
        id: str,  # noqa: A002 - under which somebody was asked
        *,
        secrets: Mapping[str, str] | None = None,
        expect: Any = None,
        writes: Iterable[str] | None = None,
    ) -> Result:
        """Run what was `pending`, if a person has said yes to it since. Its secrets were not kept: give them again. Nor
        were `expect` and `writes`, which nobody has to approve."""
        if self._gate is None:
            raise ApprovalError("nothing waits here", why="the configuration names no state directory", next="give one")
        options: Options = {"expect": expect, "writes": writes}
        expected, within = _expectation(options), _writes(options)  # a mistake in these uses no approval up
        ask = await asyncio.to_thread(self._gate.recall, id, secrets or {})
        return await self.submit(Asked(ask.request, ask.policy, redeems=id, expectation=expected, writes=within))

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
        """Make what a run did in an overlay happen to its project, all or nothing; with `paths`, only what is there or
        below (with `exact`, only there). `named` are protected paths, or globs, to be applied too. Where policy wants a
        person to say yes, one is asked, and shown the effect; `by_hand` says that one has seen it and is saying so."""
        return await self.projects.apply(
            *(self._gate, id, paths, tuple(named)), exact=exact, by_hand=by_hand, wait=wait
        )

    async def discard(self, id: str) -> Kept:  # noqa: A002
        """Drop what a run did in an overlay."""
        return await self.projects.discard(id)

    async def undo(self, id: str) -> Kept:  # noqa: A002
        """Take back exactly what was applied; refused if it has changed since."""
        return await self.projects.undo(id)

    async def aclose(self) -> None:
        """Let go of what the backends keep warm."""
        await self._entries.aclose()
        for backend in self.backends.values():
            await backend.aclose()

    async def __aenter__(self) -> AsyncExecutor:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()


def setting(config: Config, entry: str) -> str:
    """What of the configuration decides, beside the policy, what a request does: an approval is of that, too."""
    docker = msgspec.structs.replace(config.docker, minimum=0, maximum=None, queue=0, idle=0.0)
    return setting_of(docker, config.jail.preload, config.entries.get(entry))


def _writes(options: Options) -> tuple[str, ...] | None:
    given = options.get("writes")
    return None if given is None else intake.words("writes", given)


def _env_of(judged: Request | None) -> dict[str, str] | None:
    return None if judged is None else judged.env


def _expectation(options: Options) -> Expectation | None:
    given = options.get("expect")
    return None if given is None else expectation(given)


def _installed(config: Config) -> list[Backend]:
    from ..backends.docker import DockerBackend
    from ..backends.jail import JailBackend
    from ..backends.monty.backend import MontyBackend
    from ..backends.native.backend import NativeBackend

    return [
        JailBackend(**msgspec.structs.asdict(config.jail)),
        DockerBackend.configured(**msgspec.structs.asdict(config.docker)),
        MontyBackend(),
        NativeBackend(),
    ]


def _can_run(backend: Backend, asked: Asked) -> bool:
    try:
        _require(backend.name, backend.capabilities(), asked)
    except (Unsupported, BackendUnavailable):
        return False
    return True


def _reach(backend: Backend, request: Request) -> Reach:
    return backend.reach.over(request.workspace)


def _must_be_judged(backend: Backend, request: Request, evaluation: Evaluation) -> None:
    """The verdict was for the backend that was to run it. Another one may run it only if it reaches no further."""
    reach = _reach(backend, request)
    if not reach.within(evaluation.reach):
        raise Unsupported(
            f"{backend.name} can't run this request",
            why=f"there it could touch {reach.words}, and it was judged as what touches {evaluation.reach.words}",
            next=f"ask for it by its name: backend={backend.name}",
        )


def _require(name: str, can: Capabilities, asked: Asked) -> None:
    """Refuse, before anything runs, what the backend could only do in part."""
    request = asked.request
    needs = {
        f"{request.language} code": request.language in can.languages,
        "arguments": can.arguments or not request.argv or request.language not in ("python", "bash"),
        "input": can.stdin or not request.stdin,
        "input and signals while it runs": can.control or asked.control is None,
        "variables": can.env or not request.environment,
        "files": can.files or not request.files,
        "files to bring back": can.outputs or not request.outputs,
        f"the workspace {request.workspace!r}": request.workspace in can.workspaces,
        # Where the backend was chosen with the request, so was the directory: it is one inside.
        "a working directory on the host": can.cwd or not request.cwd or request.project or asked.on is not None,
        **{f"the isolation layer {layer!r}": False for layer in can.isolation.lacking(request.require)},
        **{f"a limit on {field}": False for field in _unenforced(can, request.limits)},
    }
    unmet = [need for need, met in needs.items() if not met]
    if unmet:
        raise Unsupported(f"{name} can't run this request", why=f"it doesn't offer {', '.join(unmet)}")


def _unenforced(can: Capabilities, limits: Limits) -> list[str]:
    """The limits that were asked for and would not hold. A default that doesn't is written on the result instead."""
    defaults = Limits()
    unenforced = [field for field in Limits.__struct_fields__ if field not in can.limits]
    return [field for field in unenforced if getattr(limits, field) != getattr(defaults, field)]


def _no_backend(request: Request, refusals: list[BackendError]) -> BackendError:
    if request.backend != "auto" and refusals:
        return refusals[0]
    return Unsupported(
        f"no isolating backend on this host can run this {request.language} request",
        why="; ".join(f"{error.what}: {error.why}" for error in refusals) or "none is here",
        next="see `redoma doctor`, or choose the backend `native` to run it on the host itself, without isolation",
    )
